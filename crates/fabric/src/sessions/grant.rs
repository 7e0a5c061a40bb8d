//! Grants: part of a registered region, lent until a moment.

use forebay_io::UnixMillis;

use super::proof::{tag, verifies};
use super::{LinkId, RegisteredId, SessionId};
use crate::{Access, Connection, RemoteRange};

const CONTEXT: &[u8] = b"ort1 grant\0";

/// Says that bytes of a session's registered region may be reached until a moment. Whoever holds one can show it, only the session's
/// server can make one: its MAC is made with the session's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Names it in its session; never reused there.
    pub id: u64,
    /// The session whose memory is lent.
    pub session: SessionId,
    /// The region.
    pub region: RegisteredId,
    /// The first byte, counted from the region's first.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// What may be done with them.
    pub access: Access,
    /// When it ends.
    pub expires: UnixMillis,
    /// The first 16 bytes of HMAC-SHA256 over all of the above.
    pub mac: [u8; 16],
}

/// A grant that holds at this moment: what to ask of which link.
#[derive(Debug)]
pub struct Granted {
    /// The link that reaches the memory.
    pub link: Connection,
    /// The link's name in its session.
    pub link_id: LinkId,
    /// The bytes.
    pub range: RemoteRange,
}

impl Grant {
    /// This grant with the MAC it should have.
    pub(super) fn sealed(mut self, key: &[u8; 32]) -> Grant {
        self.mac = tag(key, &[CONTEXT, &self.encoded()]);
        self
    }

    /// Whether the MAC is right, in constant time.
    pub(super) fn is_genuine(&self, key: &[u8; 32]) -> bool {
        verifies(key, &[CONTEXT, &self.encoded()], &self.mac)
    }

    fn encoded(&self) -> [u8; 57] {
        let mut bytes = [0; 57];
        bytes[..16].copy_from_slice(&self.session.0);
        let words = [self.id, self.region.0, self.offset, self.len, self.expires];
        for (place, word) in bytes[16..56].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[56] = u8::from(self.access.reads()) | u8::from(self.access.writes()) << 1;
        bytes
    }
}
