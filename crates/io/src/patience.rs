//! How long to look for a peer's next step in shared memory before going to sleep.

use std::time::Duration;

/// The longest look: waking a sleeper costs both sides about as much.
const LONGEST: Duration = Duration::from_micros(50);
/// Waits that sleep at once after a look that was in vain, at most. The count doubles up to this while looking stays in vain: the two
/// ends then share a processor, or the peer is slow.
const ASLEEP_MAX: u32 = 256;

/// Remembers whether looking was worth it. Under traffic it is; who waits for an idle peer sleeps at once.
#[derive(Debug, Default)]
pub struct Patience {
    patience: Duration,
    /// How many more waits sleep at once.
    asleep: u32,
    /// How many did after the last look in vain.
    penalty: u32,
}

impl Patience {
    /// The shortest look; below it there is none.
    pub const SHORTEST: Duration = Duration::from_micros(25);

    /// How long the next wait may look.
    pub fn get(&self) -> Duration {
        self.patience
    }

    /// A wait is over, and took this long.
    pub fn learn(&mut self, waited: Duration) {
        if self.patience.is_zero() {
            self.asleep = self.asleep.saturating_sub(1);
            if self.asleep == 0 && waited <= LONGEST {
                self.patience = Self::SHORTEST;
            }
        } else if waited <= self.patience {
            self.patience = (self.patience * 2).min(LONGEST);
            self.penalty = 0;
        } else if self.patience > Self::SHORTEST {
            self.patience /= 2;
        } else {
            self.patience = Duration::ZERO;
            self.penalty = (self.penalty * 2 + 1).min(ASLEEP_MAX);
            self.asleep = self.penalty;
        }
    }
}
