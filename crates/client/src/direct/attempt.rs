//! What failed, what to do about it, and how often.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_fabric::{CloseReason, Error as LinkError, ErrorKind as LinkErrorKind};
use forebay_proto::direct::{Hop, Malformed, Outcome, Status};

use super::lane::Stopped;
use crate::{Error, Refusal};

/// Retries that a client may make at once, beyond those that its successful calls pay for.
const RETRIES_SAVED: u32 = 10;
/// Successful calls that pay for one retry: a server in trouble sees at most a tenth more calls.
const CALLS_PER_RETRY: u32 = 10;
/// Bytes for which a call has a second more: whatever is slower than this for its whole length is taken for broken.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;

/// Why one attempt came to nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt would fail, too.
    Final(Error),
    /// The server did nothing and may do it a moment later.
    Again(Error),
    /// The server failed, and may do better a moment later; it may have done what it was asked.
    Unclear(Error),
    /// The link ended; the server may have done what it was asked.
    Lost(Error),
    /// The link had ended before the server was asked anything.
    Unsent(Error),
    /// This path cannot carry the call, for this reason; nothing was moved.
    Unable(String),
}

impl Failure {
    /// Of a call that had sent nothing yet.
    pub(crate) fn unsent(self) -> Failure {
        match self {
            Failure::Lost(error) => Failure::Unsent(error),
            failure => failure,
        }
    }
}

/// How long a call may take that has so long without bytes, and moves so many.
pub(crate) fn time_for(deadline: Duration, bytes: u64) -> Duration {
    deadline.saturating_add(Duration::from_secs(bytes / BYTES_PER_SECOND_MIN))
}

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    pub(crate) made: u32,
    pub(crate) until: Instant,
    pub(crate) whole: Duration,
}

impl Tries {
    /// Of a call that moves so many bytes.
    pub(crate) fn new(deadline: Duration, bytes: u64) -> Tries {
        let whole = time_for(deadline, bytes);
        Tries {
            made: 1,
            until: Instant::now() + whole,
            whole,
        }
    }

    pub(crate) fn timed_out(&self) -> Error {
        Error::TimedOut(self.whole)
    }
}

/// Bounds retries to a share of the calls that succeed.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Successful calls not yet spent.
    saved: AtomicU32,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            saved: AtomicU32::new(RETRIES_SAVED * CALLS_PER_RETRY),
        }
    }
}

impl Budget {
    /// A call succeeded.
    pub(crate) fn earn(&self) {
        // A lost addition under contention makes the budget smaller, never larger than its bound by more than a thread's worth.
        if self.saved.load(Relaxed) < RETRIES_SAVED * CALLS_PER_RETRY {
            self.saved.fetch_add(1, Relaxed);
        }
    }

    /// Whether a retry may be made now.
    pub(crate) fn spend(&self) -> bool {
        self.saved
            .fetch_update(Relaxed, Relaxed, |saved| saved.checked_sub(CALLS_PER_RETRY))
            .is_ok()
    }
}

/// What an element's failure means; `about` names the value.
pub(crate) fn refused(result: &Outcome<'_>, about: &str) -> Failure {
    let text = result.text().unwrap_or_default();
    let message = match text {
        "" => result.status.name().replace('_', " "),
        text => text.to_owned(),
    };
    let http = match result.status {
        Status::Ok => return odd("a failure that is none"),
        Status::NotFound
        | Status::NoSuchVersion
        | Status::IsDeleteMarker
        | Status::NoSuchNamespace => 404,
        Status::PreconditionFailed => 412,
        Status::RangeNotSatisfiable => 416,
        Status::Invalid | Status::Malformed | Status::TooShort | Status::NotReachable => 400,
        Status::TooLarge | Status::QuotaExceeded => 413,
        Status::NoSpace | Status::ReadOnly => 507,
        Status::Busy => 503,
        Status::OutcomeUnknown | Status::Io => 520,
        Status::Unsupported => return Failure::Unable(message),
        Status::Corrupt => {
            return Failure::Final(Error::Corrupt(format!(
                "{about}: bytes changed {}: {message}",
                match result.hop {
                    Hop::None => "somewhere",
                    hop => hop.describe(),
                }
            )));
        }
    };
    let error = Error::Refused(Refusal {
        status: http,
        code: result.status.name().to_owned(),
        message,
        resource: about.to_owned(),
        request_id: String::new(),
    });
    match result.status {
        Status::Busy => Failure::Again(error),
        _ => Failure::Final(error),
    }
}

/// The server answered what nobody could mean.
pub(crate) fn odd(what: impl std::fmt::Display) -> Failure {
    Failure::Final(Error::Protocol(what.to_string()))
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Failure {
        odd(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::Transport { .. } => Failure::Lost(error),
            Error::Refused(_) if error.is_undone() => Failure::Again(error),
            Error::Refused(_) if error.is_transient() => Failure::Unclear(error),
            _ => Failure::Final(error),
        }
    }
}

/// What the end of a link means to a call; `path` names the link.
pub(crate) fn ended(path: super::Path, reason: &CloseReason) -> Failure {
    Failure::Lost(Error::Transport {
        endpoint: path.to_string(),
        what: reason.to_string(),
    })
}

/// What it means that a lane stopped a call.
pub(crate) fn stopped(path: super::Path, tries: &Tries, stopped: Stopped) -> Failure {
    match stopped {
        Stopped::TimedOut => Failure::Final(tries.timed_out()),
        Stopped::Ended(reason) => ended(path, &reason),
        Stopped::NotSent(why) => Failure::Unable(why),
    }
}

/// What it means that a region could not be registered.
pub(crate) fn unregistered(path: super::Path, error: LinkError) -> Failure {
    match error.kind {
        LinkErrorKind::Closed => Failure::Lost(Error::Transport {
            endpoint: path.to_string(),
            what: error.message,
        }),
        _ => Failure::Unable(format!(
            "the memory cannot be registered: {}",
            error.message
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_paid_for_by_calls() {
        let budget = Budget::default();
        for _ in 0..RETRIES_SAVED {
            assert!(budget.spend());
        }
        assert!(!budget.spend());
        for _ in 0..CALLS_PER_RETRY {
            budget.earn();
        }
        assert!(budget.spend());
        assert!(!budget.spend());
        for _ in 0..10_000 {
            budget.earn();
        }
        assert_eq!(
            (0..20).filter(|_| budget.spend()).count(),
            RETRIES_SAVED as usize
        );
    }

    #[test]
    fn who_moves_more_has_more_time() {
        let second = Duration::from_secs(1);
        assert_eq!(Tries::new(second, 4096).whole, second);
        assert_eq!(Tries::new(second, 8 << 20).whole, 33 * second);
        assert!(Tries::new(second, u64::MAX).until > Instant::now() + 33 * second);
    }
}
