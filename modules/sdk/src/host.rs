//! The host's functions as they are imported, and the proof that each call of them keeps its promise.
//!
//! Every address and length that is passed is that of a slice: the host writes into `&mut [u8]` and reads from `&[u8]`, within their
//! lengths, and keeps none of them.

mod raw {
    #[link(wasm_import_module = "forebay")]
    unsafe extern "C" {
        pub safe fn inputs() -> u32;
        pub safe fn size(input: u32) -> i64;
        pub fn key(input: u32, at: *mut u8, room: usize) -> i32;
        pub fn read(input: u32, offset: u64, at: *mut u8, len: usize) -> i32;
        pub fn arguments(at: *mut u8, room: usize) -> u32;
        pub safe fn capacity() -> i64;
        pub fn write(at: *const u8, len: usize);
        pub safe fn pass(input: u32, offset: u64, len: u64) -> i64;
        pub fn log(at: *const u8, len: usize);
        pub fn fail(code: i32, at: *const u8, len: usize) -> !;
        pub fn crc32c(seed: u32, at: *const u8, len: usize) -> u32;
        pub fn crc64nvme(seed: u64, at: *const u8, len: usize) -> u64;
        pub fn count(at: *const u8, len: usize, byte: u32) -> u32;
        pub fn find(at: *const u8, len: usize, needle: *const u8, needle_len: usize) -> i32;
        pub fn sum_int(kind: u32, at: *const u8, count: usize) -> i64;
        pub fn sum_float(kind: u32, at: *const u8, count: usize) -> f64;
        pub fn compare(
            kind: u32,
            op: u32,
            at: *const u8,
            count: usize,
            bound: *const u8,
            bits: *mut u8,
        ) -> u32;
        pub fn select(width: u32, at: *const u8, count: usize, bits: *const u8, to: *mut u8)
        -> u32;
    }
}

pub fn inputs() -> u32 {
    raw::inputs()
}

pub fn size(input: u32) -> u64 {
    raw::size(input).max(0) as u64
}

pub fn key(input: u32, into: &mut [u8]) -> usize {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { raw::key(input, into.as_mut_ptr(), into.len()) }.max(0) as usize
}

pub fn read(input: u32, offset: u64, into: &mut [u8]) -> usize {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { raw::read(input, offset, into.as_mut_ptr(), into.len()) }.max(0) as usize
}

pub fn arguments(into: &mut [u8]) -> usize {
    // SAFETY: the host writes at most as many bytes as the slice has.
    unsafe { raw::arguments(into.as_mut_ptr(), into.len()) as usize }
}

pub fn capacity() -> Option<u64> {
    u64::try_from(raw::capacity()).ok()
}

pub fn write(bytes: &[u8]) {
    // SAFETY: the host reads the slice.
    unsafe { raw::write(bytes.as_ptr(), bytes.len()) }
}

pub fn pass(input: u32, offset: u64, len: u64) -> u64 {
    raw::pass(input, offset, len).max(0) as u64
}

pub fn log(line: &[u8]) {
    // SAFETY: the host reads the slice.
    unsafe { raw::log(line.as_ptr(), line.len()) }
}

pub fn fail(code: i32, words: &[u8]) -> ! {
    // SAFETY: the host reads the slice, and the call is over.
    unsafe { raw::fail(code, words.as_ptr(), words.len()) }
}

pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the host reads the slice.
    unsafe { raw::crc32c(seed, bytes.as_ptr(), bytes.len()) }
}

pub fn crc64nvme(seed: u64, bytes: &[u8]) -> u64 {
    // SAFETY: the host reads the slice.
    unsafe { raw::crc64nvme(seed, bytes.as_ptr(), bytes.len()) }
}

pub fn count(bytes: &[u8], byte: u8) -> usize {
    // SAFETY: the host reads the slice.
    unsafe { raw::count(bytes.as_ptr(), bytes.len(), u32::from(byte)) as usize }
}

pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: the host reads both slices.
    let found = unsafe { raw::find(bytes.as_ptr(), bytes.len(), needle.as_ptr(), needle.len()) };
    usize::try_from(found).ok()
}

pub fn sum_int(kind: u32, width: usize, elements: &[u8]) -> i64 {
    // SAFETY: so many elements of that width lie in the slice.
    unsafe { raw::sum_int(kind, elements.as_ptr(), elements.len() / width) }
}

pub fn sum_float(kind: u32, width: usize, elements: &[u8]) -> f64 {
    // SAFETY: so many elements of that width lie in the slice.
    unsafe { raw::sum_float(kind, elements.as_ptr(), elements.len() / width) }
}

pub fn compare(
    kind: u32,
    width: usize,
    op: u32,
    elements: &[u8],
    bound: &[u8],
    bits: &mut [u8],
) -> usize {
    let count = elements.len() / width;
    assert!(bound.len() >= width && bits.len() >= count.div_ceil(8));
    // SAFETY: so many elements lie in the slice, one in `bound`, and `bits` has room for a bit of each.
    unsafe {
        let (at, bound) = (elements.as_ptr(), bound.as_ptr());
        raw::compare(kind, op, at, count, bound, bits.as_mut_ptr()) as usize
    }
}

pub fn select(width: usize, elements: &[u8], bits: &[u8], into: &mut [u8]) -> usize {
    let count = elements.len() / width;
    assert!(bits.len() >= count.div_ceil(8) && into.len() >= count * width);
    // SAFETY: so many elements and bits lie in the slices, and there is room for all of them.
    unsafe {
        let (at, bits) = (elements.as_ptr(), bits.as_ptr());
        raw::select(width as u32, at, count, bits, into.as_mut_ptr()) as usize
    }
}
