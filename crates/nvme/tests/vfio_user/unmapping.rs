//! Memory that the client takes back: the device lets go of it, whatever became of the commands that used it.

use std::fs::File;
use std::future::pending;
use std::sync::mpsc;
use std::time::Duration;

use forebay_mem::{PAGE_BYTES, Region};
use forebay_nvme::target::Viewer;
use forebay_nvme::vfio_user::client::{DoorbellMode, Mapping};
use forebay_nvme::vfio_user::serve;
use forebay_proto::nvme::kv::{KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{Status, SubmissionQueueEntry};
use forebay_proto::vfio_user::{Command, DmaMap, Kind, Request};
use tokio::net::UnixStream;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::raw::{NO_FILE, Raw, Refusal};
use crate::support::*;

const PAGE: u64 = PAGE_BYTES as u64;

/// Takes memory back from a device that has nothing to do.
async fn take_back(host: &Host, memory: Mapping, after: &str) {
    let taken = tokio::time::timeout(Duration::from_secs(10), host.device.unmap(memory));
    taken.await.expect(after).unwrap();
}

#[tokio::test]
async fn memory_is_unmapped_while_commands_use_it() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let len = 1 << 20;
    let source = host.memory(len).await;
    put(&source, 0, &pattern(len, 1));
    assert_eq!(
        host.store(b"value", &source, len).await.status,
        Status::SUCCESS
    );
    for _ in 0..20 {
        let memory = host.memory(len).await;
        let commands = 8;
        for _ in 0..commands {
            let command = memory.point(retrieve(b"value", len), 0, len).unwrap();
            assert!(host.queue.submit(&command));
        }
        host.queue.ring().await.unwrap();
        host.device.unmap(memory.clone()).await.unwrap();
        // From now on nothing lands there.
        put(&memory, 0, &vec![7; len]);
        let mut ended = 0;
        while ended < commands {
            let seen = host.queue.wait(|one| {
                let status = one.status.code();
                assert!([Status::SUCCESS, Status::DATA_TRANSFER_ERROR].contains(&status));
            });
            ended += seen.await.unwrap();
        }
        assert!(get(&memory, 0, len) == vec![7; len]);
    }
}

#[tokio::test]
async fn commands_whose_data_is_not_all_there_hold_none_of_it() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let value = host.memory(2 * PAGE_BYTES).await;
    let stored = host.store(b"value", &value, 2 * PAGE_BYTES).await;
    assert_eq!(stored.status, Status::SUCCESS);
    let nowhere = value.address() + (1 << 40);

    let memory = host.memory(PAGE_BYTES).await;
    let half = retrieve(b"value", 2 * PAGE_BYTES).with_prps(memory.address(), nowhere);
    let ended = host.execute(&half).await.status.code();
    assert_eq!(ended, Status::DATA_TRANSFER_ERROR);
    take_back(&host, memory, "a page that is not there").await;

    let memory = host.memory(PAGE_BYTES).await;
    let command = KvCommand::Store {
        key: KeyAt::Head,
        value_bytes: 100,
        options: StoreOptions::default(),
    };
    // Its key has no bytes.
    let keyless = memory.point(command.entry(1, KV), 0, PAGE_BYTES).unwrap();
    let ended = host.execute(&keyless).await.status.code();
    assert_eq!(ended, Status::INVALID_KEY_SIZE);
    take_back(&host, memory, "a key that is none").await;

    // Admin commands: what the controller gives, and what it takes.
    let identify = SubmissionQueueEntry::new(0x06, 1, 0).with_cdw(10, 1);
    let host_identifier = SubmissionQueueEntry::new(0x09, 1, 0)
        .with_cdw(10, 0x81)
        .with_cdw(11, 1);
    for command in [identify, host_identifier] {
        let memory = host.memory(PAGE_BYTES).await;
        let half = command.with_prps(memory.address() + PAGE - 8, nowhere);
        let ended = host.device.admin(half).await.map_err(status);
        assert_eq!(ended, Err(Status::DATA_TRANSFER_ERROR));
        take_back(&host, memory, "half of an admin command's data").await;
    }
}

#[tokio::test]
async fn the_first_half_of_a_fused_operation_ends_with_its_memory() {
    const FIRST: u16 = 1;
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(PAGE_BYTES).await;
    let other = host.memory(PAGE_BYTES).await;
    let blocks = blocks(0, 8);
    let compare = NvmCommand::Compare { blocks }
        .entry(FIRST, BLOCK)
        .with_fuse(1);
    let compare = memory.point(compare, 0, PAGE_BYTES).unwrap();
    assert!(host.queue.submit(&compare));
    host.queue.ring().await.unwrap();
    // Another command of the queue would end its waiting: there is none.
    take_back(&host, other, "memory that it does not use").await;
    take_back(&host, memory, "memory that it waits with").await;
    let ended = host.queue.wait(|one| {
        let status = one.status.code();
        assert_eq!((one.cid, status), (FIRST, Status::DATA_TRANSFER_ERROR));
    });
    assert_eq!(ended.await.unwrap(), 1);
    // The second half has none before it.
    let other = host.memory(PAGE_BYTES).await;
    let write = NvmCommand::Write { blocks, fua: false };
    let write = other.point(write.entry(2, BLOCK).with_fuse(2), 0, PAGE_BYTES);
    let alone = host.execute(&write.unwrap()).await.status.code();
    assert_eq!(alone, Status::ABORTED_MISSING_FUSED);
}

fn map(address: u64, size: usize) -> Request<'static> {
    Request::DmaMap(DmaMap {
        readable: true,
        writable: true,
        offset: 0,
        address,
        size: size as u64,
    })
}

