//! An open file, wherever its bytes lie.

use std::io;

use forebay_mem::{Buf, BufMut, RegionSlice};

use super::file::DiskFile;
use super::memory::MemoryFile;
use crate::{File, Hold};

/// An open file of a [`Directory`](super::Directory), or one of memory.
#[derive(Clone)]
pub enum OpenFile {
    /// Of a directory.
    Disk(DiskFile),
    /// Of memory.
    Memory(MemoryFile),
}

impl OpenFile {
    /// A file of `len` zeroes in memory, which keeps this length and is gone with its last clone.
    ///
    /// # Errors
    /// The system's: there is not so much memory, or `len` is zero.
    pub fn in_memory(len: u64) -> io::Result<OpenFile> {
        MemoryFile::new(len).map(OpenFile::Memory)
    }

    /// Whether aligned I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        match self {
            OpenFile::Disk(file) => file.is_direct(),
            OpenFile::Memory(_) => false,
        }
    }
}

/// The same of either.
macro_rules! of {
    ($self:ident, $file:ident => $call:expr) => {
        match $self {
            OpenFile::Disk($file) => $call,
            OpenFile::Memory($file) => $call,
        }
    };
}

impl File for OpenFile {
    async fn read_at(&self, offset: u64, into: BufMut, len: usize) -> (io::Result<()>, BufMut) {
        of!(self, file => file.read_at(offset, into, len).await)
    }

    async fn read_into(&self, offset: u64, into: RegionSlice, hold: Hold) -> io::Result<usize> {
        of!(self, file => file.read_into(offset, into, hold).await)
    }

    async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        of!(self, file => file.write_at(offset, from).await)
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        of!(self, file => file.read_exact_at(offset, into))
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        of!(self, file => file.write_all_at(offset, from))
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        of!(self, file => file.write_together(places))
    }

    fn sync_data(&self) -> io::Result<()> {
        of!(self, file => file.sync_data())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        of!(self, file => file.allocate(offset, len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        of!(self, file => file.punch(offset, len))
    }

    fn len(&self) -> io::Result<u64> {
        of!(self, file => file.len())
    }

    fn held_bytes(&self) -> io::Result<u64> {
        of!(self, file => file.held_bytes())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        of!(self, file => file.set_len(len))
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        of!(self, file => file.lock())
    }
}
