//! The open RDMA token, version 1: `ort1.<payload>.<tag>`, both base64url without padding.
//!
//! The payload names a window of the client's memory and the session that it belongs to; the tag, made with the session's
//! key, binds it to one request: method, path, query and range. So a token is of no use to another tenant, for another
//! object, or twice (the sequence is fresh in its session).
//!
//! A client does once: `POST /.ort1/connect` with a nonce, then [`session_key`] from the answer. For every object:
//! [`OpenToken`] and [`OpenToken::seal`]. A server does: [`Sealed::parse`], find the session, [`Sealed::verify`], then
//! expiry and sequence. Integers are big endian.

mod connect;
mod key;
mod seal;
mod tlv;

#[cfg(test)]
mod tests;

pub use connect::{Endpoint, Limits};
pub use key::{Covered, session_key};
pub use seal::{PAYLOAD_BYTES_MAX, Payload, Sealed, TAG_BYTES};
pub use tlv::{DcEndpoint, MemoryKind, Promise, SEGMENTS_MAX, Segment, Segments, Slot};

use super::TokenError;
use super::digits::take;

/// The number in the prefix, and the first byte of the payload.
pub const VERSION: u8 = 1;
/// How far in the future an expiry may lie, in seconds.
pub const EXPIRY_S_MAX: u32 = 900;
/// The bytes of a payload before its extensions.
const FIXED_BYTES: usize = 56;

/// By what the session's link speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connections of InfiniBand, RoCE and soft RoCE.
    Rc,
    /// Dynamically connected transport.
    Dc,
    /// iWARP.
    Iwarp,
    /// Memory of one host, shared.
    Shm,
}

impl Transport {
    /// Every transport, in the order of their numbers.
    pub const ALL: [Transport; 4] = [
        Transport::Rc,
        Transport::Dc,
        Transport::Iwarp,
        Transport::Shm,
    ];

    /// Its name in headers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Rc => "rc",
            Transport::Dc => "dc",
            Transport::Iwarp => "iwarp",
            Transport::Shm => "shm",
        }
    }

    /// Finds one by its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Transport> {
        Transport::ALL
            .into_iter()
            .find(|transport| transport.name() == name)
    }

    const fn number(self) -> u8 {
        match self {
            Transport::Rc => 1,
            Transport::Dc => 2,
            Transport::Iwarp => 3,
            Transport::Shm => 4,
        }
    }

    fn from_number(number: u8) -> Result<Transport, TokenError> {
        match number {
            1 => Ok(Transport::Rc),
            2 => Ok(Transport::Dc),
            3 => Ok(Transport::Iwarp),
            4 => Ok(Transport::Shm),
            5 => Err(TokenError::Unsupported("the transport is reserved")),
            _ => Err(TokenError::Malformed("there is no such transport")),
        }
    }
}

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The server reads the client's memory: PUT, UploadPart.
    Read,
    /// The server writes to it: GET.
    Write,
}

/// Marks of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// The address counts from the start of the region.
    pub const OFFSET: Flags = Flags(1);
    /// The memory is a device's.
    pub const DEVICE_MEMORY: Flags = Flags(2);
    /// The remote key is that of a memory window that is used once.
    pub const ONE_SHOT: Flags = Flags(4);

    /// Whether all marks of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The marks of both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenToken {
    /// By what the bytes travel.
    pub transport: Transport,
    /// Which way.
    pub direction: Direction,
    /// Marks of the window.
    pub flags: Flags,
    /// The session, from the connect request.
    pub session: [u8; 16],
    /// Never used before in its session; begins at 1.
    pub sequence: u64,
    /// Until when it is good, in Unix seconds.
    pub expiry_s: u32,
    /// No work request is posted later than this after the request's head arrived, in milliseconds.
    pub lease_ms: u32,
    /// The address of the window's first byte, or its offset in the region ([`Flags::OFFSET`]).
    pub address: u64,
    /// The length of the first segment in bytes, never 0.
    pub length: u64,
    /// The remote key; on shared memory the number of the slot.
    pub remote_key: u32,
    /// The client's DC target.
    pub dc: Option<DcEndpoint>,
    /// What follows the first segment.
    pub segments: Segments,
    /// The checksum of the bytes to be stored.
    pub promise: Option<Promise>,
    /// What the memory is.
    pub memory: Option<MemoryKind>,
    /// Which endpoint of a session that has several.
    pub rail: Option<u8>,
    /// The slot of shared memory, with its generation.
    pub slot: Option<Slot>,
}

