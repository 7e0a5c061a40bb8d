//! Queues, doorbells and memory that go wrong under a device, and clients that go.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use forebay_mem::{BLOCK_MIN_BYTES, PAGE_BYTES, Region};
use forebay_nvme::vfio_user::client::{Device, DoorbellMode};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry};
use forebay_proto::vfio_user::{Access, PayloadAccess, REGION_BAR0, Request};

use crate::raw::{NO_FILE, Raw};
use crate::support::*;

const PAGE: u64 = PAGE_BYTES as u64;

async fn create_queue(
    device: &Device,
    opcode: u8,
    qid: u32,
    entries: u32,
    flags: u32,
    base: u64,
) -> Status {
    let entry = SubmissionQueueEntry::new(opcode, 3, 0)
        .with_cdw(10, entries.wrapping_sub(1) << 16 | qid)
        .with_cdw(11, flags)
        .with_prps(base, 0);
    ended(device, entry).await
}

async fn delete_queue(device: &Device, opcode: u8, qid: u32) -> Status {
    let entry = SubmissionQueueEntry::new(opcode, 3, 0).with_cdw(10, qid);
    ended(device, entry).await
}

/// How an admin command ends.
async fn ended(device: &Device, entry: SubmissionQueueEntry) -> Status {
    match device.admin(entry).await {
        Ok(_) => Status::SUCCESS,
        Err(error) => status(error),
    }
}

#[tokio::test]
async fn queues_lie_in_memory_or_are_refused() {
    const CREATE_SQ: u8 = 1;
    const CREATE_CQ: u8 = 5;
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    let memory = device.map(Region::memfd(1 << 20).unwrap()).await.unwrap();
    let base = memory.address();
    for (entries, address) in [
        (64, base + (1 << 40)),
        (128, base + (1 << 20) - 1024),
        (64, !4095),
    ] {
        assert!(
            !create_queue(&device, CREATE_CQ, 1, entries, 1, address)
                .await
                .is_success()
        );
    }
    assert!(
        !create_queue(&device, CREATE_CQ, 1, 64, 1, base + 8)
            .await
            .is_success()
    );
    assert_eq!(
        create_queue(&device, CREATE_CQ, 1, 64, 1, base).await,
        Status::SUCCESS
    );
    assert!(
        !create_queue(&device, CREATE_SQ, 1, 128, 1 | 1 << 16, base + (1 << 30))
            .await
            .is_success()
    );
    // A queue of commands that is its own queue of completions: whatever happens, happens to this client.
    assert_eq!(
        create_queue(&device, CREATE_SQ, 1, 64, 1 | 1 << 16, base).await,
        Status::SUCCESS
    );
    put(&memory, 0, flush(1).as_bytes());
    for _ in 0..100 {
        for tail in [1, 63, 0, 64, 5, u32::MAX] {
            device
                .write_register(offset::DOORBELLS + 8, 4, tail.into())
                .await
                .unwrap();
            device
                .write_register(offset::DOORBELLS + 12, 4, tail.into())
                .await
                .unwrap();
        }
    }
    still_serves(&world).await;
}

fn flush(cid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry::new(0, cid, BLOCK)
}

#[tokio::test]
async fn doorbells_of_no_queue_and_a_million_of_them_do_nothing() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Mapped).await;
    for at in (0..PAGE as u32)
        .step_by(4)
        .filter(|at| !(0..16).contains(at))
    {
        let register = offset::DOORBELLS + at;
        host.device
            .write_register(register, 4, u64::from(u32::MAX))
            .await
            .unwrap();
    }
    assert_eq!(host.execute(&flush(1)).await.status, Status::SUCCESS);
    let (stream, _served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    let access = Access {
        offset: 0x1008,
        region: REGION_BAR0,
        count: 4,
    };
    let data = &[0xff; 4];
    let ring = Request::RegionWrite(PayloadAccess { access, data });
    for _ in 0..20_000 {
        assert!(raw.request(&ring, NO_FILE).await.is_ok());
    }
    assert_eq!(host.execute(&flush(2)).await.status, Status::SUCCESS);
}

#[tokio::test]
async fn shadow_doorbells_lie_in_two_pages_that_are_there() {
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    let memory = device.map(Region::memfd(1 << 20).unwrap()).await.unwrap();
    let base = memory.address();
    for (first, second) in [
        (base, base),
        (base + 8, base + PAGE),
        (base, base + PAGE + 8),
        (base, base + (1 << 40)),
        (!4095, base),
    ] {
        let entry = SubmissionQueueEntry::new(0x7c, 3, 0).with_prps(first, second);
        assert!(device.admin(entry).await.is_err(), "{first:x} {second:x}");
    }
    for _ in 0..2 {
        let entry = SubmissionQueueEntry::new(0x7c, 3, 0).with_prps(base, base + PAGE);
        assert!(device.admin(entry).await.is_ok());
    }
    // The pages vanish: doorbells do nothing, and the admin queue is not among them.
    device.unmap(memory).await.unwrap();
    let identify = SubmissionQueueEntry::new(0x06, 3, 0).with_cdw(10, 1);
    assert!(device.admin(identify).await.is_err());
    still_serves(&world).await;
}

