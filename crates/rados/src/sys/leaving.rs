//! The process does not end while a connection is being closed, nor at once while there is one.
//!
//! A process that ends runs the destructors of its libraries' statics. Threads that are still in librados then find its locks gone, and
//! what it throws ends the process by a signal instead of by its exit code.
#![expect(unsafe_code, reason = "a call of libc")]

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// A cluster that does not answer is not waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection that an operation still holds, of which nobody wants to know any more, is not waited for longer than this.
const SOON: Duration = Duration::from_secs(1);

static LEAVING: Count = Count::new();
static CONNECTED: Count = Count::new();

/// How many there are of what the process waits for at its end.
struct Count {
    many: Mutex<usize>,
    fewer: Condvar,
}

impl Count {
    const fn new() -> Count {
        Count {
            many: Mutex::new(0),
            fewer: Condvar::new(),
        }
    }

    fn many(&self) -> MutexGuard<'_, usize> {
        self.many.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are none, but no longer than `most`.
    fn wait(&self, most: Duration) {
        let waited = self
            .fewer
            .wait_timeout_while(self.many(), most, |many| *many > 0);
        drop(waited);
    }
}

/// One of them, until it is dropped.
pub(crate) struct AtEnd(&'static Count);

impl AtEnd {
    fn one_of(count: &'static Count) -> AtEnd {
        *count.many() += 1;
        AtEnd(count)
    }

    /// Something that is about to leave the cluster.
    pub(crate) fn leaving() -> AtEnd {
        AtEnd::one_of(&LEAVING)
    }

    /// A connection.
    pub(super) fn connected() -> AtEnd {
        AtEnd::one_of(&CONNECTED)
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        *self.0.many() -= 1;
        self.0.fewer.notify_all();
    }
}

/// Has the process wait at its end. To be called once there is a connection, so that this comes before the library's destructors and before
/// those of what it has begun to use, such as OpenSSL: the last that is registered is the first that runs.
pub(super) fn wait_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function is there as long as the process, and neither unwinds nor ends it.
        let refused = unsafe { libc::atexit(wait) };
        debug_assert_eq!(refused, 0, "an exit handler is refused");
    });
}

extern "C" fn wait() {
    LEAVING.wait(PATIENCE);
    CONNECTED.wait(SOON);
}
