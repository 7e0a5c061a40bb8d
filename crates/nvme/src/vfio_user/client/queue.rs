//! A pair of queues in our own memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use forebay_io::eventfd::EventFd;
use forebay_mem::RegionSlice;
use forebay_proto::nvme::property::offset as register;
use forebay_proto::nvme::{CompletionQueueEntry, SubmissionQueueEntry};

use super::device::{Mapping, Shared};
use super::{Error, Result};

/// What a pair of queues is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Entries of each queue; one less may be in flight. At most what the controller grants.
    pub entries: u16,
    /// Whether [`QueuePair::wait`] can sleep. Who polls anyway saves the device the interrupts.
    pub interrupts: bool,
}

impl Default for QueueOptions {
    /// 128 entries, and sleep.
    fn default() -> QueueOptions {
        QueueOptions {
            entries: 128,
            interrupts: true,
        }
    }
}

/// Where a pair's doorbells are.
pub(super) struct Bell(Way);

enum Way {
    Trapped,
    Mapped(RegionSlice),
    Shadow {
        doorbells: RegionSlice,
        events: RegionSlice,
    },
}

impl Bell {
    pub(super) fn trapped() -> Bell {
        Bell(Way::Trapped)
    }

    pub(super) fn mapped(page: RegionSlice) -> Bell {
        Bell(Way::Mapped(page))
    }

    pub(super) fn shadow(doorbells: RegionSlice, events: RegionSlice) -> Bell {
        Bell(Way::Shadow { doorbells, events })
    }
}

/// A pair of queues: commands are submitted, the doorbell is rung for all of them, completions are taken.
pub struct QueuePair {
    shared: Arc<Shared>,
    qid: u16,
    entries: u32,
    submission: RegionSlice,
    completion: RegionSlice,
    bell: Bell,
    interrupt: Option<EventFd>,
    /// Where the next command goes.
    tail: u32,
    /// As the device was told.
    rung: u32,
    /// As far as the device has taken commands, by its completions.
    taken: u32,
    /// The next completion, and what makes it a new one.
    head: u32,
    phase: bool,
    /// How far completions were taken, as the device was told.
    told: u32,
    in_flight: u32,
    _memory: Mapping,
}

impl QueuePair {
    pub(super) fn new(
        shared: Arc<Shared>,
        qid: u16,
        entries: u32,
        memory: Mapping,
        completion_at: usize,
        bell: Bell,
        interrupt: Option<EventFd>,
    ) -> Result<QueuePair> {
        let region = memory.region();
        let submission = region.slice(0..entries as usize * SubmissionQueueEntry::BYTES);
        let end = completion_at + entries as usize * CompletionQueueEntry::BYTES;
        let completion = region.slice(completion_at..end);
        let (Some(submission), Some(completion)) = (submission, completion) else {
            return Err(Error::Device("its queues are larger than their memory"));
        };
        Ok(QueuePair {
            shared,
            qid,
            entries,
            submission,
            completion,
            bell,
            interrupt,
            tail: 0,
            rung: 0,
            taken: 0,
            head: 0,
            phase: true,
            told: 0,
            in_flight: 0,
            _memory: memory,
        })
    }

    /// Its identifier.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands that were submitted and whose completion was not taken.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many may be.
    pub fn depth(&self) -> u32 {
        self.entries - 1
    }

    /// Lays a command down; the device learns of it with [`QueuePair::ring`]. False when the queue is full.
    pub fn submit(&mut self, entry: &SubmissionQueueEntry) -> bool {
        let next = (self.tail + 1) % self.entries;
        // As many completions fit as commands may be in flight.
        if next == self.taken || self.in_flight == self.depth() {
            return false;
        }
        let at = self.tail as usize * SubmissionQueueEntry::BYTES;
        if !self.submission.write(at, entry.as_bytes()) {
            return false;
        }
        self.tail = next;
        self.in_flight += 1;
        true
    }

    /// Tells the device of the commands that were submitted. It waits only where doorbells are messages.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn ring(&mut self) -> Result<()> {
        if self.rung == self.tail {
            return Ok(());
        }
        let tail = self.tail;
        self.tell(0, self.rung, tail).await?;
        // Not before: whoever gives this future up may ring again.
        self.rung = tail;
        Ok(())
    }

    /// Takes completions that are there and tells the device; how many there were.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn poll(&mut self, mut each: impl FnMut(CompletionQueueEntry)) -> Result<usize> {
        let mut count = 0;
        while let Some(completion) = self.next() {
            count += 1;
            each(completion);
        }
        if self.told != self.head {
            self.tell(4, self.told, self.head).await?;
            self.told = self.head;
        }
        Ok(count)
    }

    /// As [`QueuePair::poll`], waiting for at least one completion.
    ///
    /// # Errors
    /// When the connection is gone; [`Error::Device`] for a queue without interrupts.
    pub async fn wait(&mut self, mut each: impl FnMut(CompletionQueueEntry)) -> Result<usize> {
        loop {
            let count = self.poll(&mut each).await?;
            if count > 0 {
                return Ok(count);
            }
            let Some(interrupt) = &self.interrupt else {
                return Err(Error::Device("the queue raises no interrupts"));
            };
            tokio::select! {
                raised = interrupt.raised() => raised?,
                () = self.shared.connection.closed() => {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
    }

    /// The next completion, if there is one. The device is not told.
    fn next(&mut self) -> Option<CompletionQueueEntry> {
        let at = self.head as usize * CompletionQueueEntry::BYTES;
        let last = self.completion.word(at + 8)?.load(Acquire).to_le_bytes();
        if (last[6] & 1 != 0) != self.phase {
            return None;
        }
        let first = self.completion.word(at)?.load(Relaxed).to_le_bytes();
        let mut bytes = [0; CompletionQueueEntry::BYTES];
        bytes[..8].copy_from_slice(&first);
        bytes[8..].copy_from_slice(&last);
        let (completion, _) = CompletionQueueEntry::decode(&bytes);
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase = !self.phase;
        }
        if u32::from(completion.sq_head) < self.entries {
            self.taken = completion.sq_head.into();
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        Some(completion)
    }

    /// Tells the device the value of the doorbell `which` bytes into the pair.
    async fn tell(&self, which: u64, old: u32, new: u32) -> Result<()> {
        let at = usize::from(self.qid) * 8;
        let offset = u64::from(register::DOORBELLS) + at as u64 + which;
        // Nobody else writes these eight bytes.
        let tail = if which == 0 { new } else { self.rung };
        let word = u64::from(tail) | u64::from(self.head) << 32;
        match &self.bell.0 {
            Way::Trapped => self.shared.connection.ring(offset, new).await,
            Way::Mapped(page) => {
                store(page, at, word);
                Ok(())
            }
            Way::Shadow { doorbells, events } => {
                store(doorbells, at, word);
                fence(SeqCst);
                let event = events.word(at).map_or(0, |word| word.load(Relaxed));
                let event = (event >> (which * 8)) as u16;
                // Base 2.0 section 5.8: it asked to be told when this value is passed.
                let (old, new) = (old as u16, new as u16);
                if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
                    self.shared.connection.wake(offset, new.into())?;
                }
                Ok(())
            }
        }
    }

    /// Returns when the device has gone.
    pub async fn closed(&self) {
        self.shared.connection.closed().await;
    }
}

fn store(page: &RegionSlice, at: usize, word: u64) {
    if let Some(there) = page.word(at) {
        there.store(word, Release);
    }
}
