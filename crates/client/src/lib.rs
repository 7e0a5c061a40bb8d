//! The client: payloads straight between a server and registered memory, and an S3 client for everybody's protocol.
//!
//! - [`direct`]: [`direct::Client`] opens a session, makes the best link there is (shared memory, iWARP), and moves values into and out
//!   of [`direct::Region`]s; without a link the same calls go by HTTP. `docs/client.md` begins with an example.
//! - [`mem`]: the memory below a region, where it is none that [`direct::Region`] makes.
//! - [`kv`]: keys and values of any NVMe device that keeps them, over NVMe/TCP or vfio-user.
//! - [`Client`]: one S3 endpoint and one identity; keep-alive connections, retries, time-outs. Its calls are S3's: put, get, head,
//!   list, delete, copy, multipart, versions.
//! - [`Admin`]: tenants, keys, namespaces and quotas of a server elsewhere, over gRPC.
//! - [`Execution`]: functions sent to the data, over gRPC.
//! - [`transfer`]: files and streams in parallel parts, by the direct path or as bodies, resumed where an earlier attempt ended.
//! - [`Endpoint`], [`Credentials`], [`Tls`]: where, as whom, trusting whom.
//!
//! # Integrity and retries
//! A value's CRC-64/NVME is made over this process' memory before it leaves and compared there when it has arrived, whatever the path.
//! As a body it is not hashed a second time for the signature (`UNSIGNED-PAYLOAD`) over TLS and on loopback, elsewhere it is. Calls that
//! may be made twice are made again after a lost connection or link, a time-out, `500`, `502`, `503` and `504`, with growing pauses;
//! those of the direct path from a budget, so that a server in trouble is not asked more and more.
//!
//! # When memory may be used again
//! A call has its bytes of a region lent to it until the server can no longer touch them, also when its future is dropped or its time
//! runs out: the link's own task waits for the reply, or closes the link. Another call over these bytes waits by itself.
//!
//! # What it does not do
//! No virtual-host style. It trusts no byte before the server has said that all of them are placed, and
//! never mixes paths within one value.
//!
//! # How it is tested
//! Against a scripted link (replies late, never, to nobody; links that end) and a scripted server (lost connections, refusals, wrong
//! bytes) here, and against the real doors by the node's tests, over every path.
#![forbid(unsafe_code)]

mod admin;
mod answers;
mod attributes;
mod calls;
mod checksum;
mod client;
mod config;
mod connect;
mod copies;
mod credentials;
pub mod direct;
mod download;
mod endpoint;
mod error;
mod execution;
pub mod kv;
mod multipart;
mod token_session;
pub mod transfer;
mod versions;

pub use admin::Admin;
pub use answers::{Listed, ListingPage, ObjectInfo, Part, UnfinishedUpload};
pub use attributes::Attributes;
pub use calls::PutOptions;
pub use checksum::Crc64;
pub use client::Client;
pub use config::Config;
pub use connect::Tls;
pub use credentials::{Credentials, CredentialsError, Profile};
pub use download::Download;
pub use endpoint::Endpoint;
pub use error::{Error, Kind, Refusal, Result};
pub use execution::{Executing, Execution, NotExecuted};
pub use forebay_mem as mem;
pub use versions::{ListedVersion, VersionsAfter, VersionsPage};
