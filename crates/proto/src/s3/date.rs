//! Dates as HTTP and S3 write them: RFC 9110 section 5.6.7 and ISO 8601, in UTC only.
//!
//! A time is Unix seconds (`i64`, may be negative) or milliseconds (`u64`). Years 0 to 9999.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAY_S: i64 = 86_400;
/// 9999-12-31T23:59:59Z: the last second that four digits of year can write.
const LAST_S: i64 = 253_402_300_799;
/// 0000-01-01T00:00:00Z.
const FIRST_S: i64 = -62_167_219_200;

/// A calendar date and time of day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar.
///
/// Counts in 400-year eras that start on 1 March, so that the leap day is an era's last.
const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

const fn month_length(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

impl Civil {
    fn from_unix_s(unix_s: i64) -> Civil {
        let unix_s = unix_s.clamp(FIRST_S, LAST_S);
        let days = unix_s.div_euclid(DAY_S) + 719_468;
        let rest = unix_s.rem_euclid(DAY_S);
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 {
            shifted + 3
        } else {
            shifted - 9
        };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Civil {
            year,
            month,
            day,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    /// Unix seconds, or `None` when a field is out of its range. A leap second counts as the
    /// second after it, as POSIX does; only that of the year 9999 has none and is refused.
    fn unix_s(self) -> Option<i64> {
        let valid = (0..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=month_length(self.year, self.month)).contains(&self.day)
            && (0..=23).contains(&self.hour)
            && (0..=59).contains(&self.minute)
            && (0..=60).contains(&self.second);
        valid
            .then(|| {
                days_of(self.year, self.month, self.day) * DAY_S
                    + self.hour * 3600
                    + self.minute * 60
                    + self.second
            })
            .filter(|unix_s| *unix_s <= LAST_S)
    }
}

/// Reads `count` decimal digits at `at`; nothing else is accepted in their place.
fn digits(text: &[u8], at: usize, count: usize) -> Option<i64> {
    let field = text.get(at..at.checked_add(count)?)?;
    field.iter().try_fold(0i64, |value, byte| {
        byte.is_ascii_digit()
            .then(|| value * 10 + i64::from(byte - b'0'))
    })
}

fn month_at(text: &[u8], at: usize) -> Option<i64> {
    let name = text.get(at..at.checked_add(3)?)?;
    (1i64..)
        .zip(MONTHS)
        .find(|(_, month)| month.as_bytes() == name)
        .map(|(number, _)| number)
}

fn expect(text: &[u8], at: usize, literal: &[u8]) -> Option<()> {
    (text.get(at..at.checked_add(literal.len())?)? == literal).then_some(())
}

/// `HH:MM:SS` at `at`.
fn clock(text: &[u8], at: usize) -> Option<(i64, i64, i64)> {
    expect(text, at + 2, b":")?;
    expect(text, at + 5, b":")?;
    Some((
        digits(text, at, 2)?,
        digits(text, at + 3, 2)?,
        digits(text, at + 6, 2)?,
    ))
}

/// Parses an HTTP date in any of the three forms of RFC 9110 section 5.6.7 (IMF-fixdate,
/// RFC 850, asctime) to Unix seconds. The name of the day is not checked.
#[must_use]
pub fn parse_http_date(text: &str) -> Option<i64> {
    let text = text.trim_ascii().as_bytes();
    if let Some(comma) = text.iter().take(10).position(|byte| *byte == b',') {
        expect(text, comma + 1, b" ")?;
        let at = comma + 2;
        if text.get(at + 2) == Some(&b'-') {
            return rfc850(text, at);
        }
        // IMF-fixdate: "Sun, 06 Nov 1994 08:49:37 GMT"
        (text.len() == at + 24).then_some(())?;
        expect(text, at + 2, b" ")?;
        expect(text, at + 6, b" ")?;
        expect(text, at + 11, b" ")?;
        expect(text, at + 20, b" GMT")?;
        let (hour, minute, second) = clock(text, at + 12)?;
        let year = digits(text, at + 7, 4)?;
        return Civil {
            year,
            month: month_at(text, at + 3)?,
            day: digits(text, at, 2)?,
            hour,
            minute,
            second,
        }
        .unix_s();
    }
    // asctime: "Sun Nov  6 08:49:37 1994"
    (text.len() == 24).then_some(())?;
    expect(text, 3, b" ")?;
    expect(text, 7, b" ")?;
    expect(text, 10, b" ")?;
    expect(text, 19, b" ")?;
    let day = if text.get(8) == Some(&b' ') {
        digits(text, 9, 1)?
    } else {
        digits(text, 8, 2)?
    };
    let (hour, minute, second) = clock(text, 11)?;
    let year = digits(text, 20, 4)?;
    Civil {
        year,
        month: month_at(text, 4)?,
        day,
        hour,
        minute,
        second,
    }
    .unix_s()
}

/// RFC 850: "Sunday, 06-Nov-94 08:49:37 GMT". Two digits of year mean 1970 to 2069, since no
/// clock may be asked which century is nearer.
fn rfc850(text: &[u8], at: usize) -> Option<i64> {
    (text.len() == at + 22).then_some(())?;
    expect(text, at + 6, b"-")?;
    expect(text, at + 9, b" ")?;
    expect(text, at + 18, b" GMT")?;
    let short = digits(text, at + 7, 2)?;
    let (hour, minute, second) = clock(text, at + 10)?;
    Civil {
        year: if short >= 70 {
            1900 + short
        } else {
            2000 + short
        },
        month: month_at(text, at + 3)?,
        day: digits(text, at, 2)?,
        hour,
        minute,
        second,
    }
    .unix_s()
}

/// Formats an IMF-fixdate: `Sun, 06 Nov 1994 08:49:37 GMT`.
#[must_use]
pub fn http_date(unix_s: i64) -> String {
    let date = Civil::from_unix_s(unix_s);
    let day_name = usize::try_from(
        unix_s
            .clamp(FIRST_S, LAST_S)
            .div_euclid(DAY_S)
            .rem_euclid(7),
    )
    .map_or("Thu", |day| DAYS[day]);
    let month = usize::try_from(date.month - 1).map_or("Jan", |month| MONTHS[month]);
    let mut text = String::with_capacity(29);
    text.push_str(day_name);
    text.push_str(", ");
    push(&mut text, date.day, 2);
    text.push(' ');
    text.push_str(month);
    text.push(' ');
    push(&mut text, date.year, 4);
    text.push(' ');
    push_clock(&mut text, &date);
    text.push_str(" GMT");
    text
}

/// Formats S3's ISO 8601: `2009-10-12T17:50:30.000Z`.
#[must_use]
pub fn iso8601(unix_ms: u64) -> String {
    let mut text = String::with_capacity(24);
    push_iso8601(&mut text, unix_ms);
    text
}

/// Appends what [`iso8601`] returns.
pub fn push_iso8601(text: &mut String, unix_ms: u64) {
    let date = Civil::from_unix_s(i64::try_from(unix_ms / 1000).unwrap_or(LAST_S));
    push(text, date.year, 4);
    text.push('-');
    push(text, date.month, 2);
    text.push('-');
    push(text, date.day, 2);
    text.push('T');
    push_clock(text, &date);
    text.push('.');
    push(text, i64::try_from(unix_ms % 1000).unwrap_or(0), 3);
    text.push('Z');
}

/// Parses ISO 8601 in UTC to Unix seconds: a date alone, or a date and a time with `Z` and an
/// optional fraction of a second (dropped). `2009-10-12`, `2009-10-12T17:50:30.000Z`.
#[must_use]
pub fn parse_iso8601(text: &str) -> Option<i64> {
    let text = text.trim_ascii().as_bytes();
    expect(text, 4, b"-")?;
    expect(text, 7, b"-")?;
    let mut date = Civil {
        year: digits(text, 0, 4)?,
        month: digits(text, 5, 2)?,
        day: digits(text, 8, 2)?,
        hour: 0,
        minute: 0,
        second: 0,
    };
    if text.len() > 10 {
        expect(text, 10, b"T")?;
        (date.hour, date.minute, date.second) = clock(text, 11)?;
        let mut rest = text.get(19..)?;
        if let Some(fraction) = rest.strip_prefix(b".") {
            let length = fraction
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            (1..=9).contains(&length).then_some(())?;
            rest = &fraction[length..];
        }
        (rest == b"Z" || rest == b"+00:00").then_some(())?;
    }
    date.unix_s()
}

/// Parses the basic form that signatures use, `20130524T000000Z`, to Unix seconds.
#[must_use]
pub fn parse_basic(text: &[u8]) -> Option<i64> {
    (text.len() == 16).then_some(())?;
    expect(text, 8, b"T")?;
    expect(text, 15, b"Z")?;
    Civil {
        year: digits(text, 0, 4)?,
        month: digits(text, 4, 2)?,
        day: digits(text, 6, 2)?,
        hour: digits(text, 9, 2)?,
        minute: digits(text, 11, 2)?,
        second: digits(text, 13, 2)?,
    }
    .unix_s()
}

/// Formats the basic form that signatures use, `20130524T000000Z`.
#[must_use]
pub fn basic(unix_s: i64) -> [u8; 16] {
    let date = Civil::from_unix_s(unix_s);
    let mut text = *b"00000000T000000Z";
    put(&mut text[0..4], date.year);
    put(&mut text[4..6], date.month);
    put(&mut text[6..8], date.day);
    put(&mut text[9..11], date.hour);
    put(&mut text[11..13], date.minute);
    put(&mut text[13..15], date.second);
    text
}

fn push_clock(text: &mut String, date: &Civil) {
    push(text, date.hour, 2);
    text.push(':');
    push(text, date.minute, 2);
    text.push(':');
    push(text, date.second, 2);
}

fn push(text: &mut String, value: i64, width: usize) {
    let mut field = [b'0'; 4];
    let field = &mut field[..width];
    put(field, value);
    text.extend(field.iter().map(|byte| char::from(*byte)));
}

/// Writes `value` into the whole of `field`, leading zeros included.
fn put(field: &mut [u8], mut value: i64) {
    for byte in field.iter_mut().rev() {
        *byte = b'0' + u8::try_from(value.rem_euclid(10)).unwrap_or(0);
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_forms_of_rfc_9110_are_one_instant() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_http_date(text), Some(784_111_777), "{text}");
        }
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn iso_forms() {
        assert_eq!(
            parse_iso8601("2009-10-12T17:50:30.000Z"),
            Some(1_255_369_830)
        );
        assert_eq!(parse_iso8601("2009-10-12"), Some(1_255_305_600));
        assert_eq!(iso8601(1_255_369_830_007), "2009-10-12T17:50:30.007Z");
        assert_eq!(parse_basic(b"20130524T000000Z"), Some(1_369_353_600));
        assert_eq!(&basic(1_369_353_600), b"20130524T000000Z");
        assert_eq!(iso8601(u64::MAX).get(..4), Some("9999"));
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "Sun, 06 Nov 1994 08:49:37 PST",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sunday, 06-Nov-94",
            ",,,,,,",
            "Sun Nov 6 08:49:37 1994",
        ] {
            assert_eq!(parse_http_date(text), None, "{text}");
        }
        for text in [
            "2009-13-01",
            "2009-10-12T17:50:30.Z",
            "2009-10-12T17:50:30",
            "2009-02-29",
        ] {
            assert_eq!(parse_iso8601(text), None, "{text}");
        }
        assert_eq!(parse_basic(b"20130524T0000+0Z"), None);
    }

    proptest! {
        #[test]
        fn formatted_times_parse_back(unix_s in FIRST_S..=LAST_S) {
            prop_assert_eq!(parse_http_date(&http_date(unix_s)), Some(unix_s));
            prop_assert_eq!(parse_basic(&basic(unix_s)), Some(unix_s));
            if let Ok(seconds) = u64::try_from(unix_s) {
                prop_assert_eq!(parse_iso8601(&iso8601(seconds * 1000)), Some(unix_s));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (parse_http_date(&text), parse_iso8601(&text), parse_basic(text.as_bytes()));
        }
    }
}
