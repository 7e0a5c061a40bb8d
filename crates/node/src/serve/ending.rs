//! How a server ends: requests in progress are answered, what was acknowledged before its commit lands, the leaf closes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::args::ServeArgs;
use super::cold::ColdSide;
use super::leaf::Leaf;
use super::node::Node;
use super::{forget_ready_file, socket};
use crate::exit::{Exit, Failure, Outcome};

/// How long requests in progress may take after SIGTERM.
const DRAIN: Duration = Duration::from_secs(6);
/// How long what was answered may take to be committed after that: longer than any backend tries.
const LANDING: Duration = Duration::from_secs(120);
/// How long closing the leaf may take after that, so that the process ends within 10 s.
const CLOSE: Duration = Duration::from_secs(3);

/// Doors that are open.
pub struct Open {
    /// Tells all but the console to take nothing more.
    pub stop: watch::Sender<bool>,
    /// Tells the console.
    pub end: watch::Sender<bool>,
    /// The gRPC door, which ends with its calls.
    pub calls: Option<JoinHandle<()>>,
}

/// Ends what is served.
pub async fn end(args: &ServeArgs, node: Node, open: Open) -> Outcome {
    // Every receiver may be gone already: then there is nobody to tell.
    let _ = open.stop.send(true);
    drain(&node, open.calls).await;
    land(&node).await;
    // Until now it told that this process drains.
    let _ = open.end.send(true);
    socket::remove(&args.dir);
    forget_ready_file(args);
    close(node.cold, node.leaf).await?;
    tracing::info!("ended");
    Ok(())
}

/// Waits for the requests in progress.
async fn drain(node: &Node, calls: Option<JoinHandle<()>>) {
    let drained = async {
        node.door.drain().await;
        node.shards.drained().await;
        if let Some(calls) = calls {
            // It fails only when it panicked, which it has told already.
            let _ = calls.await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!(
            connections = node.shards.connections(),
            "requests still in progress are cut off"
        );
    }
}

/// What was answered before the backend committed it takes as long as the backend does, which has its own patience.
async fn land(node: &Node) {
    let tier = node.store.below();
    if tokio::time::timeout(LANDING, tier.land()).await.is_err() {
        let bytes = tier.metrics().map_or(0, |metrics| metrics.write_back_bytes);
        tracing::error!(
            bytes,
            "acknowledged values are lost: the backend does not commit them"
        );
    }
}

async fn close(cold: ColdSide, leaf: Leaf) -> Outcome {
    let closing = tokio::task::spawn_blocking(move || {
        cold.close();
        leaf.close();
    });
    match tokio::time::timeout(CLOSE, closing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(Failure::new(Exit::Failed, error)),
        // What was acknowledged is safe; the next start has more of the journal to replay.
        Err(_) => tracing::warn!("the index is not up to date: the disk is slow"),
    }
    Ok(())
}
