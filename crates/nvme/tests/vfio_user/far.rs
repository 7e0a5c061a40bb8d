//! Memory that the device has to ask for: whatever lies there, everything works.

use forebay_mem::{CopySite, PAGE_BYTES, Region, copied_bytes};
use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::{
    Device, DeviceMay, DoorbellMode, Mapping, QueueMemory, QueueOptions,
};
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{
    CompletionQueueEntry, SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry,
};
use forebay_proto::vfio_user::Command;

use crate::programs::ECHO;
use crate::relay::{relayed, relayed_taking};
use crate::support::*;

const MODES: [DoorbellMode; 3] = [
    DoorbellMode::Shadow,
    DoorbellMode::Mapped,
    DoorbellMode::Trapped,
];

async fn lending(world: &World, mode: DoorbellMode) -> Host {
    let (stream, served) = world.connect();
    let device = Device::with(stream, mode, QueueMemory::Lent).await.unwrap();
    let queue = device.create_queue(QueueOptions::default()).await.unwrap();
    Host {
        device,
        queue,
        served,
    }
}

async fn comes_back(host: &mut Host, memory: &Mapping, what: &str) {
    for (number, len) in [1, 4096, 4097, 8192, 100_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let value = pattern(len, number as u64);
        put(memory, 0, &value);
        let stored = host.store(b"key", memory, len).await;
        assert_eq!(stored.status, Status::SUCCESS, "{what} {len}");
        put(memory, 0, &vec![0; len]);
        let retrieved = host.retrieve(b"key", memory, len).await;
        assert_eq!(
            (retrieved.status, retrieved.result),
            (Status::SUCCESS, len as u64)
        );
        assert!(get(memory, 0, len) == value, "{what} {len}");
    }
    for (number, count) in [1, 8, 9, 200].into_iter().enumerate() {
        let len = count as usize * BLOCK_BYTES;
        let bytes = pattern(len, 100 + number as u64);
        put(memory, 0, &bytes);
        let command = memory.point(write(1, 3, count), 0, len).unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        put(memory, 0, &vec![0; len]);
        let command = memory.point(read(2, 3, count), 0, len).unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        assert!(get(memory, 0, len) == bytes, "{what} {count} blocks");
    }
}

#[tokio::test]
async fn data_is_asked_for() {
    let world = World::new().await;
    for mode in MODES {
        let mut host = Host::new(&world, mode).await;
        let memory = host.lent(1 << 20).await;
        comes_back(&mut host, &memory, &format!("{mode:?}")).await;
        drop(host.queue);
        drop(host.device);
        assert!(matches!(host.served.ended(), Ended::Gone));
    }
}

#[tokio::test]
async fn queues_and_doorbells_are_asked_for() {
    let world = World::new().await;
    for mode in MODES {
        let mut host = lending(&world, mode).await;
        for memory in [host.lent(1 << 20).await, host.memory(1 << 20).await] {
            comes_back(&mut host, &memory, &format!("{mode:?}")).await;
        }
        drop(host.queue);
        drop(host.device);
        assert!(matches!(host.served.ended(), Ended::Gone));
    }
}

#[tokio::test]
async fn many_commands_are_in_flight_on_several_far_queues() {
    let world = World::new().await;
    for mode in MODES {
        let mut host = lending(&world, mode).await;
        let mut others = Vec::new();
        for entries in [2, 5, 128] {
            let options = QueueOptions {
                entries,
                interrupts: true,
            };
            others.push(host.device.create_queue(options).await.unwrap());
        }
        let memory = host.lent(1 << 18).await;
        put(&memory, 0, &pattern(1 << 18, 1));
        let count = (1 << 18) / BLOCK_BYTES as u32;
        let command = memory.point(write(1, 0, count), 0, 1 << 18).unwrap();
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        put(&memory, 0, &vec![0; 1 << 18]);
        // Block by block, as many at a time as fit, until each was read by somebody.
        let (mut next, mut ended) = (0, 0);
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
        assert!(get(&memory, 0, 1 << 18) == pattern(1 << 18, 1), "{mode:?}");
    }
}

