//! Reads histories of keys from standard input, as `forebay_history::record` has them, and judges each.
//!
//! Prints a line of totals; for a key that no register could have answered for, its longest good beginning's end and what should
//! have come next. Exits 1 when there is such a key, or one that could not be decided.

use std::process::ExitCode;

use forebay_history::record::{Recording, read};
use forebay_history::{Verdict, check};

/// Operations that are told of the longest good beginning.
const TOLD: usize = 12;

fn main() -> ExitCode {
    let keys = match read(std::io::stdin().lock()) {
        Ok(keys) => keys,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let operations: usize = keys.values().map(|key| key.history.len()).sum();
    let mut bad = 0;
    for (key, recording) in &keys {
        match check(&recording.history) {
            Verdict::Linearizable(_) => {}
            Verdict::Undecided => {
                bad += 1;
                println!("{key}: could not be decided");
            }
            Verdict::Violation {
                longest,
                held,
                stuck,
            } => {
                bad += 1;
                println!("{key}: no register answers like this");
                for place in longest.iter().skip(longest.len().saturating_sub(TOLD)) {
                    println!("  {}", told(recording, *place));
                }
                println!("  then it held {held:?}, and none of these could be next:");
                for place in stuck {
                    println!("  {}", told(recording, place));
                }
            }
        }
    }
    println!("{} keys, {operations} operations, {bad} bad", keys.len());
    if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told(recording: &Recording, place: usize) -> String {
    let one = &recording.history[place];
    format!(
        "client {} {}..{} {:?} {:?}",
        recording.clients[place], one.asked, one.answered, one.action, one.outcome
    )
}
