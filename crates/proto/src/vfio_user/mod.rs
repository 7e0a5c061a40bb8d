//! vfio-user: a PCI device served to a virtual machine or a program over a Unix socket, version 0 of the protocol.
//!
//! - [`Header`]: the 16 bytes in front of every message.
//! - [`Request`]: what a client asks; parsed by the server, written by the client.
//! - [`DmaRequest`]: what a server asks, of memory that it has no file of.
//! - [`reply`]: the payloads of answers, written and parsed.
//! - [`Capabilities`]: the JSON that both ends tell each other in `VERSION`.
//!
//! A message is a header and a payload; files travel beside its first byte. The specification says "host byte order", since both ends
//! are on one host; here that is little-endian. Everything is read in place; writing appends to the caller's buffer.
//!
//! A request that parses is right in form alone: whether a region or an interrupt exists is for the device to know.

mod bytes;
mod capabilities;
mod dma;
pub mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use capabilities::Capabilities;
pub use dma::{DmaAccess, DmaRequest};
pub use request::{
    Access, DmaMap, DmaUnmap, IrqAction, IrqData, PayloadAccess, Request, SetIrqs, Writes,
};

use bytes::{put_u16, put_u32, u16_at, u32_at};

/// The version spoken here: a peer with another major one is refused.
pub const MAJOR: u16 = 0;
/// The minor version; the lower of both ends' holds.
pub const MINOR: u16 = 1;
/// The header of every message.
pub const HEADER_BYTES: usize = 16;
/// The most data of one access, unless the other end says another number.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// The longest message taken: the most data, and what stands in front of it.
pub const MESSAGE_BYTES_MAX: usize = DATA_BYTES_MAX + 64;
/// Files that may come beside one message.
pub const FILES_MAX: usize = 16;

const TYPE: u32 = 0xf;
const TYPE_REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The regions of a PCI device (VFIO_PCI_*_REGION_INDEX): BAR 0.
pub const REGION_BAR0: u32 = 0;
/// The PCI configuration space.
pub const REGION_CONFIG: u32 = 7;
/// How many regions a PCI device has.
pub const REGIONS: u32 = 9;
/// The kinds of interrupt of a PCI device (VFIO_PCI_*_IRQ_INDEX): MSI-X vectors.
pub const IRQ_MSIX: u32 = 2;
/// How many kinds there are.
pub const IRQS: u32 = 5;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Command {
    /// The first message: what both ends can.
    Version = 1,
    /// Memory that the device may reach.
    DmaMap = 2,
    /// Memory that it may no longer reach.
    DmaUnmap = 3,
    /// What kind of device it is.
    DeviceGetInfo = 4,
    /// How large a region is and how it can be reached.
    DeviceGetRegionInfo = 5,
    /// Files that stand for accesses to a region.
    DeviceGetRegionIoFds = 6,
    /// How many interrupts there are of a kind.
    DeviceGetIrqInfo = 7,
    /// Where interrupts go.
    DeviceSetIrqs = 8,
    /// Reads a region.
    RegionRead = 9,
    /// Writes a region.
    RegionWrite = 10,
    /// The device reads the client's memory.
    DmaRead = 11,
    /// The device writes the client's memory.
    DmaWrite = 12,
    /// As if the device had just been plugged in.
    DeviceReset = 13,
    /// Several small writes at once.
    RegionWriteMulti = 15,
    /// Optional features: migration.
    DeviceFeature = 16,
    /// Reads the state of a device that moves.
    MigDataRead = 17,
    /// Writes it.
    MigDataWrite = 18,
}

impl Command {
    /// All.
    pub const ALL: [Command; 17] = [
        Command::Version,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::DeviceGetInfo,
        Command::DeviceGetRegionInfo,
        Command::DeviceGetRegionIoFds,
        Command::DeviceGetIrqInfo,
        Command::DeviceSetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
        Command::DmaRead,
        Command::DmaWrite,
        Command::DeviceReset,
        Command::RegionWriteMulti,
        Command::DeviceFeature,
        Command::MigDataRead,
        Command::MigDataWrite,
    ];

    fn from_number(number: u16) -> Option<Command> {
        Command::ALL
            .into_iter()
            .find(|&command| command as u16 == number)
    }
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It asks.
    Command {
        /// Nobody waits for an answer.
        no_reply: bool,
    },
    /// It answers.
    Reply {
        /// Why not; an errno of the answering system.
        error: Option<u32>,
    },
}

