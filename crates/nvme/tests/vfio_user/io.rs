//! What is stored comes back, in every way to ring and to point at memory.

use forebay_mem::{CopySite, copied_bytes};
use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::{DoorbellMode, QueueOptions};
use forebay_proto::nvme::Status;
use forebay_proto::nvme::nvm::NvmCommand;

use crate::support::*;

const MODES: [DoorbellMode; 3] = [
    DoorbellMode::Shadow,
    DoorbellMode::Mapped,
    DoorbellMode::Trapped,
];

#[tokio::test]
async fn values_and_blocks_come_back_whichever_way_doorbells_go() {
    let world = World::new().await;
    for mode in MODES {
        let mut host = Host::new(&world, mode).await;
        let memory = host.memory(1 << 20).await;
        for (number, len) in [1, 512, 4096, 4097, 8192, 100_000, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let value = pattern(len, number as u64);
            put(&memory, 0, &value);
            let stored = host.store(b"key", &memory, len).await;
            assert_eq!(stored.status, Status::SUCCESS, "{mode:?} {len}");
            put(&memory, 0, &vec![0; len]);
            let retrieved = host.retrieve(b"key", &memory, len).await;
            assert_eq!(
                (retrieved.status, retrieved.result),
                (Status::SUCCESS, len as u64)
            );
            assert!(get(&memory, 0, len) == value, "{mode:?} {len}");
        }
        for (number, count) in [1, 8, 9, 200, 2048].into_iter().enumerate() {
            let len = count as usize * BLOCK_BYTES;
            let bytes = pattern(len, 100 + number as u64);
            put(&memory, 0, &bytes);
            let command = memory.point(write(1, 3, count), 0, len).unwrap();
            assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
            put(&memory, 0, &vec![0; len]);
            let command = memory.point(read(2, 3, count), 0, len).unwrap();
            assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
            assert!(get(&memory, 0, len) == bytes, "{mode:?} {count} blocks");
        }
        drop(host.queue);
        drop(host.device);
        assert!(matches!(host.served.ended(), Ended::Gone));
    }
}

#[tokio::test]
async fn a_value_of_64_mib_goes_in_one_command() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(VALUE_BYTES_MAX).await;
    let value = pattern(VALUE_BYTES_MAX, 5);
    put(&memory, 0, &value);
    let stored = host.store(b"large", &memory, VALUE_BYTES_MAX).await;
    assert_eq!(stored.status, Status::SUCCESS);
    put(&memory, 0, &vec![0; VALUE_BYTES_MAX]);
    let retrieved = host.retrieve(b"large", &memory, VALUE_BYTES_MAX).await;
    assert_eq!(retrieved.result, VALUE_BYTES_MAX as u64);
    assert!(get(&memory, 0, VALUE_BYTES_MAX) == value);
}

#[tokio::test]
async fn many_commands_are_in_flight_on_several_queues() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let mut others = Vec::new();
    for entries in [2, 17, 128] {
        let interrupts = true;
        let options = QueueOptions {
            entries,
            interrupts,
        };
        others.push(host.device.create_queue(options).await.unwrap());
    }
    let memory = host.memory(1 << 20).await;
    put(&memory, 0, &pattern(1 << 20, 1));
    let count = (1 << 20) / BLOCK_BYTES as u32;
    let command = memory.point(write(1, 0, count), 0, 1 << 20).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    put(&memory, 0, &vec![0; 1 << 20]);
    // Block by block, as many at a time as fit, until each was read by somebody.
    let mut next = 0;
    let mut ended = 0;
    while ended < count {
        for queue in others.iter_mut().chain([&mut host.queue]) {
            while next < count {
                let entry = read(next as u16, next.into(), 1);
                let at = next as usize * BLOCK_BYTES;
                if !queue.submit(&memory.point(entry, at, BLOCK_BYTES).unwrap()) {
                    break;
                }
                next += 1;
            }
            queue.ring().await.unwrap();
        }
        for queue in others.iter_mut().chain([&mut host.queue]) {
            if queue.in_flight() > 0 {
                let seen = queue.wait(|one| assert_eq!(one.status, Status::SUCCESS));
                ended += seen.await.unwrap() as u32;
            }
        }
    }
    assert!(get(&memory, 0, 1 << 20) == pattern(1 << 20, 1));
}

#[tokio::test]
async fn memory_comes_back_when_it_is_unmapped() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(8192).await;
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    host.device.unmap(memory.clone()).await.unwrap();
    let failed = host.execute(&command).await;
    assert_eq!(failed.status.code(), Status::DATA_TRANSFER_ERROR);
    let again = host.memory(8192).await;
    let command = again.point(read(1, 0, 8), 4096, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
}

#[tokio::test]
async fn blocks_are_read_into_the_clients_memory_without_a_copy() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(1 << 20).await;
    let before = copied_bytes(CopySite::RetrieveInto);
    for number in 0..8 {
        let command = memory
            .point(read(1, number * 256, 256), 0, 131_072)
            .unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    }
    if alone::is_alone() {
        assert_eq!(copied_bytes(CopySite::RetrieveInto), before);
    }
}

#[tokio::test]
async fn a_server_that_stops_says_so() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    assert!(matches!(host.served.stop(), Ended::Stopped));
    assert!(host.queue.wait(|_| {}).await.is_err());
}

#[tokio::test]
async fn a_long_key_travels_at_the_head_of_the_payload() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(1 << 20).await;
    keys_travel_at_the_head(&mut host, &memory).await;
}

#[tokio::test]
async fn a_fused_compare_and_write_happens_as_one_or_not_at_all() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(3 * 4096).await;
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    put(&memory, 0, &old);
    put(&memory, 4096, &new);
    let at = |entry, page: usize| memory.point(entry, page * 4096, 4096).unwrap();
    let blocks = blocks(0, 8);
    let compare = at(NvmCommand::Compare { blocks }.entry(1, BLOCK), 0).with_fuse(1);
    let replace = at(write(2, 0, 8), 1).with_fuse(2);
    assert_eq!(
        host.execute(&at(write(3, 0, 8), 0)).await.status,
        Status::SUCCESS
    );
    let statuses = async |host: &mut Host, pair: &[_]| {
        let mut ended = host.execute_all(pair).await;
        ended.sort_by_key(|one| one.cid);
        ended
            .iter()
            .map(|one| one.status.code())
            .collect::<Vec<_>>()
    };
    let pair = [compare, replace];
    assert_eq!(statuses(&mut host, &pair).await, [Status::SUCCESS; 2]);
    let failed = [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED];
    assert_eq!(statuses(&mut host, &pair).await, failed);
    assert_eq!(
        host.execute(&at(read(4, 0, 8), 2)).await.status,
        Status::SUCCESS
    );
    assert!(get(&memory, 8192, 4096) == new);
    // Halves without each other.
    let missing = Status::ABORTED_MISSING_FUSED;
    assert_eq!(statuses(&mut host, &[replace]).await, [missing]);
    let alone = [compare, at(read(2, 0, 8), 2)];
    assert_eq!(
        statuses(&mut host, &alone).await,
        [missing, Status::SUCCESS]
    );
}

#[tokio::test]
async fn a_namespace_that_goes_ends_its_commands_alone() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(4096).await;
    let command = memory.point(read(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    world.target.publish(Vec::new());
    let gone = host.execute(&command).await.status.code();
    assert_eq!(gone, Status::INVALID_NAMESPACE_OR_FORMAT);
    assert!(host.device.read_register(0x1c, 4).await.unwrap() & 3 == 1);
}
