//! SGL descriptors (Base 2.0, section 4.1.2).

/// What a descriptor describes (SGL Descriptor Type).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SglKind {
    /// 0h: a data block.
    DataBlock,
    /// 1h: bytes to throw away.
    BitBucket,
    /// 2h: a list of further descriptors, the last of which is a segment again.
    Segment,
    /// 3h: the last list of descriptors.
    LastSegment,
    /// 4h: a data block by key (RDMA).
    KeyedDataBlock,
    /// 5h: data that the transport carries.
    TransportDataBlock,
    /// Any other type.
    Other(u8),
}

/// How its address is meant (SGL Descriptor Sub Type).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SglSubtype {
    /// 0h: an address in memory.
    Address,
    /// 1h: an offset into the capsule.
    Offset,
    /// Ah: the transport's.
    Transport,
    /// Any other.
    Other(u8),
}

/// One descriptor, 16 bytes on the wire. Keyed descriptors (RDMA) are laid out differently and are not decoded by this view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SglDescriptor {
    /// What it describes.
    pub kind: SglKind,
    /// How `address` is meant.
    pub subtype: SglSubtype,
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub length: u32,
}

impl SglDescriptor {
    /// Its length on the wire.
    pub const BYTES: usize = 16;

    /// The first `length` bytes that follow the command in its capsule (01h).
    pub fn in_capsule(length: u32) -> SglDescriptor {
        SglDescriptor {
            kind: SglKind::DataBlock,
            subtype: SglSubtype::Offset,
            address: 0,
            length,
        }
    }

    /// `length` bytes that the transport moves (5Ah).
    pub fn transport(length: u32) -> SglDescriptor {
        SglDescriptor {
            kind: SglKind::TransportDataBlock,
            subtype: SglSubtype::Transport,
            address: 0,
            length,
        }
    }

    /// `length` bytes of memory at `address` (00h).
    pub fn data_block(address: u64, length: u32) -> SglDescriptor {
        SglDescriptor {
            kind: SglKind::DataBlock,
            subtype: SglSubtype::Address,
            address,
            length,
        }
    }

    /// Any bytes are a descriptor.
    pub fn decode(bytes: &[u8; 16]) -> SglDescriptor {
        let mut address = [0; 8];
        address.copy_from_slice(&bytes[0..8]);
        SglDescriptor {
            kind: match bytes[15] >> 4 {
                0 => SglKind::DataBlock,
                1 => SglKind::BitBucket,
                2 => SglKind::Segment,
                3 => SglKind::LastSegment,
                4 => SglKind::KeyedDataBlock,
                5 => SglKind::TransportDataBlock,
                other => SglKind::Other(other),
            },
            subtype: match bytes[15] & 15 {
                0 => SglSubtype::Address,
                1 => SglSubtype::Offset,
                0xa => SglSubtype::Transport,
                other => SglSubtype::Other(other),
            },
            address: u64::from_le_bytes(address),
            length: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
        }
    }

    /// The wire's form.
    pub fn encode(&self) -> [u8; 16] {
        let kind = match self.kind {
            SglKind::DataBlock => 0,
            SglKind::BitBucket => 1,
            SglKind::Segment => 2,
            SglKind::LastSegment => 3,
            SglKind::KeyedDataBlock => 4,
            SglKind::TransportDataBlock => 5,
            SglKind::Other(other) => other & 15,
        };
        let subtype = match self.subtype {
            SglSubtype::Address => 0,
            SglSubtype::Offset => 1,
            SglSubtype::Transport => 0xa,
            SglSubtype::Other(other) => other & 15,
        };
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[15] = kind << 4 | subtype;
        bytes
    }
}