#[tokio::test]
async fn a_controller_whose_queues_are_gone_stops_and_can_be_reset() {
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    device.request(&unmap(0, 0, true)).await.unwrap();
    device
        .write_register(offset::DOORBELLS, 4, 9)
        .await
        .unwrap();
    // CSTS.CFS.
    let failed = async || device.read_register(offset::CSTS, 4).await.unwrap() & 2 != 0;
    while !failed().await {}
    device.write_register(offset::CC, 4, 0).await.unwrap();
    while device.read_register(offset::CSTS, 4).await.unwrap() & 1 != 0 {}
    // Enabled with queues that are nowhere.
    let enable = u64::from(Configuration::ENABLE.0);
    device.write_register(offset::CC, 4, enable).await.unwrap();
    assert!(failed().await);
    device.request(&Request::DeviceReset).await.unwrap();
    assert_eq!(device.read_register(offset::CSTS, 4).await.unwrap(), 0);
    still_serves(&world).await;
}

#[tokio::test]
async fn memory_that_shrinks_under_us_fails_commands_and_no_more() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(1 << 20).unwrap();
    let region = Region::from_fd(file.try_clone().unwrap().into()).unwrap();
    let memory = host.device.map(region).await.unwrap();
    put(&memory, 0, &pattern(8192, 1));
    assert_eq!(
        host.store(b"value", &memory, 8192).await.status,
        Status::SUCCESS
    );
    put(&memory, 0, &[0; 8192]);
    assert_eq!(
        host.retrieve(b"value", &memory, 8192).await.status,
        Status::SUCCESS
    );
    assert!(get(&memory, 0, 8192) == pattern(8192, 1));
    file.set_len(0).unwrap();
    let gone = host.retrieve(b"value", &memory, 8192).await.status.code();
    assert_eq!(gone, Status::DATA_TRANSFER_ERROR);
    let gone = host.store(b"value", &memory, 8192).await.status.code();
    assert_eq!(gone, Status::DATA_TRANSFER_ERROR);
    // Lists there, too.
    let listed = retrieve(b"value", 3 * PAGE_BYTES).with_prps(memory.address(), memory.address());
    let gone = host.execute(&listed).await.status.code();
    assert_eq!(gone, Status::DATA_TRANSFER_ERROR);
    still_serves(&world).await;
}

/// Lists and values that change while they are read: commands end somehow, values are whole, and nothing lands anywhere else.
#[tokio::test]
async fn what_changes_while_it_is_read_does_no_harm() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(1 << 20).await;
    let base = memory.address();
    put(&memory, 0, &pattern(1 << 20, 1));
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let (stop, region) = (stop.clone(), memory.region().clone());
        std::thread::spawn(move || {
            let list = region.slice(0..PAGE_BYTES).unwrap();
            let entries = [
                base,
                base + PAGE,
                base + 8 * PAGE + 1,
                0,
                u64::MAX,
                base + (1 << 40),
            ];
            for number in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                let entry = entries[number % entries.len()];
                list.write(number * 8 % PAGE_BYTES, &entry.to_le_bytes());
            }
        })
    };
    for number in 0..300u64 {
        let len = 64 << 10;
        let command = match number % 3 {
            0 => store(b"value", len).with_prps(base + 4 * PAGE, base),
            1 => retrieve(b"value", len).with_prps(base + 4 * PAGE, base),
            _ => retrieve(b"value", len).with_sgl(SglDescriptor {
                kind: SglKind::Segment,
                subtype: SglSubtype::Address,
                address: base,
                length: PAGE as u32,
            }),
        };
        let _ = host.execute(&command).await;
    }
    stop.store(true, Relaxed);
    scribbler.join().unwrap();
    still_serves(&world).await;
}

