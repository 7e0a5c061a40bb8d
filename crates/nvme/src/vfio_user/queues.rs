//! Queues in the client's memory (Base 2.0, section 3.3.1).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

use forebay_proto::nvme::{CompletionQueueEntry, SubmissionQueueEntry};

use super::memory::{Gone, Place};
use super::payload::Ticket;
use crate::target::Fuser;

/// Commands taken from one queue before the others get their turn.
pub(super) const BURST: usize = 32;

/// A queue of commands.
pub(super) struct SubmissionQueue {
    place: Place,
    entries: u32,
    /// The next command to take.
    head: u32,
    /// Where commands end, as the client said last.
    tail: u32,
    /// The queue that its completions go to.
    pub(super) cqid: u16,
    /// Commands taken and not completed.
    pub(super) busy: u32,
    /// Pairs the halves of fused operations.
    pub(super) fuser: Fuser<Ticket>,
    /// No more commands are taken; once none is in progress, the admin command with this identifier is completed.
    pub(super) deleting: Option<u16>,
    /// Commands that were read and not taken.
    read: VecDeque<SubmissionQueueEntry>,
    /// More of them are being read.
    pub(super) reading: bool,
}

/// A queue of completions.
pub(super) struct CompletionQueue {
    place: Place,
    entries: u32,
    /// The place of the next completion.
    tail: u32,
    /// What makes that completion a new one to the client.
    phase: bool,
    /// How far the client has taken them.
    head: u32,
    /// Its interrupt vector, if it has one.
    pub(super) vector: Option<u16>,
    /// Completions that there was no room for, in order.
    waiting: VecDeque<CompletionQueueEntry>,
    /// From where the client was asked to tell when it takes more, if it was.
    announced: Option<u32>,
    /// Completions were put since the last interrupt.
    pub(super) news: bool,
    /// Completions of a far queue that are to be written: each with its place in the queue and its phase.
    unwritten: VecDeque<(u32, CompletionQueueEntry, bool)>,
    /// Some are being written.
    pub(super) writing: bool,
    /// When all are written it goes, and the admin command with this identifier is completed.
    pub(super) deleting: Option<u16>,
}

impl SubmissionQueue {
    /// Bytes of so many entries.
    pub(super) fn bytes(entries: u32) -> u64 {
        u64::from(entries) * SubmissionQueueEntry::BYTES as u64
    }

    pub(super) fn new(place: Place, entries: u32, cqid: u16) -> SubmissionQueue {
        SubmissionQueue {
            place,
            entries,
            head: 0,
            tail: 0,
            cqid,
            busy: 0,
            fuser: Fuser::default(),
            deleting: None,
            read: VecDeque::new(),
            reading: false,
        }
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Where it lies.
    pub(super) fn place(&mut self) -> &mut Place {
        &mut self.place
    }

    pub(super) fn is_far(&self) -> bool {
        self.place.is_far()
    }

    /// The client says that commands end there; whether there are any. What is outside the queue is not listened to.
    pub(super) fn extend(&mut self, tail: u32) -> bool {
        if tail < self.entries {
            self.tail = tail;
        }
        self.head != self.tail
    }

    /// Takes the next command of those that were read.
    pub(super) fn take(&mut self) -> Option<SubmissionQueueEntry> {
        let entry = self.read.pop_front()?;
        self.head = (self.head + 1) % self.entries;
        Some(entry)
    }

    /// Whether none is there to be taken before more are read.
    pub(super) fn has_taken_all(&self) -> bool {
        self.read.is_empty()
    }

    /// Where to read the next commands of a far queue, and how many bytes; `None` when some are read, being read, or there are none.
    pub(super) fn to_read(&self) -> Option<(u64, usize)> {
        if self.reading || !self.read.is_empty() || self.head == self.tail {
            return None;
        }
        let end = match self.head < self.tail {
            true => self.tail,
            false => self.entries,
        };
        let count = BURST.min((end - self.head) as usize);
        let at = SubmissionQueue::bytes(self.head);
        Some((
            self.place.address().wrapping_add(at),
            count * SubmissionQueueEntry::BYTES,
        ))
    }

    /// They were read.
    pub(super) fn has_read(&mut self, bytes: &[u8]) {
        let entries = bytes.as_chunks().0.iter();
        self.read
            .extend(entries.map(SubmissionQueueEntry::from_bytes));
    }

    /// Reads the next commands of a near queue, [`BURST`] at most, unless some are read: their bytes are copied once and together, since
    /// each comes from the client's processor, and the client may change them as it likes from then on. An error is memory that is gone.
    pub(super) fn read_near(&mut self, most: usize) -> Result<(), Gone> {
        if !self.read.is_empty() {
            return Ok(());
        }
        // Not before the doorbell was read.
        fence(Acquire);
        let mut bytes = [0; BURST * SubmissionQueueEntry::BYTES];
        let (mut next, mut left) = (self.head, most.min(BURST));
        while next != self.tail && left > 0 {
            // Up to the end of the queue they lie side by side.
            let end = match next < self.tail {
                true => self.tail,
                false => self.entries,
            };
            let count = left.min((end - next) as usize);
            let bytes = &mut bytes[..count * SubmissionQueueEntry::BYTES];
            let at = next as usize * SubmissionQueueEntry::BYTES;
            if !self.place.memory()?.read(at, bytes) {
                return Err(Gone);
            }
            self.has_read(bytes);
            next = (next + count as u32) % self.entries;
            left -= count;
        }
        Ok(())
    }
}

impl CompletionQueue {
    /// Bytes of so many entries.
    pub(super) fn bytes(entries: u32) -> u64 {
        u64::from(entries) * CompletionQueueEntry::BYTES as u64
    }

