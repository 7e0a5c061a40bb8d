//! Tag sets of objects and buckets: header form, XML form, limits.

use super::{
    error::{ErrorCode, S3Error},
    percent::{self, Slash},
    xml::{Scanner, XmlWriter},
};

/// The most tags of an object.
pub const MAX_OBJECT_TAGS: usize = 10;
/// The most tags of a bucket.
pub const MAX_BUCKET_TAGS: usize = 50;
/// The longest key of a tag, in characters.
pub const MAX_TAG_KEY: usize = 128;
/// The longest value of a tag, in characters.
pub const MAX_TAG_VALUE: usize = 256;

/// A checked set of tags: keys differ, lengths and characters are legal. In the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(Vec<(String, String)>);

impl Tags {
    /// Checks a set of tags of which there may be `max`.
    ///
    /// # Errors
    /// `InvalidTag`; `BadRequest` when there are too many, as S3 names it.
    pub fn new(pairs: Vec<(String, String)>, max: usize) -> Result<Tags, S3Error> {
        if pairs.len() > max {
            return Err(S3Error::with_message(
                ErrorCode::BadRequest,
                format!("Object tags cannot be greater than {max}"),
            ));
        }
        for (index, (key, value)) in pairs.iter().enumerate() {
            check(key, value)?;
            if pairs[..index].iter().any(|(other, _)| other == key) {
                return Err(invalid("Cannot provide multiple Tags with the same key"));
            }
        }
        Ok(Tags(pairs))
    }

    /// Parses `x-amz-tagging`: `key=value&key=value`, percent-encoded.
    ///
    /// # Errors
    /// As [`Tags::new`]; `InvalidArgument` for a broken encoding.
    pub fn parse_header(header: &str) -> Result<Tags, S3Error> {
        let broken = || {
            S3Error::with_message(
                ErrorCode::InvalidArgument,
                "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query \
                 parameters without tag name duplicates.",
            )
        };
        let decoded = |text: &str| {
            percent::decode(text, true)
                .and_then(|bytes| String::from_utf8(bytes.into_owned()).ok())
                .ok_or_else(broken)
        };
        let mut pairs = Vec::new();
        for pair in header.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() > MAX_OBJECT_TAGS {
                break;
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decoded(key)?, decoded(value)?));
        }
        Tags::new(pairs, MAX_OBJECT_TAGS)
    }

    /// The form of `x-amz-tagging`; also a compact form to keep beside an object.
    #[must_use]
    pub fn to_header(&self) -> String {
        let mut header = String::new();
        for (key, value) in &self.0 {
            if !header.is_empty() {
                header.push('&');
            }
            percent::encode_into(&mut header, key.as_bytes(), Slash::Encode);
            header.push('=');
            percent::encode_into(&mut header, value.as_bytes(), Slash::Encode);
        }
        header
    }

    /// Reads the body of `PutObjectTagging` or `PutBucketTagging`.
    ///
    /// # Errors
    /// `MalformedXML`, or as [`Tags::new`].
    pub fn from_xml(body: &[u8], max: usize) -> Result<Tags, S3Error> {
        let mut scanner = Scanner::root(body, "Tagging")?;
        let mut pairs = None;
        while let Some(name) = scanner.child()? {
            if name != "TagSet" || pairs.is_some() {
                return Err(ErrorCode::MalformedXML.into());
            }
            pairs = Some(read_set(&mut scanner, max)?);
        }
        scanner.finish()?;
        Tags::new(pairs.ok_or(ErrorCode::MalformedXML)?, max)
    }

    /// The reply to `GetObjectTagging` or `GetBucketTagging`.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut writer = XmlWriter::new("Tagging");
        writer.open("TagSet");
        for (key, value) in &self.0 {
            write_tag(&mut writer, key, value);
        }
        writer.close("TagSet");
        writer.finish("Tagging")
    }

    /// The value of a tag.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| value)
    }

    /// All tags in the order given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads the `Tag`s of an element that was just entered. They are checked by [`Tags::new`].
pub(super) fn read_set(
    scanner: &mut Scanner<'_>,
    max: usize,
) -> Result<Vec<(String, String)>, S3Error> {
    let mut set = Vec::new();
    while let Some(name) = scanner.child()? {
        // One more than the limit is enough to see that it is passed.
        if name != "Tag" || set.len() > max {
            return Err(ErrorCode::MalformedXML.into());
        }
        set.push(read_tag(scanner)?);
    }
    Ok(set)
}

