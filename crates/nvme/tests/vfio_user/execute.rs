//! Functions whose arguments and result share the client's memory.

use std::time::Duration;

use forebay_mem::PAGE_BYTES;
use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::DoorbellMode;
use forebay_proto::nvme::kv::{Key, KvCommand};
use forebay_proto::nvme::{Status, SubmissionQueueEntry};

use crate::programs::{ECHO, Ends, HOSTILE, LENGTH};
use crate::support::*;

/// What a function has that loops for ever: enough for any other one.
const TIME: Duration = Duration::from_secs(3);

fn execute(operation: u32, payload: usize, capacity: usize) -> SubmissionQueueEntry {
    let command = KvCommand::Execute {
        payload_bytes: payload as u32,
        capacity: capacity as u32,
        operation,
    };
    command.entry(9, KV)
}

/// The key at the head, and what follows.
fn headed(key: &[u8], arguments: &[u8]) -> Vec<u8> {
    [&(key.len() as u16).to_le_bytes(), key, arguments].concat()
}

#[tokio::test]
async fn the_result_takes_the_place_of_the_arguments() {
    let world = World::executing().await;
    for mode in [
        DoorbellMode::Shadow,
        DoorbellMode::Mapped,
        DoorbellMode::Trapped,
    ] {
        let mut host = Host::new(&world, mode).await;
        let memory = host.memory(1 << 20).await;
        let value = pattern(300_000, 3);
        put(&memory, 0, &value);
        assert_eq!(
            host.store(b"key", &memory, value.len()).await.status,
            Status::SUCCESS
        );
        // Across pages, from the middle of one, also where there is more of the one than of the other.
        for (offset, arguments, capacity) in
            [(0, 6, 1 << 19), (4, 40_000, 345_000), (2048, 30_000, 100)]
        {
            let arguments = pattern(arguments, 4);
            let payload = headed(b"key", &arguments);
            let room = payload.len().max(capacity);
            put(&memory, 0, &vec![0xee; 1 << 20]);
            put(&memory, offset, &payload);
            let command = execute(ECHO, payload.len(), capacity);
            let command = memory.point(command, offset, room).unwrap();
            let done = host.execute(&command).await;
            assert_eq!(
                (done.status, done.result),
                (Status::SUCCESS, (arguments.len() + value.len()) as u64)
            );
            let result = [&arguments[..], &value].concat();
            let len = result.len().min(capacity);
            assert!(
                get(&memory, offset, len) == result[..len],
                "{mode:?} {offset}"
            );
            let behind = offset + payload.len().max(len);
            assert_eq!(get(&memory, behind, 16), [0xee; 16], "{mode:?} {offset}");
        }
        drop(host.queue);
        drop(host.device);
        assert!(matches!(host.served.ended(), Ended::Gone));
    }
}

#[tokio::test]
async fn functions_that_do_harm_are_stopped_and_the_device_goes_on() {
    // The first ends by its time alone.
    let (timed, others) = HOSTILE.split_at(1);
    are_stopped(&World::executing_within(TIME).await, timed).await;
    are_stopped(&World::executing().await, others).await;
}

async fn are_stopped(world: &World, functions: &[(u32, &str, &str, Ends)]) {
    let mut host = Host::new(world, DoorbellMode::Shadow).await;
    let memory = host.memory(PAGE_BYTES).await;
    put(&memory, 0, b"value");
    assert_eq!(host.store(b"key", &memory, 5).await.status, Status::SUCCESS);
    for &(operation, what, _, ends) in functions {
        put(&memory, 0, &headed(b"key", b""));
        let command = memory
            .point(execute(operation, 5, PAGE_BYTES), 0, PAGE_BYTES)
            .unwrap();
        let status = match ends {
            Ends::Stopped => Status::ABORT_REQUESTED,
            Ends::Failed => Status::INTERNAL_ERROR,
        };
        assert_eq!(
            host.execute(&command).await.status.code(),
            status,
            "it {what}"
        );
        let command = KvCommand::ExecuteInline {
            key: Key::new(b"key").unwrap(),
            argument: 0,
            operation: LENGTH,
            buffer_bytes: 8,
        };
        let command = memory.point(command.entry(1, KV), 0, 8).unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        assert_eq!(get(&memory, 0, 8), 5_u64.to_le_bytes());
    }
}

