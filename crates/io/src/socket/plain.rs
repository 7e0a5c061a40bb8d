//! What leaves a process in the clear is named where it lies; what it encrypts first is copied together. One walk over it serves both.

use forebay_mem::{CopySite, RegionSlice, count_copy};

use super::Gather;

/// The most that is copied together before it is encrypted and the system is asked to take it.
pub const PLAIN_BYTES_MAX: usize = 128 << 10;

/// Takes what is sent next, part by part. Where a part does not fit whole, nothing behind it fits.
pub trait Parts<'a> {
    /// Adds these bytes as far as there is room; says how many.
    fn bytes(&mut self, bytes: &'a [u8]) -> usize;

    /// Adds the first `len` bytes from `offset` of memory that a peer may be writing, as far as there is room; says how many. `None` when
    /// they leave the slice, or the memory is gone.
    fn region(&mut self, memory: &'a RegionSlice, offset: usize, len: usize) -> Option<usize>;
}

/// A part is named whole, or not at all.
impl<'a> Parts<'a> for Gather<'a> {
    fn bytes(&mut self, bytes: &'a [u8]) -> usize {
        match Gather::bytes(self, bytes) {
            true => bytes.len(),
            false => 0,
        }
    }

    fn region(&mut self, memory: &'a RegionSlice, offset: usize, len: usize) -> Option<usize> {
        match Gather::region(self, memory, offset, len) {
            true => Some(len),
            false => super::inside(memory, offset, len).then_some(0),
        }
    }
}

/// Room for what is encrypted next: [`PLAIN_BYTES_MAX`] bytes with those that are there.
pub struct Plain<'t>(pub &'t mut Vec<u8>);

impl Plain<'_> {
    fn room(&self) -> usize {
        PLAIN_BYTES_MAX.saturating_sub(self.0.len())
    }
}

impl<'a> Parts<'a> for Plain<'_> {
    fn bytes(&mut self, bytes: &'a [u8]) -> usize {
        let fits = bytes.len().min(self.room());
        self.0.extend_from_slice(&bytes[..fits]);
        count_copy(CopySite::LinkTls, fits);
        fits
    }

    fn region(&mut self, memory: &'a RegionSlice, offset: usize, len: usize) -> Option<usize> {
        if !super::inside(memory, offset, len) {
            return None;
        }
        let before = self.0.len();
        let fits = len.min(self.room());
        self.0.resize(before + fits, 0);
        if !memory.read(offset, &mut self.0[before..]) {
            self.0.truncate(before);
            return None;
        }
        count_copy(CopySite::LinkTls, fits);
        Some(fits)
    }
}

#[cfg(test)]
mod tests {
    use forebay_mem::Region;

    use super::*;

    /// What both say of parts of a slice of `memory.len()` bytes.
    fn answers<'a>(
        parts: &mut impl Parts<'a>,
        memory: &'a RegionSlice,
    ) -> (usize, [Option<usize>; 4]) {
        let len = memory.len();
        let taken = [(1, 3), (len, 0), (1, len), (usize::MAX, 2)];
        let regions = taken.map(|(offset, len)| parts.region(memory, offset, len));
        (parts.bytes(b"ab"), regions)
    }

    #[test]
    fn parts_are_taken_in_order_and_none_leaves_its_slice() {
        let memory = Region::anonymous(4096).unwrap().slice(0..10).unwrap();
        assert!(memory.write(0, b"0123456789"));
        let expected = (2, [Some(3), Some(0), None, None]);
        let mut plain = Vec::new();
        assert_eq!(answers(&mut Plain(&mut plain), &memory), expected);
        assert_eq!(plain, b"123ab");
        let mut gather = Gather::new();
        assert_eq!(answers(&mut gather, &memory), expected);
        assert_eq!(gather.len(), plain.len());
    }

    #[test]
    fn what_does_not_fit_is_left() {
        let memory = Region::anonymous(4096).unwrap().slice(0..4096).unwrap();
        let mut plain = vec![0; PLAIN_BYTES_MAX - 3];
        assert_eq!(Plain(&mut plain).region(&memory, 0, 2), Some(2));
        assert_eq!(Plain(&mut plain).bytes(b"abc"), 1);
        assert_eq!(Plain(&mut plain).bytes(b"bc"), 0);
        assert_eq!(Plain(&mut plain).region(&memory, 0, 2), Some(0));
        assert_eq!(plain.len(), PLAIN_BYTES_MAX);
        let mut gather = Gather::new();
        for _ in 0..super::super::PLACES_MAX {
            assert_eq!(Parts::bytes(&mut gather, b"x"), 1);
        }
        assert_eq!(Parts::bytes(&mut gather, b"x"), 0);
        assert_eq!(Parts::region(&mut gather, &memory, 0, 2), Some(0));
        assert_eq!(Parts::region(&mut gather, &memory, 0, 4097), None);
    }
}
