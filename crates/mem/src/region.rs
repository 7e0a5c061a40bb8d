//! Memory mapped once and never moved: what devices and peers register.
#![expect(
    unsafe_code,
    reason = "mmap, and volatile access to memory that a peer may write"
)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::shared::Backing;
use crate::{PAGE_BYTES, touch};

/// What is copied at a time by [`RegionSlice::for_each_chunk`]: it stays in the first-level cache until it is looked at.
const CHUNK_BYTES: usize = 16 << 10;

/// Pages that [`RegionSlice::fetch`] looks at together: to look costs a thirtieth of copying them, to take them in vain a quarter.
const FETCHED_PAGES: usize = 64;

/// The usual huge page, of which the usual page is a divisor.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Names one region for the life of the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

/// A mapping, page-aligned unless it is somebody else's. It is unmapped when the last reference goes.
pub struct Region {
    id: RegionId,
    mapping: Mapping,
}

/// What a region knows of its memory besides where it is.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// False for memory that somebody else unmaps.
    ours: bool,
    writable: bool,
    /// Its pages cannot vanish: they may be touched by plain instructions.
    steady: bool,
    file: Option<OwnedFd>,
    /// Dropped after the memory was unmapped.
    keep: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: a Region is an address range; all access to its bytes goes through types that enforce
// ownership (Buf, BufMut) or use volatile copies (RegionSlice).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Region` offers no access to bytes by itself.
unsafe impl Sync for Mapping {}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Mapping {
    /// Maps `len` bytes at `offset` of `file`, shared with whoever else maps them.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<Mapping> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the mapping is fresh; its bytes are reached only by volatile copies and atomic words (RegionSlice), so that
        // writes by other holders of the file are not a data race on Rust references.
        let base = unsafe { mmap(room_for_huge_pages(len), len, prot, flags, file, offset) }?;
        let mut mapping = Mapping::at(base.cast(), len)?;
        mapping.writable = writable;
        Ok(mapping)
    }

    fn at(base: *mut u8, len: usize) -> io::Result<Mapping> {
        Ok(Mapping {
            base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
            ours: true,
            writable: true,
            steady: true,
            file: None,
            keep: None,
        })
    }

    /// The same, of memory whose pages may vanish.
    pub(crate) fn unsteady(mut self) -> Mapping {
        self.steady = false;
        self
    }

    /// The same, of memory that can be passed on as `file`, from its start.
    pub(crate) fn backed(mut self, file: OwnedFd) -> Mapping {
        self.file = Some(file);
        self
    }

    /// The same, with something to drop after it.
    pub(crate) fn keeping(mut self, keep: Box<dyn Any + Send + Sync>) -> Mapping {
        self.keep = Some(keep);
        self
    }

    /// Takes the huge pages that lie in a range of it as a whole; whether all of them, and there are some, were made.
    fn take_huge_pages(&self, range: Range<usize>) -> bool {
        let base = self.base.as_ptr();
        let first = (base.addr() + range.start).next_multiple_of(HUGE_PAGE_BYTES) - base.addr();
        let end = (base.addr() + range.end) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let len = end.saturating_sub(base.addr() + first);
        if len == 0 || !(self.writable && self.steady) {
            return false;
        }
        let base = base.wrapping_add(first);
        // Where nothing was touched yet, there is nothing to make a huge page of.
        for page in (0..len).step_by(HUGE_PAGE_BYTES) {
            let page = base.wrapping_add(page);
            // SAFETY: inside the mapping; to take a page that may be written changes no byte of it.
            let taken = unsafe { madvise(page.cast(), 1, Advice::LinuxPopulateWrite) };
            if taken.is_err() {
                return false;
            }
        }
        // SAFETY: it is mapped there, and what pages hold it changes no byte of it.
        unsafe { libc::madvise(base.cast(), len, libc::MADV_COLLAPSE) == 0 }
    }

    pub(crate) fn region(self) -> Arc<Region> {
        Arc::new(Region {
            id: RegionId(NEXT_ID.fetch_add(1, Relaxed)),
            mapping: self,
        })
    }
}

