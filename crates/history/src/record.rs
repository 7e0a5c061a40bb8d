//! Histories as lines of JSON, one operation a line, in any order:
//! `{"key":"k","client":3,"asked":17,"answered":42,"op":"swap","expected":5,"value":6,"outcome":"done"}`.
//!
//! `op` is `read`, `write`, `create`, `swap` or `delete`; `outcome` is `done`, `refused`, `unknown`, or for a read `saw` with the
//! `value` that it saw, or none. Clients and keys are told in what is printed; times are of one clock.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use crate::{Action, Operation, Outcome, Value};

/// Bytes of a line.
const LINE_BYTES_MAX: usize = 1 << 16;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Of the source.
    #[error("line {0}: {1}")]
    Io(usize, std::io::Error),
    /// No operation.
    #[error("line {0}: {1}")]
    Line(usize, String),
}

/// One line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    client: u64,
    asked: u64,
    answered: Option<u64>,
    op: Op,
    expected: Option<Value>,
    value: Option<Value>,
    outcome: Ended,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Read,
    Write,
    Create,
    Swap,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    Done,
    Refused,
    Unknown,
    Saw,
}

/// The history of one key: whose each operation was beside it.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What is judged.
    pub history: Vec<Operation>,
    /// Who asked.
    pub clients: Vec<u64>,
}

/// Reads a recording, key by key.
///
/// # Errors
/// At the first line that is no operation: a history with a hole proves nothing.
pub fn read(from: impl BufRead) -> Result<BTreeMap<String, Recording>, Unreadable> {
    let mut keys: BTreeMap<String, Recording> = BTreeMap::new();
    for (number, text) in (1..).zip(from.lines()) {
        let text = text.map_err(|error| Unreadable::Io(number, error))?;
        let refuse = |why: &str| Unreadable::Line(number, why.to_owned());
        if text.len() > LINE_BYTES_MAX {
            return Err(refuse("too long"));
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| refuse(&error.to_string()))?;
        let (key, client) = (line.key.clone(), line.client);
        let operation = operation(line).map_err(refuse)?;
        let recording = keys.entry(key).or_default();
        recording.history.push(operation);
        recording.clients.push(client);
    }
    Ok(keys)
}

fn operation(line: Line) -> Result<Operation, &'static str> {
    let value = || line.value.ok_or("a write without a value");
    let action = match line.op {
        Op::Read => Action::Read,
        Op::Write => Action::Write(value()?),
        Op::Create => Action::Create(value()?),
        Op::Swap => Action::Swap(line.expected.ok_or("a swap expects a value")?, value()?),
        Op::Delete => Action::Delete,
    };
    let conditional = matches!(action, Action::Create(_) | Action::Swap(..));
    let outcome = match line.outcome {
        Ended::Unknown => Outcome::Unknown,
        Ended::Saw if action == Action::Read => Outcome::Saw(line.value),
        Ended::Done if action != Action::Read => Outcome::Done,
        Ended::Refused if conditional => Outcome::Refused,
        Ended::Saw | Ended::Done | Ended::Refused => return Err("no outcome of this operation"),
    };
    let answered = match (outcome, line.answered) {
        (Outcome::Unknown, _) => u64::MAX,
        (_, Some(answered)) if answered >= line.asked => answered,
        _ => return Err("answered before it was asked, or never"),
    };
    Ok(Operation {
        asked: line.asked,
        answered,
        action,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAP: &str = r#"{"key":"k","client":3,"asked":17,"answered":42,"op":"swap","expected":5,"value":6,"outcome":"refused"}"#;

    #[test]
    fn lines_become_operations() {
        let read_line =
            r#"{"key":"a","client":1,"asked":5,"answered":5,"op":"read","outcome":"saw"}"#;
        let unknown = r#"{"key":"k","client":1,"asked":5,"op":"delete","outcome":"unknown"}"#;
        let text = [SWAP, read_line, unknown].join("\n");
        let keys = read(text.as_bytes()).expect("lines");
        assert_eq!(keys["k"].clients, [3, 1]);
        assert_eq!(
            keys["k"].history[0],
            Operation {
                asked: 17,
                answered: 42,
                action: Action::Swap(5, 6),
                outcome: Outcome::Refused,
            }
        );
        assert_eq!(keys["k"].history[1].outcome, Outcome::Unknown);
        assert_eq!(keys["a"].history[0].outcome, Outcome::Saw(None));
    }

    #[test]
    fn what_is_no_operation_is_refused() {
        for (from, to) in [
            (r#""expected":5,"#, ""),
            (r#","value":6"#, ""),
            ("refused", "saw"),
            ("42", "16"),
            (r#""answered":42,"#, ""),
            ("swap", "write"),
            (r#""key":"k""#, r#""key":"k","more":1"#),
            ("17", "-17"),
        ] {
            let text = SWAP.replacen(from, to, 1);
            assert_ne!(text, SWAP);
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(SWAP.as_bytes()).is_ok());
    }
}
