//! Writes of a thread that waits for them: the kernel gets all in one call, and the thread wakes up once, when the device has them.
//!
//! Such a thread needs no runtime. It has a small ring of its own, made at the first write, if the system allows.
#![expect(unsafe_code, reason = "the kernel reads buffers by address")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use forebay_mem::Buf;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use super::is_forbidden;
use super::queue::{is_passing, set_up};
use crate::counters::cells;
use crate::files::Handle;

/// Writes in flight at once.
const ENTRIES: u32 = 32;
/// The most pieces of one write (IOV_MAX of Linux).
pub(crate) const PIECES_MAX: usize = 1024;

/// Buffers, and where in a file they go one after the other.
type Places = Vec<(u64, Vec<Buf>)>;

enum Ring {
    NotYet,
    Open(Box<IoUring>),
    /// Not to be had, or broken.
    None,
}

thread_local! {
    static RING: RefCell<Ring> = const { RefCell::new(Ring::NotYet) };
}

/// What of a place is still to be written.
struct Rest {
    offset: u64,
    /// Point into the buffers of the place.
    pieces: Vec<libc::iovec>,
    first: usize,
}

impl Rest {
    fn of((offset, bufs): &(u64, Vec<Buf>)) -> Rest {
        let pieces = bufs.iter().filter(|buf| !buf.is_empty());
        Rest {
            offset: *offset,
            pieces: pieces
                .map(|buf| libc::iovec {
                    iov_base: buf.as_ptr().cast_mut().cast(),
                    iov_len: buf.len(),
                })
                .collect(),
            first: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.first == self.pieces.len()
    }

    /// So many bytes were written.
    fn advance(&mut self, mut written: usize) {
        self.offset += written as u64;
        while let Some(piece) = self.pieces.get_mut(self.first)
            && written > 0
        {
            let taken = written.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(taken);
            piece.iov_len -= taken;
            written -= taken;
            if piece.iov_len == 0 {
                self.first += 1;
            }
        }
    }
}

/// Writes everything, or fails; ends when nothing is in flight any more. Gives the buffers back when this thread can have no ring.
pub(crate) fn write(handle: &Handle, places: Places) -> Result<io::Result<()>, Places> {
    // A thread that ends has no thread-locals any more.
    let ring = RING.try_with(|ring| mem::replace(&mut *ring.borrow_mut(), Ring::None));
    let mut ring = match ring {
        Ok(Ring::NotYet) if is_forbidden() => return Err(places),
        Ok(Ring::NotYet) => match set_up(ENTRIES) {
            Ok(ring) => Box::new(ring),
            Err(error) => {
                tracing::debug!(%error, "writes of this thread go one by one");
                return Err(places);
            }
        },
        Ok(Ring::Open(ring)) => ring,
        Ok(Ring::None) | Err(_) => return Err(places),
    };
    let written = write_by(&mut ring, handle, &places);
    match written {
        Ok(written) => {
            // A thread that ends needs it no more.
            let _ = RING.try_with(|kept| *kept.borrow_mut() = Ring::Open(ring));
            Ok(written)
        }
        Err(error) => {
            // The kernel may still own the buffers: they are never given back.
            tracing::error!(%error, "writes are left in the ring");
            mem::forget((places, ring));
            Ok(Err(error))
        }
    }
}

/// Fails, outside, when writes are left in the ring.
fn write_by(ring: &mut IoUring, handle: &Handle, places: &Places) -> io::Result<io::Result<()>> {
    let mut rests: Vec<Rest> = places.iter().map(Rest::of).collect();
    let mut waiting: VecDeque<usize> = (0..rests.len()).collect();
    waiting.retain(|place| !rests[*place].is_done());
    let mut in_ring = 0;
    let mut result = Ok(());
    loop {
        while result.is_ok()
            && let Some(place) = waiting.pop_front()
        {
            let rest = &rests[place];
            let pieces = &rest.pieces[rest.first..];
            let count = pieces.len().min(PIECES_MAX) as u32;
            let entry = opcode::Writev::new(Fd(handle.file.as_raw_fd()), pieces.as_ptr(), count)
                .offset(rest.offset)
                .build()
                .user_data(place as u64);
            // SAFETY: the pieces lie in `rests` and point into the buffers of `places`. Both stay, unchanged, until this has been
            // completed: this function returns only when nothing is in the ring, or else its caller forgets the buffers, and
            // the kernel has copied the list of pieces when the entry is submitted.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                waiting.push_front(place);
                break;
            }
            in_ring += 1;
        }
        if in_ring == 0 {
            return Ok(result);
        }
        cells().submissions.fetch_add(1, Relaxed);
        match ring.submit_and_wait(in_ring) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
        for entry in ring.completion() {
            in_ring -= 1;
            let place = entry.user_data() as usize;
            match entry.result() {
                0 => result = Err(io::ErrorKind::WriteZero.into()),
                written @ 1.. => {
                    cells().written_bytes.fetch_add(written as u64, Relaxed);
                    rests[place].advance(written as usize);
                    match rests[place].is_done() {
                        true => cells().ring_operations.fetch_add(1, Relaxed),
                        false => {
                            waiting.push_back(place);
                            continue;
                        }
                    };
                }
                error => {
                    let error = io::Error::from_raw_os_error(-error);
                    match is_passing(&error) {
                        true => waiting.push_back(place),
                        false => result = Err(error),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_part_goes_on_where_it_ended() {
        let bufs: Vec<Buf> = [5, 0, 3, 4].map(|len| Buf::from(vec![1; len])).into();
        let place = (100, bufs);
        let mut rest = Rest::of(&place);
        rest.advance(6);
        let piece = &rest.pieces[rest.first];
        assert_eq!((rest.offset, rest.first, piece.iov_len), (106, 1, 2));
        assert_eq!(piece.iov_base.addr(), place.1[2].as_ptr().addr() + 1);
        rest.advance(2);
        assert!(!rest.is_done());
        rest.advance(4);
        assert!(rest.is_done());
    }
}
