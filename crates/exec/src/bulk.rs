//! Work over whole slices of a function's memory, at the speed of the machine.

use std::cmp::Ordering;
use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
pub(crate) use memchr::memmem::Finder;

use crate::ending::Ending;

/// A slice of a function's memory.
pub(crate) fn slice(memory: &[u8], at: i32, len: usize) -> Result<&[u8], Ending> {
    memory.get(place(at, len)?).ok_or_else(outside)
}

/// Likewise, to write to.
pub(crate) fn slice_mut(memory: &mut [u8], at: i32, len: usize) -> Result<&mut [u8], Ending> {
    memory.get_mut(place(at, len)?).ok_or_else(outside)
}

fn place(at: i32, len: usize) -> Result<Range<usize>, Ending> {
    let start = unsigned(at);
    let end = start.checked_add(len).ok_or_else(outside)?;
    Ok(start..end)
}

fn outside() -> Ending {
    Ending::trap("an address outside of the memory was given to the host")
}

/// Addresses and lengths are unsigned, whatever WebAssembly's type says.
pub(crate) fn unsigned(value: i32) -> usize {
    value as u32 as usize
}

/// The type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
}

impl Kind {
    pub fn of(number: i32) -> Result<Kind, Ending> {
        const KINDS: [Kind; 10] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::U64,
            Kind::I64,
            Kind::F32,
            Kind::F64,
        ];
        let kind = KINDS.get(unsigned(number)).copied();
        kind.ok_or_else(|| Ending::trap(format!("there is no kind {number} of elements")))
    }

    /// Refuses floats.
    pub fn must_be_integer(self) -> Result<(), Ending> {
        match self {
            Kind::F32 | Kind::F64 => Err(Ending::trap("floats have no sum of integers")),
            _ => Ok(()),
        }
    }

    pub fn width(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }
}

/// How elements are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn of(number: i32) -> Result<Comparison, Ending> {
        Ok(match number {
            0 => Comparison::Equal,
            1 => Comparison::NotEqual,
            2 => Comparison::Less,
            3 => Comparison::LessOrEqual,
            4 => Comparison::Greater,
            5 => Comparison::GreaterOrEqual,
            _ => return Err(Ending::trap(format!("there is no comparison {number}"))),
        })
    }

    /// No order (a NaN) is unequal and nothing else.
    fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::NotEqual => order != Some(Ordering::Equal),
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => order.is_some_and(Ordering::is_le),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// Runs `$body` with `$read` as the function that makes an element of kind `$kind` from its bytes.
macro_rules! with_kind {
    ($kind:expr, |$read:ident, $width:ident| $body:expr) => {
        match $kind {
            Kind::U8 => with_kind!(@one u8, $read, $width, $body),
            Kind::I8 => with_kind!(@one i8, $read, $width, $body),
            Kind::U16 => with_kind!(@one u16, $read, $width, $body),
            Kind::I16 => with_kind!(@one i16, $read, $width, $body),
            Kind::U32 => with_kind!(@one u32, $read, $width, $body),
            Kind::I32 => with_kind!(@one i32, $read, $width, $body),
            Kind::U64 => with_kind!(@one u64, $read, $width, $body),
            Kind::I64 => with_kind!(@one i64, $read, $width, $body),
            Kind::F32 => with_kind!(@one f32, $read, $width, $body),
            Kind::F64 => with_kind!(@one f64, $read, $width, $body),
        }
    };
    (@one $type:ty, $read:ident, $width:ident, $body:expr) => {{
        const $width: usize = size_of::<$type>();
        let $read = |bytes: &[u8; $width]| <$type>::from_le_bytes(*bytes);
        $body
    }};
}

/// The wrapping sum of the elements that fill `bytes`.
#[expect(
    clippy::unnecessary_cast,
    reason = "the type differs from kind to kind"
)]
pub(crate) fn sum_int(kind: Kind, bytes: &[u8]) -> i64 {
    with_kind!(kind, |read, WIDTH| {
        let (elements, _) = bytes.as_chunks::<WIDTH>();
        let elements = elements.iter().map(|element| read(element) as i64);
        elements.fold(0, i64::wrapping_add)
    })
}

/// The elements that fill `bytes`, each made a float first, added to `sum` one after the other.
#[expect(
    clippy::unnecessary_cast,
    reason = "the type differs from kind to kind"
)]
pub(crate) fn sum_float(kind: Kind, sum: f64, bytes: &[u8]) -> f64 {
    with_kind!(kind, |read, WIDTH| {
        let (elements, _) = bytes.as_chunks::<WIDTH>();
        let elements = elements.iter().map(|element| read(element) as f64);
        elements.fold(sum, |sum, element| sum + element)
    })
}

/// Tells of each element that fills `bytes`, in order, whether it compares so with the one in `bound`; eight at a time, the first
/// in the lowest bit. How many do.
pub(crate) fn compare(
    kind: Kind,
    comparison: Comparison,
    bytes: &[u8],
    bound: &[u8],
    mut each: impl FnMut(u8),
) -> u32 {
    let mut found = 0;
    with_kind!(kind, |read, WIDTH| {
        let (elements, _) = bytes.as_chunks::<WIDTH>();
        let Some(bound) = bound.first_chunk::<WIDTH>().map(read) else {
            return 0;
        };
        for eight in elements.chunks(8) {
            let mut bits = 0;
            for (bit, element) in eight.iter().enumerate() {
                let holds = comparison.holds(read(element).partial_cmp(&bound));
                bits |= u8::from(holds) << bit;
            }
            found += bits.count_ones();
            each(bits);
        }
    });
    found
}

/// The CRC-32C of `bytes` after what `seed` is the CRC-32C of.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let made = crc(CrcAlgorithm::Crc32Iscsi, u64::from(!seed), bytes);
    made as u32
}

/// Likewise the CRC-64/NVME.
pub(crate) fn crc64nvme(seed: u64, bytes: &[u8]) -> u64 {
    crc(CrcAlgorithm::Crc64Nvme, !seed, bytes)
}

/// Both start from all ones and end inverted: going on means to start from the inverse.
fn crc(algorithm: CrcAlgorithm, start: u64, bytes: &[u8]) -> u64 {
    let mut digest = Digest::new_with_init_state(algorithm, start);
    digest.update(bytes);
    digest.finalize()
}

/// How often a byte occurs.
pub(crate) fn count(byte: u8, bytes: &[u8]) -> u32 {
    memchr::memchr_iter(byte, bytes).count() as u32
}
