//! When values were read last: a sketch of fixed size, which is never earlier than the truth.
//!
//! Each key has one cell in each of two rows, which it shares with other keys; a read sets both. The earlier of the two is at least
//! as late as the key's own last read. An error therefore keeps a value near for longer, and never sends one away too early.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Cells of a row: 4 MiB (less under test, which has no optimiser, and for a fuzzer).
const CELLS: usize = match cfg!(any(test, fuzzing)) {
    true => 1 << 8,
    false => 1 << 20,
};
const MAGIC: &[u8; 8] = b"FBREADS1";

pub(super) struct Rows {
    /// From when on reads are known, in seconds since 1970.
    since: u32,
    cells: [Box<[AtomicU32]>; 2],
    /// Whether there is something to save.
    changed: AtomicBool,
}

/// The sketch. It takes memory once it is needed.
#[derive(Default)]
pub(super) struct Reads {
    rows: OnceLock<Rows>,
}

/// The name of a key in the sketch, the same in every process.
pub(super) fn spot(namespace: u32, key: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&namespace.to_be_bytes());
    digest.update(key);
    digest.finalize()
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(u32::MAX)
}

impl Rows {
    pub fn new(since: u32) -> Rows {
        let row = || (0..CELLS).map(|_| AtomicU32::new(0)).collect();
        Rows {
            since,
            cells: [row(), row()],
            changed: AtomicBool::new(true),
        }
    }

    fn of(&self, spot: u64) -> [&AtomicU32; 2] {
        [
            &self.cells[0][spot as usize % CELLS],
            &self.cells[1][(spot >> 32) as usize % CELLS],
        ]
    }

    /// As a file: magic, since when, the cells row by row, CRC-64/NVME; little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + 12 + 2 * 4 * CELLS);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.since.to_le_bytes());
        for cell in self.cells.iter().flatten() {
            bytes.extend_from_slice(&cell.load(Relaxed).to_le_bytes());
        }
        let sum = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Rows> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if checksum(CrcAlgorithm::Crc64Nvme, body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (since, mut cells) = body.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
        if cells.len() != 2 * 4 * CELLS {
            return None;
        }
        let rows = Rows::new(u32::from_le_bytes(*since));
        for cell in rows.cells.iter().flatten() {
            let (value, rest) = cells.split_first_chunk::<4>()?;
            cell.store(u32::from_le_bytes(*value), Relaxed);
            cells = rest;
        }
        Some(rows)
    }
}

impl Reads {
    /// From now on reads are noted, unless they are already.
    pub fn begin(&self, now_ms: u64) {
        self.rows.get_or_init(|| Rows::new(seconds(now_ms)));
    }

    /// Whether reads are noted.
    pub fn is_on(&self) -> bool {
        self.rows.get().is_some()
    }

    pub fn note(&self, spot: u64, now_ms: u64) {
        if let Some(rows) = self.rows.get() {
            // A second that is not over counts whole.
            let now = seconds(now_ms).saturating_add(1);
            for cell in rows.of(spot) {
                if cell.load(Relaxed) < now {
                    cell.fetch_max(now, Relaxed);
                    rows.changed.store(true, Relaxed);
                }
            }
        }
    }

    /// A time in milliseconds since 1970 after which the key was not read.
    pub fn last(&self, spot: u64) -> u64 {
        self.rows.get().map_or(u64::MAX, |rows| {
            let [one, other] = rows.of(spot).map(|cell| cell.load(Relaxed));
            u64::from(one.min(other).max(rows.since)) * 1000
        })
    }

    /// Goes on where another process saved. A file that is missing or not whole is as none.
    pub fn load(&self, path: &Path) {
        let mut bytes = Vec::new();
        let limit = (MAGIC.len() + 4 + 2 * 4 * CELLS + 8) as u64;
        let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        if read.is_ok()
            && let Some(rows) = Rows::decode(&bytes)
        {
            // Nobody noted anything before.
            let _ = self.rows.set(rows);
        }
    }

    /// Keeps what is known in a file. Blocks.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let Some(rows) = self.rows.get() else {
            return Ok(());
        };
        if !rows.changed.swap(false, Relaxed) {
            return Ok(());
        }
        let new = path.with_extension("new");
        File::create(&new)?.write_all(&rows.encode())?;
        std::fs::rename(new, path)
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
    fn it_outlives_the_process_when_its_file_is_whole() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("reads");
        let reads = Reads::default();
        reads.begin(10_000);
        reads.note(7, 20_000);
        reads.save(&path).expect("save");
        let again = Reads::default();
        again.load(&path);
        assert_eq!((again.last(7), again.last(8)), (21_000, 10_000));

        let mut bytes = std::fs::read(&path).expect("read");
        bytes[500] ^= 1;
        std::fs::write(&path, bytes).expect("write");
        let damaged = Reads::default();
        damaged.load(&path);
        assert!(!damaged.is_on());
    }
}
