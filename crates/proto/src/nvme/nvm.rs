//! The NVM command set: blocks (NVM Command Set 1.0, section 3).

use super::opcode::nvm as opcode;
use super::{Namespace, NamespaceKind, Status, SubmissionQueueEntry};

/// Blocks of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The first (SLBA).
    pub first: u64,
    /// How many: 1 to 65536. (The wire's NLB is one less.)
    pub count: u32,
}

/// A parsed command. Its blocks lie inside the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvmCommand {
    /// Flush: what was written becomes durable.
    Flush,
    /// Read.
    Read {
        /// Which blocks.
        blocks: Blocks,
    },
    /// Write.
    Write {
        /// Which blocks.
        blocks: Blocks,
        /// Force Unit Access: durable before it is answered.
        fua: bool,
    },
    /// Compare what is there with the payload.
    Compare {
        /// Which blocks.
        blocks: Blocks,
    },
    /// Write Zeroes.
    WriteZeroes {
        /// Which blocks.
        blocks: Blocks,
        /// The blocks need keep no space.
        deallocate: bool,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Dataset Management; the payload is the ranges, [`DsmRange::BYTES`] each.
    DatasetManagement {
        /// How many ranges: 1 to 256.
        ranges: u16,
        /// Whether the ranges need keep no data; other attributes are hints.
        deallocate: bool,
    },
    /// Verify: read without moving data to the host.
    Verify {
        /// Which blocks.
        blocks: Blocks,
    },
}

const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;
/// DSM: Attribute - Deallocate.
const AD: u32 = 1 << 2;

impl NvmCommand {
    /// The command of an entry for a block namespace.
    ///
    /// # Errors
    /// The status to answer.
    pub fn parse(
        entry: &SubmissionQueueEntry,
        namespace: &Namespace,
    ) -> Result<NvmCommand, Status> {
        let NamespaceKind::Block {
            blocks: size,
            read_only,
            ..
        } = namespace.kind
        else {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        let cdw12 = entry.cdw(12);
        let blocks = || {
            let blocks = Blocks {
                first: entry.cdw64(10),
                count: (cdw12 & 0xffff) + 1,
            };
            match blocks.first.checked_add(u64::from(blocks.count)) {
                Some(end) if end <= size => Ok(blocks),
                _ => Err(Status::LBA_OUT_OF_RANGE),
            }
        };
        let fua = cdw12 & FUA != 0;
        let command = match entry.opcode() {
            opcode::FLUSH => NvmCommand::Flush,
            opcode::READ => NvmCommand::Read { blocks: blocks()? },
            opcode::WRITE => NvmCommand::Write {
                blocks: blocks()?,
                fua,
            },
            opcode::COMPARE => NvmCommand::Compare { blocks: blocks()? },
            opcode::WRITE_ZEROES => NvmCommand::WriteZeroes {
                blocks: blocks()?,
                deallocate: cdw12 & DEAC != 0,
                fua,
            },
            opcode::DATASET_MANAGEMENT => NvmCommand::DatasetManagement {
                ranges: (entry.cdw(10) & 0xff) as u16 + 1,
                deallocate: entry.cdw(11) & AD != 0,
            },
            opcode::VERIFY => NvmCommand::Verify { blocks: blocks()? },
            _ => return Err(Status::INVALID_OPCODE),
        };
        match command {
            NvmCommand::Write { .. }
            | NvmCommand::WriteZeroes { .. }
            | NvmCommand::DatasetManagement {
                deallocate: true, ..
            } if read_only => Err(Status::NAMESPACE_WRITE_PROTECTED),
            command => Ok(command),
        }
    }

    /// The entry of this command, without a data pointer.
    pub fn entry(&self, cid: u16, nsid: u32) -> SubmissionQueueEntry {
        let with_blocks = |opcode: u8, blocks: &Blocks, bits: u32| {
            SubmissionQueueEntry::new(opcode, cid, nsid)
                .with_cdw(10, blocks.first as u32)
                .with_cdw(11, (blocks.first >> 32) as u32)
                .with_cdw(12, blocks.count.wrapping_sub(1) & 0xffff | bits)
        };
        let fua_bit = |fua: bool| if fua { FUA } else { 0 };
        match self {
            NvmCommand::Flush => SubmissionQueueEntry::new(opcode::FLUSH, cid, nsid),
            NvmCommand::Read { blocks } => with_blocks(opcode::READ, blocks, 0),
            NvmCommand::Write { blocks, fua } => with_blocks(opcode::WRITE, blocks, fua_bit(*fua)),
            NvmCommand::Compare { blocks } => with_blocks(opcode::COMPARE, blocks, 0),
            NvmCommand::WriteZeroes {
                blocks,
                deallocate,
                fua,
            } => {
                let deac = if *deallocate { DEAC } else { 0 };
                with_blocks(opcode::WRITE_ZEROES, blocks, fua_bit(*fua) | deac)
            }
            NvmCommand::DatasetManagement { ranges, deallocate } => {
                SubmissionQueueEntry::new(opcode::DATASET_MANAGEMENT, cid, nsid)
                    .with_cdw(10, u32::from(ranges.wrapping_sub(1) & 0xff))
                    .with_cdw(11, if *deallocate { AD } else { 0 })
            }
            NvmCommand::Verify { blocks } => with_blocks(opcode::VERIFY, blocks, 0),
        }
    }

    /// How many bytes go to the controller.
    pub fn bytes_to_controller(&self, lba_shift: u8) -> u64 {
        match self {
            NvmCommand::Write { blocks, .. } | NvmCommand::Compare { blocks } => {
                u64::from(blocks.count) << lba_shift
            }
            NvmCommand::DatasetManagement { ranges, .. } => {
                u64::from(*ranges) * DsmRange::BYTES as u64
            }
            NvmCommand::Flush
            | NvmCommand::Read { .. }
            | NvmCommand::WriteZeroes { .. }
            | NvmCommand::Verify { .. } => 0,
        }
    }

    /// How many bytes go to the host.
    pub fn bytes_to_host(&self, lba_shift: u8) -> u64 {
        match self {
            NvmCommand::Read { blocks } => u64::from(blocks.count) << lba_shift,
            _ => 0,
        }
    }
}

/// One range of Dataset Management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DsmRange {
    /// The first block.
    pub first: u64,
    /// How many.
    pub count: u32,
}

impl DsmRange {
    /// Its length on the wire.
    pub const BYTES: usize = 16;

    /// Any bytes are a range; its context attributes are hints and are not kept.
    pub fn decode(bytes: &[u8; 16]) -> DsmRange {
        let mut first = [0; 8];
        first.copy_from_slice(&bytes[8..16]);
        DsmRange {
            first: u64::from_le_bytes(first),
            count: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// The wire's form.
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes
    }
}
