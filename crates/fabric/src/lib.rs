//! Moves bytes straight between registered regions of two processes; knows nothing of objects.
//!
//! - [`Link`]: one connection over one fabric: remote write, remote read, messages, a fence that proves placement.
//! - [`Connection`]: a link of whichever fabric, chosen when it was made.
//! - [`iwarp`]: the fabric between hosts, over TCP.
//! - [`shm`]: the fabric between processes of one host.
//! - [`sessions`]: who is connected, what they let us reach, for how long.
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
//! It does not know who may touch what: grants are checked before a link is asked for anything.
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