#[tokio::test]
async fn a_client_that_goes_while_its_function_runs_harms_nobody() {
    let world = World::executing_within(TIME).await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(PAGE_BYTES).await;
    put(&memory, 0, b"value");
    assert_eq!(host.store(b"key", &memory, 5).await.status, Status::SUCCESS);
    put(&memory, 0, &headed(b"key", b""));
    let (endless, ..) = HOSTILE[0];
    let command = memory
        .point(execute(endless, 5, PAGE_BYTES), 0, PAGE_BYTES)
        .unwrap();
    assert!(host.queue.submit(&command));
    host.queue.ring().await.unwrap();
    drop(host.queue);
    drop(host.device);
    assert!(matches!(host.served.ended(), Ended::Gone));
    still_serves(&world).await;
}

/// Each call's arguments stay in a buffer while it runs.
#[tokio::test]
async fn calls_that_do_not_end_leave_buffers_to_others() {
    const BYTES: usize = 1 << 20;
    const CALLS: u16 = 20;
    let world = World::executing_among(16 << 20, Duration::from_secs(600)).await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let len = 5 + BYTES;
    let memory = host.memory(len.next_multiple_of(PAGE_BYTES)).await;
    put(&memory, 0, b"value");
    assert_eq!(host.store(b"key", &memory, 5).await.status, Status::SUCCESS);
    put(&memory, 0, &headed(b"key", &vec![7; BYTES]));
    let (endless, ..) = HOSTILE[0];
    for cid in 0..CALLS {
        let call = memory.point(execute(endless, len, 100), 0, len).unwrap();
        assert!(host.queue.submit(&call.with_cid(cid)));
    }
    // They have begun, as far as they may, when this has ended.
    let flush = SubmissionQueueEntry::new(0, CALLS, BLOCK);
    assert!(host.queue.submit(&flush));
    host.queue.ring().await.unwrap();
    let ended = host.queue.wait(|one| assert_eq!(one.cid, CALLS)).await;
    assert_eq!(ended.unwrap(), 1);
    let mut other = Host::new(&world, DoorbellMode::Shadow).await;
    let near = other.memory(BYTES).await;
    let blocks = near.point(write(1, 0, 2048), 0, BYTES).unwrap();
    let written = tokio::time::timeout(TIME, other.execute(&blocks)).await;
    assert_eq!(written.expect("a buffer").status, Status::SUCCESS);
}

#[tokio::test]
async fn payloads_that_are_none_are_refused() {
    let world = World::executing().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(2 * PAGE_BYTES).await;
    put(&memory, 0, b"value");
    assert_eq!(host.store(b"key", &memory, 5).await.status, Status::SUCCESS);
    for (payload, said, operation, status) in [
        (headed(b"key", b""), 5, 99, Status::INVALID_OPCODE),
        (headed(b"none", b""), 6, ECHO, Status::KV_KEY_DOES_NOT_EXIST),
        (headed(b"key", b""), 4, ECHO, Status::INVALID_KEY_SIZE),
        (headed(&[1; 256], b""), 258, ECHO, Status::INVALID_KEY_SIZE),
        (headed(b"", b""), 2, ECHO, Status::INVALID_KEY_SIZE),
        (headed(b"", b""), 0, ECHO, Status::INVALID_KEY_SIZE),
        (
            headed(b"key", b""),
            2 << 20,
            ECHO,
            Status::INVALID_VALUE_SIZE,
        ),
    ] {
        put(&memory, 0, &payload);
        let command = memory
            .point(execute(operation, said, 4096), 0, 4096)
            .unwrap();
        let done = host.execute(&command).await;
        assert_eq!(done.status.code(), status, "{payload:?} {said}");
    }
    // More room than the memory has, and more than any result is long.
    let far = memory.point(execute(ECHO, 5, 4096), 0, 4096).unwrap();
    let far = far.with_cdw(12, 64 << 20);
    assert_eq!(
        host.execute(&far).await.status.code(),
        Status::INVALID_VALUE_SIZE
    );
    let nowhere = execute(ECHO, 5, 4096).with_prps(0x7000_0000_0000, 0);
    assert_eq!(
        host.execute(&nowhere).await.status.code(),
        Status::DATA_TRANSFER_ERROR
    );
    still_serves(&world).await;
}
