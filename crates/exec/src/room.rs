//! Room for outputs. What a function writes for its caller waits in the buffers that all share until that caller has taken it, which may
//! be never: a tenant has no more of them than is then free for others. It is counted as the output grows, until the last of it is gone.

use std::sync::Arc;

use forebay_mem::Buf;
use forebay_store::shares::{Held, Shares};
use forebay_store::{ErrorKind, StoreError};

use crate::ending::{Bound, Ending};

/// The room of all tenants.
pub(crate) struct Rooms(Arc<Shares>);

/// What one output has of its tenant's. It is given back when it is dropped.
pub(crate) struct Room(Held);

impl Rooms {
    /// So many bytes.
    pub fn new(bound: usize) -> Rooms {
        Rooms(Shares::new(bound))
    }

    /// Nothing yet, for an output of this tenant's.
    pub fn of(&self, tenant: &str) -> Room {
        Room(self.0.of(tenant))
    }
}

impl Room {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Bound::Waiting`] when one output may not have them whatever the others have, [`ErrorKind::Busy`] when the tenant may not have
    /// them now.
    pub fn take(&mut self, more: usize) -> Result<(), Ending> {
        if self.0.grow(more) {
            return Ok(());
        }
        if !self.0.could_grow(more) {
            return Err(Ending::Stopped(Bound::Waiting));
        }
        Err(Ending::Store(StoreError::new(
            ErrorKind::Busy,
            "there is no room for more output: read what waits, or let it become a value",
        )))
    }

    /// Gives so many bytes back.
    pub fn give(&mut self, bytes: usize) {
        self.0.give_back(bytes);
    }

    /// The same buffers, each of which gives its part back when the last of it is gone. The rest is given back now.
    pub fn go_with(mut self, bufs: Vec<Buf>) -> Vec<Buf> {
        let with_part = |buf: Buf| {
            let part = self.0.split(buf.len());
            buf.keeping(part)
        };
        bufs.into_iter().map(with_part).collect()
    }
}
