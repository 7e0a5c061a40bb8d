//! librados, opened at run time: the only `unsafe` of this room.
//!
//! - [`Cluster`], [`Place`]: a connection, and a pool with a RADOS namespace in it. Handles close once, when the last user goes.
//! - [`WriteOp`], [`ReadOp`]: operations on one object, carried out whole or not at all. What an operation reads into belongs to it until
//!   the library is done, whoever stopped waiting meanwhile.
//! - [`Watching`], [`Lease`]: hearing of what others change, and being known to be alive.
//! - [`AtEnd`]: what the end of the process waits for.
//!
//! Callbacks run on the library's own thread: they never unwind into it, never wait, and never close the connection from it.

mod cluster;
mod lease;
mod leaving;
mod library;
mod names;
mod operation;
mod read;
mod watch;
mod write;

pub(crate) use cluster::{ALL, Cluster, Place, Settings};
pub(crate) use lease::Lease;
pub(crate) use leaving::AtEnd;
pub use library::{Missing, version};
pub(crate) use operation::Errno;
pub(crate) use read::{Pairs, Read, ReadOp};
pub(crate) use watch::{Answer, Heard, Watching};
pub(crate) use write::{Guard, WriteOp};
