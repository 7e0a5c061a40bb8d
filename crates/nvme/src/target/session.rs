//! What lives as long as a controller and belongs to none of its queues.

use std::convert::Infallible;
use std::fmt;
use std::ops::DerefMut;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_io::File;
use forebay_proto::nvme::auth::{Authenticating, Authentication};
use forebay_proto::nvme::discovery::DiscoveryLog;
use forebay_proto::nvme::{Controller, ControllerKind, SubmissionQueueEntry, Subsystem, opcode};
use forebay_store::Store;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::sleep;

use super::Target;
use super::admission::{Arrival, Proven};
use super::bound::Bound;
use super::identifiers::{Connection, Identifier};
use super::landing::Whose;
use super::live::Counting;
use super::parts::Parts;
use super::results::Results;

/// Whose namespaces are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Viewer {
    /// Those of one tenant, and those that every host sees.
    Tenant(String),
    /// All.
    Everything,
}

impl Viewer {
    pub(super) fn sees(&self, tenant: Option<&str>) -> bool {
        match (self, tenant) {
            (Viewer::Everything, _) | (_, None) => true,
            (Viewer::Tenant(own), Some(tenant)) => own == tenant,
        }
    }
}

/// What [`Target::update`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The controller shows something else now: look for events.
    Shown,
    /// The host may not be here any more: end the association.
    Over,
}

/// Wakes everybody who waits for changes.
#[derive(Debug)]
pub(super) struct Watchers(watch::Sender<u64>);

impl Default for Watchers {
    fn default() -> Watchers {
        Watchers(watch::Sender::new(0))
    }
}

