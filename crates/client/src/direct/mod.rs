//! The direct path: payloads between a store and registered memory, without bodies.

mod attempt;
mod client;
mod connected;
mod http;
mod lane;
mod loans;
mod options;
mod region;
mod rpc;
mod transfer;
mod values;
mod window;

pub use client::Client;
pub use options::{Choice, Options, Path};
pub use region::Region;
pub use transfer::{Fallback, Transfer};
pub use values::{Condition, Get, Put};
pub use window::{Span, Window};
