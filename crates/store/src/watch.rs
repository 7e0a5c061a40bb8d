//! What others change: how a store that several processes write tells each of them.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

/// Something changed, by whomever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The value of a key in the objects space, or its attributes.
    Changed {
        /// The namespace's name.
        namespace: String,
        /// The key.
        key: Bytes,
    },
    /// Anything: notices were lost, or watching began again.
    Lost,
}

/// Notices as they come. They are a help, not a promise: one may be late or missing, so whoever keeps what it read also asks
/// the store again within a time that it states.
pub trait Watch: Send + 'static {
    /// The next notice; `None` when no more will come. May be dropped and called again.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Notice>> + Send + '_>>;
}
