//! Writes that stay with the device for long, while their hosts give them up or go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_io::files::Directory;
use forebay_io::{Disk, File, Hold};
use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::nvme::nvm::{DsmRange, NvmCommand};
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry, opcode};
use tokio::sync::watch;

use crate::first::{exist, read, write};
use crate::host::{Host, OTHER, PLAIN, bytes};
use crate::world::{BLOCK, BLOCK_BYTES, World};

type Plain = <Directory as Disk>::File;

/// A file whose device keeps what is written, syncs, holes and reads, for as long as it is told.
#[derive(Clone)]
pub struct Slow {
    file: Plain,
    keeps: watch::Sender<bool>,
    keeps_reads: watch::Sender<bool>,
    /// Writes that have begun.
    pub writes: Arc<AtomicUsize>,
    /// Syncs that have begun.
    syncs: Arc<AtomicUsize>,
    /// Holes that it began to punch.
    punches: Arc<AtomicUsize>,
}

impl Slow {
    pub fn new(file: Plain) -> Slow {
        Slow {
            file,
            keeps: watch::Sender::new(false),
            keeps_reads: watch::Sender::new(false),
            writes: Arc::default(),
            syncs: Arc::default(),
            punches: Arc::default(),
        }
    }

    /// Whether it keeps what changes it.
    pub fn keep(&self, keeps: bool) {
        self.keeps.send_replace(keeps);
    }

    /// Whether it keeps what reads it.
    pub fn keep_reads(&self, keeps: bool) {
        self.keeps_reads.send_replace(keeps);
    }

    fn wait(&self) {
        while *self.keeps.borrow() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits while it is true.
pub async fn kept(keeps: &watch::Sender<bool>) -> io::Result<()> {
    let mut keeps = keeps.subscribe();
    let kept = keeps.wait_for(|keeps| !keeps).await;
    kept.map(drop).map_err(io::Error::other)
}

impl File for Slow {
    async fn read_at(&self, offset: u64, into: BufMut, len: usize) -> (io::Result<()>, BufMut) {
        if let Err(error) = kept(&self.keeps_reads).await {
            return (Err(error), into);
        }
        self.file.read_at(offset, into, len).await
    }

    async fn read_into(&self, offset: u64, into: RegionSlice, hold: Hold) -> io::Result<usize> {
        self.file.read_into(offset, into, hold).await
    }

    async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        self.writes.fetch_add(1, Relaxed);
        kept(&self.keeps).await?;
        self.file.write_at(offset, from).await
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(offset, into)
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(offset, from)
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        self.file.write_together(places)
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.file.lock()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.wait();
        self.file.sync_data()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.punches.fetch_add(1, Relaxed);
        self.wait();
        self.file.punch(offset, len)
    }

    fn held_bytes(&self) -> io::Result<u64> {
        self.file.held_bytes()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Long enough for what is not to happen.
pub const SHORT: Duration = Duration::from_millis(200);

/// A write of the first block that the device keeps.
fn write_kept(world: &World, io: &mut Host, data: &[u8]) -> SubmissionQueueEntry {
    world.file.keep(true);
    write(io, data)
}

#[test]
fn a_write_that_is_with_the_device_when_it_is_aborted_is_complete_when_it_has_landed() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let data = bytes(BLOCK_BYTES, 1);
    let entry = write_kept(&world, &mut io, &data);
    let abort = SubmissionQueueEntry::new(opcode::admin::ABORT, 0, 0)
        .with_cdw(10, 1 | u32::from(entry.cid()) << 16);
    admin.ok(abort);
    assert!(!io.has_more(SHORT), "it may land after what comes next");
    world.file.keep(false);
    let completion = io.completion();
    assert_eq!(completion.cid, entry.cid());
    assert_eq!(completion.status.code(), Status::ABORT_REQUESTED);
    assert!(read(&mut io) == data);
}

#[test]
fn a_host_that_comes_again_finds_what_it_wrote_before_landed() {
    let world = World::new();
    let (admin, mut io) = world.host(PLAIN);
    let data = bytes(BLOCK_BYTES, 1);
    write_kept(&world, &mut io, &data);
    drop((admin, io));
    world.wait_for_ends(2);
    let file = world.file.clone();
    let landing = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        file.keep(false);
    });
    let (_admin, mut io) = world.host(PLAIN);
    assert!(read(&mut io) == data);
    landing.join().unwrap();
}

#[test]
fn a_host_does_not_wait_for_what_others_wrote_and_keeps_nobody_waiting() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    let entry = write_kept(&world, &mut io, &bytes(BLOCK_BYTES, 1));
    let (_other, mut other) = world.host(OTHER);
    assert_eq!(exist(&mut other), Status::KV_KEY_DOES_NOT_EXIST);
    world.file.keep(false);
    assert_eq!(io.completion().cid, entry.cid());
}

/// Each may have many ranges, and each range takes a thread that waits.
#[test]
fn one_hole_is_punched_at_a_time() {
    const ASKED: usize = 20;
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    world.file.keep(true);
    let range = DsmRange { first: 0, count: 1 }.encode();
    let deallocate = NvmCommand::DatasetManagement {
        ranges: 1,
        deallocate: true,
    };
    let ask = |io: &mut Host| {
        let entry = io.numbered(deallocate.entry(0, BLOCK));
        let sgl = SglDescriptor::in_capsule(range.len() as u32);
        io.capsule(&entry.with_sgl(sgl), &range);
    };
    ask(&mut io);
    while world.file.punches.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    for _ in 1..ASKED {
        ask(&mut io);
    }
    assert_eq!(exist(&mut io), Status::KV_KEY_DOES_NOT_EXIST);
    assert!(!io.has_more(SHORT), "before the device is done");
    assert_eq!(world.file.punches.load(Relaxed), 1);
    world.file.keep(false);
    for _ in 0..ASKED {
        assert!(io.completion().status.is_success());
    }
    assert_eq!(world.file.punches.load(Relaxed), ASKED);
}

#[test]
fn flushes_share_what_the_device_does() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    world.file.keep(true);
    let first = io.numbered(NvmCommand::Flush.entry(0, BLOCK));
    io.capsule(&first, &[]);
    while world.file.syncs.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    for _ in 0..20 {
        let flush = io.numbered(NvmCommand::Flush.entry(0, BLOCK));
        io.capsule(&flush, &[]);
    }
    // Their connection is gone before the sync that they wait for has begun: the next ones do not wait for them.
    let (_other, mut gone) = world.host(OTHER);
    let flush = gone.numbered(NvmCommand::Flush.entry(0, BLOCK));
    gone.capsule(&flush, &[]);
    assert_eq!(exist(&mut gone), Status::KV_KEY_DOES_NOT_EXIST);
    drop(gone);
    world.wait_for_ends(1);
    assert!(!io.has_more(SHORT), "before the device is done");
    assert_eq!(world.file.syncs.load(Relaxed), 1);
    world.file.keep(false);
    for _ in 0..21 {
        assert!(io.completion().status.is_success());
    }
    // The first one, and one for all that came meanwhile.
    assert_eq!(world.file.syncs.load(Relaxed), 2);
}
