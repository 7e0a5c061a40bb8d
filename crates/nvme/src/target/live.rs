//! What each controller does now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_proto::nvme::Status;
use parking_lot::Mutex;

use super::counters::Moved;
use super::session::Viewer;

/// One controller. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveController {
    /// Names it while the target is there.
    pub id: u64,
    /// Whose namespaces it shows; `None`: everybody's.
    pub tenant: Option<String>,
    /// The host's NVMe Qualified Name; `None` for a device.
    pub host: Option<String>,
    /// I/O commands that ended.
    pub commands: u64,
    /// Those of them that failed, or that the host gave up.
    pub failures: u64,
    /// Payload given to the host, in bytes.
    pub sent_bytes: u64,
    /// Payload taken from the host, in bytes.
    pub received_bytes: u64,
    /// I/O commands in progress.
    pub in_flight: u64,
}

/// The controllers that hosts do I/O with.
#[derive(Debug, Default)]
pub(super) struct Live {
    controllers: Mutex<(u64, BTreeMap<u64, Arc<Counts>>)>,
}

#[derive(Debug)]
struct Counts {
    viewer: Viewer,
    host: Option<Arc<str>>,
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Live {
    pub(super) fn look(&self) -> Vec<LiveController> {
        let controllers = self.controllers.lock();
        let line = |(id, counts): (&u64, &Arc<Counts>)| {
            // What ended meanwhile had begun.
            let commands = counts.ended.load(Relaxed);
            LiveController {
                id: *id,
                tenant: match &counts.viewer {
                    Viewer::Tenant(tenant) => Some(tenant.clone()),
                    Viewer::Everything => None,
                },
                host: counts.host.as_deref().map(str::to_owned),
                commands,
                failures: counts.failed.load(Relaxed),
                sent_bytes: counts.sent.load(Relaxed),
                received_bytes: counts.received.load(Relaxed),
                in_flight: counts.begun.load(Relaxed).saturating_sub(commands),
            }
        };
        controllers.1.iter().map(line).collect()
    }
}

/// Counts for one controller, whose line goes when this is dropped.
#[derive(Debug)]
pub(super) struct Counting {
    live: Arc<Live>,
    id: u64,
    own: Arc<Counts>,
}

impl Counting {
    pub(super) fn new(live: &Arc<Live>, viewer: Viewer, host: Option<Arc<str>>) -> Counting {
        let own = Arc::new(Counts {
            viewer,
            host,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        let mut controllers = live.controllers.lock();
        controllers.0 += 1;
        let id = controllers.0;
        controllers.1.insert(id, own.clone());
        drop(controllers);
        Counting {
            live: live.clone(),
            id,
            own,
        }
    }

    /// A command begins.
    pub(super) fn begin(&self) -> Running<'_> {
        self.own.begun.fetch_add(1, Relaxed);
        Running {
            counts: &self.own,
            succeeded: false,
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.live.controllers.lock().1.remove(&self.id);
    }
}

/// A command in progress. One that is dropped before it ended was given up.
pub(super) struct Running<'a> {
    counts: &'a Counts,
    succeeded: bool,
}

impl Running<'_> {
    pub(super) fn end(mut self, status: Status, moved: Moved) {
        self.succeeded = status.is_success();
        if moved.received_bytes > 0 {
            self.counts
                .received
                .fetch_add(moved.received_bytes, Relaxed);
        }
        if moved.sent_bytes > 0 {
            self.counts.sent.fetch_add(moved.sent_bytes, Relaxed);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.counts.failed.fetch_add(1, Relaxed);
        }
        self.counts.ended.fetch_add(1, Relaxed);
    }
}
