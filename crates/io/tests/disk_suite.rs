//! What every disk must do, run over the simulation, memory, worker threads, and rings.

#[path = "../../mem/tests/skipping/mod.rs"]
mod skipping;
mod suite;

use std::future::Future;
use std::io::ErrorKind;

use forebay_io::files::Directory;
use forebay_io::ring;
use forebay_io::sim::SimDisk;
use forebay_io::{Disk, File, OpenOptions};
use skipping::skip;
use suite::block_on;

/// On worker threads: the thread of the test has no ring.
fn threads<F: Future<Output = ()>>(check: impl FnOnce(Directory) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    block_on(check(disk));
}

fn sim<F: Future<Output = ()>>(check: impl FnOnce(SimDisk) -> F) {
    block_on(check(SimDisk::new(1)));
}

/// In memory, where the system has a place for that; elsewhere once more on threads.
fn memory<F: Future<Output = ()>>(check: impl FnOnce(Directory) -> F) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    block_on(check(disk));
}

/// On a ring, through tables so small that they are always full.
fn small_ring<F: Future<Output = ()>>(check: impl FnOnce(Directory) -> F) {
    on_ring(
        ring::Config {
            entries: 4,
            files: 1,
            buffers: 2,
        },
        check,
    );
}

fn ring<F: Future<Output = ()>>(check: impl FnOnce(Directory) -> F) {
    on_ring(ring::Config::default(), check);
}

fn on_ring<F: Future<Output = ()>>(config: ring::Config, check: impl FnOnce(Directory) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    block_on(async {
        match ring::install(config) {
            Ok(driver) => {
                assert_eq!(forebay_io::backend(), "io_uring");
                let driver = tokio::task::spawn_local(driver);
                check(disk).await;
                driver.abort();
            }
            // Where it is forbidden the same checks ran on threads.
            Err(reason) => skip(&format!("no ring here: {reason}")),
        }
    });
}

macro_rules! over_all {
    ($($check:ident),* $(,)?) => {
        $(mod $check {
            #[test]
            fn over_threads() { super::threads(|disk| super::suite::$check(disk)); }
            #[test]
            fn over_memory() { super::memory(|disk| super::suite::$check(disk)); }
            #[test]
            fn over_the_simulation() { super::sim(|disk| super::suite::$check(disk)); }
            #[test]
            fn over_a_ring() { super::ring(|disk| super::suite::$check(disk)); }
            #[test]
            fn over_a_small_ring() { super::small_ring(|disk| super::suite::$check(disk)); }
        })*
    };
}

/// Made when it is not there, and written.
const MADE: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: true,
};

/// A file belongs to the one who locked it, however often it is open, and not to who keeps it open for longer.
#[test]
fn one_lock_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let [first, second] = [0, 1].map(|_| disk.open("data", MADE).unwrap());
    let held = first.lock().unwrap();
    let refused = second.lock().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    drop(held);
    drop(second.lock().unwrap());
    let held = second.lock().unwrap();
    let refused = first.lock().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    drop(held);
}

/// As a device does for a part of a sector of its own, a file does for no bytes.
#[test]
fn a_place_that_cannot_be_let_go_of_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Directory::open(folder.path()).unwrap();
    let file = disk.open("data", MADE).unwrap();
    let refused = file.punch(0, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

over_all!(
    what_is_written_is_read,
    reads_land_in_a_peers_memory,
    reads_end_with_the_file,
    odd_blocking_io_on_direct_files,
    many_buffers_are_written_to_many_places,
    heap_buffers_can_be_written,
    many_operations_at_once,
    dropped_futures_return_their_buffers,
    errors_come_back_with_the_buffer,
    lengths_and_space,
    a_hole_gives_its_space_back,
    names_and_options,
    one_lock_a_disk,
);
