//! Room for outputs. What a function writes for its caller waits in the buffers that all share until that caller has taken it, which may
//! be never: a tenant has no more of them than is then free for others. It is counted as the output grows, until the last of it is gone.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_mem::Buf;
use forebay_store::limits::may_have;
use forebay_store::{ErrorKind, StoreError};
use parking_lot::Mutex;

/// The room of all tenants.
pub(crate) struct Rooms {
    /// Bytes of all outputs together.
    bound: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Those that have some.
    tenants: HashMap<Arc<str>, usize>,
}

/// What one output has of its tenant's. It is given back when it is dropped.
pub(crate) struct Room {
    rooms: Arc<Rooms>,
    tenant: Arc<str>,
    bytes: usize,
}

impl Rooms {
    /// So many bytes.
    pub fn new(bound: usize) -> Arc<Rooms> {
        Arc::new(Rooms {
            bound,
            taken: Mutex::default(),
        })
    }

    /// Nothing yet, for an output of this tenant's.
    pub fn of(self: &Arc<Rooms>, tenant: &str) -> Room {
        Room {
            rooms: self.clone(),
            tenant: tenant.into(),
            bytes: 0,
        }
    }
}

impl Room {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the tenant may not have them.
    pub fn take(&mut self, more: usize) -> Result<(), StoreError> {
        let mut taken = self.rooms.taken.lock();
        let own = taken.tenants.get(&self.tenant).copied().unwrap_or(0);
        if !may_have(more, own, taken.all, self.rooms.bound) {
            return Err(StoreError::new(
                ErrorKind::Busy,
                "there is no room for more output: read what waits, or let it become a value",
            ));
        }
        taken.all += more;
        taken.tenants.insert(self.tenant.clone(), own + more);
        self.bytes += more;
        Ok(())
    }

    /// Gives so many bytes back.
    pub fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if bytes == 0 {
            return;
        }
        let mut taken = self.rooms.taken.lock();
        taken.all -= bytes;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= bytes;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }

    /// The same buffers, each of which gives its part back when the last of it is gone. The rest is given back now.
    pub fn go_with(mut self, bufs: Vec<Buf>) -> Vec<Buf> {
        let with_part = |buf: Buf| {
            let bytes = buf.len().min(self.bytes);
            self.bytes -= bytes;
            buf.keeping(Room {
                rooms: self.rooms.clone(),
                tenant: self.tenant.clone(),
                bytes,
            })
        };
        bufs.into_iter().map(with_part).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}