    pub(super) fn new(place: Place, entries: u32, vector: Option<u16>) -> CompletionQueue {
        CompletionQueue {
            place,
            entries,
            tail: 0,
            phase: true,
            head: 0,
            vector,
            waiting: VecDeque::new(),
            announced: None,
            news: false,
            unwritten: VecDeque::new(),
            writing: false,
            deleting: None,
        }
    }

    /// Where it lies.
    pub(super) fn place(&mut self) -> &mut Place {
        &mut self.place
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Whether the next completion would wait, as far as is known.
    pub(super) fn has_no_room(&self) -> bool {
        self.is_full() || !self.has_room()
    }

    /// How many completions there is room for, as far as is known.
    pub(super) fn room(&self) -> usize {
        ((self.head + self.entries - self.tail - 1) % self.entries) as usize
    }

    /// Whether completions wait for room; no command should be taken then whose completion would, too.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The client says that it has taken completions up to there; what lies beyond the last one is not listened to.
    pub(super) fn advance(&mut self, head: u32) -> Result<(), Gone> {
        if head == self.head || head >= self.entries {
            return Ok(());
        }
        let distance = |to: u32| (to + self.entries - self.head) % self.entries;
        if distance(head) > distance(self.tail) {
            return Ok(());
        }
        self.head = head;
        while !self.waiting.is_empty() && self.has_room() {
            if let Some(next) = self.waiting.pop_front() {
                self.write(&next)?;
            }
        }
        Ok(())
    }

    /// Where it stands, and whether to ask to be told when the client takes more: it is, when completions wait for that.
    pub(super) fn announce(&mut self, asleep: bool) -> (u32, bool) {
        let waits = asleep && self.is_full();
        self.announced = waits.then_some(self.head);
        (self.head, waits)
    }

    /// Whether completions wait for room, and the client was not asked to tell when it goes on from where it stands.
    pub(super) fn waits_untold(&self) -> bool {
        self.is_full() && self.announced != Some(self.head)
    }

    /// Puts a completion, at once or when there is room.
    pub(super) fn put(&mut self, completion: CompletionQueueEntry) -> Result<(), Gone> {
        if self.is_full() || !self.has_room() {
            self.waiting.push_back(completion);
            return Ok(());
        }
        self.write(&completion)
    }

    fn has_room(&self) -> bool {
        (self.tail + 1) % self.entries != self.head
    }

    /// Whether all that was put is where the client sees it, or waits for room.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty() && !self.writing
    }

    /// Whether there is something [to write](CompletionQueue::next_write).
    pub(super) fn is_to_be_written(&self) -> bool {
        !self.unwritten.is_empty() && !self.writing
    }

    /// What is to be written to a far queue next: where, and twice as many bytes, as they are before they become new to the client and
    /// after. Until that is done there is nothing else.
    pub(super) fn next_write(&mut self) -> Option<(u64, [Vec<u8>; 2])> {
        if self.writing {
            return None;
        }
        let &(first, ..) = self.unwritten.front()?;
        self.writing = true;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut place = first;
        while let Some(&(at, completion, phase)) = self.unwritten.front()
            && at == place
            && after.len() < BURST * CompletionQueueEntry::BYTES
        {
            before.extend_from_slice(&completion.encode(!phase));
            after.extend_from_slice(&completion.encode(phase));
            self.unwritten.pop_front();
            place += 1;
        }
        let at = CompletionQueue::bytes(first);
        Some((self.place.address().wrapping_add(at), [before, after]))
    }

