//! Counters by which one process wakes another (eventfd(2)).
#![expect(
    unsafe_code,
    reason = "an entry of a ring is given to the kernel; a descriptor is watched"
)]

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use io_uring::{IoUring, opcode};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::passing::Passed;

/// What has no places is read where it is (readv(2), an offset of -1).
const WHERE_IT_IS: u64 = u64::MAX;

/// A counter that tasks of one runtime wait on.
///
/// Whom it is passed to shares its open file, and could make that blocking: nothing here relies on what it is.
#[derive(Debug)]
pub struct EventFd(AsyncFd<OwnedFd>);

impl EventFd {
    /// A counter that stands at zero, for tasks of the caller's runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let file = eventfd(0, flags)?;
        // SAFETY: nothing but the returned value can close this descriptor.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) };
        Ok(EventFd(file?))
    }

    /// Sets it back to zero; whether it had been raised.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        let mut into = [IoSliceMut::new(&mut count)];
        let taken = preadv2(
            self.0.get_ref(),
            &mut into,
            WHERE_IT_IS,
            ReadWriteFlags::NOWAIT,
        );
        taken.is_ok()
    }

    /// Waits until it was raised since it was last taken, and takes it.
    ///
    /// # Errors
    /// When the runtime has ended.
    pub async fn raised(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if self.take() {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A counter that another process waits on, and that it passed to us.
///
/// Its open file is shared: the owner could fill the counter and make the file blocking just when we add to it, and our thread would
/// wait for as long as the owner likes. So the kernel adds in our place, as it does when a ring completes something, which never waits.
/// (Where there are no rings, it is looked at first whether there is room; that leaves the owner a gap of a microsecond.)
pub struct Raise {
    file: OwnedFd,
    ring: Option<Mutex<IoUring>>,
}

impl Raise {
    /// Takes a counter.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when the file is no eventfd; what the system says.
    pub fn received(file: impl Into<Passed>) -> io::Result<Raise> {
        let file = file.into();
        let kind = fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no eventfd"));
        }
        let file = file.into_known();
        let ring = IoUring::new(1).and_then(|ring| {
            ring.submitter().register_eventfd(file.as_raw_fd())?;
            Ok(Mutex::new(ring))
        });
        if ring.is_err() {
            fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        }
        let ring = ring.ok();
        Ok(Raise { file, ring })
    }

    /// Adds one, and so wakes who waits. A counter that is full stays so: its owner has been woken.
    pub fn raise(&self) {
        let Some(ring) = &self.ring else {
            return self.write();
        };
        let mut ring = ring.lock();
        ring.completion().for_each(drop);
        // SAFETY: it does nothing and names no memory.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        // An entry that could not be submitted stays, and the next call submits it.
        let submitted = ring.submit();
        if pushed.is_err() || submitted.is_err() {
            tracing::debug!(?submitted, "an interrupt is late");
        }
    }

    fn write(&self) {
        let mut wait = [PollFd::new(&self.file, PollFlags::OUT)];
        let now = Timespec::default();
        let polled = poll(&mut wait, Some(&now));
        // What has overflowed is "ready", too, with an error.
        if polled.is_ok() && wait[0].revents().contains(PollFlags::OUT) {
            // It fails only when it is full after all.
            let _ = rustix::io::write(&self.file, &1u64.to_le_bytes());
        }
    }
}

impl std::fmt::Debug for Raise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Raise").field(&self.file).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(event: &EventFd) -> Raise {
        Raise::received(event.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_counter_raised_is_taken_once() {
        let event = EventFd::new().unwrap();
        let raise = raised(&event);
        assert!(!event.take());
        for _ in 0..100 {
            raise.raise();
            raise.raise();
            event.raised().await.unwrap();
            assert!(!event.take());
        }
        raise.write();
        assert!(event.take());
    }

    #[tokio::test]
    async fn a_counter_that_is_full_and_blocking_holds_nobody() {
        let event = EventFd::new().unwrap();
        let raise = raised(&event);
        rustix::io::write(&event, &(u64::MAX - 1).to_le_bytes()).unwrap();
        let flags = fcntl_getfl(&event).unwrap();
        fcntl_setfl(&event, flags - OFlags::NONBLOCK).unwrap();
        raise.raise();
        raise.write();
        assert!(event.take());
    }

    /// Its open file is shared with who raises it.
    #[tokio::test]
    async fn a_counter_that_was_made_blocking_holds_nobody() {
        let event = EventFd::new().unwrap();
        let raise = raised(&event);
        let flags = fcntl_getfl(&event).unwrap();
        fcntl_setfl(&event, flags - OFlags::NONBLOCK).unwrap();
        assert!(!event.take());
        for _ in 0..2 {
            raise.raise();
            event.raised().await.unwrap();
            assert!(!event.take());
        }
    }

    #[test]
    fn only_eventfds_are_taken() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = Raise::received(OwnedFd::from(socket)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
