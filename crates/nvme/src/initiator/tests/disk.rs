//! A disk whose data file is a namespace of blocks, and targets that go, forget and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_io::{Disk, File, OpenOptions, files::Directory};
use forebay_mem::{Pool, Region};
use forebay_proto::nvme::Status;
use forebay_proto::nvme::opcode::nvm;
use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::super::{NamespaceDisk, NamespaceUrl, Options, Place, Scheme};
use super::fake::{Answer, BLOCK_BYTES, Fake, Manner, SUBNQN};
use super::*;

fn url(fake: &Fake) -> NamespaceUrl {
    NamespaceUrl {
        scheme: Scheme::Block,
        place: Place::Tcp {
            address: address(fake),
            subsystem: SUBNQN.to_owned(),
        },
        nsid: 1,
    }
}

async fn disk(fake: &Fake, directory: &std::path::Path, options: Options) -> NamespaceDisk {
    let local = Directory::open(directory).unwrap();
    NamespaceDisk::connect(local, &url(fake), options, 2)
        .await
        .unwrap()
}

/// A target that forgets what was not synced when it stops, and a disk on it.
async fn volatile(directory: &std::path::Path) -> (Manner, Fake, NamespaceDisk) {
    let volatile = Manner {
        volatile: true,
        ..Manner::default()
    };
    let fake = Fake::start(volatile.clone()).await;
    let disk = disk(&fake, directory, options()).await;
    (volatile, fake, disk)
}

