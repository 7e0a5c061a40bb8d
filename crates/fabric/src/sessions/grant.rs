//! Grants: part of a registered region, lent until a moment.

use forebay_io::UnixMillis;
use forebay_proto::token::grant::{self, GRANT_BYTES};

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
    /// The first 16 bytes of HMAC-SHA256 over all of the above, as it is sent.
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
        self.mac = tag(key, &[CONTEXT, &self.text().said()]);
        self
    }

    /// Whether the MAC is right, in constant time.
    pub(super) fn is_genuine(&self, key: &[u8; 32]) -> bool {
        verifies(key, &[CONTEXT, &self.text().said()], &self.mac)
    }

    /// As clients carry it.
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        self.text().encode()
    }

    /// Reads what [`Grant::encode`] wrote; nothing is proved by that.
    pub fn decode(bytes: &[u8]) -> Option<Grant> {
        let text = grant::Grant::decode(bytes)?;
        Some(Grant {
            id: text.id,
            session: SessionId(text.session),
            region: RegisteredId(text.region),
            offset: text.offset,
            len: text.len,
            access: match text.access {
                grant::Access::Read => Access::Read,
                grant::Access::Write => Access::Write,
                grant::Access::ReadWrite => Access::ReadWrite,
            },
            expires: text.expires_ms,
            mac: text.mac,
        })
    }

    fn text(&self) -> grant::Grant {
        grant::Grant {
            session: self.session.0,
            id: self.id,
            region: self.region.0,
            offset: self.offset,
            len: self.len,
            expires_ms: self.expires,
            access: match self.access {
                Access::Read => grant::Access::Read,
                Access::Write => grant::Access::Write,
                Access::ReadWrite => grant::Access::ReadWrite,
            },
            mac: self.mac,
        }
    }
}
