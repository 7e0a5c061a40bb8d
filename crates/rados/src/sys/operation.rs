//! What read and write operations have in common: a completion that calls back once.
#![expect(unsafe_code, reason = "calls of librados, and its callbacks")]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use super::cluster::{Place, in_callback};
use super::library::Handle;

/// An error number of the system, which is what Ceph answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl Errno {
    /// Of a negative return code.
    pub(super) fn from_code(code: c_int) -> Errno {
        Errno(code.saturating_neg())
    }

    pub(super) fn check(code: c_int) -> Result<(), Errno> {
        match code {
            0.. => Ok(()),
            _ => Err(Errno::from_code(code)),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// Told of the end of an operation: the object's version, or why it failed.
type OnDone = Box<dyn FnOnce(Result<u64, Errno>) + Send>;

/// What waits for a completion. The library has it from the submission to the callback.
struct Waiting {
    place: Arc<Place>,
    done: OnDone,
}

/// Submits an operation: `submit` gets the completion and returns the library's answer. `done` is called once, here when the library
/// refuses, else on its thread. Whatever the operation reads or writes must belong to `done` or be copied by the library.
pub(super) fn submit(
    place: &Arc<Place>,
    done: impl FnOnce(Result<u64, Errno>) + Send + 'static,
    submit: impl FnOnce(Handle) -> c_int,
) {
    let api = place.api();
    let waiting = Box::new(Waiting {
        place: place.clone(),
        done: Box::new(done),
    });
    let waiting = Box::into_raw(waiting);
    let mut completion = null_mut();
    // SAFETY: a place for the completion; the callback takes `waiting` exactly once.
    let code = unsafe {
        (api.aio_create_completion)(waiting.cast(), Some(completed), None, &raw mut completion)
    };
    let code = match code {
        0.. => submit(completion),
        _ => code,
    };
    if code < 0 {
        if !completion.is_null() {
            // SAFETY: the library refused, so that nobody else has the completion.
            unsafe { (api.aio_release)(completion) };
        }
        // SAFETY: the library refused and will not call back: this is the only one who takes it.
        let waiting = unsafe { Box::from_raw(waiting) };
        (waiting.done)(Err(Errno::from_code(code)));
    }
}

unsafe extern "C" fn completed(completion: Handle, waiting: *mut c_void) {
    in_callback(|| {
        // SAFETY: `submit` made this pointer from a box, and the library calls back once.
        let waiting = unsafe { Box::from_raw(waiting.cast::<Waiting>()) };
        let api = waiting.place.api();
        // SAFETY: the completion is complete and still ours; it is not used after its release.
        let (code, version) = unsafe {
            let code = (api.aio_get_return_value)(completion);
            let version = (api.aio_get_version)(completion);
            (api.aio_release)(completion);
            (code, version)
        };
        (waiting.done)(Errno::check(code).map(|()| version));
    });
}