const READ_WRITE: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: true,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_data_file_of_a_disk_is_the_namespace() {
    let directory = tempfile::tempdir().unwrap();
    for mdts in [0, 3] {
        let fake = Fake::start(Manner {
            mdts,
            ..Manner::default()
        })
        .await;
        let disk = disk(&fake, directory.path(), options()).await;
        let file = disk.open("data", READ_WRITE).unwrap();
        let whole = file.len().unwrap();
        assert_eq!(whole, (super::fake::BLOCKS * BLOCK_BYTES) as u64);
        let pool = Pool::new(4 << 20);
        let mut model = vec![0; whole as usize];
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(99);
            (random >> 33) % below
        };
        for turn in 0..150 {
            let aligned = turn % 3 == 0;
            let unit = if aligned { 512 } else { 1 };
            let at = next(400_000) / unit * unit;
            let len = (next(70_000) / unit * unit + unit) as usize;
            let bytes = pattern(len, turn);
            match turn % 2 {
                0 => file.write_at(at, buf(&pool, &bytes).await).await.unwrap(),
                _ => tokio::task::block_in_place(|| file.write_all_at(at, &bytes)).unwrap(),
            }
            model[at as usize..][..len].copy_from_slice(&bytes);
            let at = next(400_000) / unit * unit;
            let len = (next(70_000) / unit * unit + unit) as usize;
            let expected = &model[at as usize..][..len];
            match turn % 3 {
                0 => {
                    let (done, got) = file.read_at(at, pool.take(len).await, len).await;
                    done.unwrap();
                    assert!(got[..] == *expected);
                }
                1 => {
                    let region = Region::anonymous(len.next_multiple_of(4096)).unwrap();
                    let memory = region.slice(0..len).unwrap();
                    let got = file
                        .read_into(at, memory.clone(), Arc::new(()))
                        .await
                        .unwrap();
                    assert_eq!(got, len);
                    let mut seen = vec![0; len];
                    assert!(memory.read(0, &mut seen));
                    assert!(seen == expected);
                }
                _ => {
                    let mut seen = vec![0; len];
                    tokio::task::block_in_place(|| file.read_exact_at(at, &mut seen)).unwrap();
                    assert!(seen == expected);
                }
            }
        }
        tokio::task::block_in_place(|| file.sync_data()).unwrap();
        // At its end it ends.
        let (done, got) = file.read_at(whole - 512, pool.take(4096).await, 4096).await;
        done.unwrap();
        assert_eq!(got.len(), 512);
        let mut over = [0; 513];
        let past = tokio::task::block_in_place(|| file.read_exact_at(whole - 512, &mut over));
        assert_eq!(past.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        let full = file.allocate(whole - 4096, 8192).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let full = file
            .write_at(whole - 512, buf(&pool, &[0; 1024]).await)
            .await
            .unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        // Other files are here.
        let index = disk.open("index", READ_WRITE).unwrap();
        index.write_all_at(0, b"here").unwrap();
        assert!(directory.path().join("index").exists());
        assert!(!directory.path().join("data").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_brings_back_what_a_target_forgot() {
    let directory = tempfile::tempdir().unwrap();
    let (volatile, fake, disk) = volatile(directory.path()).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    let sync = || tokio::task::block_in_place(|| file.sync_data());
    for (at, fill) in [(0, 1), (4096, 2), (0, 3), (8192, 4)] {
        file.write_at(at, buf(&pool, &[fill; 4096]).await)
            .await
            .unwrap();
    }
    sync().unwrap();
    for (at, fill) in [(4096, 5), (12288, 6), (4096, 7)] {
        file.write_at(at, buf(&pool, &[fill; 4096]).await)
            .await
            .unwrap();
    }
    let address = fake.address;
    let kept = fake.stop().await;
    assert_eq!(kept.blocks.lock()[4096], 2, "it forgot");
    let fake = Fake::start_at(address, volatile, Some(kept)).await;
    file.write_at(16384, buf(&pool, &[8; 4096]).await)
        .await
        .unwrap();
    sync().unwrap();
    let stable = fake.shared.stable.lock();
    let seen: Vec<u8> = (0..5).map(|page| stable[page * 4096]).collect();
    assert_eq!(seen, [3, 7, 4, 6, 8]);
}

/// What is changed in part is what was written, not what the target has left of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_a_target_forgot_is_whole_when_a_part_of_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let (volatile, fake, disk) = volatile(directory.path()).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    file.write_at(0, buf(&pool, &[1; BLOCK_BYTES]).await)
        .await
        .unwrap();
    let address = fake.address;
    let kept = fake.stop().await;
    let fake = Fake::start_at(address, volatile, Some(kept)).await;
    file.write_at(100, buf(&pool, &[2; 10]).await)
        .await
        .unwrap();
    tokio::task::block_in_place(|| file.sync_data()).unwrap();
    let mut whole = [1; BLOCK_BYTES];
    whole[100..110].fill(2);
    assert_eq!(fake.shared.stable.lock()[..BLOCK_BYTES], whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_disk_fail_and_writes_wait_while_the_target_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let impatient = Options {
        patience: Some(Duration::from_millis(100)),
        ..options()
    };
    let fake = Fake::start(Manner::default()).await;
    let disk = disk(&fake, directory.path(), impatient).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    file.write_at(0, buf(&pool, &[1; 4096]).await)
        .await
        .unwrap();
    let address = fake.address;
    let kept = fake.stop().await;
    let (done, _) = file.read_at(0, pool.take(4096).await, 4096).await;
    assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let mut write = Box::pin(file.write_at(0, buf(&pool, &[2; 4096]).await));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut write).await;
    assert!(waits.is_err());
    let _fake = Fake::start_at(address, Manner::default(), Some(kept)).await;
    write.await.unwrap();
    let (done, got) = file.read_at(0, pool.take(4096).await, 4096).await;
    done.unwrap();
    assert_eq!(got[..], [2; 4096]);
}

/// Writes wait without an end, and have all places of the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_disk_fail_behind_writes_that_wait() {
    let directory = tempfile::tempdir().unwrap();
    let impatient = Options {
        patience: Some(Duration::from_millis(100)),
        depth: 4,
        ..options()
    };
    let fake = Fake::start(Manner::default()).await;
    let disk = disk(&fake, directory.path(), impatient).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    let address = fake.address;
    let kept = fake.stop().await;
    disk.namespace().controller().disconnected().await;
    let mut writes = Vec::new();
    for page in 0..8 {
        let write = file.write_at(page * 4096, buf(&pool, &[2; 4096]).await);
        let mut write = Box::pin(write);
        assert!(poll_once(write.as_mut()).is_pending());
        writes.push(write);
    }
    let read = file.read_at(0, pool.take(4096).await, 4096);
    let ended = tokio::time::timeout(Duration::from_secs(20), read).await;
    let (done, _) = ended.expect("an end");
    assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let fake = Fake::start_at(address, Manner::default(), Some(kept)).await;
    for written in join_all(writes).await {
        written.unwrap();
    }
    assert_eq!(fake.shared.blocks.lock()[..8 * 4096], [2; 8 * 4096]);
}

/// Whoever writes a journal could not go on after a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_syncs_of_a_disk_outlive_any_number_of_connections() {
    let directory = tempfile::tempdir().unwrap();
    for opcode in [nvm::WRITE, nvm::FLUSH, nvm::READ] {
        let lost = Arc::new(AtomicUsize::new(0));
        let count = lost.clone();
        let manner = Manner::default().conduct(move |entry| {
            if entry.opcode() == opcode && count.fetch_add(1, SeqCst) < 20 {
                return Answer::Close;
            }
            Answer::Proper
        });
        let fake = Fake::start(manner).await;
        let disk = disk(&fake, directory.path(), options()).await;
        let file = disk.open("data", READ_WRITE).unwrap();
        let pool = Pool::new(4 << 20);
        // A part of a block is read first.
        file.write_at(0, buf(&pool, &[1; 10]).await).await.unwrap();
        tokio::task::block_in_place(|| file.sync_data()).unwrap();
        assert!(lost.load(SeqCst) > 20);
        assert_eq!(fake.shared.stable.lock()[..10], [1; 10]);
    }
}

