//! Namespace changes as a stream that ends with the door, with the caller's key, or with the caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::v1::{self, NamespaceChangeKind as Kind, watch_server};
use forebay_store::{NamespaceInfo, Store};
use futures_util::stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::convert;
use super::identity::Caller;
use super::status::Refusal;
use super::{Door, Service};
use crate::changes::{INTERVAL, News, Revision, What};

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
        let (caller, asked) = Caller::of(request)?;
        let watcher = Watcher {
            service: self.0.clone(),
            caller,
            latest: self.changes.latest(),
            closing: self.closing.subscribe(),
            seen: asked.revision.as_ref().try_into().ok(),
            pending: VecDeque::new(),
        };
        let events = stream::try_unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Ok(event.map(|event| (event, watcher)))
        });
        Ok(Response::new(Box::pin(events)))
    }
}

struct Watcher<S> {
    service: Arc<Service<S>>,
    caller: Caller,
    latest: tokio::sync::watch::Receiver<Revision>,
    closing: tokio::sync::watch::Receiver<bool>,
    seen: Option<Revision>,
    pending: VecDeque<v1::NamespaceEvent>,
}

impl<S: Store> Watcher<S> {
    /// The next event; `None` when the door closes.
    async fn next(&mut self) -> Result<Option<v1::NamespaceEvent>, Status> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            self.service.changes.refresh(INTERVAL);
            self.collect();
            if !self.pending.is_empty() {
                continue;
            }
            tokio::select! {
                // Its sender is in the service that this holds.
                _ = self.latest.changed() => {}
                _ = self.closing.wait_for(|closing| *closing) => return Ok(None),
                () = tokio::time::sleep(INTERVAL) => {}
            }
            if !self.service.stands(&self.caller) {
                return Err(Refusal::key_gone().into());
            }
        }
    }

    fn collect(&mut self) {
        self.latest.mark_unchanged();
        match self.service.changes.since(self.seen) {
            News::Since(changes) => {
                for change in changes {
                    self.seen = Some(change.revision);
                    let kind = match change.what {
                        What::Created => Kind::Created,
                        What::Changed => Kind::Changed,
                        What::Removed => Kind::Removed,
                    };
                    self.show(kind, &change.namespace, Some(change.revision));
                }
            }
            News::Anew { present, revision } => {
                self.pending.push_back(event(Kind::Reset, None, None));
                for namespace in &present {
                    self.show(Kind::Present, namespace, None);
                }
                let synced = event(Kind::Synced, None, Some(revision));
                self.pending.push_back(synced);
                self.seen = Some(revision);
            }
        }
    }

    fn show(&mut self, kind: Kind, namespace: &NamespaceInfo, revision: Option<Revision>) {
        if self.caller.sees(&namespace.config.tenant) {
            let shown = convert::namespace(self.service.admin.described(namespace));
            self.pending.push_back(event(kind, Some(shown), revision));
        }
    }
}

fn event(
    kind: Kind,
    namespace: Option<v1::Namespace>,
    revision: Option<Revision>,
) -> v1::NamespaceEvent {
    v1::NamespaceEvent {
        kind: kind.into(),
        namespace,
        revision: revision
            .map_or_else(Vec::new, |revision| revision.to_vec())
            .into(),
    }
}
