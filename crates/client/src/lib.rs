//! An S3 client that moves whole files and verifies what it moves.
//!
//! - [`Client`]: one endpoint and one identity; keep-alive connections, retries, time-outs. Its calls are S3's: put, get, head,
//!   list, delete, copy, multipart.
//! - [`transfer`]: files and streams in parallel parts, resumed where an earlier attempt ended.
//! - [`Endpoint`], [`Credentials`], [`Tls`]: where, as whom, trusting whom.
//!
//! # Integrity and retries
//! Every body sent carries its CRC-64/NVME; over TLS and on loopback it is not hashed a second time for the signature
//! (`UNSIGNED-PAYLOAD`), elsewhere it is. A whole value received is checked against the CRC-64/NVME that the server states; a
//! transfer says whether there was one. Calls that may be made twice are made again after a lost connection, a time-out, `500`,
//! `502`, `503` and `504`, with growing pauses.
//!
//! # What it does not do
//! No virtual-host style, no session tokens, no direct path: bytes travel as HTTP bodies.
//!
//! # How it is tested
//! Against a scripted server (lost connections, refusals, wrong bytes) here, and against the real door by the node's tests.
#![forbid(unsafe_code)]

mod answers;
mod calls;
mod checksum;
mod client;
mod connect;
mod credentials;
pub mod direct;
mod download;
mod endpoint;
mod error;
mod multipart;
mod token_session;
pub mod transfer;

pub use answers::{Listed, ListingPage, ObjectInfo, Part, UnfinishedUpload};
pub use calls::PutOptions;
pub use checksum::Crc64;
pub use client::{Client, Config};
pub use connect::Tls;
pub use credentials::{Credentials, CredentialsError};
pub use download::Download;
pub use endpoint::Endpoint;
pub use error::{Error, Kind, Refusal, Result};
