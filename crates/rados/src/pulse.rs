//! Whether this gateway is known to be alive. One that is not may be swept: what it has under way is then nobody's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::{ErrorKind, Result, StoreError};
use tokio::time::{Instant, sleep};

/// How often a gateway that may be taken for dead looks whether it still is.
const LOOK: Duration = Duration::from_millis(20);

/// When the lease was renewed last, and how often it was lost.
pub(crate) struct Pulse {
    began: Instant,
    hold: Duration,
    renewed_ms: AtomicU64,
    life: AtomicU64,
    ended: AtomicBool,
}

impl Pulse {
    /// Of a gateway whose lease of `hold` is about to be taken.
    pub fn new(hold: Duration) -> Pulse {
        Pulse {
            began: Instant::now(),
            hold,
            renewed_ms: AtomicU64::new(0),
            life: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// This gateway leaves: it commits nothing any more.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Whether it leaves.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Which life this is: the next begins when a lease was lost and taken anew.
    pub fn life(&self) -> u64 {
        self.life.load(Relaxed)
    }

    /// The lease that was asked for at `asked` was given. Whether a new life begins with it.
    pub fn renewed(&self, asked: Instant) -> bool {
        let asked = asked.saturating_duration_since(self.began);
        self.renewed_at(asked, self.began.elapsed())
    }

    fn renewed_at(&self, asked: Duration, now: Duration) -> bool {
        let before = self.renewed_ms.swap(asked.as_millis() as u64, Relaxed);
        let lost = now >= Duration::from_millis(before) + self.hold;
        if lost {
            self.life.fetch_add(1, Relaxed);
        }
        lost
    }

    /// As if the lease had been lost, and taken anew.
    #[cfg(test)]
    pub fn lose(&self) {
        self.life.fetch_add(1, Relaxed);
    }

    /// Whether nobody can have swept what was begun in that life. A quarter of the lease is left for what is on its way.
    pub fn is_alive_since(&self, life: u64) -> bool {
        self.alive_at(life, self.began.elapsed())
    }

    fn alive_at(&self, life: u64, now: Duration) -> bool {
        let renewed = Duration::from_millis(self.renewed_ms.load(Relaxed));
        !self.has_ended() && now < renewed + self.hold * 3 / 4 && self.life() == life
    }

    /// Waits until the lease is held again.
    pub async fn wait(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.is_alive_since(self.life()) {
            if self.has_ended() {
                return Err(StoreError::new(ErrorKind::Io, "the store is being closed"));
            }
            if begun.elapsed() > patience {
                return Err(StoreError::new(
                    ErrorKind::Io,
                    "this gateway lost its lease: the cluster did not answer for too long",
                ));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }
}

/// What began before a lease was lost may have been swept.
pub(crate) fn swept() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        "this gateway lost its lease while the value arrived; its bytes may be gone",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_lease_begins_a_new_life() {
        let at = Duration::from_secs;
        let pulse = Pulse::new(at(4));
        assert!(pulse.alive_at(0, at(2)) && !pulse.alive_at(1, at(2)));
        assert!(!pulse.alive_at(0, at(3)), "a quarter is kept back");
        assert!(!pulse.renewed_at(at(3), at(3)) && pulse.alive_at(0, at(5)));
        // The answer may come late: what counts is when it was asked for.
        assert!(!pulse.renewed_at(at(4), at(6)) && !pulse.alive_at(0, at(7)));
        assert!(
            pulse.renewed_at(at(8), at(8)),
            "somebody may have swept meanwhile"
        );
        assert!(!pulse.alive_at(0, at(8)) && pulse.alive_at(1, at(8)));
        pulse.end();
        assert!(!pulse.alive_at(1, at(8)));
    }
}
