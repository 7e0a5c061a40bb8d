//! The door.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{CloseReason, Link, Session};
use forebay_store::waiting::Shares;
use forebay_store::{Store, shares};
use tokio::time::timeout;

use crate::call::Context;
use crate::live::{Counting, LiveLink};
use crate::messages::Messages;
use crate::metrics::Metrics;
use crate::serve;
use crate::turn::Turn;

/// How long what was answered may take to arrive when no more is served.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What messages in progress may take, as a part of the pool's length: the memory is other, but should not be more.
const MESSAGES_PART: usize = 2;

/// What is chosen for a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Requests of one link in progress at once; further ones stay in the link.
    pub requests_per_link: usize,
    /// How large the pool is that all buffers come from, in bytes. A tenant alone keeps no more than a half of it from others for what its
    /// links carry, two tenants a third each.
    pub pool_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            requests_per_link: 256,
            pool_bytes: 64 << 20,
        }
    }
}

/// Serves objects over links.
#[derive(Debug)]
pub struct Door<S> {
    store: Arc<S>,
    requests_per_link: usize,
    shares: Arc<Shares>,
    /// Of messages in progress.
    messages: Arc<shares::Shares>,
    metrics: Arc<Metrics>,
}

impl<S: Store> Door<S> {
    /// A door to `store`.
    pub fn new(store: Arc<S>, config: Config) -> Door<S> {
        Door {
            store,
            requests_per_link: config.requests_per_link,
            shares: Shares::new(config.pool_bytes),
            messages: shares::Shares::new(config.pool_bytes / MESSAGES_PART),
            metrics: Arc::default(),
        }
    }

    /// What its tenants have of the buffers. Whoever has payload travel by the same links counts it there, too.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// What it counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The links being served, oldest first.
    pub fn live(&self) -> Vec<LiveLink> {
        self.metrics.live()
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
        let counting = Counting::new(&self.metrics, session, link.fabric());
        let share = self.shares.of(session.tenant());
        let context = Context {
            store: &*self.store,
            tenant: session.tenant(),
            link,
            share: &share,
            counting: &counting,
            turn: Turn::default(),
        };
        let messages = Messages::of(self.messages.of(session.tenant()));
        let limit = self.requests_per_link;
        let reason = serve::serve(&context, limit, messages, shutdown).await;
        if reason == CloseReason::Done {
            // A close takes back what the connection has no room for yet, replies to changes that were made among it.
            let _ = timeout(LAST_ANSWERS, link.fence()).await;
        }
        link.close(reason);
        // It may have ended before, for a reason that it knows better.
        link.closed().await
    }
}
