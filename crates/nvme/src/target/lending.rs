//! Memory that commands may hold for data that a host has still to send, or to take.
//!
//! A command that holds a buffer and waits for its host must never wait for a command that has none yet: their data share a stream, and
//! what comes first is not for the one that could end. So a command is lent all that it will hold before its host is asked for anything.

use forebay_mem::BLOCK_MAX_BYTES;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory is lent in units of this many bytes.
const UNIT_BYTES: u32 = 4096;
/// What a command in progress holds of its data at most: a buffer that moves and one that follows.
const COMMAND_BYTES_MAX: u32 = 2 * BLOCK_MAX_BYTES as u32;

/// So much memory, lent in the order in which it is asked for.
#[derive(Debug)]
pub(crate) struct Lending {
    free: Semaphore,
    units: u32,
}

impl Lending {
    pub(crate) fn new(bytes: u64) -> Lending {
        let units = bytes / u64::from(UNIT_BYTES);
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u64) as u32;
        Lending {
            free: Semaphore::new(units as usize),
            units,
        }
    }

    /// How much it is.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * u64::from(UNIT_BYTES)
    }

    /// Waits until a command with so many bytes of data may hold buffers for them: their lengths are powers of two.
    pub(crate) async fn lend(&self, bytes: u32) -> Option<SemaphorePermit<'_>> {
        let held = bytes.min(COMMAND_BYTES_MAX).next_power_of_two();
        let units = held.div_ceil(UNIT_BYTES).min(self.units);
        self.free.acquire_many(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn what_is_lent_is_bounded_and_a_command_is_never_too_large() {
        let lending = Lending::new(4 << 20);
        let mut cx = Context::from_waker(Waker::noop());
        let first = lending.lend(u32::MAX).await.unwrap();
        // A buffer of a megabyte.
        let second = lending.lend((512 << 10) + 1).await.unwrap();
        let mut third = pin!(lending.lend(2 << 20));
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_ready());
        drop(first);
        // Little is lent to one at a time.
        let little = Lending::new(0);
        assert_eq!(little.bytes(), u64::from(UNIT_BYTES));
        assert!(little.lend(u32::MAX).await.is_some());
    }
}
