//! Lines of text: how many there are, and which of them match.
//!
//! `count` writes how many lines all inputs have together, as `wc -l` counts them: newlines.
//!
//! `grep [-c] [-v] [-E] PATTERN` writes the lines of all inputs that hold the pattern, each ended by a newline. `-c` writes their
//! number instead, `-v` turns the match round, `-E` takes the pattern for a regular expression (which lines that are no UTF-8 never match).

use std::io::Write;

use forebay_module::{Input, Output, export, inputs, quick, words};
use regex_lite::Regex;

export!(run, count, grep);

/// A line longer than this is no line of text.
const LINE_BYTES_MAX: usize = 16 << 20;
/// What is looked at together.
const PIECE_BYTES: usize = 1 << 20;

fn run() -> Result<(), String> {
    count()
}

fn count() -> Result<(), String> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut lines = 0;
    for input in inputs() {
        let mut offset = 0;
        loop {
            let len = input.read(offset, &mut piece);
            if len == 0 {
                break;
            }
            lines += quick::count(&piece[..len], b'\n') as u64;
            offset += len as u64;
        }
    }
    forebay_module::write(format!("{lines}\n").as_bytes());
    Ok(())
}

/// What a line has to hold.
enum Pattern {
    Bytes(Vec<u8>),
    Expression(Regex),
}

struct Grep {
    pattern: Pattern,
    inverted: bool,
    counted: bool,
    found: u64,
    output: Output,
}

fn grep() -> Result<(), String> {
    let (mut inverted, mut counted, mut expression, mut pattern) = (false, false, false, None);
    for word in words() {
        match word.as_str() {
            "-v" if pattern.is_none() => inverted = true,
            "-c" if pattern.is_none() => counted = true,
            "-E" if pattern.is_none() => expression = true,
            _ if pattern.is_none() => pattern = Some(word),
            _ => return Err(format!("{word}: one pattern is enough")),
        }
    }
    let pattern = pattern.ok_or("grep [-c] [-v] [-E] PATTERN")?;
    let mut grep = Grep {
        pattern: match expression {
            true => Pattern::Expression(Regex::new(&pattern).map_err(|error| error.to_string())?),
            false => Pattern::Bytes(pattern.into_bytes()),
        },
        inverted,
        counted,
        found: 0,
        output: Output::default(),
    };
    for input in inputs() {
        grep.search(input)?;
    }
    if counted {
        let found = grep.found;
        grep.put(format!("{found}\n").as_bytes())?;
    }
    Ok(())
}

impl Grep {
    fn search(&mut self, input: Input) -> Result<(), String> {
        let mut held = vec![0; PIECE_BYTES];
        let (mut offset, mut kept) = (0, 0);
        loop {
            let len = input.read(offset, &mut held[kept..]);
            offset += len as u64;
            let filled = kept + len;
            // The last line may lack its newline.
            let whole = match len {
                0 => filled,
                _ => held[..filled]
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1),
            };
            self.lines(&held[..whole])?;
            if len == 0 {
                return Ok(());
            }
            held.copy_within(whole..filled, 0);
            kept = filled - whole;
            if kept == held.len() {
                if kept >= LINE_BYTES_MAX {
                    return Err(format!("a line of more than {LINE_BYTES_MAX} bytes"));
                }
                held.resize(kept * 2, 0);
            }
        }
    }

    /// Lines that are whole.
    fn lines(&mut self, text: &[u8]) -> Result<(), String> {
        // Where few lines match, the host's search skips the others.
        if let (Pattern::Bytes(pattern), false) = (&self.pattern, self.inverted) {
            let (pattern, mut rest) = (pattern.clone(), text);
            while let Some(at) = quick::find(rest, &pattern).filter(|_| !rest.is_empty()) {
                let begin = rest[..at]
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1);
                let end = quick::find(&rest[begin..], b"\n").map_or(rest.len(), |at| begin + at);
                // A pattern may hold what ends a line; no line does.
                if at + pattern.len() <= end {
                    self.take(&rest[begin..end])?;
                }
                rest = rest.get(end + 1..).unwrap_or_default();
            }
            return Ok(());
        }
        if text.is_empty() {
            return Ok(());
        }
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n') {
            let matches = match &self.pattern {
                Pattern::Bytes(pattern) => quick::find(line, pattern).is_some(),
                Pattern::Expression(regex) => {
                    std::str::from_utf8(line).is_ok_and(|line| regex.is_match(line))
                }
            };
            if matches != self.inverted {
                self.take(line)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        self.found += 1;
        match self.counted {
            true => Ok(()),
            false => self.put(line).and_then(|()| self.put(b"\n")),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.output
            .write_all(bytes)
            .map_err(|error| error.to_string())
    }
}
