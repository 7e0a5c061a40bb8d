//! iWARP: remote memory access over a byte stream.
//!
//! - [`mpa`]: the frames that open a connection (RFC 5044 section 7, RFC 6581) and what two ends agree on;
//! - [`fpdu`]: framing of segments on the stream, with its CRC (RFC 5044 section 4);
//! - [`ddp`]: segment headers of DDP (RFC 5041) with the control byte of RDMAP (RFC 5040, immediate data of RFC 7306);
//! - [`rdmap`]: opcodes, the body of a Read Request, and how segments of each message are headed;
//! - [`terminate`]: why a stream is ended, and the message that says so (RFC 5040 section 4.8);
//! - [`Inbound`] and [`Outbound`]: the two directions of one stream. `Inbound` checks every header before its payload is
//!   received and says where the payload belongs; `Outbound` numbers messages and writes headers.
//!
//! # What it does not do
//! No markers (a peer that asks for them is refused, RFC 5044 section 7.1 leaves that to us), no atomic operations, no
//! out-of-order placement: TCP delivers in order. It never holds payload.
//!
//! # Invariants
//! A payload's place is named only after its STag, bounds and access were checked with the caller's table, segment by
//! segment. Nothing is allocated for a segment.
pub mod ddp;
pub mod fpdu;
mod inbound;
pub mod mpa;
mod outbound;
pub mod rdmap;
pub mod terminate;
#[cfg(test)]
mod tests;

pub use inbound::{Access, Event, Inbound, Limits, Progress, Protection, Regions, Segment};
pub use outbound::{HEAD_BYTES_MAX, Outbound, SendKind};
pub use terminate::Fault;
