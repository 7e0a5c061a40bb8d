//! The two forms of a buffer: one writer, or many readers.
#![expect(
    unsafe_code,
    reason = "slices over blocks of a region that the pool has handed out once"
)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use bytes::Bytes;

use crate::pool::Block;
use crate::{PAGE_BYTES, Pool, RegionId};

/// A block owned by one holder, being filled. `len` bytes count as filled; the rest is spare.
pub struct BufMut {
    block: Block,
    len: usize,
}

impl BufMut {
    pub(crate) fn new(block: Block) -> BufMut {
        BufMut { block, len: 0 }
    }

    /// Bytes the block can hold.
    pub fn capacity(&self) -> usize {
        self.block.len()
    }

    /// Spare bytes left.
    pub fn room(&self) -> usize {
        self.capacity() - self.len
    }

    /// Says that the first `len` bytes are filled. New bytes hold whatever the block held before.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "buffer length {len} over capacity {}",
            self.capacity()
        );
        self.len = len;
    }

    /// The spare bytes, initialised to whatever the block held before.
    pub fn spare(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.whole()[len..]
    }

    /// The region and offset of the block, for registration.
    pub fn place(&self) -> (RegionId, usize) {
        self.block.place()
    }

    /// The region that holds the block.
    pub fn region(&self) -> &Arc<crate::Region> {
        self.block.region()
    }

    /// Ends filling. The rest of the last page is zeroed: whole pages go to devices.
    pub fn freeze(mut self) -> Buf {
        let len = self.len;
        let page_end = len.next_multiple_of(PAGE_BYTES).min(self.capacity());
        self.whole()[len..page_end].fill(0);
        Buf {
            repr: Repr::Block(Arc::new(self.block)),
            range: 0..len,
            padded_end: page_end,
        }
    }

    fn whole(&mut self) -> &mut [u8] {
        // SAFETY: the pool handed this block out once, so `&mut self` is the only access to it; the
        // mapping is zero-initialised by the kernel and lives as long as the block.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr(), self.block.len()) }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `whole`, for reading; `len` is at most the capacity.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.whole()[..len]
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} of {})", self.len, self.capacity())
    }
}

#[derive(Clone)]
enum Repr {
    Block(Arc<Block>),
    Heap(Bytes),
}

/// A reference-counted slice of immutable bytes, normally inside a registered region.
#[derive(Clone)]
pub struct Buf {
    repr: Repr,
    range: Range<usize>,
    /// For blocks: bytes `range.end..padded_end` are zeroes written by `freeze`, if `range.end` is the filled end.
    padded_end: usize,
}

impl Buf {
    /// The bytes `range` of this buffer, sharing its memory.
    ///
    /// # Panics
    /// When `range` leaves the buffer.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "slice out of range"
        );
        let start = self.range.start + range.start;
        let end = start + range.len();
        let padded_end = if end == self.range.end {
            self.padded_end
        } else {
            end
        };
        Buf {
            repr: self.repr.clone(),
            range: start..end,
            padded_end,
        }
    }

    /// This buffer extended by zeroes to a whole number of pages, or `None` when it does not start on a
    /// page of a registered block or the zeroes are not there (a slice that ends inside a block's data).
    pub fn padded_to_page(&self) -> Option<Buf> {
        let Repr::Block(_) = &self.repr else {
            return None;
        };
        let end = self.range.end.next_multiple_of(PAGE_BYTES);
        (self.range.start.is_multiple_of(PAGE_BYTES) && end <= self.padded_end.max(self.range.end))
            .then(|| Buf {
                repr: self.repr.clone(),
                range: self.range.start..end,
                padded_end: end,
            })
    }

    /// The region and the offset in it, for registered I/O; `None` for heap memory.
    pub fn place(&self) -> Option<(RegionId, usize)> {
        match &self.repr {
            Repr::Block(block) => {
                let (region, offset) = block.place();
                Some((region, offset + self.range.start))
            }
            Repr::Heap(_) => None,
        }
    }

    /// The region that holds these bytes; `None` for heap memory.
    pub fn region(&self) -> Option<&Arc<crate::Region>> {
        match &self.repr {
            Repr::Block(block) => Some(block.region()),
            Repr::Heap(_) => None,
        }
    }

    /// Whether it is a block of `pool`, which its last clone goes back to.
    pub fn is_from(&self, pool: &Pool) -> bool {
        match &self.repr {
            Repr::Block(block) => block.is_from(pool),
            Repr::Heap(_) => false,
        }
    }

    /// Memory that this buffer keeps from being reused, in bytes: its whole block.
    pub fn held_bytes(&self) -> usize {
        match &self.repr {
            Repr::Block(block) => block.len(),
            Repr::Heap(bytes) => bytes.len(),
        }
    }

    /// The same bytes, without copying, as memory of no pool: what is `kept` goes with the last of them.
    pub fn keeping<T: Send + 'static>(self, kept: T) -> Buf {
        Bytes::from_owner(Keeping {
            bytes: self,
            _kept: kept,
        })
        .into()
    }

    /// The same bytes as `bytes::Bytes`, without copying.
    pub fn into_bytes(self) -> Bytes {
        match self.repr {
            Repr::Heap(ref bytes) => bytes.slice(self.range),
            Repr::Block(_) => Bytes::from_owner(self),
        }
    }
}

struct Keeping<T> {
    bytes: Buf,
    _kept: T,
}

impl<T> AsRef<[u8]> for Keeping<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Bytes> for Buf {
    /// Heap memory as a buffer: for small values and tests; it is not registered anywhere.
    fn from(bytes: Bytes) -> Buf {
        let range = 0..bytes.len();
        let padded_end = range.end;
        Buf {
            repr: Repr::Heap(bytes),
            range,
            padded_end,
        }
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Buf {
        Bytes::from(bytes).into()
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.repr {
            // SAFETY: a frozen block is never written again until its last Arc goes, and `range` was
            // checked against the block when this Buf was made.
            Repr::Block(block) => unsafe {
                std::slice::from_raw_parts(block.as_ptr().add(self.range.start), self.range.len())
            },
            Repr::Heap(bytes) => &bytes[self.range.clone()],
        }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        **self == **other
    }
}

/// The bytes `range` of buffers put together, as far as there are so many, sharing their memory.
pub fn slices(bufs: &[Buf], range: Range<usize>) -> impl Iterator<Item = Buf> {
    let mut begin = 0;
    bufs.iter().filter_map(move |buf| {
        let from = range.start.max(begin) - begin;
        let to = range.end.min(begin + buf.len()).saturating_sub(begin);
        begin += buf.len();
        (from < to).then(|| buf.slice(from..to))
    })
}
