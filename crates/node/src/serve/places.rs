//! The connections that a small server has at once. One that waits for its client makes way for one that comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};

/// So many of them.
pub struct Places {
    max: u32,
    free: Arc<Semaphore>,
    taken: AtomicU64,
    /// Those that wait for their clients, in the order in which they came.
    waiting: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

/// A connection's, until its last clone is dropped.
pub struct Place {
    number: u64,
    places: Arc<Places>,
    make_way: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(max: u32) -> Arc<Places> {
        Arc::new(Places {
            max,
            free: Arc::new(Semaphore::new(max as usize)),
            taken: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    /// A place for a connection that has come and waits for its client. When all are taken it is that of the one that has waited longest;
    /// where none waits this one does.
    pub async fn take(self: &Arc<Places>) -> Result<Arc<Place>, AcquireError> {
        if self.free.available_permits() == 0
            && let Some((_, make_way)) = self.waiting.lock().pop_first()
        {
            make_way.notify_one();
        }
        let permit = self.free.clone().acquire_owned().await?;
        let place = Place {
            number: self.taken.fetch_add(1, Relaxed),
            places: self.clone(),
            make_way: Arc::default(),
            _permit: permit,
        };
        place.wait();
        Ok(Arc::new(place))
    }

    /// Returns when nobody has one.
    pub async fn all_free(&self) {
        // It fails only when the semaphore is closed, which nobody does.
        let _ = self.free.acquire_many(self.max).await;
    }
}

impl Place {
    /// The client is waited for: to say something, or to take what it asked for.
    pub fn wait(&self) {
        let make_way = self.make_way.clone();
        self.places.waiting.lock().insert(self.number, make_way);
    }

    /// The client waits for us.
    pub fn work(&self) {
        self.places.waiting.lock().remove(&self.number);
    }

    /// Returns when this place is another's.
    pub async fn lost(&self) {
        self.make_way.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.work();
    }
}
