//! A clock that stands still until it is told.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::{Clock, UnixMillis};

/// A settable [`Clock`]. Cloning shares it.
#[derive(Debug, Clone)]
pub struct SimClock {
    now: Arc<Mutex<Now>>,
}

#[derive(Debug)]
struct Now {
    unix_millis: UnixMillis,
    monotonic: Duration,
}

impl SimClock {
    /// A clock that shows `unix_millis` and no time passed.
    pub fn new(unix_millis: UnixMillis) -> SimClock {
        SimClock {
            now: Arc::new(Mutex::new(Now {
                unix_millis,
                monotonic: Duration::ZERO,
            })),
        }
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock();
        // The fractions of a millisecond must not be lost over many small steps.
        let whole = (now.monotonic + by).as_millis() - now.monotonic.as_millis();
        now.monotonic += by;
        now.unix_millis = now.unix_millis.saturating_add(whole as u64);
    }

    /// Sets the time of day, also back; the monotonic clock does not notice.
    pub fn set_unix_millis(&self, unix_millis: UnixMillis) {
        self.now.lock().unix_millis = unix_millis;
    }
}

impl Clock for SimClock {
    fn unix_millis(&self) -> UnixMillis {
        self.now.lock().unix_millis
    }

    fn monotonic(&self) -> Duration {
        self.now.lock().monotonic
    }
}
