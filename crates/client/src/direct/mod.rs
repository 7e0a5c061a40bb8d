//! The direct path: payloads between a store and registered memory, without bodies.

mod attempt;
pub mod blocking;
mod client;
mod connected;
mod elements;
mod http;
mod kept;
mod keys;
mod lane;
mod lanes;
pub(crate) mod loans;
mod many;
mod needs;
mod options;
mod region;
mod rpc;
mod seat;
#[cfg(test)]
mod tests;
mod token;
mod token_session;
mod transfer;
mod values;
mod window;

pub(crate) use attempt::time_for;
pub use client::Client;
pub use keys::{Entry, Listing, Page, Stat};
pub use options::{Choice, Options, Path};
pub use region::Region;
pub(crate) use rpc::Rpc;
pub use token::{Request, Token};
pub use token_session::TokenSession;
pub use transfer::{Fallback, Transfer};
pub use values::{Condition, Get, Put};
pub use window::{Span, Window};
