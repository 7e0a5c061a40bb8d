//! What a function may ask of the world around it: the functions of the import module `forebay` (docs/execute.md), whichever
//! runtime calls them.

use bytes::Bytes;
use forebay_mem::Buf;

use crate::bulk::{self, Comparison, Kind, slice, slice_mut, unsigned};
use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::inputs::Inputs;
use crate::output::Output;
use crate::room::Room;

/// Every import, for the macros of the runtimes that link them.
macro_rules! imports {
    ($link:ident) => {
        $link! {
            fn inputs() -> i32;
            fn size(input: i32) -> i64;
            fn key(input: i32, at: i32, room: i32) -> i32;
            fn read(input: i32, offset: i64, at: i32, len: i32) -> i32;
            fn arguments(at: i32, room: i32) -> i32;
            fn capacity() -> i64;
            fn write(at: i32, len: i32) -> ();
            fn pass(input: i32, offset: i64, len: i64) -> i64;
            fn log(at: i32, len: i32) -> ();
            fn fail(code: i32, at: i32, len: i32) -> ();
            fn crc32c(seed: i32, at: i32, len: i32) -> i32;
            fn crc64nvme(seed: i64, at: i32, len: i32) -> i64;
            fn count(at: i32, len: i32, byte: i32) -> i32;
            fn find(at: i32, len: i32, needle: i32, needle_len: i32) -> i32;
            fn sum_int(kind: i32, at: i32, count: i32) -> i64;
            fn sum_float(kind: i32, at: i32, count: i32) -> f64;
            fn compare(kind: i32, op: i32, at: i32, count: i32, bound: i32, bits: i32) -> i32;
            fn select(width: i32, at: i32, count: i32, bits: i32, to: i32) -> i32;
        }
    };
}
pub(crate) use imports;

/// The import module.
pub(crate) const MODULE: &str = "forebay";
/// An input that is not there.
const NONE: i32 = -1;
/// The words of a failure are cut after so many bytes.
const WORDS_BYTES: usize = 1024;
/// What passing on a piece of an input is worth at least: it may have to be fetched.
const PIECE_BYTES: usize = 4 << 10;
/// Bulk functions look at the time whenever they have gone over so much.
const BULK_BYTES: usize = 64 << 10;
/// The widest elements that `select` moves.
const WIDTH_MAX: usize = 64;

/// What a finished call leaves.
pub(crate) struct Done {
    pub ending: Result<(), Ending>,
    pub len: u64,
    pub bytes: Vec<Buf>,
    pub room: Room,
    pub logs: Bytes,
    pub read: u64,
    pub memory: usize,
    pub nanos: u64,
}

/// The world of one call.
pub(crate) struct Host {
    pub exchange: Exchange<Done>,
    pub inputs: Inputs,
    pub output: Output,
    pub arguments: Bytes,
    pub logs: Vec<u8>,
    pub log_bytes: usize,
    /// Why an import ended the call.
    pub ended: Option<Ending>,
    /// Memory or tables were refused: what ends badly afterwards ended for that.
    pub refused: bool,
    /// The most memory that it had.
    pub memory_peak: usize,
}

/// Every import takes the function's memory first.
#[expect(
    clippy::too_many_arguments,
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "all imports look alike to the macros that link them"
)]
impl Host {
    pub fn inputs(&mut self, _: &mut [u8]) -> Result<i32, Ending> {
        Ok(self.inputs.len() as i32)
    }

    pub fn size(&mut self, _: &mut [u8], input: i32) -> Result<i64, Ending> {
        let input = self.inputs.get(input);
        Ok(input.map_or(NONE.into(), |input| input.size as i64))
    }

    pub fn key(
        &mut self,
        memory: &mut [u8],
        input: i32,
        at: i32,
        room: i32,
    ) -> Result<i32, Ending> {
        match self.inputs.get(input) {
            Some(input) => cut(&mut self.exchange, memory, at, room, &input.key),
            None => Ok(NONE),
        }
    }

    pub fn read(
        &mut self,
        memory: &mut [u8],
        input: i32,
        offset: i64,
        at: i32,
        len: i32,
    ) -> Result<i32, Ending> {
        let Some(there) = self.inputs.there(input, offset, unsigned(len) as u64) else {
            return Ok(NONE);
        };
        self.exchange.may_work(there as usize)?;
        let target = slice_mut(memory, at, there as usize)?;
        let (number, offset) = (unsigned(input), offset as u64);
        self.inputs
            .copy(&mut self.exchange, number, offset, target)?;
        Ok(there as i32)
    }

    pub fn arguments(&mut self, memory: &mut [u8], at: i32, room: i32) -> Result<i32, Ending> {
        cut(&mut self.exchange, memory, at, room, &self.arguments)
    }

    pub fn capacity(&mut self, _: &mut [u8]) -> Result<i64, Ending> {
        let capacity = self.output.capacity();
        Ok(capacity.map_or(NONE.into(), |capacity| capacity as i64))
    }

