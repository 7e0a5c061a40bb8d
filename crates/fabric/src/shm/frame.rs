//! What the two ends say over the Unix socket: a hello, then frames of [`FRAME_BYTES`], and single bytes that wake.
//!
//! All integers are little-endian. A frame is: its kind (1 byte), a small value (1 byte), two zeroes, a name (4 bytes), two numbers
//! (8 bytes each), text (40 bytes, zeroes after it). A wake-up is its kind alone.

use super::ring::RING_BYTES;
use crate::sessions::{LinkId, PROOF_BYTES};
use crate::{Access, CloseReason, Stag};

/// The first bytes of a connection that wants shared memory, version 1.
pub const MAGIC: [u8; 8] = *b"FBSHM\0\0\x01";

/// Length of a frame, the hello included.
pub(super) const FRAME_BYTES: usize = 64;

/// A frame that says only: look at the rings.
pub(super) const WAKE: u8 = b'w';

const TEXT_BYTES: usize = 40;

/// What the client sends first.
pub(super) fn hello(proof: &[u8; PROOF_BYTES]) -> [u8; FRAME_BYTES] {
    let mut hello = [0; FRAME_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..8 + PROOF_BYTES].copy_from_slice(proof);
    hello
}

/// The proof in a hello.
pub(super) fn proof_of(hello: &[u8; FRAME_BYTES]) -> Option<[u8; PROOF_BYTES]> {
    let (magic, rest) = hello.split_first_chunk::<8>()?;
    let (proof, rest) = rest.split_first_chunk()?;
    (*magic == MAGIC && rest.iter().all(|byte| *byte == 0)).then_some(*proof)
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// The server takes the connection; the memory of the rings comes with it.
    Welcome { link: LinkId },
    /// Memory that the peer may now reach; its file comes with it.
    Expose {
        stag: Stag,
        access: Access,
        offset: u64,
        len: u64,
    },
    /// The memory was mapped.
    Exposed { stag: Stag },
    /// It was not.
    Refused { stag: Stag, why: Refusal },
    /// The peer may no longer reach the memory.
    Withdraw { stag: Stag },
    /// Nothing of it is mapped any more.
    Withdrawn { stag: Stag },
    /// The link ends.
    Close { reason: CloseReason },
}

/// Why an exposure was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no room for it.
    Busy,
    /// The file cannot be used.
    Invalid,
}

/// The kind of a frame, and its small value, name, numbers and text, before they are one.
#[derive(Default)]
struct Fields<'a> {
    kind: u8,
    value: u8,
    name: u32,
    numbers: [u64; 2],
    text: &'a str,
}

impl Frame {
    pub(super) fn encoded(&self) -> [u8; FRAME_BYTES] {
        let fields = match self {
            Frame::Welcome { link } => Fields {
                kind: b'h',
                numbers: [link.0, RING_BYTES as u64],
                ..Fields::default()
            },
            Frame::Expose {
                stag,
                access,
                offset,
                len,
            } => Fields {
                kind: b'e',
                value: access_code(*access),
                name: stag.0,
                numbers: [*offset, *len],
                ..Fields::default()
            },
            Frame::Exposed { stag } => named(b'E', *stag),
            Frame::Refused { stag, why } => Fields {
                value: match why {
                    Refusal::Busy => 1,
                    Refusal::Invalid => 2,
                },
                ..named(b'R', *stag)
            },
            Frame::Withdraw { stag } => named(b'u', *stag),
            Frame::Withdrawn { stag } => named(b'U', *stag),
            Frame::Close { reason } => {
                let (value, text) = match reason {
                    CloseReason::Done => (0, ""),
                    CloseReason::SessionEnded => (1, ""),
                    CloseReason::Lost | CloseReason::Stalled => (2, ""),
                    // What the peer did wrong is what it hears that it is ended for.
                    CloseReason::Violation(what) | CloseReason::Terminated(what) => {
                        (3, what.as_str())
                    }
                };
                Fields {
                    kind: b'c',
                    value,
                    text,
                    ..Fields::default()
                }
            }
        };
        fields.encoded()
    }

