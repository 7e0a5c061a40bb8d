//! A cache before another store.
//!
//! [`Tier`] is a `forebay_store::Store` over a `forebay_store::Store`: doors speak to it as to the store below, and what they
//! read comes from memory or from a local disk when it is there and may be believed.
//!
//! # What it is made of
//! - `tier`, `read`, `upload`, `body`: the store's calls. A hit hands out references to the registered buffers that are held;
//!   nothing is copied.
//! - `index`, `shard`, `shelved`: what is held of which value, by pieces of [`PIECE_BYTES`]; shares of tenants, pins, time to live.
//! - [`policy`]: what leaves. [`policy::S3Fifo`] by default, with [`policy::WTinyLfu`] and [`policy::Lru`] to compare it with.
//! - `namesake`: whether a namespace still has its name, by which the store is asked.
//! - `flight`: one read of the store for everybody who wants the same bytes at the same time. `room`: what that, and what arrives, holds.
//! - `stripes`, `change`: no value goes into the cache while it may be replaced, whether or not somebody waits for that.
//! - `follow`: notices of changes by others, where the store below gives them.
//! - `disk`: pieces that left memory, kept in a store of their own (an engine's directory).
//! - `write_back`, `landing`: values answered before the store has committed them, in namespaces that allow it, and how the store comes by
//!   them.
//!
//! Behind a store stands [`cold`]: bytes in any S3, values where they were.
//!
//! # Invariants
//! - What is held is bound to the namespace's number, the key, and the value's version, tag, time, size and checksum. Bytes that
//!   do not match their sums are not given out: they are read again from the store.
//! - A change through this tier is seen by every later call through it. A change elsewhere is seen after [`Trust::Within`]
//!   milliseconds at the latest, whether or not a notice came; with [`Trust::Strict`] at once.
//! - A body stays what it was when it was given out: whatever it needs is opened before.
//! - No tenant takes what another needs: each has its share of what is held, and leaves room for what is on its way.
//! - Memory is bounded: what is held by the configuration, what is being filled by a quarter of it beside (at least 16 MiB), what
//!   S3-FIFO remembers of what left by a 32nd of it (and a 1024th of the disk's), whatever the number of tenants, and what is known of
//!   values on the disk by an eighth of it and a 512th of the disk's.
//!
//! # What it does not do
//! It keeps no older versions, no staged parts, no lists and no absences: those are the store's own answers.
//!
//! # How it is tested
//! The conformance suite over it, in every mode; two tiers over one store with notices that are late or lost, against a bound on
//! staleness; races of readers and writers; traces replayed against simulations (`forebay bench cache`).
#![forbid(unsafe_code)]

mod body;
mod cache;
mod change;
pub mod cold;
mod config;
mod disk;
mod flight;
mod follow;
mod index;
mod kept_meta;
mod landing;
mod metrics;
mod namesake;
mod piece;
pub mod policy;
mod read;
mod room;
mod shard;
mod shelved;
mod stripes;
mod tier;
mod upload;
mod write_back;

pub use body::TierBody;
pub use cache::buffer_bytes;
pub use config::{Clock, Config, Pin, Share, Trust};
pub use metrics::Metrics;
pub use piece::PIECE_BYTES;
pub use policy::PolicyKind;
pub use tier::Tier;
pub use upload::TierUpload;
pub use write_back::Unlanded;