#[tokio::test]
async fn one_transfer_goes_through_near_and_far_memory() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    const PART: usize = 64 << 10;
    // Side by side, as addresses are given out.
    let parts = [
        host.lent(PART).await,
        host.memory(PART).await,
        host.lent(PART).await,
    ];
    let base = parts[0].address();
    assert_eq!(parts[2].address(), base + 2 * PART as u64);
    let fill = |bytes: &[u8]| {
        for (part, bytes) in parts.iter().zip(bytes.chunks(PART)) {
            put(part, 0, bytes);
        }
    };
    let all = || parts.iter().flat_map(|part| get(part, 0, PART)).collect();
    let value = pattern(3 * PART, 7);
    for (skipped, len) in [(0, 3 * PART), (100, 2 * PART), (PART - 3, PART + 6)] {
        let sgl = SglDescriptor::data_block(base + skipped as u64, len as u32);
        fill(&value);
        let stored = host.execute(&store(b"key", len).with_sgl(sgl)).await;
        assert_eq!(stored.status, Status::SUCCESS, "{skipped} {len}");
        fill(&vec![0; 3 * PART]);
        let retrieved = host.execute(&retrieve(b"key", len).with_sgl(sgl)).await;
        assert_eq!(retrieved.status, Status::SUCCESS);
        let got: Vec<u8> = all();
        assert!(got[skipped..skipped + len] == value[skipped..skipped + len]);
        assert!(got[..skipped].iter().all(|&byte| byte == 0));
        assert!(got[skipped + len..].iter().all(|&byte| byte == 0));
    }
    // Beyond the last one there is nothing.
    let sgl = SglDescriptor::data_block(base, 3 * PART as u32 + 1);
    let failed = host
        .execute(&store(b"key", 3 * PART + 1).with_sgl(sgl))
        .await;
    assert_eq!(failed.status.code(), Status::DATA_TRANSFER_ERROR);
}

const PAGE: u64 = PAGE_BYTES as u64;

fn put_words(memory: &Mapping, at: usize, words: impl Iterator<Item = u64>) {
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    put(memory, at, &bytes);
}

#[tokio::test]
async fn lists_are_asked_for() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let pages = 514u64;
    let whole = pages as usize * PAGE_BYTES;
    let value = pattern(whole, 1);
    let (near, far) = (host.memory(4 << 20).await, host.lent(4 << 20).await);
    put(&near, 0, &value);
    assert_eq!(
        host.store(b"value", &near, whole).await.status,
        Status::SUCCESS
    );
    for (lists, data) in [(&far, &near), (&near, &far), (&far, &far)] {
        put(&near, 0, &vec![0; 4 << 20]);
        put(&far, 0, &vec![0; 4 << 20]);
        // Two lists: pages in reverse order, 511 entries, then the chain, then the last.
        let page = |number: u64| data.address() + (1023 - number) * PAGE;
        let list = lists.address();
        put_words(lists, 0, (1..512).map(page).chain([list + PAGE]));
        put_words(lists, PAGE_BYTES, (512..pages).map(page));
        let command = retrieve(b"value", whole).with_prps(page(0), list);
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        for number in [0, 1, 300, 511, 512, 513] {
            let at = ((1023 - number) * PAGE) as usize;
            let from = (number * PAGE) as usize;
            assert!(get(data, at, PAGE_BYTES) == value[from..from + PAGE_BYTES]);
        }
        // An entry outside of what is mapped.
        put_words(lists, PAGE_BYTES, [page(512), 1 << 50].into_iter());
        let failed = host.execute(&command).await.status.code();
        assert_eq!(failed, Status::DATA_TRANSFER_ERROR);
        put_words(lists, PAGE_BYTES, [page(512), page(513) + 8].into_iter());
        let failed = host.execute(&command).await.status.code();
        assert_eq!(failed, Status::PRP_OFFSET_INVALID);

        // Segments: one full of blocks with a further one at its end, then the last.
        let block = |number: u64, len: u32| {
            let at = data.address() + (1 << 20) + number * 1000;
            SglDescriptor::data_block(at, len).encode()
        };
        let last = SglDescriptor {
            kind: SglKind::LastSegment,
            subtype: SglSubtype::Address,
            address: list + 2 * PAGE,
            length: 16,
        };
        let mut segment: Vec<u8> = (0..300).flat_map(|number| block(number, 100)).collect();
        segment.extend_from_slice(&last.encode());
        put(lists, 0, &segment);
        put(lists, 2 * PAGE_BYTES, &block(300, 70));
        let first = SglDescriptor {
            kind: SglKind::Segment,
            address: list,
            length: segment.len() as u32,
            ..last
        };
        let len = 300 * 100 + 70;
        let command = retrieve(b"value", len).with_sgl(first);
        assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        for number in [0, 1, 40, 255, 256, 299] {
            let got = get(data, (1 << 20) + number * 1000, 100);
            assert!(got == value[number * 100..number * 100 + 100], "{number}");
        }
        let got = get(data, (1 << 20) + 300_000, 70);
        assert!(got == value[30_000..30_070]);
        // A last segment that names another.
        put(lists, 2 * PAGE_BYTES, &last.encode());
        let failed = host.execute(&command).await.status.code();
        assert_eq!(failed, Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
    }
}

