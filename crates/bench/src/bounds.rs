//! What may be asked for: enough for any machine, and nothing that overflows.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Size};

/// The most operations in flight, threads, links, values of a batch.
const COUNT_MAX: usize = 1 << 20;
/// The most values to work on: as many as the numbers in keys have digits for.
const OBJECTS_MAX: u64 = 10_000_000_000;
/// The longest time that may be asked for, in seconds: more than eleven days.
const SECONDS_MAX: f64 = 1e6;
/// The largest size of value, in bytes: one of them, or each that is in flight, is held in memory.
pub(crate) const SIZE_MAX: u64 = 1 << 30;

/// A length of time, given in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        let seconds = text.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX);
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Seconds)
            .ok_or_else(|| format!("{text:?} is not a number of seconds from 0 to {SECONDS_MAX}"))
    }
}

/// A length of time in which something can be measured.
pub(crate) fn window(text: &str) -> Result<Seconds, String> {
    match text.parse()? {
        Seconds(Duration::ZERO) => Err("nothing is measured in no time".to_owned()),
        seconds => Ok(seconds),
    }
}

/// How many at once.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    number(text, COUNT_MAX)
}

/// How many to work on.
pub(crate) fn objects(text: &str) -> Result<u64, String> {
    number(text, OBJECTS_MAX)
}

fn number<T: FromStr + From<u8> + PartialOrd + Display>(text: &str, most: T) -> Result<T, String> {
    let number = text.parse().ok();
    number
        .filter(|number| *number >= T::from(1) && *number <= most)
        .ok_or_else(|| format!("{text:?} is not a number from 1 to {most}"))
}

/// Refuses sizes of values that a generator does not make.
pub(crate) fn sizes(sizes: &[Size], made: RangeInclusive<u64>) -> Result<(), Error> {
    match sizes.iter().all(|size| made.contains(&size.0)) {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "values have {} to {} bytes",
            Size(*made.start()),
            Size(*made.end())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_measured_is_asked_for() {
        assert_eq!(window("0.5"), Ok(Seconds(Duration::from_millis(500))));
        assert_eq!("0".parse(), Ok(Seconds(Duration::ZERO)));
        for text in ["0", "-1", "nan", "inf", "1e19", "", "5s"] {
            assert!(window(text).is_err(), "{text}");
        }
        assert_eq!((count("1"), objects("3")), (Ok(1), Ok(3)));
        for text in ["0", "-1", "17592186044416", "18446744073709551616"] {
            assert!(count(text).is_err() && objects(text).is_err(), "{text}");
        }
        let given = [Size(1), Size(1 << 30)];
        assert!(sizes(&given, 1..=SIZE_MAX).is_ok());
        assert!(sizes(&given, 1..=SIZE_MAX - 1).is_err());
    }
}
