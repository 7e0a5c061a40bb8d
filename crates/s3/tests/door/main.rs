//! The S3 door as clients meet it.
#![forbid(unsafe_code)]

mod auth;
mod between;
mod buckets;
mod execute;
#[path = "../direct/gated.rs"]
mod gated;
mod hostile;
mod multipart;
mod objects;
mod policies;
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod support;
mod versions;
