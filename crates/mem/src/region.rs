//! Memory mapped once and never moved: what devices and peers register.
#![expect(
    unsafe_code,
    reason = "mmap, and volatile access to memory that a peer may write"
)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Names one region for the life of the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

/// A page-aligned mapping. It is unmapped when the last reference goes.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Region is an address range; all access to its bytes goes through types that enforce
// ownership (Buf, BufMut) or use volatile copies (RegionSlice).
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` offers no access to bytes by itself.
unsafe impl Sync for Region {}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Region {
    /// Anonymous zeroed memory of `len` bytes; pages are taken as they are first touched.
    pub fn anonymous(len: usize) -> io::Result<Arc<Region>> {
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Self::adopt(base, len)
    }

    /// Maps `len` bytes of `file` (a memfd, DAX file or dma-buf) shared, from its start.
    pub fn of_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Arc<Region>> {
        // SAFETY: the mapping is fresh; its bytes are reached only by volatile copies (RegionSlice),
        // so that writes by other holders of the file are not a data race on Rust references.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        Self::adopt(base, len)
    }

    fn adopt(base: *mut c_void, len: usize) -> io::Result<Arc<Region>> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Region {
            id: RegionId(NEXT_ID.fetch_add(1, Relaxed)),
            base,
            len,
        }))
    }

    /// This region's name.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Where it begins in this process; for registration with a device.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A window that a peer may also touch, or `None` when `range` leaves the region.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Option<RegionSlice> {
        (range.start <= range.end && range.end <= self.len).then(|| RegionSlice {
            region: self.clone(),
            range,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: base and len are exactly what mmap returned, and no reference outlives the Region
        // because every Buf, BufMut and RegionSlice holds an Arc of it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A window of a [`Region`] that a peer may read or write at any moment.
#[derive(Debug, Clone)]
pub struct RegionSlice {
    region: Arc<Region>,
    range: Range<usize>,
}

impl RegionSlice {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The region it lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where it lies in the region.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A part of this window, or `None` when `range` leaves it.
    pub fn slice(&self, range: Range<usize>) -> Option<RegionSlice> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(RegionSlice {
            region: self.region.clone(),
            range: start..start + range.len(),
        })
    }

    /// Copies `source` to `offset`; false (and nothing copied) when it does not fit.
    pub fn write(&self, offset: usize, source: &[u8]) -> bool {
        let Some(window) = offset
            .checked_add(source.len())
            .and_then(|end| self.slice(offset..end))
        else {
            return false;
        };
        // SAFETY: the window lies inside the mapping, checked above; `source` is ordinary memory. A peer
        // may write the same bytes meanwhile: the result is then whatever the memory system leaves, and
        // no Rust reference to these bytes exists anywhere.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.as_ptr(),
                window.region.base.as_ptr().add(window.range.start),
                source.len(),
            );
        }
        true
    }

    /// Copies from `offset` into `target`; false (and nothing copied) when it is out of range.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> bool {
        let Some(window) = offset
            .checked_add(target.len())
            .and_then(|end| self.slice(offset..end))
        else {
            return false;
        };
        // SAFETY: as in `write`; the copy is taken once and only the copy is looked at afterwards.
        unsafe {
            std::ptr::copy_nonoverlapping(
                window.region.base.as_ptr().add(window.range.start),
                target.as_mut_ptr(),
                target.len(),
            );
        }
        true
    }
}
