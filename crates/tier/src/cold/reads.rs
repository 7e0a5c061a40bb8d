//! When values were read last, and when they came back: sketches of fixed size, which are never earlier than the truth.
//!
//! Each key has one cell in each of two rows, which it shares with other keys; an event sets both. The earlier of the two is at least
//! as late as the key's own last event. An error therefore keeps a value near for longer, and never sends one away too early.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crc_fast::{CrcAlgorithm, Digest, checksum};
use parking_lot::Mutex;

/// Cells of a row for reads: 4 MiB (less under test, which has no optimiser, and for a fuzzer).
const READ_CELLS: usize = match cfg!(any(test, fuzzing)) {
    true => 1 << 8,
    false => 1 << 20,
};
/// The same for what came back, which is much less.
const REST_CELLS: usize = READ_CELLS >> 4;
const MAGIC: &[u8; 8] = b"FBREADS2";
const HEAD_BYTES: usize = MAGIC.len() + 8;
/// Bytes of all that is known, as it is kept.
pub(super) const TIMES_BYTES: usize = HEAD_BYTES + 4 + 2 * 4 * (READ_CELLS + REST_CELLS);

/// When something happened last to each of many keys, in seconds since 1970; 0 is never.
struct Sketch {
    rows: [Box<[AtomicU32]>; 2],
}

impl Sketch {
    fn new(cells: usize) -> Sketch {
        let row = || (0..cells).map(|_| AtomicU32::new(0)).collect();
        Sketch {
            rows: [row(), row()],
        }
    }

    fn of(&self, spot: u64) -> [&AtomicU32; 2] {
        let [one, other] = &self.rows;
        [
            &one[spot as usize % one.len()],
            &other[(spot >> 32) as usize % other.len()],
        ]
    }

    /// It happened at `now`; whether that was news.
    fn note(&self, spot: u64, now: u32) -> bool {
        let mut news = false;
        for cell in self.of(spot) {
            if cell.load(Relaxed) < now {
                cell.fetch_max(now, Relaxed);
                news = true;
            }
        }
        news
    }

    fn last(&self, spot: u64) -> u32 {
        let [one, other] = self.of(spot).map(|cell| cell.load(Relaxed));
        one.min(other)
    }

    fn cells(&self) -> impl Iterator<Item = &AtomicU32> {
        self.rows.iter().flatten()
    }
}

/// All that is known.
pub(super) struct Times {
    /// From when on reads are known, in seconds since 1970.
    since: AtomicU32,
    reads: Sketch,
    rests: Sketch,
    /// Whether there is something to save.
    changed: AtomicBool,
}

impl Times {
    pub fn new(since: u32) -> Times {
        Times {
            since: AtomicU32::new(since),
            reads: Sketch::new(READ_CELLS),
            rests: Sketch::new(REST_CELLS),
            changed: AtomicBool::new(true),
        }
    }

    fn cells(&self) -> impl Iterator<Item = &AtomicU32> {
        self.reads.cells().chain(self.rests.cells())
    }

    /// Takes in what another process knows; whether this one knew anything that is news to the other.
    fn merge(&self, theirs: &Times) -> bool {
        let theirs_since = theirs.since.load(Relaxed);
        let mut more = self.since.fetch_min(theirs_since, Relaxed) < theirs_since;
        for (ours, theirs) in self.cells().zip(theirs.cells()) {
            let theirs = theirs.load(Relaxed);
            let ours = ours.fetch_max(theirs, Relaxed);
            more |= ours > theirs;
        }
        more
    }

    /// As it is kept: magic, the CRC-64/NVME of what follows, since when, the cells row by row; little-endian. What ends with its own
    /// checksum would have the same one whatever it is, and a store the same tag for it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TIMES_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.since.load(Relaxed).to_le_bytes());
        for cell in self.cells() {
            bytes.extend_from_slice(&cell.load(Relaxed).to_le_bytes());
        }
        let (head, body) = bytes.split_at_mut(HEAD_BYTES);
        let sum = checksum(CrcAlgorithm::Crc64Nvme, body);
        head[MAGIC.len()..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Times> {
        let (sum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        if bytes.len() != TIMES_BYTES
            || checksum(CrcAlgorithm::Crc64Nvme, body) != u64::from_le_bytes(*sum)
        {
            return None;
        }
        let (since, mut cells) = body.split_first_chunk::<4>()?;
        let times = Times::new(u32::from_le_bytes(*since));
        for cell in times.cells() {
            let (value, rest) = cells.split_first_chunk::<4>()?;
            cell.store(u32::from_le_bytes(*value), Relaxed);
            cells = rest;
        }
        Some(times)
    }
}

/// What this process knows. It takes memory once it is needed.
#[derive(Default)]
pub(super) struct Reads {
    times: OnceLock<Times>,
    /// One at a time writes the file.
    saving: Mutex<()>,
}

/// The name of a key in the sketches, the same in every process.
pub(super) fn spot(namespace: u32, key: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&namespace.to_be_bytes());
    digest.update(key);
    digest.finalize()
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(u32::MAX)
}

/// A second that is not over counts whole.
fn seconds_after(ms: u64) -> u32 {
    seconds(ms).saturating_add(1)
}

impl Reads {
    /// From now on reads are noted, unless they are already.
    pub fn begin(&self, now_ms: u64) -> &Times {
        self.times.get_or_init(|| Times::new(seconds(now_ms)))
    }

