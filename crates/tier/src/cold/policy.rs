//! Which values go to the cold tier by one rule, and whether reading brings them back.

use forebay_store::Meta;
use serde::{Deserialize, Serialize};

/// Smaller values cost more to ask for than to keep.
const LARGER_THAN: u64 = 64 << 10;

/// What happens when a value whose bytes are cold is read whole. (A range is always read from where it is.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recall {
    /// It comes back.
    #[default]
    Read,
    /// It stays where it is until somebody asks for it by name.
    Never,
}

/// Which values go: those for which all that is given holds. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Stored at least so long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Not read for so long. Reads that a cache above answers are not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_read_for_ms: Option<u64>,
    /// Of more bytes than this.
    #[serde(default = "larger_than")]
    pub larger_than: u64,
    /// Keys that begin so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// What reading does.
    #[serde(default)]
    pub recall: Recall,
}

fn larger_than() -> u64 {
    LARGER_THAN
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            after_ms: None,
            not_read_for_ms: None,
            larger_than: LARGER_THAN,
            prefix: String::new(),
            recall: Recall::default(),
        }
    }
}

impl Policy {
    /// Whether a value is one of those that go, as soon as it is old and unread enough.
    pub fn covers(&self, key: &[u8], meta: &Meta) -> bool {
        meta.size > self.larger_than && key.starts_with(self.prefix.as_bytes())
    }

    /// Whether a value goes that was read last at `read`, or is not known to have been read since then.
    pub fn takes(&self, key: &[u8], meta: &Meta, now: u64, read: u64) -> bool {
        let since = |time: u64| now.saturating_sub(time);
        self.covers(key, meta)
            && self.after_ms.is_none_or(|age| since(meta.modified) >= age)
            && self
                .not_read_for_ms
                .is_none_or(|idle| since(meta.modified.max(read)) >= idle)
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{Attributes, Etag, VersionId};

    use super::*;

    fn meta(size: u64, modified: u64) -> Meta {
        Meta {
            size,
            etag: Etag::of_value(1, size),
            modified,
            version: VersionId::NULL,
            crc64nvme: 1,
            expires: None,
            attributes: Attributes::EMPTY,
        }
    }

    #[test]
    fn all_that_is_given_holds() {
        let policy = Policy {
            after_ms: Some(100),
            not_read_for_ms: Some(50),
            larger_than: 10,
            prefix: "logs/".to_owned(),
            recall: Recall::Read,
        };
        let takes =
            |key: &str, size, now, read| policy.takes(key.as_bytes(), &meta(size, 1000), now, read);
        assert!(takes("logs/a", 11, 1100, 1050));
        assert!(!takes("log", 11, 1100, 1050), "another prefix");
        assert!(!takes("logs/a", 10, 1100, 1050), "no larger");
        assert!(!takes("logs/a", 11, 1099, 1000), "too young");
        assert!(!takes("logs/a", 11, 1100, 1051), "read lately");
        assert!(!takes("logs/a", 11, 900, 0), "from a clock that went back");
    }
}
