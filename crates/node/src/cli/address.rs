//! `fb://NAMESPACE/KEY`.

use std::fmt;
use std::str::FromStr;

use forebay_store::limits::KEY_BYTES_MAX;

use super::glob;
use crate::exit::{Exit, Failure, Outcome};

/// A namespace, or an object or prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The namespace's name.
    pub namespace: String,
    /// The key; empty for the namespace itself.
    pub key: String,
}

impl Address {
    /// What the keys begin with that it stands for: it is a `pattern`, or they begin as it is written.
    pub fn prefix(&self, pattern: bool) -> String {
        match pattern {
            true => glob::literal_prefix(&self.key),
            false => self.key.clone(),
        }
    }

    /// Refuses a key for which there was not `any`; a namespace may be empty.
    pub fn must_stand_for(&self, any: bool) -> Outcome {
        match any || self.key.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::NotFound,
                format_args!("nothing is named {self}"),
            )),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let rest = text
            .strip_prefix("fb://")
            .ok_or_else(|| format!("{text:?} is not an address: fb://NAMESPACE/KEY"))?;
        let (namespace, key) = rest.split_once('/').unwrap_or((rest, ""));
        if namespace.is_empty() {
            return Err(format!("{text:?} names no namespace: fb://NAMESPACE/KEY"));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(format!(
                "the key is too long: it has {} bytes, and may have {KEY_BYTES_MAX}",
                key.len()
            ));
        }
        Ok(Address {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fb://{}/{}", self.namespace, self.key)
    }
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `fb://...`
    Remote(Address),
    /// A path.
    Local(std::path::PathBuf),
    /// `-`: standard input or output.
    Standard,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "-" => Ok(Place::Standard),
            "" => Err("an empty path".to_owned()),
            _ if text.starts_with("fb://") => Ok(Place::Remote(text.parse()?)),
            _ if text.starts_with("s3://") => Err(format!(
                "objects are named fb://{}, whatever the door",
                &text["s3://".len()..]
            )),
            _ => Ok(Place::Local(text.into())),
        }
    }
}
