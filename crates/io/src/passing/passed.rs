//! Files that another process passed, and the thread that closes them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;

use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

/// Files of one owner that wait to be closed when no more are taken from him.
const OWN_MAX: usize = 256;

/// Files that wait to be closed when no more are taken from anybody: of so many owners, each of whom has all that he may.
const ALL_MAX: usize = 16 * OWN_MAX;

/// Who passes files, by whichever sockets. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Owner(Arc<AtomicUsize>);

/// All of whom nobody knows who they are, together.
pub(super) static NOBODY: LazyLock<Owner> = LazyLock::new(Owner::default);

impl Owner {
    /// Whether so many files of his wait, or of all, that no more are to be taken.
    pub(super) fn has_too_many(&self) -> bool {
        self.0.load(Relaxed) >= OWN_MAX || ALL.load(Relaxed) >= ALL_MAX
    }
}

/// A file that another process passed to us, whatever it is. To close it may take as long as that process likes (a socket lingers, the
/// server of a file system is asked), so unless it is memory, a thread of its own does that.
#[derive(Debug)]
pub struct Passed {
    file: Option<OwnedFd>,
    owner: Owner,
}

impl Passed {
    /// Whether it is shared memory of the system's: to look at it, to map and to close it waits for nobody, while the server of a file
    /// system may let us wait for ever.
    pub fn is_memory(&self) -> bool {
        self.file.as_ref().is_some_and(is_memory)
    }

    /// The file alone, for who knows what it is, and that nobody makes its closing wait.
    pub fn into_known(mut self) -> OwnedFd {
        self.file.take().expect("it is there until it goes")
    }

    pub(super) fn by(owner: &Owner, file: OwnedFd) -> Passed {
        Passed {
            file: Some(file),
            owner: owner.clone(),
        }
    }
}

impl From<OwnedFd> for Passed {
    fn from(file: OwnedFd) -> Passed {
        Passed::by(&NOBODY, file)
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let file = self.file.as_ref().expect("it is there until it goes");
        file.as_fd()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(file) = self.file.take_if(|file| !is_memory(file)) {
            // It is closed here when nobody else is there to do it.
            let _ = CLOSING.send((file, Counted::of(&self.owner)));
        }
    }
}

fn is_memory(file: &OwnedFd) -> bool {
    // Nothing else has seals, and whether there are any is known without asking anybody.
    fcntl_get_seals(file).is_ok()
}

/// How many files wait to be closed.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Counts a file that waits to be closed, until it is.
struct Counted(Owner);

impl Counted {
    fn of(owner: &Owner) -> Counted {
        for count in [&ALL, &*owner.0] {
            count.fetch_add(1, Relaxed);
        }
        Counted(owner.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for count in [&ALL, &*self.0.0] {
            count.fetch_sub(1, Relaxed);
        }
    }
}

static CLOSING: LazyLock<Sender<(OwnedFd, Counted)>> = LazyLock::new(|| {
    let (closing, files) = channel::<(OwnedFd, Counted)>();
    let thread = thread::Builder::new().name("forebay-closing".into());
    let spawned = thread.spawn(move || {
        for (file, counted) in files {
            // A socket does not linger then; of any other file it is an error.
            let _ = set_socket_linger(&file, None);
            drop(file);
            drop(counted);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "passed files are closed where they are refused");
    }
    closing
});
