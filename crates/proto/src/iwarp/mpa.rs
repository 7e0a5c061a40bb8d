//! Opening a connection: request and reply frames (RFC 5044 section 7.1) with the enhanced data of RFC 6581.
//!
//! Revision 2 is offered always: without it the depths of reads cannot be agreed. Markers are never asked for, and a peer that
//! asks for them is refused.

use super::Fault;

/// Bytes of a frame before its private data.
pub const HEADER_BYTES: usize = 20;
/// The most private data of a frame, the enhanced data counted in.
pub const PRIVATE_DATA_BYTES_MAX: usize = 512;
/// The longest frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + PRIVATE_DATA_BYTES_MAX;
/// Bytes of the enhanced data, in front of the private data.
pub const ENHANCED_BYTES: usize = 4;
/// A depth that says "agreed elsewhere".
pub const DEPTH_UNSPECIFIED: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;

/// Which of the two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the side that connected.
    Request,
    /// The answer.
    Reply,
}

/// Zero-length frames that may say "ready to receive" (RFC 6581 section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtrKinds {
    /// A Send.
    pub send: bool,
    /// An RDMA Write.
    pub write: bool,
    /// An RDMA Read.
    pub read: bool,
}

/// The frame that an initiator sends first, so that the responder may send too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtr {
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read.
    Read,
    /// A zero-length Send.
    Send,
}

impl RtrKinds {
    fn preferred(self) -> Option<Rtr> {
        if self.write {
            Some(Rtr::Write)
        } else if self.read {
            Some(Rtr::Read)
        } else if self.send {
            Some(Rtr::Send)
        } else {
            None
        }
    }
}

/// What revision 2 adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enhanced {
    /// Read Requests that the sender answers at once.
    pub ird: u16,
    /// Read Requests that the sender would have outstanding.
    pub ord: u16,
    /// Whether either side may send first, after a ready-to-receive frame.
    pub peer_to_peer: bool,
    /// The ready-to-receive frames that the sender knows (request) or chose (reply).
    pub rtr: RtrKinds,
}

/// A request or a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Which.
    pub kind: Kind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs.
    pub crc: bool,
    /// A reply that refuses.
    pub reject: bool,
    /// 1 or 2.
    pub revision: u8,
    /// Present from revision 2 on, when its flag is set.
    pub enhanced: Option<Enhanced>,
    /// What the upper protocol says.
    pub private_data: &'a [u8],
}

/// The whole length of the frame that begins so.
///
/// # Errors
/// [`Fault::Frame`] when it is not `kind`, of a revision unknown here, or too long.
pub fn frame_bytes(kind: Kind, header: &[u8; HEADER_BYTES]) -> Result<usize, Fault> {
    let key = match kind {
        Kind::Request => KEY_REQUEST,
        Kind::Reply => KEY_REPLY,
    };
    let private = usize::from(u16::from_be_bytes([header[18], header[19]]));
    let known = header.starts_with(key) && matches!(header[17], 1 | 2);
    if known && private <= PRIVATE_DATA_BYTES_MAX {
        Ok(HEADER_BYTES + private)
    } else {
        Err(Fault::Frame)
    }
}

impl<'a> Frame<'a> {
    /// Reads one whole frame. Reserved flags are ignored.
    ///
    /// # Errors
    /// As [`frame_bytes`]; also for bytes before or after the frame's own length, and enhanced data that is cut short.
    pub fn parse(kind: Kind, bytes: &'a [u8]) -> Result<Frame<'a>, Fault> {
        let header = bytes.first_chunk().ok_or(Fault::Frame)?;
        if frame_bytes(kind, header)? != bytes.len() {
            return Err(Fault::Frame);
        }
        let (flags, revision) = (header[16], header[17]);
        let mut private_data = &bytes[HEADER_BYTES..];
        let mut enhanced = None;
        if revision >= 2 && flags & ENHANCED != 0 {
            let (words, rest) = private_data
                .split_first_chunk::<ENHANCED_BYTES>()
                .ok_or(Fault::Frame)?;
            enhanced = Some(Enhanced::parse(*words));
            private_data = rest;
        }
        Ok(Frame {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: kind == Kind::Reply && flags & REJECT != 0,
            revision,
            enhanced,
            private_data,
        })
    }

    /// As sent; `None` when the private data is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let enhanced = self.enhanced.map(Enhanced::encode);
        let private = self.private_data.len() + enhanced.map_or(0, |words| words.len());
        if private > PRIVATE_DATA_BYTES_MAX {
            return None;
        }
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut out = Vec::with_capacity(HEADER_BYTES + private);
        out.extend_from_slice(match self.kind {
            Kind::Request => KEY_REQUEST,
            Kind::Reply => KEY_REPLY,
        });
        out.push(
            flag(self.markers, MARKERS)
                | flag(self.crc, CRC)
                | flag(self.reject, REJECT)
                | flag(enhanced.is_some(), ENHANCED),
        );
        out.push(self.revision);
        out.extend_from_slice(&(private as u16).to_be_bytes());
        out.extend_from_slice(enhanced.as_ref().map_or(&[], |words| words.as_slice()));
        out.extend_from_slice(self.private_data);
        Some(out)
    }
}

