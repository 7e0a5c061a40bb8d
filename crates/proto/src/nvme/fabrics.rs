//! Fabrics commands (Base 2.0, section 6): Connect, Property Get and Set, authentication, Disconnect.

use super::opcode::{FABRICS, fabrics as fctype};
use super::property::offset;
use super::{NQN_BYTES_MAX, Status, SubmissionQueueEntry};

/// The NQN by which every discovery service is found.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// CNTLID in Connect: the controller chooses.
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// The fabrics command type of an entry whose opcode is [`FABRICS`].
pub fn command_type(entry: &SubmissionQueueEntry) -> u8 {
    entry.as_bytes()[4]
}

fn entry(command_type: u8, cid: u16) -> SubmissionQueueEntry {
    SubmissionQueueEntry::new(FABRICS, cid, u32::from(command_type))
}

/// A refused Connect: its status, and DW0 saying where the mistake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub status: Status,
    /// For [`Status::CONNECT_INVALID_PARAMETERS`]: the byte (bits 15:0), and whether it is in the data (bit 16).
    pub result: u64,
}

impl Refused {
    /// For a byte of the command.
    pub fn in_command(at: u16) -> Refused {
        Refused {
            status: Status::CONNECT_INVALID_PARAMETERS,
            result: u64::from(at),
        }
    }

    /// For a byte of the data.
    pub fn in_data(at: u16) -> Refused {
        Refused {
            status: Status::CONNECT_INVALID_PARAMETERS,
            result: 1 << 16 | u64::from(at),
        }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, result: 0 }
    }
}

/// Where the fields of Connect are, for [`Refused`].
pub mod connect_at {
    /// QID in the command.
    pub const QID: u16 = 42;
    /// SQSIZE in the command.
    pub const SQSIZE: u16 = 44;
    /// CNTLID in the data.
    pub const CNTLID: u16 = 16;
    /// SUBNQN in the data.
    pub const SUBNQN: u16 = 256;
    /// HOSTNQN in the data.
    pub const HOSTNQN: u16 = 512;
}

/// A parsed Connect with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// QID: 0 makes a controller, others join one.
    pub qid: u16,
    /// Entries of the submission queue: 1 to 65536. (The wire's SQSIZE is one less.)
    pub entries: u32,
    /// CATTR bit 2: the host does without flow control of the submission queue.
    pub no_sq_flow_control: bool,
    /// KATO in milliseconds; 0 none.
    pub kato_ms: u32,
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID.
    pub cntlid: u16,
    /// SUBNQN.
    pub subnqn: String,
    /// HOSTNQN.
    pub hostnqn: String,
}

const NO_SQ_FLOW_CONTROL: u8 = 1 << 2;

impl Connect {
    /// Bytes of the data.
    pub const DATA_BYTES: usize = 1024;

    /// # Errors
    /// What to answer.
    pub fn parse(entry: &SubmissionQueueEntry, data: &[u8]) -> Result<Connect, Refused> {
        let recfmt = entry.cdw(10) as u16;
        if recfmt != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.into());
        }
        let data: &[u8; Connect::DATA_BYTES] = data
            .try_into()
            .map_err(|_| Status::DATA_SGL_LENGTH_INVALID)?;
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&data[..16]);
        let nqn_at = |at: u16| {
            let at = usize::from(at);
            nqn(&data[at..at + 256]).map(str::to_owned)
        };
        Ok(Connect {
            qid: (entry.cdw(10) >> 16) as u16,
            entries: (entry.cdw(11) & 0xffff) + 1,
            no_sq_flow_control: entry.as_bytes()[46] & NO_SQ_FLOW_CONTROL != 0,
            kato_ms: entry.cdw(12),
            host_id,
            cntlid: u16::from_le_bytes([data[16], data[17]]),
            subnqn: nqn_at(connect_at::SUBNQN).ok_or(Refused::in_data(connect_at::SUBNQN))?,
            hostnqn: nqn_at(connect_at::HOSTNQN).ok_or(Refused::in_data(connect_at::HOSTNQN))?,
        })
    }

    /// The entry, without a data pointer. Its data is [`data`](Connect::data).
    pub fn entry(&self, cid: u16) -> SubmissionQueueEntry {
        let cattr = if self.no_sq_flow_control {
            u32::from(NO_SQ_FLOW_CONTROL)
        } else {
            0
        };
        entry(fctype::CONNECT, cid)
            .with_cdw(10, u32::from(self.qid) << 16)
            .with_cdw(11, self.entries.wrapping_sub(1) & 0xffff | cattr << 16)
            .with_cdw(12, self.kato_ms)
    }

    /// The data. Names longer than [`NQN_BYTES_MAX`] are cut.
    pub fn data(&self) -> [u8; Connect::DATA_BYTES] {
        let mut data = [0; Connect::DATA_BYTES];
        data[..16].copy_from_slice(&self.host_id);
        data[16..18].copy_from_slice(&self.cntlid.to_le_bytes());
        for (at, name) in [
            (connect_at::SUBNQN, &self.subnqn),
            (connect_at::HOSTNQN, &self.hostnqn),
        ] {
            let at = usize::from(at);
            let len = name.len().min(NQN_BYTES_MAX);
            data[at..at + len].copy_from_slice(&name.as_bytes()[..len]);
        }
        data
    }
}

