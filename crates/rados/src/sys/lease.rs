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
/// Taking what one does not hold is one (`LIBRADOS_LOCK_FLAG_MUST_RENEW`).
const MUST_RENEW: u8 = 2;

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
        self.lock(hold, MAY_RENEW)
    }

    /// Renews it; `ENOENT` when it is not held any more, whoever holds it now. Blocks.
    pub(crate) fn renew(&self, hold: Duration) -> Result<(), Errno> {
        self.lock(hold, MUST_RENEW)
    }

    fn lock(&self, hold: Duration, flags: u8) -> Result<(), Errno> {
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
                flags,
            )
        })
    }

    /// Whether every connection but the first, which the lock goes by, answers. Blocks.
    pub(crate) fn reaches(&self) -> Result<(), Errno> {
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
        Ok(())
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
