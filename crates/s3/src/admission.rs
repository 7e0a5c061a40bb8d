//! How many requests are served at once, and when none is any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use forebay_store::limits::may_have;
use tokio::sync::Notify;

use crate::live::Served;
use crate::metrics::Metrics;
use crate::pace::Phase;
use crate::router::Operation;

/// Bounds the requests in flight.
pub(crate) struct Gate {
    bound: usize,
    /// Requests that are not answered yet.
    serving: AtomicUsize,
    /// Those of them that have a place within the bound.
    placed: AtomicUsize,
    draining: AtomicBool,
    quiet: Notify,
    metrics: Arc<Metrics>,
}

impl Gate {
    pub(crate) fn new(bound: usize, metrics: Arc<Metrics>) -> Arc<Gate> {
        Arc::new(Gate {
            bound,
            serving: AtomicUsize::new(0),
            placed: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            quiet: Notify::new(),
            metrics,
        })
    }

    /// Counts a request in. The flag says whether it may be served.
    pub(crate) fn enter(self: &Arc<Self>, phase: Arc<Phase>) -> (Ticket, bool) {
        self.serving.fetch_add(1, Ordering::AcqRel);
        let before = self.placed.fetch_add(1, Ordering::AcqRel);
        self.metrics.begun();
        phase.begin_request();
        let ticket = Ticket {
            gate: Arc::clone(self),
            phase,
            begun: Instant::now(),
            placed: true,
            op: Operation::Unknown,
            code: 0,
            served: None,
        };
        (ticket, before < self.bound)
    }

    /// Whether a request that was counted in may go on, now that its tenant is known, which had so many before.
    pub(crate) fn may_go_on(&self, own: usize) -> bool {
        let others = self.placed.load(Ordering::Acquire).saturating_sub(1);
        may_have(1, own, others, self.bound)
    }

    /// Whether new requests should close their connections.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns when no request is in flight. Requests that arrive meanwhile are served, and close their connections.
    pub(crate) async fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        loop {
            let quiet = self.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            if self.serving.load(Ordering::Acquire) == 0 {
                return;
            }
            quiet.await;
        }
    }
}

/// One request in flight, until its response was written or given up.
pub(crate) struct Ticket {
    gate: Arc<Gate>,
    phase: Arc<Phase>,
    begun: Instant,
    placed: bool,
    /// What it turned out to be.
    pub(crate) op: Operation,
    /// The HTTP status of its response; 0 when there was none.
    pub(crate) code: u16,
    /// The same request among those of its sender, once that is known.
    pub(crate) served: Option<Served>,
}

impl Ticket {
    /// Gives its place to another request: nothing is done for this one any more but to say so.
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.placed) {
            self.gate.placed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.gate.metrics.sent(bytes);
        if let Some(served) = &self.served {
            served.sent(bytes);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
        if let Some(served) = &mut self.served {
            served.code = self.code;
        }
        self.gate
            .metrics
            .answered(self.op, self.code, self.begun.elapsed());
        self.phase.end_request();
        if self.gate.serving.fetch_sub(1, Ordering::AcqRel) == 1 && self.gate.is_draining() {
            self.gate.quiet.notify_waiters();
        }
    }
}
