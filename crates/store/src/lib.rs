//! The waist: named values in, named values out.
//!
//! Every door (S3, NVMe, gRPC, the direct path) speaks to storage through [`Store`] and nothing else; every leaf (the embedded engine,
//! Ceph, memory) and every layer (functions, the cache, the cold tier) implements it. Fronts meet here and nowhere else.
//!
//! - [`Store`], [`Upload`], [`Body`]: the contract, on the traits.
//! - [`Address`]: namespace, space and key; [`KEY_BYTES_MAX`] and the other limits are in [`limits`].
//! - [`Meta`], [`Attributes`], [`Etag`], [`VersionId`]: what is kept beside the bytes.
//! - [`Away`]: values whose bytes a layer keeps elsewhere.
//! - [`Execute`], [`Executed`]: a function sent to the data.
//! - [`Placing`]: bytes into memory that a peer may also touch, summed on their way; [`Taking`]: out of it.
//! - [`pass_on!`]: calls that a layer has nothing to say to.
//! - [`MemoryStore`]: a leaf that keeps values in memory; the model that others are tested against.
//! - [`listing`]: how an ordered walk becomes a page; [`plan_store`], [`plan_delete`], [`answer_delete`]: what happens to versions;
//!   [`Quota::admit`]: what may grow. Every leaf uses all.
//! - [`live`]: what a door tells of its tenants' requests; [`limits::may_have`]: how they share what it has; [`waiting`]: what they have of
//!   the store's buffers while their clients take their time.
//! - [`StoreError`]: one closed set of kinds, which every door maps by an exhaustive `match`.
//!
//! # What it does not do
//! It knows no wire format and no device. Identity is settled before: a namespace names its tenant, and whoever calls has
//! already decided that the caller may act for that tenant.
//!
//! # How it is tested
//! The feature `suite` holds the conformance suite that every store runs: examples of the contract, random scripts compared
//! with [`MemoryStore`], and races; for layers, whether each call arrives below. `tests/suite_can_fail.rs` gives it broken stores, each of which it has to refuse.
#![forbid(unsafe_code)]

mod attributes;
mod away;
mod error;
mod execute;
mod layer;
pub mod limits;
pub mod listing;
pub mod live;
mod memory;
mod meta;
mod namespace;
mod ops;
mod placing;
pub mod shares;
mod store;
#[cfg(feature = "suite")]
pub mod suite;
mod taking;
mod versions;
pub mod waiting;
mod watch;

pub use attributes::{Attributes, AttributesBuilder};
pub use away::Away;
pub use error::{ErrorKind, Result, StoreError};
pub use execute::{Effort, Execute, Executed, Input, Module, ModuleDigest, Output, ProgramFault};
pub use limits::KEY_BYTES_MAX;
pub use memory::{MemoryBody, MemoryStore, MemoryUpload};
pub use meta::{Etag, Meta, VersionId};
pub use namespace::{
    Durability, NamespaceConfig, NamespaceInfo, Quota, Scope, Usage, Versioning, check_namespaces,
};
pub use ops::{
    Address, After, ByteRange, Condition, DeleteOptions, Deleted, Item, ListOptions, ListPage,
    Seal, Source, Space, StoreOptions, Stored, VersionItem, VersionPage,
};
pub use placing::Placing;
pub use store::{Body, Caps, Object, Store, Upload, copy_from};
pub use taking::Taking;
pub use versions::{
    Change, Plan, Present, answer_delete, growth_of_delete, makes_marker, plan_delete, plan_store,
};
pub use watch::{Notice, Watch};

/// For [`pass_on!`], whose users need not name the room.
#[doc(hidden)]
pub use forebay_mem::RegionSlice;
