//! An NVMe target and initiator, over TCP and vfio-user.
//!
//! - [`target`]: what a node shows to hosts, and how their commands are executed; the same for every transport.
//! - [`tcp`], [`vfio_user`]: the transports of the target.
//! - [`initiator`]: a host.
//!
//! Both ends over TCP have `socket` below them: the connection in the clear, or TLS over it.
//!
//! Wire formats and the controller itself are [`forebay_proto::nvme`].
//!
//! # What it does not do
//! It accepts no connections by itself, knows no tenants' keys and decides no policy: whoever builds a [`target::Target`] says which
//! hosts may come and what they see.
//!
//! # Invariants
//! - A host sees the namespaces of its tenant; others are as absent.
//! - A hostile host harms its own association alone.
//! - Payload is never gathered: it goes from where it lies to where it belongs. Only TLS copies it, once each way.
//! - A command that is dropped (abort, reset, a lost connection) leaves nothing half done.
#![forbid(unsafe_code)]

pub mod initiator;
mod socket;
pub mod target;
pub mod tcp;
pub mod vfio_user;
