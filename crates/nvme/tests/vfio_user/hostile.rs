//! Clients that mean ill: each harms at most itself.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_mem::{PAGE_BYTES, Region};
use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::{Device, DoorbellMode, Mapping};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry};
use forebay_proto::vfio_user::{
    Access, DmaMap, DmaUnmap, IRQ_MSIX, IrqAction, IrqData, MESSAGE_BYTES_MAX, PayloadAccess,
    REGION_BAR0, REGION_CONFIG, Request, SetIrqs,
};

use crate::raw::{Raw, Refusal};
use crate::support::*;

const EEXIST: Refusal = Refusal::Errno(17);
const EINVAL: Refusal = Refusal::Errno(22);
const ENOENT: Refusal = Refusal::Errno(2);
const ENOSPC: Refusal = Refusal::Errno(28);
const ENOTSUP: Refusal = Refusal::Errno(95);

/// The world still works.
async fn still_serves(world: &World) {
    let mut host = Host::new(world, DoorbellMode::Shadow).await;
    let memory = host
        .device
        .map(Region::memfd(PAGE_BYTES).unwrap())
        .await
        .unwrap();
    assert_eq!(
        host.store(b"alive", &memory, 100).await.status,
        Status::SUCCESS
    );
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn memory_file(len: u64) -> OwnedFd {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(len).unwrap();
    file.into()
}

fn map(address: u64, size: u64, offset: u64) -> Request<'static> {
    Request::DmaMap(DmaMap {
        readable: true,
        writable: true,
        offset,
        address,
        size,
    })
}

fn unmap(address: u64, size: u64, all: bool) -> Request<'static> {
    Request::DmaUnmap(DmaUnmap { all, address, size })
}

const NO_FILE: &[&OwnedFd] = &[];

