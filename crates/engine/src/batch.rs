//! Deciding a group: conditions, versions and quotas, in the order in which commands arrived.
//!
//! Commands see the rows of earlier commands of their group. Nothing is visible to anybody else before the journal publishes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum_combine};
use forebay_io::Disk;
use forebay_mem::{Buf, BufMut, CopySite, Pool, copy, count_copy};
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    Change, Condition, DeleteOptions, Deleted, Durability, ErrorKind, Etag, Meta, NamespaceConfig,
    NamespaceInfo, Quota, Result, Space, StoreError, Stored, Usage, VersionId, plan_delete,
    plan_store,
};

use crate::cache::Piece;
use crate::codec::Reader;
use crate::command::{
    AmendCommand, Answer, Command, ComposeCommand, Content, StoreCommand, Target,
};
use crate::core::Core;
use crate::draft::{Draft, Slot, amended};
use crate::entry::{Entry, Part, Place};
use crate::extent::{EXTENT_BYTES_MAX, Extent, GRANULE_BYTES, Run, granules};
use crate::index::corrupt;
use crate::keys::{self, Table};
use crate::namespaces::{GREATEST, encode_info, encode_quota, encode_usage};
use crate::reclaim::Freed;
use crate::tables::Memtable;
use crate::view::{Standing, View, malformed, versioning};

/// Values of at most so many bytes are kept in table inline.
pub(crate) const INLINE_BYTES_MAX: usize = 2048;
/// Values of at most so many bytes travel to the journal's thread, which writes those of a group with one I/O.
pub(crate) const SMALL_BYTES_MAX: usize = 32 << 10;
/// Expired values dropped in one group.
const SWEEP_MAX: usize = 256;

/// What else changes in memory when the group is published.
#[derive(Debug)]
pub(crate) enum Settled {
    Opened(Arc<NamespaceInfo>),
    Changed(Arc<NamespaceInfo>),
    Closed(Arc<NamespaceInfo>),
    TenantQuota(String, Quota),
}

/// A group being decided.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub over: Memtable,
    pub payload: Vec<u8>,
    pub records: u32,
    pub freed: Vec<Freed>,
    pub answers: Vec<Answer>,
    /// Small values to be written: the first granule, and the bytes.
    pub packs: Vec<(u64, BufMut)>,
    pub packed_bytes: usize,
    /// Packed for commands that then failed; free once the packs are written.
    pub unused: Vec<Run>,
    pub cached: Vec<(Piece, Buf)>,
    pub settled: Vec<Settled>,
    touched: BTreeSet<u32>,
    /// Whether anything must be durable before it is answered.
    pub sync: bool,
    /// The shortest bound of what need not.
    pub within_ms: Option<u32>,
}

impl Batch {
    fn take(&mut self, draft: Draft, durability: Durability) {
        match durability {
            Durability::Sync => self.sync = true,
            Durability::Relaxed { within_ms } => {
                self.within_ms = Some(
                    self.within_ms
                        .map_or(within_ms, |least| least.min(within_ms)),
                );
            }
        }
        self.freed.extend(draft.freed);
        draft.record.encode(&mut self.payload);
        self.records += 1;
        draft.record.apply(&mut self.over);
    }
}

/// Decides commands, one after the other. Lives as long as the journal's thread.
pub(crate) struct Decider<D: Disk> {
    core: Arc<Core<D>>,
    pub batch: Batch,
    /// The smallest unused id.
    pub next_id: u64,
    /// The earliest time at which something expires.
    next_expiry: u64,
    now: u64,
    /// Granules taken ahead for small values.
    pack: Option<Run>,
    /// Buffers of its own: a commit must not wait for memory that only commits give back.
    pool: Pool,
}

impl<D: Disk> Decider<D> {
    pub fn new(core: Arc<Core<D>>, next_id: u64, pool: Pool) -> Result<Decider<D>> {
        let first = core.view().scan(Table::Expiry, &[], None, 1)?;
        let next_expiry = first
            .rows
            .first()
            .and_then(|(key, _)| keys::split_expiry(key))
            .map_or(u64::MAX, |(expires, _)| expires);
        Ok(Decider {
            core,
            batch: Batch::default(),
            next_id,
            next_expiry,
            now: 0,
            pack: None,
            pool,
        })
    }

