//! One direction of messages: a ring in shared memory with one producer and one consumer.
//!
//! The first page holds words on lines of their own: how many bytes were ever produced (and beside it the processor that the producer
//! ran on, plus one), how many consumed, whether the consumer sleeps, whether the producer waits. Then come [`RING_BYTES`] of records: a word with the message's length, the message,
//! up to seven bytes to the next word. A record may wrap around the end.
//!
//! The peer may write anything anywhere at any moment. So each side keeps its own count to itself and only publishes it, takes what
//! it reads once, and checks the copy: the peer's count must lie within the ring, a length within what was produced. Payload that the
//! peer changes while it is copied out is a different message of the same peer, no worse.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use forebay_mem::{PAGE_BYTES, RegionSlice};

use crate::MESSAGE_BYTES_MAX;

/// Room for records of one direction; a power of two.
pub(super) const RING_BYTES: usize = 256 << 10;

/// What one direction takes in the shared memory.
pub(super) const DIRECTION_BYTES: usize = PAGE_BYTES + RING_BYTES;

/// The consumer publishes its count when this much is unpublished, or nothing is left: the producer's line is then rarely taken away.
const PUBLISH_BYTES: u64 = RING_BYTES as u64 / 8;

const WORD: usize = size_of::<u64>();

// Two lines apart: processors fetch lines in pairs.
const PRODUCED: usize = 0;
const PRODUCER_RUNS: usize = 8;
const CONSUMED: usize = 128;
const CONSUMER_SLEEPS: usize = 256;
const PRODUCER_WAITS: usize = 384;

const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES >= 4 * MESSAGE_BYTES_MAX);

/// The peer wrote what no peer of ours writes; in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Violation(pub(super) &'static str);

const BAD_COUNT: Violation = Violation("a ring's count is out of bounds");
const BAD_LENGTH: Violation = Violation("a message's length is out of bounds");
const BAD_MEMORY: Violation = Violation("the ring's memory is gone");

/// The shared memory of one direction.
#[derive(Debug)]
struct Shared(RegionSlice);

impl Shared {
    fn word(&self, at: usize) -> Result<&AtomicU64, Violation> {
        self.0.word(at).ok_or(BAD_MEMORY)
    }

    fn write(&self, count: u64, bytes: &[u8]) -> bool {
        let (at, first) = split(count, bytes.len());
        self.0.write(at, &bytes[..first])
            && (first == bytes.len() || self.0.write(PAGE_BYTES, &bytes[first..]))
    }

    fn read(&self, count: u64, bytes: &mut [u8]) -> bool {
        let (at, first) = split(count, bytes.len());
        let (head, tail) = bytes.split_at_mut(first);
        self.0.read(at, head) && (tail.is_empty() || self.0.read(PAGE_BYTES, tail))
    }
}

/// Where the byte of that count lies, and how many of `len` bytes come before the end.
fn split(count: u64, len: usize) -> (usize, usize) {
    let at = (count % RING_BYTES as u64) as usize;
    (PAGE_BYTES + at, len.min(RING_BYTES - at))
}

/// The producer notes where it runs once in so many bytes: it seldom moves, and asking costs as much as a short message.
const NOTE_BYTES: u64 = 1024;

/// The processor that this thread runs on, plus one: zero is none.
fn here() -> u64 {
    forebay_io::processor() as u64 + 1
}

fn record_bytes(len: usize) -> u64 {
    (WORD + len.next_multiple_of(WORD)) as u64
}

/// What came of a push.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is in the ring.
    Done {
        /// The consumer sleeps and must be woken.
        wake: bool,
    },
    /// There is no room for it now.
    Full,
}

/// The sending end of a direction.
#[derive(Debug)]
pub(super) struct Producer {
    shared: Shared,
    produced: u64,
    /// As last read.
    consumed: u64,
}

impl Producer {
    /// Of fresh memory of [`DIRECTION_BYTES`].
    pub(super) fn new(memory: RegionSlice) -> Producer {
        Producer {
            shared: Shared(memory),
            produced: 0,
            consumed: 0,
        }
    }

    /// Puts a message of at most [`MESSAGE_BYTES_MAX`] into the ring, and tells the consumer of it.
    pub(super) fn push(&mut self, message: &[u8]) -> Result<Pushed, Violation> {
        match self.put(message)? {
            Pushed::Done { .. } => Ok(Pushed::Done {
                wake: self.publish()?,
            }),
            Pushed::Full => Ok(Pushed::Full),
        }
    }

