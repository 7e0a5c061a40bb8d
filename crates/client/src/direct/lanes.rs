//! The links of a session, which take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_fabric::{CloseReason, Link};

use super::lane::{GRACE, Lane};

/// Lanes that end together, when this is dropped at the latest: each is kept alive by its own task.
#[derive(Debug)]
pub(crate) struct Lanes<L: Link> {
    lanes: Vec<Arc<Lane<L>>>,
    turn: AtomicUsize,
}

impl<L: Link> Lanes<L> {
    pub(crate) fn none() -> Lanes<L> {
        Lanes {
            lanes: Vec::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// As many as asked for, or none and the reason.
    pub(crate) async fn dialled<F: Future<Output = Result<L, String>>>(
        count: usize,
        in_flight_max: usize,
        mut dial: impl FnMut() -> F,
    ) -> Result<Lanes<L>, String> {
        let mut made = Lanes::none();
        for _ in 0..count {
            let lane = Lane::start(dial().await?, in_flight_max, GRACE);
            made.lanes.push(lane);
        }
        Ok(made)
    }

    /// The one for the next call, if there are any.
    pub(crate) fn next(&self) -> Option<&Arc<Lane<L>>> {
        match self.lanes.as_slice() {
            [] => None,
            [lane] => Some(lane),
            lanes => lanes.get(self.turn.fetch_add(1, Relaxed) % lanes.len()),
        }
    }

    /// The one that was made last, after how many others.
    pub(crate) fn last(&self) -> Option<(usize, &Arc<Lane<L>>)> {
        self.lanes.iter().enumerate().next_back()
    }

    /// Whether one of them has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.ended().is_some() || lane.link().has_ended())
    }

    pub(crate) fn close(&self) {
        for lane in &self.lanes {
            lane.close(CloseReason::Done);
        }
    }
}

impl<L: Link> Drop for Lanes<L> {
    fn drop(&mut self) {
        self.close();
    }
}
