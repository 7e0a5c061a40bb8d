//! Fresh access keys and names.

use std::fs::File;
use std::io::{self, Read};

const ID_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Letters that no shell, URL or command line reads as something else: without `-`, that a secret which starts with it is
/// not taken for an option.
const SECRET_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";

/// An id of 20 characters (90 random bits) and a secret of 40 (240), from the kernel's generator.
pub(crate) fn generate() -> io::Result<(String, String)> {
    let mut random = [0; 58];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (id, secret) = random.split_at(18);
    let pick =
        |alphabet: &[u8], byte: &u8| char::from(alphabet[usize::from(*byte) % alphabet.len()]);
    // Both alphabets divide 256, so every character is equally likely.
    let id = id.iter().map(|byte| pick(ID_ALPHABET, byte));
    let secret = secret.iter().map(|byte| pick(SECRET_ALPHABET, byte));
    Ok(("FB".chars().chain(id).collect(), secret.collect()))
}

/// A random UUID (RFC 9562, version 4), in 32 hexadecimal digits.
pub(crate) fn uuid() -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_an_argument_and_never_an_option() {
        for _ in 0..1000 {
            let (id, secret) = generate().unwrap();
            assert_eq!((id.len(), secret.len()), (20, 40));
            assert!(!secret.contains('-'), "{secret}");
        }
    }
}
