//! The journal's thread: takes what is queued, decides it, writes it as one group, syncs once, publishes, answers.

mod undo;

use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use forebay_io::{Disk, File};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, Pool};
use forebay_store::{Away, ErrorKind, StoreError};

use crate::Result;
use crate::batch::{Batch, Decider, Settled};
use crate::codec::crc32c;
use crate::command::Command;
use crate::core::{Core, device_failed, read_only};
use crate::extent::GRANULE_BYTES;
use crate::group::{Header, Position, group_bytes};
use crate::reclaim::Freed;

use undo::{Outcome, Unwritten, undone};

/// Commands taken from the queue at once.
const HANDFUL: usize = 32;
/// Buffers of the journal's own: packs and groups being written.
const POOL_BYTES: usize = 16 << 20;
/// How often freed space is looked at while readers keep it.
const COLLECT_EVERY: Duration = Duration::from_millis(20);

/// How often the room that the index has is looked at while a segment fills.
const LOOKS: u64 = 32;
/// After so long without changes what they left goes to the index: its memory is given back, and the next start replays nothing.
const IDLE: Duration = Duration::from_secs(10);

struct Journal<D: Disk> {
    core: Arc<Core<D>>,
    decider: Decider<D>,
    pool: Pool,
    position: Position,
    /// Where the next group goes in its area.
    offset: u64,
    /// Where in the segment the room of the index was last looked at.
    looked: u64,
    /// The greatest group number that is on stable storage.
    synced: u64,
    /// Freed by groups that are not on stable storage yet.
    unsynced: Vec<Freed>,
    unsynced_granules: u64,
    unsynced_away: Vec<Away>,
    /// When a group that was answered early must be on stable storage.
    deadline: Option<Duration>,
    /// What is on stable storage is not known, and no later sync tells.
    sync_failed: bool,
    /// When the last group was committed.
    busy: Duration,
    /// When it was last tried to bring into the index what has no place there.
    tried: Duration,
}

/// Runs until the queue is closed and empty.
pub(crate) fn run<D: Disk>(core: Arc<Core<D>>, position: Position) {
    let mut journal = Journal::new(core, position);
    while journal.turn() {}
    journal.decider.give_back();
}

/// After a panic: what was answered early is to stay all the same, and nobody waits for an answer that will not come.
pub(crate) fn give_up<D: Disk>(core: &Core<D>) {
    core.latch_read_only(&StoreError::new(
        ErrorKind::Io,
        "the journal's thread panicked",
    ));
    // What panicked may be the sync. Nobody is told of this one: after one that failed it may say what is not so.
    match panic::catch_unwind(AssertUnwindSafe(|| core.data.sync_data())) {
        Ok(Ok(())) => drop(core.counters.syncs.fetch_add(1, Relaxed)),
        Ok(Err(error)) => tracing::error!(%error, "what was answered early may be lost"),
        Err(_) => tracing::error!("what was answered early may be lost"),
    }
    refuse_all(core);
}

/// Answers everything with a refusal until the queue is closed.
fn refuse_all<D: Disk>(core: &Core<D>) {
    loop {
        let (commands, closed) = core.queue.wait(None, std::mem::take);
        let none = commands.is_empty();
        for command in commands {
            core.abandon(&command);
            command.refuse(read_only);
        }
        if none && closed {
            return;
        }
    }
}

impl<D: Disk> Journal<D> {
    fn new(core: Arc<Core<D>>, position: Position) -> Journal<D> {
        let pool = Pool::new(POOL_BYTES);
        Journal {
            decider: Decider::new(core.clone(), position.next_id, pool.clone()),
            core,
            pool,
            position,
            offset: 0,
            looked: 0,
            synced: position.group - 1,
            unsynced: Vec::new(),
            unsynced_granules: 0,
            unsynced_away: Vec::new(),
            deadline: None,
            sync_failed: false,
            busy: Duration::ZERO,
            tried: Duration::ZERO,
        }
    }

