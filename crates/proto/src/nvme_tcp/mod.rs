//! NVMe/TCP: PDUs on a byte stream (NVMe TCP Transport Specification 1.0, sections 3.3 to 3.6).
//!
//! - [`pdu`]: the kinds of PDU, their fields and how they are written; [`Framing`] says where digests and padding stand, and
//!   [`Agreed`] what ICReq and ICResp settle for a connection;
//! - [`digest`]: CRC32C of headers and of data;
//! - [`fault`]: why a connection is ended, and the PDUs that say so;
//! - [`Inbound`]: reads heads, for a controller as well as for a host. It checks everything that the head alone can tell, so that
//!   no data is received that nobody asked for;
//! - [`Transfer`]: the data of one command: order, bounds, tag.
//!
//! # How to drive it
//! Show [`Inbound::pdu`] what was received. [`Progress::Need`]: receive more and show it again. [`Progress::Pdu`]: the head is
//! over; receive the data wherever it belongs, then the digest, which is for the receiver of the data to compare ([`Crc32c`]). A
//! wrong data digest ends the command, not the connection (section 3.3.1.1); every [`Fault`] ends the connection.
//!
//! # What it does not do
//! No sockets, no TLS, no data: it never holds payload, and nothing is allocated for a PDU. Submission and completion queue entries
//! pass through as bytes.
pub mod digest;
pub mod fault;
mod inbound;
pub mod pdu;
#[cfg(test)]
mod tests;
mod transfer;

pub use digest::{Crc32c, DIGEST_BYTES};
pub use fault::{FatalErrorStatus, Fault, TermReq};
pub use inbound::{Event, Inbound, Pdu, Progress};
pub use pdu::{
    Agreed, CQE_BYTES, Data, Digests, Framing, HEAD_BYTES_MAX, ICReq, ICResp, PduType, R2T,
    SQE_BYTES, capsule_cmd, capsule_resp,
};
pub use transfer::Transfer;
