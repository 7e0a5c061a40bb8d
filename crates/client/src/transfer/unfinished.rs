//! Uploads that nobody would go on with.

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::Moving;
use crate::Client;

/// Uploads that transfers have begun and nobody would go on with: those of streams, of objects that are given attributes, of copies
/// inside the server, and of files where [`super::Options::resume`] is off. A transfer ends its own. What one leaves that was dropped is
/// ended by [`Unfinished::abort`].
#[derive(Debug, Default)]
pub struct Unfinished(Mutex<Vec<Upload>>);

#[derive(Debug)]
struct Upload {
    client: Client,
    namespace: String,
    key: String,
    id: String,
}

impl Unfinished {
    /// Ends those of transfers that were dropped, as far as the server can be reached.
    pub async fn abort(&self) {
        let uploads = std::mem::take(&mut *self.0.lock());
        let aborted = uploads.iter().map(|upload| {
            let Upload {
                client,
                namespace,
                key,
                id,
            } = upload;
            client.abort_upload(namespace, key, id)
        });
        // Best effort: whoever waited for them has gone.
        drop(join_all(aborted).await);
    }

    /// One has begun.
    pub(super) fn add(&self, value: Moving<'_>, id: &str) {
        self.0.lock().push(Upload {
            client: value.client.clone(),
            namespace: value.namespace.to_owned(),
            key: value.key.to_owned(),
            id: id.to_owned(),
        });
    }

    /// One has ended, or can be gone on with.
    pub(super) fn remove(&self, id: &str) {
        self.0.lock().retain(|upload| upload.id != id);
    }
}