impl OpenToken {
    /// The length of all segments together, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.segments.iter().fold(self.length, |sum, segment| {
            sum.saturating_add(u64::from(segment.length))
        })
    }

    /// The payload.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] for what [`OpenToken::decode`] would refuse, and when it does not fit into a header.
    pub fn encode(&self) -> Result<Payload, TokenError> {
        let mut payload = Payload::default();
        payload.put(&[
            VERSION,
            self.transport.number(),
            match self.direction {
                Direction::Read => 1,
                Direction::Write => 2,
            },
            self.flags.0,
        ])?;
        payload.put(&self.session)?;
        payload.put(&self.sequence.to_be_bytes())?;
        payload.put(&self.expiry_s.to_be_bytes())?;
        payload.put(&self.lease_ms.to_be_bytes())?;
        payload.put(&self.address.to_be_bytes())?;
        payload.put(&self.length.to_be_bytes())?;
        payload.put(&self.remote_key.to_be_bytes())?;
        tlv::encode(self, &mut payload)?;
        self.check()?;
        Ok(payload)
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] for what breaks the grammar; [`TokenError::Unsupported`] for critical extensions that
    /// are not known.
    pub fn decode(payload: &[u8]) -> Result<OpenToken, TokenError> {
        let malformed = TokenError::Malformed;
        let (fixed, extensions) = payload
            .split_at_checked(FIXED_BYTES)
            .ok_or(malformed("the payload is shorter than its fixed part"))?;
        let mut rest = fixed;
        let [format, transport, direction, flags] = take(&mut rest);
        if format != VERSION {
            return Err(malformed("the payload is not of the version in the prefix"));
        }
        let direction = match direction {
            1 => Direction::Read,
            2 => Direction::Write,
            _ => return Err(malformed("the direction is not one of the two")),
        };
        if flags & !7 != 0 {
            return Err(malformed("a reserved flag is set"));
        }
        let transport = Transport::from_number(transport);
        if let Err(TokenError::Malformed(_)) = transport {
            return Err(malformed("there is no such transport"));
        }
        let mut token = OpenToken {
            transport: transport.unwrap_or(Transport::Rc),
            direction,
            flags: Flags(flags),
            session: take(&mut rest),
            sequence: u64::from_be_bytes(take(&mut rest)),
            expiry_s: u32::from_be_bytes(take(&mut rest)),
            lease_ms: u32::from_be_bytes(take(&mut rest)),
            address: u64::from_be_bytes(take(&mut rest)),
            length: u64::from_be_bytes(take(&mut rest)),
            remote_key: u32::from_be_bytes(take(&mut rest)),
            dc: None,
            segments: Segments::default(),
            promise: None,
            memory: None,
            rail: None,
            slot: None,
        };
        // What is malformed is told before what is only unknown, so that a broken token never looks like a new one.
        let known = tlv::decode(extensions, &mut token)?;
        token.check()?;
        transport?;
        known.map(|()| token)
    }

    fn check(&self) -> Result<(), TokenError> {
        if self.sequence == 0 {
            return Err(TokenError::Malformed("the sequence begins at 1"));
        }
        super::digits::check_window(self.address, self.length)?;
        let mut total = self.length;
        for segment in self.segments.iter() {
            let length = u64::from(segment.length);
            super::digits::check_window(segment.address, length)?;
            total = total
                .checked_add(length)
                .ok_or(TokenError::Malformed("the segments are too long"))?;
        }
        Ok(())
    }
}

/// The version that a token's prefix names; `None` when it has none. What no number holds is `u32::MAX`.
pub(super) fn major(text: &str) -> Option<u32> {
    let (digits, _) = text.strip_prefix("ort")?.split_once('.')?;
    let legal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // `ort01` is no spelling of version 1.
    legal.then(|| match digits.starts_with('0') {
        true => u32::MAX,
        false => digits.parse().unwrap_or(u32::MAX),
    })
}
