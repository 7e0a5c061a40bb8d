//! A directory of files, or devices, as the engine needs it.

use std::any::Any;
use std::future::Future;
use std::io;
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, RegionSlice};

/// Something that is kept until it is dropped, and never looked at.
pub type Hold = Arc<dyn Any + Send + Sync>;

/// How to open a [`File`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make the file when it is missing.
    pub create: bool,
    /// Refuse writes; works on a directory that is read-only.
    pub read_only: bool,
    /// Bypass the page cache (`O_DIRECT`) where the file system can: offsets, lengths and addresses of asynchronous
    /// I/O are then multiples of `forebay_mem::PAGE_BYTES`.
    pub direct: bool,
}

/// A place that holds named files.
pub trait Disk: Send + Sync + 'static {
    /// Its files.
    type File: File;

    /// Opens `name`, which contains no `/`.
    fn open(&self, name: &str, options: OpenOptions) -> io::Result<Self::File>;

    /// Whether `name` exists.
    fn exists(&self, name: &str) -> io::Result<bool>;

    /// Makes creations and removals durable (fsync of the directory).
    fn sync(&self) -> io::Result<()>;

    /// Bytes that new files may still take.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Takes the directory for this process until the value is dropped; `WouldBlock` when another holds it.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
}

/// One open file. Cloning shares it.
#[expect(
    clippy::len_without_is_empty,
    reason = "a length that is asked for and may fail"
)]
pub trait File: Clone + Send + Sync + 'static {
    /// Reads at `offset` until the buffer's first `len` bytes are filled (setting its length) or the file ends.
    /// The buffer comes back with whatever was read.
    fn read_at(
        &self,
        offset: u64,
        into: BufMut,
        len: usize,
    ) -> impl Future<Output = (io::Result<()>, BufMut)> + Send;

    /// Reads at `offset` into memory that a peer may also touch, until `into` is filled or the file ends; tells how many bytes
    /// came. Pages of a direct file land there without a copy when address, length and offset are those of whole pages. `hold` is
    /// dropped when the device is done, also where the future went before: what may not be overwritten until then hangs on it.
    fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Writes all of `from` at `offset`, or fails.
    fn write_at(&self, offset: u64, from: Buf) -> impl Future<Output = io::Result<()>> + Send;

    /// Blocking read of exactly `into`; `UnexpectedEof` past the end. Any alignment, also on a direct file.
    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Blocking write of all of `from`. Any alignment, also on a direct file; aligned callers pay no copy.
    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Blocking write to several places, of buffers one after the other to each, in any order or at the same time. Any alignment.
    /// When it ends, nothing is on its way any more; after a failure some of it may have been written.
    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()>;

    /// Blocking: makes all completed writes durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;

    /// Blocking: takes space for `offset..offset + len` (fallocate), extending the file.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Blocking: lets go of the space of `offset..offset + len`, which reads as zero afterwards; the length stays.
    ///
    /// # Errors
    /// `Unsupported` when this file cannot, or not in this place (nothing changed): a device may have larger sectors.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The file's length in bytes (a device's size).
    fn len(&self) -> io::Result<u64>;

    /// The bytes of space that the file has: fewer than its length where it has holes, as far as can be told.
    fn held_bytes(&self) -> io::Result<u64>;

    /// Blocking: cuts or extends the file; new bytes read as zero.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Takes the file for this process until the value is dropped; should the process end before, then until the last direct transfer
    /// that it began has ended, where the system keeps those apart from the process. `WouldBlock` when another has it.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
}
