//! Pre-shared keys of TLS below NVMe/TCP (NVMe TCP Transport 1.1, section 3.6.1): what both ends are given, and what they make of it.
//!
//! - [`TlsKey`]: a configured key in its interchange format, as nvme-cli writes it;
//! - [`Psk`]: what TLS is given for one host and one subsystem: an identity and the key derived for it;
//! - [`Identity`]: an identity that a host offers, taken apart;
//! - [`offered`]: the identities in a ClientHello, so that keys need be looked up only for these.
//!
//! Both versions of identities are known. Version 1 tells keys of the same names apart by a digest.
//!
//! # An older derivation
//! libnvme before 1.16 left the length bytes out of HKDF's labels and wrote the length itself in little-endian. Where a digest shows that
//! a host did so, its key is derived in that way ([`Psk::is_legacy`]).

mod hello;
mod identity;
mod key;
#[cfg(test)]
mod tests;

pub use hello::offered;
pub use identity::Identity;
pub use key::{Psk, TlsKey};
