//! What a function may read: the bytes at hand, and how the others are brought.

use std::collections::VecDeque;

use forebay_mem::{Buf, CopySite, count_copy};

use crate::ending::Ending;
use crate::exchange::Exchange;

/// Bytes of inputs that stay at hand after they were read.
const WINDOW_BYTES: usize = 8 << 20;
/// Pieces likewise: looking for one among them is quick.
const WINDOW_PIECES: usize = 64;

/// An input, as far as the function's thread knows it.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub key: Box<[u8]>,
    /// Bytes that the function sees.
    pub size: u64,
    /// All of them, when they are few: in order, each with its offset.
    pub whole: Vec<(u64, Buf)>,
}

/// Pieces that were read, newest last.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pieces: VecDeque<(usize, u64, Buf)>,
    bytes: usize,
}

impl Window {
    pub fn put(&mut self, input: usize, offset: u64, buf: Buf) {
        self.bytes += buf.len();
        self.pieces.push_back((input, offset, buf));
        while self.pieces.len() > WINDOW_PIECES
            || (self.bytes > WINDOW_BYTES && self.pieces.len() > 1)
        {
            if let Some((_, _, old)) = self.pieces.pop_front() {
                self.bytes -= old.len();
            }
        }
    }

    pub fn holds(&self, input: usize, offset: u64) -> bool {
        self.find(input, offset).is_some()
    }

    fn find(&self, input: usize, offset: u64) -> Option<Buf> {
        let mut newest_first = self.pieces.iter().rev();
        let (_, start, buf) = newest_first.find(|(of, start, buf)| {
            *of == input && *start <= offset && offset - start < buf.len() as u64
        })?;
        Some(buf.slice((offset - start) as usize..buf.len()))
    }
}

/// The inputs of a call.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    all: Vec<Input>,
    pub window: Window,
    /// Bytes that the function took.
    pub read: u64,
}

impl Inputs {
    pub fn new(all: Vec<Input>) -> Inputs {
        Inputs {
            all,
            ..Inputs::default()
        }
    }

    /// The same, none of it read.
    pub fn again(self) -> Inputs {
        Inputs::new(self.all)
    }

    /// Whether all bytes are at hand.
    pub fn are_whole(&self) -> bool {
        let whole = |input: &Input| input.size == 0 || !input.whole.is_empty();
        self.all.iter().all(whole)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&self, number: i32) -> Option<&Input> {
        self.all.get(usize::try_from(number).ok()?)
    }

    /// How many of `len` bytes from `offset` on there are; `None` when there is no such input.
    pub fn there(&self, number: i32, offset: i64, len: u64) -> Option<u64> {
        let size = self.get(number)?.size;
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        Some(size.saturating_sub(offset).min(len))
    }

    /// The bytes of an input from `offset` on, as far as they lie in one buffer; `offset` is inside, and `wanted` follow.
    pub fn piece<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        number: usize,
        offset: u64,
        wanted: u64,
    ) -> Result<Buf, Ending> {
        let input = self.all.get(number);
        let whole = input.map_or(&[][..], |input| &input.whole);
        let at = whole.partition_point(|(start, _)| *start <= offset);
        if let Some((start, buf)) = at.checked_sub(1).and_then(|at| whole.get(at))
            && offset - start < buf.len() as u64
        {
            return Ok(buf.slice((offset - start) as usize..buf.len()));
        }
        if !self.window.holds(number, offset) {
            exchange.fetch(&mut self.window, number, offset, wanted)?;
        }
        let found = self.window.find(number, offset);
        found.ok_or_else(|| Ending::trap("a piece of an input went missing"))
    }

    /// Copies bytes of an input from `offset` on; all of `target` lies inside.
    pub fn copy<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        number: usize,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), Ending> {
        let mut done = 0;
        while done < target.len() {
            let piece = self.piece(
                exchange,
                number,
                offset + done as u64,
                (target.len() - done) as u64,
            )?;
            let len = piece.len().min(target.len() - done);
            target[done..done + len].copy_from_slice(&piece[..len]);
            done += len;
        }
        count_copy(CopySite::Execute, done);
        self.read += done as u64;
        Ok(())
    }
}
