//! Lengths of time as people write them: `90s`, `15m`, `12h`, `30d`.

const UNITS: [(char, u64); 4] = [('d', 24 * 3600), ('h', 3600), ('m', 60), ('s', 1)];

/// Reads one, in milliseconds.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn parse(text: &str) -> Result<u64, String> {
    let counted = UNITS.iter().find_map(|(unit, seconds)| {
        let count: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        count.checked_mul(seconds * 1000)
    });
    counted.ok_or_else(|| format!("{text:?} is not a time such as 90s, 15m, 12h or 30d"))
}

/// Milliseconds in the largest unit that says whole seconds exactly.
pub fn written(ms: u64) -> String {
    let seconds = ms / 1000;
    let exact = |(_, unit): &&(char, u64)| seconds > 0 && seconds.is_multiple_of(*unit);
    match UNITS.iter().find(exact) {
        Some((letter, unit)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        const DAY: u64 = 24 * 3_600_000;
        for (text, ms) in [
            ("0s", 0),
            ("90s", 90_000),
            ("12h", DAY / 2),
            ("30d", 30 * DAY),
        ] {
            assert_eq!(parse(text), Ok(ms));
            assert_eq!(written(ms), text);
        }
        for wrong in ["", "d", "30", "-1d", "1w", "99999999999999999d"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
