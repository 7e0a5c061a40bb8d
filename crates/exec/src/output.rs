//! What a function writes, on its way to where the call wants it.

use forebay_mem::{
    BLOCK_MAX_BYTES, BLOCK_MIN_BYTES, Buf, BufMut, CopySite, Pool, RegionSlice, count_copy,
};
use forebay_store::{ErrorKind, StoreError};

use crate::ending::{Bound, Ending};
use crate::exchange::Exchange;
use crate::inputs::Window;
use crate::room::Room;

/// Parts of inputs that are at least so long are passed on as they are.
const PASS_BYTES: usize = 16 << 10;
const FIRST_BYTES: usize = 4 << 10;

/// Where it goes.
#[derive(Debug)]
pub(crate) enum Way {
    /// Into buffers, as many bytes as the caller takes.
    Inline { capacity: usize },
    /// Into memory.
    Into(RegionSlice),
    /// To the store.
    Store,
}

/// The output of a call.
pub(crate) struct Output {
    way: Way,
    pool: Pool,
    /// For what is in `full`.
    room: Room,
    /// Bytes written, and the most that there may be.
    len: u64,
    max: u64,
    /// Bytes of it in `current` and `full`.
    kept: usize,
    current: Option<BufMut>,
    full: Vec<Buf>,
    /// Where in `full` those begin that lie one behind the other like the last of them: parts of one block, mostly.
    run: usize,
}

impl Output {
    pub fn new(way: Way, pool: Pool, room: Room, max: u64) -> Output {
        Output {
            way,
            pool,
            room,
            len: 0,
            max,
            kept: 0,
            current: None,
            full: Vec::new(),
            run: 0,
        }
    }

    /// The same, nothing of it written.
    pub fn again(mut self) -> Output {
        self.room.give(usize::MAX);
        Output::new(self.way, self.pool, self.room, self.max)
    }

    /// Whether it goes to the store.
    pub fn is_stored(&self) -> bool {
        matches!(self.way, Way::Store)
    }

    /// Bytes that reach the caller; `None` when all do.
    pub fn capacity(&self) -> Option<u64> {
        match &self.way {
            Way::Inline { capacity } => Some(*capacity as u64),
            Way::Into(target) => Some(target.len() as u64),
            Way::Store => None,
        }
    }

    /// Appends a copy of `bytes`.
    pub fn write<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        window: &mut Window,
        bytes: &[u8],
    ) -> Result<(), Ending> {
        let at = self.count(bytes.len())?;
        let bytes = self.cut(at, bytes.len()).map_or(bytes, |len| &bytes[..len]);
        if let Way::Into(target) = &self.way {
            return into(target, at, bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let buf = match &mut self.current {
                Some(buf) if buf.room() > 0 => buf,
                _ => {
                    self.flush(exchange, window)?;
                    let buf = self.fresh(rest.len())?;
                    self.current.insert(buf)
                }
            };
            let len = rest.len().min(buf.room());
            let (now, later) = rest.split_at(len);
            buf.spare()[..len].copy_from_slice(now);
            buf.set_len(buf.len() + len);
            self.kept += len;
            rest = later;
        }
        count_copy(CopySite::Execute, bytes.len());
        Ok(())
    }

    /// Appends `buf`, without a copy where that is worth it.
    pub fn pass<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        window: &mut Window,
        buf: &Buf,
    ) -> Result<(), Ending> {
        if buf.len() < PASS_BYTES || matches!(self.way, Way::Into(_)) {
            return self.write(exchange, window, buf);
        }
        let at = self.count(buf.len())?;
        let len = self.cut(at, buf.len()).unwrap_or(buf.len());
        if len > 0 {
            self.flush(exchange, window)?;
            self.kept += len;
            self.give(exchange, window, buf.slice(0..len))?;
        }
        Ok(())
    }

    /// Sends on what is still here.
    pub fn finish<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        window: &mut Window,
    ) -> Result<(), Ending> {
        self.flush(exchange, window)?;
        self.end_run()
    }

    /// Bytes written, those of them that came to be in buffers, and the room that these have.
    pub fn into_parts(self) -> (u64, Vec<Buf>, Room) {
        (self.len, self.full, self.room)
    }

    /// Counts bytes; where the first of them stands.
    fn count(&mut self, len: usize) -> Result<u64, Ending> {
        let at = self.len;
        let end = at.saturating_add(len as u64);
        if end > self.max {
            return Err(Ending::Stopped(Bound::Output));
        }
        self.len = end;
        Ok(at)
    }

    /// How many of `len` bytes at `at` reach the caller, if not all do.
    fn cut(&self, at: u64, len: usize) -> Option<usize> {
        let room = self.capacity()?.saturating_sub(at);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        (room < len).then_some(room)
    }

    /// A buffer that grows with what came before, so that little output takes little memory; a store has its buffers full.
    fn fresh(&self, at_least: usize) -> Result<BufMut, Ending> {
        let grown = self.kept.max(at_least).max(FIRST_BYTES);
        let len = match self.way {
            Way::Inline { capacity } => grown.min(capacity - self.kept),
            Way::Into(_) | Way::Store => BLOCK_MAX_BYTES,
        };
        self.take_block(len)
    }

    fn take_block(&self, len: usize) -> Result<BufMut, Ending> {
        self.pool.try_take(len.min(BLOCK_MAX_BYTES)).map_err(|_| {
            Ending::Store(StoreError::new(
                ErrorKind::Busy,
                "there is no buffer for the output",
            ))
        })
    }

    fn flush<D>(&mut self, exchange: &mut Exchange<D>, window: &mut Window) -> Result<(), Ending> {
        match self.current.take() {
            Some(buf) => self.give(exchange, window, buf.freeze()),
            None => Ok(()),
        }
    }

    fn give<D>(
        &mut self,
        exchange: &mut Exchange<D>,
        window: &mut Window,
        buf: Buf,
    ) -> Result<(), Ending> {
        match self.way {
            Way::Store => exchange.write(window, buf),
            Way::Inline { .. } | Way::Into(_) => {
                self.room.take(buf.len())?;
                if !self.full.last().is_some_and(|last| follows(last, &buf)) {
                    self.end_run()?;
                }
                self.full.push(buf);
                Ok(())
            }
        }
    }

    /// Nothing more follows the last buffers. A part keeps the whole of its block: they are copied when that is much more than they
    /// have, so that what the output keeps is bounded by its length.
    fn end_run(&mut self) -> Result<(), Ending> {
        let run = &self.full[self.run..];
        let len: usize = run.iter().map(|buf| buf.len()).sum();
        let held = run.first().map_or(0, Buf::held_bytes);
        if held > (2 * len).max(BLOCK_MIN_BYTES) {
            let mut copy = self.take_block(len)?;
            copy.set_len(len);
            let mut at = 0;
            for buf in run {
                copy[at..at + buf.len()].copy_from_slice(buf);
                at += buf.len();
            }
            count_copy(CopySite::Execute, len);
            self.full.truncate(self.run);
            self.full.push(copy.freeze());
        }
        self.run = self.full.len();
        Ok(())
    }
}

