//! Values under way that somebody here has: what the journal says of others of this gateway's is cleaned up, as what the dead left is.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The numbers of stripes that uploads, commits and copies of this gateway have.
#[derive(Default)]
pub(crate) struct Held(Mutex<HashSet<u128>>);

impl Held {
    /// From now on somebody has these; the journal does not name them before.
    pub fn hold(self: &Arc<Self>, id: u128) -> Holding {
        self.0.lock().insert(id);
        Holding {
            held: self.clone(),
            id,
        }
    }

    pub fn has(&self, id: u128) -> bool {
        self.0.lock().contains(&id)
    }
}

/// Ends with whoever has them.
pub(crate) struct Holding {
    held: Arc<Held>,
    id: u128,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.held.0.lock().remove(&self.id);
    }
}
