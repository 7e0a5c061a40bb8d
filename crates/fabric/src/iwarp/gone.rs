//! Whether the peer has gone, for who receives nothing now and does not come to the end of what it said.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use tokio::io::Interest;

use super::link::Shared;

/// Whether the peer has ended its side of the connection, or the connection is lost.
#[derive(Default)]
pub(super) enum Gone {
    /// Nobody wanted to know.
    #[default]
    Unasked,
    /// Not yet, and the system tells.
    No(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// It stays so.
    Yes,
}

impl Gone {
    /// Whether it has; if not, the task is woken when it has, however much there is to receive before that.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, shared: &Arc<Shared>) -> bool {
        if let Gone::Unasked = self {
            let shared = shared.clone();
            *self = Gone::No(Box::pin(async move {
                // The end of a stream is a part of every interest; of this one it is all that a connection of ours ever has.
                let _ = shared.wire.tcp().ready(Interest::PRIORITY).await;
            }));
        }
        if let Gone::No(telling) = self
            && telling.as_mut().poll(cx).is_pending()
        {
            return false;
        }
        *self = Gone::Yes;
        true
    }
}
