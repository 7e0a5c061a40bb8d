//! The sweep that lets objects, versions and uploads expire by the buckets' lifecycle rules.

use forebay_proto::s3::lifecycle::{Action, Candidate, Configuration, Standing};
use forebay_proto::s3::tags::Tags;
use forebay_store::{
    Address, After, DeleteOptions, ErrorKind, Item, ListOptions, Meta, Result, Space, Store,
    StoreError, VersionId, VersionItem,
};

use crate::bucket_config::LIFECYCLE;
use crate::door::Door;
use crate::kept;
use crate::multipart::discard;
use crate::staging;

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Current objects that expired.
    pub expired: u64,
    /// Older versions removed.
    pub versions: u64,
    /// Delete markers removed because nothing was left under them.
    pub markers: u64,
    /// Unfinished uploads given up.
    pub uploads: u64,
    /// Removals that failed; the next sweep tries them again.
    pub failed: u64,
}

/// One entry of a version list, as the rules see it.
struct Entry {
    key: Vec<u8>,
    version: VersionId,
    /// Absent for a delete marker.
    meta: Option<Meta>,
    modified_ms: u64,
    latest: bool,
}

fn seconds(ms: u64) -> i64 {
    i64::try_from(ms / 1000).unwrap_or(i64::MAX)
}

impl<S: Store> Door<S> {
    /// Applies every bucket's lifecycle rules as of `now_ms` (Unix milliseconds). Reads one page of a list at a time and
    /// yields between pages, so that requests go on; holds no more than that page in memory.
    ///
    /// # Errors
    /// When a list cannot be read; what was done till then stays done.
    pub async fn lifecycle_sweep(&self, now_ms: u64) -> Result<Swept> {
        let mut swept = Swept::default();
        for info in self.store.namespaces() {
            let rules = info
                .config
                .attributes
                .get(LIFECYCLE)
                .and_then(|text| Configuration::from_xml(text).ok());
            let Some(rules) = rules else { continue };
            let now_s = seconds(now_ms);
            match self
                .sweep_versions(&info.name, &rules, now_s, &mut swept)
                .await
            {
                // Deleted meanwhile: its rules are gone too.
                Err(error) if error.kind() == ErrorKind::NoSuchNamespace => continue,
                outcome => outcome?,
            }
            match self
                .sweep_uploads(&info.name, &rules, now_s, &mut swept)
                .await
            {
                Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
                outcome => outcome?,
            }
        }
        Ok(swept)
    }

    /// Walks all versions, newest first within a key, one entry behind: whether an entry is the last of its key is known
    /// only from the next one.
    async fn sweep_versions(
        &self,
        bucket: &str,
        rules: &Configuration,
        now_s: i64,
        swept: &mut Swept,
    ) -> Result<()> {
        let mut cursor: Option<(Vec<u8>, VersionId)> = None;
        let mut walk = Walk::default();
        loop {
            let page = self
                .store
                .list_versions(ListOptions {
                    namespace: bucket,
                    space: Space::Objects,
                    prefix: b"",
                    delimiter: None,
                    after: cursor
                        .as_ref()
                        .map_or(After::Start, |(key, version)| After::Version(key, *version)),
                    limit: usize::MAX,
                })
                .await?;
            let more = page.more;
            for item in page.items {
                let entry = match item {
                    VersionItem::Value { key, meta, latest } => Entry {
                        key: key.to_vec(),
                        version: meta.version,
                        modified_ms: meta.modified,
                        meta: Some(meta),
                        latest,
                    },
                    VersionItem::Marker {
                        key,
                        version,
                        modified,
                        latest,
                    } => Entry {
                        key: key.to_vec(),
                        version,
                        meta: None,
                        modified_ms: modified,
                        latest,
                    },
                    VersionItem::Prefix(_) => continue,
                };
                cursor = Some((entry.key.clone(), entry.version));
                if let Some((due, action)) = walk.step(Some(entry), rules, now_s) {
                    self.apply(bucket, &due, action, swept).await;
                }
            }
            if !more {
                break;
            }
            tokio::task::yield_now().await;
        }
        if let Some((due, action)) = walk.step(None, rules, now_s) {
            self.apply(bucket, &due, action, swept).await;
        }
        Ok(())
    }

