//! Inputs and the output as streams, and arguments as words.

use std::io::{BufRead, Read, Result, Seek, SeekFrom, Write};
use std::string::String;
use std::vec;
use std::vec::Vec;

use crate::Input;

/// What is read at once: the host reads ahead when it is asked for pieces of this length.
const PIECE_BYTES: usize = 256 << 10;

/// Reads an input.
#[derive(Debug)]
pub struct Reader {
    input: Input,
    /// Where the piece ends.
    next: u64,
    size: u64,
    piece: Vec<u8>,
    /// What of the piece is read.
    at: usize,
    filled: usize,
}

impl Input {
    /// Reads it from its begin.
    pub fn reader(self) -> Reader {
        self.reader_by(PIECE_BYTES)
    }

    /// The same, so many bytes at once: few for whoever wants few of them, after each [`Seek`].
    pub fn reader_by(self, bytes: usize) -> Reader {
        let size = self.size();
        let piece = size.min(bytes.max(1) as u64) as usize;
        Reader {
            input: self,
            next: 0,
            size,
            piece: vec![0; piece],
            at: 0,
            filled: 0,
        }
    }

    /// All of it; an input that no memory holds ends the call.
    pub fn bytes(self) -> Vec<u8> {
        let Ok(size) = usize::try_from(self.size()) else {
            crate::fail(1, "the input is longer than a memory may be")
        };
        let mut bytes = vec![0; size];
        let len = self.read(0, &mut bytes);
        bytes.truncate(len);
        bytes
    }
}

impl Reader {
    fn position(&self) -> u64 {
        self.next - (self.filled - self.at) as u64
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if self.at == self.filled && self.next < self.size {
            self.filled = self.input.read(self.next, &mut self.piece);
            self.next += self.filled as u64;
            self.at = 0;
        }
        Ok(&self.piece[self.at..self.filled])
    }

    fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.filled);
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        self.consume(len);
        Ok(len)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position().checked_add_signed(by),
        };
        let position = position.ok_or(std::io::ErrorKind::InvalidInput)?;
        let begin = self.next - self.filled as u64;
        if (begin..=self.next).contains(&position) {
            self.at = (position - begin) as usize;
        } else {
            (self.next, self.at, self.filled) = (position, 0, 0);
        }
        Ok(position)
    }
}

/// Writes the output, gathering small pieces.
#[derive(Debug, Default)]
pub struct Output {
    held: Vec<u8>,
}

impl Output {
    /// Pieces shorter than this wait for more.
    const HELD_BYTES_MAX: usize = 64 << 10;
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.held.len() + bytes.len() > Output::HELD_BYTES_MAX {
            self.flush()?;
        }
        match bytes.len() > Output::HELD_BYTES_MAX {
            true => crate::write(bytes),
            false => self.held.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.held.is_empty() {
            crate::write(&self.held);
            self.held.clear();
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // It cannot fail.
        let _ = self.flush();
    }
}

/// The arguments as the command line passes them: words, each ended by a NUL (the last one's may be missing). What is no UTF-8 is
/// replaced.
pub fn words() -> Vec<String> {
    let mut bytes = vec![0; crate::arguments(&mut [])];
    crate::arguments(&mut bytes);
    if bytes.last() == Some(&0) {
        bytes.pop();
    } else if bytes.is_empty() {
        return Vec::new();
    }
    let words = bytes.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// [`log`](crate::log) of anything that can be displayed.
pub fn say(words: impl std::fmt::Display) {
    crate::log(&std::format!("{words}"));
}
