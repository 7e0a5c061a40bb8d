//! The query of a request as a small list.

use std::borrow::Cow;

use crate::s3::{
    error::{ErrorCode, S3Error},
    percent,
};

/// The most parameters that a query may have.
pub const MAX_PARAMETERS: usize = 64;

/// Where a list goes on: keys that an answer has named, which need not be text.
const MARKERS: [&str; 3] = ["key-marker", "marker", "start-after"];

/// A decoded query, in the order sent. What has no escapes is borrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
}

impl<'a> Query<'a> {
    /// Parses a raw query (without `?`). `+` is a space; a parameter without `=` has an empty
    /// value.
    ///
    /// # Errors
    /// `InvalidURI` for a broken escape, what is not UTF-8 and no marker, or more than
    /// [`MAX_PARAMETERS`].
    pub fn parse(raw: &'a str) -> Result<Query<'a>, S3Error> {
        let mut pairs = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == MAX_PARAMETERS {
                return Err(ErrorCode::InvalidURI.into());
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = match decoded(name)? {
                Cow::Borrowed(_) => Cow::Borrowed(name),
                Cow::Owned(name) => Cow::Owned(text(&name)?.to_owned()),
            };
            let value = decoded(value)?;
            if !MARKERS.contains(&&*name) {
                text(&value)?;
            }
            pairs.push((name, value));
        }
        Ok(Query { pairs })
    }

    /// Name and value of every parameter, in the order sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.pairs.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The first value of a parameter that is text.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        text(self.bytes(name)?).ok()
    }

    /// The first value of a parameter as it is.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.pairs
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| &**value)
    }

    /// The first value of a parameter that is there and not empty.
    #[must_use]
    pub fn get_nonempty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Whether a parameter is there, with or without a value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.bytes(name).is_some()
    }

    /// A parameter as a number.
    ///
    /// # Errors
    /// `InvalidArgument` when it is there and is not one.
    pub fn number<N: std::str::FromStr>(&self, name: &'static str) -> Result<Option<N>, S3Error> {
        let Some(value) = self.get_nonempty(name) else {
            return Ok(None);
        };
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        match value.parse() {
            Ok(number) if digits => Ok(Some(number)),
            _ => Err(S3Error::with_message(
                ErrorCode::InvalidArgument,
                format!("Provided {name} not an integer or within integer range"),
            )
            .field("ArgumentName", name)
            .field("ArgumentValue", value)),
        }
    }
}

fn decoded(text: &str) -> Result<Cow<'_, [u8]>, S3Error> {
    Ok(percent::decode(text, true).ok_or(ErrorCode::InvalidURI)?)
}

fn text(bytes: &[u8]) -> Result<&str, S3Error> {
    std::str::from_utf8(bytes).map_err(|_| ErrorCode::InvalidURI.into())
}
