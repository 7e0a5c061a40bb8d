//! The sweep of parts whose upload has ended.
//!
//! An upload that is completed or aborted takes its parts with it. A part that comes to another server of the same store in that
//! moment is removed by that server, which looks for the upload once more when the part is there; one that dies before it has
//! looked leaves the part. Uploads do not come back under their names: nobody will join it.

use std::collections::HashSet;
use std::time::Duration;

use forebay_proto::s3::xml::MAX_PARTS;
use forebay_store::{After, Item, ListOptions, Result, Space, Store};

use crate::door::Door;
use crate::lifecycle::Swept;
use crate::multipart::remove_parts;
use crate::staging::{self, UploadId};
use crate::status::Outcome;

/// Younger parts are left alone: whoever has just stored one looks after it.
const AGE: Duration = Duration::from_secs(3600);
/// Uploads looked for at a time: what a sweep holds in memory is bounded.
const UPLOADS_MAX: usize = 1 << 16;

impl<S: Store> Door<S> {
    /// Removes what a bucket holds of uploads that have ended, as of `now_ms` (Unix milliseconds). Parts are listed before uploads:
    /// there is no part before its upload.
    ///
    /// # Errors
    /// When a list cannot be read.
    pub(crate) async fn sweep_orphans(
        &self,
        bucket: &str,
        now_ms: u64,
        swept: &mut Swept,
    ) -> Result<()> {
        let mut cursor = None;
        loop {
            let (mut orphans, next) = self.uploads_with_parts(bucket, cursor).await?;
            if !orphans.is_empty() {
                self.strike_uploads(bucket, &mut orphans).await?;
            }
            for id in orphans {
                match self.remove_orphans(bucket, &id, now_ms).await {
                    Ok(0) => {}
                    Ok(removed) => {
                        tracing::info!(
                            bucket,
                            removed,
                            "removed parts of an upload that has ended"
                        );
                        swept.orphans += removed;
                    }
                    Err(refusal) => {
                        tracing::warn!(bucket, error = %refusal.error, "parts of an upload that has ended could not be removed");
                        swept.failed += 1;
                    }
                }
            }
            match next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Uploads that have parts, and behind which prefix more are to be found.
    async fn uploads_with_parts(
        &self,
        bucket: &str,
        mut cursor: Option<Vec<u8>>,
    ) -> Result<(HashSet<UploadId>, Option<Vec<u8>>)> {
        let mut found = HashSet::new();
        loop {
            let page = self
                .store
                .list(ListOptions {
                    namespace: bucket,
                    space: Space::Staging,
                    prefix: staging::PARTS,
                    delimiter: Some(b"\0"),
                    after: cursor.as_deref().map_or(After::Start, After::Prefix),
                    limit: usize::MAX,
                })
                .await?;
            for item in page.items {
                if let Item::Prefix(prefix) = item {
                    found.extend(staging::parse_parts(&prefix));
                    cursor = Some(prefix.to_vec());
                }
            }
            match page.more {
                true if found.len() < UPLOADS_MAX => tokio::task::yield_now().await,
                true => return Ok((found, cursor)),
                false => return Ok((found, None)),
            }
        }
    }

    /// Strikes out those that have not ended.
    async fn strike_uploads(&self, bucket: &str, ids: &mut HashSet<UploadId>) -> Result<()> {
        let prefix = staging::uploads_under(b"");
        let mut cursor: Option<Vec<u8>> = None;
        loop {
            let page = self
                .store
                .list(ListOptions {
                    namespace: bucket,
                    space: Space::Staging,
                    prefix: &prefix,
                    delimiter: None,
                    after: cursor.as_deref().map_or(After::Start, After::Key),
                    limit: usize::MAX,
                })
                .await?;
            for item in page.items {
                let Item::Value(staged, _) = item else {
                    continue;
                };
                if let Some((_, id)) = staging::parse_manifest(&staged) {
                    ids.remove(&id);
                }
                cursor = Some(staged.to_vec());
            }
            if !page.more {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// How many parts were removed: all, or none while one of them is young.
    async fn remove_orphans(&self, bucket: &str, id: &UploadId, now_ms: u64) -> Outcome<u64> {
        let _ending = self.uploads.exclusive(id).await;
        let store = &*self.store;
        let (parts, _) = staging::parts(store, bucket, id, 0, MAX_PARTS as usize).await?;
        let age = u64::try_from(AGE.as_millis()).unwrap_or(u64::MAX);
        let young = |modified: u64| modified.saturating_add(age) > now_ms;
        if parts.iter().any(|part| young(part.meta.modified)) {
            return Ok(0);
        }
        remove_parts(store, bucket, id).await?;
        Ok(parts.len() as u64)
    }
}
