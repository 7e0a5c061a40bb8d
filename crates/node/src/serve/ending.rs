//! How a server ends: requests in progress are answered, what was acknowledged before its commit lands, the leaf closes.

use std::time::Duration;

use forebay_tier::Unlanded;
use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::args::ServeArgs;
use super::cold::ColdSide;
use super::leaf::Leaf;
use super::listeners::forget_ready_file;
use super::node::Node;
use crate::exit::{Exit, Failure, Outcome};

/// How long requests in progress may take after SIGTERM.
const DRAIN: Duration = Duration::from_secs(6);
/// How long what was answered may take to be committed after that: longer than any backend tries.
const LANDING: Duration = Duration::from_secs(120);
/// How long closing the leaf may take after that. Where nothing has to land, the process ends within 10 s.
const CLOSE: Duration = Duration::from_secs(3);

/// Doors that are open.
pub struct Open {
    /// Tells all but the console to take nothing more.
    pub stop: watch::Sender<bool>,
    /// Tells the console.
    pub end: watch::Sender<bool>,
    /// The admin API, which ends with its requests.
    pub admin: JoinHandle<()>,
    /// The gRPC door, which ends with its calls.
    pub calls: Option<JoinHandle<()>>,
}

/// What tells the process to end.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Those that come from now on.
    pub fn watch() -> Outcome<Signals> {
        let on = |kind| signal(kind).map_err(Failure::io("cannot watch for signals"));
        Ok(Signals {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one, and names it.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Forgets those that have come.
    fn forget(&mut self) {
        while self.next().now_or_never().is_some() {}
    }
}

/// Ends what is served.
///
/// # Errors
/// When acknowledged values are lost; when the leaf could not be closed.
pub async fn end(args: &ServeArgs, node: Node, open: Open, mut signals: Signals) -> Outcome {
    // Every receiver may be gone already: then there is nobody to tell.
    let _ = open.stop.send(true);
    drain(&node, open.admin, open.calls).await;
    // Some senders say it twice at once, as timeout(1): that is to lose nothing.
    signals.forget();
    let landed = land(&node, &mut signals).await;
    // Until now it told that this process drains.
    let _ = open.end.send(true);
    forget_ready_file(args);
    let closed = close(node.cold, node.leaf).await;
    landed.and(closed)?;
    tracing::info!("ended");
    Ok(())
}

/// Waits for the requests in progress.
async fn drain(node: &Node, admin: JoinHandle<()>, calls: Option<JoinHandle<()>>) {
    let drained = async {
        node.door.drain().await;
        node.shards.drained().await;
        // They fail only when they panicked, which they have told already.
        let _ = admin.await;
        if let Some(calls) = calls {
            let _ = calls.await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!(
            connections = node.shards.connections(),
            "requests still in progress are not waited for"
        );
    }
}

/// Waits until the backend has committed what was answered before that. It takes as long as the backend does, which has its own
/// patience; another signal ends ours. Requests that are still in progress are answered when they are committed.
async fn land(node: &Node, signals: &mut Signals) -> Outcome {
    let tier = node.store.below();
    let Unlanded { values, bytes } = tier.unlanded();
    if values > 0 {
        tracing::info!(
            values,
            bytes,
            "waiting until acknowledged values are committed; another signal ends that"
        );
    }
    tokio::select! {
        // First: it has to begin, whatever else there is.
        biased;
        () = tier.land() => {}
        () = tokio::time::sleep(LANDING) => tracing::warn!("the backend takes too long"),
        signal = signals.next() => tracing::warn!(signal, "the backend is not waited for"),
    }
    match tier.unlanded() {
        Unlanded { values: 0, .. } => Ok(()),
        Unlanded { values, bytes } => Err(Failure::new(
            Exit::Failed,
            format_args!(
                "acknowledged values lost: {values} ({bytes} bytes), which the backend has not committed"
            ),
        )),
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