/// A name of 1 to [`NQN_BYTES_MAX`] visible characters that begins as NQNs do, terminated in its field.
pub fn nqn(field: &[u8]) -> Option<&str> {
    let len = field.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&field[..len]).ok()?;
    is_nqn(name).then_some(name)
}

/// Whether a text may be an NQN: `nqn.`, then visible ASCII without slash, at most [`NQN_BYTES_MAX`] bytes.
pub fn is_nqn(name: &str) -> bool {
    name.len() <= NQN_BYTES_MAX
        && name.len() > 4
        && name.starts_with("nqn.")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// A parsed Property Get or Set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Property {
    /// One of [`offset`], or anything else.
    pub offset: u32,
    /// 4 or 8 bytes.
    pub size: u8,
    /// For Property Set.
    pub value: u64,
}

impl Property {
    /// # Errors
    /// [`Status::INVALID_FIELD`] for a size that does not exist.
    pub fn parse(entry: &SubmissionQueueEntry) -> Result<Property, Status> {
        let size = match entry.cdw(10) & 7 {
            0 => 4,
            1 => 8,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Property {
            offset: entry.cdw(11),
            size,
            value: entry.cdw64(12),
        })
    }

    /// A Property Get of the property at `offset`; its completion's result is the value.
    pub fn get(offset: u32, cid: u16) -> SubmissionQueueEntry {
        entry(fctype::PROPERTY_GET, cid)
            .with_cdw(10, size_bit(offset))
            .with_cdw(11, offset)
    }

    /// A Property Set.
    pub fn set(offset: u32, value: u64, cid: u16) -> SubmissionQueueEntry {
        entry(fctype::PROPERTY_SET, cid)
            .with_cdw(10, size_bit(offset))
            .with_cdw(11, offset)
            .with_cdw(12, value as u32)
            .with_cdw(13, (value >> 32) as u32)
    }
}

fn size_bit(at: u32) -> u32 {
    u32::from(at == offset::CAP)
}

/// A parsed Authentication Send or Receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Security {
    /// TL or AL: bytes of the payload at most.
    pub length: u32,
}

const SPSP_SECP: u32 = 0xe901_0100;

impl Security {
    /// # Errors
    /// [`Status::INVALID_FIELD`] for another security protocol than NVMe's.
    pub fn parse(entry: &SubmissionQueueEntry) -> Result<Security, Status> {
        match entry.cdw(10) & 0xffff_ff00 == SPSP_SECP {
            true => Ok(Security {
                length: entry.cdw(11),
            }),
            false => Err(Status::INVALID_FIELD),
        }
    }

    /// An Authentication Send, without a data pointer.
    pub fn send(length: u32, cid: u16) -> SubmissionQueueEntry {
        entry(fctype::AUTHENTICATION_SEND, cid)
            .with_cdw(10, SPSP_SECP)
            .with_cdw(11, length)
    }

    /// An Authentication Receive, without a data pointer.
    pub fn receive(length: u32, cid: u16) -> SubmissionQueueEntry {
        entry(fctype::AUTHENTICATION_RECEIVE, cid)
            .with_cdw(10, SPSP_SECP)
            .with_cdw(11, length)
    }
}

/// A Disconnect.
pub fn disconnect(cid: u16) -> SubmissionQueueEntry {
    entry(fctype::DISCONNECT, cid)
}
