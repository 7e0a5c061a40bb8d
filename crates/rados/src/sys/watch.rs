//! Hearing of notifications on an object, and sending them.
#![expect(unsafe_code, reason = "calls of librados, and its callbacks")]

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::cluster::{Place, in_callback};
use super::names::name;
use super::operation::{Errno, submit};

/// What a watch hears.
pub(crate) enum Heard<'b> {
    /// Somebody's words. Who said them waits until the answer is dropped.
    Words(&'b [u8], Answer),
    /// The watch broke: words may have been missed, and no more come.
    Broken,
}

/// Says that words were heard, when it is dropped.
pub(crate) struct Answer {
    place: Arc<Place>,
    object: CString,
    notification: u64,
    cookie: u64,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let place = &self.place;
        // SAFETY: the context is open, the name lives through the call; an empty answer. It is sent without waiting.
        unsafe {
            (place.api().notify_ack)(
                place.handle(),
                self.object.as_ptr(),
                self.notification,
                self.cookie,
                null_mut(),
                0,
            );
        }
    }
}

/// What the library has while a watch is open.
struct Ear {
    place: Arc<Place>,
    object: CString,
    hear: Box<dyn Fn(Heard<'_>) + Send + Sync>,
}

/// An open watch; dropping it closes it.
pub(crate) struct Watching {
    cookie: u64,
    ear: *mut Ear,
}

// SAFETY: the ear is shared with the library's thread, which only reads it.
unsafe impl Send for Watching {}
// SAFETY: as above.
unsafe impl Sync for Watching {}

impl Watching {
    /// Watches an object that exists; waits for the cluster. `hear` runs on the library's thread and must not wait.
    pub(crate) fn begin(
        place: &Arc<Place>,
        object: &[u8],
        hear: impl Fn(Heard<'_>) + Send + Sync + 'static,
    ) -> Result<Watching, Errno> {
        let ear = Box::into_raw(Box::new(Ear {
            place: place.clone(),
            object: name(object)?,
            hear: Box::new(hear),
        }));
        let mut cookie = 0;
        // SAFETY: the context is open, the name and the ear live until the watch is closed.
        let code = unsafe {
            (place.api().watch)(
                place.handle(),
                (*ear).object.as_ptr(),
                &raw mut cookie,
                Some(heard),
                Some(broken),
                0,
                ear.cast(),
            )
        };
        if let Err(errno) = Errno::check(code) {
            // SAFETY: there is no watch, so that nobody else has the ear.
            drop(unsafe { Box::from_raw(ear) });
            return Err(errno);
        }
        Ok(Watching { cookie, ear })
    }

    /// Whether it still hears.
    pub(crate) fn is_whole(&self) -> bool {
        // SAFETY: the ear lives as long as the watch.
        let place = unsafe { &(*self.ear).place };
        // SAFETY: the context is open.
        unsafe { (place.api().watch_check)(place.handle(), self.cookie) >= 0 }
    }

    /// Tells all who watch an object, and waits until each has heard or `patience_ms` are over.
    pub(crate) fn tell(
        place: &Arc<Place>,
        object: &[u8],
        words: &[u8],
        patience_ms: u64,
    ) -> impl Future<Output = Result<(), Errno>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let done = move |done: Result<u64, Errno>| {
            let _ = sender.send(done.map(|_| ()));
        };
        match (name(object), c_int::try_from(words.len())) {
            (Ok(object), Ok(len)) => submit(place, done, |completion| {
                // SAFETY: context and completion are open; name and words are copied; no place for the answers.
                unsafe {
                    (place.api().aio_notify)(
                        place.handle(),
                        object.as_ptr(),
                        completion,
                        words.as_ptr().cast(),
                        len,
                        patience_ms,
                        null_mut(),
                        null_mut(),
                    )
                }
            }),
            _ => done(Err(Errno(libc::EINVAL))),
        }
        async move { receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN))) }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // SAFETY: the ear lives until the end of this function.
        let place = unsafe { (*self.ear).place.clone() };
        // SAFETY: the context and the connection are open. After the flush no callback runs any more.
        unsafe {
            (place.api().unwatch)(place.handle(), self.cookie);
            (place.api().watch_flush)(place.cluster().handle());
            drop(Box::from_raw(self.ear));
        }
    }
}

unsafe extern "C" fn heard(
    ear: *mut c_void,
    notification: u64,
    cookie: u64,
    _notifier: u64,
    words: *mut c_void,
    len: usize,
) {
    in_callback(|| {
        // SAFETY: the ear lives until the watch is closed and flushed.
        let ear = unsafe { &*ear.cast::<Ear>() };
        let words = match len {
            0 => &[][..],
            // SAFETY: the library gives so many bytes for the time of the call.
            _ => unsafe { std::slice::from_raw_parts(words.cast::<u8>(), len) },
        };
        let answer = Answer {
            place: ear.place.clone(),
            object: ear.object.clone(),
            notification,
            cookie,
        };
        (ear.hear)(Heard::Words(words, answer));
    });
}

unsafe extern "C" fn broken(ear: *mut c_void, _cookie: u64, _code: c_int) {
    in_callback(|| {
        // SAFETY: the ear lives until the watch is closed and flushed.
        let ear = unsafe { &*ear.cast::<Ear>() };
        (ear.hear)(Heard::Broken);
    });
}