    /// Begins a group: what is past its time goes first.
    pub fn begin(&mut self) -> Result<()> {
        self.batch = Batch::default();
        self.now = self.core.clock.unix_millis();
        if self.next_expiry <= self.now {
            self.sweep()?;
        }
        Ok(())
    }

    pub fn decide(&mut self, command: Command) {
        let answer = match command {
            Command::Store(mut command, reply) => {
                let answer = self.store(&mut command);
                if answer.is_err()
                    && let Content::Written(extents) = &command.content
                {
                    for extent in extents {
                        self.core.space.put(extent.run());
                    }
                }
                Answer::Stored(reply, answer)
            }
            Command::Compose(command, reply) => Answer::Stored(reply, self.compose(command)),
            Command::Amend(command, reply) => Answer::Amended(reply, self.amend(&command)),
            Command::Delete(target, options, reply) => {
                Answer::Deleted(reply, self.delete(&target, options))
            }
            Command::CreateNamespace(name, config, reply) => {
                Answer::Namespace(reply, self.create_namespace(&name, config))
            }
            Command::UpdateNamespace(name, revision, config, reply) => {
                Answer::Namespace(reply, self.update_namespace(&name, revision, config))
            }
            Command::DeleteNamespace(name, reply) => {
                Answer::Done(reply, self.delete_namespace(&name))
            }
            Command::TenantQuota(tenant, quota, reply) => {
                self.tenant_quota(tenant, quota);
                Answer::Done(reply, Ok(()))
            }
            Command::Sweep(reply) => {
                let more = Ok(self.next_expiry <= self.now);
                Answer::Swept(reply, more)
            }
            Command::Checkpoint(reply) => Answer::Done(reply, Ok(())),
        };
        self.batch.answers.push(answer);
    }

    /// Ends a group: the usage it leads to becomes part of it.
    pub fn finish(&mut self) {
        let mut draft = Draft::default();
        let registry = self.core.registry.read();
        for id in std::mem::take(&mut self.batch.touched) {
            if registry.by_id(id).is_some() {
                let used = encode_usage(self.core.ledger.used(id));
                let key = Bytes::copy_from_slice(&keys::namespace(id));
                draft.record.put(Table::Usage, key, used);
            }
        }
        if !draft.record.is_empty() {
            draft.record.encode(&mut self.batch.payload);
            self.batch.records += 1;
            draft.record.apply(&mut self.batch.over);
        }
    }

    /// The store goes down: granules taken ahead are free again.
    pub fn close(&mut self) {
        if let Some(run) = self.pack.take() {
            self.core.space.put(run);
        }
    }

