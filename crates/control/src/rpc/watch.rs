//! Namespace changes as a stream that ends with the door, with the caller's key, or with the caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::v1::{self, NamespaceChangeKind as Kind, Reason, watch_server};
use forebay_store::{NamespaceInfo, Store};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::admission::{Held, Ticket};
use super::identity::Caller;
use super::status::{Outcome, Refusal};
use super::{Door, Service, answers, convert};
use crate::changes::{INTERVAL, News, Revision, What};

/// Events of one watch that are described, and that nobody has read.
const UNREAD_MAX: usize = 16;

impl<S: Store> Service<S> {
    /// Lets watchers see a change that was just made.
    pub(super) fn tell(&self) {
        if self.changes.is_watched() {
            self.changes.refresh(Duration::ZERO);
        }
    }
}

#[tonic::async_trait]
impl<S: Store> watch_server::Watch for Door<S> {
    type NamespacesStream = BoxStream<v1::NamespaceEvent>;

    async fn namespaces(
        &self,
        request: Request<v1::WatchNamespacesRequest>,
    ) -> Result<Response<Self::NamespacesStream>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        call.hold(UNREAD_MAX * size_of::<v1::NamespaceEvent>())?;
        let watcher = Watcher {
            service: self.0.clone(),
            caller,
            latest: self.changes.latest(),
            closing: self.closing.subscribe(),
            seen: asked.revision.as_ref().try_into().ok(),
            pending: VecDeque::new(),
            held: Held::by(&call),
        };
        let events = answers::made_by(UNREAD_MAX, |places| watcher.watch(places));
        Ok(Response::new(events))
    }
}

/// An event that is not told yet. What is said of its namespace is found out when it is: that takes its time, and more memory.
struct Pending {
    kind: Kind,
    namespace: Option<Arc<NamespaceInfo>>,
    revision: Option<Revision>,
}

struct Watcher<S> {
    service: Arc<Service<S>>,
    caller: Caller,
    latest: tokio::sync::watch::Receiver<Revision>,
    closing: tokio::sync::watch::Receiver<bool>,
    seen: Option<Revision>,
    pending: VecDeque<Pending>,
    /// For what is pending.
    held: Held,
}

impl<S: Store> Watcher<S> {
    /// Tells events, until the door closes or nobody has read any for as long as the door has patience.
    async fn watch(mut self, places: mpsc::Sender<v1::NamespaceEvent>) -> Outcome<()> {
        let patience = self.service.config.patience;
        loop {
            let place = tokio::select! {
                place = timeout(patience, places.reserve()) => place,
                _ = self.closing.wait_for(|closing| *closing) => return Ok(()),
            };
            let Ok(Ok(place)) = place else {
                let words = "the events were not read in time";
                return Err(Refusal::new(Reason::Stopped, words));
            };
            match self.next().await? {
                Some(event) => place.send(event),
                None => return Ok(()),
            }
        }
    }

    /// The next event; `None` when the door closes.
    async fn next(&mut self) -> Outcome<Option<v1::NamespaceEvent>> {
        loop {
            self.service.must_stand(&self.caller)?;
            if let Some(pending) = self.pending.pop_front() {
                return Ok(Some(self.event(pending)));
            }
            self.service.changes.refresh(INTERVAL);
            self.collect()?;
            if !self.pending.is_empty() {
                continue;
            }
            tokio::select! {
                // Its sender is in the service that this holds.
                _ = self.latest.changed() => {}
                _ = self.closing.wait_for(|closing| *closing) => return Ok(None),
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Notes what has happened since anything was told, of which nothing is pending any more.
    fn collect(&mut self) -> Outcome<()> {
        self.latest.mark_unchanged();
        match self.service.changes.since(self.seen) {
            News::Since(mut changes) => {
                if let Some(last) = changes.last() {
                    self.seen = Some(last.revision);
                }
                changes.retain(|change| self.caller.sees(&change.namespace.config.tenant));
                self.make_room(changes.len())?;
                self.pending
                    .extend(changes.into_iter().map(|change| Pending {
                        kind: match change.what {
                            What::Created => Kind::Created,
                            What::Changed => Kind::Changed,
                            What::Removed => Kind::Removed,
                        },
                        namespace: Some(change.namespace),
                        revision: Some(change.revision),
                    }));
            }
            News::Anew {
                mut present,
                revision,
            } => {
                self.seen = Some(revision);
                present.retain(|namespace| self.caller.sees(&namespace.config.tenant));
                self.make_room(present.len() + 2)?;
                let pending = |kind, namespace, revision| Pending {
                    kind,
                    namespace,
                    revision,
                };
                self.pending.push_back(pending(Kind::Reset, None, None));
                let present = present.into_iter().map(Some);
                self.pending
                    .extend(present.map(|namespace| pending(Kind::Present, namespace, None)));
                let synced = pending(Kind::Synced, None, Some(revision));
                self.pending.push_back(synced);
            }
        }
        Ok(())
    }

    /// Room for so many events, instead of those that were told.
    fn make_room(&mut self, events: usize) -> Outcome<()> {
        self.pending = VecDeque::new();
        self.held.set(events * size_of::<Pending>())?;
        self.pending.reserve_exact(events);
        Ok(())
    }

    fn event(&self, pending: Pending) -> v1::NamespaceEvent {
        let shown = |namespace: Arc<NamespaceInfo>| {
            convert::namespace(self.service.admin.described(&namespace))
        };
        let revision = pending.revision;
        v1::NamespaceEvent {
            kind: pending.kind.into(),
            namespace: pending.namespace.map(shown),
            revision: revision
                .map_or_else(Vec::new, |revision| revision.to_vec())
                .into(),
        }
    }
}
