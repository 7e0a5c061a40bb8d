//! NVMe: entries, commands, identify data, and the controller as a state machine; Fabrics included.
//!
//! - [`SubmissionQueueEntry`], [`CompletionQueueEntry`], [`Status`], [`SglDescriptor`], [`opcode`]: what every queue carries;
//! - [`kv`], [`nvm`]: the commands of the two I/O command sets, parsed; [`IoCommand`]: one of either;
//! - [`identify`], [`log_page`], [`feature`], [`discovery`]: what admin commands carry;
//! - [`property`]: registers, which Fabrics calls properties; [`fabrics`]: Connect and its like;
//! - [`auth`]: DH-HMAC-CHAP, for both ends; [`psk`]: the keys of TLS below NVMe/TCP;
//! - [`Subsystem`], [`Namespace`]: what a controller shows; [`Controller`]: how it answers.
//!
//! Layouts follow NVM Express Base 2.0, NVM Command Set 1.0, Key Value Command Set 1.0 and NVMe over Fabrics as in Base 2.0. Every
//! field is little-endian. Names are the specifications' own.
//!
//! # How to drive a controller
//! A transport gives it property accesses and admin commands in the order of their arrival, with the time; it answers at once
//! ([`AdminReply`]). I/O commands are checked and routed by [`Controller::io`] and executed elsewhere. After anything that may raise
//! an event, [`Controller::next_event`] is asked until it is empty; [`Controller::keep_alive_deadline_ms`] says when it is too late.
//!
//! # What it does not do
//! No queues, no doorbells, no payload, no sockets; it looks at no clock and draws no random numbers but by the function given. No
//! reservations, no namespace management, no metadata: what belongs to them is refused as unknown.
//!
//! # Invariants
//! No command makes a controller keep more than a fixed amount: four event requests, sixteen errors, the numbers of its namespaces and
//! queues. An answer's data is at most what was asked for and at most 64 KiB, but for the discovery log.
//!
//! # How it is tested
//! Structures and proofs pinned byte by byte; a host's usual way; commands that nobody should send; random sequences against a model;
//! a fuzz target of sequences whose seeds every test run replays.

mod ana;
pub mod auth;
mod command;
mod completion;
mod controller;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod kv;
pub mod log_page;
pub mod nvm;
pub mod opcode;
mod page;
pub mod property;
pub mod psk;
mod sgl;
mod status;
mod submission;
mod subsystem;
#[cfg(test)]
mod tests;

pub use command::{Fuse, IoCommand, IoVerb};
pub use completion::CompletionQueueEntry;
pub use controller::{
    AdminQueues, AdminReply, Controller, ControllerConfig, ControllerKind, Effect, Event,
    HostIdentity, QueueName, QueueRequest, Transport,
};
pub use sgl::{SglDescriptor, SglKind, SglSubtype};
pub use status::Status;
pub use submission::SubmissionQueueEntry;
pub use subsystem::{Namespace, NamespaceKind, Subsystem};

/// Bytes of a page: the only memory page size that controllers here offer (CAP.MPSMIN = CAP.MPSMAX = 0).
pub const PAGE_BYTES: usize = 4096;
/// The longest NVMe Qualified Name, in bytes, without its terminating NUL.
pub const NQN_BYTES_MAX: usize = 223;
/// "All namespaces", where a command takes it.
pub const NSID_ALL: u32 = u32::MAX;

/// Which I/O command set a namespace belongs to (Command Set Identifier).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Csi {
    /// Blocks.
    Nvm = 0,
    /// Keys and values.
    Kv = 1,
}

impl Csi {
    /// `None` for a command set that controllers here do not have.
    pub fn from_wire(csi: u8) -> Option<Csi> {
        match csi {
            0 => Some(Csi::Nvm),
            1 => Some(Csi::Kv),
            _ => None,
        }
    }
}
