//! The process does not end while a connection is being closed.
//!
//! A process that ends runs the destructors of its libraries' statics. Threads that are still in librados then find its locks gone, and
//! what it throws ends the process by a signal instead of by its exit code.
#![expect(unsafe_code, reason = "a call of libc")]

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// A cluster that does not answer is not waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection that an operation still holds, of which nobody wants to know any more, is not waited for longer than this.
const SOON: Duration = Duration::from_secs(1);

static LEAVING: Mutex<usize> = Mutex::new(0);
static CONNECTED: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();
static CLOSED: Condvar = Condvar::new();

/// Something that is about to leave the cluster; has left when it is dropped.
pub(crate) struct Leaving(());

impl Leaving {
    pub(crate) fn begin() -> Leaving {
        *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Leaving(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LEFT.notify_all();
    }
}

/// A connection; it is no more when this is dropped.
pub(super) struct Connected(());

impl Connected {
    pub(super) fn begin() -> Connected {
        *CONNECTED.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Connected(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        *CONNECTED.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        CLOSED.notify_all();
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
    let leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    let left = LEFT.wait_timeout_while(leaving, PATIENCE, |leaving| *leaving > 0);
    drop(left);
    let connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
    let closed = CLOSED.wait_timeout_while(connected, SOON, |connected| *connected > 0);
    drop(closed);
}
