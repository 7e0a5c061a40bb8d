//! Asking for memory before it is looked at.
#![expect(unsafe_code, reason = "the processor's hint takes an address")]

/// Has the processor bring `bytes` closer while it does something else, where it takes such hints.
///
/// Worth it for bytes that are read in short steps with other work between them: the processor itself looks ahead by a page at most, and only
/// while they are being read.
pub(crate) fn fetch_ahead(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint reads nothing that the program could see, and any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// What moves between memory and the processor at a time.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