    fn view(&self) -> View<'_> {
        View {
            tables: &self.core.tables,
            over: Some(&self.batch.over),
            now: self.now,
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn namespace(&self, target: &Target) -> Result<Arc<NamespaceInfo>> {
        let registry = self.core.registry.read();
        registry.by_id(target.namespace.id).cloned().ok_or_else(|| {
            StoreError::new(
                ErrorKind::NoSuchNamespace,
                "the namespace was deleted meanwhile",
            )
        })
    }

    /// Takes a change into the group, if quotas allow.
    fn settle(
        &mut self,
        info: &NamespaceInfo,
        draft: Draft,
        reservation: Option<&mut crate::usage::Reservation>,
    ) -> Result<()> {
        if draft.record.encoded_len() as u64 > self.core.geometry.record_bytes_max() {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                "the change does not fit the journal",
            ));
        }
        self.core
            .ledger
            .settle(info.id, draft.grown, draft.lost, reservation)?;
        if draft.grown != draft.lost {
            self.batch.touched.insert(info.id);
        }
        self.next_expiry = self.next_expiry.min(draft.expires.unwrap_or(u64::MAX));
        if !draft.record.is_empty() {
            self.batch.take(draft, info.config.durability);
        }
        Ok(())
    }

    fn store(&mut self, command: &mut StoreCommand) -> Result<Stored> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let standing = self.view().present(&info, slot.space, slot.key)?;
        check(command.condition, standing.current.as_ref())?;
        let mut draft = Draft::default();
        let (place, packed) = match &command.content {
            Content::Small(buf) => self.place_small(&mut draft, buf)?,
            Content::Written(extents) => {
                let mut next_id = self.next_id;
                let place = draft.place_extents(extents.clone(), || {
                    next_id += 1;
                    next_id - 1
                });
                self.next_id = next_id;
                (place, None)
            }
        };
        let meta = Meta {
            size: command.size,
            etag: command
                .seal
                .etag
                .unwrap_or_else(|| Etag::of_value(command.crc64nvme, command.size)),
            modified: self.now,
            version: VersionId::NULL,
            crc64nvme: command.crc64nvme,
            expires: info
                .config
                .expires(slot.space, self.now, command.seal.expires),
            attributes: std::mem::take(&mut command.seal.attributes),
        };
        let reservation = Some(&mut command.reservation);
        let stored = self.put(&info, slot, standing, draft, meta, place, reservation);
        if let (Some((body, run)), Content::Small(buf)) = (packed, &command.content) {
            if stored.is_err() {
                self.batch.unused.push(run);
            } else if self.core.cache.is_on() {
                let piece = Piece {
                    body,
                    extent: 0,
                    block: None,
                };
                self.batch.cached.push((piece, buf.clone()));
            }
        }
        stored
    }

    /// Makes a value current under an unused version.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are one value on its way in"
    )]
    fn put(
        &mut self,
        info: &NamespaceInfo,
        slot: Slot<'_>,
        standing: Standing,
        mut draft: Draft,
        mut meta: Meta,
        place: Place,
        reservation: Option<&mut crate::usage::Reservation>,
    ) -> Result<Stored> {
        let fresh = self.id();
        let plan = plan_store(
            versioning(info, slot.space),
            standing.present,
            VersionId(fresh),
        );
        let view = self.view();
        if let Some(expired) = &standing.expired {
            draft.drop_current(view, slot, expired)?;
        }
        draft.carry_out(
            view,
            slot,
            &plan,
            standing.current.as_ref(),
            fresh,
            |version| {
                meta.version = version;
                Entry::value(fresh, &meta, &place)
            },
        )?;
        self.settle(info, draft, reservation)?;
        Ok(Stored {
            meta,
            replaced: standing.current.is_some(),
        })
    }

    /// The place of a small value, and its body and run when it was packed.
    fn place_small(&mut self, draft: &mut Draft, buf: &Buf) -> Result<(Place, Option<(u64, Run)>)> {
        if buf.is_empty() {
            return Ok((Place::Empty, None));
        }
        if buf.len() <= INLINE_BYTES_MAX {
            let body = self.id();
            count_copy(CopySite::EngineInline, buf.len());
            let row = Bytes::copy_from_slice(buf);
            draft.record.put(Table::Inline, keys::body(body), row);
            return Ok((Place::Inline(body), None));
        }
        let extent = Extent::of(self.pack(buf)?, buf);
        let body = self.id();
        draft.record.written.push(extent);
        Ok((
            Place::Extents(body, vec![extent]),
            Some((body, extent.run())),
        ))
    }

    /// Puts a small value where the group's write will take it; returns its first granule.
    fn pack(&mut self, buf: &Buf) -> Result<u64> {
        let needed = granules(buf.len());
        if self.pack.is_none_or(|run| run.granules < needed) {
            if let Some(rest) = self.pack.take() {
                self.core.space.put(rest);
            }
            let most = (EXTENT_BYTES_MAX / GRANULE_BYTES) as u32;
            self.pack = Some(self.core.space.take(&self.core.disk, needed, most)?);
        }
        let Some(run) = &mut self.pack else {
            return Err(no_buffer());
        };
        let bytes = needed as usize * GRANULE_BYTES;
        let fits = self.batch.packs.last().is_some_and(|(start, pack)| {
            start + u64::from(granules(pack.len())) == run.start && pack.room() >= bytes
        });
        if !fits {
            let room = run.granules as usize * GRANULE_BYTES;
            let block = self.pool.try_take(room).map_err(|_| no_buffer())?;
            self.batch.packs.push((run.start, block));
        }
        let Some((_, pack)) = self.batch.packs.last_mut() else {
            return Err(no_buffer());
        };
        let spare = pack.spare();
        copy(CopySite::EngineRepack, &mut spare[..buf.len()], buf);
        spare[buf.len()..bytes].fill(0);
        pack.set_len(pack.len() + bytes);
        self.batch.packed_bytes += bytes;
        let start = run.start;
        run.start += u64::from(needed);
        run.granules -= needed;
        if run.granules == 0 {
            self.pack = None;
        }
        Ok(start)
    }

    fn compose(&mut self, command: ComposeCommand) -> Result<Stored> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let standing = self.view().present(&info, slot.space, slot.key)?;
        check(command.condition, standing.current.as_ref())?;
        let mut draft = Draft::default();
        let mut size = 0_u64;
        let mut crc64nvme = 0;
        let mut parts: Vec<Part> = Vec::with_capacity(command.sources.len());
        for key in &command.sources {
            let staged = staged_slot(&info, key);
            let view = self.view();
            let part = view
                .current(info.id, Space::Staging, key)?
                .filter(|part| !part.is_expired(self.now))
                .ok_or_else(|| {
                    StoreError::new(ErrorKind::NotFound, "a value to be joined is not there")
                })?;
            let meta = part.meta().map_err(malformed)?;
            crc64nvme = checksum_combine(
                CrcAlgorithm::Crc64Nvme,
                crc64nvme,
                meta.crc64nvme,
                meta.size,
            );
            size = size.saturating_add(meta.size);
            match draft.take_staged(staged, &part)? {
                Place::Empty => {}
                Place::Joined(body) => {
                    draft.record.remove(Table::Layout, keys::body(body));
                    parts.extend(view.parts(body)?.ok_or_else(|| corrupt("a layout"))?);
                }
                place => parts.push((meta.size, place)),
            }
        }
        if size > VALUE_BYTES_MAX {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                "the values together are larger than a value may be",
            ));
        }
        if command.size.is_some_and(|declared| declared != size) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "the sources do not have the declared length together",
            ));
        }
        let mut gone: HashSet<&Bytes> = command.sources.iter().collect();
        for key in &command.consumed {
            if gone.insert(key)
                && let Some(staged) = self.view().current(info.id, Space::Staging, key)?
            {
                draft.drop_current(self.view(), staged_slot(&info, key), &staged)?;
            }
        }
        let place = match parts.pop() {
            None => Place::Empty,
            Some((_, only)) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                let body = self.id();
                draft.join(&parts, body)
            }
        };
        let meta = Meta {
            size,
            etag: command
                .seal
                .etag
                .unwrap_or_else(|| Etag::of_value(crc64nvme, size)),
            modified: self.now,
            version: VersionId::NULL,
            crc64nvme,
            expires: info
                .config
                .expires(slot.space, self.now, command.seal.expires),
            attributes: command.seal.attributes,
        };
        self.put(&info, slot, standing, draft, meta, place, None)
    }

    fn amend(&mut self, command: &AmendCommand) -> Result<Meta> {
        let info = self.namespace(&command.target)?;
        let slot = slot(&command.target);
        let view = self.view();
        let entry = view.find(&info, slot.space, slot.key, command.version)?;
        let current = view.current(info.id, slot.space, slot.key)?;
        let mut meta = entry.meta().map_err(malformed)?;
        meta.attributes = command.attributes.clone();
        let changed = amended(&entry, &meta)?;
        let mut draft = Draft::default();
        match current {
            Some(current) if current.sequence() == entry.sequence() => {
                let key = keys::current(info.id, slot.space, slot.key);
                draft
                    .record
                    .put(Table::Current, key, changed.encoded().clone());
            }
            Some(_) | None => draft.rewrite_kept(slot, &changed),
        }
        self.settle(&info, draft, None)?;
        Ok(meta)
    }

    fn delete(&mut self, target: &Target, options: DeleteOptions) -> Result<Deleted> {
        let info = self.namespace(target)?;
        let slot = slot(target);
        let Standing {
            present,
            current,
            expired,
        } = self.view().present(&info, slot.space, slot.key)?;
        check(options.condition, current.as_ref())?;
        let fresh = self.id();
        let versioning = versioning(&info, slot.space);
        let plan = plan_delete(versioning, present, options.version, VersionId(fresh));
        let made = plan.iter().find_map(|change| match change {
            Change::PutMarker(marker) => Some(*marker),
            _ => None,
        });
        let view = self.view();
        let deleted = match (options.version, made) {
            (Some(version), _) => {
                let kept = view
                    .kept(info.id, slot.key, version)?
                    .filter(|kept| !kept.is_expired(self.now) && slot.space == Space::Objects);
                let existed = present.current == Some(version) || kept.is_some();
                Deleted {
                    existed,
                    version: existed.then_some(version),
                    marker: kept.is_some_and(|kept| kept.is_marker()),
                }
            }
            (None, Some(marker)) => Deleted {
                existed: present.current.is_some(),
                version: Some(marker),
                marker: true,
            },
            (None, None) => Deleted {
                existed: present.current.is_some(),
                version: present.current,
                marker: false,
            },
        };
        let mut draft = Draft::default();
        if let Some(expired) = &expired {
            draft.drop_current(view, slot, expired)?;
        }
        if options.version.is_none() || deleted.existed {
            draft.carry_out(view, slot, &plan, current.as_ref(), fresh, |version| {
                Entry::marker(fresh, version, self.now)
            })?;
        }
        self.settle(&info, draft, None)?;
        Ok(deleted)
    }

    /// Drops some of what is past its time.
    fn sweep(&mut self) -> Result<()> {
        let until = self.now.checked_add(1).map(|next| next.to_be_bytes());
        let until = until.as_ref().map(|until| &until[..]);
        let due = self.view().scan(Table::Expiry, &[], until, SWEEP_MAX)?;
        for (expiry, row) in &due.rows {
            let found = keys::split_expiry(expiry).zip(row.get(8..).and_then(keys::split_current));
            let Some(((_, sequence), (namespace, space, key))) = found else {
                return Err(corrupt("a time of expiry"));
            };
            let slot = Slot {
                namespace,
                space,
                key,
            };
            let view = self.view();
            let mut draft = Draft::default();
            let current = view.current(namespace, space, key)?;
            match current.filter(|current| current.sequence() == sequence) {
                Some(current) => draft.drop_current(view, slot, &current)?,
                None => {
                    if let Some(kept) = view.kept_at(namespace, key, sequence)? {
                        draft.drop_kept(view, slot, &kept)?;
                    }
                }
            }
            draft.record.remove(Table::Expiry, expiry.clone());
            // The namespace may be gone, and its account with it.
            if self
                .core
                .ledger
                .settle(namespace, Usage::default(), draft.lost, None)
                .is_ok()
            {
                self.batch.touched.insert(namespace);
            }
            self.batch.take(draft, Durability::Sync);
        }
        let rest = self.view().scan(Table::Expiry, &[], None, 1)?;
        self.next_expiry = rest
            .rows
            .first()
            .and_then(|(key, _)| keys::split_expiry(key))
            .map_or(u64::MAX, |(expires, _)| expires);
        Ok(())
    }

    fn create_namespace(
        &mut self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let registry = self.core.registry.read();
        if registry.contains(name) {
            return Err(StoreError::new(
                ErrorKind::NamespaceExists,
                format!("there is a namespace {name:?} already"),
            ));
        }
        let id = registry.greatest.checked_add(1).ok_or_else(|| {
            StoreError::new(ErrorKind::Invalid, "all namespace numbers are used up")
        })?;
        drop(registry);
        let info = Arc::new(NamespaceInfo {
            name: name.to_owned(),
            id,
            created: self.now,
            revision: 1,
            config,
        });
        let mut draft = Draft::default();
        let greatest = Bytes::copy_from_slice(&id.to_le_bytes());
        draft
            .record
            .put(Table::Namespace, Bytes::from_static(GREATEST), greatest);
        self.put_namespace(draft, &info);
        self.batch.settled.push(Settled::Opened(info.clone()));
        Ok(info)
    }

    fn put_namespace(&mut self, mut draft: Draft, info: &NamespaceInfo) {
        let key = Bytes::copy_from_slice(info.name.as_bytes());
        draft.record.put(Table::Namespace, key, encode_info(info));
        self.batch.take(draft, Durability::Sync);
    }

    fn update_namespace(
        &mut self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let old = self.core.registry.read().get(name)?;
        old.config.check_change(&config)?;
        if revision.is_some_and(|revision| revision != old.revision) {
            return Err(StoreError::new(
                ErrorKind::PreconditionFailed,
                "the namespace was changed meanwhile",
            ));
        }
        let info = Arc::new(NamespaceInfo {
            revision: old.revision + 1,
            config,
            ..(*old).clone()
        });
        self.put_namespace(Draft::default(), &info);
        self.batch.settled.push(Settled::Changed(info.clone()));
        Ok(info)
    }

    fn delete_namespace(&mut self, name: &str) -> Result<()> {
        let info = self.core.registry.read().get(name)?;
        let prefix = keys::namespace(info.id);
        let until = keys::after_prefix(&prefix);
        for table in [Table::Current, Table::Kept] {
            let mut from = prefix.to_vec();
            loop {
                let scan = self.view().scan(table, &from, until.as_deref(), 64)?;
                for (_, encoded) in scan.rows {
                    let entry = Entry::adopt(encoded).map_err(malformed)?;
                    if !entry.is_expired(self.now) {
                        return Err(StoreError::new(
                            ErrorKind::NamespaceNotEmpty,
                            format!("the namespace {name:?} is not empty"),
                        ));
                    }
                }
                match scan.next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        let mut draft = Draft::default();
        draft
            .record
            .remove(Table::Namespace, Bytes::copy_from_slice(name.as_bytes()));
        draft
            .record
            .remove(Table::Usage, Bytes::copy_from_slice(&prefix));
        self.batch.touched.remove(&info.id);
        self.batch.take(draft, Durability::Sync);
        self.batch.settled.push(Settled::Closed(info));
        Ok(())
    }

    fn tenant_quota(&mut self, tenant: String, quota: Quota) {
        let mut draft = Draft::default();
        let key = Bytes::copy_from_slice(tenant.as_bytes());
        draft.record.put(Table::Tenant, key, encode_quota(quota));
        self.batch.take(draft, Durability::Sync);
        self.batch.settled.push(Settled::TenantQuota(tenant, quota));
    }
}

fn slot(target: &Target) -> Slot<'_> {
    Slot {
        namespace: target.namespace.id,
        space: target.space,
        key: &target.key,
    }
}

fn staged_slot<'k>(info: &NamespaceInfo, key: &'k [u8]) -> Slot<'k> {
    Slot {
        namespace: info.id,
        space: Space::Staging,
        key,
    }
}

/// Refuses when the condition does not hold of the current value.
pub(crate) fn check(condition: Condition, current: Option<&Entry>) -> Result<()> {
    if condition == Condition::None {
        return Ok(());
    }
    let etag = current.map(Entry::etag).transpose().map_err(malformed)?;
    if condition.holds(etag.as_ref()) {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::PreconditionFailed,
        "the condition does not hold of the current value",
    ))
}

fn no_buffer() -> StoreError {
    StoreError::new(ErrorKind::Busy, "the journal has no buffer left")
}

/// Reads the greatest namespace number.
pub(crate) fn decode_greatest(row: &[u8]) -> Result<u32> {
    Reader::new(row)
        .u32()
        .map_err(|_| corrupt("the greatest namespace number"))
}