#[tokio::test]
async fn what_is_no_message_ends_the_connection() {
    let world = World::new().await;
    let header = |size: u32, flags: u32| {
        let mut bytes = [0; 16];
        bytes[2] = 4;
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes
    };
    for bytes in [
        header(0, 0),
        header(15, 0),
        header(MESSAGE_BYTES_MAX as u32 + 1, 0),
        header(u32::MAX, 0),
        header(16, 1),
        header(16, 2),
    ] {
        let (stream, served) = world.connect();
        let mut raw = Raw::greeted(stream).await;
        raw.send(&bytes, &[]).await;
        assert!(raw.receive().await.is_none());
        assert!(matches!(served.ended(), Ended::Broken(_)));
    }
    // Half a message, and then nothing more.
    let (stream, served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    raw.send(&header(48, 0), &[]).await;
    drop(raw);
    assert!(matches!(served.ended(), Ended::Broken(_)));
    still_serves(&world).await;
}

#[tokio::test]
async fn version_comes_first_and_once() {
    let world = World::new().await;
    let closed = [
        &[0u8, 0, 1][..],
        &[1, 0, 0, 0],
        b"\0\0\x01\0{",
        b"\0\0\x01\0[]\0",
        b"\0\0\x01\0{\"capabilities\":7}\0",
    ];
    for payload in closed {
        let (stream, served) = world.connect();
        let mut raw = Raw::new(stream);
        assert_eq!(raw.ask(1, payload, &[]).await, Err(EINVAL), "{payload:?}");
        assert!(raw.receive().await.is_none());
        assert!(matches!(served.ended(), Ended::Broken(_)));
    }
    let mut long = b"\0\0\x01\0{\"x\":\"".to_vec();
    long.resize(1 << 20, b'y');
    let mut deep = b"\0\0\x01\0".to_vec();
    deep.resize(8192, b'[');
    for payload in [long, deep] {
        let (stream, _served) = world.connect();
        assert_eq!(Raw::new(stream).ask(1, &payload, &[]).await, Err(EINVAL));
    }
    // Something else first.
    let (stream, _served) = world.connect();
    assert_eq!(
        Raw::new(stream)
            .request(&Request::DeviceInfo, NO_FILE)
            .await,
        Err(EINVAL)
    );
    // Twice.
    let (stream, _served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    assert_eq!(raw.ask(1, &[0, 0, 1, 0], &[]).await, Err(EINVAL));
    assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
}

#[tokio::test]
async fn requests_without_meaning_are_refused_and_the_next_is_served() {
    let world = World::new().await;
    let (stream, _served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    for number in [0, 14, 19, 200, u16::MAX] {
        assert_eq!(
            raw.ask(number, &[0; 40], &[]).await,
            Err(ENOTSUP),
            "{number}"
        );
    }
    for number in [6, 11, 12, 16, 17, 18] {
        assert_eq!(
            raw.ask(number, &[0; 40], &[]).await,
            Err(ENOTSUP),
            "{number}"
        );
    }
    for number in 2..=10 {
        if number == 6 {
            continue;
        }
        assert_eq!(raw.ask(number, &[], &[]).await, Err(EINVAL), "{number}");
        assert_eq!(raw.ask(number, &[0; 4], &[]).await, Err(EINVAL), "{number}");
    }
    // A query as one client makes it: as long as the answer may be.
    let mut query = vec![0; 4064];
    query[0..4].copy_from_slice(&4064u32.to_le_bytes());
    assert_eq!(raw.ask(5, &query, &[]).await.unwrap().len(), 64);
    assert_eq!(raw.take_files(), 1);
    query[8] = 9;
    assert_eq!(raw.ask(5, &query, &[]).await, Err(EINVAL));
    assert_eq!(raw.ask(7, &query[..16], &[]).await, Err(EINVAL));
    assert!(raw.request(&Request::DeviceInfo, NO_FILE).await.is_ok());
}

#[tokio::test]
async fn files_that_are_not_what_they_should_be_are_refused_and_closed() {
    let world = World::new().await;
    let (stream, served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    let before = open_files();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let short = memory_file(4096);
    let null = File::open("/dev/null").unwrap();
    let not_memory: [&dyn AsFd; 4] = [&socket, &reader, &writer, &null];
    for file in not_memory {
        let refused = raw.request(&map(0, 4096, 0), &[&file.as_fd()]).await;
        assert_eq!(refused, Err(EINVAL));
    }
    for (size, offset) in [(8192, 0), (4096, 4096), (4096, 1 << 40), (1 << 50, 0)] {
        let refused = raw.request(&map(0, size, offset), &[&short]).await;
        assert!(matches!(refused, Err(Refusal::Errno(_))), "{size} {offset}");
    }
    // Too many for a mapping; not an eventfd; not as many as there should be.
    assert_eq!(
        raw.request(&map(0, 4096, 0), &[&short; 2]).await,
        Err(EINVAL)
    );
    let irqs = |count| {
        Request::SetIrqs(SetIrqs {
            action: IrqAction::Trigger,
            data: IrqData::Eventfd,
            index: IRQ_MSIX,
            start: 0,
            count,
        })
    };
    assert_eq!(raw.request(&irqs(1), &[&short]).await, Err(EINVAL));
    assert_eq!(raw.request(&irqs(2), &[&short]).await, Err(EINVAL));
    assert_eq!(raw.request(&irqs(1000), NO_FILE).await, Err(EINVAL));
    // Files beside what needs none.
    assert!(
        raw.request(&Request::DeviceInfo, &[&short; 9])
            .await
            .is_ok()
    );
    drop((socket, _peer, reader, writer, short, null));
    assert!(open_files() <= before, "files were left open");
    // More than is ever taken.
    let many = memory_file(1);
    let flood = raw.request(&Request::DeviceInfo, &[&many; 253]).await;
    assert_eq!(flood, Err(Refusal::Closed));
    assert!(matches!(served.ended(), Ended::Broken(_)));
    still_serves(&world).await;
}

#[tokio::test]
async fn ranges_of_memory_are_checked() {
    let world = World::new().await;
    let (stream, _served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    let file = memory_file(1 << 20);
    assert!(
        raw.request(&map(0x10000, 0x10000, 0), &[&file])
            .await
            .is_ok()
    );
    for (address, size) in [
        (0x10000, 0x10000),
        (0x1f000, 0x1000),
        (0xf000, 0x2000),
        (0, 0x100_0000),
    ] {
        assert_eq!(
            raw.request(&map(address, size, 0), NO_FILE).await,
            Err(EEXIST)
        );
    }
    for (address, size, offset) in [(1, 4096, 0), (0, 4095, 0), (0, 4096, 12)] {
        assert_eq!(
            raw.request(&map(address, size, offset), &[&file]).await,
            Err(EINVAL)
        );
    }
    for (address, size) in [
        (0x10000, 0x1000),
        (0x11000, 0xf000),
        (0x20000, 0x1000),
        (0, 1 << 62),
    ] {
        assert_eq!(
            raw.request(&unmap(address, size, false), NO_FILE).await,
            Err(ENOENT)
        );
    }
    assert!(
        raw.request(&unmap(0x10000, 0x10000, false), NO_FILE)
            .await
            .is_ok()
    );
    // As many as there may be, and one more; without a file they are on the books alone.
    let mut taken = 0;
    let refused = loop {
        match raw.request(&map(taken << 12, 4096, 0), NO_FILE).await {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, taken), (ENOSPC, 4096));
    assert!(raw.request(&unmap(0, 0, true), NO_FILE).await.is_ok());
    assert!(raw.request(&map(0, 1 << 20, 0), &[&file]).await.is_ok());
}

#[tokio::test]
async fn regions_have_ends() {
    let world = World::new().await;
    let (stream, _served) = world.connect();
    let mut raw = Raw::greeted(stream).await;
    for (region, offset, count) in [
        (9, 0, 4),
        (u32::MAX, 0, 4),
        (REGION_BAR0, 0x4000, 4),
        (REGION_BAR0, 0x3ffe, 4),
        (REGION_BAR0, u64::MAX, 4),
        (REGION_BAR0, 0, 0),
        (REGION_BAR0, 0, 1 << 20),
        (REGION_CONFIG, 4094, 4),
        (1, 0, 4),
    ] {
        let access = Access {
            offset,
            region,
            count,
        };
        assert_eq!(
            raw.request(&Request::RegionRead(access), NO_FILE).await,
            Err(EINVAL)
        );
        let data = vec![0xff; count as usize];
        let write = Request::RegionWrite(PayloadAccess {
            access,
            data: &data,
        });
        assert_eq!(
            raw.request(&write, NO_FILE).await,
            Err(EINVAL),
            "{access:?}"
        );
    }
    // Vectors that do not exist, names that cannot be written, doorbells of no queue.
    for (region, offset, data) in [
        (REGION_BAR0, 0x2fff, &[0xff][..]),
        (REGION_CONFIG, 0, &[0xff; 64]),
        (REGION_BAR0, 0x1ffc, &[0xff; 4]),
        (REGION_BAR0, 0x1000, &[0xff; 4]),
    ] {
        let access = Access {
            offset,
            region,
            count: data.len() as u32,
        };
        let write = Request::RegionWrite(PayloadAccess { access, data });
        assert!(raw.request(&write, NO_FILE).await.is_ok());
    }
    let access = Access {
        offset: 0,
        region: REGION_CONFIG,
        count: 4,
    };
    let read = raw
        .request(&Request::RegionRead(access), NO_FILE)
        .await
        .unwrap();
    assert_eq!(read[16..], [0x58, 0x4e, 0x01, 0x00]);
}

/// One command whose PRP entries are the test's.
async fn with_prps(host: &mut Host, len: usize, prp1: u64, prp2: u64) -> Status {
    let command = retrieve(b"value", len).with_prps(prp1, prp2);
    host.execute(&command).await.status.code()
}

async fn with_sgl(host: &mut Host, len: usize, kind: SglKind, address: u64, length: u32) -> Status {
    let sgl = SglDescriptor {
        kind,
        subtype: SglSubtype::Address,
        address,
        length,
    };
    let command = retrieve(b"value", len).with_sgl(sgl);
    host.execute(&command).await.status.code()
}

const PAGE: u64 = PAGE_BYTES as u64;

fn put_list(memory: &Mapping, page: u64, entries: impl Iterator<Item = u64>) {
    let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
    put(memory, (page * PAGE) as usize, &bytes);
}

#[tokio::test]
async fn prp_lists_are_walked_with_care() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host
        .device
        .map(Region::memfd(4 << 20).unwrap())
        .await
        .unwrap();
    let base = memory.address();
    let pages = 514u64;
    let whole = pages as usize * PAGE_BYTES;
    let value = pattern(whole, 1);
    put(&memory, 0, &value);
    assert_eq!(
        host.store(b"value", &memory, whole).await.status,
        Status::SUCCESS
    );
    put(&memory, 0, &vec![0; 4 << 20]);

    // Two lists: pages in reverse order, 511 entries, then the chain, then the last.
    let data = |number: u64| base + (1023 - number) * PAGE;
    put_list(&memory, 0, (1..512).map(data).chain([base + PAGE]));
    put_list(&memory, 1, (512..pages).map(data));
    assert_eq!(
        with_prps(&mut host, whole, data(0), base).await,
        Status::SUCCESS
    );
    for number in [0, 1, 300, 511, 512, 513] {
        let at = ((1023 - number) * PAGE) as usize;
        let from = (number * PAGE) as usize;
        assert!(
            get(&memory, at, PAGE_BYTES) == value[from..from + PAGE_BYTES],
            "{number}"
        );
    }
    // A list that begins in the middle of its page, data that begins in the middle of a page.
    put_list(
        &memory,
        0,
        std::iter::repeat_n(0, 510).chain([data(1), base + PAGE]),
    );
    put_list(&memory, 1, [data(2), data(3)].into_iter());
    let len = 96 + 2 * PAGE_BYTES + 100;
    assert_eq!(
        with_prps(&mut host, len, data(0) + 4000, base + 510 * 8).await,
        Status::SUCCESS
    );
    assert!(get(&memory, (data(0) + 4000 - base) as usize, 96) == value[..96]);
    assert!(
        get(&memory, (data(3) - base) as usize, 100)
            == value[96 + 2 * PAGE_BYTES..96 + 2 * PAGE_BYTES + 100]
    );

    // A list of itself, for ever: as long as the data, and no longer.
    put_list(&memory, 0, std::iter::repeat_n(base, 512));
    assert_eq!(
        with_prps(&mut host, 64 << 20, data(0), base).await,
        Status::SUCCESS
    );
    // Misaligned: the first entry, the second, the list, an entry, the chain.
    for (len, prp1, prp2) in [
        (8, data(0) + 2, 0),
        (8192, data(0), data(1) + 4),
        (16384, data(0), base + 4),
    ] {
        assert_eq!(
            with_prps(&mut host, len, prp1, prp2).await,
            Status::PRP_OFFSET_INVALID
        );
    }
    put_list(&memory, 0, [data(1), data(2) + 8].into_iter());
    assert_eq!(
        with_prps(&mut host, 3 * PAGE_BYTES, data(0), base).await,
        Status::PRP_OFFSET_INVALID
    );
    put_list(&memory, 0, (1..512).map(data).chain([base + PAGE + 8]));
    assert_eq!(
        with_prps(&mut host, whole, data(0), base).await,
        Status::PRP_OFFSET_INVALID
    );
    // Outside of what is mapped: data, a list, an entry; and what wraps.
    let outside = base + (1 << 40);
    for (len, prp1, prp2) in [
        (8, outside, 0),
        (8192, data(0), outside),
        (16384, data(0), outside),
        (8192, !4095, 0),
        (16384, data(0), !4095),
    ] {
        let status = with_prps(&mut host, len, prp1, prp2).await;
        assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{prp1:x} {prp2:x}");
    }
    put_list(&memory, 0, [data(1), outside].into_iter());
    assert_eq!(
        with_prps(&mut host, 3 * PAGE_BYTES, data(0), base).await,
        Status::DATA_TRANSFER_ERROR
    );
    // More than the controller moves with one command.
    assert_eq!(
        with_prps(&mut host, u32::MAX as usize, data(0), base).await,
        Status::INVALID_FIELD
    );
}

#[tokio::test]
async fn sgls_are_walked_with_care() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host
        .device
        .map(Region::memfd(4 << 20).unwrap())
        .await
        .unwrap();
    let base = memory.address();
    let value = pattern(100_000, 1);
    put(&memory, 0, &value);
    assert_eq!(
        host.store(b"value", &memory, value.len()).await.status,
        Status::SUCCESS
    );

    let describe = |kind, address, length| {
        let subtype = SglSubtype::Address;
        let descriptor = SglDescriptor {
            kind,
            subtype,
            address,
            length,
        };
        descriptor.encode()
    };
    let block = |address, length| describe(SglKind::DataBlock, address, length);
    let far = base + (2 << 20);
    // Pieces of odd lengths over two segments, an empty one among them.
    let first = [
        block(far + 1, 999),
        block(far + 5000, 0),
        describe(SglKind::LastSegment, base + 4096, 32),
    ];
    put(&memory, 0, &first.concat());
    put(
        &memory,
        4096,
        &[block(far + 10_001, 7), block(far + 20_000, 100_000)].concat(),
    );
    assert_eq!(
        with_sgl(&mut host, 50_000, SglKind::Segment, base, 48).await,
        Status::SUCCESS
    );
    assert!(get(&memory, (2 << 20) + 1, 999) == value[..999]);
    assert!(get(&memory, (2 << 20) + 10_001, 7) == value[999..1006]);
    assert!(get(&memory, (2 << 20) + 20_000, 48_994) == value[1006..50_000]);

    // Too short; a last segment that is not the last; descriptors behind a segment; odd lengths of segments.
    let case = async |host: &mut Host, list: &[[u8; 16]], kind, length: u32| {
        put(&memory, 0, &list.concat());
        with_sgl(host, 50_000, kind, base, length).await
    };
    let segment = SglKind::Segment;
    let last = SglKind::LastSegment;
    let short = [block(far, 49_999)];
    assert_eq!(
        case(&mut host, &short, last, 16).await,
        Status::DATA_SGL_LENGTH_INVALID
    );
    let more = [describe(segment, base, 16)];
    assert_eq!(
        case(&mut host, &more, last, 16).await,
        Status::INVALID_SGL_SEGMENT_DESCRIPTOR
    );
    let behind = [describe(segment, base, 16), block(far, 50_000)];
    assert_eq!(
        case(&mut host, &behind, segment, 32).await,
        Status::INVALID_SGL_SEGMENT_DESCRIPTOR
    );
    for length in [0, 1, 15, 17] {
        assert_eq!(
            case(&mut host, &short, last, length).await,
            Status::INVALID_SGL_SEGMENT_DESCRIPTOR
        );
    }
    // For ever: of itself, and of a million empty blocks.
    assert_eq!(
        case(&mut host, &more, segment, 16).await,
        Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS
    );
    put(&memory, 0, &vec![0; 2 << 20]);
    let empty = with_sgl(&mut host, 50_000, last, base, 2 << 20).await;
    assert_eq!(empty, Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS);
    // Types that are not memory, and an address that is not.
    for kind in [
        SglKind::BitBucket,
        SglKind::KeyedDataBlock,
        SglKind::TransportDataBlock,
        SglKind::Other(0xf),
    ] {
        let status = with_sgl(&mut host, 50_000, kind, far, 50_000).await;
        assert_eq!(status, Status::SGL_DESCRIPTOR_TYPE_INVALID, "{kind:?}");
    }
    let in_capsule = retrieve(b"value", 100).with_sgl(SglDescriptor::in_capsule(0, 100));
    let status = host.execute(&in_capsule).await.status.code();
    assert_eq!(status, Status::SGL_DESCRIPTOR_TYPE_INVALID);
    for address in [
        4096,
        base + (4 << 20),
        u64::MAX - 10,
        base + (4 << 20) - 4096,
    ] {
        let status = with_sgl(&mut host, 50_000, SglKind::DataBlock, address, 50_000).await;
        assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{address:x}");
        let status = with_sgl(&mut host, 50_000, segment, address, 1 << 20).await;
        assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{address:x}");
    }
}

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
    let memory = host
        .device
        .map(Region::memfd(1 << 20).unwrap())
        .await
        .unwrap();
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
async fn memory_is_unmapped_while_commands_use_it() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let len = 1 << 20;
    let source = host.device.map(Region::memfd(len).unwrap()).await.unwrap();
    put(&source, 0, &pattern(len, 1));
    assert_eq!(
        host.store(b"value", &source, len).await.status,
        Status::SUCCESS
    );
    for _ in 0..20 {
        let memory = host.device.map(Region::memfd(len).unwrap()).await.unwrap();
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
async fn a_client_that_dies_leaves_the_old_value() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let len = 4 << 20;
    let memory = host.device.map(Region::memfd(len).unwrap()).await.unwrap();
    put(&memory, 0, &pattern(len, 1));
    assert_eq!(
        host.store(b"value", &memory, len).await.status,
        Status::SUCCESS
    );
    for seed in 2..7 {
        let mut dying = Host::new(&world, DoorbellMode::Shadow).await;
        let theirs = dying.device.map(Region::memfd(len).unwrap()).await.unwrap();
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
        let memory = host.device.map(Region::memfd(len).unwrap()).await.unwrap();
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
