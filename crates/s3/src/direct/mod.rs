//! Requests whose payload goes by remote memory access: a token in a header names the client's memory, the body is empty.
//!
//! `carried` finds the token and takes a request through its stages: who asks, what dialect, what S3 says to it, whose
//! session, and then `get` or `put`. What cannot be served is declined by the published rule (`decline`), so that every
//! client falls back by itself and none takes a decline for success. `control` answers the requests that make and end
//! sessions, `lender` is what a node configures.
//!
//! # Invariants
//! - A success can be said only with a [`moved::Moved`] in hand, and that is made of the fabric's proof of placement, or of
//!   buffers that a read brought back.
//! - Nothing is said while bytes may still land: a failure is told after a fence, or after the link is closed and has settled,
//!   and where neither can be had the connection is cut without a word.
//! - A token is looked at after the signature, its session after S3's own permission, the client's memory after both.
//! - A request without a token pays one pass over the names of its headers.

mod carried;
mod control;
mod decline;
mod get;
mod lender;
mod moved;
mod put;
mod transfer;

#[cfg(test)]
mod tests;

pub(crate) use carried::Carried;
pub(crate) use control::Control;
pub use lender::Direct;
pub(crate) use lender::Lender;
