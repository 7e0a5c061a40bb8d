//! The ring and the transfers on it.
#![expect(unsafe_code, reason = "the kernel reads and writes buffers by address")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use io_uring::types::{Fd, Fixed};
use io_uring::{EnterFlags, IoUring, Submitter, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Config;
use super::tables::{Buffers, Files};
use crate::counters::cells;
use crate::files::{Body, Progress, Transfer, handles_closed};

/// A longer piece is moved in several; the kernel's own bound is a page below 2 GiB.
const PIECE_MAX_BYTES: usize = 1 << 30;

/// With fewer transfers in the ring each is submitted at once: a device that completes a batch together would idle while tasks make ready
/// the next one.
const PLENTY: usize = 16;
/// A device that has plenty to do is given so many together, for less of the processor.
const BATCH: usize = 4;
/// How often in a row the kernel is asked in vain for completions that it announces.
const VAIN_MAX: u32 = 16;

pub(super) struct Queue {
    ring: IoUring,
    files: Files,
    buffers: Buffers,
    /// Transfers by their index, which is their name in the ring.
    transfers: Vec<Option<Transfer>>,
    free: Vec<usize>,
    /// Not yet in the ring.
    waiting: VecDeque<usize>,
    /// In the ring, submitted or not; at most the completion queue's size, which then cannot overflow.
    in_ring: usize,
    waker: Option<Waker>,
    handles_closed: u64,
}

impl Queue {
    pub(super) fn new(config: Config) -> io::Result<Queue> {
        let ring = set_up(config.entries.max(1))?;
        let submitter = ring.submitter();
        Ok(Queue {
            files: Files::new(config.files, &submitter),
            buffers: Buffers::new(config.buffers, &submitter),
            transfers: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_ring: 0,
            waker: None,
            handles_closed: handles_closed(),
            ring,
        })
    }

    /// A way to wait for completions: an event counter, because the ring's own descriptor does not announce completions that
    /// were deferred to this thread. It is never read: each signal is an edge.
    pub(super) fn readiness(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.ring.submitter().register_eventfd(signal.as_raw_fd())?;
        // SAFETY: nothing but the returned value can close this descriptor.
        let readiness = unsafe { AsyncFd::register_with_interest(signal, Interest::READABLE) };
        Ok(readiness?)
    }

    /// Remembers whom to wake when there is something to submit.
    pub(super) fn driven_by(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            None => self.waker = Some(waker.clone()),
        }
    }

    pub(super) fn start(&mut self, transfer: Transfer) {
        let index = match self.free.pop() {
            Some(index) => {
                self.transfers[index] = Some(transfer);
                index
            }
            None => {
                self.transfers.push(Some(transfer));
                self.transfers.len() - 1
            }
        };
        self.waiting.push_back(index);
        let together = if self.in_ring < PLENTY { 1 } else { BATCH };
        if self.waiting.len() >= together {
            self.turn(false);
        } else if self.waiting.len() == 1
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Submits what waits and, when the kernel says that something completed, takes that.
    pub(super) fn turn(&mut self, completed: bool) {
        if handles_closed() != self.handles_closed {
            self.handles_closed = handles_closed();
            self.files.sweep(&self.ring.submitter());
        }
        let mut reap = completed;
        let mut announced = Announced::default();
        while reap || self.can_fill() {
            self.fill();
            let submits = !self.ring.submission().is_empty();
            let entered = self.enter(0);
            let moved = self.reap() > 0 || submits;
            // The kernel finishes a bounded number at a time, and announces the rest by this flag alone.
            reap = announced.again(self.ring.submission().taskrun(), moved, self.in_ring);
            match entered {
                Ok(()) => {}
                Err(error) if is_passing(&error) => {
                    // The kernel is short of something for the moment: try again after other tasks.
                    if let Some(waker) = &self.waker {
                        waker.wake_by_ref();
                    }
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "the ring takes no transfers");
                    return;
                }
            }
        }
    }

    /// Waits, blocking, until no transfer is left.
    pub(super) fn drain(&mut self) {
        while self.free.len() < self.transfers.len() {
            self.fill();
            if let Err(error) = self.enter(1)
                && !is_passing(&error)
            {
                // The kernel may still own the buffers: they are never given back.
                tracing::error!(%error, "transfers are left in the ring");
                std::mem::forget(std::mem::take(&mut self.transfers));
                self.free.clear();
                return;
            }
            self.reap();
        }
    }

    fn can_fill(&mut self) -> bool {
        let room = self.in_ring < self.ring.params().cq_entries() as usize;
        !self.ring.submission().is_empty() || (room && !self.waiting.is_empty())
    }

    /// Moves waiting transfers into the submission queue while there is room for their completions.
    fn fill(&mut self) {
        let (submitter, mut submission, completion) = self.ring.split();
        while self.in_ring < completion.capacity() && !submission.is_full() {
            let Some(index) = self.waiting.pop_front() else {
                break;
            };
            let Some(transfer) = &mut self.transfers[index] else {
                continue;
            };
            let entry = entry(transfer, &mut self.files, &mut self.buffers, &submitter)
                .user_data(index as u64);
            // SAFETY: the entry's buffer and descriptor belong to the transfer, which stays in `transfers` until its completion
            // has been taken: `reap` removes it, and `drain` forgets rather than drops what the kernel may still use.
            if unsafe { submission.push(&entry) }.is_err() {
                self.waiting.push_front(index);
                break;
            }
            self.in_ring += 1;
        }
    }

    /// Submits, lets the kernel finish completions, and waits for `wait` of them.
    fn enter(&mut self, wait: u32) -> io::Result<()> {
        let pending = self.ring.submission().len() as u32;
        if pending > 0 {
            cells().submissions.fetch_add(1, Relaxed);
        }
        // SAFETY: no argument is given, and the entries' memory is valid as said in `fill`.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(
                pending,
                wait,
                EnterFlags::GETEVENTS.bits(),
                None,
            )
        };
        entered.map(drop)
    }

    /// Takes completions; tells how many.
    fn reap(&mut self) -> usize {
        let (mut taken, mut finished) = (0, 0);
        for entry in self.ring.completion() {
            let index = entry.user_data() as usize;
            let Some(mut transfer) = self.transfers.get_mut(index).and_then(Option::take) else {
                continue;
            };
            taken += 1;
            self.in_ring -= 1;
            let moved = match entry.result() {
                moved @ 0.. => Ok(moved as usize),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            let result = match transfer.moved(moved) {
                Ok(Progress::More) => {
                    self.transfers[index] = Some(transfer);
                    self.waiting.push_back(index);
                    continue;
                }
                Ok(Progress::Finished) => Ok(()),
                Err(error) => Err(error),
            };
            self.free.push(index);
            finished += 1;
            transfer.finish(result);
        }
        cells().ring_operations.fetch_add(finished, Relaxed);
        taken
    }
}

