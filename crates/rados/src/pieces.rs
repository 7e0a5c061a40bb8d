//! Where the bytes of a body are: pieces, each of one object.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::record::{BLOCK_BYTES, Segment};
use crate::stripes::{PIECE_BYTES, blocks_of};
use crate::under_way::Named;

/// Bytes that one operation can read.
#[derive(Clone)]
pub(crate) enum PieceAt {
    Stripe(Segment, Range<u64>),
    Inline(Arc<WholeObject>, Range<u64>),
}

/// A value that is the data of its key's object, as long as that has this version.
pub(crate) struct WholeObject {
    pub named: Named,
    pub version: u64,
    pub sums: Vec<u32>,
    pub size: u64,
}

impl PieceAt {
    pub fn len(&self) -> usize {
        let (PieceAt::Stripe(_, range) | PieceAt::Inline(_, range)) = self;
        (range.end - range.start) as usize
    }

    /// The blocks that hold it, in what it is a part of.
    fn blocks(&self) -> Range<u64> {
        match self {
            PieceAt::Stripe(segment, range) => blocks_of(range, segment.len),
            PieceAt::Inline(object, range) => blocks_of(range, object.size),
        }
    }

    /// Bytes of its blocks.
    pub fn room(&self) -> usize {
        let blocks = self.blocks();
        (blocks.end - blocks.start) as usize
    }

    /// Takes off what `room` bytes, whole blocks, have room for.
    pub fn split(&mut self, room: usize) -> PieceAt {
        let end = self.blocks().start + room as u64;
        let mut first = self.clone();
        let (PieceAt::Stripe(_, taken) | PieceAt::Inline(_, taken)) = &mut first;
        let (PieceAt::Stripe(_, left) | PieceAt::Inline(_, left)) = self;
        taken.end = taken.end.min(end);
        left.start = taken.end;
        first
    }
}

/// The pieces that hold some bytes of a striped value: stripes, unless another gateway was set up to make them larger than `object_bytes`,
/// which is what this one wants to read at once.
pub(crate) fn striped(
    segments: &[Segment],
    wanted: Range<u64>,
    object_bytes: u32,
) -> VecDeque<PieceAt> {
    let mut pieces = VecDeque::new();
    let mut begin = 0;
    for segment in segments {
        let end = begin + segment.len;
        let from = wanted.start.max(begin);
        let to = wanted.end.min(end);
        if from < to {
            let bytes = match segment.stripe_bytes {
                bytes if bytes <= object_bytes => u64::from(bytes),
                _ => PIECE_BYTES as u64,
            };
            let ranges = cut(from - begin..to - begin, bytes);
            pieces.extend(ranges.map(|range| PieceAt::Stripe(*segment, range)));
        }
        begin = end;
    }
    pieces
}

/// The pieces that hold some bytes of a key's object.
pub(crate) fn inline(object: WholeObject, wanted: Range<u64>) -> VecDeque<PieceAt> {
    let object = Arc::new(object);
    let ranges = cut(wanted, PIECE_BYTES as u64);
    ranges
        .map(|range| PieceAt::Inline(object.clone(), range))
        .collect()
}

/// A range cut at the multiples of `bytes`.
fn cut(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let begin = at;
            at = ((begin / bytes + 1) * bytes).min(range.end);
            begin..at
        })
    })
}

const _: () = assert!((PIECE_BYTES as u64).is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_split_where_blocks_end() {
        let segment = Segment {
            id: 1,
            len: 9 << 20,
            stripe_bytes: 4 << 20,
        };
        let mut pieces = striped(&[segment], 100..(9 << 20) - 5, 4 << 20);
        let lengths: Vec<usize> = pieces.iter().map(PieceAt::len).collect();
        assert_eq!(lengths, [(4 << 20) - 100, 4 << 20, (1 << 20) - 5]);
        let rooms: Vec<usize> = pieces.iter().map(PieceAt::room).collect();
        assert_eq!(rooms, [4 << 20, 4 << 20, 1 << 20]);
        let first = &mut pieces[0];
        assert_eq!(first.split(1 << 20).len(), (1 << 20) - 100);
        assert_eq!((first.len(), first.room()), (3 << 20, 3 << 20));
        assert_eq!(first.split(4 << 20).len(), 3 << 20);
        assert_eq!(first.len(), 0);
        // Stripes that are larger than this gateway's are read a MiB at a time.
        assert_eq!(striped(&[segment], 100..4 << 20, 1 << 20).len(), 4);
    }
}