/// A target that answers the first `count` commands of this opcode with a status.
fn failing(opcode: u8, status: Status, count: usize) -> Manner {
    let left = AtomicUsize::new(count);
    Manner::default().conduct(move |entry| {
        let fails = entry.opcode() == opcode
            && left
                .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
                .is_ok();
        match fails {
            true => Answer::Fail(status),
            false => Answer::Proper,
        }
    })
}

/// As that of a journal, which has no runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_any_thread_outlive_that_a_target_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    for opcode in [nvm::WRITE, nvm::FLUSH, nvm::READ] {
        let fake = Fake::start(failing(opcode, Status::NAMESPACE_NOT_READY, 1)).await;
        let disk = disk(&fake, directory.path(), options()).await;
        let file = disk.open("data", READ_WRITE).unwrap();
        let pool = Pool::new(4 << 20);
        let places = vec![(0, vec![buf(&pool, &[1; 4096]).await])];
        let thread = std::thread::spawn(move || {
            file.write_together(places)?;
            file.write_all_at(4096, &[2; 10])?;
            file.sync_data()?;
            let mut seen = [0; 10];
            file.read_exact_at(4096, &mut seen)?;
            Ok::<_, std::io::Error>(seen)
        });
        let seen = tokio::task::block_in_place(|| thread.join());
        assert_eq!(seen.unwrap().unwrap(), [2; 10]);
        assert_eq!(fake.shared.stable.lock()[..4096], [1; 4096]);
    }
}

/// As that of a journal, which has no runtime: it waits for a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_any_thread_fails_behind_writes_that_wait() {
    let directory = tempfile::tempdir().unwrap();
    let impatient = Options {
        patience: Some(Duration::from_millis(100)),
        depth: 1,
        ..options()
    };
    let fake = Fake::start(Manner::default()).await;
    let disk = disk(&fake, directory.path(), impatient).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    fake.stop().await;
    disk.namespace().controller().disconnected().await;
    let page = buf(&pool, &[1; 4096]).await;
    let thread = std::thread::spawn(move || {
        let mut write = Box::pin(file.write_at(0, page));
        assert!(poll_once(write.as_mut()).is_pending());
        file.read_exact_at(0, &mut [0; 512])
    });
    let read = tokio::task::block_in_place(|| thread.join()).unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

