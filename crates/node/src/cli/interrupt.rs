//! Ctrl-C.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure, Outcome};

/// Ends what is waited for, and not the process: what was begun can be put in order.
pub struct Interrupt(Signal);

impl Interrupt {
    /// From now on.
    pub fn watch() -> Outcome<Interrupt> {
        let signal = signal(SignalKind::interrupt());
        signal
            .map(Interrupt)
            .map_err(Failure::io("cannot watch for signals"))
    }

    /// What `work` comes to, unless an interrupt comes first, or has come since the last one was told of.
    pub async fn or<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let interrupted = || Err(Failure::new(Exit::Failed, "interrupted"));
        self.before(work).await.unwrap_or_else(interrupted)
    }

    /// The same; none when an interrupt comes first.
    pub async fn before<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            outcome = work => Some(outcome),
            _ = self.0.recv() => None,
        }
    }
}
