//! Deciding a group: conditions, versions and quotas, in the order in which commands arrived.
//!
//! Commands see the rows of earlier commands of their group. Nothing is visible to anybody else before the journal publishes.

mod away;
mod compose;
mod namespaces;
mod pack;
mod sweep;
mod values;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use forebay_io::Disk;
use forebay_mem::{Buf, Pool};
use forebay_store::{
    Away, Durability, ErrorKind, NamespaceInfo, Quota, Result, StoreError, Stored,
};

use crate::cache::Piece;
use crate::command::{Answer, Command, Content, Reply, Target};
use crate::core::Core;
use crate::draft::{Draft, Slot};
use crate::extent::{Run, granules};
use crate::findings::Finding;
use crate::keys;
use crate::keys::Table;
use crate::namespaces::{encode_usage, stored_usage};
use crate::reclaim::Freed;
use crate::tables::{Memtable, SpaceChange};
use crate::usage::Reservation;
use crate::view::View;

use pack::Pack;

/// Values of at most so many bytes are kept in table inline.
pub(crate) const INLINE_BYTES_MAX: usize = 2048;
/// Values of at most so many bytes travel to the journal's thread, which writes those of a group with one I/O.
pub(crate) const SMALL_BYTES_MAX: usize = 32 << 10;
/// From so many bytes of small values on a group is full.
const PACKED_BYTES_SOFT_MAX: usize = 2 << 20;
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
    pub forgotten: Vec<Away>,
    pub answers: Vec<Answer>,
    /// Who waits until everything is in the index.
    pub checkpoint: Option<Reply<()>>,
    /// Small values to be written.
    pub packs: Vec<Pack>,
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
        self.forgotten.extend(draft.forgotten);
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
    /// The key in table expiry of what expires first, or a lesser one.
    next_expiry: Bytes,
    /// The earliest time of what was passed over, and is still there for all that is known.
    passed_from: u64,
    /// When what could not be read is looked at again.
    again_at: Option<u64>,
    /// How long after it could not.
    again_ms: u64,
    /// Rows of table expiry that are damaged or cannot be read, or what they name, as far as they were noted: that happens once.
    passed_over: BTreeSet<Bytes>,
    /// Whether the last group dropped as much of what is past its time as one may.
    swept_full: bool,
    /// Granules that groups before this one freed, and that come back with the next sync.
    owed_granules: u64,
    now: u64,
    /// Granules taken ahead for small values.
    pack: Option<Run>,
    /// Buffers of its own: a commit must not wait for memory that only commits give back.
    pool: Pool,
}

impl<D: Disk> Decider<D> {
    pub fn new(core: Arc<Core<D>>, next_id: u64, pool: Pool) -> Decider<D> {
        let mut decider = Decider {
            now: core.clock.unix_millis(),
            core,
            batch: Batch::default(),
            next_id,
            next_expiry: Bytes::new(),
            passed_from: u64::MAX,
            again_at: None,
            again_ms: sweep::AGAIN_MS,
            passed_over: BTreeSet::new(),
            swept_full: false,
            owed_granules: 0,
            pack: None,
            pool,
        };
        decider.next_expiry = decider.first_expiry(&[]);
        decider
    }

    /// Begins a group: what is past its time goes first. Groups before it owe granules that they freed until they are synced.
    pub fn begin(&mut self, owed_granules: u64) {
        self.batch = Batch::default();
        self.owed_granules = owed_granules;
        self.now = self.core.clock.unix_millis();
        // Groups that drop much alternate with others: nobody waits until all of it is gone.
        if self.is_due() && !std::mem::take(&mut self.swept_full) {
            self.swept_full = self.sweep();
        }
    }

