//! Who may do what: tenants, access keys, namespaces and quotas, and the API that changes them.
//!
//! - [`Identities`]: tenants and their access keys, kept as small values in a namespace of the store that no door can name,
//!   and in memory for the doors, which ask at every request.
//! - [`Admin`]: the operations of an administrator as JSON over whatever carries it: method, path and body in, status and body
//!   out. The node carries it by HTTP over a Unix socket whose peer the kernel names (`SO_PEERCRED`).
//! - [`api`]: the JSON, shared by server and command line.
//! - [`Node`]: what the API asks of the process around it.
//!
//! # What it does not do
//! No sockets, no HTTP, no signatures, no data: a stopped control plane stops no transfer. Who may connect is decided by
//! who carries the API.
//!
//! # Invariants
//! A change is in the store before it is in memory, and in memory before it is answered. A key names one tenant for its whole
//! life. A tenant that owns namespaces cannot be removed. Secrets leave only in the answer that makes a key.
//!
//! # How it is tested
//! Over the memory leaf, through [`Identities`] and [`Admin::handle`]; over the real socket by the node's tests.
#![forbid(unsafe_code)]

mod admin;
pub mod api;
mod error;
mod identities;
mod json;
mod names;
mod secrets;

pub use admin::{Admin, Node};
pub use error::{Error, Kind, Result};
pub use identities::{AccessKey, Identities, ROOT_TENANT, SYSTEM_NAMESPACE, Tenant};
pub use json::Reply;
