//! Grants as clients carry them: which bytes of a session's registered memory its server may reach, and until when.
//!
//! Little-endian: version u8 (1), session 16 B, id, region, offset, length and expiry u64 each, access u8 (1 reads, 2 writes, 3 both), MAC
//! 16 B. What the MAC is over, and by which key, is for whoever has the session's key: the bytes before it are [`Grant::said`].

/// The version of this layout.
const VERSION: u8 = 1;
/// Bytes of a grant before its MAC.
pub const SAID_BYTES: usize = 1 + 16 + 5 * 8 + 1;
/// Bytes of a MAC.
pub const MAC_BYTES: usize = 16;
/// Bytes of a grant.
pub const GRANT_BYTES: usize = SAID_BYTES + MAC_BYTES;

/// What may be done with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The server reads them.
    Read,
    /// The server writes them.
    Write,
    /// Both.
    ReadWrite,
}

/// A grant; nothing is proved by reading one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The session whose memory is lent.
    pub session: [u8; 16],
    /// Names it in its session.
    pub id: u64,
    /// The region.
    pub region: u64,
    /// The first byte, counted from the region's first.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// When it ends, in milliseconds since 1970.
    pub expires_ms: u64,
    /// What may be done with them.
    pub access: Access,
    /// Who made it.
    pub mac: [u8; MAC_BYTES],
}

impl Grant {
    /// All that it says, as it is sent, and as its MAC is over it.
    pub fn said(&self) -> [u8; SAID_BYTES] {
        let mut bytes = [0; SAID_BYTES];
        bytes[0] = VERSION;
        bytes[1..17].copy_from_slice(&self.session);
        let words = [self.id, self.region, self.offset, self.len, self.expires_ms];
        for (place, word) in bytes[17..57].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[57] = match self.access {
            Access::Read => 1,
            Access::Write => 2,
            Access::ReadWrite => 3,
        };
        bytes
    }

    /// As sent.
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        bytes[..SAID_BYTES].copy_from_slice(&self.said());
        bytes[SAID_BYTES..].copy_from_slice(&self.mac);
        bytes
    }

    /// Reads one, whole; `None` when it is none, or of another version.
    pub fn decode(bytes: &[u8]) -> Option<Grant> {
        let (said, mac) = bytes.split_first_chunk::<SAID_BYTES>()?;
        let mac: [u8; MAC_BYTES] = mac.try_into().ok()?;
        let [VERSION, said @ ..] = said else {
            return None;
        };
        let (session, said) = said.split_first_chunk::<16>()?;
        let (words, access) = said.split_first_chunk::<40>()?;
        let word = |at: usize| {
            let word = words[at * 8..].first_chunk::<8>();
            word.map(|word| u64::from_le_bytes(*word))
        };
        let access = match access {
            [1] => Access::Read,
            [2] => Access::Write,
            [3] => Access::ReadWrite,
            _ => return None,
        };
        Some(Grant {
            session: *session,
            id: word(0)?,
            region: word(1)?,
            offset: word(2)?,
            len: word(3)?,
            expires_ms: word(4)?,
            access,
            mac,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: Grant = Grant {
        session: [0x5e; 16],
        id: 1,
        region: 0x0202,
        offset: 0x03_0303,
        len: 0x0404_0404,
        expires_ms: 0x0505_0505_0505,
        access: Access::ReadWrite,
        mac: [0xac; 16],
    };

    /// What clients carry does not change unseen.
    #[test]
    fn a_grant_has_its_layout() {
        let words: [[u8; 8]; 5] = [
            [1, 0, 0, 0, 0, 0, 0, 0],
            [2, 2, 0, 0, 0, 0, 0, 0],
            [3, 3, 3, 0, 0, 0, 0, 0],
            [4, 4, 4, 4, 0, 0, 0, 0],
            [5, 5, 5, 5, 5, 5, 0, 0],
        ];
        let bytes = [
            &[1][..],
            &[0x5e; 16],
            words.as_flattened(),
            &[3],
            &[0xac; 16],
        ]
        .concat();
        assert_eq!(GRANT.encode()[..], bytes);
        assert_eq!(GRANT.said()[..], bytes[..58]);
        assert_eq!(Grant::decode(&bytes), Some(GRANT));
    }

    #[test]
    fn what_is_none_is_not_read() {
        for access in [Access::Read, Access::Write] {
            let grant = Grant { access, ..GRANT };
            assert_eq!(Grant::decode(&grant.encode()), Some(grant));
        }
        let whole = GRANT.encode();
        for length in 0..whole.len() {
            assert_eq!(Grant::decode(&whole[..length]), None);
        }
        assert_eq!(Grant::decode(&[&whole[..], &[0]].concat()), None);
        for (at, byte) in [(0, 0), (0, 2), (57, 0), (57, 4)] {
            let mut wrong = whole;
            wrong[at] = byte;
            assert_eq!(Grant::decode(&wrong), None);
        }
    }
}
