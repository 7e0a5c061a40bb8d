//! Lower-case hexadecimal of digests and identifiers.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes the 64 lower-case hexadecimal digits of a 32-byte digest.
#[must_use]
pub fn encode32(bytes: &[u8; 32]) -> [u8; 64] {
    let mut text = [0u8; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// Writes any bytes as a lower-case hexadecimal string.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Reads exactly `2 * N` hexadecimal digits of either case; anything else is `None`.
#[must_use]
pub fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0u8; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

/// The value of one hexadecimal digit of either case.
#[must_use]
pub fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 9) as u8);
        let text = encode32(&bytes);
        assert_eq!(decode::<32>(&text), Some(bytes));
        assert_eq!(encode(&bytes).as_bytes(), text);
        assert_eq!(decode::<32>(&text[1..]), None);
        assert_eq!(decode::<32>(&[b'g'; 64]), None);
    }
}
