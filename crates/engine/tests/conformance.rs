//! The store's conformance suite over the engine, on a simulated disk whose segments fill quickly and on a real directory.

mod support;

use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use forebay_engine::Engine;
use forebay_io::files::Directory;
use forebay_io::sim::SimDisk;
use forebay_io::{Clock, Disk};
use forebay_mem::Pool;
use forebay_store::suite::TestClock;
use support::{check_space, config};
use tempfile::TempDir;
use tokio::runtime::Builder;

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

/// Looks, when a store has gone, for what it left behind: space that nothing refers to, buffers, open files.
struct Ending<D: Disk + Clone> {
    engine: Option<Engine<D>>,
    pool: Pool,
    directory: Option<TempDir>,
}

impl<D: Disk + Clone> Ending<D> {
    fn begin(disk: &D, clock: TestClock, directory: Option<TempDir>) -> (Engine<D>, Ending<D>) {
        let pool = Pool::new(64 << 20);
        let clock = Arc::new(Told(clock));
        let engine = Engine::open(disk.clone(), clock, pool.clone(), config()).unwrap();
        let ending = Ending {
            engine: Some(engine.clone()),
            pool,
            directory,
        };
        (engine, ending)
    }
}

impl<D: Disk + Clone> Drop for Ending<D> {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take().filter(|_| !thread::panicking()) else {
            return;
        };
        // What drops this has a runtime of its own, which cannot wait here for another future.
        let checked = thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(check_space(&engine));
        });
        checked.join().unwrap();
        assert_eq!(self.pool.usage().in_use, 0);
        if let Some(directory) = &self.directory {
            let open = fs::read_dir("/proc/self/fd").unwrap();
            let open = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
            let left: Vec<_> = open.filter(|path| path.starts_with(directory)).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

async fn simulated(clock: TestClock) -> (Engine<SimDisk>, Ending<SimDisk>) {
    Ending::begin(&SimDisk::new(1), clock, None)
}

async fn real(clock: TestClock) -> (Engine<Directory>, Ending<Directory>) {
    let directory = tempfile::tempdir().unwrap();
    let disk = Directory::open(directory.path()).unwrap();
    Ending::begin(&disk, clock, Some(directory))
}

mod simulated_disk {
    forebay_store::conformance!(forebay_store::suite::Suite::new(super::simulated));
}

mod real_directory {
    forebay_store::conformance!(forebay_store::suite::Suite::new(super::real).with_cases(12));
}