#[tokio::test]
async fn keys_at_the_head_and_results_in_place_are_far() {
    let world = World::executing().await;
    let mut host = lending(&world, DoorbellMode::Shadow).await;
    let memory = host.lent(1 << 20).await;
    keys_travel_at_the_head(&mut host, &memory).await;
    // The result takes the place of the arguments.
    let value = pattern(50_000, 3);
    put(&memory, 0, &value);
    assert_eq!(
        host.store(b"key", &memory, value.len()).await.status,
        Status::SUCCESS
    );
    let payload = [&3u16.to_le_bytes()[..], b"key", b"arguments"].concat();
    put(&memory, 0, &payload);
    let execute = KvCommand::Execute {
        payload_bytes: payload.len() as u32,
        capacity: 60_000,
        operation: ECHO,
    };
    let execute = memory.point(execute.entry(9, KV), 0, 60_000).unwrap();
    let done = host.execute(&execute).await;
    assert_eq!(
        (done.status, done.result),
        (Status::SUCCESS, 9 + value.len() as u64)
    );
    assert_eq!(get(&memory, 0, 9), b"arguments");
    assert!(get(&memory, 9, value.len()) == value);
}

#[tokio::test]
async fn a_fused_operation_has_one_half_near_and_one_far() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let (near, far) = (host.memory(8192).await, host.lent(8192).await);
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    for (compared, replacing) in [(&near, &far), (&far, &near), (&far, &far)] {
        put(compared, 0, &old);
        put(replacing, 4096, &new);
        let first = compared.point(write(3, 0, 8), 0, 4096).unwrap();
        assert_eq!(host.execute(&first).await.status, Status::SUCCESS);
        let blocks = blocks(0, 8);
        let compare = NvmCommand::Compare { blocks }.entry(1, BLOCK);
        let compare = compared.point(compare, 0, 4096).unwrap().with_fuse(1);
        let replace = replacing.point(write(2, 0, 8), 4096, 4096).unwrap();
        let pair = [compare, replace.with_fuse(2)];
        for statuses in [
            [Status::SUCCESS; 2],
            [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED],
        ] {
            let mut ended = host.execute_all(&pair).await;
            ended.sort_by_key(|one| one.cid);
            let codes: Vec<_> = ended.iter().map(|one| one.status.code()).collect();
            assert_eq!(codes, statuses);
        }
        let back = far.point(read(4, 0, 8), 0, 4096).unwrap();
        assert_eq!(host.execute(&back).await.status, Status::SUCCESS);
        assert!(get(&far, 0, 4096) == new);
    }
}

#[tokio::test]
async fn what_is_asked_at_once_is_what_the_client_takes() {
    let world = World::new().await;
    for takes in [1 << 30, 32 << 10, 4096, 100, 7] {
        let (mut host, relay) =
            relayed_taking(&world, DoorbellMode::Shadow, QueueMemory::Lent, Some(takes)).await;
        let memory = host.lent(1 << 20).await;
        let len = 64 * usize::try_from(takes.min(1 << 10)).unwrap();
        let value = pattern(len, 3);
        put(&memory, 0, &value);
        assert_eq!(
            host.store(b"key", &memory, len).await.status,
            Status::SUCCESS
        );
        put(&memory, 0, &vec![0; len]);
        let retrieved = host.retrieve(b"key", &memory, len).await;
        assert_eq!(retrieved.status, Status::SUCCESS);
        assert!(get(&memory, 0, len) == value);
        let asked = relay.asked();
        let most = asked.iter().map(|(_, access)| access.count).max();
        assert!(most <= Some(takes.min(32 << 10)), "{takes} {most:?}");
        let both = [Command::DmaRead, Command::DmaWrite];
        assert!(both.map(|way| asked.iter().any(|asked| asked.0 == way)) == [true; 2]);
    }
}

