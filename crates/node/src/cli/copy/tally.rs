//! What came of copies.

use std::fmt;

use forebay_client::direct::Path as Way;
use forebay_client::{Error, Refusal, transfer};

use crate::exit::{Exit, Failure};

/// What was copied.
#[derive(Debug, Default)]
pub struct Tally {
    /// Objects or files.
    pub copies: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, bytes that an earlier attempt had moved.
    pub resumed: u64,
    /// Copies that were there already, of those counted.
    pub unchanged: usize,
    /// Things found that are no plain files.
    pub skipped: usize,
    /// Files found that downloads which were cut off have left.
    pub leftovers: usize,
    /// Whether all bytes were compared by checksum from end to end.
    pub verified: bool,
    /// The way the bytes took, the worst of them if they took several; none when none moved between here and the server.
    pub path: Option<Way>,
    /// What did not work.
    pub failures: Vec<Failure>,
    /// Copies that were not begun, because one failed as they would have.
    pub untried: usize,
}

/// One copy's end.
pub struct Done {
    pub moved: transfer::Moved,
    pub unchanged: bool,
}

impl From<transfer::Moved> for Done {
    fn from(moved: transfer::Moved) -> Done {
        Done {
            moved,
            unchanged: false,
        }
    }
}

/// One copy's failure; `alone` when the others may still work.
pub struct Broken {
    pub failure: Failure,
    pub alone: bool,
}

impl Broken {
    /// What concerns nothing but this copy.
    pub fn alone(failure: Failure) -> Broken {
        Broken {
            failure,
            alone: true,
        }
    }

    /// The same in words.
    pub fn one(message: impl fmt::Display) -> Broken {
        Broken::alone(Failure::new(Exit::Failed, message))
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Broken {
        let alone = match &error {
            Error::Local { .. } | Error::Corrupt(_) => true,
            Error::Refused(refusal) => is_of_one(refusal),
            Error::Transport { .. } | Error::TimedOut(_) | Error::Protocol(_) => false,
        };
        Broken {
            failure: error.into(),
            alone,
        }
    }
}

/// Whether a refusal is of one object: of its key, its size, its state, or because it has gone.
fn is_of_one(refusal: &Refusal) -> bool {
    let code = refusal.code.as_str();
    match refusal.status {
        // Of who asks, and how.
        400 => !matches!(
            code,
            "InvalidBucketName" | "AuthorizationHeaderMalformed" | "ExpiredToken" | "InvalidToken"
        ),
        404 => !matches!(code, "NoSuchBucket" | "no_such_namespace"),
        413 => !matches!(code, "quota_exceeded" | "quota"),
        412 | 416 => true,
        _ => false,
    }
}

/// Whether a failure may be of one object though it does not say so: a body that a server finds damaged it breaks off, or has none of.
pub fn may_be_alone(error: &Error) -> bool {
    match error {
        Error::Transport { .. } => true,
        Error::Refused(refusal) => refusal.status == 500,
        Error::Local { .. } | Error::Corrupt(_) | Error::TimedOut(_) | Error::Protocol(_) => false,
    }
}

impl Tally {
    /// Whether there is something, or nothing to be, of which all bytes were compared.
    pub fn is_verified(&self) -> bool {
        self.verified && (self.copies > 0 || self.failures.is_empty())
    }

    /// Counts a copy; says whether to stop.
    pub fn add(&mut self, done: Result<Done, Broken>) -> bool {
        match done {
            Ok(done) => {
                self.copies += 1;
                self.bytes += done.moved.bytes;
                self.resumed += done.moved.resumed;
                self.unchanged += usize::from(done.unchanged);
                self.verified &= done.moved.verified;
                self.path = transfer::Moved::worst(self.path.into_iter().chain(done.moved.path));
                false
            }
            Err(broken) => {
                self.failures.push(broken.failure);
                !broken.alone
            }
        }
    }
}