    /// Puts a message into the ring that the consumer, which may sleep on, does not see before [`Producer::publish`].
    pub(super) fn put(&mut self, message: &[u8]) -> Result<Pushed, Violation> {
        let bytes = record_bytes(message.len());
        if !self.has_room(bytes)? {
            return Ok(Pushed::Full);
        }
        let len = (message.len() as u64).to_le_bytes();
        let after = self.produced + WORD as u64;
        if !self.shared.write(self.produced, &len) || !self.shared.write(after, message) {
            return Err(BAD_MEMORY);
        }
        let noted = self.produced.next_multiple_of(NOTE_BYTES);
        self.produced += bytes;
        if noted < self.produced {
            let runs = self.shared.word(PRODUCER_RUNS)?;
            runs.store(here(), Relaxed);
        }
        Ok(Pushed::Done { wake: false })
    }

    /// Tells the consumer of all that was put into the ring; whether it sleeps and must be woken.
    pub(super) fn publish(&mut self) -> Result<bool, Violation> {
        self.shared.word(PRODUCED)?.store(self.produced, Release);
        // The consumer says that it sleeps and then looks at the count; we publish the count and then look whether it sleeps.
        fence(SeqCst);
        let sleeps = self.shared.word(CONSUMER_SLEEPS)?;
        Ok(sleeps.load(Relaxed) != 0 && sleeps.swap(0, Relaxed) != 0)
    }

    /// Whether the consumer said that it sleeps; it may have done so by now.
    pub(super) fn seems_asleep(&self) -> bool {
        let sleeps = self.shared.word(CONSUMER_SLEEPS);
        sleeps.is_ok_and(|sleeps| sleeps.load(Relaxed) != 0)
    }

    /// Says that this end waits for room for a message of `len` bytes; false when there is room after all.
    pub(super) fn announce_wait(&mut self, len: usize) -> Result<bool, Violation> {
        self.shared.word(PRODUCER_WAITS)?.store(1, Relaxed);
        fence(SeqCst);
        Ok(!self.has_room(record_bytes(len))?)
    }

    /// Whether a message of `len` bytes fits now.
    pub(super) fn has_room_for(&mut self, len: usize) -> Result<bool, Violation> {
        self.has_room(record_bytes(len))
    }

    /// How many bytes the consumer is known to have taken since the begin.
    pub(super) fn taken(&self) -> u64 {
        self.consumed
    }

    fn has_room(&mut self, bytes: u64) -> Result<bool, Violation> {
        let fits = |consumed| self.produced - consumed + bytes <= RING_BYTES as u64;
        if fits(self.consumed) {
            return Ok(true);
        }
        let consumed = self.shared.word(CONSUMED)?.load(Acquire);
        if consumed < self.consumed || consumed > self.produced {
            return Err(BAD_COUNT);
        }
        self.consumed = consumed;
        Ok(fits(consumed))
    }
}

/// What came of a pop.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Popped {
    /// A message was taken.
    pub(super) taken: bool,
    /// The producer waits for the room that was made, and must be woken.
    pub(super) wake: bool,
}

/// The receiving end of a direction.
#[derive(Debug)]
pub(super) struct Consumer {
    shared: Shared,
    consumed: u64,
    published: u64,
    /// As last read.
    produced: u64,
}

impl Consumer {
    /// Of fresh memory of [`DIRECTION_BYTES`].
    pub(super) fn new(memory: RegionSlice) -> Consumer {
        Consumer {
            shared: Shared(memory),
            consumed: 0,
            published: 0,
            produced: 0,
        }
    }

    /// Takes the next message, if there is one, in place of what `into` held.
    pub(super) fn pop(&mut self, into: &mut Vec<u8>) -> Result<Popped, Violation> {
        let taken = !self.is_empty()?;
        if taken {
            self.take(into)?;
        }
        let unpublished = self.consumed - self.published;
        let publish =
            unpublished >= PUBLISH_BYTES || (self.consumed == self.produced && unpublished > 0);
        let wake = publish && self.publish()?;
        Ok(Popped { taken, wake })
    }

