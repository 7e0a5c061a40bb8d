//! The store's conformance suite over the engine, on a simulated disk whose segments fill quickly and on a real directory.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_io::Clock;
use forebay_io::files::Directory;
use forebay_io::sim::SimDisk;
use forebay_store::suite::TestClock;
use support::{config, open};
use tempfile::TempDir;

#[derive(Debug)]
struct Told(TestClock);

impl Clock for Told {
    fn unix_millis(&self) -> u64 {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.now())
    }
}

async fn simulated(clock: TestClock) -> (Engine<SimDisk>, ()) {
    (open(&SimDisk::new(1), Arc::new(Told(clock)), config()), ())
}

async fn real(clock: TestClock) -> (Engine<Directory>, TempDir) {
    let temp = tempfile::tempdir().unwrap();
    let disk = Directory::open(temp.path()).unwrap();
    (open(&disk, Arc::new(Told(clock)), config()), temp)
}

mod simulated_disk {
    forebay_store::conformance!(forebay_store::suite::Suite::new(super::simulated));
}

mod real_directory {
    forebay_store::conformance!(forebay_store::suite::Suite::new(super::real).with_cases(12));
}
