//! Looking at one object: everything that an operation reads is of one moment.
#![expect(unsafe_code, reason = "calls of librados, and places it writes to")]

use std::ffi::{c_int, c_uchar};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::{BufMut, CopySite, RegionSlice, count_copy};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::cluster::Place;
use super::library::{Api, Handle};
use super::names::{Names, name};
use super::operation::{Errno, submit};

/// Names and values.
pub(crate) type Pairs = Vec<(Bytes, Bytes)>;

/// What an operation found.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// The object's version.
    pub version: u64,
    /// Its length and time in seconds, if asked for.
    pub stat: Option<(u64, i64)>,
    /// Its attributes, if asked for.
    pub xattrs: Pairs,
    /// What each read found, in the buffer that it was given.
    pub data: Vec<BufMut>,
    /// How much each read found that went to shared memory.
    pub landed: Vec<usize>,
    /// What each look at keys beside the data found, and whether more follows.
    pub omap: Vec<(Pairs, bool)>,
}

/// An operation being put together, with the places that the library writes to.
pub(crate) struct ReadOp {
    outputs: Outputs,
    failed: Option<Errno>,
}

impl ReadOp {
    /// An empty one.
    pub(crate) fn new(place: &Place) -> ReadOp {
        let api = place.api();
        // SAFETY: takes nothing.
        let handle = unsafe { (api.create_read_op)() };
        ReadOp {
            outputs: Outputs {
                api,
                handle,
                stat: None,
                xattrs: None,
                data: Vec::new(),
                omap: Vec::new(),
            },
            failed: handle.is_null().then_some(Errno(libc::ENOMEM)),
        }
    }

    /// Only if this is the object's version.
    pub(crate) fn assert_version(&mut self, version: u64) {
        let Outputs { api, handle, .. } = self.outputs;
        if self.failed.is_none() {
            // SAFETY: the operation is open.
            unsafe { (api.read_op_assert_version)(handle, version) };
        }
    }

    /// Asks for length and time.
    pub(crate) fn stat(&mut self) {
        let Outputs { api, handle, .. } = self.outputs;
        if self.failed.is_some() {
            return;
        }
        let slot = Slot::new(StatSlot::default());
        let at = slot.as_ptr();
        // SAFETY: the operation is open; the places live until the operation is complete.
        unsafe {
            (api.read_op_stat)(
                handle,
                &raw mut (*at).size,
                &raw mut (*at).time,
                &raw mut (*at).code,
            );
        }
        self.outputs.stat = Some(slot);
    }

    /// Asks for all attributes.
    pub(crate) fn xattrs(&mut self) {
        let Outputs { api, handle, .. } = self.outputs;
        if self.failed.is_some() {
            return;
        }
        let slot = Slot::new(IterSlot::default());
        let at = slot.as_ptr();
        // SAFETY: the operation is open; the places live until the operation is complete.
        unsafe {
            (api.read_op_getxattrs)(handle, &raw mut (*at).iter, &raw mut (*at).code);
        }
        self.outputs.xattrs = Some(slot);
    }

    /// Reads into `buf` as much as it has room for, or as there is.
    pub(crate) fn read(&mut self, offset: u64, mut buf: BufMut) {
        buf.set_len(0);
        let spare = buf.spare();
        let (at, len) = (spare.as_mut_ptr(), spare.len());
        self.read_to(offset, at, len, Memory::Ours(buf));
    }

    /// The same with several, which get what lies one after the other.
    pub(crate) fn read_all(&mut self, mut offset: u64, bufs: Vec<BufMut>) {
        for buf in bufs {
            let len = buf.capacity() as u64;
            self.read(offset, buf);
            offset += len;
        }
    }

    /// As [`ReadOp::read`], into memory that a peer may also touch: it has to be writable, and its pages must not vanish.
    pub(crate) fn read_into(&mut self, offset: u64, part: RegionSlice) {
        if !(part.region().is_writable() && part.region().is_steady()) {
            self.failed = Some(Errno(libc::EFAULT));
        }
        self.read_to(offset, part.as_ptr(), part.len(), Memory::Shared(part));
    }

    /// `memory` owns the `len` bytes at `into`, or keeps them mapped.
    fn read_to(&mut self, offset: u64, into: *mut u8, len: usize, memory: Memory) {
        let Outputs { api, handle, .. } = self.outputs;
        if self.failed.is_some() {
            return;
        }
        let slot = Slot::new(DataSlot {
            len: 0,
            code: 0,
            memory: Some(memory),
        });
        let at = slot.as_ptr();
        // SAFETY: the operation is open; the memory and the places belong to the operation until it is complete. Of memory that is
        // shared no Rust reference exists; what its peer does meanwhile changes bytes, no more.
        unsafe {
            (api.read_op_read)(
                handle,
                offset,
                len,
                into.cast(),
                &raw mut (*at).len,
                &raw mut (*at).code,
            );
        }
        self.outputs.data.push(slot);
    }