    /// Whether there is no message.
    pub(super) fn is_empty(&mut self) -> Result<bool, Violation> {
        if self.consumed < self.produced {
            return Ok(false);
        }
        let produced = self.shared.word(PRODUCED)?.load(Acquire);
        let ahead = produced.wrapping_sub(self.consumed);
        if ahead > RING_BYTES as u64 || !ahead.is_multiple_of(WORD as u64) {
            return Err(BAD_COUNT);
        }
        self.produced = produced;
        Ok(ahead == 0)
    }

    /// Bytes of the messages that are there by what was seen last, without looking again.
    pub(super) fn backlog(&self) -> u64 {
        self.produced - self.consumed
    }

    /// Whether the producer last ran on the processor that this thread runs on: it cannot run while we look.
    pub(super) fn is_in_the_way(&self) -> bool {
        let runs = self.shared.word(PRODUCER_RUNS);
        runs.is_ok_and(|runs| runs.load(Relaxed) == here())
    }

    /// Says that this end sleeps; false when there is a message after all.
    pub(super) fn announce_sleep(&mut self) -> Result<bool, Violation> {
        self.shared.word(CONSUMER_SLEEPS)?.store(1, Relaxed);
        fence(SeqCst);
        let empty = self.is_empty()?;
        if !empty {
            self.shared.word(CONSUMER_SLEEPS)?.store(0, Relaxed);
        }
        Ok(empty)
    }

    fn take(&mut self, into: &mut Vec<u8>) -> Result<(), Violation> {
        let mut len = [0; WORD];
        if !self.shared.read(self.consumed, &mut len) {
            return Err(BAD_MEMORY);
        }
        let len = u64::from_le_bytes(len);
        if len > MESSAGE_BYTES_MAX as u64 {
            return Err(BAD_LENGTH);
        }
        let len = len as usize;
        let bytes = record_bytes(len);
        if bytes > self.produced - self.consumed {
            return Err(BAD_LENGTH);
        }
        into.resize(len, 0);
        if !self.shared.read(self.consumed + WORD as u64, into) {
            return Err(BAD_MEMORY);
        }
        self.consumed += bytes;
        Ok(())
    }