    pub fn write(&mut self, memory: &mut [u8], at: i32, len: i32) -> Result<(), Ending> {
        let bytes = slice(memory, at, unsigned(len))?;
        self.exchange.may_work(bytes.len())?;
        let window = &mut self.inputs.window;
        self.output.write(&mut self.exchange, window, bytes)
    }

    pub fn pass(&mut self, _: &mut [u8], input: i32, offset: i64, len: i64) -> Result<i64, Ending> {
        let wanted = u64::try_from(len).unwrap_or(u64::MAX);
        let Some(there) = self.inputs.there(input, offset, wanted) else {
            return Ok(NONE.into());
        };
        let mut done = 0;
        while done < there {
            self.exchange.may_work(PIECE_BYTES)?;
            let (number, offset) = (unsigned(input), offset as u64 + done);
            let wanted = there - done;
            let piece = self
                .inputs
                .piece(&mut self.exchange, number, offset, wanted)?;
            let len = (there - done).min(piece.len() as u64);
            let piece = piece.slice(0..len as usize);
            let window = &mut self.inputs.window;
            self.output.pass(&mut self.exchange, window, &piece)?;
            self.inputs.read += len;
            done += len;
        }
        Ok(there as i64)
    }

    pub fn log(&mut self, memory: &mut [u8], at: i32, len: i32) -> Result<(), Ending> {
        let line = slice(memory, at, unsigned(len))?;
        self.exchange.may_work(line.len())?;
        let room = self.log_bytes.saturating_sub(self.logs.len() + 1);
        if room > 0 {
            self.logs.extend_from_slice(&line[..line.len().min(room)]);
            self.logs.push(b'\n');
        }
        Ok(())
    }

    pub fn fail(&mut self, memory: &mut [u8], code: i32, at: i32, len: i32) -> Result<(), Ending> {
        let words = slice(memory, at, unsigned(len))?;
        let words = String::from_utf8_lossy(&words[..words.len().min(WORDS_BYTES)]);
        Err(Ending::Failed {
            code,
            words: words.into_owned(),
        })
    }

    pub fn crc32c(
        &mut self,
        memory: &mut [u8],
        seed: i32,
        at: i32,
        len: i32,
    ) -> Result<i32, Ending> {
        let bytes = slice(memory, at, unsigned(len))?;
        let made = self.over(bytes, seed as u32, bulk::crc32c);
        Ok(made? as i32)
    }

    pub fn crc64nvme(
        &mut self,
        memory: &mut [u8],
        seed: i64,
        at: i32,
        len: i32,
    ) -> Result<i64, Ending> {
        let bytes = slice(memory, at, unsigned(len))?;
        let made = self.over(bytes, seed as u64, |seed, piece| {
            bulk::crc64nvme(seed, piece)
        });
        Ok(made? as i64)
    }

    pub fn count(
        &mut self,
        memory: &mut [u8],
        at: i32,
        len: i32,
        byte: i32,
    ) -> Result<i32, Ending> {
        let bytes = slice(memory, at, unsigned(len))?;
        // At most a memory's length, which 32 bits hold but for the last page of the longest: that one wraps.
        let found = self.over(bytes, 0_u32, |found, piece| {
            found.wrapping_add(bulk::count(byte as u8, piece))
        });
        Ok(found? as i32)
    }

    pub fn find(
        &mut self,
        memory: &mut [u8],
        at: i32,
        len: i32,
        needle: i32,
        needle_len: i32,
    ) -> Result<i32, Ending> {
        let needle = slice(memory, needle, unsigned(needle_len))?;
        let bytes = slice(memory, at, unsigned(len))?;
        // To look for a sequence takes going over it, too.
        self.exchange.may_work(needle.len())?;
        let finder = bulk::Finder::new(needle);
        let step = BULK_BYTES.max(needle.len());
        let mut start = 0;
        loop {
            // What begins in this piece may end in the next one.
            let end = bytes.len().min(start + step + needle.len());
            self.exchange.may_work(end - start)?;
            if let Some(at) = finder.find(&bytes[start..end]) {
                return Ok((start + at) as i32);
            }
            start += step;
            if start >= bytes.len() {
                return Ok(NONE);
            }
        }
    }

    pub fn sum_int(
        &mut self,
        memory: &mut [u8],
        kind: i32,
        at: i32,
        count: i32,
    ) -> Result<i64, Ending> {
        let kind = Kind::of(kind)?;
        kind.must_be_integer()?;
        let bytes = elements(memory, kind, at, count)?;
        self.over(bytes, 0_i64, |sum, piece| {
            sum.wrapping_add(bulk::sum_int(kind, piece))
        })
    }

