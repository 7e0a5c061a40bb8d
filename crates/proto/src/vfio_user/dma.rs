//! What a device asks of its client: to read or to write memory that it has no file of.

use super::bytes::{put_u64, u32_at, u64_at};
use super::{Command, DATA_BYTES_MAX, Malformed};

/// Bytes in front of the data, the same in requests and answers.
const ACCESS_BYTES: usize = 16;
/// The answer to a write as the specification has it, with a short count.
const SHORT_ACCESS_BYTES: usize = 12;

/// A range of a client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaAccess {
    /// The address that the device knows it by.
    pub address: u64,
    /// Its length in bytes.
    pub count: u64,
}

impl DmaAccess {
    fn parse(payload: &[u8]) -> Result<DmaAccess, Malformed> {
        let access = DmaAccess {
            address: u64_at(payload, 0)?,
            count: u64_at(payload, 8)?,
        };
        match access.count > DATA_BYTES_MAX as u64 {
            false => Ok(access),
            true => Err(Malformed::TooLong("an access")),
        }
    }

    fn put(self, out: &mut Vec<u8>) {
        put_u64(out, self.address);
        put_u64(out, self.count);
    }
}

/// One request of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaRequest<'a> {
    /// Tell what lies there.
    Read(DmaAccess),
    /// Put these bytes there, as many as the range has.
    Write(DmaAccess, &'a [u8]),
}

impl<'a> DmaRequest<'a> {
    /// Reads the payload of a request.
    ///
    /// # Errors
    /// When it is none that a device makes.
    pub fn parse(command: Command, payload: &'a [u8]) -> Result<DmaRequest<'a>, Malformed> {
        match command {
            Command::DmaRead => Ok(DmaRequest::Read(DmaAccess::parse(payload)?)),
            Command::DmaWrite => {
                let (access, data) = with_data(payload)?;
                Ok(DmaRequest::Write(access, data))
            }
            _ => Err(Malformed::Unsupported("a client's request to a client")),
        }
    }

    /// What it is about.
    #[must_use]
    pub fn command(&self) -> Command {
        match self {
            DmaRequest::Read(_) => Command::DmaRead,
            DmaRequest::Write(..) => Command::DmaWrite,
        }
    }

    /// The range that it is about.
    #[must_use]
    pub fn access(&self) -> DmaAccess {
        match self {
            DmaRequest::Read(access) | DmaRequest::Write(access, _) => *access,
        }
    }

    /// Appends its payload.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            DmaRequest::Read(access) => access.put(out),
            DmaRequest::Write(access, data) => {
                access.put(out);
                out.extend_from_slice(data);
            }
        }
    }
}

fn with_data(payload: &[u8]) -> Result<(DmaAccess, &[u8]), Malformed> {
    let access = DmaAccess::parse(payload)?;
    let data = payload.get(ACCESS_BYTES..).unwrap_or_default();
    match data.len() as u64 == access.count {
        true => Ok((access, data)),
        false => Err(Malformed::Contradiction("the length of an access")),
    }
}

/// Appends the answer to a [`DmaRequest::Read`] without its data, which is to follow.
pub fn put_dma_read(out: &mut Vec<u8>, access: DmaAccess) {
    access.put(out);
}

/// Reads the answer to a [`DmaRequest::Read`] of this range: its data.
///
/// # Errors
/// When it answers something else, or with more or fewer bytes.
pub fn parse_dma_read(payload: &[u8], asked: DmaAccess) -> Result<&[u8], Malformed> {
    let (access, data) = with_data(payload)?;
    match access == asked {
        true => Ok(data),
        false => Err(Malformed::Contradiction("what was read")),
    }
}

/// Appends the answer to a [`DmaRequest::Write`].
pub fn put_dma_written(out: &mut Vec<u8>, access: DmaAccess) {
    access.put(out);
}

/// Reads the answer to a [`DmaRequest::Write`] of this range. The specification has a count of four bytes there, libvfio-user one of
/// eight, and QEMU answers with the header alone.
///
/// # Errors
/// When it answers something else.
pub fn parse_dma_written(payload: &[u8], asked: DmaAccess) -> Result<(), Malformed> {
    let written = match payload.len() {
        0 => return Ok(()),
        SHORT_ACCESS_BYTES => DmaAccess {
            address: u64_at(payload, 0)?,
            count: u32_at(payload, 8)?.into(),
        },
        ACCESS_BYTES => DmaAccess::parse(payload)?,
        _ => return Err(Malformed::Contradiction("the length of an answer")),
    };
    match written == asked {
        true => Ok(()),
        false => Err(Malformed::Contradiction("what was written")),
    }
}