/// The same of the queue itself.
#[tokio::test]
async fn commands_that_change_while_they_are_taken_do_no_harm() {
    const CREATE_SQ: u8 = 1;
    const CREATE_CQ: u8 = 5;
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    let memory = device.map(Region::memfd(1 << 20).unwrap()).await.unwrap();
    let base = memory.address();
    assert_eq!(
        create_queue(&device, CREATE_CQ, 1, 64, 1, base).await,
        Status::SUCCESS
    );
    let queue_at = base + PAGE;
    assert_eq!(
        create_queue(&device, CREATE_SQ, 1, 64, 1 | 1 << 16, queue_at).await,
        Status::SUCCESS
    );
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let (stop, region) = (stop.clone(), memory.region().clone());
        std::thread::spawn(move || {
            let queue = region.slice(PAGE_BYTES..2 * PAGE_BYTES).unwrap();
            for seed in 1.. {
                if stop.load(Relaxed) {
                    return;
                }
                let mut bytes = pattern(64, seed);
                // Mostly commands that mean something.
                bytes[0] = [0, 1, 2, 5, 6, 9, 0x10, 0x14][seed as usize % 8];
                bytes[1] &= 0x43;
                bytes[4..8].copy_from_slice(&[(seed % 3) as u8, 0, 0, 0]);
                if seed % 2 == 0 {
                    bytes[24..40].copy_from_slice(
                        &SglDescriptor::data_block(base + 8 * PAGE, 65536).encode(),
                    );
                    bytes[40..56].fill(0);
                    bytes[40] = 16;
                    bytes[44] = 3;
                }
                queue.write(seed as usize * 64 % PAGE_BYTES, &bytes);
            }
        })
    };
    let mut tail = 0;
    let mut head = 0;
    for _ in 0..500 {
        tail = (tail + 13) % 64;
        head = (head + 13) % 64;
        device
            .write_register(offset::DOORBELLS + 8, 4, tail)
            .await
            .unwrap();
        device
            .write_register(offset::DOORBELLS + 12, 4, head)
            .await
            .unwrap();
    }
    stop.store(true, Relaxed);
    scribbler.join().unwrap();
    // Reset waits for whatever is in progress.
    device.request(&Request::DeviceReset).await.unwrap();
    still_serves(&world).await;
}

#[tokio::test]
async fn a_client_that_dies_leaves_the_old_value() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let len = 4 << 20;
    let memory = host.memory(len).await;
    put(&memory, 0, &pattern(len, 1));
    assert_eq!(
        host.store(b"value", &memory, len).await.status,
        Status::SUCCESS
    );
    for seed in 2..7 {
        let mut dying = Host::new(&world, DoorbellMode::Shadow).await;
        let theirs = dying.memory(len).await;
        put(&theirs, 0, &pattern(len, seed));
        let command = theirs.point(store(b"value", len), 0, len).unwrap();
        assert!(dying.queue.submit(&command));
        dying.queue.ring().await.unwrap();
        drop((dying.queue, dying.device));
        dying.served.ended();
        let whole = host.retrieve(b"value", &memory, len).await;
        assert_eq!(whole.result, len as u64);
        let value = get(&memory, 0, len);
        // One or the other, never a mix.
        assert!((1..=seed).any(|seed| value == pattern(len, seed)));
    }
}

#[tokio::test]
async fn a_reset_amid_commands_waits_for_them() {
    let world = World::new().await;
    for _ in 0..5 {
        let mut host = Host::new(&world, DoorbellMode::Shadow).await;
        let len = 4 << 20;
        let memory = host.memory(len).await;
        put(&memory, 0, &pattern(len, 1));
        for _ in 0..4 {
            let command = memory.point(store(b"value", len), 0, len).unwrap();
            assert!(host.queue.submit(&command));
        }
        host.queue.ring().await.unwrap();
        host.device.request(&Request::DeviceReset).await.unwrap();
        assert_eq!(host.device.read_register(offset::CC, 4).await.unwrap(), 0);
        // Nothing reads it any more.
        host.device.unmap(memory).await.unwrap();
    }
    still_serves(&world).await;
}

