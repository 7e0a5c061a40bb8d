//! Regions of files: memory that two processes share.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};

use crate::region::{HUGE_PAGE_BYTES, Mapping};
use crate::{PAGE_BYTES, Region, RegionSlice};

/// File systems (statfs(2) numbers) whose pages come from memory or a local device. Of any other a page might never come: its
/// server would decide how long we wait.
const LOCAL: [u64; 5] = [TMPFS, HUGETLBFS, EXT4, XFS, BTRFS];
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

/// The file behind a region, to be passed to another process.
#[derive(Debug, Clone, Copy)]
pub struct Backing<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Whether the region, and so its sharer, may be written.
    pub writable: bool,
}

impl Region {
    /// Fresh zeroed memory of `len` bytes that other processes can map: a memfd sealed against shrinking and growing. Pages are taken
    /// as they are first touched, huge ones where the system gives shared memory any (`shmem_enabled` of `advise`).
    ///
    /// # Errors
    /// When the system has none, or `len` is zero.
    pub fn memfd(len: usize) -> io::Result<Arc<Region>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("forebay", flags)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = Region::from_fd(file)?;
        region.prefer_huge_pages();
        Ok(region)
    }

    /// The whole of a file as shared memory: a memfd, with huge pages or not, or a file of a local file system (DAX included).
    /// What is not sealed against shrinking may vanish; then copies to and from it fail, and nothing worse happens.
    ///
    /// # Errors
    /// When it cannot be mapped: empty, of another kind, or of a file system that another process serves.
    pub fn from_fd(file: OwnedFd) -> io::Result<Arc<Region>> {
        let about = About::of(file.as_fd())?;
        let len = usize::try_from(about.size).map_err(|_| refused("too long"))?;
        let writable = Mapping::of_file(file.as_fd(), 0, len, true);
        let mapping = match writable {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Mapping::of_file(file.as_fd(), 0, len, false)?
            }
            mapping => mapping?,
        };
        let mapping = if about.stays {
            mapping
        } else {
            mapping.unsteady()
        };
        Ok(mapping.backed(file).region())
    }

    /// Maps `len` bytes at `offset` of a file that another process passed to us, which may do to it whatever it likes; unless it is
    /// shared memory of the system's, this blocks for as long as that process likes, too. `keep` is dropped when the memory is no longer
    /// mapped, after the last slice of it.
    ///
    /// # Errors
    /// As [`Region::from_fd`], and when the file does not have these bytes. Its last page it has whole: what is behind the file's end there
    /// can be read and written, and is nobody's.
    pub fn received(
        file: impl AsFd,
        offset: u64,
        len: usize,
        writable: bool,
        keep: Box<dyn Any + Send + Sync>,
    ) -> io::Result<RegionSlice> {
        let about = About::of(file.as_fd())?;
        let end = offset.checked_add(len as u64);
        let whole = about.size.next_multiple_of(PAGE_BYTES as u64);
        if len == 0 || end.is_none_or(|end| end > whole) {
            return Err(refused("the file does not have these bytes"));
        }
        // Where a mapping of it may begin, and huge pages of it do.
        let boundary = (HUGE_PAGE_BYTES as u64).max(about.page);
        let begin = offset / boundary * boundary;
        let ahead = (offset - begin) as usize;
        let mapped = (ahead + len).next_multiple_of(about.page as usize);
        let mapping = Mapping::of_file(file.as_fd(), begin, mapped, writable)?;
        let mapping = if about.stays {
            mapping
        } else {
            mapping.unsteady()
        };
        let region = mapping.keeping(keep).region();
        region
            .slice(ahead..ahead + len)
            .ok_or_else(|| refused("the file does not have these bytes"))
    }
}

/// Whether the system refuses memory beyond what it counts as there (`vm.overcommit_memory` of 2): a page of shared memory that nobody wrote
/// to yet may then be refused when it is touched, as if it had been taken away.
static IS_MEMORY_COUNTED: LazyLock<bool> = LazyLock::new(|| {
    let setting = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    setting.is_ok_and(|setting| setting.trim() == "2")
});

struct About {
    size: u64,
    /// What is mapped and unmapped at once: one byte will do, but not for huge pages.
    page: u64,
    /// Its pages cannot be taken away, or refused: shared memory sealed against shrinking. (A hole punched into it fills with zeroes again; one
    /// punched into huge pages need not.)
    stays: bool,
}

impl About {
    fn of(file: BorrowedFd<'_>) -> io::Result<About> {
        // Before the size: what is sealed now does not get smaller after it was looked at.
        let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        let stat = fstat(file)?;
        let system = fstatfs(file)?.f_type as u64;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || !LOCAL.contains(&system)
        {
            return Err(refused("not memory or a local file"));
        }
        let page = match system {
            HUGETLBFS => (stat.st_blksize as u64).max(1),
            _ => 1,
        };
        Ok(About {
            size: stat.st_size as u64,
            page,
            stays: system == TMPFS && seals.contains(SealFlags::SHRINK) && !*IS_MEMORY_COUNTED,
        })
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
