//! Why a call ended before it was done.

use std::fmt;

use bytes::Bytes;
use forebay_store::{ErrorKind, ProgramFault, StoreError};

/// A bound that a call has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Its deadline.
    Time,
    /// Its linear memory or its tables.
    Memory,
    /// Its output.
    Output,
    /// What of its output may wait for whoever asked for it, were there nothing else.
    Waiting,
    /// What setting up its instance takes, where nothing looks at the time.
    Start,
}

/// Why a call ended before it was done.
#[derive(Debug, thiserror::Error)]
pub enum Ending {
    /// The function said so.
    #[error("the function failed with code {code}{}{words}", if words.is_empty() { "" } else { ": " })]
    Failed {
        /// By this code.
        code: i32,
        /// And in these words.
        words: String,
    },
    /// It did what no function may.
    #[error("the function trapped: {0}")]
    Trapped(String),
    /// The module is none, or has no such function, or imports what there is not.
    #[error("{0}")]
    NoProgram(String),
    /// It was stopped.
    #[error("the function was stopped: {}", match .0 {
        Bound::Time => "its time has run out",
        Bound::Memory => "it may not have as much memory as it asked for",
        Bound::Output => "it wrote more than it may",
        Bound::Waiting => "it wrote more than may ever wait for its caller: let the output become a value",
        Bound::Start => "its start function works for longer than one may",
    })]
    Stopped(Bound),
    /// An input could not be read, or the output not be written.
    #[error("{0}")]
    Store(StoreError),
    /// Nobody waits for it any more.
    #[error("the call was given up")]
    Abandoned,
    /// It needs a thread of its own, and starts again there: no caller sees this.
    #[error("the call takes too long for the task that made it")]
    TooLong,
}

/// What a caller is told is cut after so many bytes: doors put it into headers.
const WORDS_BYTES: usize = 1024;

impl Ending {
    /// What a runtime says of bytes that are no module, on one line: headers have no more.
    pub(crate) fn no_module(why: &dyn fmt::Display) -> Ending {
        let why = why.to_string();
        let words: Vec<&str> = why.split_whitespace().collect();
        Ending::NoProgram(format!("that is no module: {}", words.join(" ")))
    }

    /// A trap, in words.
    pub(crate) fn trap(words: impl Into<String>) -> Ending {
        Ending::Trapped(words.into())
    }

    /// What the caller is told, with what had been logged.
    pub(crate) fn into_error(self, logs: Bytes) -> StoreError {
        let (kind, code) = match self {
            Ending::Store(error) => return error,
            Ending::Failed { code, .. } => (ErrorKind::ProgramFailed, Some(code)),
            Ending::Trapped(_) | Ending::NoProgram(_) => (ErrorKind::ProgramFailed, None),
            Ending::Stopped(_) | Ending::Abandoned | Ending::TooLong => {
                (ErrorKind::ProgramStopped, None)
            }
        };
        let mut words = self.to_string();
        words.truncate(words.floor_char_boundary(WORDS_BYTES));
        StoreError::new(kind, words).with_source(ProgramFault { code, logs })
    }
}
