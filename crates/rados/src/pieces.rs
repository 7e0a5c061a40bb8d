//! Where the bytes of a body are: pieces, each of one object.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::core::Pinned;
use crate::record::{BLOCK_BYTES, Segment};
use crate::stripes::{PIECE_BYTES, blocks_of};
use crate::under_way::Named;

/// Bytes that one operation can read.
#[derive(Clone)]
pub(crate) enum PieceAt {
    Stripe(Segment, Range<u64>),
    Inline(Arc<WholeObject>, Range<u64>),
}

/// A value that is the data of its key's object, as long as that has this version. The record may change meanwhile, and the value be moved to
/// stripes.
pub(crate) struct WholeObject {
    pub named: Named,
    /// The value's number among those of its key.
    pub seq: u64,
    pub version: AtomicU64,
    pub sums: Vec<u32>,
    pub size: u64,
    /// Where it was moved.
    pub moved: OnceLock<(Segment, Pinned)>,
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
        self.split_at(self.blocks().start + room as u64)
    }

    /// Takes off what is before the next multiple of `bytes`.
    fn cut(&mut self, bytes: u64) -> PieceAt {
        let (PieceAt::Stripe(_, range) | PieceAt::Inline(_, range)) = self;
        let end = (range.start / bytes + 1) * bytes;
        self.split_at(end)
    }

    fn split_at(&mut self, end: u64) -> PieceAt {
        let mut first = self.clone();
        let (PieceAt::Stripe(_, taken) | PieceAt::Inline(_, taken)) = &mut first;
        let (PieceAt::Stripe(_, left) | PieceAt::Inline(_, left)) = self;
        taken.end = taken.end.min(end);
        left.start = taken.end;
        first
    }
}

/// What is left of a body. A piece is cut off when it is asked for: of a long value a list of all would itself be long.
#[derive(Clone, Default)]
pub(crate) struct Pieces {
    /// The next piece; what was split off is gone from it.
    next: Option<PieceAt>,
    /// Everything after it, and at the multiples of how many bytes it is cut.
    rest: VecDeque<(PieceAt, u64)>,
}

impl Pieces {
    /// Those that hold some bytes of a striped value: stripes, unless another gateway was set up to make them larger than `object_bytes`,
    /// which is what this one wants to read at once.
    pub fn striped(segments: &[Segment], wanted: Range<u64>, object_bytes: u32) -> Pieces {
        let mut rest = VecDeque::new();
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
                rest.push_back((PieceAt::Stripe(*segment, from - begin..to - begin), bytes));
            }
            begin = end;
        }
        Pieces { next: None, rest }
    }

    /// Those that hold some bytes of a key's object.
    pub fn inline(object: WholeObject, wanted: Range<u64>) -> Pieces {
        let all = PieceAt::Inline(Arc::new(object), wanted);
        Pieces {
            next: None,
            rest: VecDeque::from([(all, PIECE_BYTES as u64)]),
        }
    }

    /// The next piece, of which something is left.
    pub fn front_mut(&mut self) -> Option<&mut PieceAt> {
        if self.next.as_ref().is_none_or(|piece| piece.len() == 0) {
            self.next = self.cut();
        }
        self.next.as_mut()
    }

    fn cut(&mut self) -> Option<PieceAt> {
        let (whole, bytes) = self.rest.front_mut()?;
        let piece = whole.cut(*bytes);
        if whole.len() == 0 {
            self.rest.pop_front();
        }
        Some(piece)
    }
}

const _: () = assert!((PIECE_BYTES as u64).is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
impl Iterator for Pieces {
    type Item = PieceAt;

    fn next(&mut self) -> Option<PieceAt> {
        let piece = self.front_mut()?;
        Some(piece.split(piece.room()))
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::limits::VALUE_BYTES_MAX;

    use super::*;

    fn segment(len: u64) -> Segment {
        Segment {
            id: 1,
            len,
            stripe_bytes: 4 << 20,
        }
    }

    #[test]
    fn a_piece_is_split_where_blocks_end() {
        let segment = segment(9 << 20);
        let mut pieces = Pieces::striped(&[segment], 100..(9 << 20) - 5, 4 << 20);
        let lengths: Vec<usize> = pieces.clone().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [(4 << 20) - 100, 4 << 20, (1 << 20) - 5]);
        let rooms: Vec<usize> = pieces.clone().map(|piece| piece.room()).collect();
        assert_eq!(rooms, [4 << 20, 4 << 20, 1 << 20]);
        let first = pieces.front_mut().unwrap();
        assert_eq!(first.split(1 << 20).len(), (1 << 20) - 100);
        assert_eq!((first.len(), first.room()), (3 << 20, 3 << 20));
        assert_eq!(first.split(4 << 20).len(), 3 << 20);
        assert_eq!(first.len(), 0);
        assert_eq!(pieces.front_mut().map(|next| next.len()), Some(4 << 20));
        // Stripes that are larger than this gateway's are read a MiB at a time.
        assert_eq!(
            Pieces::striped(&[segment], 100..4 << 20, 1 << 20).count(),
            4
        );
    }

    #[test]
    fn of_a_long_value_only_the_next_piece_is_known() {
        let segments = [segment(VALUE_BYTES_MAX - (5 << 20)), segment(5 << 20)];
        let mut pieces = Pieces::striped(&segments, 0..VALUE_BYTES_MAX, 4 << 20);
        assert_eq!(pieces.rest.len(), segments.len());
        assert_eq!(pieces.next().map(|piece| piece.len()), Some(4 << 20));
        let left = pieces.map(|piece| piece.len() as u64);
        assert_eq!(left.sum::<u64>(), VALUE_BYTES_MAX - (4 << 20));
    }
}
