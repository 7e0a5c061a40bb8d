//! A read or write on its way: it owns its buffer until the device is done, and knows how far it came.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_mem::{Buf, BufMut, PAGE_BYTES, RegionSlice};
use tokio::sync::oneshot;

use super::Handle;
use super::at_once::place_once;
use crate::Hold;
use crate::counters::cells;

pub(crate) struct Transfer {
    handle: Arc<Handle>,
    offset: u64,
    len: usize,
    done: usize,
    body: Body,
}

/// Nobody may listen any more: the buffer is then dropped with the reply, back into its pool.
pub(crate) enum Body {
    Read {
        into: BufMut,
        reply: oneshot::Sender<(io::Result<()>, BufMut)>,
    },
    /// A read into memory that a peer may also touch.
    Place {
        into: RegionSlice,
        hold: Hold,
        reply: oneshot::Sender<io::Result<usize>>,
    },
    Write {
        from: Buf,
        reply: oneshot::Sender<io::Result<()>>,
    },
}

pub(crate) enum Progress {
    /// More is to be moved.
    More,
    /// All was moved, or all there is.
    Finished,
}

impl Transfer {
    pub(crate) fn read(
        handle: Arc<Handle>,
        offset: u64,
        into: BufMut,
        len: usize,
        reply: oneshot::Sender<(io::Result<()>, BufMut)>,
    ) -> Transfer {
        Transfer {
            handle,
            offset,
            len,
            done: 0,
            body: Body::Read { into, reply },
        }
    }

    pub(crate) fn place(
        handle: Arc<Handle>,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
        reply: oneshot::Sender<io::Result<usize>>,
    ) -> Transfer {
        Transfer {
            handle,
            offset,
            len: into.len(),
            done: 0,
            body: Body::Place { into, hold, reply },
        }
    }

    pub(crate) fn write(
        handle: Arc<Handle>,
        offset: u64,
        from: Buf,
        reply: oneshot::Sender<io::Result<()>>,
    ) -> Transfer {
        let len = from.len();
        Transfer {
            handle,
            offset,
            len,
            done: 0,
            body: Body::Write { from, reply },
        }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn body(&mut self) -> &mut Body {
        &mut self.body
    }

    /// Where in the file the rest goes.
    pub(crate) fn position(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// The part of the buffer that is still to be moved.
    pub(crate) fn rest(&self) -> std::ops::Range<usize> {
        self.done..self.len
    }

    /// Moves one piece, blocking.
    pub(crate) fn step(&mut self) -> io::Result<Progress> {
        let (position, rest) = (self.position(), self.rest());
        let moved = match &mut self.body {
            Body::Read { into, .. } => self.handle.file.read_at(&mut into.spare()[rest], position),
            Body::Place { into, .. } => place_once(&self.handle.file, position, into, rest),
            Body::Write { from, .. } => self.handle.file.write_at(&from[rest], position),
        };
        self.moved(moved)
    }

    /// Takes the outcome of moving the rest: how many bytes it was, or why none.
    ///
    /// # Errors
    /// Those that end the transfer.
    pub(crate) fn moved(&mut self, result: io::Result<usize>) -> io::Result<Progress> {
        let moved = match result {
            Ok(moved) => moved,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                return Ok(Progress::More);
            }
            Err(error) => return Err(error),
        };
        let before = self.done;
        self.done += moved.min(self.len - before);
        let write = matches!(self.body, Body::Write { .. });
        if self.done == self.len || (moved == 0 && !write) {
            return Ok(Progress::Finished);
        }
        if self.handle.direct && !self.done.is_multiple_of(PAGE_BYTES) {
            if !write && self.position() >= self.handle.len()? {
                return Ok(Progress::Finished);
            }
            // A direct transfer goes on from a whole page only.
            self.done -= self.done % PAGE_BYTES;
        }
        if self.done == before {
            return Err(if write {
                io::ErrorKind::WriteZero
            } else {
                io::ErrorKind::Other
            }
            .into());
        }
        Ok(Progress::More)
    }

    /// Answers whoever waits.
    pub(crate) fn finish(self, result: io::Result<()>) {
        match self.body {
            Body::Read { mut into, reply } => {
                cells().read_bytes.fetch_add(self.done as u64, Relaxed);
                into.set_len(self.done);
                // An error here only says that the future was dropped.
                drop(reply.send((result, into)));
            }
            Body::Place { into, hold, reply } => {
                cells().read_bytes.fetch_add(self.done as u64, Relaxed);
                // Whoever is told finds the memory free.
                drop((into, hold));
                drop(reply.send(result.map(|()| self.done)));
            }
            Body::Write { from, reply } => {
                cells().written_bytes.fetch_add(self.done as u64, Relaxed);
                // Whoever is told finds the memory free.
                drop(from);
                drop(reply.send(result));
            }
        }
    }
}