    fn write(&mut self, completion: &CompletionQueueEntry) -> Result<(), Gone> {
        let memory = match self.place.memory() {
            Ok(memory) => memory,
            Err(_) if self.place.is_far() => {
                self.unwritten
                    .push_back((self.tail, *completion, self.phase));
                self.advance_tail();
                return Ok(());
            }
            Err(gone) => return Err(gone),
        };
        let at = self.tail as usize * CompletionQueueEntry::BYTES;
        let bytes = completion.encode(self.phase);
        let (body, last) = bytes.split_at(8);
        // The phase tag last: a client that sees it sees the rest.
        let placed = match memory.word(at + 8) {
            Some(word) => {
                let body = memory.write(at, body);
                word.store(
                    u64::from_le_bytes(last.try_into().unwrap_or_default()),
                    Release,
                );
                body
            }
            // Copied, and not all at once, maybe: first with the old tag, then that byte alone.
            None => {
                let old = completion.encode(!self.phase);
                memory.write(at, &old) && memory.write(at + 14, &bytes[14..15])
            }
        };
        if !placed {
            return Err(Gone);
        }
        self.advance_tail();
        self.news = true;
        Ok(())
    }

    fn advance_tail(&mut self) {
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_mem::{Region, RegionSlice};
    use forebay_proto::nvme::Status;

    use super::*;

    fn memory(bytes: u64) -> RegionSlice {
        let region = Region::anonymous(4096).unwrap();
        region.slice(0..bytes as usize).unwrap()
    }

    fn completion(cid: u16) -> CompletionQueueEntry {
        CompletionQueueEntry {
            result: u64::from(cid) << 32,
            sq_head: 0,
            sq_id: 1,
            cid,
            status: Status::SUCCESS,
        }
    }

    fn seen(memory: &RegionSlice, at: usize) -> (u16, bool) {
        let mut bytes = [0; 16];
        assert!(memory.read(at * 16, &mut bytes));
        let (entry, phase) = CompletionQueueEntry::decode(&bytes);
        (entry.cid, phase)
    }

    #[test]
    fn a_full_queue_of_completions_waits_for_the_client() {
        let memory = memory(CompletionQueue::bytes(4));
        let mut queue = CompletionQueue::new(Place::fixed(memory.clone()), 4, None);
        for cid in 0..6 {
            queue.put(completion(cid)).unwrap();
        }
        assert!(queue.is_full());
        assert_eq!(
            [0, 1, 2, 3].map(|at| seen(&memory, at)),
            [(0, true), (1, true), (2, true), (0, false)]
        );
        // Beyond the last completion, and beyond the queue.
        queue.advance(4).unwrap();
        queue.advance(u32::MAX).unwrap();
        assert_eq!(queue.head(), 0);
        queue.advance(2).unwrap();
        assert_eq!(
            [seen(&memory, 3), seen(&memory, 0)],
            [(3, true), (4, false)]
        );
        queue.advance(3).unwrap();
        assert!(!queue.is_full());
        assert_eq!(seen(&memory, 1), (5, false));
        // All are taken: there is nothing ahead, and no way back.
        queue.advance(2).unwrap();
        queue.advance(1).unwrap();
        queue.advance(3).unwrap();
        assert_eq!(queue.head(), 2);
    }

    #[test]
    fn commands_are_taken_up_to_the_tail() {
        let memory = memory(SubmissionQueue::bytes(4));
        for cid in 0..4 {
            let entry = SubmissionQueueEntry::new(2, cid, 1);
            assert!(memory.write(usize::from(cid) * 64, entry.as_bytes()));
        }
        let mut queue = SubmissionQueue::new(Place::fixed(memory), 4, 1);
        let take = |queue: &mut SubmissionQueue, most| {
            queue.read_near(most).unwrap();
            std::iter::from_fn(|| queue.take())
                .map(|entry| entry.cid())
                .collect::<Vec<_>>()
        };
        assert!(!queue.extend(0) && !queue.extend(4) && !queue.extend(u32::MAX));
        assert!(queue.extend(3));
        assert_eq!(take(&mut queue, 2), [0, 1]);
        assert_eq!(take(&mut queue, 9), [2]);
        assert!(take(&mut queue, 9).is_empty());
        assert!(queue.extend(2));
        assert_eq!(take(&mut queue, 2), [3, 0]);
        assert!(take(&mut queue, 0).is_empty());
        assert_eq!(take(&mut queue, 9), [1]);
    }
}
