//! The configuration file: each key is a flag of `serve`, so the file is turned into flags and read by the same parser.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use toml::Value;

use crate::exit::{Exit, Failure, Outcome};

/// A flag of `serve`.
struct Flag<'a> {
    arg: &'a Arg,
    long: &'a str,
}

impl Flag<'_> {
    fn is_given(&self, given: &ArgMatches) -> bool {
        given.value_source(self.arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    }

    /// Whether the two cannot stand together, or `other` is of a door that this one closes.
    fn is_against(&self, other: &Flag<'_>, serve: &Command) -> bool {
        let excludes = |one: &Arg, other: &Arg| {
            let excluded = serve.get_arg_conflicts_with(one);
            excluded.iter().any(|arg| arg.get_id() == other.get_id())
        };
        excludes(self.arg, other.arg)
            || excludes(other.arg, self.arg)
            || self.long.strip_prefix("no-") == Some(other.long)
    }
}

/// `argv` of a `serve` command with the file's keys put before the flags given, which win.
pub fn merge(
    argv: &[OsString],
    file: &Path,
    serve: &Command,
    given: &ArgMatches,
) -> Outcome<Vec<OsString>> {
    let wrong =
        |what: String| Failure::new(Exit::Usage, format_args!("{}: {what}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let until = error.span().and_then(|span| text.get(..span.start));
        let line = until.map_or(1, |until| until.matches('\n').count() + 1);
        wrong(format!("line {line}: {}", error.message()))
    })?;
    let known: Vec<Flag> = serve
        .get_arguments()
        .filter(|arg| !matches!(arg.get_id().as_str(), "config" | "help" | "version"))
        .map(|arg| Flag {
            arg,
            long: arg.get_long().unwrap_or(arg.get_id().as_str()),
        })
        .collect();
    let mut flags = Vec::new();
    let mut positional = Vec::new();
    for (key, value) in &table {
        let Some(flag) = known.iter().find(|known| known.long == key) else {
            return Err(wrong(unknown(key, known.iter().map(|known| known.long))));
        };
        let long = flag.long;
        let mut beaten = known.iter().filter(|known| known.is_given(given));
        if beaten.any(|known| known.long == long || flag.is_against(known, serve)) {
            continue;
        }
        if !flag.arg.get_action().takes_values() {
            match value {
                Value::Boolean(true) => flags.push(format!("--{long}").into()),
                Value::Boolean(false) => {}
                _ => return Err(wrong(format!("{key} is true or false"))),
            }
            continue;
        }
        let values = match value {
            Value::Array(values) => values.iter().map(plain).collect(),
            value => vec![plain(value)],
        };
        for value in values {
            match value {
                None => return Err(wrong(format!("{key} needs a string or a number"))),
                Some(value) if long == "dir" => positional.push(OsString::from(value)),
                Some(value) => flags.push(format!("--{long}={value}").into()),
            }
        }
    }
    let Some((program, rest)) = argv.split_first() else {
        return Ok(Vec::new());
    };
    let mut merged = vec![program.clone()];
    // `serve` comes first: the program has no flags of its own that take a value.
    merged.extend(rest.first().cloned());
    merged.extend(flags);
    merged.extend(rest.iter().skip(1).cloned());
    merged.extend(positional);
    Ok(merged)
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    match known.min_by_key(|known| distance(key, known)) {
        Some(nearest) => format!("unknown key `{key}`; the nearest is `{nearest}`"),
        None => format!("unknown key `{key}`"),
    }
}

/// Levenshtein's: how many characters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("shard", "shards"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert!(unknown("consol", ["s3", "console"].into_iter()).contains("`console`"));
    }
}
