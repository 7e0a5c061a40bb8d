//! Uploads that nobody would go on with.

use std::sync::Arc;

use futures_util::future::join_all;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Moving;
use super::upload::joined;
use crate::{Client, Result};

/// Uploads that transfers have begun and nobody would go on with: those of streams, of objects that are given attributes, of copies
/// inside the server, and of files where [`super::Options::resume`] is off or uploads may not be listed. A transfer ends its own. What one leaves that was dropped is
/// ended by [`Unfinished::abort`].
#[derive(Debug, Default)]
pub struct Unfinished(Mutex<Vec<Upload>>);

#[derive(Debug)]
struct Upload {
    client: Client,
    namespace: String,
    key: String,
    /// What the server calls it, once that has answered.
    id: watch::Receiver<Option<String>>,
}

impl Unfinished {
    /// Whether there is none now.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Ends those of transfers that were dropped, as far as the server can be reached. One that was just being begun is ended when the
    /// server has said that it was.
    pub async fn abort(&self) {
        let uploads = std::mem::take(&mut *self.0.lock());
        join_all(uploads.into_iter().map(Upload::abort)).await;
    }

    /// Begins an upload of which these headers say what is kept with the object. It is here also when whoever asked for it does not wait
    /// for the answer: the server may have begun it.
    pub(super) async fn begin(
        self: &Arc<Unfinished>,
        value: Moving<'_>,
        kept: HeaderMap,
    ) -> Result<String> {
        let client = value.client.clone();
        let (namespace, key) = (value.namespace.to_owned(), value.key.to_owned());
        let (answered, id) = watch::channel(None);
        self.0.lock().push(Upload {
            client: client.clone(),
            namespace: namespace.clone(),
            key: key.clone(),
            id: id.clone(),
        });
        let here = self.clone();
        let begun = tokio::spawn(async move {
            let begun = client.begin_upload(&namespace, &key, kept).await;
            match &begun {
                Ok(begun) => drop(answered.send_replace(Some(begun.clone()))),
                Err(_) => here.retain(|upload| !upload.id.same_channel(&id)),
            }
            begun
        });
        joined(begun.await)?
    }

    /// One has ended, or can be gone on with.
    pub(super) fn remove(&self, id: &str) {
        self.retain(|upload| upload.id.borrow().as_deref() != Some(id));
    }

    fn retain(&self, stays: impl FnMut(&Upload) -> bool) {
        self.0.lock().retain(stays);
    }
}

impl Upload {
    async fn abort(mut self) {
        let begun = self.id.wait_for(Option::is_some).await.ok();
        let Some(id) = begun.and_then(|id| id.clone()) else {
            return;
        };
        let (namespace, key) = (&self.namespace, &self.key);
        // Best effort: whoever waited for it has gone.
        drop(self.client.abort_upload(namespace, key, &id).await);
    }
}