    /// Asks for keys after `after` that begin with `prefix`, at most `limit`, with their values.
    pub(crate) fn omap(&mut self, after: &[u8], prefix: &[u8], limit: u64) {
        let Outputs { api, handle, .. } = self.outputs;
        let names = (name(after), name(prefix));
        let (Ok(after), Ok(prefix)) = names else {
            self.failed = Some(Errno(libc::EINVAL));
            return;
        };
        if self.failed.is_some() {
            return;
        }
        let slot = Slot::new(IterSlot::default());
        let at = slot.as_ptr();
        // SAFETY: the operation is open; the names are copied; the places live until the operation is complete.
        unsafe {
            (api.read_op_omap_get_vals)(
                handle,
                after.as_ptr(),
                prefix.as_ptr(),
                limit,
                &raw mut (*at).iter,
                &raw mut (*at).more,
                &raw mut (*at).code,
            );
        }
        self.outputs.omap.push(slot);
    }

    /// Asks for these keys' values; those that are there come back.
    pub(crate) fn omap_keys<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let Outputs { api, handle, .. } = self.outputs;
        let keys = match Names::new(keys) {
            Ok(keys) if self.failed.is_none() => keys,
            Ok(_) => return,
            Err(errno) => {
                self.failed = Some(errno);
                return;
            }
        };
        let slot = Slot::new(IterSlot::default());
        let at = slot.as_ptr();
        // SAFETY: the operation is open; the names are copied; the places live until the operation is complete.
        unsafe {
            (api.read_op_omap_get_vals_by_keys)(
                handle,
                keys.as_ptr(),
                keys.len(),
                &raw mut (*at).iter,
                &raw mut (*at).code,
            );
        }
        self.outputs.omap.push(slot);
    }

    /// Sends it now, and waits. Not waiting leaves the operation to end by itself; `room` is free when the library is done, whoever waits.
    pub(crate) fn run(
        self,
        place: &Arc<Place>,
        object: &[u8],
        room: OwnedSemaphorePermit,
    ) -> impl Future<Output = Result<Read, Errno>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let named = name(object);
        let ReadOp { outputs, failed } = self;
        match (failed, named) {
            (Some(errno), _) | (None, Err(errno)) => drop(sender.send((Err(errno), outputs))),
            (None, Ok(object)) => {
                let (api, handle) = (outputs.api, outputs.handle);
                // The outputs go to whoever waits, by way of the callback: they live until the library has written.
                let done = move |done| {
                    drop(room);
                    drop(sender.send((done, outputs)));
                };
                submit(place, done, |completion| {
                    // SAFETY: operation, context and completion are open; the library copies the name.
                    unsafe {
                        (api.aio_read_op_operate)(
                            handle,
                            place.handle_for(object.as_bytes()),
                            completion,
                            object.as_ptr(),
                            0,
                        )
                    }
                });
            }
        }
        async move {
            let gone = Err(Errno(libc::ESHUTDOWN));
            let Ok((done, outputs)) = receiver.await else {
                return gone;
            };
            let version = done?;
            outputs.take(version)
        }
    }
}

#[derive(Default)]
struct StatSlot {
    size: u64,
    time: libc::time_t,
    code: c_int,
}

struct IterSlot {
    iter: Handle,
    more: c_uchar,
    code: c_int,
}

impl Default for IterSlot {
    fn default() -> Self {
        IterSlot {
            iter: null_mut(),
            more: 0,
            code: 0,
        }
    }
}

struct DataSlot {
    len: usize,
    code: c_int,
    memory: Option<Memory>,
}

/// What the library reads into.
enum Memory {
    Ours(BufMut),
    Shared(RegionSlice),
}

/// A place that the library may write to while the operation is under way: it does not move, and nothing refers to it meanwhile.
struct Slot<T>(NonNull<T>);