#[tokio::test]
async fn memory_with_files_is_never_asked_for() {
    let world = World::new().await;
    for mode in MODES {
        let (mut host, relay) = relayed(&world, mode, QueueMemory::Mapped).await;
        let memory = host.memory(1 << 20).await;
        comes_back(&mut host, &memory, &format!("{mode:?}")).await;
        // Nor when there is other memory, too.
        let _lent = host.lent(1 << 20).await;
        comes_back(&mut host, &memory, &format!("{mode:?}")).await;
        assert!(relay.asked().is_empty());
    }
}

#[tokio::test]
async fn what_the_device_may_not_do_it_does_not_ask_for() {
    let world = World::new().await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let lend = async |host: &Host, may| {
        let region = Region::anonymous(8192).unwrap();
        host.device.lend(region, may).await.unwrap()
    };
    let readable = lend(&host, DeviceMay::Read).await;
    let writable = lend(&host, DeviceMay::Write).await;
    put(&readable, 0, &pattern(8192, 1));
    let store =
        async |host: &mut Host, memory| host.store(b"key", memory, 8192).await.status.code();
    let retrieve =
        async |host: &mut Host, memory| host.retrieve(b"key", memory, 8192).await.status.code();
    assert_eq!(store(&mut host, &readable).await, Status::SUCCESS);
    assert_eq!(retrieve(&mut host, &writable).await, Status::SUCCESS);
    assert!(get(&writable, 0, 8192) == pattern(8192, 1));
    relay.forget();
    let refused = Status::DATA_TRANSFER_ERROR;
    assert_eq!(store(&mut host, &writable).await, refused);
    assert_eq!(retrieve(&mut host, &readable).await, refused);
    assert!(relay.asked().is_empty());
}

#[tokio::test]
async fn far_memory_is_copied_and_the_copies_are_counted() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.lent(1 << 20).await;
    let sites = [CopySite::ReadFrom, CopySite::RetrieveInto];
    let before = sites.map(copied_bytes);
    assert_eq!(
        host.store(b"key", &memory, 1 << 20).await.status,
        Status::SUCCESS
    );
    assert_eq!(
        host.retrieve(b"key", &memory, 1 << 20).await.status,
        Status::SUCCESS
    );
    let after = sites.map(copied_bytes);
    assert!(after[0] - before[0] >= 1 << 20 && after[1] - before[1] >= 1 << 20);
}

#[tokio::test]
async fn far_queues_are_deleted_and_made_again() {
    let world = World::new().await;
    for mode in [DoorbellMode::Trapped, DoorbellMode::Shadow] {
        let mut host = lending(&world, mode).await;
        let memory = host.lent(1 << 20).await;
        let flush = SubmissionQueueEntry::new(0, 1, BLOCK);
        for _ in 0..3 {
            assert_eq!(host.execute(&flush).await.status, Status::SUCCESS);
        }
        let qid = u32::from(host.queue.qid());
        let admin = async |opcode: u8, cdw10: u32, cdw11: u32, base: u64| {
            let entry = SubmissionQueueEntry::new(opcode, 1, 0);
            let entry = entry.with_cdw(10, cdw10).with_cdw(11, cdw11);
            host.device.admin(entry.with_prps(base, 0)).await.unwrap()
        };
        // Both go, and come back elsewhere, their doorbells at zero.
        admin(0x00, qid, 0, 0).await;
        admin(0x04, qid, 0, 0).await;
        admin(0x05, 7 << 16 | qid, 1, memory.address() + PAGE).await;
        admin(0x01, 7 << 16 | qid, 1 | qid << 16, memory.address()).await;
        put(&memory, 0, flush.as_bytes());
        let bell = 0x1000 + 8 * qid;
        host.device.write_register(bell, 4, 1).await.unwrap();
        let ended = || get(&memory, PAGE_BYTES, 16);
        if mode == DoorbellMode::Shadow {
            // That is a hint alone: in memory nothing was rung since, whatever had been before.
            admin(0x0a, 7, 0, 0).await;
            assert_eq!(ended(), [0; 16]);
            continue;
        }
        while ended()[14] & 1 == 0 {
            host.device.read_register(0x1c, 4).await.unwrap();
        }
        let (ended, _) = CompletionQueueEntry::decode(&ended().try_into().unwrap());
        assert_eq!((ended.cid, ended.status), (1, Status::SUCCESS));
        assert_eq!(get(&memory, PAGE_BYTES + 16, 16), [0; 16]);
    }
}