/// Whether completions that the kernel announces are there.
///
/// The flag may stay set when none is: a processor that adds a completion sets it afterwards, and this one may have cleared the flag and
/// taken the completion in between. It is cleared only when the next one is taken. Who believed it would ask for ever.
#[derive(Default)]
struct Announced {
    /// How often in a row the kernel was asked in vain.
    in_vain: u32,
}

impl Announced {
    /// Whether to ask once more, when the flag is as it is, something `moved` the last time, and so many transfers are in the ring.
    fn again(&mut self, flag: bool, moved: bool, in_ring: usize) -> bool {
        self.in_vain = if moved { 0 } else { self.in_vain + 1 };
        flag && in_ring > 0 && self.in_vain < VAIN_MAX
    }
}

/// The ring with the cheapest completions that the kernel knows: run when this thread asks (6.1), when it enters the kernel anyway
/// (5.19), or at once.
pub(super) fn set_up(entries: u32) -> io::Result<IoUring> {
    let mut deferred = IoUring::builder();
    deferred
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun();
    let mut plain = IoUring::builder();
    let mut result = Err(io::ErrorKind::Unsupported.into());
    for builder in [&mut deferred, &mut cooperative, &mut plain] {
        result = builder.dontfork().setup_clamp().build(entries);
        match &result {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            _ => break,
        }
    }
    result
}

/// Whether the same call may succeed later: interrupted, short of memory, or completions to be taken first.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

/// The entry that moves the rest of a transfer.
fn entry(
    transfer: &mut Transfer,
    files: &mut Files,
    buffers: &mut Buffers,
    submitter: &Submitter<'_>,
) -> squeue::Entry {
    let (position, rest) = (transfer.position(), transfer.rest());
    let len = rest.len().min(PIECE_MAX_BYTES) as u32;
    let file = files.place(transfer.handle(), submitter);
    let fd = Fd(transfer.handle().file.as_raw_fd());
    // Both forms of a descriptor, for all four operations.
    macro_rules! build {
        ($operation:ident, $($argument:expr),*) => {
            match file {
                Some(place) => opcode::$operation::new(Fixed(place), $($argument),*).offset(position).build(),
                None => opcode::$operation::new(fd, $($argument),*).offset(position).build(),
            }
        };
    }
    let (entry, registered) = match transfer.body() {
        Body::Read { into, .. } => {
            let place = buffers.place(into.region(), submitter);
            let address = into.spare()[rest].as_mut_ptr();
            match place {
                Some(place) => (build!(ReadFixed, address, len, place), true),
                None => (build!(Read, address, len), false),
            }
        }
        // A peer's memory is not registered: that would pin it for as long as the ring lives.
        Body::Place { into, .. } => {
            let address = into.as_ptr().wrapping_add(rest.start);
            (build!(Read, address, len), false)
        }
        Body::Write { from, .. } => {
            let place = from
                .region()
                .and_then(|region| buffers.place(region, submitter));
            let address = from[rest].as_ptr();
            match place {
                Some(place) => (build!(WriteFixed, address, len, place), true),
                None => (build!(Write, address, len), false),
            }
        }
    };
    let counter = if registered {
        &cells().registered_buffer_operations
    } else {
        &cells().plain_buffer_operations
    };
    counter.fetch_add(1, Relaxed);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_without_completions_is_not_believed_for_ever() {
        let mut announced = Announced::default();
        assert!(!announced.again(false, true, 5), "nothing is announced");
        assert!(!announced.again(true, true, 0), "nothing is in the ring");
        for _ in 0..1000 {
            assert!(announced.again(true, true, 5), "the rest is to be taken");
        }
        let asked = (0..1000).take_while(|_| announced.again(true, false, 5));
        assert!(asked.count() < 100);
    }
}