/// The 16 bytes in front of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Chosen by who asks, repeated by who answers.
    pub id: u16,
    /// What it is about: a number that [`Header::command`] may not know.
    pub number: u16,
    /// Bytes of the whole message.
    pub size: u32,
    /// Which way it goes.
    pub kind: Kind,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// When its size or its type is none.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let flags = u32_at(bytes, 8)?;
        let header = Header {
            id: u16_at(bytes, 0)?,
            number: u16_at(bytes, 2)?,
            size: u32_at(bytes, 4)?,
            kind: match flags & TYPE {
                0 => Kind::Command {
                    no_reply: flags & NO_REPLY != 0,
                },
                TYPE_REPLY => Kind::Reply {
                    error: (flags & ERROR != 0)
                        .then(|| u32_at(bytes, 12))
                        .transpose()?,
                },
                _ => return Err(Malformed::Number("the type of a message")),
            },
        };
        match header.size as usize {
            HEADER_BYTES..=MESSAGE_BYTES_MAX => Ok(header),
            0..HEADER_BYTES => Err(Malformed::Truncated),
            _ => Err(Malformed::TooLong("a message")),
        }
    }

    /// What it is about, if that is known here.
    #[must_use]
    pub fn command(&self) -> Option<Command> {
        Command::from_number(self.number)
    }

    /// Bytes that follow it.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        (self.size as usize).saturating_sub(HEADER_BYTES)
    }

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (flags, error) = match self.kind {
            Kind::Command { no_reply: false } => (0, 0),
            Kind::Command { no_reply: true } => (NO_REPLY, 0),
            Kind::Reply { error: None } => (TYPE_REPLY, 0),
            Kind::Reply { error: Some(error) } => (TYPE_REPLY | ERROR, error),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&error.to_le_bytes());
        bytes
    }
}

/// Appends a whole message: `payload` writes what follows the header.
pub fn message(
    out: &mut Vec<u8>,
    id: u16,
    number: u16,
    kind: Kind,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    let begin = out.len();
    out.resize(begin + HEADER_BYTES, 0);
    payload(out);
    let header = Header {
        id,
        number,
        size: u32::try_from(out.len() - begin).unwrap_or(u32::MAX),
        kind,
    };
    out[begin..begin + HEADER_BYTES].copy_from_slice(&header.encode());
}

/// Appends the payload of `VERSION`, the same both ways.
pub fn put_version(out: &mut Vec<u8>, version: &Version) {
    put_u16(out, version.major);
    put_u16(out, version.minor);
    if let Some(capabilities) = &version.capabilities {
        capabilities.write(out);
    }
}

/// What `VERSION` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Ends of different major versions do not understand each other.
    pub major: u16,
    /// The lower of both holds.
    pub minor: u16,
    /// What else; a client may say nothing.
    pub capabilities: Option<Capabilities>,
}

impl Version {
    /// Reads the payload of `VERSION`.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(payload: &[u8]) -> Result<Version, Malformed> {
        let (major, minor) = (u16_at(payload, 0)?, u16_at(payload, 2)?);
        let text = payload.get(4..).unwrap_or_default();
        let capabilities = match (major, text) {
            // What another major version says means nothing here.
            (MAJOR, [_, ..]) => Some(Capabilities::parse(text)?),
            _ => None,
        };
        Ok(Version {
            major,
            minor,
            capabilities,
        })
    }
}

/// Appends a number for the fields that the protocol calls `argsz`: bytes of a payload, and room for its answer.
fn put_argsz(out: &mut Vec<u8>, bytes: u32) {
    put_u32(out, bytes);
}

/// A message that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early, or says so.
    #[error("the message is cut off")]
    Truncated,
    /// A length over its bound.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// A number that has no meaning.
    #[error("{0} has no such number")]
    Number(&'static str),
    /// Two fields, or a field and the message's length, contradict each other.
    #[error("{0} contradicts itself")]
    Contradiction(&'static str),
    /// What `VERSION` says is no JSON, or not the expected one.
    #[error("{0} is not what it should be")]
    Capability(&'static str),
    /// A command, or a form of one, that is not served.
    #[error("{0} is not served")]
    Unsupported(&'static str),
}
