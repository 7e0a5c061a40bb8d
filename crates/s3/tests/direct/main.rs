//! Requests with tokens, over links of this host, named by the test cases of docs/token.md section 8.
#![forbid(unsafe_code)]

#[path = "../door/support.rs"]
#[expect(dead_code, reason = "shared with the tests of bodies")]
mod support;

mod ahead;
mod clients;
mod closed;
mod gated;
mod links;
mod malformed;
mod replayed;
mod rig;
mod tenants;
mod timed;
mod valid;