    pub fn sum_float(
        &mut self,
        memory: &mut [u8],
        kind: i32,
        at: i32,
        count: i32,
    ) -> Result<f64, Ending> {
        let kind = Kind::of(kind)?;
        let bytes = elements(memory, kind, at, count)?;
        // Nothing added to this is what it was, whatever its sign.
        self.over(bytes, -0.0, |sum, piece| bulk::sum_float(kind, sum, piece))
    }

    pub fn compare(
        &mut self,
        memory: &mut [u8],
        kind: i32,
        op: i32,
        at: i32,
        count: i32,
        bound: i32,
        bits: i32,
    ) -> Result<i32, Ending> {
        let (kind, comparison) = (Kind::of(kind)?, Comparison::of(op)?);
        let bound = slice(memory, bound, kind.width())?;
        let bytes = elements(memory, kind, at, count)?;
        let mut answers = Vec::with_capacity(unsigned(count).div_ceil(8));
        let found = self.over(bytes, 0_u32, |found, piece| {
            found + bulk::compare(kind, comparison, piece, bound, |eight| answers.push(eight))
        });
        let found = found?;
        slice_mut(memory, bits, answers.len())?.copy_from_slice(&answers);
        Ok(found as i32)
    }

    pub fn select(
        &mut self,
        memory: &mut [u8],
        width: i32,
        at: i32,
        count: i32,
        bits: i32,
        to: i32,
    ) -> Result<i32, Ending> {
        let width = unsigned(width);
        if !(1..=WIDTH_MAX).contains(&width) {
            return Err(Ending::trap(format!("no elements have {width} bytes")));
        }
        let count = unsigned(count);
        let len = width.saturating_mul(count);
        let bits = slice(memory, bits, count.div_ceil(8))?.to_vec();
        slice(memory, at, len)?;
        let (from, to) = (unsigned(at), unsigned(to));
        let mut selected = 0;
        for first in (0..count).step_by(BULK_BYTES / WIDTH_MAX) {
            let piece = first..count.min(first + BULK_BYTES / WIDTH_MAX);
            self.exchange.may_work(width * piece.len())?;
            for number in piece.filter(|number| bits[number / 8] >> (number % 8) & 1 == 1) {
                let start = from + number * width;
                let target = to + selected * width;
                if target + width > memory.len() {
                    return Err(Ending::trap("what is selected does not fit the memory"));
                }
                memory.copy_within(start..start + width, target);
                selected += 1;
            }
        }
        Ok(selected as i32)
    }
}

impl Host {
    /// Has a bulk function go over `bytes` piece by piece, from what came of one to the next, as long as there is time for it. All
    /// pieces but the last are of the same length, which all widths of elements divide.
    fn over<T>(
        &mut self,
        bytes: &[u8],
        first: T,
        mut each: impl FnMut(T, &[u8]) -> T,
    ) -> Result<T, Ending> {
        self.exchange.may_work(0)?;
        let mut so_far = first;
        for piece in bytes.chunks(BULK_BYTES) {
            self.exchange.may_work(piece.len())?;
            so_far = each(so_far, piece);
        }
        Ok(so_far)
    }

    /// What came of the call, and whom to tell.
    pub fn end(mut self, ending: Result<(), Ending>, nanos: u64) -> (Exchange<Done>, Done) {
        let ending = ending.and_then(|()| {
            let window = &mut self.inputs.window;
            self.output.finish(&mut self.exchange, window)?;
            // Nothing may have looked at the time for a while.
            self.exchange.patience.left().map(drop)
        });
        let (len, bytes, room) = self.output.into_parts();
        let done = Done {
            ending,
            len,
            bytes,
            room,
            logs: self.logs.into(),
            read: self.inputs.read,
            memory: self.memory_peak,
            nanos,
        };
        (self.exchange, done)
    }

    /// The same call from its beginning, elsewhere. A function that did not see the end of it is none the wiser: all that it may ask
    /// has the same answers again.
    pub fn again(self, exchange: Exchange<Done>) -> Host {
        Host {
            exchange,
            inputs: self.inputs.again(),
            output: self.output.again(),
            arguments: self.arguments,
            logs: Vec::new(),
            log_bytes: self.log_bytes,
            ended: None,
            refused: false,
            memory_peak: 0,
        }
    }
}

/// So many elements from an address on.
fn elements(memory: &[u8], kind: Kind, at: i32, count: i32) -> Result<&[u8], Ending> {
    slice(memory, at, unsigned(count).saturating_mul(kind.width()))
}

/// Copies `bytes`, cut to `room`; their whole length.
fn cut<D>(
    exchange: &mut Exchange<D>,
    memory: &mut [u8],
    at: i32,
    room: i32,
    bytes: &[u8],
) -> Result<i32, Ending> {
    let len = bytes.len().min(unsigned(room));
    exchange.may_work(len)?;
    slice_mut(memory, at, len)?.copy_from_slice(&bytes[..len]);
    Ok(bytes.len() as i32)
}
