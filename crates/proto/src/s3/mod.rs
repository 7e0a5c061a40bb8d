//! The grammar of the S3 REST interface: signatures, body framing, checksums, XML, names, dates.
//!
//! Every parser takes `&str` or `&[u8]` and returns a typed error whose
//! [`error::ErrorCode`] is what S3 would answer. Times are Unix seconds (`i64`) or milliseconds
//! (`u64`) and always come from the caller.

pub mod checksum;
pub mod chunked;
pub mod cors;
pub mod date;
pub mod error;
pub mod kept;
pub mod lifecycle;
pub mod percent;
pub mod policy;
pub mod sigv4;
pub mod tags;
pub mod uri;
pub mod xml;
