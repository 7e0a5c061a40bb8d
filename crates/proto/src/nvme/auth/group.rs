//! Diffie-Hellman: what both sides know after each has shown the other a public value, and who listens does not.

use std::fmt;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};

use super::primes;

/// Bits of a private exponent: more than twice the strength of the largest group (RFC 7919, section 5.2).
const EXPONENT_BITS: u32 = 512;

/// Which group (DH-HMAC-CHAP Diffie-Hellman Group Identifier).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Group {
    /// None: no values are shown.
    Null = 0,
    Ffdhe2048 = 1,
    Ffdhe3072 = 2,
    Ffdhe4096 = 3,
    Ffdhe6144 = 4,
    Ffdhe8192 = 5,
}

impl Group {
    /// All of them, the least work first.
    pub(super) const ALL: [Group; 6] = [
        Group::Null,
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
    ];

    /// `None` for one that does not exist.
    pub(super) fn from_wire(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| *group as u8 == id)
    }

    /// Bytes of a public value, and of what both sides know.
    pub(super) fn bytes(self) -> usize {
        self.prime().len() / 2
    }

    fn prime(self) -> &'static str {
        match self {
            Group::Null => "",
            Group::Ffdhe2048 => primes::FFDHE2048,
            Group::Ffdhe3072 => primes::FFDHE3072,
            Group::Ffdhe4096 => primes::FFDHE4096,
            Group::Ffdhe6144 => primes::FFDHE6144,
            Group::Ffdhe8192 => primes::FFDHE8192,
        }
    }
}

/// One side of an exchange.
pub(super) struct Exchange {
    group: Group,
    prime: BoxedMontyParams,
    exponent: BoxedUint,
}

impl Exchange {
    /// Draws a private exponent; `None` without a group.
    pub(super) fn new(group: Group, random: fn(&mut [u8])) -> Option<Exchange> {
        if group == Group::Null {
            return None;
        }
        let bits = group.bytes() as u32 * 8;
        let prime =
            BoxedUint::from_str_radix_with_precision_vartime(group.prime(), 16, bits).ok()?;
        let mut exponent = [0; EXPONENT_BITS as usize / 8];
        random(&mut exponent);
        Some(Exchange {
            group,
            prime: BoxedMontyParams::new_vartime(Odd::new(prime).into_option()?),
            exponent: BoxedUint::from_be_slice(&exponent, EXPONENT_BITS).ok()?,
        })
    }

    /// What is shown: the generator to the private exponent.
    pub(super) fn public(&self) -> Vec<u8> {
        self.power(&BoxedUint::from(2u64))
    }

    /// What both sides know at the end of an exchange, if there is one: without a group nothing is shown. As [`agree`](Self::agree).
    pub(super) fn end(exchange: Option<&Exchange>, theirs: &[u8]) -> Option<Option<Vec<u8>>> {
        match exchange {
            Some(exchange) => exchange.agree(theirs).map(Some),
            None => theirs.is_empty().then_some(None),
        }
    }

    /// What both sides know now; `None` when the other's public value is none of this group's, or one that gives the secret away
    /// (RFC 7919, section 5.1).
    pub(super) fn agree(&self, theirs: &[u8]) -> Option<Vec<u8>> {
        if theirs.len() != self.group.bytes() {
            return None;
        }
        let theirs = BoxedUint::from_be_slice(theirs, self.prime.bits_precision()).ok()?;
        let one = BoxedUint::one();
        let largest = self.prime.modulus().wrapping_sub(&one);
        (theirs > one && theirs < largest).then(|| self.power(&theirs))
    }

    fn power(&self, base: &BoxedUint) -> Vec<u8> {
        let base = base.resize(self.prime.bits_precision());
        let base = BoxedMontyForm::new(base, &self.prime);
        let power = base.pow_bounded_exp(&self.exponent, EXPONENT_BITS);
        power.retrieve().to_be_bytes().into_vec()
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({:?})", self.group)
    }
}
