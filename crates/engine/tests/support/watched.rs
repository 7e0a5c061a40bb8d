//! A simulated disk that says what is done to it before that is done.

use std::future::Future;
use std::io;
use std::sync::Arc;

use forebay_io::sim::SimDisk;
use forebay_io::{Disk, File, Hold, OpenOptions};
use forebay_mem::{Buf, BufMut, RegionSlice};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Some of the index is read.
    ReadIndex,
    /// It is asked what is free.
    FreeBytes,
}

/// Whoever is told, and may be in the way of what lands.
pub trait Watcher: Clone + Send + Sync + 'static {
    /// That is about to be done, on this thread.
    fn sees(&self, _: Touch) {}

    /// Some of a file is about to be read into a client's memory.
    fn lands(
        &self,
        read: impl Future<Output = io::Result<usize>> + Send,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        read
    }
}

type Watch = Arc<dyn Fn(Touch) + Send + Sync>;

impl Watcher for Watch {
    fn sees(&self, touch: Touch) {
        self(touch);
    }
}

#[derive(Clone)]
pub struct Watched<W = Watch> {
    disk: SimDisk,
    watcher: W,
}

impl Watched {
    /// Calls `watch` on the thread that is about to do it.
    pub fn new(disk: SimDisk, watch: impl Fn(Touch) + Send + Sync + 'static) -> Watched {
        let watcher = Arc::new(watch);
        Watched { disk, watcher }
    }
}

impl<W: Watcher> Watched<W> {
    pub fn by(disk: SimDisk, watcher: W) -> Watched<W> {
        Watched { disk, watcher }
    }
}

impl<W: Watcher> Disk for Watched<W> {
    type File = WatchedFile<W>;

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<WatchedFile<W>> {
        Ok(WatchedFile {
            file: self.disk.open(name, options)?,
            is_index: name == "index",
            watcher: self.watcher.clone(),
        })
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.disk.exists(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.watcher.sees(Touch::FreeBytes);
        self.disk.free_bytes()
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.disk.lock()
    }
}

#[derive(Clone)]
pub struct WatchedFile<W> {
    file: <SimDisk as Disk>::File,
    is_index: bool,
    watcher: W,
}

impl<W: Watcher> WatchedFile<W> {
    fn reads(&self) {
        if self.is_index {
            self.watcher.sees(Touch::ReadIndex);
        }
    }
}

impl<W: Watcher> File for WatchedFile<W> {
    fn read_at(
        &self,
        offset: u64,
        into: BufMut,
        len: usize,
    ) -> impl Future<Output = (io::Result<()>, BufMut)> + Send {
        self.reads();
        self.file.read_at(offset, into, len)
    }

    fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        self.reads();
        self.watcher.lands(self.file.read_into(offset, into, hold))
    }

    fn write_at(&self, offset: u64, from: Buf) -> impl Future<Output = io::Result<()>> + Send {
        self.file.write_at(offset, from)
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads();
        self.file.read_exact_at(offset, into)
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(offset, from)
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        self.file.write_together(places)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn held_bytes(&self) -> io::Result<u64> {
        self.file.held_bytes()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.file.lock()
    }
}
