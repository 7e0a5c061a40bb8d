//! Futures that run side by side in one task, in places that are used again.
//!
//! `FuturesUnordered` allocates for each future; a link or a queue starts hundreds of thousands a second, most of which are ready when
//! they are first polled. Here a place keeps its allocation and its waker, and only woken places are polled.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// At most `limit` futures.
pub struct Slots<F> {
    places: Vec<Place<F>>,
    idle: Vec<usize>,
    limit: usize,
    woken: Arc<Woken>,
}

struct Place<F> {
    /// Boxed once; `None` while idle.
    future: Pin<Box<Option<F>>>,
    waker: Waker,
}

/// Which places were woken, a bit each, and the task they run in.
struct Woken {
    words: Box<[AtomicU64]>,
    task: AtomicWaker,
}

struct PlaceWaker {
    woken: Arc<Woken>,
    place: usize,
}

impl Woken {
    fn mark(&self, place: usize) -> bool {
        let word = self.words.get(place / 64);
        word.map(|word| word.fetch_or(1 << (place % 64), AcqRel))
            .is_some()
    }
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.mark(self.place) {
            self.woken.task.wake();
        }
    }
}

impl<F: Future> Slots<F> {
    /// Places that are made when they are first needed.
    pub fn new(limit: usize) -> Slots<F> {
        let words = (0..limit.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Slots {
            places: Vec::new(),
            idle: Vec::new(),
            limit,
            woken: Arc::new(Woken {
                words,
                task: AtomicWaker::new(),
            }),
        }
    }

    /// How many futures are not finished.
    pub fn busy(&self) -> usize {
        self.places.len() - self.idle.len()
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.busy() >= self.limit
    }

    /// Takes a place for a future, which is to be given to [`Slots::start`] next; `None` when all are taken.
    pub fn place(&mut self) -> Option<usize> {
        if let Some(at) = self.idle.pop() {
            return Some(at);
        }
        let place = self.places.len();
        if place == self.limit {
            return None;
        }
        let woken = self.woken.clone();
        self.places.push(Place {
            future: Box::pin(None),
            waker: Waker::from(Arc::new(PlaceWaker { woken, place })),
        });
        Some(place)
    }

    /// Gives a place back that was taken for nothing.
    pub fn give_back(&mut self, at: usize) {
        self.idle.push(at);
    }

    /// Starts a future in its place: what it is ready with at once, or nothing, and then it goes on here.
    pub fn start(&mut self, at: usize, future: F) -> Option<F::Output> {
        self.places.get_mut(at)?.future.set(Some(future));
        self.poll(at)
    }

    /// Starts a future in any place. There must be one ([`Slots::is_full`]).
    pub fn add(&mut self, future: F) -> Option<F::Output> {
        let place = self.place();
        debug_assert!(place.is_some(), "more futures than places");
        self.start(place?, future)
    }

    /// Says that a place is to be polled at the next [`Slots::poll_woken`], by who is about to call it.
    pub fn mark(&self, at: usize) {
        self.woken.mark(at);
    }

    /// Polls what was woken; calls `done` with each place that is free again and its output.
    pub fn poll_woken(&mut self, cx: &mut Context<'_>, mut done: impl FnMut(usize, F::Output)) {
        // Before the bits are read: whoever sets one later, for a future started later too, wakes this task again.
        self.woken.task.register(cx.waker());
        if self.busy() == 0 {
            return;
        }
        let woken = self.woken.clone();
        for (number, word) in woken.words.iter().enumerate() {
            let mut bits = word.swap(0, AcqRel);
            while bits != 0 {
                let at = number * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(output) = self.poll(at) {
                    done(at, output);
                }
            }
        }
    }

    /// Polls one place, if a future is in it.
    pub fn poll(&mut self, at: usize) -> Option<F::Output> {
        let place = self.places.get_mut(at)?;
        // A place may be woken once more after its future has finished.
        let future = place.future.as_mut().as_pin_mut()?;
        match future.poll(&mut Context::from_waker(&place.waker)) {
            Poll::Pending => None,
            Poll::Ready(output) => {
                place.future.set(None);
                self.idle.push(at);
                Some(output)
            }
        }
    }

    /// Drops the future of a place, which is to be given another by [`Slots::start`] next; false when there is none.
    pub fn cancel(&mut self, at: usize) -> bool {
        let Some(place) = self.places.get_mut(at) else {
            return false;
        };
        if place.future.is_none() {
            return false;
        }
        place.future.set(None);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn only_what_was_woken_is_polled_and_places_are_used_again() {
        let mut slots = Slots::new(70);
        let mut senders = Vec::new();
        for _ in 0..70 {
            let (sender, receiver) = oneshot::channel::<usize>();
            let at = slots.place().unwrap();
            assert!(slots.start(at, receiver).is_none());
            senders.push(sender);
        }
        assert!(slots.is_full() && slots.place().is_none());
        for (number, sender) in senders.drain(..).enumerate().rev() {
            sender.send(number).unwrap();
            let output = poll_fn(|cx| {
                let mut outputs = Vec::new();
                slots.poll_woken(cx, |at, output| outputs.push((at, output)));
                match outputs.as_slice() {
                    [] => Poll::Pending,
                    [only] => Poll::Ready(only.clone()),
                    more => panic!("{more:?}"),
                }
            });
            assert_eq!(output.await, (number, Ok(number)));
        }
        assert_eq!((slots.busy(), slots.places.len()), (0, 70));
        let (sender, receiver) = oneshot::channel();
        sender.send(7).unwrap();
        assert_eq!(slots.add(receiver), Some(Ok(7)));
        assert_eq!((slots.busy(), slots.places.len()), (0, 70));
    }

    #[tokio::test]
    async fn a_future_started_after_the_look_wakes_its_task() {
        let mut slots = Slots::new(2);
        let (sender, receiver) = oneshot::channel();
        let mut receiver = Some(receiver);
        let waiting = tokio::spawn(async move {
            poll_fn(|cx| {
                let mut output = None;
                slots.poll_woken(cx, |_, done| output = Some(done));
                if let Some(receiver) = receiver.take() {
                    assert!(slots.add(receiver).is_none());
                }
                output.map_or(Poll::Pending, Poll::Ready)
            })
            .await
        });
        tokio::task::yield_now().await;
        sender.send(1).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(1));
    }

    #[tokio::test]
    async fn a_cancelled_future_is_dropped_and_its_place_used_again() {
        let mut slots = Slots::new(1);
        let (sender, receiver) = oneshot::channel::<()>();
        let at = slots.place().unwrap();
        assert!(slots.start(at, receiver).is_none());
        assert!(slots.cancel(at) && sender.is_closed());
        assert!(!slots.cancel(at) && !slots.cancel(7));
        assert_eq!((slots.place(), slots.busy()), (None, 1));
        let (sender, receiver) = oneshot::channel();
        sender.send(()).unwrap();
        assert_eq!(slots.start(at, receiver), Some(Ok(())));
        assert_eq!((slots.place(), slots.place()), (Some(at), None));
    }
}
