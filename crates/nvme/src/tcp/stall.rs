//! Whether a host goes on with what it has to take and to give.

use std::time::Duration;

use tokio::time::Instant;

/// What a host has to move in the time that it is given while others wait for the memory.
const WANTED_BYTES: u64 = 1 << 20;

/// Looks at a host from time to time.
pub(super) struct Stall {
    /// For how long a host may leave what it owes as it is.
    stall: Duration,
    /// For how long it may take for [`WANTED_BYTES`], or for less if it owes less.
    wanted: Duration,
    takes: Option<Look>,
    gives: Option<Look>,
}

/// What there is to take, or to give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Debt {
    /// How many bytes that is; more than 0.
    pub(super) owed: u64,
    /// Those that went so far.
    pub(super) moved: u64,
}

/// How it was when it was looked at.
struct Look {
    debt: Debt,
    /// When it had gone on.
    moved_at: Instant,
    was_wanted: bool,
    /// When to look again.
    next: Instant,
}

impl Stall {
    pub(super) fn new(stall: Duration, wanted: Duration) -> Stall {
        Stall {
            stall,
            wanted,
            takes: None,
            gives: None,
        }
    }

    /// Whether the host is too late with what it takes or gives now; `wanted`: others wait for what its commands hold.
    pub(super) fn look(
        &mut self,
        now: Instant,
        takes: Option<Debt>,
        gives: Option<Debt>,
        wanted: bool,
    ) -> bool {
        let (stall, often) = (self.stall, self.wanted.min(self.stall));
        let mut late = false;
        for (look, debt) in [(&mut self.takes, takes), (&mut self.gives, gives)] {
            let Some(debt) = debt else {
                *look = None;
                continue;
            };
            let mut moved_at = now;
            if let Some(look) = look {
                if now < look.next {
                    continue;
                }
                let moved = debt.moved - look.debt.moved;
                if moved == 0 {
                    moved_at = look.moved_at;
                }
                let slow = moved < look.debt.owed.min(WANTED_BYTES);
                late |= now >= moved_at + stall || slow && wanted && look.was_wanted;
            }
            *look = Some(Look {
                debt,
                moved_at,
                was_wanted: wanted,
                next: now + often,
            });
        }
        late
    }

    /// When to look again at the latest.
    pub(super) fn next(&self) -> Option<Instant> {
        let looks = self.takes.iter().chain(&self.gives);
        looks.map(|look| look.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(30);
    const WANTED: Duration = Duration::from_secs(2);

    fn debt(owed: u64, moved: u64) -> Option<Debt> {
        Some(Debt { owed, moved })
    }

    #[test]
    fn whoever_moves_nothing_is_late_and_whoever_moves_little_is_not() {
        let begun = Instant::now();
        let mut stall = Stall::new(STALL, WANTED);
        for second in 0..100 {
            let now = begun + Duration::from_secs(second);
            // A byte in 25 seconds.
            assert!(!stall.look(now, None, debt(1 << 20, second / 25), false));
            assert!(stall.next().is_some_and(|next| next > now));
        }
        let now = begun + Duration::from_secs(100);
        assert!(!stall.look(now, None, None, false));
        assert_eq!(stall.next(), None);
        // What it has to take now it has since now, however long it gave nothing.
        assert!(!stall.look(now, debt(1, 0), None, false));
        assert!(!stall.look(now + STALL - WANTED, debt(1, 0), debt(1, 4), false));
        assert!(stall.look(now + STALL, debt(1, 0), debt(1, 4), false));
    }

    #[test]
    fn whoever_holds_what_others_want_has_to_hurry() {
        let begun = Instant::now();
        let after = |looks: u32| begun + WANTED * looks;
        let mut stall = Stall::new(STALL, WANTED);
        assert!(!stall.look(begun, None, debt(64 << 20, 0), false));
        assert!(!stall.look(after(1), None, debt(64 << 20, 5), false));
        assert!(
            !stall.look(after(2), None, debt(64 << 20, 10), true),
            "only now"
        );
        assert!(!stall.look(after(3), None, debt(2 << 20, 10 + (1 << 20)), true));
        assert!(stall.look(after(4), None, debt(2 << 20, 10 + (2 << 20) - 1), true));
        // All that it owed is enough; what it was asked for meanwhile it has since then.
        let mut stall = Stall::new(STALL, WANTED);
        assert!(!stall.look(begun, debt(4096, 0), None, true));
        assert!(!stall.look(after(1), debt(8192, 4096), None, true));
        assert!(stall.look(after(2), debt(8192, 4096), None, true));
    }
}