impl Enhanced {
    fn parse(words: [u8; ENHANCED_BYTES]) -> Enhanced {
        let ird = u16::from_be_bytes([words[0], words[1]]);
        let ord = u16::from_be_bytes([words[2], words[3]]);
        Enhanced {
            ird: ird & DEPTH_UNSPECIFIED,
            ord: ord & DEPTH_UNSPECIFIED,
            peer_to_peer: ird & PEER_TO_PEER != 0,
            rtr: RtrKinds {
                send: ird & RTR_SEND != 0,
                write: ord & RTR_WRITE != 0,
                read: ord & RTR_READ != 0,
            },
        }
    }

    fn encode(self) -> [u8; ENHANCED_BYTES] {
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = self.ird.min(DEPTH_UNSPECIFIED)
            | flag(self.peer_to_peer, PEER_TO_PEER)
            | flag(self.rtr.send, RTR_SEND);
        let ord = self.ord.min(DEPTH_UNSPECIFIED)
            | flag(self.rtr.write, RTR_WRITE)
            | flag(self.rtr.read, RTR_READ);
        let mut out = [0; ENHANCED_BYTES];
        out[..2].copy_from_slice(&ird.to_be_bytes());
        out[2..].copy_from_slice(&ord.to_be_bytes());
        out
    }
}

/// What one side wants of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// CRCs; they are used when either side wants them.
    pub crc: bool,
    /// Read Requests that this side answers at once.
    pub ird: u16,
    /// Read Requests that this side would have outstanding.
    pub ord: u16,
    /// An initiator's wish that the responder may send first, too; else it waits until it has heard something.
    pub peer_to_peer: bool,
}

/// What both sides agreed on, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Whether FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// Read Requests that the peer may have outstanding here.
    pub ird: u16,
    /// Read Requests that this side may have outstanding there.
    pub ord: u16,
    /// The frame that the initiator sends before anything else.
    pub rtr: Option<Rtr>,
}

/// The request of an initiator.
pub fn request<'a>(terms: &Terms, private_data: &'a [u8]) -> Frame<'a> {
    Frame {
        kind: Kind::Request,
        markers: false,
        crc: terms.crc,
        reject: false,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: terms.ird,
            ord: terms.ord,
            peer_to_peer: terms.peer_to_peer,
            rtr: RtrKinds {
                send: false,
                write: terms.peer_to_peer,
                read: terms.peer_to_peer,
            },
        }),
        private_data,
    }
}

/// What a responder says to `request`, and what is agreed by that.
///
/// # Errors
/// [`Fault::Frame`] for markers, which are refused with [`reject`]; [`Fault::NoRtr`].
pub fn accept<'a>(
    terms: &Terms,
    request: &Frame<'_>,
    private_data: &'a [u8],
) -> Result<(Agreed, Frame<'a>), Fault> {
    if request.markers {
        return Err(Fault::Frame);
    }
    let mut agreed = Agreed {
        crc: terms.crc || request.crc,
        ird: terms.ird,
        ord: terms.ord,
        rtr: None,
    };
    let mut enhanced = None;
    if let Some(peer) = request.enhanced {
        agreed.ird = depth(terms.ird, peer.ord);
        agreed.ord = depth(terms.ord, peer.ird);
        if peer.peer_to_peer {
            agreed.rtr = Some(peer.rtr.preferred().ok_or(Fault::NoRtr)?);
        }
        enhanced = Some(Enhanced {
            ird: agreed.ird,
            ord: agreed.ord,
            peer_to_peer: peer.peer_to_peer,
            rtr: RtrKinds {
                send: agreed.rtr == Some(Rtr::Send),
                write: agreed.rtr == Some(Rtr::Write),
                read: agreed.rtr == Some(Rtr::Read),
            },
        });
    }
    let reply = Frame {
        kind: Kind::Reply,
        markers: false,
        crc: agreed.crc,
        reject: false,
        revision: request.revision,
        enhanced,
        private_data,
    };
    Ok((agreed, reply))
}

/// The reply of a responder that refuses `request`.
pub fn reject<'a>(request: &Frame<'_>, private_data: &'a [u8]) -> Frame<'a> {
    Frame {
        kind: Kind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision,
        enhanced: request.enhanced.map(|peer| Enhanced {
            rtr: RtrKinds::default(),
            peer_to_peer: false,
            ..peer
        }),
        private_data,
    }
}

/// What an initiator that sent [`request`] takes from a reply that does not refuse.
///
/// # Errors
/// [`Fault::Frame`] for markers or another revision than was offered; [`Fault::InsufficientIrd`] and [`Fault::NoRtr`], which are said
/// to the peer by a Terminate message.
pub fn conclude(terms: &Terms, reply: &Frame<'_>) -> Result<Agreed, Fault> {
    if reply.markers || reply.revision != 2 {
        return Err(Fault::Frame);
    }
    let mut agreed = Agreed {
        crc: terms.crc || reply.crc,
        ird: terms.ird,
        ord: terms.ord,
        rtr: None,
    };
    if let Some(peer) = reply.enhanced {
        if peer.ord > terms.ird && peer.ord != DEPTH_UNSPECIFIED {
            return Err(Fault::InsufficientIrd);
        }
        agreed.ird = depth(terms.ird, peer.ord);
        agreed.ord = depth(terms.ord, peer.ird);
        if terms.peer_to_peer && peer.peer_to_peer {
            let ours = RtrKinds {
                send: false,
                ..peer.rtr
            };
            agreed.rtr = Some(ours.preferred().ok_or(Fault::NoRtr)?);
        }
    }
    Ok(agreed)
}

/// A depth as far as the other side goes along.
fn depth(ours: u16, theirs: u16) -> u16 {
    if theirs == DEPTH_UNSPECIFIED {
        ours
    } else {
        ours.min(theirs)
    }
}