    /// Whether reads are noted.
    pub fn is_on(&self) -> bool {
        self.times.get().is_some()
    }

    pub fn note(&self, spot: u64, now_ms: u64) {
        if let Some(times) = self.times.get()
            && times.reads.note(spot, seconds_after(now_ms))
        {
            times.changed.store(true, Relaxed);
        }
    }

    /// A time in milliseconds since 1970 after which the key was not read.
    pub fn last(&self, spot: u64) -> u64 {
        self.times.get().map_or(u64::MAX, |times| {
            let last = times.reads.last(spot).max(times.since.load(Relaxed));
            u64::from(last) * 1000
        })
    }

    /// A value came back.
    pub fn note_return(&self, spot: u64, now_ms: u64) {
        let times = self.begin(now_ms);
        if times.rests.note(spot, seconds_after(now_ms)) {
            times.changed.store(true, Relaxed);
        }
    }

    /// A time in milliseconds since 1970 after which the value did not come back; `None` when it never did.
    pub fn returned(&self, spot: u64) -> Option<u64> {
        let last = self.times.get()?.rests.last(spot);
        (last > 0).then(|| u64::from(last) * 1000)
    }

    /// Takes in what other processes know, in the form that it is kept in; what is not whole is as nothing. Whether this process knows
    /// anything that they do not.
    pub fn merge(&self, kept: &[u8]) -> bool {
        match Times::decode(kept) {
            None => self.is_on(),
            Some(theirs) => match self.times.set(theirs) {
                Ok(()) => false,
                Err(theirs) => self.times.get().is_some_and(|ours| ours.merge(&theirs)),
            },
        }
    }

    /// What is known, in the form that it is kept in.
    pub fn kept(&self) -> Option<Vec<u8>> {
        self.times.get().map(Times::encode)
    }

    /// Goes on where another process saved. A file that is missing or not whole is as none.
    pub fn load(&self, path: &Path) {
        let mut bytes = Vec::new();
        let limit = TIMES_BYTES as u64 + 1;
        let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        if read.is_ok() {
            self.merge(&bytes);
        }
    }

    /// Keeps what is known in a file, if it is not there yet. Blocks.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let _saving = self.saving.lock();
        if !self.take_changed() {
            return Ok(());
        }
        let new = path.with_extension("new");
        let save = || {
            File::create(&new)?.write_all(&self.kept().unwrap_or_default())?;
            std::fs::rename(&new, path)
        };
        save().inspect_err(|_| self.set_changed())
    }

    /// Whether anything became known since this was asked last: the caller is about to keep it.
    pub fn take_changed(&self) -> bool {
        let times = self.times.get();
        times.is_some_and(|times| times.changed.swap(false, Relaxed))
    }

    /// It was not kept after all.
    pub fn set_changed(&self) {
        if let Some(times) = self.times.get() {
            times.changed.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_known_and_nothing_is_known_too_early() {
        let reads = Reads::default();
        let here = spot(1, b"here");
        reads.note(here, 5_000);
        assert_eq!(reads.last(here), u64::MAX, "nothing is known of before");
        reads.begin(10_000);
        reads.begin(99_000);
        assert_eq!(reads.last(here), 10_000);
        reads.note(here, 20_500);
        assert_eq!(reads.last(here), 21_000);
        assert_eq!(reads.last(spot(2, b"here")), 10_000, "another namespace");
    }

    #[test]
    fn what_came_back_is_known_of_and_nothing_else_is() {
        let reads = Reads::default();
        assert_eq!(reads.returned(7), None);
        reads.note_return(7, 10_500);
        assert_eq!((reads.returned(7), reads.returned(8)), (Some(11_000), None));
        assert_eq!(reads.last(7), 10_000, "reads are noted from then on");
    }

    #[test]
    fn it_outlives_the_process_when_its_file_is_whole() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("reads");
        let reads = Reads::default();
        reads.begin(10_000);
        reads.note(7, 20_000);
        reads.note_return(9, 30_000);
        reads.save(&path).expect("save");
        let again = Reads::default();
        again.load(&path);
        assert_eq!((again.last(7), again.last(8)), (21_000, 10_000));
        assert_eq!(again.returned(9), Some(31_000));

        let mut bytes = std::fs::read(&path).expect("read");
        bytes[500] ^= 1;
        std::fs::write(&path, bytes).expect("write");
        let damaged = Reads::default();
        damaged.load(&path);
        assert!(!damaged.is_on());
    }

    #[test]
    fn two_processes_know_what_each_of_them_knew() {
        let [one, other] = [Reads::default(), Reads::default()];
        one.begin(10_000);
        one.note(7, 20_000);
        other.begin(15_000);
        other.note(8, 30_000);
        other.note_return(9, 40_000);
        assert!(one.merge(&other.kept().expect("on")), "the read of 7");
        assert!(!other.merge(&one.kept().expect("on")), "it knew no more");
        for reads in [&one, &other] {
            assert_eq!(
                (reads.last(6), reads.last(7), reads.last(8)),
                (10_000, 21_000, 31_000)
            );
            assert_eq!(reads.returned(9), Some(41_000));
        }
        let late = Reads::default();
        assert!(!late.merge(&one.kept().expect("on")));
        assert_eq!(late.last(7), 21_000);
        assert!(late.merge(b"damaged"), "it is written anew");
    }
}
