//! The direct door: object calls as messages of a link, payload placed in the caller's registered memory.
//!
//! # What it does not do
//! It opens no sockets and knows no fabric by name: whoever accepts a link hands it over with the session it belongs to.
#![forbid(unsafe_code)]
