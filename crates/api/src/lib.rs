//! The published gRPC interface: `proto/forebay/v1/*.proto` and the code generated from it.
//!
//! # What it does not do
//! No behaviour: `control` serves it, `client` calls it, and any gRPC client can.
#![forbid(unsafe_code)]
