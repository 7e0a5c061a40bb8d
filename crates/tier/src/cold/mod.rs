//! The cold tier: values keep their place in a store, and their bytes go to a bucket of any S3 when rules say so.
//!
//! [`Cold`] is a store over a store that can let bytes go ([`Store::let_go`](forebay_store::Store::let_go)). A value whose bytes went is
//! listed, counted, conditioned, versioned, expired and deleted by the store below, as before; to read it, the bytes are fetched and
//! checked, and come back as the namespace's [`Rules`] say.
//!
//! - `layer`: [`Cold`], reading what is away. `mover`: one value out or back. `pass`: rules, deletions. `sweep`, `bloom`: what a crash left.
//!   `buffers`: what they hold meanwhile.
//! - `bucket`, `format`: copies in the bucket. `fetch`: their bytes, checked. `pins`: who reads which.
//! - `rules`, `policy`, `reads`: what goes, and when it was read last. `shared`: several processes on one store.
//! - `s3`, `http`: the client for the far side, over the crate `object_store`.
//!
//! # Invariants
//! - Bytes are let go only after a complete copy was read back and compared.
//! - No name is used twice, and a copy is deleted only when nothing in the store refers to it, durably, and no reader of this process. A
//!   sweep deletes it only when an earlier one, a day before, found it so already: it cannot see what other processes do.
//! - Bytes leave checked: each block of 64 KiB by its own sum, a value read whole by its CRC-64/NVME too.
//! - The far side failing fails reads of what is there, as [`Busy`](forebay_store::ErrorKind::Busy), and nothing else.
//!
//! # How it is tested
//! The conformance suite with every value's bytes away, crashes at any step and power loss at any write, a far side that fails and lies; what
//! comes from the far side and from the process before is fuzzed (`cold_copy`, `cold_answer`, `tier_record`).

mod bloom;
mod bucket;
mod buffers;
mod counters;
mod fetch;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
mod layer;
mod mover;
mod pass;
mod pins;
mod policy;
mod reads;
mod rules;
mod s3;
mod shared;
mod sweep;

pub use bucket::Bucket;
pub use counters::Metrics;
pub use layer::{Away, Cold, ColdBody};
pub use mover::{Config, Mover};
pub use pass::Passed;
pub use policy::{Policy, Recall};
pub use rules::{RULES, RULES_MAX, Rules};
pub use s3::{ColdUrl, Secret};
pub use sweep::Swept;
