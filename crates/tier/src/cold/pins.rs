//! Cold copies that are being read, and those that are to go once nobody reads them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_store::Away;
use parking_lot::Mutex;

/// Copies waiting to be deleted that are remembered: further ones are left to the sweep.
const DOOMED_MAX: usize = 1 << 20;

#[derive(Default)]
struct State {
    readers: HashMap<Away, usize>,
    doomed: HashSet<Away>,
}

/// Who reads what, and what is to go.
#[derive(Clone, Default)]
pub(super) struct Pins {
    state: Arc<Mutex<State>>,
}

/// Keeps a copy from being deleted by this process.
pub(super) struct Pin {
    pins: Pins,
    away: Away,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.state.lock();
        if let Some(readers) = state.readers.get_mut(&self.away) {
            *readers -= 1;
            if *readers == 0 {
                state.readers.remove(&self.away);
            }
        }
    }
}

impl Pins {
    pub fn pin(&self, away: Away) -> Pin {
        *self.state.lock().readers.entry(away).or_default() += 1;
        Pin {
            pins: self.clone(),
            away,
        }
    }

    /// Whether somebody reads a copy, or it is to go.
    pub fn has(&self, away: Away) -> bool {
        let state = self.state.lock();
        state.readers.contains_key(&away) || state.doomed.contains(&away)
    }

    /// Notes copies to which nothing refers any more.
    pub fn doom(&self, gone: impl IntoIterator<Item = Away>) {
        let mut state = self.state.lock();
        let room = DOOMED_MAX - state.doomed.len().min(DOOMED_MAX);
        state.doomed.extend(gone.into_iter().take(room));
    }

    /// Those of them that nobody reads.
    pub fn due(&self) -> Vec<Away> {
        let state = self.state.lock();
        let unread = |away: &&Away| !state.readers.contains_key(away);
        state.doomed.iter().filter(unread).copied().collect()
    }

    /// A copy was deleted.
    pub fn gone(&self, away: Away) {
        self.state.lock().doomed.remove(&away);
    }

    pub fn waiting(&self) -> usize {
        self.state.lock().doomed.len()
    }
}
