//! What a function writes, on its way to where the call wants it.

use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Pool, RegionSlice, count_copy};
use forebay_store::{ErrorKind, StoreError};

use crate::ending::{Bound, Ending};
use crate::exchange::Exchange;
use crate::inputs::Window;

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
    /// Bytes written, and the most that there may be.
    len: u64,
    max: u64,
    /// Bytes of it in `current` and `full`.
    kept: usize,
    current: Option<BufMut>,
    full: Vec<Buf>,
}

impl Output {
    pub fn new(way: Way, pool: Pool, max: u64) -> Output {
        Output {
            way,
            pool,
            len: 0,
            max,
            kept: 0,
            current: None,
            full: Vec::new(),
        }
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
        self.flush(exchange, window)
    }

    /// Bytes written, and those of them that came to be in buffers.
    pub fn take(&mut self) -> (u64, Vec<Buf>) {
        (self.len, std::mem::take(&mut self.full))
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
                self.full.push(buf);
                Ok(())
            }
        }
    }
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
