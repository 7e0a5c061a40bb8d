//! Changing one object: all steps of an operation happen, or none.
#![expect(unsafe_code, reason = "calls of librados")]

use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::cluster::Place;
use super::library::{Api, COMPARE_EQUAL, Handle};
use super::names::{Names, name};
use super::operation::{Errno, submit};

/// An answer that there is no room, rather than a wait until there is (`LIBRADOS_OPERATION_FULL_TRY`).
const FULL_TRY: i32 = 64;

/// What must hold of the object for an operation to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// It does not exist; the operation makes it.
    Absent,
    /// It exists.
    Exists,
    /// It exists, and this is its version.
    Version(u64),
}

/// An operation being put together. The library copies every byte that it is given here.
pub(crate) struct WriteOp {
    api: &'static Api,
    handle: Handle,
    failed: Option<Errno>,
}

// SAFETY: an operation is used by one owner at a time, on any thread.
unsafe impl Send for WriteOp {}

impl WriteOp {
    /// An empty one.
    pub(crate) fn new(place: &Place) -> WriteOp {
        let api = place.api();
        // SAFETY: takes nothing.
        let handle = unsafe { (api.create_write_op)() };
        let failed = handle.is_null().then_some(Errno(libc::ENOMEM));
        WriteOp {
            api,
            handle,
            failed,
        }
    }

    /// Only if this holds.
    pub(crate) fn guard(mut self, guard: Guard) -> WriteOp {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open.
            unsafe {
                match guard {
                    Guard::Absent => (api.write_op_create)(handle, 1, null()),
                    Guard::Exists => (api.write_op_assert_exists)(handle),
                    Guard::Version(version) => (api.write_op_assert_version)(handle, version),
                }
            }
            Ok(())
        });
        self
    }

    /// Makes the object if it is not there.
    pub(crate) fn create(&mut self) {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open.
            unsafe { (api.write_op_create)(handle, 0, null()) };
            Ok(())
        });
    }

    /// Only if the value of `key` is this; a key that is not there has the empty value.
    pub(crate) fn omap_equals(&mut self, key: &[u8], value: &[u8]) {
        let api = self.api;
        self.add(|handle| {
            let key = name(key)?;
            let (at, len) = (value.as_ptr().cast(), value.len());
            // SAFETY: the operation is open, the key and value are copied; the library takes no result place.
            unsafe {
                (api.write_op_omap_cmp)(
                    handle,
                    key.as_ptr(),
                    COMPARE_EQUAL as u8,
                    at,
                    len,
                    null_mut(),
                );
            }
            Ok(())
        });
    }

    /// Sets a key beside the data.
    pub(crate) fn omap_set<'k>(&mut self, pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])>) {
        let api = self.api;
        let (keys, values): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        if keys.is_empty() {
            return;
        }
        self.add(|handle| {
            let keys = Names::new(keys)?;
            let lengths: Vec<usize> = values.iter().map(|value| value.len()).collect();
            let values: Vec<_> = values.iter().map(|value| value.as_ptr().cast()).collect();
            // SAFETY: the operation is open; as many keys as values as lengths, all copied.
            unsafe {
                (api.write_op_omap_set)(
                    handle,
                    keys.as_ptr(),
                    values.as_ptr(),
                    lengths.as_ptr(),
                    keys.len(),
                );
            }
            Ok(())
        });
    }

    /// Removes keys beside the data.
    pub(crate) fn omap_remove<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let api = self.api;
        let keys: Vec<_> = keys.into_iter().collect();
        if keys.is_empty() {
            return;
        }
        self.add(|handle| {
            let keys = Names::new(keys)?;
            // SAFETY: the operation is open; the keys are copied.
            unsafe { (api.write_op_omap_rm_keys)(handle, keys.as_ptr(), keys.len()) };
            Ok(())
        });
    }

    /// Sets an attribute.
    pub(crate) fn set_xattr(&mut self, attribute: &[u8], value: &[u8]) {
        let api = self.api;
        self.add(|handle| {
            let attribute = name(attribute)?;
            let (at, len) = (value.as_ptr().cast(), value.len());
            // SAFETY: the operation is open; name and value are copied.
            unsafe { (api.write_op_setxattr)(handle, attribute.as_ptr(), at, len) };
            Ok(())
        });
    }

    /// Removes an attribute.
    pub(crate) fn remove_xattr(&mut self, attribute: &[u8]) {
        let api = self.api;
        self.add(|handle| {
            let attribute = name(attribute)?;
            // SAFETY: the operation is open; the name is copied.
            unsafe { (api.write_op_rmxattr)(handle, attribute.as_ptr()) };
            Ok(())
        });
    }

    /// Replaces the data.
    pub(crate) fn write_full(&mut self, data: &[u8]) {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open; the data is copied.
            unsafe { (api.write_op_write_full)(handle, data.as_ptr().cast(), data.len()) };
            Ok(())
        });
    }

    /// Writes data at an offset.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open; the data is copied.
            unsafe { (api.write_op_write)(handle, data.as_ptr().cast(), data.len(), offset) };
            Ok(())
        });
    }

    /// Drops the data.
    pub(crate) fn clear(&mut self) {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open.
            unsafe { (api.write_op_truncate)(handle, 0) };
            Ok(())
        });
    }

    /// Removes the object.
    pub(crate) fn remove(&mut self) {
        let api = self.api;
        self.add(|handle| {
            // SAFETY: the operation is open.
            unsafe { (api.write_op_remove)(handle) };
            Ok(())
        });
    }

    /// Sends it; `done` hears of the object's new version, or why nothing happened. `at` is the time that the object shows, in seconds.
    pub(crate) fn send(
        self,
        place: &Arc<Place>,
        object: &[u8],
        at: Option<i64>,
        done: impl FnOnce(Result<u64, Errno>) + Send + 'static,
    ) {
        let object = match (self.failed, name(object)) {
            (Some(errno), _) | (None, Err(errno)) => return done(Err(errno)),
            (None, Ok(object)) => object,
        };
        let mut at = at.unwrap_or(0) as libc::time_t;
        let time = match at {
            0 => null_mut(),
            _ => &raw mut at,
        };
        submit(place, done, |completion| {
            let object: &CString = &object;
            // SAFETY: operation, context and completion are open; the library takes over what the operation says, and copies the name
            // and the time.
            unsafe {
                (self.api.aio_write_op_operate)(
                    self.handle,
                    place.handle_for(object.as_bytes()),
                    completion,
                    object.as_ptr(),
                    time,
                    FULL_TRY,
                )
            }
        });
    }

    /// Sends it now, and waits. Not waiting does not take it back; `room` is free when the library is done, whoever waits.
    pub(crate) fn run(
        self,
        place: &Arc<Place>,
        object: &[u8],
        at: Option<i64>,
        room: OwnedSemaphorePermit,
    ) -> impl Future<Output = Result<u64, Errno>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        self.send(place, object, at, |done| {
            drop(room);
            let _ = sender.send(done);
        });
        async move { receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN))) }
    }

    fn add(&mut self, step: impl FnOnce(Handle) -> Result<(), Errno>) {
        if self.failed.is_none() {
            self.failed = step(self.handle).err();
        }
    }
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: nobody else has the operation; the library keeps its own copy of what was submitted.
            unsafe { (self.api.release_write_op)(self.handle) };
        }
    }
}