/// One queue of completions for a queue of commands of another number: whoever sleeps while it is full asks to be told of room, each time.
#[tokio::test]
async fn a_full_queue_of_completions_wakes_a_device_that_sleeps() {
    const SQ: u32 = 2;
    const CQ: u32 = 1;
    const CQ_HEAD: usize = 8 * CQ as usize + 4;
    const ASKED: usize = PAGE_BYTES + CQ_HEAD;
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    let memory = device.map(Region::memfd(1 << 20).unwrap()).await.unwrap();
    let base = memory.address();
    let (completions, commands) = (2 * PAGE_BYTES, 3 * PAGE_BYTES);
    let at = base + completions as u64;
    assert!(create_queue(&device, 5, CQ, 4, 1, at).await.is_success());
    let at = base + commands as u64;
    let made = create_queue(&device, 1, SQ, 16, 1 | CQ << 16, at).await;
    assert!(made.is_success());
    let shadow = SubmissionQueueEntry::new(0x7c, 3, 0).with_prps(base, base + PAGE);
    device.admin(shadow).await.unwrap();
    let wait_for = async |what: &str, is: &dyn Fn() -> bool| {
        let waited = tokio::time::timeout(Duration::from_secs(10), async {
            while !is() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(waited.await.is_ok(), "{what}");
    };
    let word = |at: usize| u32::from_le_bytes(get(&memory, at, 4).try_into().unwrap());
    // The phase tag of the completion in a place.
    let phase = |place: usize| get(&memory, completions + place * 16 + 14, 1)[0] & 1;
    let submit = async |tail: u32| {
        put(&memory, 8 * SQ as usize, &tail.to_le_bytes());
        let doorbell = offset::DOORBELLS + 8 * SQ;
        let rung = device.write_register(doorbell, 4, tail.into()).await;
        rung.unwrap();
    };
    // Told by a message only when it was asked for, as this is a client that knows shadow doorbells.
    let take = async |from: u32, to: u32| {
        wait_for("the device asks to be told", &|| word(ASKED) == from).await;
        put(&memory, CQ_HEAD, &to.to_le_bytes());
        let doorbell = offset::DOORBELLS + 8 * CQ + 4;
        let rung = device.write_register(doorbell, 4, to.into()).await;
        rung.unwrap();
    };
    for cid in 0..6u16 {
        put(
            &memory,
            commands + usize::from(cid) * 64,
            flush(cid).as_bytes(),
        );
    }
    submit(1).await;
    wait_for("the first ends", &|| phase(0) == 1).await;
    put(&memory, CQ_HEAD, &1u32.to_le_bytes());
    submit(6).await;
    wait_for("there is no room", &|| phase(3) == 1).await;
    take(1, 2).await;
    wait_for("there is room for one", &|| phase(0) == 0).await;
    take(2, 3).await;
    wait_for("and for another", &|| phase(1) == 0).await;
}

/// Whoever was to take its completion has gone: it is not taken for the next one's.
#[tokio::test]
async fn an_admin_command_that_was_given_up_ends_no_other() {
    let world = World::new().await;
    let (device, _served) = world.device(DoorbellMode::Trapped).await;
    let queues = SubmissionQueueEntry::new(0x0a, 3, 0).with_cdw(10, 7);
    let expected = device.admin(queues).await.unwrap();
    let mut given_up = 0;
    for _ in 0..100 {
        let unknown = SubmissionQueueEntry::new(0x7f, 3, 0);
        let mut call = Box::pin(device.admin(unknown));
        given_up +=
            usize::from(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await);
        drop(call);
        assert_eq!(device.admin(queues).await.unwrap(), expected);
    }
    assert!(given_up > 0);
}

/// Its commands have not ended, and their completions are not those of another queue; nor does the queue go that they are put into.
#[tokio::test]
async fn a_number_is_taken_until_its_queue_is_gone() {
    const DELETE_SQ: u8 = 0;
    const CREATE_SQ: u8 = 1;
    const DELETE_CQ: u8 = 4;
    const CREATE_CQ: u8 = 5;
    let world = World::scarce(2 << 20).await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(3 * PAGE_BYTES).await;
    // A command that waits for a buffer.
    let taken = std::iter::from_fn(|| world.pool.try_take(BLOCK_MIN_BYTES).ok());
    let taken: Vec<_> = taken.collect();
    let command = memory.point(store(b"value", 100), 0, 100).unwrap();
    assert!(host.queue.submit(&command));
    host.queue.ring().await.unwrap();
    let deleting = delete_queue(&host.device, DELETE_SQ, 1);
    let deleted = tokio::time::timeout(Duration::from_millis(100), deleting);
    assert!(deleted.await.is_err(), "its command has not ended");
    let base = memory.address() + PAGE;
    let made = create_queue(&host.device, CREATE_SQ, 1, 64, 1 | 1 << 16, base);
    assert_eq!(made.await, Status::INVALID_QUEUE_IDENTIFIER);
    let used = delete_queue(&host.device, DELETE_CQ, 1);
    assert_eq!(used.await, Status::INVALID_QUEUE_DELETION);
    drop(taken);
    let ended = host
        .queue
        .wait(|one| assert_eq!(one.status, Status::SUCCESS));
    assert_eq!(ended.await.unwrap(), 1);
    let unused = delete_queue(&host.device, DELETE_CQ, 1);
    assert_eq!(unused.await, Status::SUCCESS);
    let completions = memory.address() + 2 * PAGE;
    let made = create_queue(&host.device, CREATE_CQ, 1, 64, 1, completions);
    assert_eq!(made.await, Status::SUCCESS);
    let made = create_queue(&host.device, CREATE_SQ, 1, 64, 1 | 1 << 16, base);
    assert_eq!(made.await, Status::SUCCESS);
}
