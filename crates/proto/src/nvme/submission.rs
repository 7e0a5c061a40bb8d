//! Submission queue entries (Base 2.0, section 3.3.3.1).

use super::SglDescriptor;

/// One command: 64 bytes, looked at through accessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SubmissionQueueEntry([u8; SubmissionQueueEntry::BYTES]);

const _: () = assert!(size_of::<SubmissionQueueEntry>() == 64);

/// PSDT 01b: an SGL, metadata (if any) in one contiguous buffer.
const PSDT_SGL: u8 = 1 << 6;
const DPTR_AT: usize = 24;

impl SubmissionQueueEntry {
    /// Its length.
    pub const BYTES: usize = 64;

    /// A command with everything else zero.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> SubmissionQueueEntry {
        let mut entry = SubmissionQueueEntry([0; 64]);
        entry.0[0] = opcode;
        entry.0[2..4].copy_from_slice(&cid.to_le_bytes());
        entry.0[4..8].copy_from_slice(&nsid.to_le_bytes());
        entry
    }

    /// The entry that these bytes are; any bytes are one.
    pub fn from_bytes(bytes: &[u8; 64]) -> SubmissionQueueEntry {
        SubmissionQueueEntry(*bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// OPC.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// FUSE: 0 normal, 1 first, 2 second of a fused operation, 3 reserved.
    pub fn fuse(&self) -> u8 {
        self.0[1] & 3
    }

    /// PSDT: 0 PRPs, 1 or 2 an SGL, 3 reserved.
    pub fn psdt(&self) -> u8 {
        self.0[1] >> 6
    }

    /// The command's identifier, chosen by the host.
    pub fn cid(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }

    /// The namespace.
    pub fn nsid(&self) -> u32 {
        self.cdw(1)
    }

    /// Command dword `n`.
    ///
    /// # Panics
    /// When `n` exceeds 15.
    pub fn cdw(&self, n: usize) -> u32 {
        let at = n * 4;
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Command dwords `n` and `n + 1` as one number.
    ///
    /// # Panics
    /// When `n` exceeds 14.
    pub fn cdw64(&self, n: usize) -> u64 {
        u64::from(self.cdw(n)) | u64::from(self.cdw(n + 1)) << 32
    }

    /// DPTR as it is.
    pub fn dptr(&self) -> [u8; 16] {
        let mut dptr = [0; 16];
        dptr.copy_from_slice(&self.0[DPTR_AT..DPTR_AT + 16]);
        dptr
    }

    /// DPTR as an SGL descriptor.
    pub fn sgl(&self) -> SglDescriptor {
        SglDescriptor::decode(&self.dptr())
    }

    /// DPTR's first PRP entry.
    pub fn prp1(&self) -> u64 {
        self.cdw64(6)
    }

    /// DPTR's second PRP entry.
    pub fn prp2(&self) -> u64 {
        self.cdw64(8)
    }

    /// The same with command dword `n` set.
    ///
    /// # Panics
    /// When `n` exceeds 15.
    pub fn with_cdw(mut self, n: usize, value: u32) -> SubmissionQueueEntry {
        self.0[n * 4..n * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// The same by another identifier.
    pub fn with_cid(mut self, cid: u16) -> SubmissionQueueEntry {
        self.0[2..4].copy_from_slice(&cid.to_le_bytes());
        self
    }

    /// The same with FUSE set (0 to 2).
    pub fn with_fuse(mut self, fuse: u8) -> SubmissionQueueEntry {
        self.0[1] = self.0[1] & !3 | fuse & 3;
        self
    }

    /// The same with this descriptor as DPTR, and PSDT saying so.
    pub fn with_sgl(mut self, sgl: SglDescriptor) -> SubmissionQueueEntry {
        self.0[1] = self.0[1] & 0x3f | PSDT_SGL;
        self.0[DPTR_AT..DPTR_AT + 16].copy_from_slice(&sgl.encode());
        self
    }

    /// The same with these PRP entries as DPTR, and PSDT saying so.
    pub fn with_prps(mut self, prp1: u64, prp2: u64) -> SubmissionQueueEntry {
        self.0[1] &= 0x3f;
        self.0[DPTR_AT..DPTR_AT + 8].copy_from_slice(&prp1.to_le_bytes());
        self.0[DPTR_AT + 8..DPTR_AT + 16].copy_from_slice(&prp2.to_le_bytes());
        self
    }
}

impl std::fmt::Debug for SubmissionQueueEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubmissionQueueEntry")
            .field("opcode", &format_args!("{:02x}h", self.opcode()))
            .field("cid", &self.cid())
            .field("nsid", &self.nsid())
            .field("sgl", &self.sgl())
            .field("cdw10", &format_args!("{:08x}h", self.cdw(10)))
            .field("cdw11", &format_args!("{:08x}h", self.cdw(11)))
            .finish_non_exhaustive()
    }
}
