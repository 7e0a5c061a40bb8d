//! What is special to rings: their life, other threads, counters.

#[path = "../../mem/tests/skipping/mod.rs"]
mod skipping;

use forebay_io::files::Directory;
use forebay_io::ring::{self, Unavailable};
use forebay_io::{Disk, File, OpenOptions, backend, counters, shard};
use forebay_mem::{Buf, PAGE_BYTES, Pool};
use skipping::skip;

const DIRECT: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: true,
};

/// Whether this machine lets us have a ring; where it does not, the checks on threads say all.
fn has_ring() -> bool {
    let shard = shard::spawn(0, "probe", ring::Config::default(), async || backend());
    shard.unwrap().join().unwrap() == "io_uring"
}

#[test]
fn a_ring_needs_a_runtime_and_is_alone_on_its_thread() {
    if !has_ring() {
        return skip("no ring here");
    }
    assert!(matches!(
        ring::install(ring::Config::default()),
        Err(Unavailable::NoRuntime)
    ));
    assert_eq!(backend(), "threads");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let driver = ring::install(ring::Config::default()).unwrap();
        assert_eq!(backend(), "io_uring");
        let second = ring::install(ring::Config::default());
        assert!(matches!(second, Err(Unavailable::Installed)));
        drop(driver);
        assert_eq!(backend(), "threads");
        drop(ring::install(ring::Config::default()).unwrap());
    });
}

#[test]
fn transfers_in_flight_outlive_tasks_and_driver() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let pool = Pool::new(8 << 20);
    let (file, shared) = (disk.open("data", DIRECT).unwrap(), pool.clone());
    let shard = shard::spawn(0, "test", ring::Config::default(), async move || {
        for page in 0..100 {
            let mut buf = shared.take(PAGE_BYTES).await;
            buf.set_len(PAGE_BYTES);
            buf.fill(page as u8);
            let (file, buf) = (file.clone(), buf.freeze());
            tokio::task::spawn_local(async move {
                file.write_at(page * PAGE_BYTES as u64, buf).await.unwrap();
            });
        }
        // All have begun; most have not ended.
        tokio::task::yield_now().await;
    });
    shard.unwrap().join().unwrap();
    if has_ring() {
        assert_eq!(pool.usage().in_use, 0);
    }
}

#[test]
fn a_future_begun_on_one_thread_ends_on_another() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let file = disk.open("data", DIRECT).unwrap();
    let shard = shard::spawn(0, "test", ring::Config::default(), async move || {
        let mut write = Box::pin(async move {
            file.write_at(0, Buf::from(vec![5; PAGE_BYTES]))
                .await
                .unwrap();
            let pool = Pool::new(1 << 20);
            let (result, buf) = file
                .read_at(0, pool.take(PAGE_BYTES).await, PAGE_BYTES)
                .await;
            result.unwrap();
            assert_eq!(&*buf, &[5; PAGE_BYTES]);
        });
        tokio::select! {
            biased;
            () = &mut write => {}
            // Polled once, then sent away.
            () = std::future::ready(()) => {
                let elsewhere = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
                let elsewhere = elsewhere.unwrap();
                elsewhere.spawn(write).await.unwrap();
                elsewhere.shutdown_background();
            }
        }
    });
    shard.unwrap().join().unwrap();
}

#[test]
fn registered_buffers_are_used_and_counted() {
    if !has_ring() {
        return skip("no ring here");
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let before = counters();
    let shard = shard::spawn(0, "test", ring::Config::default(), async move || {
        let file = disk.open("data", DIRECT).unwrap();
        let pool = Pool::new(1 << 20);
        file.write_at(0, Buf::from(vec![1; 2 * PAGE_BYTES]))
            .await
            .unwrap();
        let (result, _) = file.read_at(0, pool.take(8192).await, 8192).await;
        result.unwrap();
    });
    shard.unwrap().join().unwrap();
    let after = counters();
    assert!(after.ring_operations >= before.ring_operations + 2);
    assert!(after.submissions > before.submissions);
    assert!(after.plain_buffer_operations > before.plain_buffer_operations);
    assert!(after.registered_buffer_operations > before.registered_buffer_operations);
    assert!(after.read_bytes >= before.read_bytes + 8192);
    assert!(after.written_bytes >= before.written_bytes + 8192);
}

#[test]
fn completions_that_pile_up_are_all_taken() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let shard = shard::spawn(0, "test", ring::Config::default(), async move || {
        let file = disk.open("data", DIRECT).unwrap();
        file.write_all_at(0, &vec![1; 1 << 20]).unwrap();
        file.sync_data().unwrap();
        let pool = Pool::new(1 << 20);
        for _ in 0..4 {
            let mut reads = Vec::new();
            for page in 0..200 {
                let (file, buf) = (file.clone(), pool.take(PAGE_BYTES).await);
                reads.push(tokio::task::spawn_local(async move {
                    let (result, _) = file
                        .read_at(page * PAGE_BYTES as u64, buf, PAGE_BYTES)
                        .await;
                    result.unwrap();
                }));
            }
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            // The thread is away while they complete.
            let mut block = pool.take(PAGE_BYTES).await;
            block.set_len(PAGE_BYTES);
            for page in 0..200 {
                file.read_exact_at(page * PAGE_BYTES as u64, &mut block)
                    .unwrap();
            }
            for read in reads {
                read.await.unwrap();
            }
        }
    });
    shard.unwrap().join().unwrap();
}

#[test]
fn a_closed_file_is_let_go_by_the_ring() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let shard = shard::spawn(0, "test", ring::Config::default(), async move || {
        let pool = Pool::new(1 << 20);
        // Many more files than places.
        for round in 0..600 {
            let file = disk.open(&format!("data-{}", round % 10), DIRECT).unwrap();
            file.write_at(0, Buf::from(vec![round as u8; PAGE_BYTES]))
                .await
                .unwrap();
            let (result, buf) = file
                .read_at(0, pool.take(PAGE_BYTES).await, PAGE_BYTES)
                .await;
            result.unwrap();
            assert_eq!(&*buf, &[round as u8; PAGE_BYTES]);
        }
    });
    shard.unwrap().join().unwrap();
}

#[test]
fn the_environment_can_forbid_rings() {
    // The environment belongs to all threads: a process of its own.
    if std::env::var_os(ring::BACKEND_VARIABLE).is_some() {
        return assert!(!has_ring());
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_environment_can_forbid_rings"])
        .env(ring::BACKEND_VARIABLE, "threads")
        .status();
    assert!(child.unwrap().success());
}
