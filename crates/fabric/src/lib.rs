//! Moves bytes straight between registered regions of two processes; knows nothing of objects.
//!
//! - [`Link`]: one connection over one fabric: remote write, remote read, messages, a fence that proves placement.
//! - [`Connection`]: a link of whichever fabric, chosen when it was made.
//! - [`iwarp`]: the fabric between hosts, over TCP.
//! - [`shm`]: the fabric between processes of one host.
//! - [`sessions`]: who is connected, what they let us reach, for how long.
//! - `suite` (a feature): the conformance suite that every fabric passes.
//!
//! # Words
//! A peer's region is named by an [`Stag`] (RFC 5040's steering tag; a slot with its generation on shared memory). An offset is a
//! tagged offset: it counts from the base that the region was registered with, zero for our own clients.
//!
//! # What `Placed` proves
//! That every byte of every [`Link::write`] that returned before [`Link::fence`] was called is in the peer's memory and that nothing of
//! them can still land. It has no public constructor, so an answer that needs it cannot overtake its data. Shared memory: the bytes were
//! copied by this process. iWARP: a zero-length RDMA Read, posted after the writes, was answered (RFC 5040 section 5.5 orders it).
//!
//! # What it does not do
//! No objects, no requests: messages are bytes. A link does not ask who may have what: whoever holds a session decides that, with
//! [`Session::verify`](sessions::Session::verify) or with the session's own regions, before it asks a link for anything. Only
//! iWARP over TLS hides payload from whoever can read the wire, and nothing does from whoever reads a host's memory.
//!
//! # Invariants
//! - A peer reaches exposed memory only, and that only until [`Link::withdraw`] or [`Link::closed`] has returned.
//! - A session's end closes its links before it forgets regions and grants.
//! - Everything a peer can make grow has a bound: [`sessions::Limits`], [`shm::REGIONS`], messages of [`MESSAGE_BYTES_MAX`] bytes.
//! - Whatever a peer sends, or writes to memory shared with it, ends its own link at worst.
//! - An idle link costs no processor time.
//!
//! # How it is tested
//! `tests/shm` and `tests/iwarp` run the suite over each fabric, and what only that fabric has: clients that scribble, truncate and are
//! killed, sessions against a model, frames that break the protocol; frames over shared memory are fuzzed (`shm_frame`).
//! `examples/shm_rate.rs` measures.
#![forbid(unsafe_code)]

mod connection;
pub mod iwarp;
mod link;
pub mod sessions;
pub mod shm;
#[cfg(feature = "suite")]
pub mod suite;

pub use connection::{Accepted, Connection};
pub use forebay_io::{Clock, SystemClock, UnixMillis};
pub use link::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, MESSAGE_BYTES_MAX, Placed,
    RemoteRange, Result, Stag,
};
pub use sessions::{Session, SessionId, Sessions};

use link::{STALL, STALL_BYTES};