impl Watchers {
    pub(super) fn wake(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Fused operations of one controller that hold buffers, which each does until its host has sent what is compared and what is written.
pub(super) const FUSING_MAX: usize = 4;

/// The execution side of one controller. It ends when it is dropped: bound keys, unfinished values and results are forgotten.
pub struct Session<S: Store> {
    pub(super) identifier: Arc<Identifier>,
    pub(super) kind: ControllerKind,
    /// The host's NQN; `None` for a device.
    pub(super) host: Whose,
    pub(super) arrival: Arrival,
    /// What the host had to prove when it came.
    pub(super) authentication: Option<Authentication>,
    pub(super) viewer: Viewer,
    pub(super) live: Counting,
    pub(super) bound: Mutex<Bound>,
    pub(super) parts: Mutex<Parts<S::Upload>>,
    /// Told when there is an unfinished value.
    pub(super) unfinished: Notify,
    pub(super) results: Results,
    /// One for each fused operation that holds buffers.
    pub(super) fusing: Semaphore,
    pub(super) changes: watch::Receiver<u64>,
    /// The generation that its controller shows.
    pub(super) seen: AtomicU64,
}

impl<S: Store> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("cntlid", &self.cntlid())
            .field("host", &self.host)
            .field("viewer", &self.viewer)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Session<S> {
    /// The controller's number.
    pub fn cntlid(&self) -> u16 {
        self.identifier.cntlid()
    }

    /// The host's NVMe Qualified Name; `None` for a device.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// What the host has proven by TLS.
    pub fn proven(&self) -> Option<&Proven> {
        self.arrival.proven.as_deref()
    }

    /// The host has proven who it is, by DH-HMAC-CHAP; `false`: it has as many controllers as it may have.
    pub(crate) fn authenticated(&self) -> bool {
        self.host().is_none_or(|nqn| self.identifier.proven(nqn))
    }

    /// Whether the host has to prove who it is before it sees anything.
    pub(crate) fn has_to_prove(&self) -> bool {
        self.authentication.is_some()
    }

    /// One more connection of the host's, beside that of the admin queue; `None`: it has as many as it may have.
    pub(crate) fn connection(&self) -> Option<Connection> {
        Connection::of(&self.identifier)
    }

    /// Whose namespaces the host sees.
    pub fn viewer(&self) -> &Viewer {
        &self.viewer
    }

    /// The controller was reset: what its queues began is forgotten.
    pub fn reset(&self) {
        self.bound.lock().clear();
        self.parts.lock().clear();
        self.results.clear();
    }
}

impl<S: Store, F: File> Target<S, F> {
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// What a controller is to show before an admin command: the present, with how full namespaces are, when that is asked.
    pub fn prepare(&self, session: &Session<S>, entry: &SubmissionQueueEntry) -> Option<Prepared> {
        (entry.opcode() == opcode::admin::IDENTIFY).then(|| self.present(session))
    }

    /// Waits until what the target shows has changed since it was last waited for, or the host may not be here any more. One task a
    /// session waits, with the `since` that it keeps (0 at first). Meanwhile it forgets what the host does not go on with.
    pub async fn changed(&self, session: &Session<S>, since: &mut u64) {
        let mut changes = session.changes.clone();
        let seen = *since;
        let changed = pin!(changes.wait_for(|count| *count > seen));
        // The sender lives in the target, which `self` holds.
        if let Either::Left((Ok(count), _)) = select(changed, pin!(self.tidy(session))).await {
            *since = *count;
        }
    }

    /// Forgets unfinished values of a session, for ever.
    async fn tidy(&self, session: &Session<S>) -> Infallible {
        loop {
            let next = session.parts.lock().forget(self.clock.unix_millis());
            match next {
                Some(in_ms) => sleep(Duration::from_millis(in_ms)).await,
                None => session.unfinished.notified().await,
            }
        }
    }

    /// Lets the controller show what there is now, and says whether the host may stay. To be called after
    /// [`changed`](Target::changed); events may follow. `controller` is taken when all is known that it is to show.
    pub fn update<C: DerefMut<Target = Controller>>(
        &self,
        session: &Session<S>,
        controller: impl FnOnce() -> C,
    ) -> Change {
        if let Some(host) = &session.host {
            let io = session.kind == ControllerKind::Io;
            if io && !self.is_secure_enough(host, session.arrival.proven.as_deref()) {
                return Change::Over;
            }
            // What it has proven to hold is of no worth any more.
            if io && self.authentication_of(host) != session.authentication {
                return Change::Over;
            }
            match self.viewer_of(host, session.arrival.trusted) {
                Some(viewer) if viewer == session.viewer => {}
                _ if !io => {}
                _ => return Change::Over,
            }
        }
        if session.seen.swap(self.generation(), Relaxed) != self.generation() {
            let present = self.present(session);
            present.show(&mut controller());
        }
        Change::Shown
    }

    fn present(&self, session: &Session<S>) -> Prepared {
        Prepared(match session.kind {
            ControllerKind::Io => Present::Subsystem(Arc::new(self.snapshot(&session.viewer))),
            ControllerKind::Discovery => Present::Discovery(self.discovery_for(session)),
        })
    }

    /// Computes what a host's proof takes, where that keeps nobody waiting but others who prove something. `None`: it failed, or there is
    /// nothing to compute.
    pub(crate) async fn compute(&self, asked: Option<Authenticating>) -> Option<Authenticating> {
        let mut asked = asked?;
        let turn = self.proving.clone().acquire_owned().await.ok()?;
        let computed = tokio::task::spawn_blocking(move || {
            asked.compute();
            // Also when nobody waits for it any more.
            drop(turn);
            asked
        });
        computed.await.ok()
    }
}

/// What is there, as a session's host sees it.
#[derive(Debug)]
pub struct Prepared(Present);

#[derive(Debug)]
enum Present {
    Subsystem(Arc<Subsystem>),
    Discovery(Arc<DiscoveryLog>),
}

impl Prepared {
    /// Lets the host's controller show it, unless that shows something newer.
    pub fn show(self, controller: &mut Controller) {
        match self.0 {
            Present::Subsystem(subsystem) => {
                if subsystem.generation >= controller.subsystem().generation {
                    controller.set_subsystem(subsystem);
                }
            }
            Present::Discovery(log) => controller.set_discovery(log),
        }
    }
}
