//! DH-HMAC-CHAP (Base 2.0, section 8.13.5): each side proves to hold a secret without showing it.
//!
//! - [`Secret`]: what is held, as nvme-cli writes it;
//!
//! Only the null Diffie-Hellman group is spoken: the proof holds, but whoever records it can test guesses of the secret against it.
//! Secrets are random keys of at least 32 bytes, which nobody guesses.

mod secret;

pub use secret::{Hash, Secret};