impl<T> Slot<T> {
    fn new(value: T) -> Slot<T> {
        Slot(NonNull::from(Box::leak(Box::new(value))))
    }

    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: made from a box, and dropped once, after the library is done with it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

struct Outputs {
    api: &'static Api,
    handle: Handle,
    stat: Option<Slot<StatSlot>>,
    xattrs: Option<Slot<IterSlot>>,
    data: Vec<Slot<DataSlot>>,
    omap: Vec<Slot<IterSlot>>,
}

// SAFETY: the slots are owned; the library writes them from its thread before the completion, and nobody reads them before.
unsafe impl Send for Outputs {}

impl Outputs {
    /// What was found, once the operation has succeeded.
    fn take(mut self, version: u64) -> Result<Read, Errno> {
        let mut read = Read {
            version,
            ..Read::default()
        };
        if let Some(slot) = &self.stat {
            // SAFETY: the operation is complete, so that only this thread touches the slot.
            let StatSlot { size, time, code } = unsafe { &*slot.as_ptr() };
            Errno::check(*code)?;
            #[expect(clippy::allow_attributes, reason = "time_t differs between targets")]
            #[allow(clippy::unnecessary_cast, reason = "time_t differs between targets")]
            let time = *time as i64;
            read.stat = Some((*size, time));
        }
        if let Some(slot) = &self.xattrs {
            read.xattrs = self.attributes(slot)?;
        }
        for slot in &self.omap {
            // SAFETY: the operation is complete, so that only this thread touches the slot.
            let more = unsafe { (*slot.as_ptr()).more } != 0;
            read.omap.push((self.pairs(slot)?, more));
        }
        for slot in &mut self.data {
            // SAFETY: the operation is complete, so that only this thread touches the slot.
            let DataSlot { len, code, memory } = unsafe { &mut *slot.as_ptr() };
            Errno::check(*code)?;
            // The library reads from its socket into memory of its own first.
            count_copy(CopySite::RadosRead, *len);
            match memory.take() {
                Some(Memory::Ours(mut buf)) => {
                    buf.set_len((*len).min(buf.capacity()));
                    read.data.push(buf);
                }
                Some(Memory::Shared(part)) => read.landed.push((*len).min(part.len())),
                None => {}
            }
        }
        Ok(read)
    }

    fn attributes(&self, slot: &Slot<IterSlot>) -> Result<Pairs, Errno> {
        // SAFETY: the operation is complete, so that only this thread touches the slot.
        let IterSlot { iter, code, .. } = unsafe { &*slot.as_ptr() };
        Errno::check(*code)?;
        let mut pairs = Pairs::new();
        loop {
            let (mut at, mut value, mut len) = (null(), null(), 0);
            // SAFETY: the iterator is open; three places for an attribute.
            let code = unsafe {
                (self.api.getxattrs_next)(*iter, &raw mut at, &raw mut value, &raw mut len)
            };
            Errno::check(code)?;
            if at.is_null() {
                return Ok(pairs);
            }
            // SAFETY: the library says where the name and the value are; they stay until the next call.
            let (at, value) = unsafe {
                let at = std::ffi::CStr::from_ptr(at).to_bytes();
                (Bytes::copy_from_slice(at), copied(value.cast(), len))
            };
            pairs.push((at, value));
        }
    }

    fn pairs(&self, slot: &Slot<IterSlot>) -> Result<Pairs, Errno> {
        // SAFETY: the operation is complete, so that only this thread touches the slot.
        let IterSlot { iter, code, .. } = unsafe { &*slot.as_ptr() };
        Errno::check(*code)?;
        let mut pairs = Pairs::new();
        loop {
            let (mut key, mut value) = (null_mut(), null_mut());
            let (mut key_len, mut len) = (0, 0);
            // SAFETY: the iterator is open; four places for a key and its value.
            let code = unsafe {
                (self.api.omap_get_next)(
                    *iter,
                    &raw mut key,
                    &raw mut value,
                    &raw mut key_len,
                    &raw mut len,
                )
            };
            Errno::check(code)?;
            if key.is_null() {
                return Ok(pairs);
            }
            // SAFETY: the library says where key and value are and how long; they stay until the next call.
            pairs.push(unsafe { (copied(key.cast(), key_len), copied(value.cast(), len)) });
        }
    }
}

/// # Safety
/// `len` bytes at `at` are readable, if `len` is not 0.
unsafe fn copied(at: *const u8, len: usize) -> Bytes {
    match len {
        0 => Bytes::new(),
        // SAFETY: by this function's contract.
        _ => Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        for slot in &self.omap {
            // SAFETY: the operation is complete or was never sent; an iterator that was made is closed once.
            unsafe {
                let iter = (*slot.as_ptr()).iter;
                if !iter.is_null() {
                    (self.api.omap_get_end)(iter);
                }
            }
        }
        if let Some(slot) = &self.xattrs {
            // SAFETY: as above.
            unsafe {
                let iter = (*slot.as_ptr()).iter;
                if !iter.is_null() {
                    (self.api.getxattrs_end)(iter);
                }
            }
        }
        if !self.handle.is_null() {
            // SAFETY: nobody else has the operation.
            unsafe { (self.api.release_read_op)(self.handle) };
        }
    }
}
