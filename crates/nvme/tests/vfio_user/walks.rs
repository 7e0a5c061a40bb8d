//! Lists of where data lies that are wrong, endless, or change while they are read.

use std::future::pending;
use std::pin::pin;

use forebay_mem::{PAGE_BYTES, Region};
use forebay_nvme::target::Viewer;
use forebay_nvme::vfio_user::client::{Device, DoorbellMode, Mapping, QueueOptions};
use forebay_nvme::vfio_user::serve;
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status};

use futures_util::FutureExt;
use tokio::net::UnixStream;

use crate::support::*;

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
    let memory = host.memory(4 << 20).await;
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

/// Descriptors that name the same bytes twice: what is taken is taken twice, and what is given lies there in one of the two ways.
#[tokio::test]
async fn descriptors_may_overlap() {
    const LEN: usize = 24 << 10;
    const HALF: usize = LEN / 2;
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(1 << 20).await;
    let base = memory.address();
    let at = 64 << 10;
    let block = |offset: usize| SglDescriptor::data_block(base + offset as u64, HALF as u32);
    // The same bytes; and the second half of one is the first of the other.
    for apart in [0, HALF / 2] {
        let list = [block(at), block(at + apart)].map(|one| one.encode());
        put(&memory, 0, &list.concat());
        let twice = SglDescriptor {
            kind: SglKind::LastSegment,
            subtype: SglSubtype::Address,
            address: base,
            length: 32,
        };
        let source = pattern(HALF + apart, 5);
        let taken = [&source[..HALF], &source[apart..]].concat();
        let (values, writes) = (store(b"value", LEN), write(1, 0, LEN as u32 / 512));
        for command in [values, writes] {
            put(&memory, at, &source);
            let ended = host.execute(&command.with_sgl(twice)).await;
            assert_eq!(ended.status, Status::SUCCESS, "{apart}");
        }
        let given = pattern(LEN, 6);
        let whole = |command| memory.point(command, 256 << 10, LEN).unwrap();
        let (values, reads) = (retrieve(b"value", LEN), read(1, 0, LEN as u32 / 512));
        for command in [values, reads] {
            host.execute(&whole(command)).await;
            assert!(get(&memory, 256 << 10, LEN) == taken, "{apart}");
        }
        put(&memory, 256 << 10, &given);
        host.execute(&whole(store(b"value", LEN))).await;
        host.execute(&whole(write(1, 0, LEN as u32 / 512))).await;
        for command in [values, reads] {
            put(&memory, at - 512, &[7; LEN + 1024]);
            let ended = host.execute(&command.with_sgl(twice)).await;
            assert_eq!(ended.status, Status::SUCCESS, "{apart}");
            let (first, second) = given.split_at(HALF);
            let found = get(&memory, at - 512, LEN + 1024);
            for (place, byte) in found.into_iter().enumerate() {
                let place = place.wrapping_sub(512);
                let one = first.get(place);
                let other = second.get(place.wrapping_sub(apart));
                let possible = match (one, other) {
                    (None, None) => byte == 7,
                    possible => possible.0 == Some(&byte) || possible.1 == Some(&byte),
                };
                assert!(possible, "{apart} {place}");
            }
        }
    }
}

#[tokio::test]
async fn sgls_are_walked_with_care() {
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(4 << 20).await;
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
    let in_capsule = retrieve(b"value", 100).with_sgl(SglDescriptor::in_capsule(100));
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

#[tokio::test]
async fn descriptors_are_in_proportion_to_what_is_moved() {
    const LEN: usize = 64 << 10;
    let world = World::new().await;
    let mut host = Host::new(&world, DoorbellMode::Shadow).await;
    let memory = host.memory(4 << 20).await;
    let base = memory.address();
    put(&memory, 0, &pattern(LEN, 1));
    assert_eq!(
        host.store(b"value", &memory, LEN).await.status,
        Status::SUCCESS
    );
    let mut pieces = async |count: u64, len: usize| {
        let bytes = len as u64 / count;
        let piece = |at| SglDescriptor::data_block(base + (2 << 20) + 2 * at * bytes, bytes as u32);
        let list: Vec<_> = (0..count).map(|at| piece(at).encode()).collect();
        put(&memory, 0, &list.concat());
        with_sgl(
            &mut host,
            len,
            SglKind::LastSegment,
            base,
            count as u32 * 16,
        )
        .await
    };
    assert_eq!(pieces(1024, LEN).await, Status::SUCCESS);
    assert_eq!(pieces(1024, 1024).await, Status::SUCCESS);
    let refused = Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS;
    assert_eq!(pieces(4096, LEN).await, refused);
    assert_eq!(pieces(2048, 2048).await, refused);
}

/// The server and its client take turns in one task: after each turn of the server it is seen how far it went.
#[tokio::test]
async fn long_lists_of_many_commands_are_walked_with_turns_for_others() {
    const COMMANDS: usize = 24;
    const LEN: usize = 16 << 20;
    let world = World::new().await;
    let (near, far) = UnixStream::pair().unwrap();
    let viewer = Viewer::Tenant("tenant".to_owned());
    let mut served = pin!(serve(far, &world.target, viewer, pending()));
    let client = async {
        let device = Device::over(near, DoorbellMode::Shadow).await.unwrap();
        let mut queue = device.create_queue(QueueOptions::default()).await.unwrap();
        let memory = device.map(Region::memfd(1 << 20).unwrap()).await.unwrap();
        let base = memory.address();
        put_list(&memory, 0, std::iter::repeat_n(base, 512));
        for _ in 0..COMMANDS {
            let command = retrieve(b"absent", LEN).with_prps(base, base);
            assert!(queue.submit(&command));
        }
        (device, queue, memory)
    };
    let (_device, mut queue, _memory) = tokio::select! {
        client = client => client,
        ended = &mut served => panic!("{ended:?}"),
    };
    tokio::select! {
        rung = queue.ring() => rung.unwrap(),
        ended = &mut served => panic!("{ended:?}"),
    }
    let (mut all, mut most) = (0, 0);
    while all < COMMANDS {
        assert!(served.as_mut().now_or_never().is_none());
        let each = |one: forebay_proto::nvme::CompletionQueueEntry| {
            assert_eq!(one.status.code(), Status::KV_KEY_DOES_NOT_EXIST);
        };
        let ended = tokio::select! {
            biased;
            ended = queue.poll(each) => ended.unwrap(),
            ended = &mut served => panic!("{ended:?}"),
        };
        all += ended;
        most = most.max(ended);
        tokio::task::yield_now().await;
    }
    // A list of 4096 pages is as much as is looked at in a turn.
    assert!(most <= 2, "{most} of {all} in one turn");
}