/// Where `len` bytes would begin with a huge page, if they have one: two processes then find the same ones, each at a multiple. A hint,
/// which the kernel follows unless something else was mapped there meanwhile; null is none.
fn room_for_huge_pages(len: usize) -> *mut c_void {
    let none = std::ptr::null_mut();
    let Some(room) = len.checked_add(HUGE_PAGE_BYTES) else {
        return none;
    };
    if len < HUGE_PAGE_BYTES {
        return none;
    }
    // SAFETY: a fresh mapping that nobody touches and that is unmapped at once.
    let free = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let base = mmap_anonymous(none, room, ProtFlags::empty(), flags);
        base.and_then(|base| munmap(base, room).map(|()| base))
    };
    free.map_or(none, |base| {
        let ahead = base.addr().next_multiple_of(HUGE_PAGE_BYTES) - base.addr();
        base.wrapping_byte_add(ahead)
    })
}

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
        Ok(Mapping::at(base.cast(), len)?.region())
    }

    /// `count` regions of `len` bytes each, side by side on huge pages where the system has some: whoever jumps about in them finds its
    /// pages sooner, and a device is given fewer pieces. All are unmapped when the last of them goes.
    pub fn anonymous_row(count: usize, len: usize) -> io::Result<Vec<Arc<Region>>> {
        let bytes = count.checked_mul(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let whole = Region::anonymous(bytes)?;
        whole.prefer_huge_pages();
        let part = |number: usize| {
            let keep = Box::new(whole.clone());
            // SAFETY: the parts lie one after the other inside the whole, which has their length together, stays mapped until the last of
            // them lets go of it, and is reached through them alone.
            unsafe { Region::from_ptr(whole.base().add(number * len), len, keep) }
        };
        Ok((0..count).map(part).collect())
    }

    /// Memory of somebody else's, who is told that it is no longer used by `keep` being dropped.
    ///
    /// # Safety
    /// The `len` bytes at `base` stay mapped, readable and writable until `keep` is dropped, and until then no Rust reference to
    /// them is used: peers may write them at any time.
    pub unsafe fn from_ptr(
        base: NonNull<u8>,
        len: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Arc<Region> {
        Mapping {
            base,
            len,
            ours: false,
            writable: true,
            steady: true,
            file: None,
            keep: Some(keep),
        }
        .region()
    }

    /// The file behind it, from whose start it is mapped; if it has one that another process can map, too.
    pub fn backing(&self) -> Option<Backing<'_>> {
        let file = self.mapping.file.as_ref()?;
        Some(Backing {
            file: file.as_fd(),
            writable: self.mapping.writable,
        })
    }

    /// Whether its pages cannot vanish: devices and plain instructions may touch them. Copies by [`RegionSlice`] are safe either way.
    pub fn is_steady(&self) -> bool {
        self.mapping.steady
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.mapping.writable
    }

    /// Asks the system for huge pages from now on, where it has some: whoever jumps about in much memory finds its pages sooner.
    pub fn prefer_huge_pages(&self) {
        let base = self.mapping.base.as_ptr().cast();
        // SAFETY: it is mapped there, and advice on the size of pages changes no byte of it. Where it is not taken, small ones do.
        let _ = unsafe { madvise(base, self.mapping.len, Advice::LinuxHugepage) };
    }

    /// Takes all its memory now, as huge pages where the system can make some, even if it gives shared memory none by itself (Linux 6.1):
    /// a device is given fewer pieces then, and who copies finds its pages sooner. Where it cannot, small ones are taken when they are
    /// touched. Takes about as long as touching all of it does. Whether all whole ones were made.
    pub fn take_huge_pages(&self) -> bool {
        self.mapping.take_huge_pages(0..self.len())
    }

    /// This region's name.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Where it begins in this process; for registration with a device.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A window that a peer may also touch, or `None` when `range` leaves the region.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Option<RegionSlice> {
        (range.start <= range.end && range.end <= self.len()).then(|| RegionSlice {
            region: self.clone(),
            range,
        })
    }
}

/// Memory that is let go of elsewhere.
struct Elsewhere {
    region: Option<Arc<Region>>,
    let_go: fn(Arc<Region>),
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            (self.let_go)(region);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        // SAFETY: base and len are exactly what mmap returned, and no reference outlives the Region
        // because every Buf, BufMut and RegionSlice holds an Arc of it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.id.0, self.len())
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

    /// Its first byte, for a device that reads or writes by address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region
            .mapping
            .base
            .as_ptr()
            .wrapping_add(self.range.start)
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

    /// The same memory, which `let_go` is given when the last of it goes, to drop it where it may take its time: to unmap much memory does.
    pub fn letting_go(self, let_go: fn(Arc<Region>)) -> RegionSlice {
        let RegionSlice { region, range } = self;
        let Mapping {
            base,
            len,
            writable,
            steady,
            ..
        } = region.mapping;
        let mapping = Mapping {
            base,
            len,
            ours: false,
            writable,
            steady,
            file: None,
            keep: None,
        };
        let region = Some(region);
        RegionSlice {
            region: mapping
                .keeping(Box::new(Elsewhere { region, let_go }))
                .region(),
            range,
        }
    }

    /// As [`Region::take_huge_pages`], of the whole ones in it; false where it has none.
    pub fn take_huge_pages(&self) -> bool {
        self.region.mapping.take_huge_pages(self.range())
    }

