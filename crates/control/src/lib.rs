//! Who may do what: tenants, access keys, namespaces and quotas, and the doors that change them.
//!
//! - [`Identities`]: tenants and their access keys, kept as small values in a namespace of the store that no door can name,
//!   and in memory for the doors, which ask at every request.
//!   [`Host`]s of the NVMe doors and the namespace identifiers ([`Published`]) stand beside them.
//!   So do the modules that may be executed ([`AllowedModule`]).
//! - [`Admin`]: the operations of an administrator, once. They are reached as JSON over whatever carries it ([`Admin::handle`]: the
//!   node does so by HTTP over a Unix socket whose peer the kernel names) and by gRPC.
//! - [`ColdTier`]: what administration asks of a cold tier.
//! - [`rpc`]: the gRPC door, package `forebay.v1`: administration, sessions, object calls, watches.
//! - [`api`]: the JSON, shared by server and command line.
//! - [`Node`]: what administration asks of the process around it.
//!
//! # What it does not do
//! No signatures of S3, no payload in memory of its own: object calls move bytes between the store and a session's link. A
//! stopped control plane stops no transfer of another door.
//!
//! # Invariants
//! A change is in the store before it is in memory, and in memory before it is answered; what others change over the same store is
//! in memory as soon as the store tells of it. A key names one tenant for its whole
//! life, and its sessions end with it. A tenant that owns namespaces cannot be removed. Secrets leave only in the answer that makes
//! a key. No call is read before its caller is known, and what belongs to another tenant is refused in the words for what does
//! not exist. An answer about bytes placed in a client's memory is made from the fabric's proof.
//!
//! # How it is tested
//! Over the memory leaf: through [`Identities`] and [`Admin::handle`], and through gRPC on a real connection with and without TLS,
//! payloads over shared memory; over the real binary by the node's tests and by a Python client that knows the interface by
//! reflection alone.
#![forbid(unsafe_code)]

mod admin;
pub mod api;
mod changes;
mod cold;
mod error;
mod follow;
mod grants;
mod hosts;
mod identities;
mod json;
mod modules;
mod names;
mod numbers;
mod nvme;
mod records;
pub mod rpc;
mod secrets;

pub use admin::{Admin, Node};
pub use cold::{ColdTier, store_name};
pub use error::{Error, Kind, Result};
pub use identities::{AccessKey, Identities, ROOT_TENANT, SYSTEM_NAMESPACE, Tenant};
pub use json::Reply;
pub use modules::{AllowedModule, Leave, MODULE_BYTES_MAX};
pub use nvme::{Host, NSID_MAX, Published, What};
