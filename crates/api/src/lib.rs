//! The published gRPC interface, package `forebay.v1`: its `.proto` files and the code generated from them.
//!
//! - [`v1`]: messages, and for each service a client and a server module.
//! - [`DESCRIPTORS`]: the same as descriptors, for reflection.
//! - [`Codec`]: how they read messages.
//! - [`REASON_METADATA`]: where a refused call says why.
//!
//! # What it does not do
//! No behaviour: `control` serves it, `client` calls it, and any gRPC client can.
//!
//! # Invariants
//! The generated files are what `cargo xtask generate` makes of `proto/`; `cargo xtask check` compares them. A field keeps its
//! number and its meaning for as long as there is a `v1`.
//!
//! # How it is tested
//! By the tests of `control`, and by clients in other languages that know nothing but what reflection tells.
#![forbid(unsafe_code)]

mod codec;

pub use codec::Codec;

/// Messages, clients and servers of the package `forebay.v1`.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    reason = "written by the generator"
)]
pub mod v1 {
    include!("generated/forebay.v1.rs");
}

/// The package's encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The trailing metadata of a refused call: the name of a [`v1::Reason`].
pub const REASON_METADATA: &str = "forebay-reason";
