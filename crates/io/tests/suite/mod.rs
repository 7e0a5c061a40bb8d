//! The checks, through the public door alone.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use forebay_io::{Disk, File, OpenOptions};
use forebay_mem::{Buf, PAGE_BYTES, Pool, Region};

use crate::skipping::skip;

const DIRECT: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: true,
};
const PAGE: u64 = PAGE_BYTES as u64;

/// Runs on a thread of its own kind: one runtime, local tasks.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// `len` bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at / 97 + at + seed * 31) as u8)
        .collect()
}

async fn filled(pool: &Pool, bytes: &[u8]) -> Buf {
    let mut buf = pool.take(bytes.len()).await;
    buf.set_len(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}

pub async fn what_is_written_is_read<D: Disk>(disk: D) {
    let pool = Pool::new(8 << 20);
    let file = disk.open("data", DIRECT).unwrap();
    for (index, len) in [PAGE_BYTES, 16 * PAGE_BYTES, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let offset = index as u64 * (2 << 20);
        let bytes = pattern(index as u64, len);
        file.write_at(offset, filled(&pool, &bytes).await)
            .await
            .unwrap();
        let (result, buf) = file.read_at(offset, pool.take(len).await, len).await;
        result.unwrap();
        assert_eq!(&*buf, &bytes[..]);
        // A part of a block, from its middle.
        let slice = filled(&pool, &bytes).await.slice(len - PAGE_BYTES..len);
        file.write_at(offset, slice).await.unwrap();
        let (result, buf) = file.read_at(offset, buf, PAGE_BYTES).await;
        result.unwrap();
        assert_eq!(&*buf, &bytes[len - PAGE_BYTES..]);
    }
    file.sync_data().unwrap();
    disk.sync().unwrap();
    assert_eq!(pool.usage().in_use, 0);
}

pub async fn reads_land_in_a_peers_memory<D: Disk>(disk: D) {
    let file = disk.open("data", DIRECT).unwrap();
    let bytes = pattern(5, 600_000);
    file.write_all_at(0, &bytes).unwrap();
    let region = Region::anonymous(2 << 20).unwrap();
    let seen = |range: std::ops::Range<usize>| {
        let mut copy = vec![0; range.len()];
        assert!(region.slice(range).unwrap().read(0, &mut copy));
        copy
    };
    // Whole pages, a page in the middle, and more than there is.
    for (offset, at, len) in [
        (0, 0, 512 << 10),
        (PAGE, 700 << 10, PAGE_BYTES),
        (512 << 10, 1 << 20, 512 << 10),
    ] {
        let there = bytes.len().min(offset as usize + len) - offset as usize;
        let into = region.slice(at..at + len).unwrap();
        assert_eq!(
            file.read_into(offset, into, Arc::new(())).await.unwrap(),
            there
        );
        assert_eq!(
            seen(at..at + there),
            &bytes[offset as usize..offset as usize + there]
        );
    }
    // Nothing landed elsewhere.
    assert!(seen((512 << 10)..(700 << 10)).iter().all(|byte| *byte == 0));
    let past = region.slice(0..PAGE_BYTES).unwrap();
    assert_eq!(
        file.read_into(1 << 20, past, Arc::new(())).await.unwrap(),
        0
    );
    let far = region.slice(0..PAGE_BYTES).unwrap();
    assert!(
        file.read_into(u64::MAX - 1, far, Arc::new(()))
            .await
            .is_err()
    );
}

pub async fn reads_end_with_the_file<D: Disk>(disk: D) {
    let pool = Pool::new(1 << 20);
    let file = disk.open("data", DIRECT).unwrap();
    for len in [0, 1, 511, 512, 4095, 4096, 4097, 5000, 8192, 9000] {
        let bytes = pattern(3, len);
        file.set_len(0).unwrap();
        file.write_all_at(0, &bytes).unwrap();
        let (result, buf) = file.read_at(0, pool.take(16384).await, 16384).await;
        result.unwrap();
        assert_eq!(&*buf, &bytes[..], "file of {len} bytes");
        let (result, buf) = file.read_at(16384, buf, 4096).await;
        result.unwrap();
        assert_eq!(buf.len(), 0);
    }
    let (result, buf) = file.read_at(0, pool.take(1).await, 0).await;
    result.unwrap();
    assert_eq!(buf.len(), 0);
}

pub async fn odd_blocking_io_on_direct_files<D: Disk>(disk: D) {
    let pool = Pool::new(4 << 20);
    let file = disk.open("data", DIRECT).unwrap();
    let mut model = vec![0; 64 << 10];
    file.write_all_at(0, &model).unwrap();
    for (index, (offset, len)) in [
        (1, 1),
        (511, 2),
        (4095, 4098),
        (8192, 4096),
        (100, 20000),
        (65535, 1),
    ]
    .iter()
    .enumerate()
    {
        let bytes = pattern(index as u64, *len);
        file.write_all_at(*offset as u64, &bytes).unwrap();
        model[*offset..offset + len].copy_from_slice(&bytes);
        // What went one way is seen the other way.
        let (result, buf) = file.read_at(0, pool.take(64 << 10).await, 64 << 10).await;
        result.unwrap();
        assert_eq!(&*buf, &model[..]);
        let aligned = pattern(index as u64 + 9, PAGE_BYTES);
        file.write_at(4 * PAGE, filled(&pool, &aligned).await)
            .await
            .unwrap();
        model[4 * PAGE_BYTES..5 * PAGE_BYTES].copy_from_slice(&aligned);
        let mut odd = vec![0; 30001];
        file.read_exact_at(77, &mut odd).unwrap();
        assert_eq!(odd, &model[77..77 + 30001]);
    }
    assert_eq!(file.len().unwrap(), 64 << 10);
    file.write_all_at(64 << 10, b"tail").unwrap();
    assert_eq!(file.len().unwrap(), (64 << 10) + 4);
    let mut tail = [0; 4];
    file.read_exact_at(64 << 10, &mut tail).unwrap();
    assert_eq!(&tail, b"tail");
    let past = file.read_exact_at(64 << 10, &mut [0; 5]).unwrap_err();
    assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
    let mut block = pool.take(8192).await;
    block.set_len(8192);
    let past = file.read_exact_at(60 << 10, &mut block).unwrap_err();
    assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
}

pub async fn many_buffers_are_written_to_many_places<D: Disk>(disk: D) {
    let pool = Pool::new(16 << 20);
    let file = disk.open("file", DIRECT).unwrap();
    let mut bufs = Vec::new();
    for seed in 0..1500 {
        bufs.push(match seed % 700 {
            // Heap memory that ends inside a page, and none: what follows is not aligned.
            698 => Buf::from(pattern(seed, 5)),
            699 => Buf::from(Vec::new()),
            _ => filled(&pool, &pattern(seed, PAGE_BYTES)).await,
        });
    }
    let places = |counts: &[std::ops::Range<usize>]| -> Vec<(u64, Vec<Buf>)> {
        let bufs = counts.iter().map(|count| bufs[count.clone()].to_vec());
        let at = |place| (1 + 2000 * place as u64) * PAGE;
        bufs.enumerate()
            .map(|(place, bufs)| (at(place), bufs))
            .collect()
    };
    let many: Vec<_> = (0..40).map(|first| first..first + 3).collect();
    for counts in [
        std::slice::from_ref(&(0..1500)),
        std::slice::from_ref(&(1..40)),
        &[699..701, 0..1],
        &[0..0, 1..698, 2..3, 0..0],
        &many,
        &[],
    ] {
        let places = places(counts);
        file.write_together(places.clone()).unwrap();
        for (offset, bufs) in places {
            let whole: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
            let mut read = vec![0; whole.len()];
            file.read_exact_at(offset, &mut read).unwrap();
            assert!(read == whole);
        }
    }
    let read_only = OpenOptions {
        create: false,
        read_only: true,
        ..DIRECT
    };
    let file = disk.open("file", read_only).unwrap();
    assert!(file.write_together(places(&[0..1, 1..2])).is_err());
}

pub async fn heap_buffers_can_be_written<D: Disk>(disk: D) {
    let pool = Pool::new(1 << 20);
    let file = disk.open("data", DIRECT).unwrap();
    let bytes = pattern(5, 3 * PAGE_BYTES);
    file.write_at(PAGE, Buf::from(bytes.clone())).await.unwrap();
    let (result, buf) = file
        .read_at(PAGE, pool.take(bytes.len()).await, bytes.len())
        .await;
    result.unwrap();
    assert_eq!(&*buf, &bytes[..]);
}

pub async fn many_operations_at_once<D: Disk>(disk: D) {
    const WRITERS: u64 = 64;
    const ROUNDS: u64 = 8;
    // Less memory than operations: some wait for the buffers of others.
    let pool = Pool::new(1 << 20);
    let files = [
        disk.open("a", DIRECT).unwrap(),
        disk.open("b", DIRECT).unwrap(),
    ];
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let (pool, file) = (pool.clone(), files[writer as usize % 2].clone());
        tasks.push(tokio::task::spawn_local(async move {
            for round in 0..ROUNDS {
                let offset = (writer * ROUNDS + round) * 8 * PAGE;
                let bytes = pattern(writer * ROUNDS + round, 8 * PAGE_BYTES);
                let buf = filled(&pool, &bytes).await;
                file.write_at(offset, buf).await.unwrap();
                let buf = pool.take(bytes.len()).await;
                let (result, buf) = file.read_at(offset, buf, bytes.len()).await;
                result.unwrap();
                assert_eq!(&*buf, &bytes[..]);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pool.usage().in_use, 0);
}

pub async fn dropped_futures_return_their_buffers<D: Disk>(disk: D) {
    let pool = Pool::new(2 << 20);
    let file = disk.open("data", DIRECT).unwrap();
    let bytes = pattern(1, 1 << 20);
    file.write_at(0, filled(&pool, &bytes).await).await.unwrap();
    for round in 0..32 {
        let mut context = Context::from_waker(Waker::noop());
        {
            let read = pin!(file.read_at(0, pool.take(1 << 20).await, 1 << 20));
            drop(pin!(read).poll(&mut context));
            let write = file.write_at(2 << 20, filled(&pool, &bytes[..PAGE_BYTES]).await);
            drop(pin!(write).poll(&mut context));
            // Never polled: never begun.
            if round % 2 == 0 {
                drop(file.write_at(4 << 20, filled(&pool, &bytes[..PAGE_BYTES]).await));
            }
        }
        // All memory comes back, or this waits for ever.
        let first = pool.take(1 << 20).await;
        let second = pool.take(1 << 20).await;
        drop((first, second));
    }
    assert_eq!(pool.usage().in_use, 0);
}

pub async fn errors_come_back_with_the_buffer<D: Disk>(disk: D) {
    let pool = Pool::new(1 << 20);
    drop(disk.open("data", DIRECT).unwrap());
    let reader = OpenOptions {
        create: false,
        read_only: true,
        direct: true,
    };
    let file = disk.open("data", reader).unwrap();
    let bytes = pattern(1, PAGE_BYTES);
    file.write_at(0, filled(&pool, &bytes).await)
        .await
        .unwrap_err();
    file.write_all_at(0, &bytes).unwrap_err();
    let (result, buf) = file.read_at(0, pool.take(PAGE_BYTES).await, 1 << 30).await;
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let (result, buf) = file.read_at(u64::MAX - 1, buf, PAGE_BYTES).await;
    result.unwrap_err();
    drop(buf);
    assert_eq!(pool.usage().in_use, 0);
}

pub async fn lengths_and_space<D: Disk>(disk: D) {
    let file = disk.open("data", DIRECT).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    let free = disk.free_bytes().unwrap();
    assert!(free > 0);
    file.allocate(0, 1 << 20).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    file.allocate(4096, 4096).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    let mut bytes = [1; 100];
    file.read_exact_at(1000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 100]);
    file.write_all_at(0, &[7; 10000]).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(10000).unwrap();
    let mut bytes = [1; 10000];
    file.read_exact_at(0, &mut bytes).unwrap();
    assert!(bytes[..5000].iter().all(|byte| *byte == 7));
    assert!(bytes[5000..].iter().all(|byte| *byte == 0));
    file.sync_data().unwrap();
}

pub async fn a_hole_gives_its_space_back<D: Disk>(disk: D) {
    const HOLE: std::ops::Range<usize> = 1 << 20..3 << 20;
    let file = disk.open("data", DIRECT).unwrap();
    file.allocate(0, 4 << 20).unwrap();
    let mut bytes = pattern(1, 4 << 20);
    file.write_all_at(0, &bytes).unwrap();
    file.sync_data().unwrap();
    let held = file.held_bytes().unwrap();
    assert!(held >= 4 << 20, "{held}");
    match file.punch(HOLE.start as u64, HOLE.len() as u64) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            return skip("the file system makes no holes");
        }
        Err(error) => panic!("{error}"),
    }
    assert!(held - file.held_bytes().unwrap() >= HOLE.len() as u64);
    assert_eq!(file.len().unwrap(), 4 << 20);
    bytes[HOLE].fill(0);
    let mut read = vec![1; 4 << 20];
    file.read_exact_at(0, &mut read).unwrap();
    assert!(read == bytes);
    file.allocate(HOLE.start as u64, HOLE.len() as u64).unwrap();
    assert!(file.held_bytes().unwrap() >= 4 << 20);
    file.read_exact_at(0, &mut read).unwrap();
    assert!(read == bytes);
}

pub async fn names_and_options<D: Disk>(disk: D) {
    let missing = OpenOptions {
        create: false,
        read_only: false,
        direct: false,
    };
    assert!(!disk.exists("data").unwrap());
    let error = disk.open("data", missing).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let file = disk.open("data", DIRECT).unwrap();
    file.write_all_at(0, b"kept").unwrap();
    assert!(disk.exists("data").unwrap());
    // Opening again, with or without `create`, finds the same bytes.
    for options in [
        missing,
        DIRECT,
        OpenOptions {
            read_only: true,
            ..DIRECT
        },
    ] {
        let mut bytes = [0; 4];
        disk.open("data", options)
            .unwrap()
            .read_exact_at(0, &mut bytes)
            .unwrap();
        assert_eq!(&bytes, b"kept");
    }
    for name in ["", ".", "..", "a/b", "../data", "nul\0"] {
        let error = disk.open(name, DIRECT).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
    }
}

pub async fn one_lock_a_disk<D: Disk>(disk: D) {
    let held = disk.lock().unwrap();
    assert_eq!(disk.lock().err().unwrap().kind(), io::ErrorKind::WouldBlock);
    drop(held);
    drop(disk.lock().unwrap());
}
