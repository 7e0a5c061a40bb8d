//! Where bytes of values lie: runs of granules, and extents with their checksums (docs/engine-format.md section 1).

use forebay_mem::PAGE_BYTES;

use crate::codec::{Malformed, Reader, crc32c};

/// The unit of allocation, in bytes.
pub(crate) const GRANULE_BYTES: usize = PAGE_BYTES;
/// The longest extent, in bytes.
pub(crate) const EXTENT_BYTES_MAX: usize = 1 << 20;
/// What one checksum covers, in bytes.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS_MAX: usize = EXTENT_BYTES_MAX / BLOCK_BYTES;

/// Neighbouring granules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub start: u64,
    pub granules: u32,
}

impl Run {
    pub fn end(self) -> u64 {
        self.start + u64::from(self.granules)
    }

    pub fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.start.to_le_bytes());
        into.extend_from_slice(&self.granules.to_le_bytes());
    }

    pub fn decode(from: &mut Reader<'_>) -> Result<Run, Malformed> {
        let run = Run {
            start: from.u64()?,
            granules: from.u32()?,
        };
        run.start
            .checked_add(u64::from(run.granules))
            .filter(|end| *end < 1 << 52 && run.granules > 0)
            .map(|_| run)
            .ok_or(Malformed)
    }
}

/// The checksums of the blocks of one extent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    crcs: [u32; BLOCKS_MAX],
    blocks: usize,
}

impl Sums {
    fn of(data: &[u8]) -> Sums {
        let mut sums = Sums::default();
        for block in data.chunks(BLOCK_BYTES) {
            sums.push(crc32c(block));
        }
        sums
    }

    /// The next block's; what an extent has no room for is left out.
    pub fn push(&mut self, crc: u32) {
        if let Some(next) = self.crcs.get_mut(self.blocks) {
            *next = crc;
            self.blocks += 1;
        }
    }
}

/// One contiguous piece of a value, with a checksum for each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub start: u64,
    /// 1 to [`EXTENT_BYTES_MAX`].
    pub bytes: u32,
    crcs: [u32; BLOCKS_MAX],
}

impl Extent {
    /// Describes `data`, which lies or will lie at granule `start`.
    pub fn of(start: u64, data: &[u8]) -> Extent {
        Extent::summed(start, data, Sums::of(data))
    }

    /// The same, where the checksums are known.
    pub fn summed(start: u64, data: &[u8], sums: Sums) -> Extent {
        debug_assert_eq!(sums.blocks, data.len().div_ceil(BLOCK_BYTES));
        Extent {
            start,
            bytes: data.len() as u32,
            crcs: sums.crcs,
        }
    }

    pub fn run(&self) -> Run {
        Run {
            start: self.start,
            granules: granules(self.bytes as usize),
        }
    }

    /// Whether `data`, which begins with block `first` and holds whole blocks (or the end), is what was stored; else the
    /// number of the first block that is not.
    pub fn check(&self, first: usize, data: &[u8]) -> Result<(), usize> {
        for (at, block) in data.chunks(BLOCK_BYTES).enumerate() {
            if self.crcs.get(first + at) != Some(&crc32c(block)) {
                return Err(first + at);
            }
        }
        Ok(())
    }

    /// Whether `crc` is the checksum of block `block`.
    pub fn is_block(&self, block: usize, crc: u32) -> bool {
        self.crcs().get(block) == Some(&crc)
    }

    fn crcs(&self) -> &[u32] {
        &self.crcs[..(self.bytes as usize).div_ceil(BLOCK_BYTES)]
    }

    pub fn encoded_len(&self) -> usize {
        12 + 4 * self.crcs().len()
    }

    pub fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.start.to_le_bytes());
        into.extend_from_slice(&self.bytes.to_le_bytes());
        for crc in self.crcs() {
            into.extend_from_slice(&crc.to_le_bytes());
        }
    }

    pub fn decode(from: &mut Reader<'_>) -> Result<Extent, Malformed> {
        let mut extent = Extent {
            start: from.u64()?,
            bytes: from.u32()?,
            crcs: [0; BLOCKS_MAX],
        };
        if extent.bytes == 0 || extent.bytes as usize > EXTENT_BYTES_MAX || extent.start >= 1 << 51
        {
            return Err(Malformed);
        }
        let blocks = (extent.bytes as usize).div_ceil(BLOCK_BYTES);
        for crc in &mut extent.crcs[..blocks] {
            *crc = from.u32()?;
        }
        Ok(extent)
    }

    /// Extents behind their u32 count.
    pub fn encode_all(extents: &[Extent], into: &mut Vec<u8>) {
        into.extend_from_slice(&(extents.len() as u32).to_le_bytes());
        for extent in extents {
            extent.encode(into);
        }
    }

    pub fn decode_all(from: &mut Reader<'_>) -> Result<Vec<Extent>, Malformed> {
        let count = from.u32()?;
        (0..count).map(|_| Extent::decode(from)).collect()
    }
}

/// Granules that `bytes` bytes take.
pub(crate) fn granules(bytes: usize) -> u32 {
    bytes.div_ceil(GRANULE_BYTES) as u32
}
