//! Copies into and out of memory that may vanish: a file that its owner can still truncate.
//!
//! Touching a page past such a file's end is a SIGBUS for the process. The kernel copies instead, as if for another process, and
//! reports the missing page as an error (process_vm_writev(2), EFAULT). A fifth to a third slower than a plain copy.
#![expect(unsafe_code, reason = "process_vm_readv and process_vm_writev")]

use std::ffi::c_void;
use std::ptr::NonNull;

/// The most that one call may move (`MAX_RW_COUNT` is a little over this).
const CALL_BYTES: usize = 1 << 30;

/// Copies all of `source` to `target`; false when some page of the target is not there.
///
/// # Safety
/// `target` starts a mapped range at least as long as `source`, which no Rust reference covers.
pub(crate) unsafe fn write(target: NonNull<u8>, source: &[u8]) -> bool {
    let mut done = 0;
    source.chunks(CALL_BYTES).all(|part| {
        let ours = iovec(part.as_ptr().cast_mut(), part.len());
        let theirs = iovec(target.as_ptr().wrapping_add(done), part.len());
        // SAFETY: `ours` is readable; the kernel checks every page of `theirs`, and the caller vouches that writing there breaks
        // no reference.
        let moved = unsafe { libc::process_vm_writev(libc::getpid(), &ours, 1, &theirs, 1, 0) };
        done += part.len();
        moved == part.len() as isize
    })
}

/// Fills `target` from `source`; false when some page of the source is not there.
///
/// # Safety
/// `source` starts a mapped range at least as long as `target`.
pub(crate) unsafe fn read(source: NonNull<u8>, target: &mut [u8]) -> bool {
    let mut done = 0;
    target.chunks_mut(CALL_BYTES).all(|part| {
        let ours = iovec(part.as_mut_ptr(), part.len());
        let theirs = iovec(source.as_ptr().wrapping_add(done), part.len());
        // SAFETY: `ours` is exclusively borrowed; the kernel checks every page of `theirs`.
        let moved = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &theirs, 1, 0) };
        done += part.len();
        moved == part.len() as isize
    })
}

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast::<c_void>(),
        iov_len: len,
    }
}
