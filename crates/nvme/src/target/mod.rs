//! What a node shows to hosts, and how their commands are executed; the same for every transport.
//!
//! - [`Payload`]: the data of one command, which the transport moves.

mod payload;

pub use payload::Payload;
