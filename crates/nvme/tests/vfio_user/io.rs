//! What is stored comes back, in every way to ring and to point at memory.

use forebay_mem::{CopySite, Region, copied_bytes};
use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::{DoorbellMode, QueueOptions};
use forebay_proto::nvme::Status;

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
        let memory = host
            .device
            .map(Region::memfd(1 << 20).unwrap())
            .await
            .unwrap();
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
    let memory = host
        .device
        .map(Region::memfd(VALUE_BYTES_MAX).unwrap())
        .await
        .unwrap();
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
    let memory = host
        .device
        .map(Region::memfd(1 << 20).unwrap())
        .await
        .unwrap();
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
    let memory = host.device.map(Region::memfd(8192).unwrap()).await.unwrap();
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    host.device.unmap(memory.clone()).await.unwrap();
    let failed = host.execute(&command).await;
    assert_eq!(failed.status.code(), Status::DATA_TRANSFER_ERROR);
    let again = host.device.map(Region::memfd(8192).unwrap()).await.unwrap();
    let command = again.point(read(1, 0, 8), 4096, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
}

#[tokio::test]
async fn blocks_are_read_into_the_clients_memory_without_a_copy() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host
        .device
        .map(Region::memfd(1 << 20).unwrap())
        .await
        .unwrap();
    let before = copied_bytes(CopySite::RetrieveInto);
    for number in 0..8 {
        let command = memory
            .point(read(1, number * 256, 256), 0, 131_072)
            .unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    }
    assert_eq!(copied_bytes(CopySite::RetrieveInto), before);
}

#[tokio::test]
async fn a_server_that_stops_says_so() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    assert!(matches!(host.served.stop(), Ended::Stopped));
    assert!(host.queue.wait(|_| {}).await.is_err());
}
