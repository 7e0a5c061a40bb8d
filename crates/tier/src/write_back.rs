//! Values acknowledged before the store has committed them, in namespaces that allow it.
//!
//! The store has every byte already: only its commit is still under way. Until it is done the value is read from here, and whatever
//! would notice that it is missing from the store waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_store::Meta;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::index::Place;
use crate::piece::Piece;

type PendingKey = (u32, Arc<[u8]>);

/// A value that is whole in memory and not yet in the store.
#[derive(Debug)]
pub(crate) struct Pending {
    pub meta: Meta,
    pub pieces: Vec<Piece>,
}

/// What waits, of at most so many bytes.
#[derive(Debug)]
pub(crate) struct WriteBack {
    most: u64,
    waiting: AtomicU64,
    pending: Mutex<HashMap<PendingKey, Arc<Pending>>>,
    landed: Notify,
}

impl WriteBack {
    /// Nothing waits. With no bytes nothing ever does.
    pub fn new(most: u64) -> WriteBack {
        WriteBack {
            most,
            waiting: AtomicU64::new(0),
            pending: Mutex::default(),
            landed: Notify::new(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.most > 0
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.load(SeqCst)
    }

    /// Lets a value wait; `false` when there is no room, or when one of its key waits already.
    pub fn begin(&self, place: &Place, pending: Arc<Pending>) -> bool {
        let bytes = pending.meta.size;
        let mut table = self.pending.lock();
        let key = (place.namespace.id, place.key.clone());
        if self.waiting_bytes() + bytes > self.most || table.contains_key(&key) {
            return false;
        }
        self.waiting.fetch_add(bytes, SeqCst);
        table.insert(key, pending);
        true
    }

    /// The store has it, or refused it.
    pub fn end(&self, place: &Place) {
        let key = (place.namespace.id, place.key.clone());
        if let Some(pending) = self.pending.lock().remove(&key) {
            self.waiting.fetch_sub(pending.meta.size, SeqCst);
        }
        self.landed.notify_waiters();
    }

    /// What waits under a key.
    pub fn find(&self, place: &Place) -> Option<Arc<Pending>> {
        if !self.is_on() {
            return None;
        }
        let key = (place.namespace.id, place.key.clone());
        self.pending.lock().get(&key).cloned()
    }

    /// Returns when nothing waits under a key.
    pub async fn settle(&self, place: &Place) {
        let key = (place.namespace.id, place.key.clone());
        self.until(|table| !table.contains_key(&key)).await;
    }

    /// Returns when nothing waits in a namespace.
    pub async fn settle_namespace(&self, id: u32) {
        self.until(|table| table.keys().all(|key| key.0 != id))
            .await;
    }

    /// Returns when nothing waits at all.
    pub async fn settle_all(&self) {
        self.until(HashMap::is_empty).await;
    }

    async fn until(&self, done: impl Fn(&HashMap<PendingKey, Arc<Pending>>) -> bool) {
        if !self.is_on() {
            return;
        }
        loop {
            let landed = self.landed.notified();
            tokio::pin!(landed);
            landed.as_mut().enable();
            if done(&self.pending.lock()) {
                return;
            }
            landed.await;
        }
    }
}
