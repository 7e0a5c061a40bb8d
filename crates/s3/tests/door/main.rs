//! The S3 door as clients meet it.
#![forbid(unsafe_code)]

mod answers;
mod auth;
mod between;
mod buckets;
mod copies;
mod encryption;
mod execute;
#[path = "../direct/gated.rs"]
mod gated;
mod hostile;
mod hosts;
mod lifecycle;
mod logged;
mod multipart;
mod objects;
mod policies;
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod slices;
mod slow;
mod support;
mod unserved;
mod versions;
