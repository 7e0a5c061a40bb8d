//! Operations as data, and carrying them out: the answers of two stores to one script can be compared.

use std::collections::HashMap;
use std::fmt::Debug;

use forebay_mem::Region;

use super::TestClock;
use super::subject::{content, crc64nvme, etag, fill, fill_pieces, try_drain};
use crate::{
    Address, After, Attributes, ByteRange, Condition, DeleteOptions, ErrorKind, Item, ListOptions,
    ListPage, Meta, NamespaceConfig, Object, Quota, Result, Scope, Seal, Source, Space, Store,
    StoreOptions, Upload, VersionId, VersionItem, VersionPage, Versioning,
};

pub(super) const NAMESPACES: [&str; 5] = ["plain", "kept", "paused", "small", "brief"];
pub(super) const KEYS: [&str; 8] = ["a", "a/", "a/1", "a/2/x", "a0", "b/1", "c", "\u{ff}"];
pub(super) const SLOTS: usize = 2;

/// Which value: indexes into [`NAMESPACES`] and [`KEYS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub namespace: usize,
    pub staging: bool,
    pub key: usize,
}

/// Which version: of those of the key that were seen so far, or one that never was.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pick {
    Current,
    Null,
    Seen(usize),
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Always,
    Absent,
    Present,
    Tag(u8),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    pub seed: u64,
    pub len: usize,
    /// Written in heap buffers of this length, else in the store's own.
    pub piece: Option<usize>,
    pub declared: bool,
    pub tag: Option<u8>,
    pub expires_in: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Put(Place, Value, When),
    Begin(usize, Place, Value, When),
    Commit(usize),
    Abandon(usize),
    Get(Place, Pick, ByteRange),
    GetInto(Place, ByteRange),
    Open(usize, Place),
    Drain(usize),
    Exist(Vec<Place>),
    Stat(Place, Pick),
    Delete(Place, Pick, When),
    Compose(Place, Vec<usize>, Vec<usize>, When),
    Amend(Place, Pick, u8),
    List {
        namespace: usize,
        staging: bool,
        prefix: usize,
        slash: bool,
        after: Option<usize>,
        limit: usize,
    },
    Versions {
        namespace: usize,
        prefix: usize,
        slash: bool,
        limit: usize,
    },
    Usage,
    Suspend(bool),
    Remake(usize),
    Advance(u64),
}

/// One store, and what a script has under way on it.
pub(super) struct Actor<S: Store> {
    store: S,
    clock: TestClock,
    uploads: [Option<S::Upload>; SLOTS],
    bodies: [Option<Object<S::Body>>; SLOTS],
    /// Stores number versions as they like: answers name them in the order in which they were seen.
    labels: HashMap<VersionId, usize>,
    seen: HashMap<(usize, usize), Vec<VersionId>>,
}

/// What a store answered, with nothing in it that may differ between stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done(String),
    Refused(ErrorKind, Option<usize>),
}

impl Answer {
    /// Whether both are right. When several reasons to refuse a store apply, the contract names none of them first.
    pub fn agrees(&self, other: &Answer) -> bool {
        let either = |answer: &Answer| {
            matches!(
                answer,
                Answer::Refused(
                    ErrorKind::PreconditionFailed
                        | ErrorKind::QuotaExceeded
                        | ErrorKind::NotFound
                        | ErrorKind::Invalid,
                    None,
                )
            )
        };
        self == other || (either(self) && either(other))
    }
}

impl<S: Store> Actor<S> {
    pub async fn new(store: S, clock: TestClock) -> Actor<S> {
        let actor = Actor {
            store,
            clock,
            uploads: Default::default(),
            bodies: Default::default(),
            labels: HashMap::new(),
            seen: HashMap::new(),
        };
        for namespace in 0..NAMESPACES.len() {
            actor.make(namespace).await.expect("make a namespace");
        }
        actor
    }

    pub async fn play(&mut self, op: &Op) -> Answer {
        match self.perform(op).await {
            Ok(done) => Answer::Done(done),
            Err(error) => {
                let marker = error.marker().map(|marker| self.label(marker));
                Answer::Refused(error.kind(), marker)
            }
        }
    }

