//! Keeps values in Ceph RADOS: a key is an object, and an index beside them makes lists of what has no order.
//!
//! - [`RadosStore`]: the leaf. Any number of processes may have one on the same pool; none holds anything of its own.
//! - `heads`, `kept`, `record`: a key's object, whose one operation is what makes a change happen. `change`, `plan`: deciding and doing it.
//! - `journal`: what is under way, said before it happens. `index`, `entries`, `waiting`, `list`: sorted entries,
//!   brought up to date after it happened.
//! - `upload`, `body`, `land`, `stripes`: bytes on their way; a value that is too long for one object lies in stripes. `held`: which of
//!   them somebody here has under way. `compose`, `claims`: joining parts. `away`: bytes that a layer above keeps.
//! - `keeper`, `clean`, `sweep`, `strays`, `adopt`: what nobody waits for, and what others left. `pool`: names of all objects. `books`: usage
//!   and quotas. `notices`, `listen`: what other gateways changed.
//! - `sys`: librados, opened at run time; all `unsafe` of this room.
//!
//! # Invariants
//! A change is one operation on one object, guarded by that object's version. Before it the journal names the key; while it does, lists
//! look at the object. An entry of the index is replaced only by who knows what it replaces, and usage is counted in the same operation.
//! Stripes are named in the journal before they are written and after nothing refers to them. The library is never given so much
//! that it blocks a thread, and nothing waits without a deadline.
//!
//! # What it does not do
//! It keeps no values in memory (the layer `tier` does), makes no pools, and lists a pool only now and then ([`Config::adopt`]), when there
//! are strays, and when it is asked to: by [`RadosStore::adopt`], [`RadosStore::find_strays`] and [`RadosStore::audit`]. What is weaker than
//! in the embedded engine is in `docs/rados.md` section 7.
//!
//! # How it is tested
//! By the store's conformance suite and by tests of its own on the cluster that `FOREBAY_CEPH_CONF` names, without which they are ignored:
//! objects of other hands, several gateways, gateways that are killed. Records and names are fuzzed and their seeds replayed here.
#![deny(unsafe_code)]

mod access;
mod adopt;
mod audit;
mod away;
mod body;
mod books;
mod change;
mod claims;
mod clean;
mod codec;
mod compose;
mod config;
mod core;
mod edit;
mod entries;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heads;
mod held;
mod index;
mod journal;
mod keeper;
mod kept;
mod land;
mod list;
mod listen;
mod names;
mod namespaces;
mod notices;
mod orphans;
mod pieces;
mod plan;
mod pool;
mod pulse;
mod record;
mod reload;
mod store;
mod strays;
mod stripes;
mod sums;
mod sweep;
mod sys;
mod under_way;
mod upload;
mod waiting;

#[cfg(test)]
extern crate self as forebay_rados;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod tests;

pub use adopt::Adopted;
pub use audit::Audit;
pub use body::RadosBody;
pub use config::Config;
pub use error::OpenError;
pub use store::RadosStore;
pub use sys::{Missing, version as librados_version};
pub use upload::RadosUpload;