    fn publish(&mut self) -> Result<bool, Violation> {
        self.published = self.consumed;
        self.shared.word(CONSUMED)?.store(self.consumed, Release);
        // Woken for less, the producer would soon wait again.
        if self.produced - self.consumed > RING_BYTES as u64 / 2 {
            return Ok(false);
        }
        fence(SeqCst);
        let waits = self.shared.word(PRODUCER_WAITS)?;
        Ok(waits.load(Relaxed) != 0 && waits.swap(0, Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use forebay_mem::Region;
    use proptest::prelude::*;

    use super::*;

    fn ring() -> (Arc<Region>, Producer, Consumer) {
        let region = Region::memfd(DIRECTION_BYTES).unwrap();
        let memory = region.slice(0..DIRECTION_BYTES).unwrap();
        (region, Producer::new(memory.clone()), Consumer::new(memory))
    }

    fn message(number: u64, len: usize) -> Vec<u8> {
        let mut message = vec![number as u8; len];
        message.truncate(len);
        if let Some(first) = message.first_chunk_mut::<8>() {
            *first = number.to_le_bytes();
        }
        message
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What is pushed is popped, in order, and what is only put is not; it is full only when the model is; who announced is woken.
        #[test]
        fn against_a_queue(
            steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1u32..40, 0..=MESSAGE_BYTES_MAX), 1..100),
        ) {
            let (_region, mut producer, mut consumer) = ring();
            let (mut queue, mut put, mut bytes, mut number) = (VecDeque::new(), Vec::new(), 0, 0u64);
            let (mut asleep, mut waiting, mut got) = (false, false, Vec::new());
            for (push, publish, times, len) in steps {
                for _ in 0..times {
                    if push {
                        let sent = message(number, len);
                        let pushed = match publish {
                            true => producer.push(&sent).unwrap(),
                            false => producer.put(&sent).unwrap(),
                        };
                        match pushed {
                            Pushed::Done { wake } => {
                                bytes += record_bytes(len);
                                put.push(sent);
                                number += 1;
                                if publish {
                                    prop_assert_eq!(wake, asleep);
                                    asleep = false;
                                    queue.extend(put.drain(..));
                                }
                            }
                            Pushed::Full => {
                                // The producer may not know yet of room that the consumer did not publish.
                                prop_assert!(bytes + record_bytes(len) + PUBLISH_BYTES > RING_BYTES as u64);
                                prop_assert_eq!(producer.publish().unwrap(), asleep);
                                asleep = false;
                                queue.extend(put.drain(..));
                                waiting |= producer.announce_wait(len).unwrap();
                            }
                        }
                        prop_assert!(bytes <= RING_BYTES as u64);
                    } else {
                        let popped = consumer.pop(&mut got).unwrap();
                        prop_assert_eq!(popped.taken, !queue.is_empty());
                        if let Some(sent) = queue.pop_front() {
                            prop_assert!(got == sent);
                            bytes -= record_bytes(sent.len());
                        }
                        prop_assert!(waiting || !popped.wake);
                        waiting &= !popped.wake;
                        // Whoever waits is woken at the latest when nothing is left.
                        prop_assert!(!(waiting && queue.is_empty()));
                        if !popped.taken && !asleep {
                            asleep = consumer.announce_sleep().unwrap();
                            prop_assert!(asleep);
                        }
                    }
                }
            }
        }

        /// Whatever stands in the memory, an end answers, and with no message that is longer than one may be.
        #[test]
        fn scribbled_over(
            seed in prop::collection::vec(any::<u8>(), 64),
            scribbles in prop::collection::vec((0..DIRECTION_BYTES / 8, any::<u64>(), 0u32..64), 1..50),
        ) {
            let (region, mut producer, mut consumer) = ring();
            let memory = region.slice(0..DIRECTION_BYTES).unwrap();
            let mut got = Vec::new();
            for (word, value, shift) in scribbles {
                // Half of them hit the four words of the first page.
                let word = if word.is_multiple_of(2) { word % 64 / 16 * 16 } else { word };
                prop_assert!(memory.write(word * 8, &(value >> shift).to_le_bytes()));
                let _ = producer.push(&seed);
                let _ = producer.announce_wait(seed.len());
                if let Ok(Popped { taken: true, .. }) = consumer.pop(&mut got) {
                    prop_assert!(got.len() <= MESSAGE_BYTES_MAX);
                }
                let _ = consumer.announce_sleep();
            }
        }
    }

    #[test]
    fn what_cannot_be_is_a_violation() {
        let ring_bytes = RING_BYTES as u64;
        let popped = |produced: u64, len: u64| {
            let (region, _, mut consumer) = ring();
            let memory = region.slice(0..DIRECTION_BYTES).unwrap();
            memory.write(PRODUCED, &produced.to_le_bytes());
            memory.write(PAGE_BYTES, &len.to_le_bytes());
            consumer.pop(&mut Vec::new()).map(|popped| popped.taken)
        };
        assert_eq!(popped(16, 8), Ok(true));
        assert_eq!(popped(8, 0), Ok(true));
        for produced in [ring_bytes + 8, u64::MAX - 7, u64::MAX, 4, 17] {
            assert_eq!(popped(produced, 0), Err(BAD_COUNT), "{produced}");
        }
        let max = MESSAGE_BYTES_MAX as u64;
        for (produced, len) in [
            (16, 9),
            (8, 1),
            (ring_bytes, max + 1),
            (ring_bytes, u64::MAX),
            (max, max),
        ] {
            assert_eq!(popped(produced, len), Err(BAD_LENGTH), "{produced} {len}");
        }

        let (region, mut producer, _) = ring();
        let memory = region.slice(0..DIRECTION_BYTES).unwrap();
        while producer.push(&[0; 1000]) != Ok(Pushed::Full) {}
        let produced = memory.word(PRODUCED).unwrap().load(Relaxed);
        for consumed in [produced + 8, u64::MAX, produced + ring_bytes] {
            memory.write(CONSUMED, &consumed.to_le_bytes());
            assert_eq!(producer.push(&[0; 1000]), Err(BAD_COUNT));
        }
        memory.write(CONSUMED, &produced.to_le_bytes());
        assert_eq!(producer.push(&[0; 1000]), Ok(Pushed::Done { wake: false }));
        // Nothing that was consumed comes back.
        memory.write(CONSUMED, &0u64.to_le_bytes());
        while let Ok(Pushed::Done { .. }) = producer.push(&[0; 1000]) {}
        assert_eq!(producer.push(&[0; 1000]), Err(BAD_COUNT));
    }
}