    /// Decides a command. It comes back if it is to be decided in the next group, before all others: there is room for it then.
    pub fn decide(&mut self, command: Command) -> Option<Command> {
        let answer = match command {
            Command::Store(mut command, reply) => {
                let answer = self.store(&mut command);
                if self.is_too_early(&command.content, &answer) {
                    return Some(Command::Store(command, reply));
                }
                self.keep_or_free(&command.content, answer.is_ok());
                Answer::Stored(reply, answer)
            }
            Command::TakeBack(command, reply) => {
                let answer = self.take_back(&command);
                if self.is_too_early(&command.content, &answer) {
                    return Some(Command::TakeBack(command, reply));
                }
                self.keep_or_free(&command.content, answer.is_ok());
                Answer::Stored(reply, answer)
            }
            Command::LetGo(target, seen, away, reply) => {
                Answer::Done(reply, self.let_go(&target, &seen, away))
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
            Command::DeleteNamespace(seen, growths, reply) => {
                Answer::Done(reply, self.delete_namespace(&seen, growths))
            }
            Command::TenantQuota(tenant, quota, reply) => {
                self.tenant_quota(tenant, quota);
                Answer::Done(reply, Ok(()))
            }
            Command::Settle(reply) => {
                self.batch.sync = true;
                Answer::Done(reply, Ok(()))
            }
            Command::Sweep(reply) => {
                let more = Ok(self.is_due());
                Answer::Swept(reply, more)
            }
            Command::Checkpoint(reply) => {
                self.batch.checkpoint = Some(reply);
                return None;
            }
        };
        self.batch.answers.push(answer);
        None
    }

    /// Whether a small value, of which nothing was taken into the group yet, found no space that there may be once the group is synced: it is
    /// then, whatever it holds. Where less was freed than the value takes, nobody waits for a sync on its account.
    fn is_too_early(&mut self, content: &Content, answer: &Result<Stored>) -> bool {
        let Content::Small(buf) = content else {
            return false;
        };
        let no_space = |error: &StoreError| error.kind() == ErrorKind::NoSpace;
        let is_enough = || {
            let freed = self.owed_granules + Freed::granules(&self.batch.freed);
            freed >= u64::from(granules(buf.len()))
        };
        let is_too_early = answer.as_ref().is_err_and(no_space) && is_enough();
        self.batch.sync |= is_too_early;
        is_too_early
    }

    /// What was written for a change that does not happen is free.
    fn keep_or_free(&self, content: &Content, kept: bool) {
        if !kept && let Content::Written(extents) = content {
            for extent in extents {
                self.core.space.put(extent.run());
            }
        }
    }

    /// Whether the group takes no more.
    pub fn is_full(&self) -> bool {
        self.batch.payload.len() >= self.core.geometry.group_bytes_soft_max()
            || self.batch.packed_bytes >= PACKED_BYTES_SOFT_MAX
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

    /// Takes back what deciding a group did that will not happen: nothing of it is on the device, and never will be. Where small values
    /// should have gone is given out last from now on, since one of those writes may be what failed.
    pub fn undo(&mut self, batch: Batch) -> Result<()> {
        let taken = batch.over.space.iter().filter_map(|change| match change {
            SpaceChange::Taken(run) => Some(*run),
            SpaceChange::Freed(_) => None,
        });
        for run in taken.chain(batch.unused) {
            match batch.packs.iter().any(|pack| pack.has(run)) {
                true => self.core.space.put_suspect(run),
                false => self.core.space.put(run),
            }
        }
        for info in self.core.registry.read().all() {
            let used = stored_usage(&self.core.tables, info.id)?;
            self.core.ledger.set_used(info.id, used);
        }
        self.next_expiry = self.first_expiry(&[]);
        Ok(())
    }

    /// Granules taken ahead are free again.
    pub fn give_back(&mut self) {
        if let Some(run) = self.pack.take() {
            self.core.space.put(run);
        }
    }

    fn view(&self) -> View<'_> {
        View {
            tables: &self.core.tables,
            over: Some(&self.batch.over),
            now: self.now,
            stored: false,
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

    fn draft(&self) -> Draft {
        Draft::new(self.core.geometry.freeing_bytes_max())
    }

    /// Refuses a change that does not fit the journal.
    fn check(&self, draft: &Draft) -> Result<()> {
        if draft.record.encoded_len() as u64 > self.core.geometry.record_bytes_max() {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                "the change does not fit the journal",
            ));
        }
        Ok(())
    }

    /// Notes what is wrong with values that end.
    fn note(&self, losses: Vec<(u32, Finding)>) {
        for (namespace, finding) in losses {
            let info = self.core.registry.read().by_id(namespace).cloned();
            let namespace = info.map(|info| info.name.clone()).unwrap_or_default();
            self.core.note_for_good(Finding {
                namespace,
                ..finding
            });
        }
    }

    /// Takes a change into the group, if quotas allow.
    fn settle(
        &mut self,
        info: &NamespaceInfo,
        mut draft: Draft,
        reservation: Option<&mut Reservation>,
    ) -> Result<()> {
        self.check(&draft)?;
        self.core
            .ledger
            .settle(info.id, draft.grown, draft.exempt, draft.lost, reservation)?;
        if draft.grown != draft.lost {
            self.batch.touched.insert(info.id);
        }
        self.note(std::mem::take(&mut draft.losses));
        if let Some(expires) = draft.expires {
            self.expires_at(expires);
        }
        if !draft.record.is_empty() {
            self.batch.take(draft, info.config.durability);
        }
        Ok(())
    }
}

fn slot(target: &Target) -> Slot<'_> {
    Slot {
        namespace: target.namespace.id,
        space: target.space,
        key: &target.key,
    }
}
