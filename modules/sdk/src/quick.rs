//! Loops over slices that the host runs at its own speed: in WebAssembly each turn of a loop pays for a look at the time.

use crate::host;

/// What elements are; in memory they are little-endian and need no alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "they are named as Rust names them")]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    U64 = 6,
    I64 = 7,
    F32 = 8,
    F64 = 9,
}

impl Kind {
    /// Bytes of an element.
    pub const fn width(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }
}

/// How an element compares with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "they say what they are")]
pub enum Is {
    Equal = 0,
    NotEqual = 1,
    Less = 2,
    LessOrEqual = 3,
    Greater = 4,
    GreaterOrEqual = 5,
}

/// CRC-32C, going on from `seed`, which is 0 at first.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    host::crc32c(seed, bytes)
}

/// CRC-64/NVME, going on from `seed`, which is 0 at first.
pub fn crc64nvme(seed: u64, bytes: &[u8]) -> u64 {
    host::crc64nvme(seed, bytes)
}

/// How often a byte occurs.
pub fn count(bytes: &[u8], byte: u8) -> usize {
    host::count(bytes, byte)
}

/// Where a sequence of bytes first occurs.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    host::find(bytes, needle)
}

/// The sum of elements that are integers, wrapping.
///
/// # Panics
/// When they are floats.
pub fn sum_int(kind: Kind, elements: &[u8]) -> i64 {
    assert!(!matches!(kind, Kind::F32 | Kind::F64));
    host::sum_int(kind as u32, kind.width(), elements)
}

/// The sum of elements of any kind, as a float.
pub fn sum_float(kind: Kind, elements: &[u8]) -> f64 {
    host::sum_float(kind as u32, kind.width(), elements)
}

/// Sets the bit of each element that compares so with the one that `bound` holds (bit *i* of byte *i*/8, the lowest first), and
/// clears those of the others; returns how many are set.
///
/// # Panics
/// When `bits` has no room for all, or `bound` holds no element.
pub fn compare(kind: Kind, is: Is, elements: &[u8], bound: &[u8], bits: &mut [u8]) -> usize {
    host::compare(kind as u32, kind.width(), is as u32, elements, bound, bits)
}

/// Copies the elements of `width` bytes whose bit is set, one after another; returns how many.
///
/// # Panics
/// When `width` is not 1 to 64, there are too few bits, or there is no room for all elements.
pub fn select(width: usize, elements: &[u8], bits: &[u8], into: &mut [u8]) -> usize {
    assert!((1..=64).contains(&width));
    host::select(width, elements, bits, into)
}
