//! DH-HMAC-CHAP (Base 2.0, section 8.13.5): each side proves to hold a secret without showing it.
//!
//! - [`Secret`]: what is held, as nvme-cli writes it;
//! - [`Authentication`]: what a controller demands, the state of one queue ([`Verifier`]), and what takes long ([`Authenticating`]);
//! - [`Prover`]: the host's side.
//!
//! The host negotiates, the controller challenges, the host replies (and may challenge in turn), the controller says success (and
//! replies), the host confirms. A host sends with Authentication Send and fetches with Authentication Receive.
//!
//! With a Diffie-Hellman group what is proved is bound to what only the two sides know: whoever records
//! it cannot test guesses of the secret against it. A controller takes the offered group that costs it least, and the null group, which
//! has nothing of this, from a host that offers no other.

use std::borrow::Cow;

mod group;
mod message;
mod primes;
mod prover;
mod secret;
#[cfg(test)]
mod tests;
mod verifier;

pub use message::Failure;
pub use prover::Prover;
pub use secret::{Hash, Secret};
pub(in crate::nvme) use verifier::Names;
pub use verifier::{Authenticating, Authentication, Verifier};

/// The longest message that either side sends.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Which proof is computed: whose, and over which names.
struct Proof<'a> {
    hash: Hash,
    key: &'a [u8],
    challenge: &'a [u8],
    /// What both sides know by a Diffie-Hellman exchange.
    shared: Option<&'a [u8]>,
    sequence: u32,
    transaction: u16,
    role: &'static str,
    own_nqn: &'a str,
    other_nqn: &'a str,
}

const ROLE_HOST: &str = "HostHost";
const ROLE_CONTROLLER: &str = "Controller";
/// SC_C: no secure channel follows.
const NO_SECURE_CHANNEL: u8 = 0;

impl Proof<'_> {
    fn compute(&self) -> Vec<u8> {
        let challenge = match self.shared {
            None => Cow::Borrowed(self.challenge),
            Some(shared) => {
                let key = self.hash.digest(shared);
                Cow::Owned(self.hash.hmac(&key, &[self.challenge]))
            }
        };
        let pieces: [&[u8]; 8] = [
            &challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[NO_SECURE_CHANNEL],
            self.role.as_bytes(),
            self.own_nqn.as_bytes(),
            &[0],
            self.other_nqn.as_bytes(),
        ];
        self.hash.hmac(self.key, &pieces)
    }
}
