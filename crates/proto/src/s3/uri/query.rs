//! The query of a request as a small list.

use std::borrow::Cow;

use crate::s3::{
    error::{ErrorCode, S3Error},
    percent,
};

/// The most parameters that a query may have.
pub const MAX_PARAMETERS: usize = 64;

/// A decoded query, in the order sent. Text without escapes is borrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Parses a raw query (without `?`). `+` is a space; a parameter without `=` has an empty
    /// value.
    ///
    /// # Errors
    /// `InvalidURI` for a broken escape, text that is not UTF-8, or more than
    /// [`MAX_PARAMETERS`].
    pub fn parse(raw: &'a str) -> Result<Query<'a>, S3Error> {
        let mut pairs = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == MAX_PARAMETERS {
                return Err(ErrorCode::InvalidURI.into());
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decoded(name)?, decoded(value)?));
        }
        Ok(Query { pairs })
    }

    /// The first value of a parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// The first value of a parameter that is there and not empty.
    #[must_use]
    pub fn get_nonempty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Whether a parameter is there, with or without a value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
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

    /// All parameters in the order sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, &**value))
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, S3Error> {
    match percent::decode(text, true).ok_or(ErrorCode::InvalidURI)? {
        Cow::Borrowed(_) => Ok(Cow::Borrowed(text)),
        Cow::Owned(bytes) => String::from_utf8(bytes)
            .map(Cow::Owned)
            .map_err(|_| ErrorCode::InvalidURI.into()),
    }
}
