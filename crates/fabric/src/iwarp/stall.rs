//! Whether the peer goes on with what it has to take and to answer.
//!
//! What a link is to send, and what it is to receive into, is memory of its owner. A peer that leaves it so keeps it from everybody else.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::STALL_BYTES;

/// How far both directions are, counted from the link's begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// Bytes that are to be sent, as far as they are cut into segments.
    pub(super) cut: u64,
    /// Of those, what the system took.
    pub(super) sent: u64,
    /// Reads that the peer was asked for.
    pub(super) asked: u64,
    /// Of those, what it has answered.
    pub(super) answered: u64,
    /// Bytes that were received of answers.
    pub(super) received: u64,
}

impl Moved {
    fn is_owed(&self) -> bool {
        self.sent < self.cut || self.answered < self.asked
    }

    /// Whether less has moved since than is wanted, and not all that was owed then.
    fn is_late(&self, then: &Moved) -> bool {
        let takes = self.sent < then.cut && self.sent - then.sent < STALL_BYTES;
        let answers = self.answered < then.asked && self.received - then.received < STALL_BYTES;
        takes || answers
    }
}

/// Looks at a peer from time to time, while it owes something.
pub(super) struct Stall {
    time: Duration,
    look: Option<Moved>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// A peer has so much time between two looks.
    pub(super) fn new(time: Duration) -> Stall {
        Stall {
            time,
            look: None,
            timer: None,
        }
    }

    /// Whether the peer is too late; if not, the task is woken when it may be.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, now: Moved) -> bool {
        if !now.is_owed() {
            self.look = None;
            return false;
        }
        loop {
            let timer = match (&mut self.timer, self.look) {
                (Some(timer), Some(_)) => timer,
                (timer, _) => {
                    self.look = Some(now);
                    let end = Instant::now() + self.time;
                    let timer =
                        timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
                    timer.as_mut().reset(end);
                    timer
                }
            };
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            if self.look.take().is_some_and(|then| now.is_late(&then)) {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const TIME: Duration = Duration::from_secs(30);

    fn moved(cut: u64, sent: u64, asked: u64, answered: u64, received: u64) -> Moved {
        Moved {
            cut,
            sent,
            asked,
            answered,
            received,
        }
    }

    async fn after(stall: &mut Stall, time: Duration, now: Moved) -> bool {
        tokio::time::advance(time).await;
        stall.poll(&mut Context::from_waker(Waker::noop()), now)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_nothing_or_answers_nothing_is_late() {
        for owed in [moved(1 << 20, 0, 0, 0, 0), moved(0, 0, 1, 0, 0)] {
            let mut stall = Stall::new(TIME);
            assert!(!after(&mut stall, Duration::ZERO, owed).await);
            assert!(!after(&mut stall, TIME - Duration::from_secs(1), owed).await);
            assert!(after(&mut stall, Duration::from_secs(2), owed).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_a_little_at_a_time_is_late_and_whoever_owes_little_is_not() {
        let mut stall = Stall::new(TIME);
        assert!(!after(&mut stall, Duration::ZERO, moved(1 << 20, 0, 0, 0, 0)).await);
        let slowly = moved(1 << 20, STALL_BYTES, 0, 0, 0);
        assert!(!after(&mut stall, TIME * 2, slowly).await);
        let more = moved(2 << 20, 2 * STALL_BYTES - 1, 0, 0, 0);
        assert!(after(&mut stall, TIME * 2, more).await);
        // All that was owed then has gone, and as much is owed now.
        let mut stall = Stall::new(TIME);
        assert!(!after(&mut stall, Duration::ZERO, moved(100, 0, 2, 0, 0)).await);
        assert!(!after(&mut stall, TIME * 2, moved(200, 100, 4, 2, 10)).await);
        assert!(!after(&mut stall, TIME * 2, moved(300, 200, 6, 4, 20)).await);
        assert!(after(&mut stall, TIME * 2, moved(400, 300, 8, 5, 30)).await);
        // With nothing owed between, it has the whole time again.
        let mut stall = Stall::new(TIME);
        assert!(!after(&mut stall, Duration::ZERO, moved(100, 0, 0, 0, 0)).await);
        assert!(!after(&mut stall, TIME * 2, moved(100, 100, 0, 0, 0)).await);
        assert!(!after(&mut stall, TIME * 2, moved(200, 100, 0, 0, 0)).await);
        assert!(!after(&mut stall, TIME / 2, moved(200, 100, 0, 0, 0)).await);
    }
}
