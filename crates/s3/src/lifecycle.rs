//! The sweep that lets objects, versions and uploads expire by the buckets' lifecycle rules.

use forebay_proto::s3::lifecycle::{Action, Candidate, Configuration, Standing};
use forebay_proto::s3::tags::Tags;
use forebay_store::{
    Address, After, Condition, DeleteOptions, ErrorKind, Etag, Item, ListOptions, Meta,
    NamespaceInfo, Result, Space, Store, VersionId, VersionItem,
};
use futures_util::future::join_all;

use crate::bucket_config::LIFECYCLE;
use crate::delete::AT_ONCE;
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
    /// Parts removed whose upload had ended before.
    pub orphans: u64,
    /// Removals and lists that failed; the next sweep tries them again.
    pub failed: u64,
}

impl Swept {
    /// Takes down how the walk through a bucket ended. One that was deleted meanwhile has nothing to be swept.
    fn note(&mut self, bucket: &str, outcome: Result<()>) {
        if let Err(error) = outcome
            && error.kind() != ErrorKind::NoSuchNamespace
        {
            tracing::warn!(bucket, %error, "a bucket could not be swept");
            self.failed += 1;
        }
    }
}

/// One entry of a version list, as the rules see it.
#[derive(PartialEq)]
struct Entry {
    key: Vec<u8>,
    version: VersionId,
    /// Absent for a delete marker.
    meta: Option<Meta>,
    modified_ms: u64,
    latest: bool,
}

impl Entry {
    /// What a list says of one; `None` of a common prefix.
    fn of(item: VersionItem) -> Option<Entry> {
        match item {
            VersionItem::Value { key, meta, latest } => Some(Entry {
                key: key.to_vec(),
                version: meta.version,
                modified_ms: meta.modified,
                meta: Some(meta),
                latest,
            }),
            VersionItem::Marker {
                key,
                version,
                modified,
                latest,
            } => Some(Entry {
                key: key.to_vec(),
                version,
                meta: None,
                modified_ms: modified,
                latest,
            }),
            VersionItem::Prefix(_) => None,
        }
    }

    /// What this says about the newest version of its key.
    fn newest(&self) -> Option<Newest> {
        self.latest.then(|| Newest {
            version: self.version,
            modified_ms: self.modified_ms,
            etag: self.meta.as_ref().map(|meta| meta.etag),
        })
    }
}

/// The newest version of a key, by which a change of any version's standing shows.
#[derive(Clone, Copy, PartialEq)]
struct Newest {
    version: VersionId,
    modified_ms: u64,
    /// Absent for a delete marker.
    etag: Option<Etag>,
}

/// An entry for which something is due.
struct Due {
    entry: Entry,
    action: Action,
    newest: Option<Newest>,
}

fn seconds(ms: u64) -> i64 {
    i64::try_from(ms / 1000).unwrap_or(i64::MAX)
}

impl<S: Store> Door<S> {
    /// Applies every bucket's lifecycle rules as of `now_ms` (Unix milliseconds), and removes what uploads left that have ended. Reads one page of a list at a time and
    /// yields between pages, so that requests go on; holds no more than that page in memory. A bucket that cannot be listed is left to
    /// the next sweep, and keeps no other from being swept.
    pub async fn lifecycle_sweep(&self, now_ms: u64) -> Swept {
        let mut swept = Swept::default();
        for listed in self.store.namespaces() {
            let outcome = self.sweep_orphans(&listed.name, now_ms, &mut swept).await;
            swept.note(&listed.name, outcome);
            // Its rules of now: the buckets before it may have taken hours.
            let Ok(info) = self.store.namespace(&listed.name) else {
                continue;
            };
            let rules = info
                .config
                .attributes
                .get(LIFECYCLE)
                .and_then(|text| Configuration::from_xml(text).ok());
            let Some(rules) = rules else { continue };
            let now_s = seconds(now_ms);
            let outcome = self.sweep_versions(&info, &rules, now_s, &mut swept).await;
            swept.note(&info.name, outcome);
            let outcome = self.sweep_uploads(&info, &rules, now_s, &mut swept).await;
            swept.note(&info.name, outcome);
        }
        swept
    }

