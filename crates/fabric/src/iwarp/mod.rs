//! The fabric between hosts: iWARP (RFC 5040, 5041, 5044, 6581) over a TCP connection.
//!
//! - [`accept`], [`accept_of`], [`connect`]: agree with the peer (MPA) and make an [`IwarpLink`];
//! - `sender` and `fpdu`: writes, answers, requests and messages, gathered by reference into as few calls as possible;
//! - `receiver`: heads are checked before their payload is received, and payload goes from the socket straight to its place;
//! - `regions`: what this peer may reach;
//! - [`Stream`], `wire`: the byte stream below, in the clear or by TLS of this process (`tls`) or of the kernel (`kernel`, `keys`);
//! - `driver`: the one task of a link, that moves both ways.
//!
//! # How
//! Calls leave orders for the link's task and wake it, so that what is ordered in one moment leaves in one system call. Everything
//! that touches registered memory or the socket happens while the link's `Io` is locked: [`Link::close`](crate::Link::close) takes
//! that lock, so nothing moves after it. Memory that a segment in progress belongs to is pinned; a withdrawal waits for it, and ends
//! the link when the peer lets it wait too long.
//!
//! # Bounds
//! At most [`OUTSTANDING_BYTES_MAX`] of payload and 128 KiB of messages ordered and not yet sent; at most [`READS_MAX`] reads in either
//! direction at once; at most 4096 regions a link. A peer of whose messages 128 KiB wait, because nobody takes them (`inbox`), is no longer
//! read from; unless an answer is awaited from it, which comes behind them: then 16 MiB may wait, and what is beyond the 128 KiB counts for its
//! tenant (`backlog`). With more, its link ends. One that has gone is missed all the same (`gone`). A peer that does not go on with what it has to take or to answer (`stall`) has 30 s, and may
//! then connect anew.
//!
//! # What is withdrawn too early
//! Payload for a region that is no longer exposed ends the link (RFC 5040 section 7). It could be dropped as safely, but a fence behind it
//! would then be answered, and prove what is not so.
//!
//! # Integrity
//! With TLS nobody on the way reads or changes a byte: `wire` moves what the others send and receive through it.
//! With CRCs ([`Options::crc`], or the peer's wish) every segment is staged and checked before a byte of it is placed.
use std::time::Duration;

mod backlog;
mod driver;
mod fpdu;
mod gone;
mod inbox;
mod kernel;
mod keys;
mod link;
mod orders;
mod receiver;
mod regions;
mod sender;
mod setup;
mod spent;
mod stall;
mod stream;
mod tls;
mod wire;

use crate::STALL;

pub(crate) use backlog::{Backlog, Share};
pub use link::IwarpLink;
pub use setup::{accept, accept_of, connect};
pub use stream::Stream;

/// What one side wants of a link.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// CRCs in both directions; they are used when either side wants them. `None`: unless the peer is on this host.
    pub crc: Option<bool>,
    /// The most payload of a tagged segment, in bytes; at most [`SEGMENT_BYTES_MAX`], or [`FOREIGN_SEGMENT_BYTES_MAX`].
    pub segment_bytes: usize,
    /// An initiator's wish that the responder may send first, too (RFC 6581). Without, it waits until it has heard something.
    pub peer_to_peer: bool,
    /// In this time the peer has to take or answer 64 KiB of what is under way, or all of it, else the link ends.
    pub stall: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            crc: None,
            segment_bytes: SEGMENT_BYTES_MAX,
            peer_to_peer: true,
            stall: STALL,
        }
    }
}

/// What clients of links over TLS say that they mean to speak (RFC 7301).
pub const TLS_PROTOCOL: &[u8] = b"iwarp";
/// The longest payload of a tagged segment that needs no pad, which goes to a peer that says by its private data that it speaks as we do.
pub const SEGMENT_BYTES_MAX: usize = 65520;
/// The longest to any other peer: below every reading of the bound that RFC 5044 sets (section 4.5: somewhat less than 64 KiB).
pub const FOREIGN_SEGMENT_BYTES_MAX: usize = 61440;
/// Payload that calls have ordered and the system has not taken; more wait.
pub const OUTSTANDING_BYTES_MAX: usize = 4 << 20;
/// Reads that each side may have outstanding.
pub const READS_MAX: u16 = 64;
