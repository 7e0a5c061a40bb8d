//! One io_uring a thread, driven by a local task of that thread's runtime.
//!
//! Transfers that tasks of the thread begin are collected and go to the kernel a few in one call, at the latest when the driver
//! task runs, after the tasks that were ready with it. Completions wake the runtime through the ring's descriptor: an idle ring costs nothing.
//! Files and buffer regions are registered with the ring when first used, into tables of bounded size; what finds no place is
//! used unregistered.
//!
//! Other threads, and threads without a ring (io_uring may be missing or forbidden), use worker threads; what a thread writes and waits
//! for has a way of its own.

mod queue;
mod tables;
pub(crate) mod together;

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::counters::cells;
use crate::files::Transfer;
use queue::Queue;

/// Set to `threads` to do without io_uring.
pub const BACKEND_VARIABLE: &str = "FOREBAY_IO";

/// Sizes of a ring; each is rounded or cut to what the kernel allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Transfers submitted in one call; twice as many may be in flight. More wait in memory.
    pub entries: u32,
    /// Files that may be registered at a time.
    pub files: u32,
    /// Buffer regions (slabs of a pool) that may be registered at a time.
    pub buffers: u16,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            entries: 256,
            files: 256,
            buffers: 4096,
        }
    }
}

/// Why this thread has no ring.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The environment asks for threads.
    #[error("{BACKEND_VARIABLE}=threads is set")]
    Forced,
    /// The thread has one already.
    #[error("this thread has a ring already")]
    Installed,
    /// There is no tokio runtime to drive it.
    #[error("there is no runtime with I/O on this thread")]
    NoRuntime,
    /// The kernel has no io_uring (`ENOSYS`), or it is compiled out.
    #[error("the kernel has no io_uring")]
    Missing,
    /// Refused by `kernel.io_uring_disabled` (whose value is given, where it can be read) or by a seccomp filter, as containers do.
    #[error(
        "io_uring is forbidden here (kernel.io_uring_disabled = {disabled}, or a seccomp filter)"
    )]
    Forbidden {
        /// The setting.
        disabled: String,
    },
    /// Something else.
    #[error("io_uring cannot be set up: {0}")]
    System(#[source] io::Error),
}

thread_local! {
    static RING: RefCell<Option<Rc<RefCell<Queue>>>> = const { RefCell::new(None) };
}

/// Gives this thread a ring. The driver is to be spawned as a local task (`tokio::task::spawn_local`) of this thread's
/// current-thread runtime before any I/O is awaited; when it is dropped, transfers in flight are waited for.
///
/// # Errors
/// [`Unavailable`]: asynchronous I/O from this thread then goes through worker threads.
pub fn install(config: Config) -> Result<Driver, Unavailable> {
    if is_forbidden() {
        return Err(Unavailable::Forced);
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(Unavailable::NoRuntime);
    }
    RING.with_borrow_mut(|installed| {
        if installed.is_some() {
            return Err(Unavailable::Installed);
        }
        let queue = Queue::new(config).map_err(why)?;
        let readiness = queue.readiness().map_err(Unavailable::System)?;
        let queue = Rc::new(RefCell::new(queue));
        *installed = Some(queue.clone());
        cells().rings_opened.fetch_add(1, Relaxed);
        Ok(Driver { readiness, queue })
    })
}

/// Whether the environment asks to do without io_uring.
fn is_forbidden() -> bool {
    std::env::var_os(BACKEND_VARIABLE).is_some_and(|value| value == "threads")
}

fn why(error: io::Error) -> Unavailable {
    match Errno::from_io_error(&error) {
        Some(Errno::NOSYS) => Unavailable::Missing,
        Some(Errno::PERM | Errno::ACCESS) => {
            let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            let disabled = disabled.map_or("unknown".to_owned(), |value| value.trim().to_owned());
            Unavailable::Forbidden { disabled }
        }
        _ => Unavailable::System(error),
    }
}

/// What asynchronous I/O from this thread uses: `io_uring` or `threads`.
pub fn backend() -> &'static str {
    let ring = RING.try_with(|ring| ring.borrow().is_some());
    if ring.unwrap_or(false) {
        "io_uring"
    } else {
        "threads"
    }
}

/// Takes a transfer to this thread's ring, or gives it back when there is none.
pub(crate) fn start(transfer: Transfer) -> Result<(), Transfer> {
    // A thread that ends has no thread-locals any more.
    let queue = RING.try_with(|ring| ring.borrow().clone()).ok().flatten();
    match queue {
        Some(queue) => {
            queue.borrow_mut().start(transfer);
            Ok(())
        }
        None => Err(transfer),
    }
}

/// The task that submits and completes; it never ends by itself.
#[must_use = "the ring does nothing unless its driver is spawned"]
pub struct Driver {
    readiness: AsyncFd<OwnedFd>,
    queue: Rc<RefCell<Queue>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.queue.borrow_mut().driven_by(context.waker());
        loop {
            // Asked first, so that what completes after the turn is not missed.
            let ready = self.readiness.poll_read_ready(context);
            self.queue.borrow_mut().turn(ready.is_ready());
            match ready {
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                // The runtime is shutting down; dropping the driver completes what is in flight.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let uninstalled = RING.try_with(|ring| ring.borrow_mut().take());
        drop(uninstalled);
        self.queue.borrow_mut().drain();
        cells().rings_closed.fetch_add(1, Relaxed);
    }
}
