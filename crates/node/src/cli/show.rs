//! How results are printed.

use std::borrow::Cow;
use std::io::{self, Write};

use forebay_proto::s3::date;
use serde::Serialize;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};

/// Bytes as they are, to standard output. A reader that went away ends the command without a word, as it does for `cat`.
pub fn bytes(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(Exit::Failed, ""),
            _ => Failure::new(Exit::Failed, format_args!("standard output: {error}")),
        })
}

/// Ends a transfer whose output has failed; the failure itself is kept in `broken`.
pub fn stopped(failure: Failure, broken: &mut Option<Failure>) -> forebay_client::Error {
    let error = forebay_client::Error::Local {
        what: "standard output".to_owned(),
        source: io::Error::other(failure.message.clone()),
    };
    *broken = Some(failure);
    error
}

/// A line of text.
pub fn line(text: &str) -> Outcome {
    bytes(format!("{text}\n").as_bytes())
}

/// A key in words: as it is, or escaped where it is no text.
pub fn key(key: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(key) {
        Ok(text) => text.into(),
        Err(_) => key.escape_ascii().to_string().into(),
    }
}

/// Somebody else's words as a terminal may have them: what would steer it is escaped.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        false => text.into(),
        true => {
            let escaped = |c: char| match c.is_control() {
                true => c.escape_default().collect(),
                false => c.to_string(),
            };
            text.chars().map(escaped).collect::<String>().into()
        }
    }
}

/// A line of JSON.
pub fn json(value: &impl Serialize) -> Outcome {
    let mut text = serde_json::to_vec(value).map_err(|error| Failure::new(Exit::Failed, error))?;
    text.push(b'\n');
    bytes(&text)
}

/// Keys of a list that have the beginning in common, where those themselves are not shown.
pub fn prefix(prefix: &[u8], as_json: bool) -> Outcome {
    let prefix = key(prefix);
    match as_json {
        true => json(&json!({"prefix": prefix})),
        false => line(&format!("{:>20} {:>10} {}", "", "-", plain(&prefix))),
    }
}

/// Rows under a heading, columns aligned.
pub fn table(heading: &[&str], rows: Vec<Vec<String>>) -> Outcome {
    let heading = heading.iter().map(|name| (*name).to_owned()).collect();
    let shown = |row: Vec<String>| row.iter().map(|cell| plain(cell).into_owned()).collect();
    let rows = std::iter::once(heading).chain(rows).map(shown);
    let rows: Vec<Vec<String>> = rows.collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let text: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        line(text.join("  ").trim_end())?;
    }
    Ok(())
}

/// So many of what `noun` names.
pub fn count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// A number of bytes, such as `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// An instant, in seconds since 1970, as `2024-01-02T03:04:05Z`.
pub fn time(unix_s: i64) -> String {
    millis(u64::try_from(unix_s).unwrap_or(0).saturating_mul(1000))
}

/// An instant, in milliseconds since 1970.
pub fn millis(unix_ms: u64) -> String {
    let text = date::iso8601(unix_ms);
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// A bound, or `-`.
pub fn bound(bound: Option<u64>, show: impl Fn(u64) -> String) -> String {
    bound.map_or_else(|| "-".to_owned(), show)
}
