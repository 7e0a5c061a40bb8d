//! Namespaces change through every door; hosts are to see it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use forebay_control::{Published, What};
use forebay_store::Store;
use tokio::time::{Instant, sleep};

use super::Nvme;

/// How often the store is looked at while something is published.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a number that could not be taken away waits for the next try.
const AGAIN: Duration = Duration::from_secs(10);

impl<S: Store> Nvme<S> {
    /// Tells hosts of namespaces that are removed or bounded otherwise, for ever. Looks at memory alone.
    pub async fn follow(&self) -> Infallible {
        let mut seen = Vec::new();
        let mut removing = Instant::now();
        loop {
            sleep(INTERVAL).await;
            if Instant::now() >= removing
                && let Err(error) = self.identities.unpublish_removed().await
            {
                tracing::warn!(%error, "a namespace that is gone keeps its NSID for now");
                removing = Instant::now() + AGAIN;
            }
            let published = self.identities.published();
            let now = published.iter().filter_map(|one| self.revision(one));
            let now: Vec<_> = now.collect();
            if now != seen {
                seen = now;
                self.target.refresh();
            }
        }
    }

    /// What tells that a namespace is another, or has changed.
    fn revision(&self, published: &Arc<Published>) -> Option<(u32, u32, u64)> {
        let What::KeyValue { namespace, .. } = &published.what else {
            return None;
        };
        let there = self.store.namespace(namespace).ok();
        let (id, revision) = there.map_or((0, 0), |there| (there.id, there.revision));
        Some((published.nsid, id, revision))
    }
}