    async fn apply(&self, bucket: &str, entry: &Entry, action: Action, swept: &mut Swept) {
        let address = Address::object(bucket, &entry.key);
        let (options, counter) = match action {
            Action::Expire => {
                // Only the object that was looked at: one that replaced it meanwhile is younger.
                let condition = entry
                    .meta
                    .as_ref()
                    .map_or(forebay_store::Condition::IfPresent, |meta| {
                        forebay_store::Condition::IfMatch(meta.etag)
                    });
                let options = DeleteOptions {
                    version: None,
                    condition,
                };
                (options, &mut swept.expired)
            }
            Action::RemoveNoncurrent => (version(entry), &mut swept.versions),
            Action::RemoveDeleteMarker => (version(entry), &mut swept.markers),
        };
        match self.store.delete(address, options).await {
            Ok(deleted) => *counter += u64::from(deleted.existed || deleted.marker),
            Err(error) if replaced(&error) => {}
            Err(error) => {
                tracing::warn!(bucket, %error, "an expired object could not be removed");
                swept.failed += 1;
            }
        }
    }

    async fn sweep_uploads(
        &self,
        bucket: &str,
        rules: &Configuration,
        now_s: i64,
        swept: &mut Swept,
    ) -> Result<()> {
        let prefix = staging::uploads_under("");
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
            let more = page.more;
            for item in page.items {
                let Item::Value(staged, meta) = item else {
                    continue;
                };
                if let Some((key, id)) = staging::parse_manifest(&staged)
                    && let Ok(key) = std::str::from_utf8(key)
                    && rules.aborts_upload(key, seconds(meta.modified), now_s)
                {
                    let _ending = self.uploads.exclusive(&id).await;
                    match discard(&*self.store, bucket, key, &id).await {
                        Ok(()) => swept.uploads += 1,
                        Err(refusal) => {
                            tracing::warn!(bucket, error = %refusal.error, "an upload could not be given up");
                            swept.failed += 1;
                        }
                    }
                }
                cursor = Some(staged.to_vec());
            }
            if !more {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }
}

fn version(entry: &Entry) -> DeleteOptions {
    DeleteOptions {
        version: Some(entry.version),
        ..DeleteOptions::default()
    }
}

fn replaced(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PreconditionFailed | ErrorKind::NotFound | ErrorKind::NoSuchVersion
    )
}

/// Remembers what the rules need to know of the entries before.
#[derive(Default)]
struct Walk {
    /// The entry that is waiting to be judged.
    waiting: Option<Entry>,
    /// When the entry before the waiting one came, when it is of the same key.
    newer_ms: Option<u64>,
    /// How many noncurrent versions of the key are newer than the waiting one.
    newer: u32,
}

impl Walk {
    /// Takes the next entry and judges the one before it.
    fn step(
        &mut self,
        next: Option<Entry>,
        rules: &Configuration,
        now_s: i64,
    ) -> Option<(Entry, Action)> {
        let entry = match next {
            Some(next) => self.waiting.replace(next),
            None => self.waiting.take(),
        }?;
        let same_key = self
            .waiting
            .as_ref()
            .is_some_and(|next| next.key == entry.key);
        let standing = match (entry.latest, &entry.meta) {
            (true, Some(_)) => Standing::Current,
            (true, None) => Standing::DeleteMarker { alone: !same_key },
            (false, _) => Standing::Noncurrent {
                since_s: seconds(self.newer_ms.unwrap_or(entry.modified_ms)),
                newer: self.newer,
            },
        };
        let tags = entry
            .meta
            .as_ref()
            .map_or_else(Tags::default, |meta| kept::tags(&meta.attributes));
        let action = std::str::from_utf8(&entry.key).ok().and_then(|key| {
            rules.evaluate(
                &Candidate {
                    key,
                    tags: &tags,
                    size: entry.meta.as_ref().map_or(0, |meta| meta.size),
                    stored_s: seconds(entry.modified_ms),
                    standing,
                },
                now_s,
            )
        });
        if same_key {
            self.newer_ms = Some(entry.modified_ms);
            self.newer += u32::from(!entry.latest);
        } else {
            self.newer_ms = None;
            self.newer = 0;
        }
        action.map(|action| (entry, action))
    }
}
