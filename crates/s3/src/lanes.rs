//! MD5 of bodies, up to sixteen at a time.
//!
//! MD5 is one chain of dependent additions, so a core hashes several bodies interleaved in little more time than one
//! ([`Md5::update_all`]). Buffers therefore wait a moment for those of other bodies on the same thread; what finds no partner in
//! that moment is hashed alone. No thread ever waits: the waiting is a few turns of the run queue. A small buffer waits one turn, and
//! only as long as that has been worth it on this thread lately.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use forebay_mem::Buf;
use forebay_proto::md5::Md5;
use parking_lot::Mutex;

/// Buffers from this length on wait whenever there is another body at all.
const LARGE_BYTES_MIN: usize = 128 << 10;
/// How often a large buffer lets other tasks run before it is hashed alone.
const TURNS_LARGE: usize = 16;
/// Shorter buffers are not worth a wait: a turn costs about as much as 300 bytes of MD5.
const SMALL_BYTES_MIN: usize = 2 << 10;
const TURNS_SMALL: usize = 1;
/// After waits in vain so many small buffers, at most, do not wait.
const RELUCTANCE_MAX: u32 = 64;

/// Bodies being hashed in this process.
static BODIES: AtomicUsize = AtomicUsize::new(0);

/// Bodies hashed together at most.
static LANES: LazyLock<usize> = LazyLock::new(Md5::lanes);

thread_local! {
    /// The buffers that wait on this thread, small and large ones apart: those of similar length last together.
    static WAITING: [RefCell<Vec<Arc<Mutex<Seat>>>>; 2] = const { [const { RefCell::new(Vec::new()) }; 2] };
    /// Small buffers on this thread.
    static SMALL: Cell<Reluctance> = const { Cell::new(Reluctance { skip: 0, next: 1 }) };
}

/// Whether small buffers wait: those that found no partner make the next ones skip the wait, twice as many each time.
#[derive(Clone, Copy)]
struct Reluctance {
    /// Buffers that still do not wait.
    skip: u32,
    /// How many will not after the next wait in vain.
    next: u32,
}

impl Reluctance {
    /// Whether this one waits.
    fn asks() -> bool {
        let now = SMALL.get();
        SMALL.set(Reluctance {
            skip: now.skip.saturating_sub(1),
            ..now
        });
        now.skip == 0
    }

    fn learns(found: bool) {
        let next = SMALL.get().next;
        SMALL.set(match found {
            true => Reluctance { skip: 0, next: 1 },
            false => Reluctance {
                skip: next,
                next: (next * 2).min(RELUCTANCE_MAX),
            },
        });
    }
}

/// Where a waiting buffer and its partners meet.
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
        let large = buf.len() >= LARGE_BYTES_MIN;
        let turns = match large {
            true if BODIES.load(Relaxed) > 1 => TURNS_LARGE,
            false if buf.len() >= SMALL_BYTES_MIN && Reluctance::asks() => TURNS_SMALL,
            _ => 0,
        };
        if turns == 0 {
            self.md5.update(&buf);
            return;
        }
        let found = self.share(buf, large, turns).await;
        if !large {
            Reluctance::learns(found);
        }
    }

    pub(crate) fn finalize(self) -> [u8; 16] {
        self.md5.clone().finalize()
    }

    /// Hashes together with what waits on this thread, after waiting for more of it; says whether there was any.
    async fn share(&mut self, buf: Buf, large: bool, turns: usize) -> bool {
        let seat = Taken(Arc::new(Mutex::new(Seat::Waiting(self.md5.clone(), buf))));
        let full = WAITING.with(|waiting| {
            let mut waiting = waiting[usize::from(large)].borrow_mut();
            waiting.push(seat.0.clone());
            waiting.len() == *LANES
        });
        for _ in 0..if full { 0 } else { turns } {
            tokio::task::yield_now().await;
            if let Seat::Hashed(md5) = &*seat.0.lock() {
                self.md5 = md5.clone();
                return true;
            }
        }
        let together = hash_waiting(large);
        match std::mem::replace(&mut *seat.0.lock(), Seat::Empty) {
            Seat::Hashed(md5) => self.md5 = md5,
            // It waits on the thread where its task was before.
            Seat::Waiting(mut md5, buf) => {
                md5.update(&buf);
                self.md5 = md5;
            }
            Seat::Empty => {}
        }
        together > 1
    }
}

/// A body that was taken from its seat, and the bytes to append.
type Body = (Arc<Mutex<Seat>>, Md5, Buf);

/// Hashes up to `N` together, lanes that are left over repeating the shortest body; tells how many those are.
fn hash<const N: usize>(bodies: &mut [Body]) -> usize {
    let count = bodies.len().min(N);
    let bodies = &mut bodies[..count];
    let shortest = bodies
        .iter()
        .map(|(_, _, buf)| buf)
        .min_by_key(|buf| buf.len());
    let repeated = shortest.cloned();
    let mut spare: [Md5; N] = std::array::from_fn(|_| Md5::default());
    let mut lanes = spare
        .each_mut()
        .map(|md5| (md5, repeated.as_deref().unwrap_or_default()));
    for (lane, (_, md5, buf)) in lanes.iter_mut().zip(bodies) {
        *lane = (md5, &buf[..]);
    }
    Md5::update_all(lanes);
    count
}

/// Hashes everything that waits on this thread; tells how many bodies that were.
fn hash_waiting(large: bool) -> usize {
    let seats = WAITING.with(|waiting| waiting[usize::from(large)].take());
    let mut bodies: Vec<_> = seats
        .into_iter()
        .filter_map(|seat| {
            let taken = std::mem::replace(&mut *seat.lock(), Seat::Empty);
            match taken {
                Seat::Waiting(md5, buf) => Some((seat, md5, buf)),
                // Given up meanwhile.
                Seat::Hashed(_) | Seat::Empty => None,
            }
        })
        .collect();
    let mut rest = &mut bodies[..];
    while !rest.is_empty() {
        // Wider vectors pay from the first body that narrower ones have no lane for.
        let count = match (rest.len(), *LANES) {
            (5.., 16) => hash::<16>(rest),
            (5.., 8) => hash::<8>(rest),
            (3.., _) => hash::<4>(rest),
            (2, _) => hash::<2>(rest),
            _ => hash::<1>(rest),
        };
        rest = &mut rest[count..];
    }
    let together = bodies.len();
    for (seat, md5, _) in bodies {
        *seat.lock() = Seat::Hashed(md5);
    }
    together
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
    async fn bodies_hash_as_each_would_alone() {
        for base in [SMALL_BYTES_MIN, LARGE_BYTES_MIN] {
            let bodies = (0..5u32).map(|seed| {
                let lengths = (0..4)
                    .map(|step| base - 100 + (seed as usize * 7 + step) * 1000)
                    .collect();
                tokio::spawn(hash(seed, lengths))
            });
            for body in bodies.collect::<Vec<_>>() {
                body.await.expect("hashes");
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_given_up_leaves_no_buffer_behind() {
        let pool = forebay_mem::Pool::new(1 << 20);
        let _other = Lane::new();
        let mut lane = Lane::new();
        let mut buf = pool.take(LARGE_BYTES_MIN).await;
        buf.set_len(LARGE_BYTES_MIN);
        let waiting = lane.update(buf.freeze());
        tokio::select! {
            biased;
            () = waiting => panic!("nobody else hashes on this thread"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(pool.usage().in_use, 0);
    }
}