/// Whether `next` lies right behind `last` in memory.
fn follows(last: &Buf, next: &Buf) -> bool {
    let end = last.place().map(|(region, at)| (region, at + last.len()));
    end.is_some() && end == next.place()
}

fn into(target: &RegionSlice, at: u64, bytes: &[u8]) -> Result<(), Ending> {
    count_copy(CopySite::Execute, bytes.len());
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    match bytes.is_empty() || target.write(at, bytes) {
        true => Ok(()),
        false => Err(Ending::Store(StoreError::new(
            ErrorKind::Invalid,
            "the memory for the output cannot be written",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::exchange::{Patience, exchange};
    use crate::room::Rooms;
    use forebay_io::SystemClock;

    /// Writes output with `write`, which says what it is; checks the bytes that are left of it, and how much of the pool they keep.
    fn check(
        capacity: usize,
        write: impl FnOnce(&Pool, &mut Output, &mut Exchange<()>, &mut Window) -> Vec<u8>,
    ) -> Vec<Buf> {
        let patience = Patience::new(Arc::new(SystemClock::default()), Duration::MAX);
        let (mut exchange, _service) = exchange(patience);
        let pool = Pool::new(64 << 20);
        let way = Way::Inline { capacity };
        let room = Rooms::new(usize::MAX).of("alice");
        let mut output = Output::new(way, pool.clone(), room, u64::MAX);
        let mut window = Window::default();
        let expected = write(&pool, &mut output, &mut exchange, &mut window);
        output.finish(&mut exchange, &mut window).unwrap();
        let (len, bufs, _) = output.into_parts();
        assert_eq!(len, expected.len() as u64);
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        assert!(bytes == expected[..expected.len().min(capacity)]);
        let held = pool.usage().in_use;
        assert!(
            held <= 5 * bytes.len() / 2,
            "{held} bytes are held for {} of output",
            bytes.len()
        );
        bufs
    }

    /// A block full of bytes.
    fn block(pool: &Pool, seed: usize) -> Buf {
        let mut buf = pool.try_take(BLOCK_MAX_BYTES).unwrap();
        buf.set_len(BLOCK_MAX_BYTES);
        for (number, page) in buf.chunks_mut(4 << 10).enumerate() {
            page.fill((number ^ seed) as u8);
        }
        buf.freeze()
    }

    #[test]
    fn little_of_many_blocks_does_not_keep_them() {
        check(16 << 20, |pool, output, exchange, window| {
            let mut expected = Vec::new();
            for seed in 0..50 {
                let block = block(pool, seed);
                let piece = block.slice(seed * 1000..seed * 1000 + PASS_BYTES);
                output.pass(exchange, window, &piece).unwrap();
                expected.extend_from_slice(&piece);
            }
            expected
        });
    }

    #[test]
    fn what_is_written_in_between_keeps_no_empty_blocks() {
        check(16 << 20, |pool, output, exchange, window| {
            let block = block(pool, 1);
            output.pass(exchange, window, &block).unwrap();
            let mut expected = block.to_vec();
            for _ in 0..100 {
                let piece = Buf::from(vec![7; PASS_BYTES]);
                output.write(exchange, window, b"-").unwrap();
                output.pass(exchange, window, &piece).unwrap();
                expected.push(b'-');
                expected.extend_from_slice(&piece);
            }
            expected
        });
    }

    #[test]
    fn what_is_cut_off_is_not_kept() {
        check(PASS_BYTES, |pool, output, exchange, window| {
            let block = block(pool, 2);
            output.pass(exchange, window, &block).unwrap();
            block.to_vec()
        });
    }

    #[test]
    fn all_of_a_block_is_passed_on_part_by_part_as_it_is() {
        let mut places = Vec::new();
        let bufs = check(16 << 20, |pool, output, exchange, window| {
            let block = block(pool, 3);
            for at in (0..BLOCK_MAX_BYTES).step_by(128 << 10) {
                let part = block.slice(at..at + (128 << 10));
                output.pass(exchange, window, &part).unwrap();
                places.push(part.place());
            }
            block.to_vec()
        });
        assert_eq!(bufs.iter().map(Buf::place).collect::<Vec<_>>(), places);
    }
}
