//! Transfers by the thread that asks: of files in memory, where no device is waited for, and of a worker.
#![expect(
    unsafe_code,
    reason = "memory that a peer may touch is named to the kernel by address, never by reference"
)]

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use forebay_mem::RegionSlice;
use rustix::fs::fstatfs;

/// Of statfs(2): `TMPFS_MAGIC`, `RAMFS_MAGIC`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether a file lies in memory, as far as the system says. A ring hands each transfer of such a file to a thread of the kernel's,
/// which costs several times what copying the bytes does.
pub(super) fn is_in_memory(file: &fs::File) -> bool {
    fstatfs(file).is_ok_and(|about| IN_MEMORY.contains(&(about.f_type as u64)))
}

/// Reads until `into` is full or the file ends; how many bytes came.
pub(super) fn read(file: &fs::File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    repeat(into.len(), |done| {
        file.read_at(&mut into[done..], offset + done as u64)
    })
}

/// As [`read`], into memory that a peer may also touch.
pub(super) fn place(file: &fs::File, offset: u64, into: &RegionSlice) -> io::Result<usize> {
    let len = into.len();
    repeat(len, |done| {
        place_once(file, offset + done as u64, into, done..len)
    })
}

/// One call that reads into a part of memory that a peer may also touch.
pub(super) fn place_once(
    file: &fs::File,
    offset: u64,
    into: &RegionSlice,
    part: Range<usize>,
) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let part = into.slice(part).ok_or(io::ErrorKind::InvalidInput)?;
    if !part.region().is_writable() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // SAFETY: the kernel writes at most these bytes, which stay mapped as long as `part` is held; no Rust reference to them exists.
    // Where the peer took them away it answers an error.
    let read = unsafe { libc::pread(file.as_raw_fd(), part.as_ptr().cast(), part.len(), offset) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

fn repeat(len: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
