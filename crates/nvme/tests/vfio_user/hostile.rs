//! Messages of clients that mean ill: each harms at most itself.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_nvme::vfio_user::Ended;
use forebay_proto::vfio_user::{
    Access, DmaMap, IRQ_MSIX, IrqAction, IrqData, MESSAGE_BYTES_MAX, PayloadAccess, REGION_BAR0,
    REGION_CONFIG, Request, SetIrqs,
};

use crate::raw::{NO_FILE, Raw, Refusal};
use crate::support::*;

const EEXIST: Refusal = Refusal::Errno(17);
const EINVAL: Refusal = Refusal::Errno(22);
const ENOENT: Refusal = Refusal::Errno(2);
const ENOSPC: Refusal = Refusal::Errno(28);
const ENOTSUP: Refusal = Refusal::Errno(95);

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
    assert_eq!(raw.take_files().len(), 1);
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
    // What is not memory is closed by a thread of its own.
    let begin = Instant::now();
    while alone::is_alone() && open_files() > before {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "files were left open"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
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