    /// Copies `source` to `offset`; false when it does not fit (nothing was copied), the memory is read-only, or a peer took its
    /// pages away.
    pub fn write(&self, offset: usize, source: &[u8]) -> bool {
        let Some(target) = self.place_to_write(offset, source.len()) else {
            return false;
        };
        if !self.region.mapping.steady {
            // SAFETY: the range lies inside the mapping, checked by `place_to_write`; no Rust reference to its bytes exists anywhere.
            return unsafe { touch::write(target, source) };
        }
        // SAFETY: the range lies inside the mapping, checked by `place_to_write`; `source` is ordinary memory. A peer may write the same
        // bytes meanwhile: the result is then whatever the memory system leaves, and no Rust reference to these bytes exists
        // anywhere.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), source.len());
        }
        true
    }

    /// Copies from `offset` into `target`; false when it is out of range (nothing was copied), or a peer took the pages away.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> bool {
        let Some(source) = self.place(offset, target.len()) else {
            return false;
        };
        if !self.region.mapping.steady {
            // SAFETY: the range lies inside the mapping, checked by `place`.
            return unsafe { touch::read(source, target) };
        }
        // SAFETY: as in `write`; the copy is taken once and only the copy is looked at afterwards.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), target.len());
        }
        true
    }

    /// Takes `len` bytes at `offset` into memory, from a disk if they lie there, so that copying to them (`writes`) or from them seldom has to
    /// wait. Only what may vanish can lie on a disk; what cannot be taken is found missing by who copies.
    pub fn fetch(&self, offset: usize, len: usize, writes: bool) {
        let Some(place) = self
            .place(offset, len)
            .filter(|_| !self.region.mapping.steady)
        else {
            return;
        };
        let advice = match writes {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        let ahead = place.addr().get() % PAGE_BYTES;
        let (first, len) = (place.as_ptr().wrapping_sub(ahead), ahead + len);
        let mut are_there = [0; FETCHED_PAGES];
        for at in (0..len).step_by(FETCHED_PAGES * PAGE_BYTES) {
            let bytes = (len - at).min(FETCHED_PAGES * PAGE_BYTES);
            let pages = first.wrapping_add(at).cast::<c_void>();
            let are_there = &mut are_there[..bytes.div_ceil(PAGE_BYTES)];
            // SAFETY: there is a byte for each page, and to look whether pages are there touches none.
            let looked = unsafe { libc::mincore(pages, bytes, are_there.as_mut_ptr()) };
            if looked != 0 || are_there.iter().any(|page| page & 1 == 0) {
                // SAFETY: it is mapped there, page by page; to take a page changes no byte of it.
                let _ = unsafe { madvise(pages, bytes, advice) };
            }
        }
    }

    /// Copies all of it to the start of `target`; false when it does not fit (nothing was copied), `target` is read-only, or a peer
    /// took pages of either away.
    pub fn copy_to(&self, target: &RegionSlice) -> bool {
        if !(self.region.mapping.steady && target.region.mapping.steady) {
            let mut at = 0;
            return self.len() <= target.len()
                && self.for_each_chunk_while(|chunk| {
                    at += chunk.len();
                    target.write(at - chunk.len(), chunk)
                });
        }
        let (Some(from), Some(to)) = (self.place(0, self.len()), target.place(0, self.len()))
        else {
            return false;
        };
        if !target.region.mapping.writable {
            return false;
        }
        // SAFETY: both ranges lie inside their mappings, checked by `place`, and may overlap. As in `write`, whoever else writes these
        // bytes meanwhile does not do so through a Rust reference.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), self.len()) };
        true
    }

    /// Copies it out piece by piece, in order, and shows each piece; false when a peer took pages away before the end. For sums
    /// over memory that may not be looked at in place.
    pub fn for_each_chunk(&self, mut each: impl FnMut(&[u8])) -> bool {
        self.for_each_chunk_while(|chunk| {
            each(chunk);
            true
        })
    }

    /// As [`RegionSlice::for_each_chunk`], until `each` is false.
    fn for_each_chunk_while(&self, mut each: impl FnMut(&[u8]) -> bool) -> bool {
        let mut chunk = [0; CHUNK_BYTES];
        (0..self.len()).step_by(CHUNK_BYTES).all(|offset| {
            let chunk = &mut chunk[..CHUNK_BYTES.min(self.len() - offset)];
            self.read(offset, chunk) && each(chunk)
        })
    }

    /// The word at `offset`, shared with the peer; `None` when it is out of range or unaligned, or the memory is read-only or may
    /// vanish.
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let place = self.place(offset, size_of::<AtomicU64>())?;
        let Mapping {
            writable, steady, ..
        } = self.region.mapping;
        let word = place.as_ptr().cast::<AtomicU64>();
        // SAFETY: in range, aligned and mapped as long as `self` holds the region; bytes that every value of u64 fits; whoever
        // else writes them, here or in another process, does not do so through a Rust reference.
        (writable && steady && word.is_aligned()).then(|| unsafe { &*word })
    }

    /// The address of `len` bytes at `offset`, if they lie inside and may be written.
    pub(crate) fn place_to_write(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let place = self.place(offset, len)?;
        self.region.mapping.writable.then_some(place)
    }

    /// The address of `len` bytes at `offset`, if they lie inside.
    pub(crate) fn place(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        let inside = end <= self.len();
        // SAFETY: the range lies inside the region, so the address does, too.
        inside.then(|| unsafe { self.region.mapping.base.add(self.range.start + offset) })
    }
}
