//! Completion queue entries (Base 2.0, section 3.3.3.2).

use super::Status;

/// The end of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompletionQueueEntry {
    /// DW0, and DW1 in the upper half.
    pub result: u64,
    /// How far the controller has taken the submission queue (0 on a transport without flow control of that queue).
    pub sq_head: u16,
    /// The submission queue (0 on Fabrics, where a queue has its own connection).
    pub sq_id: u16,
    /// The command's identifier.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl CompletionQueueEntry {
    /// Its length on the wire.
    pub const BYTES: usize = 16;

    /// The wire's form; `phase` is the phase tag, false on Fabrics.
    pub fn encode(&self, phase: bool) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.sq_head.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.sq_id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.cid.to_le_bytes());
        let status = self.status.wire() << 1 | u16::from(phase);
        bytes[14..16].copy_from_slice(&status.to_le_bytes());
        bytes
    }

    /// The entry and its phase tag; any bytes are one.
    pub fn decode(bytes: &[u8; 16]) -> (CompletionQueueEntry, bool) {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut result = [0; 8];
        result.copy_from_slice(&bytes[0..8]);
        let entry = CompletionQueueEntry {
            result: u64::from_le_bytes(result),
            sq_head: u16_at(8),
            sq_id: u16_at(10),
            cid: u16_at(12),
            status: Status::from_wire(u16_at(14) >> 1),
        };
        (entry, u16_at(14) & 1 != 0)
    }
}
