//! The admin queues, used by one command at a time.

use std::sync::Arc;

use forebay_io::eventfd::EventFd;
use forebay_mem::PAGE_BYTES;
use forebay_proto::nvme::property::offset as register;
use forebay_proto::nvme::{SubmissionQueueEntry, opcode::admin as opcode};

use super::device::Shared;
use super::queue::{Bell, QueuePair};
use super::{Error, Result};

/// I/O queues that are asked for; there are as many as are granted.
pub(super) const QUEUES_WANTED: u16 = 64;

/// Entries of each admin queue.
const ENTRIES: u32 = 32;
const FEATURE_NUMBER_OF_QUEUES: u32 = 0x07;
/// Queue flags: physically contiguous, interrupts enabled.
const CONTIGUOUS: u32 = 1;
const INTERRUPTS: u32 = 2;

pub(super) struct AdminQueue {
    queue: QueuePair,
    /// Identifies the last command: completions of commands that nobody waits for any more are not taken for the next one's.
    cid: u16,
}

impl AdminQueue {
    /// Lays the queues out and tells the controller, which is disabled, where they are.
    pub(super) async fn new(shared: &Arc<Shared>, interrupt: EventFd) -> Result<AdminQueue> {
        let mapping = shared.for_queues(2 * PAGE_BYTES).await?;
        let attributes = u64::from(ENTRIES - 1);
        for (offset, bytes, value) in [
            (register::AQA, 4, attributes << 16 | attributes),
            (register::ASQ, 8, mapping.address()),
            (register::ACQ, 8, mapping.address() + PAGE_BYTES as u64),
        ] {
            shared.write_register(offset, bytes, value).await?;
        }
        let queue = QueuePair::new(
            shared.clone(),
            0,
            ENTRIES,
            mapping,
            PAGE_BYTES,
            Bell::trapped(),
            Some(interrupt),
        );
        Ok(AdminQueue {
            queue: queue?,
            cid: 0,
        })
    }

    /// Makes a command and waits for its end.
    pub(super) async fn execute(&mut self, entry: SubmissionQueueEntry) -> Result<u64> {
        // What ended of commands that were given up makes room.
        self.queue.poll(|_| {}).await?;
        self.cid = self.cid.wrapping_add(1);
        let cid = self.cid;
        if !self.queue.submit(&entry.with_cid(cid)) {
            return Err(Error::Device("its admin queue is full"));
        }
        self.queue.ring().await?;
        let mut ended = None;
        while ended.is_none() {
            self.queue
                .wait(|completion| {
                    if completion.cid == cid {
                        ended = Some(completion);
                    }
                })
                .await?;
        }
        match ended {
            Some(completion) if completion.status.is_success() => Ok(completion.result),
            Some(completion) => Err(Error::Status(completion.status)),
            None => Err(Error::Device("it has stopped")),
        }
    }

    /// How many pairs of I/O queues there may be.
    pub(super) async fn set_queues(&mut self, wanted: u16) -> Result<u16> {
        let each = u32::from(wanted - 1);
        let entry = SubmissionQueueEntry::new(opcode::SET_FEATURES, 0, 0)
            .with_cdw(10, FEATURE_NUMBER_OF_QUEUES)
            .with_cdw(11, each << 16 | each);
        let granted = self.execute(entry).await? as u32;
        let pairs = (granted & 0xffff).min(granted >> 16) as u16;
        Ok(pairs.saturating_add(1).min(wanted))
    }

    pub(super) async fn set_shadow_doorbells(&mut self, first: u64, second: u64) -> Result<()> {
        let entry = SubmissionQueueEntry::new(opcode::DOORBELL_BUFFER_CONFIG, 0, 0);
        self.execute(entry.with_prps(first, second)).await?;
        Ok(())
    }

    pub(super) async fn create_completion_queue(
        &mut self,
        qid: u16,
        entries: u32,
        base: u64,
        vector: Option<u16>,
    ) -> Result<()> {
        let interrupts = match vector {
            Some(vector) => INTERRUPTS | u32::from(vector) << 16,
            None => 0,
        };
        let entry = SubmissionQueueEntry::new(opcode::CREATE_IO_CQ, 0, 0)
            .with_cdw(10, (entries - 1) << 16 | u32::from(qid))
            .with_cdw(11, CONTIGUOUS | interrupts)
            .with_prps(base, 0);
        self.execute(entry).await?;
        Ok(())
    }

    pub(super) async fn create_submission_queue(
        &mut self,
        qid: u16,
        entries: u32,
        base: u64,
    ) -> Result<()> {
        let entry = SubmissionQueueEntry::new(opcode::CREATE_IO_SQ, 0, 0)
            .with_cdw(10, (entries - 1) << 16 | u32::from(qid))
            .with_cdw(11, CONTIGUOUS | u32::from(qid) << 16)
            .with_prps(base, 0);
        self.execute(entry).await?;
        Ok(())
    }
}
