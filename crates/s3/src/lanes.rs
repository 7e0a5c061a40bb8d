//! MD5 of bodies, two at a time.
//!
//! MD5 is one chain of dependent additions, so a core hashes two bodies interleaved in little more time than one
//! ([`Md5::update_pair`]). Large buffers therefore wait a moment for one of another body on the same thread; what finds no
//! partner in that moment is hashed alone. No thread ever waits: the waiting is a few turns of the run queue.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_mem::Buf;
use forebay_proto::md5::Md5;
use parking_lot::Mutex;

/// Shorter buffers are not worth a wait.
const PAIR_BYTES_MIN: usize = 128 << 10;
/// How often a buffer lets other tasks run before it is hashed alone.
const TURNS: usize = 16;

/// Bodies being hashed in this process.
static BODIES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The buffer that waits on this thread, if one does.
    static WAITING: RefCell<Option<Arc<Mutex<Seat>>>> = const { RefCell::new(None) };
}

/// Where a waiting buffer and its partner meet.
enum Seat {
    Waiting(Md5, Buf),
    /// A partner did the work.
    Hashed(Md5),
    /// Whoever waited took it back, or is gone.
    Empty,
}

/// The MD5 of one body.
pub(crate) struct Lane {
    md5: Md5,
}

impl Lane {
    pub(crate) fn new() -> Lane {
        BODIES.fetch_add(1, Relaxed);
        Lane {
            md5: Md5::default(),
        }
    }

    /// Appends a buffer.
    pub(crate) async fn update(&mut self, buf: Buf) {
        if buf.len() < PAIR_BYTES_MIN || BODIES.load(Relaxed) < 2 {
            self.md5.update(&buf);
        } else if !self.join(&buf) {
            self.wait(buf).await;
        }
    }

    pub(crate) fn finalize(self) -> [u8; 16] {
        self.md5.clone().finalize()
    }

    /// Hashes together with the buffer that waits on this thread; false when none does.
    fn join(&mut self, buf: &Buf) -> bool {
        let Some(seat) = WAITING.take() else {
            return false;
        };
        let mut seat = seat.lock();
        match std::mem::replace(&mut *seat, Seat::Empty) {
            Seat::Waiting(mut theirs, their_buf) => {
                self.md5.update_pair(buf, &mut theirs, &their_buf);
                *seat = Seat::Hashed(theirs);
                true
            }
            other => {
                *seat = other;
                false
            }
        }
    }

    async fn wait(&mut self, buf: Buf) {
        let seat = Taken(Arc::new(Mutex::new(Seat::Waiting(self.md5.clone(), buf))));
        WAITING.set(Some(Arc::clone(&seat.0)));
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
            if matches!(*seat.0.lock(), Seat::Hashed(_)) {
                break;
            }
        }
        match std::mem::replace(&mut *seat.0.lock(), Seat::Empty) {
            Seat::Hashed(md5) => self.md5 = md5,
            Seat::Waiting(mut md5, buf) => {
                md5.update(&buf);
                self.md5 = md5;
            }
            Seat::Empty => {}
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        BODIES.fetch_sub(1, Relaxed);
    }
}

/// Clears the seat when the one who took it goes, so that no buffer stays behind with a body that was given up.
struct Taken(Arc<Mutex<Seat>>);

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.lock() = Seat::Empty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u32, length: usize) -> Vec<u8> {
        (0..length as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8)
            .collect()
    }

    async fn hash(seed: u32, lengths: Vec<usize>) {
        let mut lane = Lane::new();
        let mut whole = Vec::new();
        for length in lengths {
            let part = bytes(seed, length);
            lane.update(part.clone().into()).await;
            whole.extend(part);
        }
        assert_eq!(lane.finalize(), Md5::digest(&whole), "{seed}");
    }

    #[tokio::test]
    async fn pairs_hash_as_each_would_alone() {
        let bodies = (0..5u32).map(|seed| {
            let lengths = (0..4)
                .map(|step| (PAIR_BYTES_MIN - 100) + (seed as usize * 7 + step) * 1000)
                .collect();
            tokio::spawn(hash(seed, lengths))
        });
        for body in bodies.collect::<Vec<_>>() {
            body.await.expect("hashes");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_given_up_leaves_no_buffer_behind() {
        let pool = forebay_mem::Pool::new(1 << 20);
        let _other = Lane::new();
        let mut lane = Lane::new();
        let mut buf = pool.take(PAIR_BYTES_MIN).await;
        buf.set_len(PAIR_BYTES_MIN);
        let waiting = lane.update(buf.freeze());
        tokio::select! {
            biased;
            () = waiting => panic!("nobody else hashes on this thread"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(pool.usage().in_use, 0);
    }
}
