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
use forebay_proto::vfio_user::{DmaMap, Request};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;

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

/// What takes its time is done by others: to unmap much memory, also where each range is little, and to look at a file that somebody may
/// serve.
#[test]
fn a_device_waits_for_no_memory() {
    const MUCH: usize = 64 << 20;
    const EINVAL: Refusal = Refusal::Errno(22);
    const EEXIST: Refusal = Refusal::Errno(17);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().max_blocking_threads(1);
    builder.build().unwrap().block_on(async {
        let world = World::new().await;
        let (near, far) = UnixStream::pair().unwrap();
        let served = serve(far, &world.target, Viewer::Everything, pending());
        let client = async {
            let mut raw = Raw::greeted(near).await;
            for ranges in [1, 2] {
                let len = MUCH / ranges;
                let memory = Region::memfd(len).unwrap();
                let file = memory.backing().unwrap().file;
                for range in 0..ranges {
                    let map = map((range * len) as u64, len);
                    raw.request(&map, &[&file]).await.unwrap();
                }
                // The only thread that may wait does so already.
                let (go_on, wait) = mpsc::channel::<()>();
                let waiting = spawn_blocking(move || wait.recv());
                let unmapping = raw.begin_request(&unmap(0, 0, true), NO_FILE).await;
                assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
                drop(go_on);
                raw.answer(unmapping).await.unwrap();
                waiting.await.unwrap().unwrap_err();
            }
            // Whether somebody serves it is known only when it was looked at. Who comes meanwhile has the place.
            let null = File::open("/dev/null").unwrap();
            let disk = tempfile::tempfile().unwrap();
            disk.set_len(PAGE).unwrap();
            let memory = Region::memfd(PAGE_BYTES).unwrap();
            let memory = memory.backing().unwrap().file;
            let (go_on, wait) = mpsc::channel::<()>();
            let waiting = spawn_blocking(move || wait.recv());
            let mapping = raw.begin_request(&map(PAGE, PAGE_BYTES), &[&null]).await;
            raw.begin_request(&map(PAGE, PAGE_BYTES), &[&disk]).await;
            raw.begin_request(&map(PAGE, PAGE_BYTES), &[&memory]).await;
            raw.answer(mapping).await.unwrap();
            drop(go_on);
            for _ in 0..2 {
                let refused = raw.answer(mapping).await.unwrap_err();
                assert!([EINVAL, EEXIST].contains(&refused), "{refused:?}");
            }
            waiting.await.unwrap().unwrap_err();
        };
        tokio::select! {
            ended = served => panic!("{ended:?}"),
            () = client => {}
        }
    });
}
