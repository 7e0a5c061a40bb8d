//! Hosts that begin anew, shut down, or give commands up: what was before has ended by then.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, Pool};
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::fabrics::{CNTLID_DYNAMIC, Property};
use forebay_proto::nvme::kv::{KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::property::{Capabilities, Configuration, ControllerStatus, offset};
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry, opcode};
use forebay_store::suite::{Around, Detour};
use forebay_store::{MemoryStore, Result, Store, Upload};
use parking_lot::Mutex;

use crate::first::{read, write};
use crate::host::{Host, OTHER, Options, PLAIN, bytes, key, store};
use crate::world::{BLOCK_BYTES, KV, World};

/// Long enough for what is not to happen.
const SHORT: Duration = Duration::from_millis(200);
/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn world_of_few_buffers() -> World {
    World::over(Pool::new(2 << 20), Limits::default(), |_| {})
}

/// All buffers that there are.
pub fn all_buffers(world: &World) -> Vec<BufMut> {
    let take = |len| move || world.pool.try_take(len).ok();
    let large = std::iter::from_fn(take(BLOCK_MAX_BYTES));
    large.chain(std::iter::from_fn(take(4096))).collect()
}

/// A write that waits for a buffer, on the second shard, which does something else from then on.
fn waiting_write(world: &World) -> (Host, Host, std::sync::mpsc::Sender<()>) {
    let (admin, mut io) = world.host(PLAIN);
    let taken = all_buffers(world);
    write(&mut io, &bytes(BLOCK_BYTES, 1));
    let occupied = world.occupy(1);
    drop(taken);
    (admin, io, occupied)
}

#[test]
fn a_reset_ends_when_nothing_of_before_goes_on() {
    let world = world_of_few_buffers();
    let (mut admin, _io, occupied) = waiting_write(&world);
    let disable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0 & !1), 900);
    admin.capsule(&disable, &[]);
    assert!(!admin.has_more(SHORT), "a write may still begin");
    drop(occupied);
    assert!(admin.completion().status.is_success());
    let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
    admin.ok(enable);
    let mut io = world.io(&admin, 1, PLAIN);
    assert!(read(&mut io) == [0; BLOCK_BYTES], "it was given up");
}

/// Says that something is being written, and keeps the thread that does it until the other end is gone.
#[derive(Clone)]
struct Stuck {
    writes: mpsc::Sender<()>,
    until: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl<S: Store> Detour<S> for Stuck {
    async fn write(&self, upload: &mut S::Upload, buf: Buf) -> Result<()> {
        upload.write(buf).await?;
        // The test may be over.
        let _ = self.writes.send(());
        let _ = self.until.lock().recv();
        Ok(())
    }
}

fn part(offset: u64, last: bool) -> SubmissionQueueEntry {
    let part = KvCommand::StorePart {
        key: KeyAt::Inline(key("value")),
        offset,
        value_bytes: 4,
        options: StoreOptions::default(),
        last,
    };
    part.entry(0, KV)
}

#[test]
fn a_reset_forgets_the_value_whose_part_arrives_while_its_queue_ends() {
    let (writes, writing) = mpsc::channel();
    let (goes_on, until) = mpsc::channel();
    let detour = Stuck {
        writes,
        until: Arc::new(Mutex::new(until)),
    };
    let pool = Pool::new(64 << 20);
    let store = MemoryStore::new(pool.clone(), || 1_800_000_000_000);
    let world = World::of(Around { store, detour }, pool, Limits::default(), |_| {});
    // Gone before the world is, which waits for its threads.
    let goes_on: mpsc::Sender<()> = goes_on;
    let (mut admin, mut io) = world.host(PLAIN);
    let first = io.numbered(part(0, false));
    io.capsule(&first.with_sgl(SglDescriptor::in_capsule(4)), b"half");
    writing.recv_timeout(PATIENCE).expect("a write");
    let disable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0 & !1), 900);
    admin.capsule(&disable, &[]);
    assert!(!admin.has_more(SHORT), "the part may still arrive");
    drop(goes_on);
    assert!(admin.completion().status.is_success());
    let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
    admin.ok(enable);
    let mut io = world.io(&admin, 1, PLAIN);
    let (rest, _) = io.run(part(4, true), b"rest", 0);
    assert_eq!(rest.status.code(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn a_host_that_comes_again_waits_for_the_queues_that_it_left() {
    let world = world_of_few_buffers();
    let (admin, _io, occupied) = waiting_write(&world);
    drop(admin);
    world.wait_for_ends(1);
    let admin = world.admin(PLAIN);
    // This one falls to the shard that is occupied.
    let _between = world.connect();
    let mut io = Host::initialize(world.connect(), PLAIN);
    let (entry, data) = io.connect_command(1, admin.cntlid);
    io.capsule(&entry, &data);
    assert!(!io.has_more(SHORT), "a write may still begin");
    // That is no matter of other hosts.
    let _between = world.connect();
    let mut other = Host::initialize(world.connect(), OTHER);
    other.join(0, CNTLID_DYNAMIC).expect("a controller");
    drop(occupied);
    assert!(io.completion().status.is_success());
    assert!(read(&mut io) == [0; BLOCK_BYTES], "it was given up");
}

#[test]
fn a_queue_that_waits_for_what_was_before_ends_when_it_is_told_to() {
    let world = World::new();
    let (admin, mut io) = world.host(PLAIN);
    world.file.keep(true);
    write(&mut io, &bytes(BLOCK_BYTES, 1));
    drop((admin, io));
    world.wait_for_ends(2);
    // Its controller goes; then the server does.
    for goes in [false, true] {
        let admin = world.admin(PLAIN);
        let mut io = Host::initialize(world.connect(), PLAIN);
        let (entry, data) = io.connect_command(1, admin.cntlid);
        io.capsule(&entry, &data);
        assert!(!io.has_more(SHORT), "what was written has not landed");
        if goes {
            world.go();
        } else {
            drop(admin);
        }
        world.wait_for_ends(2);
    }
    world.file.keep(false);
}

#[test]
fn a_shutdown_is_complete_when_all_queues_have_ended() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let status = |admin: &mut Host| {
        let csts = admin.ok(Property::get(offset::CSTS, 0));
        ControllerStatus(csts as u32)
    };
    world.file.keep(true);
    write(&mut io, &bytes(BLOCK_BYTES, 1));
    let shutdown = u64::from(Configuration::ENABLE.with_shutdown().0);
    admin.ok(Property::set(offset::CC, shutdown, 0));
    let now = status(&mut admin);
    assert!(now.shuts_down() && !now.shutdown_complete());
    world.file.keep(false);
    assert!(io.completion().status.is_success());
    world.wait_for_ends(1);
    assert!(status(&mut admin).shutdown_complete());
    // Without queues at once.
    let mut admin = world.admin(OTHER);
    admin.ok(Property::set(offset::CC, shutdown, 0));
    assert!(status(&mut admin).shutdown_complete());
}

#[test]
fn an_abort_is_complete_after_what_it_aborted() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let value = bytes(64 << 10, 1);
    let entry = io.numbered(store("value", value.len()));
    io.capsule(
        &entry.with_sgl(SglDescriptor::transport(value.len() as u32)),
        &[],
    );
    let r2t = io.r2t();
    let abort = SubmissionQueueEntry::new(opcode::admin::ABORT, 900, 0)
        .with_cdw(10, 1 | u32::from(entry.cid()) << 16);
    admin.capsule(&abort, &[]);
    // What the host was asked for it has to send all the same.
    assert!(!admin.has_more(SHORT), "its command is not complete");
    io.answer(&r2t, &value, value.len());
    let completion = io.completion();
    assert_eq!(completion.status.code(), Status::ABORT_REQUESTED);
    let aborted = admin.completion();
    assert_eq!((aborted.cid, aborted.result), (900, 0));
    assert!(aborted.status.is_success());
    // There is nothing to abort.
    assert_eq!(admin.ok(abort), 1);
}