    async fn make(&self, namespace: usize) -> Result<()> {
        let mut config = NamespaceConfig {
            tenant: "acme".to_owned(),
            ..NamespaceConfig::default()
        };
        match NAMESPACES[namespace] {
            "kept" | "paused" if self.store.caps().versions => {
                config.versioning = Versioning::Enabled;
            }
            "small" => {
                config.quota = Quota {
                    bytes: Some(10_000),
                    objects: Some(4),
                }
            }
            "brief" => config.ttl_ms = Some(1000),
            _ => {}
        }
        self.store
            .create_namespace(NAMESPACES[namespace], config)
            .await?;
        Ok(())
    }

    async fn perform(&mut self, op: &Op) -> Result<String> {
        match op {
            Op::Put(place, value, when) => {
                let mut upload = self.begin(*place, *value, *when).await?;
                self.send(&mut upload, *value).await?;
                let stored = upload.commit(self.seal(*place, *value)).await?;
                Ok(format!(
                    "replaced {} {}",
                    stored.replaced,
                    self.meta(*place, &stored.meta)
                ))
            }
            Op::Begin(slot, place, value, when) => {
                self.uploads[*slot] = None;
                let mut upload = self.begin(*place, *value, *when).await?;
                self.send(&mut upload, *value).await?;
                self.uploads[*slot] = Some(upload);
                Ok(String::new())
            }
            Op::Commit(slot) => match self.uploads[*slot].take() {
                None => Ok(String::new()),
                Some(upload) => {
                    let stored = upload.commit(Seal::default()).await?;
                    let Meta { size, etag, .. } = stored.meta;
                    Ok(format!("replaced {} {size} {etag}", stored.replaced))
                }
            },
            Op::Abandon(slot) => {
                self.uploads[*slot] = None;
                Ok(String::new())
            }
            Op::Get(place, pick, range) => {
                let version = self.pick(*place, *pick);
                let object = self
                    .store
                    .retrieve(address(*place), version, *range)
                    .await?;
                let (meta, range) = (object.meta.clone(), object.range.clone());
                let bytes = try_drain(object).await?;
                if range == (0..meta.size) {
                    assert_eq!(
                        crc64nvme(&bytes),
                        meta.crc64nvme,
                        "the CRC is that of the bytes"
                    );
                }
                Ok(format!(
                    "{range:?} {:x} {}",
                    crc64nvme(&bytes),
                    self.meta(*place, &meta)
                ))
            }
            Op::GetInto(place, range) => {
                let size = self.store.stat(address(*place), None).await?.size as usize;
                let region = Region::anonymous(size.max(1)).expect("memory");
                let target = region.slice(0..size).expect("inside");
                let (_, range) = self
                    .store
                    .retrieve_into(address(*place), None, *range, target.clone())
                    .await?;
                let mut bytes = vec![0; (range.end - range.start) as usize];
                assert!(target.read(0, &mut bytes));
                Ok(format!("{range:?} {:x}", crc64nvme(&bytes)))
            }
            Op::Open(slot, place) => {
                self.bodies[*slot] = None;
                let object = self
                    .store
                    .retrieve(address(*place), None, ByteRange::Full)
                    .await?;
                self.bodies[*slot] = Some(object);
                Ok(String::new())
            }
            Op::Drain(slot) => match self.bodies[*slot].take() {
                None => Ok(String::new()),
                Some(object) => Ok(format!("{:x}", crc64nvme(&try_drain(object).await?))),
            },
            Op::Exist(places) => {
                let addresses: Vec<_> = places.iter().map(|place| address(*place)).collect();
                let found = self.store.exist(&addresses).await?;
                let mut lines = Vec::new();
                for (place, meta) in places.iter().zip(found) {
                    lines.push(meta.map(|meta| self.meta(*place, &meta)));
                }
                text(&lines)
            }
            Op::Stat(place, pick) => {
                let version = self.pick(*place, *pick);
                let meta = self.store.stat(address(*place), version).await?;
                Ok(self.meta(*place, &meta))
            }
            Op::Delete(place, pick, when) => {
                let options = DeleteOptions {
                    version: self.pick(*place, *pick),
                    condition: condition(*when),
                };
                let deleted = self.store.delete(address(*place), options).await?;
                let version = deleted.version.map(|version| self.see(*place, version));
                text(&(deleted.existed, deleted.marker, version))
            }
            Op::Compose(place, sources, consumed, when) => {
                let keys = |parts: &[usize]| -> Vec<&[u8]> {
                    parts.iter().map(|part| KEYS[*part].as_bytes()).collect()
                };
                let options = StoreOptions {
                    size: None,
                    condition: condition(*when),
                };
                let stored = self
                    .store
                    .compose(
                        address(*place),
                        &keys(sources)
                            .into_iter()
                            .map(Source::any)
                            .collect::<Vec<_>>(),
                        &keys(consumed),
                        options,
                        Seal::default(),
                    )
                    .await?;
                Ok(format!(
                    "replaced {} {}",
                    stored.replaced,
                    self.meta(*place, &stored.meta)
                ))
            }
            Op::Amend(place, pick, mark) => {
                let version = self.pick(*place, *pick);
                let meta = self
                    .store
                    .amend(address(*place), version, None, marked(*mark))
                    .await?;
                Ok(self.meta(*place, &meta))
            }
            Op::List {
                namespace,
                staging,
                prefix,
                slash,
                after,
                limit,
            } => {
                let options = ListOptions {
                    namespace: NAMESPACES[*namespace],
                    space: space(*staging),
                    prefix: PREFIXES[*prefix].as_bytes(),
                    delimiter: slash.then_some(b"/"),
                    after: after.map_or(After::Start, |key| After::Key(KEYS[key].as_bytes())),
                    limit: *limit,
                };
                self.list(*namespace, *staging, options).await
            }
            Op::Versions {
                namespace,
                prefix,
                slash,
                limit,
            } => {
                let options = ListOptions {
                    namespace: NAMESPACES[*namespace],
                    space: Space::Objects,
                    prefix: PREFIXES[*prefix].as_bytes(),
                    delimiter: slash.then_some(b"/"),
                    after: After::Start,
                    limit: *limit,
                };
                self.versions(*namespace, options).await
            }
            Op::Usage => {
                // When an expired value is reclaimed, and stops counting, is the store's own affair.
                let counted = NAMESPACES.iter().filter(|name| **name != "brief");
                let usage = counted.map(|name| self.store.usage(Scope::Namespace(name)).ok());
                text(&usage.collect::<Vec<_>>())
            }
            Op::Suspend(suspend) => {
                let mut config = self.store.namespace("paused")?.config.clone();
                if config.versioning != Versioning::Off {
                    config.versioning = match suspend {
                        true => Versioning::Suspended,
                        false => Versioning::Enabled,
                    };
                }
                self.store.update_namespace("paused", None, config).await?;
                Ok(String::new())
            }
            Op::Remake(namespace) => {
                self.store.delete_namespace(NAMESPACES[*namespace]).await?;
                self.make(*namespace).await?;
                Ok(String::new())
            }
            // The clock is common to both stores, and moved by whoever compares them.
            Op::Advance(_) => Ok(String::new()),
        }
    }

