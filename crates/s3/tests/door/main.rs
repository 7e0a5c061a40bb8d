//! The S3 door as clients meet it.
#![forbid(unsafe_code)]

mod auth;
mod buckets;
mod execute;
mod hostile;
mod multipart;
mod objects;
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod support;
mod versions;
