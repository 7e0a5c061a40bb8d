//! The S3 door: HTTP/1.1 in, [`Store`](forebay_store::Store) calls out.
//!
//! A request goes through stages, one module each: `door` (connections, ids, errors), `router` (which operation),
//! `auth` (who asks), `access` (may they), `dispatch` (to a handler named by its noun), `reply` (the response's body).
//! Bodies come in through `ingest` and are copied once, into registered buffers; values go out as the store's own buffers.
//! Requests with tokens, whose payload goes by remote memory access, are in `direct`.
//! What is kept with an object is in `kept`, unfinished uploads are in `staging`, store errors are mapped in `status`.
//!
//! # What it does not do
//! No sockets, TLS or threads: the node accepts and hands over streams. No storage: buckets are namespaces, configurations
//! are their attributes, and all else is values. No grammar: that is `forebay_proto::s3`. Not served, and refused by name:
//! server-side encryption, Object Lock, POST policies, access for others by ACL, website, replication, transitions.
//!
//! # Invariants
//! - Nothing is committed before length, signatures, checksums and digests of the body were compared.
//! - A caller learns nothing of a bucket that it has no right to, not even that it exists.
//! - Every request has an id, which its response, its error document and its span carry.
//! - What a client can make us hold is bounded: head, headers, documents, requests in flight, and one buffer of payload.
//! - No input panics.
//!
//! # Tests
//! `tests/` drives a door over the in-memory store with raw bytes and a small signing client, and asserts afterwards that
//! no buffer is left in use. `tests/direct` holds the published test cases of requests with tokens, over links of this
//! host. `examples/memory_server.rs` serves the in-memory store to real clients.
#![forbid(unsafe_code)]

mod access;
mod acl;
mod admission;
mod attributes;
mod auth;
mod bucket;
mod bucket_config;
mod call;
mod claims;
mod complete;
mod conditions;
mod config;
mod copy;
mod cors;
mod delete;
mod demand;
mod direct;
mod dispatch;
mod door;
mod encryption;
mod execute;
mod headers;
mod ingest;
mod kept;
mod lanes;
mod lifecycle;
mod list;
mod live;
mod metrics;
mod multipart;
mod object_get;
mod object_put;
mod orphans;
mod pace;
mod presigned;
mod reply;
mod router;
mod rules;
mod slices;
mod staging;
mod status;
mod tagging;
mod turns;
mod uploads;

pub use auth::{AccessKey, AccessKeys};
pub use config::{Config, EtagKind};
pub use direct::Direct;
pub use door::{Clock, Door};
pub use headers::{read_version, version_text};
pub use lifecycle::Swept;
pub use metrics::Metrics;
