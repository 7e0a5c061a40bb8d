//! Named byte strings kept with a value or namespace, opaque to stores.

use bytes::Bytes;

use crate::limits::ATTRIBUTES_BYTES_MAX;

/// An encoded, immutable set of named byte strings in ascending order of name. Cloning is cheap.
///
/// Encoding, little-endian, repeated: name length `u16`, value length `u32`, name, value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    encoded: Bytes,
}

impl Attributes {
    /// No attributes.
    pub const EMPTY: Attributes = Attributes {
        encoded: Bytes::new(),
    };

    /// Starts from nothing.
    pub fn builder() -> AttributesBuilder {
        AttributesBuilder::default()
    }

    /// Starts from these.
    pub fn to_builder(&self) -> AttributesBuilder {
        AttributesBuilder {
            pairs: self
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_vec()))
                .collect(),
        }
    }

    /// Adopts an encoding after checking it; `None` when it is not one.
    pub fn decode(encoded: Bytes) -> Option<Attributes> {
        if encoded.len() > ATTRIBUTES_BYTES_MAX {
            return None;
        }
        let mut rest = &encoded[..];
        let mut last: Option<&str> = None;
        while !rest.is_empty() {
            let (name, _, after) = split(rest)?;
            if last.is_some_and(|last| last >= name) {
                return None;
            }
            last = Some(name);
            rest = after;
        }
        Some(Attributes { encoded })
    }

    /// The encoding.
    pub fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(candidate, _)| *candidate == name)
            .map(|(_, value)| value)
    }

    /// The value of `name`, when it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All pairs in ascending order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.encoded[..];
        std::iter::from_fn(move || {
            let (name, value, after) = split(rest)?;
            rest = after;
            Some((name, value))
        })
    }
}

/// Collects pairs for [`Attributes`]; a name set twice keeps the last value.
#[derive(Debug, Clone, Default)]
pub struct AttributesBuilder {
    pairs: Vec<(String, Vec<u8>)>,
}

impl AttributesBuilder {
    /// Sets `name`, which has at most 65535 bytes.
    pub fn set(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.insert(name, value);
        self
    }

    /// Sets `name` in place.
    pub fn insert(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.remove(name);
        self.pairs.push((name.to_owned(), value.as_ref().to_vec()));
    }

    /// Removes `name`.
    pub fn remove(&mut self, name: &str) {
        self.pairs.retain(|(present, _)| present != name);
    }

    /// The set; `None` when it is larger than [`ATTRIBUTES_BYTES_MAX`] or a name is too long.
    pub fn build(mut self) -> Option<Attributes> {
        self.pairs.sort();
        let mut encoded = Vec::new();
        for (name, value) in &self.pairs {
            encoded.extend_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
            encoded.extend_from_slice(&u32::try_from(value.len()).ok()?.to_le_bytes());
            encoded.extend_from_slice(name.as_bytes());
            encoded.extend_from_slice(value);
        }
        (encoded.len() <= ATTRIBUTES_BYTES_MAX).then(|| Attributes {
            encoded: encoded.into(),
        })
    }
}

fn split(encoded: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (name_len, rest) = encoded.split_first_chunk::<2>()?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*name_len)))?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((std::str::from_utf8(name).ok()?, value, rest))
}