/// Reads one `Tag` that was just entered.
pub(super) fn read_tag(scanner: &mut Scanner<'_>) -> Result<(String, String), S3Error> {
    let (mut key, mut value) = (None, None);
    while let Some(name) = scanner.child()? {
        let slot = match name {
            "Key" => &mut key,
            "Value" => &mut value,
            _ => return Err(ErrorCode::MalformedXML.into()),
        };
        if slot.replace(scanner.text()?).is_some() {
            return Err(ErrorCode::MalformedXML.into());
        }
    }
    match (key, value) {
        (Some(key), Some(value)) => Ok((key, value)),
        _ => Err(ErrorCode::MalformedXML.into()),
    }
}

pub(super) fn write_tag(writer: &mut XmlWriter, key: &str, value: &str) {
    writer.open("Tag");
    writer.text("Key", key);
    writer.text("Value", value);
    writer.close("Tag");
}

fn invalid(message: &str) -> S3Error {
    S3Error::with_message(ErrorCode::InvalidTag, message)
}

/// Checks one tag: lengths, and letters, digits, spaces and `_ . : / = + - @` alone.
pub(super) fn check(key: &str, value: &str) -> Result<(), S3Error> {
    let legal = |text: &str| {
        text.chars().all(|c| {
            c.is_alphanumeric()
                || c == ' '
                || matches!(c, '_' | '.' | ':' | '/' | '=' | '+' | '-' | '@')
        })
    };
    if key.is_empty() || key.chars().count() > MAX_TAG_KEY || !legal(key) {
        return Err(invalid("The TagKey you have provided is invalid"));
    }
    if value.chars().count() > MAX_TAG_VALUE || !legal(value) {
        return Err(invalid("The TagValue you have provided is invalid"));
    }
    if key.starts_with("aws:") {
        return Err(invalid("System tags cannot be added/updated by requester"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(outcome: Result<Tags, S3Error>) -> Option<ErrorCode> {
        outcome.err().map(|error| error.code)
    }

    #[test]
    fn limits_of_a_set() {
        let many = |count: usize| {
            (0..count)
                .map(|i| format!("k{i}=v"))
                .collect::<Vec<_>>()
                .join("&")
        };
        assert_eq!(Tags::parse_header(&many(10)).map(|tags| tags.len()), Ok(10));
        assert_eq!(
            code(Tags::parse_header(&many(11))),
            Some(ErrorCode::BadRequest)
        );
        let key = |length: usize| format!("{}=v", "k".repeat(length));
        let value = |length: usize| format!("k={}", "v".repeat(length));
        assert!(Tags::parse_header(&key(128)).is_ok() && Tags::parse_header(&value(256)).is_ok());
        for wrong in [
            key(129),
            value(257),
            "a=1&a=2".into(),
            "=v".into(),
            "aws:x=1".into(),
            "a=%0A".into(),
        ] {
            assert_eq!(
                code(Tags::parse_header(&wrong)),
                Some(ErrorCode::InvalidTag),
                "{wrong}"
            );
        }
        assert_eq!(
            code(Tags::parse_header("a=%ff")),
            Some(ErrorCode::InvalidArgument)
        );
        assert!(Tags::parse_header("").is_ok_and(|tags| tags.is_empty()));
    }

    #[test]
    fn xml_that_is_no_tag_set() {
        for wrong in [
            "<Tagging/>",
            "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>",
            "<Tagging><TagSet/><TagSet/></Tagging>",
            "<Tagging><TagSet><Tag><Key>a</Key><Key>a</Key><Value/></Tag></TagSet></Tagging>",
        ] {
            assert_eq!(
                code(Tags::from_xml(wrong.as_bytes(), 10)),
                Some(ErrorCode::MalformedXML)
            );
        }
        assert!(Tags::from_xml(b"<Tagging><TagSet/></Tagging>", 10).is_ok());
    }

    proptest! {
        #[test]
        fn both_forms_round_trip(values in proptest::collection::vec("[a-zA-Z0-9 _.:/=+@\u{e9}-]{0,20}", 0..10)) {
            let pairs = values.into_iter().enumerate().map(|(i, v)| (format!("k {i}"), v)).collect();
            let tags = Tags::new(pairs, MAX_OBJECT_TAGS).expect("legal");
            prop_assert_eq!(Tags::parse_header(&tags.to_header()), Ok(tags.clone()));
            prop_assert_eq!(Tags::from_xml(tags.to_xml().as_bytes(), 10), Ok(tags));
        }
    }
}