    /// Walks all versions, newest first within a key, one entry behind: whether an entry is the last of its key is known
    /// only from the next one.
    async fn sweep_versions(
        &self,
        bucket: &NamespaceInfo,
        rules: &Configuration,
        now_s: i64,
        swept: &mut Swept,
    ) -> Result<()> {
        let mut cursor: Option<(Vec<u8>, VersionId)> = None;
        let mut walk = Walk::default();
        while self.rules_stand(bucket) {
            let page = self
                .store
                .list_versions(ListOptions {
                    namespace: &bucket.name,
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
            let mut due = Vec::new();
            for item in page.items {
                let Some(entry) = Entry::of(item) else {
                    continue;
                };
                cursor = Some((entry.key.clone(), entry.version));
                due.extend(walk.step(Some(entry), rules, now_s));
            }
            self.apply(bucket, &due, swept).await;
            if !more {
                break;
            }
            tokio::task::yield_now().await;
        }
        let due = walk.step(None, rules, now_s);
        self.apply(bucket, due.as_slice(), swept).await;
        Ok(())
    }

    /// Whether this is still the bucket of its name, and has the rules that it had: what was withdrawn expires nothing more.
    fn rules_stand(&self, bucket: &NamespaceInfo) -> bool {
        self.store.namespace(&bucket.name).is_ok_and(|now| {
            let (now_rules, rules) = (&now.config.attributes, &bucket.config.attributes);
            now.id == bucket.id && now_rules.get(LIFECYCLE) == rules.get(LIFECYCLE)
        })
    }

    /// Removes what is due, a few entries side by side: each removal waits until it is durable.
    async fn apply(&self, bucket: &NamespaceInfo, due: &[Due], swept: &mut Swept) {
        for some in due.chunks(AT_ONCE) {
            let removals = some.iter().map(|due| self.remove(bucket, due));
            for (due, removed) in some.iter().zip(join_all(removals).await) {
                let counter = match due.action {
                    Action::Expire => &mut swept.expired,
                    Action::RemoveNoncurrent => &mut swept.versions,
                    Action::RemoveDeleteMarker => &mut swept.markers,
                };
                match removed {
                    Ok(removed) => *counter += u64::from(removed),
                    Err(error) if error.kind().is_overtaken() => {}
                    Err(error) => {
                        tracing::warn!(bucket = bucket.name, %error, "an expired object could not be removed");
                        swept.failed += 1;
                    }
                }
            }
        }
    }

    /// Removes what is due if it still is: pages are long and removals slow, so the entry was read a while ago. It is looked at
    /// again right before, and the store compares the current value's tag with the removal. What is left is the moment
    /// between the two, and in it what leaves that tag as it was: the same bytes written again, other tags on the object, a
    /// delete marker that is removed and made anew.
    async fn remove(&self, bucket: &NamespaceInfo, due: &Due) -> Result<bool> {
        if !self.stands(bucket, due).await? || !self.rules_stand(bucket) {
            return Ok(false);
        }
        let options = DeleteOptions {
            version: match due.action {
                Action::Expire => None,
                Action::RemoveNoncurrent | Action::RemoveDeleteMarker => Some(due.entry.version),
            },
            // Of a version that would be removed by name, too: a removal above it would have made it current.
            condition: match due.newest.and_then(|newest| newest.etag) {
                Some(etag) => Condition::IfMatch(etag),
                None => Condition::IfAbsent,
            },
        };
        let address = Address::object(&bucket.name, &due.entry.key);
        let deleted = self.store.delete(address, options).await?;
        Ok(deleted.existed || deleted.marker)
    }

    /// Whether an entry is as it was, and where it was among the versions of its key. As long as the newest is the same, no other
    /// version has become current and no write has made one old; where this sweep itself changed the newest, the older ones wait
    /// for the next. How many noncurrent versions are newer is not counted again: one that somebody removes by name meanwhile
    /// still counts for `NewerNoncurrentVersions`.
    async fn stands(&self, bucket: &NamespaceInfo, due: &Due) -> Result<bool> {
        let entry = &due.entry;
        // A list is the store's own answer, where a look at the key may be a cache's, of what somebody else has stored again since. The key
        // itself comes before all that begin with it.
        let page = self
            .store
            .list_versions(ListOptions {
                namespace: &bucket.name,
                space: Space::Objects,
                prefix: &entry.key,
                delimiter: None,
                after: After::Start,
                limit: 2,
            })
            .await?;
        let mut present = page
            .items
            .into_iter()
            .filter_map(Entry::of)
            .filter(|present| present.key == entry.key);
        let first = present.next();
        if first.as_ref().and_then(Entry::newest) != due.newest {
            return Ok(false);
        }
        Ok(match (due.action, &entry.meta) {
            (Action::Expire, _) => first.as_ref() == Some(entry),
            (Action::RemoveDeleteMarker, _) => {
                first.as_ref() == Some(entry) && present.next().is_none()
            }
            (Action::RemoveNoncurrent, None) => true,
            // Its tags may have changed.
            (Action::RemoveNoncurrent, Some(meta)) => {
                let address = Address::object(&bucket.name, &entry.key);
                self.store.stat(address, Some(entry.version)).await? == *meta
            }
        })
    }

    async fn sweep_uploads(
        &self,
        bucket: &NamespaceInfo,
        rules: &Configuration,
        now_s: i64,
        swept: &mut Swept,
    ) -> Result<()> {
        let prefix = staging::uploads_under(b"");
        let mut cursor: Option<Vec<u8>> = None;
        while self.rules_stand(bucket) {
            let page = self
                .store
                .list(ListOptions {
                    namespace: &bucket.name,
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
                    && rules.aborts_upload(key, seconds(meta.modified), now_s)
                {
                    let _ending = self.uploads.exclusive(&id).await;
                    if !self.rules_stand(bucket) {
                        return Ok(());
                    }
                    match discard(&*self.store, &bucket.name, key, &id).await {
                        Ok(()) => swept.uploads += 1,
                        Err(refusal) => {
                            tracing::warn!(bucket = bucket.name, error = %refusal.error, "an upload could not be given up");
                            swept.failed += 1;
                        }
                    }
                }
                cursor = Some(staged.to_vec());
            }
            if !more {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
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
    /// The newest version of the key of the waiting one, unless that is itself.
    newest: Option<Newest>,
}

impl Walk {
    /// Takes the next entry and judges the one before it.
    fn step(&mut self, next: Option<Entry>, rules: &Configuration, now_s: i64) -> Option<Due> {
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
        let candidate = Candidate {
            key: &entry.key,
            tags: &tags,
            size: entry.meta.as_ref().map_or(0, |meta| meta.size),
            stored_s: seconds(entry.modified_ms),
            standing,
        };
        let action = rules.evaluate(&candidate, now_s);
        let newest = entry.newest().or(self.newest);
        if same_key {
            self.newer_ms = Some(entry.modified_ms);
            self.newer += u32::from(!entry.latest);
            self.newest = newest;
        } else {
            self.newer_ms = None;
            self.newer = 0;
            self.newest = None;
        }
        action.map(|action| Due {
            entry,
            action,
            newest,
        })
    }
}
