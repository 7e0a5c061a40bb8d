//! A lock with an end, held by whoever is alive: the storage node's clock decides when it is over.
#![expect(unsafe_code, reason = "calls of librados")]

use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use super::cluster::Place;
use super::names::name;
use super::operation::Errno;

/// Renewing what one holds is no error (`LIBRADOS_LOCK_FLAG_MAY_RENEW`).
const MAY_RENEW: u8 = 1;

/// The exclusive lock of an object, named by who takes it.
pub(crate) struct Lease {
    place: Arc<Place>,
    object: CString,
    lock: CString,
    cookie: CString,
}

impl Lease {
    /// Names it; takes nothing yet.
    pub(crate) fn new(place: &Arc<Place>, object: &[u8], cookie: &[u8]) -> Result<Lease, Errno> {
        Ok(Lease {
            place: place.clone(),
            object: name(object)?,
            lock: name(b"forebay")?,
            cookie: name(cookie)?,
        })
    }

    /// Takes or renews it for so long; `EBUSY` when somebody else holds it. Blocks. Makes the object.
    pub(crate) fn take(&self, hold: Duration) -> Result<(), Errno> {
        let mut hold = libc::timeval {
            tv_sec: hold.as_secs().min(1 << 30) as libc::time_t,
            tv_usec: libc::suseconds_t::from(hold.subsec_micros() as i32),
        };
        // SAFETY: the context is open, the names and the time live through the call.
        Errno::check(unsafe {
            (self.place.api().lock_exclusive)(
                self.place.handle(),
                self.object.as_ptr(),
                self.lock.as_ptr(),
                self.cookie.as_ptr(),
                c"".as_ptr(),
                &raw mut hold,
                MAY_RENEW,
            )
        })
    }

    /// Renews it, if every connection answers: what goes by a dead one fails for ever, and only who takes this gateway for dead cleans up
    /// after it. Blocks.
    pub(crate) fn renew(&self, hold: Duration) -> Result<(), Errno> {
        for handle in self.place.other_handles() {
            let (mut size, mut time) = (0, 0);
            // SAFETY: the context is open, the name lives through the call; places for length and time.
            let code = unsafe {
                (self.place.api().stat)(*handle, self.object.as_ptr(), &raw mut size, &raw mut time)
            };
            match Errno::check(code) {
                // Who took this gateway for dead has removed it.
                Ok(()) | Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.take(hold)
    }

    /// Gives it back. Blocks.
    pub(crate) fn release(&self) -> Result<(), Errno> {
        // SAFETY: the context is open, the names live through the call.
        Errno::check(unsafe {
            (self.place.api().unlock)(
                self.place.handle(),
                self.object.as_ptr(),
                self.lock.as_ptr(),
                self.cookie.as_ptr(),
            )
        })
    }
}
