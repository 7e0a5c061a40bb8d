//! The S3 door as clients meet it.
#![forbid(unsafe_code)]

mod auth;
mod buckets;
mod hostile;
mod multipart;
mod objects;
mod support;
mod versions;