    /// Reads a frame; `None` when it is none.
    pub(super) fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Frame> {
        let name = u32::from_le_bytes(*bytes[4..].first_chunk()?);
        let first = u64::from_le_bytes(*bytes[8..].first_chunk()?);
        let second = u64::from_le_bytes(*bytes[16..].first_chunk()?);
        let (stag, value) = (Stag(name), bytes[1]);
        Some(match bytes[0] {
            b'h' if second == RING_BYTES as u64 => Frame::Welcome {
                link: LinkId(first),
            },
            b'e' => Frame::Expose {
                stag,
                access: access_of(value)?,
                offset: first,
                len: second,
            },
            b'E' => Frame::Exposed { stag },
            b'R' => Frame::Refused {
                stag,
                why: match value {
                    1 => Refusal::Busy,
                    2 => Refusal::Invalid,
                    _ => return None,
                },
            },
            b'u' => Frame::Withdraw { stag },
            b'U' => Frame::Withdrawn { stag },
            b'c' => Frame::Close {
                reason: match value {
                    0 => CloseReason::Done,
                    1 => CloseReason::SessionEnded,
                    2 => CloseReason::Lost,
                    3 => CloseReason::Terminated(text_of(&bytes[24..])),
                    _ => return None,
                },
            },
            _ => return None,
        })
    }
}

impl Fields<'_> {
    fn encoded(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.value;
        bytes[4..8].copy_from_slice(&self.name.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.numbers[0].to_le_bytes());
        bytes[16..24].copy_from_slice(&self.numbers[1].to_le_bytes());
        let text = self.text.as_bytes();
        let text = &text[..text.len().min(TEXT_BYTES)];
        bytes[24..24 + text.len()].copy_from_slice(text);
        bytes
    }
}

fn named(kind: u8, stag: Stag) -> Fields<'static> {
    Fields {
        kind,
        name: stag.0,
        ..Fields::default()
    }
}

fn access_code(access: Access) -> u8 {
    match access {
        Access::Read => 1,
        Access::Write => 2,
        Access::ReadWrite => 3,
    }
}

fn access_of(code: u8) -> Option<Access> {
    Some(match code {
        1 => Access::Read,
        2 => Access::Write,
        3 => Access::ReadWrite,
        _ => return None,
    })
}

/// A peer's text: printable ASCII only, the rest replaced.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = &bytes[..end.unwrap_or(bytes.len())];
    let shown = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    text.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> Vec<Frame> {
        let stag = Stag(0x0102_0304);
        vec![
            Frame::Welcome { link: LinkId(7) },
            Frame::Expose {
                stag,
                access: Access::Read,
                offset: 5,
                len: u64::MAX,
            },
            Frame::Exposed { stag },
            Frame::Refused {
                stag,
                why: Refusal::Busy,
            },
            Frame::Refused {
                stag,
                why: Refusal::Invalid,
            },
            Frame::Withdraw { stag },
            Frame::Withdrawn { stag },
            Frame::Close {
                reason: CloseReason::Done,
            },
            Frame::Close {
                reason: CloseReason::SessionEnded,
            },
            Frame::Close {
                reason: CloseReason::Lost,
            },
            Frame::Close {
                reason: CloseReason::Terminated("why".into()),
            },
        ]
    }

    #[test]
    fn frames_come_back_as_they_went() {
        for frame in frames() {
            assert_eq!(Frame::decode(&frame.encoded()), Some(frame.clone()));
            assert_ne!(frame.encoded()[0], WAKE);
        }
        let proof = [9; PROOF_BYTES];
        assert_eq!(proof_of(&hello(&proof)), Some(proof));
    }

    #[test]
    fn what_a_peer_did_wrong_is_told_it_in_forty_bytes() {
        let what = "\u{1b}[31m and many more words than there is room for in a frame".to_owned();
        let reason = CloseReason::Violation(what);
        let told = Frame::decode(&Frame::Close { reason }.encoded());
        let Some(Frame::Close {
            reason: CloseReason::Terminated(text),
        }) = told
        else {
            panic!("{told:?}");
        };
        assert_eq!(text.len(), 40);
        assert!(text.starts_with("?[31m and many"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_none(bytes in prop::collection::vec(any::<u8>(), FRAME_BYTES)) {
            let mut bytes: [u8; FRAME_BYTES] = bytes.try_into().unwrap();
            for kind in *b"heERuUc" {
                bytes[0] = kind;
                if let Some(frame) = Frame::decode(&bytes) {
                    prop_assert_eq!(Frame::decode(&frame.encoded()), Some(frame));
                }
            }
        }
    }
}
