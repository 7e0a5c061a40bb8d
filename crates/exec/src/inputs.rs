//! What a function may read: the bytes at hand, and how the others are brought.

use std::collections::VecDeque;

use forebay_mem::{Buf, CopySite, RegionId, count_copy};

use crate::ending::Ending;
use crate::exchange::Exchange;

/// Memory of inputs that stays at hand after they were read, in bytes.
const WINDOW_BYTES: usize = 8 << 20;
/// Pieces likewise: looking for one among them is quick.
const WINDOW_PIECES: usize = 64;
/// Those of all threads together have no more than this part of all memory: others wait for it, and so do these functions themselves.
const WINDOWS_PART: usize = 4;

/// An input, as far as the function's thread knows it.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub key: Box<[u8]>,
    /// Bytes that the function sees.
    pub size: u64,
    /// All of them, when they are few and the call did not have to wait: in order, each with its offset.
    pub whole: Vec<(u64, Buf)>,
}

/// Pieces that were read, newest last.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pieces: VecDeque<Piece>,
    /// Memory that they may keep, in bytes.
    most: usize,
}

#[derive(Debug)]
struct Piece {
    input: usize,
    offset: u64,
    buf: Buf,
    /// Memory that goes with it.
    held: usize,
}

impl Window {
    fn new(most: usize) -> Window {
        let pieces = VecDeque::new();
        Window { pieces, most }
    }

    pub fn put(&mut self, input: usize, offset: u64, buf: Buf) {
        // A part keeps all of its block, which goes with the last of its parts.
        if let Some(before) = self.pieces.back_mut()
            && block(&before.buf).is_some_and(|same| Some(same) == block(&buf))
        {
            before.held = 0;
        }
        self.pieces.push_back(Piece {
            input,
            offset,
            held: buf.held_bytes(),
            buf,
        });
        while self.pieces.len() > WINDOW_PIECES
            || (self.held() > self.most && self.pieces.len() > 1)
        {
            self.pieces.pop_front();
        }
    }

    /// Memory that is kept, in bytes.
    fn held(&self) -> usize {
        self.pieces.iter().map(|piece| piece.held).sum()
    }

    pub fn holds(&self, input: usize, offset: u64) -> bool {
        self.find(input, offset).is_some()
    }

    fn find(&self, input: usize, offset: u64) -> Option<Buf> {
        let mut newest_first = self.pieces.iter().rev();
        let piece = newest_first.find(|piece| {
            let at = offset.checked_sub(piece.offset);
            piece.input == input && at.is_some_and(|at| at < piece.buf.len() as u64)
        })?;
        let at = (offset - piece.offset) as usize;
        Some(piece.buf.slice(at..piece.buf.len()))
    }
}

/// Which block of which region it lies in.
fn block(buf: &Buf) -> Option<(RegionId, usize)> {
    let (region, at) = buf.place()?;
    Some((region, at / buf.held_bytes()))
}

/// What functions of so many threads keep at hand of inputs, each, where there is so much memory for payload.
pub(crate) fn window_bytes(pool_bytes: usize, threads: usize) -> usize {
    WINDOW_BYTES.min(pool_bytes / WINDOWS_PART / threads.max(1))
}

/// The inputs of a call.
#[derive(Debug)]
pub(crate) struct Inputs {
    all: Vec<Input>,
    pub window: Window,
    /// Bytes that the function took.
    pub read: u64,
}

impl Inputs {
    /// These, of which so many bytes stay at hand.
    pub fn new(all: Vec<Input>, window_bytes: usize) -> Inputs {
        Inputs {
            all,
            window: Window::new(window_bytes),
            read: 0,
        }
    }

    /// The same, none of it read.
    pub fn again(self) -> Inputs {
        Inputs::new(self.all, self.window.most)
    }

    /// Gives away what is at hand: from now on it is brought when it is asked for.
    pub fn let_go(&mut self) -> Vec<Vec<(u64, Buf)>> {
        let all = self.all.iter_mut();
        all.map(|input| std::mem::take(&mut input.whole)).collect()
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

#[cfg(test)]
mod tests {
    use forebay_mem::{BLOCK_MAX_BYTES, Pool};

    use super::*;

    const STEP: usize = 128 << 10;

    /// Puts parts of blocks into a window, so many of each; how much of the pool is kept then, and how many parts are at hand.
    fn keep(blocks: usize, parts: usize) -> (usize, usize) {
        let pool = Pool::new(128 << 20);
        let mut window = Window::new(WINDOW_BYTES);
        let mut offset = 0;
        for _ in 0..blocks {
            let mut buf = pool.try_take(BLOCK_MAX_BYTES).unwrap();
            buf.set_len(BLOCK_MAX_BYTES);
            let block = buf.freeze();
            for part in 0..parts {
                window.put(0, offset, block.slice(part * STEP..(part + 1) * STEP));
                offset += STEP as u64;
            }
        }
        let offsets = (0..offset).step_by(STEP);
        let at_hand = offsets.filter(|offset| window.holds(0, *offset)).count();
        (pool.usage().in_use, at_hand)
    }

    #[test]
    fn what_is_at_hand_keeps_no_more_blocks_than_it_may() {
        assert_eq!(keep(100, 1), (WINDOW_BYTES, 8));
        // Parts of one block count once.
        assert_eq!(keep(20, 8), (WINDOW_BYTES, 64));
    }

    #[test]
    fn many_threads_keep_less_each() {
        assert_eq!(window_bytes(1 << 30, 4), WINDOW_BYTES);
        assert_eq!(window_bytes(64 << 20, 16), 1 << 20);
    }
}