    /// One group; false when there will be no more.
    fn turn(&mut self) -> bool {
        let patience = self.patience();
        let core = self.core.clone();
        let (is_idle, closed) = core.queue.wait(patience, |commands| commands.is_empty());
        if is_idle && closed {
            self.sync_late();
            if let Err(error) = self.settle_index() {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "what changed is not all in the index");
            }
            return false;
        }
        if core.is_read_only() {
            // Whatever failed, what was answered early is to stay.
            self.sync_late();
            refuse_all(&core);
            return false;
        }
        if is_idle {
            if self.is_due() {
                self.sync_late();
            }
            if self.until_idle() == Some(Duration::ZERO) {
                self.busy = core.clock.monotonic();
                // An index without room is tried again after as long a time.
                if core.tables.is_settled() && core.tables.frozen().is_some() {
                    core.handoff.retry();
                } else {
                    self.begin_checkpoint();
                }
            }
            self.try_unplaced();
            core.collect();
            return true;
        }
        self.build();
        let mut batch = std::mem::take(&mut self.decider.batch);
        let checkpoint = batch.checkpoint.take();
        let outcome = self.commit(batch);
        let mut settled = Ok(());
        if let Outcome::Published = outcome {
            if checkpoint.is_some() {
                self.decider.give_back();
                settled = self.settle_index();
            }
            core.collect();
        }
        if let Some(reply) = checkpoint {
            drop(reply.send(match outcome {
                Outcome::Undone(cause) => Err(undone(&cause)),
                Outcome::Published | Outcome::Unknown => core.check_writable().and(settled),
            }));
        }
        self.try_unplaced();
        true
    }

    fn begin_checkpoint(&mut self) {
        if let Err(Unwritten::Unknown(error)) = self.next_segment() {
            self.core.latch_read_only(&error);
        }
    }

    /// Tries again to bring into the index what has no place there, when there is too much of that: also while things change, which do not
    /// wait for it.
    fn try_unplaced(&mut self) {
        if self.until_tried() != Some(Duration::ZERO) {
            return;
        }
        self.tried = self.core.clock.monotonic();
        match self.core.tables.frozen() {
            Some(_) => self.core.handoff.retry(),
            None => self.begin_checkpoint(),
        }
    }

    fn patience(&self) -> Option<Duration> {
        let until_due = self
            .deadline
            .map(|deadline| deadline.saturating_sub(self.core.clock.monotonic()));
        let collect = self.core.reclaim.is_waiting().then_some(COLLECT_EVERY);
        [until_due, collect, self.until_idle(), self.until_tried()]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long until nothing has changed for long; `None` when there is nothing to bring into the index.
    fn until_idle(&self) -> Option<Duration> {
        let tables = &self.core.tables;
        let waiting = !tables.is_settled() || tables.frozen().is_some();
        waiting.then(|| (self.busy + IDLE).saturating_sub(self.core.clock.monotonic()))
    }

    /// How long until it is tried again to bring into the index what has no place there; `None` when that is not too much.
    fn until_tried(&self) -> Option<Duration> {
        let is_too_much = self.core.is_index_unreadable() && !self.core.is_read_only();
        is_too_much.then(|| (self.tried + IDLE).saturating_sub(self.core.clock.monotonic()))
    }

    fn is_due(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= self.core.clock.monotonic())
    }

    /// Decides queued commands until the group is large enough.
    fn build(&mut self) {
        self.decider.begin(self.unsynced_granules);
        let core = self.core.clone();
        while !self.decider.is_full() {
            let first = self.decider.batch.answers.is_empty();
            // Taken in handfuls, so that the queue's lock is not taken for each.
            let mut commands = core.queue.with(|waiting| {
                let alone = waiting.iter().take(HANDFUL).position(Command::stands_alone);
                let count = match alone {
                    Some(0) => usize::from(first),
                    Some(before) => before,
                    None => HANDFUL.min(waiting.len()),
                };
                waiting.drain(..count).collect::<VecDeque<_>>()
            });
            let mut last = match commands.front() {
                None => break,
                Some(command) => command.stands_alone(),
            };
            while !self.decider.is_full()
                && let Some(command) = commands.pop_front()
            {
                if let Some(early) = self.decider.decide(command) {
                    commands.push_front(early);
                    last = true;
                    break;
                }
            }
            // What the group had no room for is first in the next.
            core.queue.with(|waiting| {
                for command in commands.into_iter().rev() {
                    waiting.push_front(command);
                }
            });
            if last {
                break;
            }
        }
        self.decider.finish();
    }

    /// Makes a group durable as it asks for, visible, and answers it.
    fn commit(&mut self, mut batch: Batch) -> Outcome {
        let answers = std::mem::take(&mut batch.answers);
        let sync = batch.sync;
        if batch.records > 0 || (sync && self.synced + 1 < self.position.group) {
            if let Err(unwritten) = self.put_down(&mut batch) {
                return self.refuse(unwritten, batch, answers);
            }
            self.busy = self.core.clock.monotonic();
            if let Some(within_ms) = batch.within_ms.filter(|_| !sync) {
                let due = self.core.clock.monotonic() + Duration::from_millis(u64::from(within_ms));
                self.deadline = Some(self.deadline.map_or(due, |earlier| earlier.min(due)));
            }
        }
        self.publish(batch);
        for answer in answers {
            answer.send();
        }
        if self.is_due() {
            self.sync_late();
        }
        Outcome::Published
    }

    /// Writes a group, and syncs where it asks for that.
    fn put_down(&mut self, batch: &mut Batch) -> Result<(), Unwritten> {
        if batch.records > 0 {
            self.write(batch)?;
        }
        if batch.sync {
            self.sync()?;
        }
        Ok(())
    }

    /// Writes small values and the group at the same time: neither counts before the sync that covers both.
    fn write(&mut self, batch: &mut Batch) -> Result<(), Unwritten> {
        let total = group_bytes(batch.payload.len() as u64);
        let is_full = self.offset + total > self.core.geometry.segment_bytes;
        if is_full || self.is_index_due() {
            match self.next_segment() {
                // There is room in the journal at least.
                Err(Unwritten::Unplaced(_)) if !is_full => {}
                begun => begun?,
            }
        }
        if self.offset + total > self.core.geometry.segment_bytes {
            let error = StoreError::new(
                ErrorKind::TooLarge,
                "a group does not fit a journal segment",
            );
            return Err(error.into());
        }
        let header = Header {
            segment: self.position.segment,
            group: self.position.group,
            synced: self.synced,
            next_id: self.decider.next_id,
            payload_bytes: batch.payload.len() as u64,
            records: batch.records,
            payload_crc: crc32c(&batch.payload),
            link: self.position.link,
            store: self.core.geometry.mark(),
        };
        let (encoded, link) = header.encode();
        let packs = batch.packs.iter_mut().map(|pack| {
            let pages = std::mem::take(&mut pack.pages);
            (self.core.space.offset(pack.start), pages)
        });
        let at = self.core.geometry.area(self.position.segment) + self.offset;
        if let Err(error) = self.write_group(packs.collect(), at, [&encoded, &batch.payload]) {
            return Err(self.withdraw(at, error));
        }
        self.offset += total;
        self.position.group += 1;
        self.position.link = link;
        let counters = &self.core.counters;
        counters.groups.fetch_add(1, Relaxed);
        counters
            .records
            .fetch_add(u64::from(batch.records), Relaxed);
        counters.journal_bytes.fetch_add(total, Relaxed);
        Ok(())
    }

    /// Whether the index should have what is in the journal now, though the segment is not full: it may not find room for more.
    fn is_index_due(&mut self) -> bool {
        if self.offset < self.looked + self.core.geometry.segment_bytes / LOOKS {
            return false;
        }
        self.looked = self.offset;
        self.core.would_fill_index(self.offset)
    }

    /// Writes a group, header and payload, to `at`, together with what goes to other places. A group may be larger than the pool: then
    /// what there is of it is written first, which gives its blocks back. What small values hold is bounded far below the pool.
    fn write_group(
        &self,
        mut places: Vec<(u64, Vec<Buf>)>,
        mut at: u64,
        [mut head, mut payload]: [&[u8]; 2],
    ) -> Result<()> {
        let data = &self.core.data;
        let mut blocks: Vec<Buf> = Vec::new();
        while !head.is_empty() || !payload.is_empty() {
            let len = (head.len() + payload.len()).min(BLOCK_MAX_BYTES);
            let Ok(mut block) = self.pool.try_take(len) else {
                if blocks.is_empty() {
                    return Err(StoreError::new(
                        ErrorKind::Busy,
                        "the journal has no buffer left",
                    ));
                }
                let written: usize = blocks.iter().map(|block| block.len()).sum();
                data.write_together(vec![(at, std::mem::take(&mut blocks))])
                    .map_err(failed)?;
                at += written as u64;
                continue;
            };
            let taken = len.min(block.capacity());
            block.set_len(taken.next_multiple_of(GRANULE_BYTES));
            let (from_head, rest) = head.split_at(head.len().min(taken));
            head = rest;
            block[..from_head.len()].copy_from_slice(from_head);
            let (from_payload, rest) = payload.split_at(taken - from_head.len());
            payload = rest;
            block[from_head.len()..taken].copy_from_slice(from_payload);
            block[taken..].fill(0);
            blocks.push(block.freeze());
        }
        places.push((at, blocks));
        data.write_together(places).map_err(failed)
    }

    fn sync(&mut self) -> Result<()> {
        if let Err(error) = self.core.data.sync_data() {
            self.sync_failed = true;
            return Err(failed(error));
        }
        self.core.counters.syncs.fetch_add(1, Relaxed);
        self.synced = self.position.group - 1;
        self.deadline = None;
        self.core.reclaim.retire(std::mem::take(&mut self.unsynced));
        self.unsynced_granules = 0;
        self.core.forget(std::mem::take(&mut self.unsynced_away));
        Ok(())
    }

    /// Syncs groups that were answered early.
    fn sync_late(&mut self) {
        if self.synced + 1 == self.position.group || self.sync_failed {
            return;
        }
        if let Err(error) = self.sync() {
            self.core.latch_read_only(&error);
        }
    }

    fn publish(&mut self, batch: Batch) {
        // Whoever looks for what has expired never begins behind any of it.
        let expires_from = self.decider.expires_from();
        self.core.expires_from.fetch_min(expires_from, SeqCst);
        let freed = batch.freed.iter();
        let laid_out = freed.filter(|freed| freed.laid_out);
        self.core.reclaim.keep_layouts(
            laid_out.map(|freed| freed.body),
            // What cannot be read is refused to who comes to it.
            |body| self.core.view().layout(body).ok().flatten(),
            || self.core.tables.publish(batch.over),
        );
        self.core.expires_from.store(expires_from, SeqCst);
        for settled in batch.settled {
            let mut registry = self.core.registry.write();
            match settled {
                Settled::Opened(info) => {
                    let config = &info.config;
                    let used = forebay_store::Usage::default();
                    self.core
                        .ledger
                        .open_namespace(info.id, &config.tenant, config.quota, used);
                    registry.greatest = registry.greatest.max(info.id);
                    registry.put(info);
                }
                Settled::Changed(info) => {
                    self.core.ledger.set_quota(info.id, info.config.quota);
                    registry.put(info);
                }
                Settled::Closed(info) => {
                    registry.remove(&info.name);
                    self.core.ledger.close_namespace(info.id);
                }
                Settled::TenantQuota(tenant, quota) => {
                    self.core.ledger.set_tenant_quota(&tenant, quota);
                }
            }
        }
        for (piece, buf) in batch.cached {
            self.core.cache.insert(piece, buf);
        }
        // Their memory serves what comes next: it is mapped, and often still in the processor's cache.
        for freed in &batch.freed {
            self.core.cache.forget(freed.body, freed.extents);
        }
        for run in batch.unused {
            self.core.space.put(run);
        }
        // Only now can no new reader find what was freed.
        if self.synced + 1 == self.position.group {
            self.core.reclaim.retire(batch.freed);
            self.core.forget(batch.forgotten);
        } else {
            self.unsynced_granules += Freed::granules(&batch.freed);
            self.unsynced.extend(batch.freed);
            self.unsynced_away.extend(batch.forgotten);
        }
    }

    /// Freezes what the full segment holds and goes on in the other area.
    fn next_segment(&mut self) -> Result<(), Unwritten> {
        // The index must not refer to data that is not on stable storage.
        if self.synced + 1 < self.position.group {
            self.sync()?;
        }
        self.core.handoff.wait().map_err(Unwritten::Unplaced)?;
        self.core.check_writable()?;
        self.position.segment += 1;
        self.position.next_id = self.decider.next_id;
        self.offset = 0;
        self.looked = 0;
        self.core.tables.freeze();
        self.core.handoff.checkpoint(self.position);
        Ok(())
    }

    /// Brings everything into the index.
    fn settle_index(&mut self) -> Result<()> {
        let is_settled = self.core.tables.is_settled() && !self.core.is_index_unreadable();
        if !self.core.is_read_only() && !is_settled {
            match self.next_segment() {
                Ok(()) => {}
                Err(Unwritten::Unknown(error)) => self.core.latch_read_only(&error),
                Err(unplaced) => return Err(unplaced.into_cause()),
            }
        }
        self.core.handoff.wait()
    }
}

fn failed(error: io::Error) -> StoreError {
    device_failed("the data file failed")(error)
}

#[cfg(test)]
mod tests;
