//! MD5 of bodies, up to sixteen at a time.
//!
//! MD5 is one chain of dependent additions, so a core hashes several bodies interleaved in little more time than one
//! ([`Md5::update_all`]). Buffers therefore wait for those of other bodies; what finds no partner in time is hashed alone.
//!
//! - A large buffer waits for those of all threads, until every large body in the process has one here or [`PATIENCE`] is over. Whoever
//!   comes last hashes for all.
//! - A small one waits for those of its thread, one turn of the run queue.
//!
//! Both do so only as long as that has been worth it on their thread lately. No thread ever waits.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay_mem::Buf;
use forebay_proto::md5::Md5;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Buffers from this length on wait for those of other threads, too.
const LARGE_BYTES_MIN: usize = 128 << 10;
/// How long they wait: as long as half a buffer of 1 MiB takes alone, on a clock that counts milliseconds.
const PATIENCE: Duration = Duration::from_millis(1);
/// Shorter buffers are not worth a wait: a turn costs about as much as 300 bytes of MD5.
const SMALL_BYTES_MIN: usize = 2 << 10;
/// After waits in vain so many buffers, at most, do not wait.
const RELUCTANCE_MAX: u32 = 64;

/// Bodies being hashed in this process that have large buffers.
static LARGE_BODIES: AtomicUsize = AtomicUsize::new(0);

/// The large buffers that wait.
static LARGE: Mutex<Vec<Arc<Seat>>> = Mutex::new(Vec::new());

/// Bodies hashed together at most.
static LANES: LazyLock<usize> = LazyLock::new(Md5::lanes);

thread_local! {
    /// The small buffers that wait on this thread.
    static SMALL: RefCell<Vec<Arc<Seat>>> = const { RefCell::new(Vec::new()) };
    /// Of small buffers and of large ones on this thread.
    static RELUCTANCE: [Cell<Reluctance>; 2] = const { [const { Cell::new(Reluctance { skip: 0, next: 1 }) }; 2] };
}

/// Whether buffers wait: those that found no partner make the next ones skip the wait, twice as many each time.
#[derive(Clone, Copy)]
struct Reluctance {
    /// Buffers that still do not wait.
    skip: u32,
    /// How many will not after the next wait in vain.
    next: u32,
}

impl Reluctance {
    /// Whether this one waits.
    fn asks(large: bool) -> bool {
        RELUCTANCE.with(|all| {
            let now = all[usize::from(large)].get();
            all[usize::from(large)].set(Reluctance {
                skip: now.skip.saturating_sub(1),
                ..now
            });
            now.skip == 0
        })
    }

    fn learns(large: bool, found: bool) {
        RELUCTANCE.with(|all| {
            let next = all[usize::from(large)].get().next;
            all[usize::from(large)].set(match found {
                true => Reluctance { skip: 0, next: 1 },
                false => Reluctance {
                    skip: next,
                    next: (next * 2).min(RELUCTANCE_MAX),
                },
            });
        });
    }
}

/// Where a waiting buffer and its partners meet.
struct Seat {
    state: Mutex<State>,
    /// Told when it was hashed, or may be by whoever waits here.
    told: Notify,
}

enum State {
    Waiting(Md5, Buf),
    /// A partner is at it.
    Taken,
    /// A partner did the work.
    Hashed(Md5),
    /// Whoever waited is gone.
    Empty,
}

/// The MD5 of one body.
pub(crate) struct Lane {
    md5: Md5,
    large: bool,
}

impl Lane {
    /// Of a body of `length` bytes.
    pub(crate) fn new(length: u64) -> Lane {
        let large = length >= LARGE_BYTES_MIN as u64;
        LARGE_BODIES.fetch_add(usize::from(large), Relaxed);
        Lane {
            md5: Md5::default(),
            large,
        }
    }

    /// Appends a buffer.
    pub(crate) async fn update(&mut self, buf: Buf) {
        if buf.len() >= LARGE_BYTES_MIN && LARGE_BODIES.load(Relaxed) > 1 {
            let seat = Sitting::down(&self.md5, buf);
            self.md5 = seat.among_all().await;
        } else if buf.len() >= SMALL_BYTES_MIN
            && buf.len() < LARGE_BYTES_MIN
            && Reluctance::asks(false)
        {
            let seat = Sitting::down(&self.md5, buf);
            self.md5 = seat.on_this_thread().await;
        } else {
            self.md5.update(&buf);
        }
    }

    pub(crate) fn finalize(self) -> [u8; 16] {
        self.md5.clone().finalize()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.large {
            return;
        }
        LARGE_BODIES.fetch_sub(1, Relaxed);
        // All that are left may be waiting for this one.
        let waiting = LARGE.lock();
        if is_enough(waiting.len())
            && let Some(one) = waiting.first()
        {
            one.told.notify_one();
        }
    }
}

/// Whether large buffers wait no longer: nobody is left who could come, or there is no lane for more.
fn is_enough(waiting: usize) -> bool {
    waiting >= LARGE_BODIES.load(Relaxed).clamp(1, *LANES)
}

/// A buffer's place among those that wait. Goes with the one who took it, so that no buffer stays behind with a body that was given up.
struct Sitting(Arc<Seat>);

impl Sitting {
    fn down(md5: &Md5, buf: Buf) -> Sitting {
        Sitting(Arc::new(Seat {
            state: Mutex::new(State::Waiting(md5.clone(), buf)),
            told: Notify::new(),
        }))
    }