    async fn begin(&self, place: Place, value: Value, when: When) -> Result<S::Upload> {
        let options = StoreOptions {
            size: value.declared.then_some(value.len as u64),
            condition: condition(when),
        };
        self.store.store(address(place), options).await
    }

    async fn send(&self, upload: &mut S::Upload, value: Value) -> Result<()> {
        let bytes = content(value.seed, value.len);
        match value.piece {
            Some(piece) => fill_pieces(upload, &bytes, piece).await,
            None => fill(upload, &bytes).await,
        }
    }

    fn seal(&self, place: Place, value: Value) -> Seal {
        let brief = NAMESPACES[place.namespace] == "brief";
        Seal {
            etag: value.tag.map(tag),
            attributes: marked(value.seed as u8),
            expires: value
                .expires_in
                .filter(|_| brief)
                .map(|expires_in| self.clock.now() + expires_in),
        }
    }

    fn pick(&self, place: Place, pick: Pick) -> Option<VersionId> {
        match pick {
            Pick::Current => None,
            Pick::Null => Some(VersionId::NULL),
            Pick::Unknown => Some(VersionId(u64::MAX)),
            Pick::Seen(nth) => self
                .seen
                .get(&(place.namespace, place.key))
                .map(|seen| seen[nth % seen.len()]),
        }
    }

