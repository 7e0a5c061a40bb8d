//! The direct door: object calls as messages of a link, payload placed in the caller's registered memory.
//!
//! - [`Door`]: one a server; serves links, counts what they do, tells which are alive.
//! - `serve`: the loop of one link. Requests run side by side in `slots` that are used again and again: a request costs no task
//!   and, when its value is at hand, no allocation.
//! - `retrieve`, `store`, `keys`, `list`: what the operations do. `status`: what every failure is called on the wire.
//! - `messages`: what its messages in progress take of the memory that its tenant may have for them.
//! - `turn`: how much is done for one link before the others of its thread.
//!
//! The messages are [`forebay_proto::direct`]; `docs/direct.md` is their specification.
//!
//! # What it does not do
//! It opens no sockets and makes no links: whoever accepts a link hands it over with the session it belongs to.
//!
//! # Invariants
//! - A reply that says that bytes were placed is handed to the link after the writes that placed them, and a link keeps that order.
//! - A namespace of another tenant is answered as one that does not exist; so is a region of another session, which a link cannot reach.
//! - What was begun for a link is finished or given up before [`Door::serve`] returns: nothing lands in its client's memory later.
//! - Requests of a link in progress are bounded, and the bytes of their messages for each tenant; further ones stay in the link.
//! - So is what a tenant's requests hold that waits for its clients, over all of its links ([`forebay_store::waiting`]);
//!   what exceeds it waits, and holds nothing.
//!
//! # Tests
//! Random operations through the door and straight on a store agree, over a link inside the process and over every real one; hostile
//! clients; ends of sessions in the middle of transfers.
#![forbid(unsafe_code)]

mod call;
mod door;
mod keys;
mod list;
mod live;
mod messages;
mod metrics;
mod retrieve;
mod serve;
mod status;
mod store;
mod turn;

pub use door::{Config, Door};
pub use live::LiveLink;
pub use metrics::Metrics;