    /// Hashed with the large buffers of all threads.
    async fn among_all(self) -> Md5 {
        let waits = Reluctance::asks(true);
        let come = {
            let mut waiting = LARGE.lock();
            waiting.push(self.0.clone());
            let enough = !waits || is_enough(waiting.len());
            enough.then(|| std::mem::take(&mut *waiting))
        };
        let together = match come {
            Some(come) => hash_all(come),
            None => self.wait().await,
        };
        if waits || together > 1 {
            Reluctance::learns(true, together > 1);
        }
        self.hashed().await
    }

    /// Until the buffer is hashed, if need be by the one who waits here; tells with how many, itself included.
    async fn wait(&self) -> usize {
        let mut patience = pin!(tokio::time::sleep(PATIENCE));
        let mut patient = true;
        loop {
            tokio::select! {
                () = self.0.told.notified() => {}
                () = &mut patience, if patient => patient = false,
            }
            let come = {
                let mut waiting = LARGE.lock();
                match &*self.0.state.lock() {
                    State::Waiting(..) if !patient || is_enough(waiting.len()) => {
                        std::mem::take(&mut *waiting)
                    }
                    State::Waiting(..) | State::Taken => continue,
                    State::Hashed(_) | State::Empty => return 2,
                }
            };
            return hash_all(come);
        }
    }

    /// Hashed with what waits on this thread, after a turn in which more of it may come.
    async fn on_this_thread(self) -> Md5 {
        SMALL.with(|waiting| waiting.borrow_mut().push(self.0.clone()));
        tokio::task::yield_now().await;
        let waits = matches!(*self.0.state.lock(), State::Waiting(..));
        let found = !waits || {
            let mut come = SMALL.with(RefCell::take);
            // It waits on the thread where its task was before, if that was another.
            if !come.iter().any(|seat| Arc::ptr_eq(seat, &self.0)) {
                come.push(self.0.clone());
            }
            hash_all(come) > 1
        };
        Reluctance::learns(false, found);
        self.hashed().await
    }

    /// What was made of the buffer, as soon as whoever is at it is through.
    async fn hashed(self) -> Md5 {
        loop {
            if let State::Hashed(md5) = &*self.0.state.lock() {
                return md5.clone();
            }
            self.0.told.notified().await;
        }
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.0.state.lock(), State::Empty);
        if let State::Waiting(..) = left {
            let mut waiting = LARGE.lock();
            waiting.retain(|seat| !Arc::ptr_eq(seat, &self.0));
        }
    }
}

/// A body that was taken from its seat, and the bytes to append.
type Body = (Arc<Seat>, Md5, Buf);

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

/// Hashes what waits in these seats; tells how many bodies that were.
fn hash_all(seats: Vec<Arc<Seat>>) -> usize {
    let mut bodies: Vec<_> = seats
        .into_iter()
        .filter_map(|seat| {
            let mut state = seat.state.lock();
            match std::mem::replace(&mut *state, State::Taken) {
                State::Waiting(md5, buf) => {
                    drop(state);
                    Some((seat, md5, buf))
                }
                // Given up, or hashed by another meanwhile.
                other => {
                    *state = other;
                    None
                }
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
        let mut state = seat.state.lock();
        if let State::Taken = &*state {
            *state = State::Hashed(md5);
            seat.told.notify_one();
        }
    }
    together
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
        let mut lane = Lane::new(lengths.iter().sum::<usize>() as u64);
        let mut whole = Vec::new();
        for length in lengths {
            let part = bytes(seed, length);
            lane.update(part.clone().into()).await;
            whole.extend(part);
        }
        assert_eq!(lane.finalize(), Md5::digest(&whole), "{seed}");
    }

    /// Five bodies of four buffers each, some of which are not long enough to be shared.
    async fn hash_five(base: usize) {
        let bodies = (0..5u32).map(|seed| {
            let length = |step| base - 100 + (seed as usize * 7 + step) * 1000;
            tokio::spawn(hash(seed, (0..4).map(length).collect()))
        });
        for body in bodies.collect::<Vec<_>>() {
            body.await.expect("hashes");
        }
    }

    #[tokio::test]
    async fn bodies_hash_as_each_would_alone() {
        for base in [SMALL_BYTES_MIN, LARGE_BYTES_MIN] {
            hash_five(base).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn bodies_of_several_threads_hash_as_each_would_alone() {
        for base in [SMALL_BYTES_MIN, LARGE_BYTES_MIN, SMALL_BYTES_MIN] {
            let fives = [base, base + 1, base].map(|base| tokio::spawn(hash_five(base)));
            for five in fives {
                five.await.expect("hashes");
            }
        }
    }

    #[tokio::test]
    async fn those_who_wait_go_on_when_nobody_else_can_come() {
        let length = LARGE_BYTES_MIN as u64;
        let (mut first, other) = (Lane::new(length), Lane::new(length));
        let part = bytes(1, LARGE_BYTES_MIN);
        let ends = async {
            tokio::task::yield_now().await;
            drop(other);
        };
        tokio::join!(first.update(part.clone().into()), ends);
        assert_eq!(first.finalize(), Md5::digest(&part));
    }

    #[tokio::test]
    async fn a_body_that_is_given_up_leaves_no_buffer_behind() {
        let pool = forebay_mem::Pool::new(1 << 20);
        let length = LARGE_BYTES_MIN as u64;
        let (mut lane, _other) = (Lane::new(length), Lane::new(length));
        let mut buf = pool.take(LARGE_BYTES_MIN).await;
        buf.set_len(LARGE_BYTES_MIN);
        {
            let waiting = pin!(lane.update(buf.freeze()));
            let _ = futures_util::poll!(waiting);
        }
        assert_eq!(pool.usage().in_use, 0);
    }
}
