//! Keeps values in Ceph RADOS.
#![deny(unsafe_code)]

mod access;
mod body;
mod books;
mod change;
mod codec;
mod compose;
mod config;
mod core;
mod edit;
mod error;
mod heads;
mod index;
mod journal;
mod keeper;
mod list;
mod names;
mod namespaces;
mod notices;
mod plan;
mod record;
mod store;
mod stripes;
mod sums;
mod sweep;
mod sys;
mod under_way;
mod upload;

pub use body::RadosBody;
pub use config::Config;
pub use error::OpenError;
pub use store::RadosStore;
pub use sys::{Missing, version as librados_version};
pub use upload::RadosUpload;