const ENOENT: Refusal = Refusal::Errno(2);
const EBUSY: Refusal = Refusal::Errno(16);
const EINVAL: Refusal = Refusal::Errno(22);

/// Serves a client where one thread may wait.
fn alone<F: Future<Output = ()>>(client: impl FnOnce(Raw) -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().max_blocking_threads(1);
    builder.build().unwrap().block_on(async {
        let world = World::new().await;
        let (near, far) = UnixStream::pair().unwrap();
        let served = serve(far, &world.target, Viewer::Everything, pending());
        let client = async { client(Raw::greeted(near).await).await };
        tokio::select! {
            ended = served => panic!("{ended:?}"),
            () = client => {}
        }
    });
}

/// The only thread that may wait, as long as this is there.
struct Occupied {
    waiting: JoinHandle<()>,
    go_on: mpsc::Sender<()>,
}

impl Occupied {
    fn new() -> Occupied {
        let (go_on, wait) = mpsc::channel::<()>();
        let waiting = spawn_blocking(move || {
            let _ = wait.recv();
        });
        Occupied { waiting, go_on }
    }

    async fn end(self) {
        drop(self.go_on);
        self.waiting.await.unwrap();
    }
}

/// What takes its time is done by others: to unmap much memory, also where each range is little, and to look at a file that somebody may
/// serve.
#[test]
fn a_device_waits_for_no_memory() {
    const MUCH: usize = 64 << 20;
    alone(async |mut raw| {
        for ranges in [1, 2] {
            let len = MUCH / ranges;
            let memory = Region::memfd(len).unwrap();
            let file = memory.backing().unwrap().file;
            for range in 0..ranges {
                let map = map((range * len) as u64, len);
                raw.request(&map, &[&file]).await.unwrap();
            }
            let occupied = Occupied::new();
            let unmapping = raw.begin_request(&unmap(0, 0, true), NO_FILE).await;
            assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
            occupied.end().await;
            raw.answer(unmapping).await.unwrap();
        }
        let null = File::open("/dev/null").unwrap();
        let occupied = Occupied::new();
        let mapping = raw.begin_request(&map(PAGE, PAGE_BYTES), &[&null]).await;
        assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
        occupied.end().await;
        assert_eq!(raw.answer(mapping).await, Err(EINVAL));
    });
}

/// What is asked about memory that is still being mapped is done behind that, in its order; what is about other memory, at once.
#[test]
fn the_same_memory_is_mapped_and_unmapped_in_order() {
    alone(async |mut raw| {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(PAGE).unwrap();
        let memory = Region::memfd(PAGE_BYTES).unwrap();
        let memory = memory.backing().unwrap().file;
        let (one, all) = (unmap(PAGE, PAGE, false), unmap(0, 0, true));
        // Not on every file system.
        let maps = raw.request(&map(PAGE, PAGE_BYTES), &[&disk]).await;
        let maps = maps.map(drop);
        assert!(maps == Ok(()) || maps == Err(EINVAL), "{maps:?}");
        raw.request(&all, NO_FILE).await.unwrap();
        for (unmapping, without) in [(&one, Err(ENOENT)), (&all, Ok(()))] {
            let occupied = Occupied::new();
            raw.begin_request(&map(PAGE, PAGE_BYTES), &[&disk]).await;
            let elsewhere = raw.request(&map(0, PAGE_BYTES), &[&memory]).await;
            assert!(elsewhere.is_ok());
            raw.begin_request(unmapping, NO_FILE).await;
            // It could be mapped at once, and unmapped.
            raw.begin_request(&map(PAGE, PAGE_BYTES), &[&memory]).await;
            raw.begin_request(&one, NO_FILE).await;
            assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
            occupied.end().await;
            let (mut mapped, mut unmapped) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                let (header, _) = raw.receive().await.unwrap();
                let outcome = match header.kind {
                    Kind::Reply { error: None } => Ok(()),
                    Kind::Reply { error: Some(errno) } => Err(Refusal::Errno(errno)),
                    Kind::Command { .. } => panic!("a server that asks"),
                };
                match header.command() {
                    Some(Command::DmaMap) => mapped.push(outcome),
                    Some(Command::DmaUnmap) => unmapped.push(outcome),
                    other => panic!("{other:?}"),
                }
            }
            let there = maps == Ok(());
            assert_eq!(mapped, [maps.clone(), Ok(())]);
            assert_eq!(unmapped, [if there { Ok(()) } else { without }, Ok(())]);
            let again = raw.request(&one, NO_FILE).await;
            assert_eq!(again, Err(ENOENT), "it is not mapped any more");
            raw.request(&all, NO_FILE).await.unwrap();
        }
    });
}

/// A client whose file is never mapped is heard all the same, and has no more wait for that than may.
#[test]
fn few_requests_wait_for_memory_that_is_being_mapped() {
    const KEPT: usize = 32;
    alone(async |mut raw| {
        let null = File::open("/dev/null").unwrap();
        let one = unmap(PAGE, PAGE, false);
        let occupied = Occupied::new();
        let mapping = raw.begin_request(&map(PAGE, PAGE_BYTES), &[&null]).await;
        for _ in 0..KEPT {
            raw.begin_request(&one, NO_FILE).await;
        }
        assert_eq!(raw.request(&one, NO_FILE).await, Err(EBUSY));
        assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
        occupied.end().await;
        assert_eq!(raw.answer(mapping).await, Err(EINVAL));
        for _ in 0..KEPT {
            assert_eq!(raw.answer(one.command() as u16).await, Err(ENOENT));
        }
    });
}
