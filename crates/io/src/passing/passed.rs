//! Files that another process passed, and the thread that closes them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

/// Files that wait to be closed when no more are taken from anybody.
const CLOSING_MAX: usize = 1024;

/// A file that another process passed to us, whatever it is. To close it may take as long as that process likes (a socket lingers, the
/// server of a file system is asked), so unless it is memory, a thread of its own does that.
#[derive(Debug)]
pub struct Passed(Option<OwnedFd>);

impl Passed {
    /// Whether it is shared memory of the system's: to look at it, to map and to close it waits for nobody, while the server of a file
    /// system may let us wait for ever.
    pub fn is_memory(&self) -> bool {
        self.0.as_ref().is_some_and(is_memory)
    }

    /// The file alone, for who knows what it is, and that nobody makes its closing wait.
    pub fn into_known(mut self) -> OwnedFd {
        self.0.take().expect("it is there until it goes")
    }
}

impl From<OwnedFd> for Passed {
    fn from(file: OwnedFd) -> Passed {
        Passed(Some(file))
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let file = self.0.as_ref().expect("it is there until it goes");
        file.as_fd()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(file) = self.0.take_if(|file| !is_memory(file)) {
            close(file);
        }
    }
}

fn is_memory(file: &OwnedFd) -> bool {
    // Nothing else has seals, and whether there are any is known without asking anybody.
    fcntl_get_seals(file).is_ok()
}

/// How many files wait to be closed.
static WAITING: AtomicUsize = AtomicUsize::new(0);

static CLOSING: LazyLock<Sender<OwnedFd>> = LazyLock::new(|| {
    let (closing, files) = channel::<OwnedFd>();
    let thread = thread::Builder::new().name("forebay-closing".into());
    let spawned = thread.spawn(move || {
        for file in files {
            // A socket does not linger then; of any other file it is an error.
            let _ = set_socket_linger(&file, None);
            drop(file);
            WAITING.fetch_sub(1, Relaxed);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "passed files are closed where they are refused");
    }
    closing
});

/// Whether so many files wait that no more are to be taken.
pub(super) fn is_full() -> bool {
    WAITING.load(Relaxed) >= CLOSING_MAX
}

fn close(file: OwnedFd) {
    WAITING.fetch_add(1, Relaxed);
    if CLOSING.send(file).is_err() {
        WAITING.fetch_sub(1, Relaxed);
    }
}
