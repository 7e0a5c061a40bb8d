//! The embedded leaf: a store on a directory of a local disk.
//!
//! [`Engine`] implements `forebay_store::Store`. The format is `docs/engine-format.md`.
//!
//! # What it is made of
//! - `journal`, `batch`, `draft`, `group`: one thread decides changes in order and makes each group durable with one sync.
//! - `tables`, `index`: what is committed, as memtables over a redb database; `checkpoint` moves rows from one to the other.
//! - `upload`, `room`, `allocator`, `extent`: bytes go from the buffers they arrived in to granules that nothing refers to yet.
//! - `body`, `segments`, `cache`, `reclaim`: bytes leave, checked on every read, from granules that cannot be reused meanwhile.
//! - `view`, `list`, `usage`, `counting`, `namespaces`: what stands under a key, list pages, quotas, what namespaces hold.
//! - `recover`, `replay`, `superblock`, `mend`, `scrub`, `findings`: opening, replaying, mending, verifying.
//!
//! # Invariants
//! - A change is visible only after it is durable, or was answered early in a namespace that says so.
//! - A row refers only to extents that are durable when the row is.
//! - A granule is reused only after the change that freed it is durable and no reader can reach it.
//! - Whoever writes holds the directory until the write has ended.
//! - Only the journal's thread changes tables and what is used; no lock is held across an await.
//!
//! # What it does not do
//! No tiers, no encryption, no replication. Index look-ups block the caller while a page is read. One upload is bounded by the journal
//! segment (some tens of GiB by default); larger values are composed of parts.
//!
//! # How it is tested
//! The conformance suite of `forebay_store`, crashes, failures and rot on `forebay_io::sim` against a model (`tests/`), and seeds of
//! every format through the functions that fuzzers call (`fuzz`).
#![forbid(unsafe_code)]

mod allocator;
mod batch;
mod body;
mod cache;
mod checkpoint;
mod codec;
mod command;
mod config;
mod core;
mod counting;
mod draft;
mod engine;
mod entry;
mod extent;
mod findings;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod group;
mod index;
mod journal;
mod keys;
mod land;
mod list;
mod mend;
mod metrics;
mod namespaces;
mod passage;
mod recent;
mod reclaim;
mod recover;
mod replay;
mod room;
mod scrub;
mod segments;
mod space;
mod superblock;
mod tables;
mod upload;
mod usage;
mod view;

pub use body::EngineBody;
pub use config::Config;
pub use engine::Engine;
pub use findings::Finding;
pub use metrics::Metrics;
pub use recover::{FILES, OpenError};
pub use scrub::{Audit, ScrubProgress};
pub use upload::EngineUpload;

type Result<T, E = forebay_store::StoreError> = std::result::Result<T, E>;
