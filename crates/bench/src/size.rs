//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A length in bytes, written `4096`, `4KiB`, `1MiB` or `5GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .unwrap_or((text, 1));
        digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(unit))
            .map(Size)
            .ok_or_else(|| format!("{text:?} is not a size such as 4096, 4KiB or 1MiB"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit));
        match unit {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4097", 4097),
            ("4KiB", 4096),
            ("64MiB", 64 << 20),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        for text in ["", "KiB", "4kb", "-1", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
