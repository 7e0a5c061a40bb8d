//! What a store says of a value besides its bytes: names and values, told as S3's headers tell them.

use super::bytes::Reader;
use super::{ATTRIBUTES_BYTES_MAX, Full, Malformed};

/// Names, each once and in ascending order, with their values. That they are right in form is checked when they are read; which
/// names there are is for those who keep them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes<'a> {
    encoded: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// None at all.
    pub const NONE: Attributes<'static> = Attributes { encoded: &[] };

    /// Reads them.
    ///
    /// # Errors
    /// When they are cut off, longer than [`ATTRIBUTES_BYTES_MAX`], a name is missing or no text, or names are not in order.
    pub fn parse(encoded: &'a [u8]) -> Result<Attributes<'a>, Malformed> {
        if encoded.len() > ATTRIBUTES_BYTES_MAX {
            return Err(Malformed::TooLong("the list of attributes"));
        }
        let mut reader = Reader::new(encoded);
        let mut last = "";
        while !reader.rest().is_empty() {
            let (name, _) = pair(&mut reader)?;
            if name <= last {
                return Err(Malformed::Order);
            }
            last = name;
        }
        Ok(Attributes { encoded })
    }

    /// As they are written.
    #[must_use]
    pub const fn encoded(&self) -> &'a [u8] {
        self.encoded
    }

    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut reader = Reader::new(self.encoded);
        // They were read once before; at the end there is no name.
        std::iter::from_fn(move || pair(&mut reader).ok())
    }

    /// Writes pairs that come in ascending order of their names, in place of what `encoded` held.
    ///
    /// # Errors
    /// When they do not fit into a message.
    pub fn encode<'p>(
        encoded: &'a mut Vec<u8>,
        pairs: impl IntoIterator<Item = (&'p str, &'p [u8])>,
    ) -> Result<Attributes<'a>, Full> {
        encoded.clear();
        for (name, value) in pairs {
            let len = |bytes: &[u8]| u16::try_from(bytes.len()).map_err(|_| Full);
            encoded.extend_from_slice(&len(name.as_bytes())?.to_le_bytes());
            encoded.extend_from_slice(&len(value)?.to_le_bytes());
            encoded.extend_from_slice(name.as_bytes());
            encoded.extend_from_slice(value);
        }
        Attributes::parse(encoded).map_err(|_| Full)
    }
}

fn pair<'a>(reader: &mut Reader<'a>) -> Result<(&'a str, &'a [u8]), Malformed> {
    let name_len = usize::from(reader.u16()?);
    let value_len = usize::from(reader.u16()?);
    let name = reader.text(name_len, ATTRIBUTES_BYTES_MAX, "the name of an attribute")?;
    Ok((name, reader.take(value_len)?))
}