/// As of a target whose way to its disks is another one for a while, or that ends what it has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_syncs_of_a_disk_wait_for_a_target_that_says_that_it_cannot() {
    let directory = tempfile::tempdir().unwrap();
    for (opcode, status) in [
        (nvm::WRITE, Status::ASYMMETRIC_ACCESS_TRANSITION),
        (nvm::FLUSH, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
        (nvm::READ, Status::INTERNAL_PATH_ERROR),
        (nvm::WRITE, Status::ABORT_REQUESTED),
        (nvm::FLUSH, Status::ABORTED_SQ_DELETION),
        (nvm::WRITE, Status::TRANSIENT_TRANSPORT_ERROR),
    ] {
        let fake = Fake::start(failing(opcode, status, 20)).await;
        let impatient = Options {
            patience: Some(Duration::ZERO),
            ..options()
        };
        let disk = disk(&fake, directory.path(), impatient).await;
        let file = disk.open("data", READ_WRITE).unwrap();
        let pool = Pool::new(4 << 20);
        // A part of a block is read first.
        file.write_at(0, buf(&pool, &[1; 10]).await).await.unwrap();
        tokio::task::block_in_place(|| file.sync_data()).unwrap();
        assert_eq!(fake.shared.stable.lock()[..10], [1; 10], "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_disk_fail_when_a_target_cannot_for_longer_than_they_wait() {
    let directory = tempfile::tempdir().unwrap();
    let away = Status::ASYMMETRIC_ACCESS_INACCESSIBLE;
    let fake = Fake::start(failing(nvm::READ, away, usize::MAX)).await;
    let impatient = Options {
        patience: Some(Duration::from_millis(100)),
        ..options()
    };
    let disk = disk(&fake, directory.path(), impatient).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(4 << 20);
    let (done, _) = file.read_at(0, pool.take(4096).await, 4096).await;
    assert!(done.unwrap_err().to_string().contains("(3h/02h)"));
}

/// Such a status says that waiting is in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_disk_fail_when_a_target_will_not_be_able_to() {
    let directory = tempfile::tempdir().unwrap();
    for status in [
        Status::ASYMMETRIC_ACCESS_TRANSITION.with_do_not_retry(),
        Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS,
        Status::LBA_OUT_OF_RANGE,
    ] {
        let fake = Fake::start(failing(nvm::WRITE, status, usize::MAX)).await;
        let disk = disk(&fake, directory.path(), options()).await;
        let file = disk.open("data", READ_WRITE).unwrap();
        let pool = Pool::new(4 << 20);
        let write = file.write_at(0, buf(&pool, &[1; 4096]).await);
        assert!(write.await.is_err(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_synced_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let flushes = Arc::new(AtomicUsize::new(0));
    let count = flushes.clone();
    let manner = Manner {
        volatile: true,
        ..Manner::default()
    };
    let manner = manner.conduct(move |entry| {
        if entry.opcode() == nvm::FLUSH {
            count.fetch_add(1, SeqCst);
        }
        Answer::Proper
    });
    let fake = Fake::start(manner).await;
    let disk = disk(&fake, directory.path(), options()).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(16 << 20);
    for turn in 0..24 {
        let at = (turn % 8) << 20;
        file.write_at(at, buf(&pool, &[1; 1 << 20]).await)
            .await
            .unwrap();
    }
    assert!(flushes.load(SeqCst) >= 2);
    assert!(pool.usage().in_use <= 9 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_calls_may_be_made_where_a_runtime_counts_turns() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::start(Manner::default()).await;
    let disk = disk(&fake, directory.path(), options()).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    for turn in 0..300 {
        file.write_all_at(turn * 512, &[turn as u8; 512]).unwrap();
    }
    file.sync_data().unwrap();
    let mut seen = [0; 512];
    file.read_exact_at(299 * 512, &mut seen).unwrap();
    assert_eq!(seen, [299u64 as u8; 512]);
}

/// More reads at once than there are buffers, each of more than a command moves: none holds a buffer while it waits for another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_that_take_several_commands_each_come_to_their_ends() {
    const BYTES: usize = 300_000;
    let directory = tempfile::tempdir().unwrap();
    let fake = Fake::start(Manner {
        mdts: 6,
        ..Manner::default()
    })
    .await;
    let disk = disk(&fake, directory.path(), options()).await;
    let file = disk.open("data", READ_WRITE).unwrap();
    let pool = Pool::new(64 << 20);
    let bytes = pattern(BYTES, 5);
    file.write_at(512, buf(&pool, &bytes).await).await.unwrap();
    let mut reads = JoinSet::new();
    for _ in 0..80 {
        let (file, pool) = (file.clone(), pool.clone());
        reads.spawn(async move {
            let (done, got) = file.read_at(512, pool.take(BYTES).await, BYTES).await;
            done.unwrap();
            got.to_vec()
        });
    }
    let ended = tokio::time::timeout(Duration::from_secs(40), reads.join_all());
    assert!(ended.await.unwrap().iter().all(|got| *got == bytes));
}