#[test]
fn a_host_has_a_quarter_of_the_connections() {
    let world = World::with(Limits::default(), |config| config.controllers_max = 32);
    let mut admin = world.admin(PLAIN);
    let granted = SubmissionQueueEntry::new(opcode::admin::GET_FEATURES, 0, 0).with_cdw(10, 7);
    assert_eq!(admin.ok(granted), 0x0003_0003);
    let _queues = [1, 2, 3, 4].map(|qid| world.io(&admin, qid, PLAIN));
    let second = world.admin(PLAIN);
    let mut more = vec![world.io(&second, 1, PLAIN), world.io(&second, 2, PLAIN)];
    let mut refused = Host::initialize(world.connect(), PLAIN);
    let busy = Err(Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(refused.join(3, second.cntlid), busy);
    let mut third = Host::initialize(world.connect(), PLAIN);
    assert_eq!(third.join(0, CNTLID_DYNAMIC), busy);
    // Others have theirs.
    let _other = world.host(OTHER);
    more.pop();
    world.wait_for_ends(1);
    assert_eq!(refused.join(3, second.cntlid), Ok(second.cntlid));
}

#[test]
fn no_host_is_granted_more_queues_than_it_may_have() {
    let world = World::with(Limits::default(), |config| config.controllers_max = 12);
    let mut admin = world.admin(PLAIN);
    let granted = SubmissionQueueEntry::new(opcode::admin::GET_FEATURES, 0, 0).with_cdw(10, 7);
    assert_eq!(admin.ok(granted), 0x0001_0001);
}

#[test]
fn queues_are_no_longer_than_tags_can_tell() {
    let world = World::with(Limits::default(), |config| {
        config.queue_entries_max = 65_536
    });
    let mut admin = world.admin(PLAIN);
    let capabilities = Capabilities(admin.ok(Property::get(offset::CAP, 0)));
    assert_eq!(capabilities.queue_entries_max(), 1024);
    let of = |entries| Options { entries, ..PLAIN };
    let mut long = Host::initialize(world.connect(), of(1025));
    let refused = long.join(1, admin.cntlid);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_PARAMETERS));
    world.io(&admin, 1, of(1024));
}

#[test]
fn a_connection_is_probed_when_it_is_silent() {
    const ESTABLISHED: &str = "01";
    const KEEP_ALIVE: &str = "02";
    let world = World::new();
    let _host = world.admin(PLAIN);
    let port = format!(":{:04X}", world.address.port());
    let timer = || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let fields =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let ours = |fields: &Vec<String>| fields[1].ends_with(&port) && fields[3] == ESTABLISHED;
        let ours = table.lines().skip(1).map(fields).find(ours);
        ours.expect("a connection")[5][..2].to_owned()
    };
    let begun = Instant::now();
    // Before, it may wait for what was sent to be acknowledged.
    while timer() != KEEP_ALIVE {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
}
