//! The door.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{CloseReason, Link, Session};
use forebay_store::Store;
use tokio::time::timeout;

use crate::call::Context;
use crate::live::{Counting, Live, LiveLink};
use crate::metrics::Metrics;
use crate::serve;

/// How long what was answered may take to arrive when no more is served.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What is chosen for a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Requests of one link in progress at once; further ones stay in the link.
    pub requests_per_link: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            requests_per_link: 256,
        }
    }
}

/// Serves objects over links.
#[derive(Debug)]
pub struct Door<S> {
    store: Arc<S>,
    config: Config,
    metrics: Arc<Metrics>,
    live: Arc<Live>,
}

impl<S: Store> Door<S> {
    /// A door to `store`.
    pub fn new(store: Arc<S>, config: Config) -> Door<S> {
        Door {
            store,
            config,
            metrics: Arc::default(),
            live: Arc::default(),
        }
    }

    /// What it counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The links being served, oldest first.
    pub fn live(&self) -> Vec<LiveLink> {
        self.live.look()
    }

    /// Serves one link of a session until its client has finished, it breaks, the session ends, or `shutdown` is done. Requests in
    /// progress are finished before this returns; then the link is closed. Returns why. The future stays on the thread that polls it.
    pub async fn serve<L: Link>(
        &self,
        session: &Arc<Session>,
        link: &L,
        shutdown: impl Future<Output = ()>,
    ) -> CloseReason {
        let _serving = session.serve();
        let counting = Counting::new(&self.live, &self.metrics, session, link.fabric());
        let context = Context {
            store: &*self.store,
            tenant: session.tenant(),
            link,
            counting: &counting,
        };
        let reason = serve::serve(&context, self.config.requests_per_link, shutdown).await;
        if reason == CloseReason::Done {
            // A close takes back what the connection has no room for yet, replies to changes that were made among it.
            let _ = timeout(LAST_ANSWERS, link.fence()).await;
        }
        link.close(reason);
        // It may have ended before, for a reason that it knows better.
        link.closed().await
    }
}