    fn label(&mut self, version: VersionId) -> usize {
        if version == VersionId::NULL {
            return 0;
        }
        let next = self.labels.len() + 1;
        *self.labels.entry(version).or_insert(next)
    }

    fn see(&mut self, place: Place, version: VersionId) -> usize {
        let seen = self.seen.entry((place.namespace, place.key)).or_default();
        if !seen.contains(&version) {
            seen.push(version);
        }
        self.label(version)
    }

    fn meta(&mut self, place: Place, meta: &Meta) -> String {
        let version = self.see(place, meta.version);
        let Meta {
            size,
            etag,
            modified,
            crc64nvme,
            expires,
            attributes,
            ..
        } = meta;
        let mark = attributes.get("mark");
        format!("v{version} {size} {etag} {modified} {crc64nvme:x} {expires:?} {mark:?}")
    }

    fn item(&mut self, namespace: usize, staging: bool, key: &[u8], meta: &Meta) -> String {
        let named = KEYS.iter().position(|name| name.as_bytes() == key);
        let key = named.expect("only keys that were stored are listed");
        let place = Place {
            namespace,
            staging,
            key,
        };
        format!("{}: {}", KEYS[key], self.meta(place, meta))
    }

    async fn list(
        &mut self,
        namespace: usize,
        staging: bool,
        options: ListOptions<'_>,
    ) -> Result<String> {
        let mut lines = Vec::new();
        let mut page = ListPage::default();
        loop {
            let after = page.next().unwrap_or(options.after);
            let next = self.store.list(ListOptions { after, ..options }).await?;
            page = next;
            for item in &page.items {
                lines.push(match item {
                    Item::Value(key, meta) => self.item(namespace, staging, key, meta),
                    Item::Prefix(prefix) => format!("<{prefix:?}>"),
                });
            }
            lines.push("--".to_owned());
            assert!(lines.len() < LINES_MAX, "pages move on");
            if !page.more {
                return Ok(lines.join("\n"));
            }
        }
    }

    async fn versions(&mut self, namespace: usize, options: ListOptions<'_>) -> Result<String> {
        let mut lines = Vec::new();
        let mut page = VersionPage::default();
        loop {
            let after = page.next().unwrap_or_default();
            let next = self
                .store
                .list_versions(ListOptions { after, ..options })
                .await?;
            page = next;
            for item in &page.items {
                lines.push(match item {
                    VersionItem::Value { key, meta, latest } => {
                        format!("{latest} {}", self.item(namespace, false, key, meta))
                    }
                    VersionItem::Marker {
                        key,
                        version,
                        modified,
                        latest,
                    } => {
                        let version = self.label(*version);
                        format!("{latest} {key:?}: marker v{version} {modified}")
                    }
                    VersionItem::Prefix(prefix) => format!("<{prefix:?}>"),
                });
            }
            lines.push("--".to_owned());
            assert!(lines.len() < LINES_MAX, "pages move on");
            if !page.more {
                return Ok(lines.join("\n"));
            }
        }
    }
}

/// More than the entries and pages of any list that a script can lead to.
const LINES_MAX: usize = 1000;

pub(super) const PREFIXES: [&str; 5] = ["", "a", "a/", "a/2", "zz"];

fn text(answer: &impl Debug) -> Result<String> {
    Ok(format!("{answer:?}"))
}

fn space(staging: bool) -> Space {
    match staging {
        true => Space::Staging,
        false => Space::Objects,
    }
}

fn address(place: Place) -> Address<'static> {
    Address {
        namespace: NAMESPACES[place.namespace],
        space: space(place.staging),
        key: KEYS[place.key].as_bytes(),
    }
}

fn tag(number: u8) -> crate::Etag {
    etag(["one", "two", "three"][usize::from(number % 3)])
}

fn condition(when: When) -> Condition {
    match when {
        When::Always => Condition::None,
        When::Absent => Condition::IfAbsent,
        When::Present => Condition::IfPresent,
        When::Tag(number) => Condition::IfMatch(tag(number)),
    }
}

fn marked(mark: u8) -> Attributes {
    let built = Attributes::builder().set("mark", [mark]).build();
    built.expect("small attributes")
}
