//! Commands that are made again after a controller has said that it could not carry them out for now, and the pauses before that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_proto::nvme::Status;

use super::Error;
use super::host::Place;

/// How often a command that has an end is made whose payload is damaged each time.
const ATTEMPTS: u32 = 4;
/// The pause before a command is made again for the first time.
const PAUSE: Duration = Duration::from_millis(20);
/// After so many attempts a refusal is more than a moment's.
const LONG: u32 = 5;
/// Status Code Type of what a way to a namespace says, and not the namespace.
const PATH_RELATED: u8 = 3;

/// Whether a command that was made again `attempt` times, and may be, is made once more: what lasts for now is waited for until its
/// patience ends, and for ever without one.
pub(super) fn is_due(error: &Error, attempt: u32, patience: Option<Instant>) -> bool {
    match error {
        Error::Damaged => patience.is_none() || attempt + 1 < ATTEMPTS,
        Error::Status(status) => {
            let lasts = patience.is_none_or(|end| end > Instant::now());
            lasts && !status.do_not_retry() && is_for_now(status.code())
        }
        _ => false,
    }
}

/// Whether it speaks of the controller, or its way to the namespace, as they are now, and not of the command.
fn is_for_now(code: Status) -> bool {
    match code {
        Status::TRANSIENT_TRANSPORT_ERROR
        | Status::NAMESPACE_NOT_READY
        | Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::OUTCOME_UNKNOWN => true,
        // This way does not come back.
        Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS => false,
        code => code.code_type() == PATH_RELATED,
    }
}

/// The pause before a command is made again.
pub(super) fn pause(attempt: u32, most: Duration) -> Duration {
    grown(PAUSE, most, attempt)
}

/// Twice as long each time, and never exactly as long as everybody else's.
pub(super) fn grown(first: Duration, most: Duration, attempt: u32) -> Duration {
    let pause = first.saturating_mul(1 << attempt.min(16)).min(most);
    let mut random = [0; 1];
    // Without randomness all return together, which is no more than unfriendly.
    let _ = forebay_io::random(&mut random);
    pause.mul_f64(0.75 + f64::from(random[0]) / 1024.0)
}

/// Whether a controller refuses commands for long, told once.
#[derive(Debug, Default)]
pub(super) struct Refusal(AtomicBool);

impl Refusal {
    /// A command is to be made once more.
    pub(super) fn note(&self, place: &Place, error: &Error, attempt: u32) {
        if attempt + 1 == LONG && !self.0.swap(true, Relaxed) {
            tracing::warn!(%place, %error, "commands are made again until they are carried out");
        }
    }

    /// One was carried out.
    pub(super) fn end(&self, place: &Place) {
        if self.0.load(Relaxed) && self.0.swap(false, Relaxed) {
            tracing::info!(%place, "commands are carried out again");
        }
    }
}
