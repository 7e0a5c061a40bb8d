//! Wire formats and sans-IO protocol machines: bytes and time in, bytes and decisions out.
//!
//! Made of one folder a protocol:
//! - [`s3`]: the grammar of the S3 REST interface, shared by the server's door and the client;
//! - [`direct`]: object calls as messages of a link;
//! - [`bearer`]: tokens made from an access key, for the gRPC door;
//! - [`hex`]: lower-case hexadecimal, which several protocols print;
//! - [`iwarp`]: remote memory access over TCP (MPA, DDP, RDMAP);
//! - [`nvme_tcp`]: PDUs of NVMe over TCP;
//! - [`md5`]: the digest behind S3's ETag, up to sixteen messages at a time;
//! - [`nvme`]: entries, commands and the controller of NVMe, Fabrics included;
//! - [`token`]: the tokens of S3 requests whose payload goes by remote memory access;
//! - [`vfio_user`]: PCI devices served over a Unix socket.
//!
//! It does not open sockets, read files, look at a clock or draw random numbers, and it starts no
//! thread: whoever drives it passes the time as an argument and moves the bytes.
//!
//! Invariants
//! - No input makes it panic, and every loop over input is bounded by a named limit.
//! - Memory used by a parser is bounded by a constant or by a small multiple of its input.
//! - Secrets are compared in constant time.
//!
//! Tested by published examples (known answers), by property tests against simple models, and by
//! replaying the seed corpora of `fuzz/corpus` through the same functions that the fuzzers call.
#![forbid(unsafe_code)]

pub mod bearer;
pub mod direct;
pub mod hex;
pub mod iwarp;
pub mod md5;
pub mod nvme;
pub mod nvme_tcp;
pub mod s3;
pub mod token;
pub mod vfio_user;
