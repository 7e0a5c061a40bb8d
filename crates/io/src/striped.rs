//! What many threads count, in copies that they do not share: a processor that adds to what another has just added to waits for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Copies; threads beyond so many share theirs.
const STRIPES: usize = 8;

/// A copy for each of some threads.
#[derive(Debug, Default)]
pub struct Striped<T> {
    copies: [Apart<T>; STRIPES],
}

/// Alone in its cache lines, of which processors fetch two at a time.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl<T> Striped<T> {
    /// The calling thread's copy.
    pub fn mine(&self) -> &T {
        &self.copies[stripe() % STRIPES].0
    }

    /// All copies, in an order that stays.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.copies.iter().map(|copy| &copy.0)
    }
}

/// The number of this thread, in the order in which threads first ask.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    let known = STRIPE.try_with(|stripe| {
        stripe.get().unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Relaxed);
            stripe.set(Some(next));
            next
        })
    });
    // A thread that ends has none any more.
    known.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_its_copy_and_all_add_up() {
        let striped = Striped::<AtomicUsize>::default();
        let count = || {
            striped.mine().fetch_add(1, Relaxed);
            std::ptr::from_ref(striped.mine()).addr()
        };
        let mut places: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..STRIPES).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 1, "they do not all share one");
        let sum: usize = striped.all().map(|one| one.load(Relaxed)).sum();
        assert_eq!(sum, STRIPES);
    }
}
