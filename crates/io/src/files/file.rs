//! One open file and its descriptors.

use std::fs;
use std::future::Future;
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_mem::{Buf, BufMut, PAGE_BYTES, RegionSlice};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::{Errno, pwritev};
use tokio::sync::oneshot;

use super::at_once;
use super::transfer::Transfer;
use super::workers::Workers;
use crate::counters::cells;
use crate::ring::{self, together::PIECES_MAX};
use crate::{File, Hold};

/// Names one descriptor for the life of the process; never reused, unlike the descriptor's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HandleId(u64);

/// One descriptor.
pub(crate) struct Handle {
    pub(crate) id: HandleId,
    pub(crate) file: fs::File,
    pub(crate) direct: bool,
}

impl Handle {
    fn new(file: fs::File, direct: bool) -> Arc<Handle> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Handle {
            id: HandleId(NEXT.fetch_add(1, Relaxed)),
            file,
            direct,
        })
    }

    /// The file's length, or the device's size (whose `stat` says 0).
    pub(crate) fn len(&self) -> io::Result<u64> {
        (&self.file).seek(SeekFrom::End(0))
    }
}

/// Counts every descriptor that was closed: rings that registered it let go when this has changed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// How many descriptors were closed so far.
pub(crate) fn handles_closed() -> u64 {
    CLOSED.load(Relaxed)
}

impl Drop for Handle {
    fn drop(&mut self) {
        CLOSED.fetch_add(1, Relaxed);
    }
}

/// A file of a [`Directory`](super::Directory).
#[derive(Clone)]
pub struct DiskFile {
    direct: Option<Arc<Handle>>,
    buffered: Arc<Handle>,
    in_memory: bool,
    workers: Arc<Workers>,
}

impl DiskFile {
    pub(super) fn new(
        direct: Option<fs::File>,
        buffered: fs::File,
        workers: Arc<Workers>,
    ) -> DiskFile {
        DiskFile {
            in_memory: at_once::is_in_memory(&buffered),
            direct: direct.map(|file| Handle::new(file, true)),
            buffered: Handle::new(buffered, false),
            workers,
        }
    }

    /// Whether aligned I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The descriptor that can do this I/O.
    fn handle(&self, offset: u64, address: *const u8, len: usize) -> &Arc<Handle> {
        let aligned = offset.is_multiple_of(PAGE_BYTES as u64)
            && address.addr().is_multiple_of(PAGE_BYTES)
            && len.is_multiple_of(PAGE_BYTES);
        match &self.direct {
            Some(direct) if aligned => direct,
            _ => &self.buffered,
        }
    }

    /// To this thread's ring, or to the workers.
    fn start(&self, transfer: Transfer) {
        if let Err(transfer) = ring::start(transfer) {
            self.workers.start(transfer);
        }
    }
}

#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async fn keeps its arguments twice, and commands hold many of these"
)]
impl File for DiskFile {
    fn read_at(
        &self,
        offset: u64,
        mut into: BufMut,
        len: usize,
    ) -> impl Future<Output = (io::Result<()>, BufMut)> + Send {
        async move {
            into.set_len(0);
            if len > into.capacity() || offset.checked_add(len as u64).is_none() {
                return (Err(io::ErrorKind::InvalidInput.into()), into);
            }
            if self.in_memory {
                let read = at_once::read(&self.buffered.file, offset, &mut into.spare()[..len]);
                let read = read.map(|bytes| {
                    cells().read_bytes.fetch_add(bytes as u64, Relaxed);
                    into.set_len(bytes);
                });
                return (read, into);
            }
            let (reply, answer) = oneshot::channel();
            let handle = self.handle(offset, into.as_ptr(), len).clone();
            self.start(Transfer::read(handle, offset, into, len, reply));
            answer
                .await
                .expect("rings and workers answer every transfer")
        }
    }

    fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        async move {
            if offset.checked_add(into.len() as u64).is_none() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if self.in_memory {
                let bytes = at_once::place(&self.buffered.file, offset, &into)?;
                cells().read_bytes.fetch_add(bytes as u64, Relaxed);
                return Ok(bytes);
            }
            let (reply, answer) = oneshot::channel();
            let handle = self.handle(offset, into.as_ptr(), into.len()).clone();
            self.start(Transfer::place(handle, offset, into, hold, reply));
            answer
                .await
                .expect("rings and workers answer every transfer")
        }
    }

    fn write_at(&self, offset: u64, from: Buf) -> impl Future<Output = io::Result<()>> + Send {
        async move {
            if offset.checked_add(from.len() as u64).is_none() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if self.in_memory {
                self.buffered.file.write_all_at(&from, offset)?;
                cells().written_bytes.fetch_add(from.len() as u64, Relaxed);
                return Ok(());
            }
            let (reply, answer) = oneshot::channel();
            let handle = self.handle(offset, from.as_ptr(), from.len()).clone();
            self.start(Transfer::write(handle, offset, from, reply));
            answer
                .await
                .expect("rings and workers answer every transfer")
        }
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let handle = self.handle(offset, into.as_ptr(), into.len());
        match handle.file.read_exact_at(into, offset) {
            // A direct read that ended inside a page cannot be continued; the other descriptor tells an end from an error.
            Err(_) if handle.direct => self.buffered.file.read_exact_at(into, offset),
            result => result,
        }
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.handle(offset, from.as_ptr(), from.len())
            .file
            .write_all_at(from, offset)
    }

    fn write_together(&self, mut places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        let is_aligned = |(offset, bufs): &(u64, Vec<Buf>)| {
            let mut bufs = bufs.iter();
            bufs.all(|buf| self.handle(*offset, buf.as_ptr(), buf.len()).direct)
        };
        let handle = match &self.direct {
            Some(direct) if places.iter().all(is_aligned) => direct,
            _ => &self.buffered,
        };
        // One call of its own costs less than a ring; and a ring hands what goes to the page cache to a thread of the kernel's.
        if places.len() > 1 && handle.direct {
            match ring::together::write(handle, places) {
                Ok(written) => return written,
                Err(back) => places = back,
            }
        }
        let mut places = places.iter();
        places.try_for_each(|(offset, bufs)| write_each(&handle.file, *offset, bufs))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.buffered.file.sync_data()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match fallocate(
            self.buffered.file.as_fd(),
            FallocateFlags::empty(),
            offset,
            len,
        ) {
            Ok(()) => Ok(()),
            // Devices have their space; some file systems take it only when written.
            Err(Errno::OPNOTSUPP | Errno::NODEV) => {
                let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
                if end > self.len()? {
                    self.set_len(end)
                } else {
                    Ok(())
                }
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(self.buffered.file.as_fd(), hole, offset, len) {
            Ok(()) => Ok(()),
            // A device lets go of whole sectors of its own, which may be longer than what it was asked for.
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::INVAL) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.buffered.len()
    }

    fn held_bytes(&self) -> io::Result<u64> {
        let metadata = self.buffered.file.metadata()?;
        match metadata.is_file() {
            // In units of 512 bytes, whatever the file system's block is (stat(2)).
            true => Ok(metadata.blocks() * 512),
            false => self.len(),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.buffered.file.set_len(len)
    }

    /// By the descriptor that transfers of a ring go through. Each of them keeps it open, also after the process: the system does not wait
    /// for them where that ends.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let handle = self.direct.as_ref().unwrap_or(&self.buffered).clone();
        match flock(
            handle.file.as_fd(),
            FlockOperation::NonBlockingLockExclusive,
        ) {
            Ok(()) => Ok(Box::new(Locked(handle))),
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another process has the file, or one that ended has writes on their way to it",
            )),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A descriptor that has its file.
struct Locked(Arc<Handle>);

impl Drop for Locked {
    fn drop(&mut self) {
        // It may be open for longer, for reading.
        if let Err(errno) = flock(self.0.file.as_fd(), FlockOperation::Unlock) {
            tracing::error!(%errno, "a file stays locked");
        }
    }
}

/// Writes buffers one after the other.
fn write_each(file: &fs::File, offset: u64, bufs: &[Buf]) -> io::Result<()> {
    let mut pieces: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
    let mut left = &mut pieces[..];
    IoSlice::advance_slices(&mut left, 0);
    let mut at = offset;
    while !left.is_empty() {
        let some = &left[..left.len().min(PIECES_MAX)];
        match pwritev(file, some, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut left, written);
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
