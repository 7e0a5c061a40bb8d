//! A namespace's journal: changes and values under way, which the index or a record do not know yet. One object for a namespace.
//!
//! Every change of a key is preceded by an entry here, so entries of changes that happen at once are written together: while one write is
//! under way, what arrives waits for the next. Completions of the library drive it: it needs nobody to wait for it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::sys::{Errno, Guard, Place, WriteOp};

/// Writes under way at once. With one, all that is to be entered meanwhile goes with the next.
const WRITES: usize = 1;
/// Removals wait for the next entry to be written, until there are so many.
const IDLE_REMOVALS: usize = 128;

pub(crate) struct Journal {
    place: Arc<Place>,
    object: Vec<u8>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    set: Vec<(Vec<u8>, Vec<u8>)>,
    removed: Vec<Vec<u8>>,
    waiting: Vec<oneshot::Sender<Result<(), Errno>>>,
    writes: usize,
}

struct Batch {
    set: Vec<(Vec<u8>, Vec<u8>)>,
    removed: Vec<Vec<u8>>,
    waiting: Vec<oneshot::Sender<Result<(), Errno>>>,
}

impl Journal {
    pub fn new(place: Arc<Place>, object: Vec<u8>) -> Arc<Journal> {
        Arc::new(Journal {
            place,
            object,
            queue: Mutex::default(),
        })
    }

    pub fn object(&self) -> &[u8] {
        &self.object
    }

    /// Enters this, and returns when it is durable. `ENOENT`: the namespace is gone.
    pub async fn enter(self: &Arc<Self>, entries: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), Errno> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            queue.set.extend(entries);
            queue.waiting.push(sender);
        }
        self.pump(false);
        receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Enters and removes this some time later.
    pub fn later(
        self: &Arc<Self>,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        removed: impl IntoIterator<Item = Vec<u8>>,
    ) {
        {
            let mut queue = self.queue.lock();
            for name in removed {
                // What was not written yet need not be.
                queue.set.retain(|(entry, _)| *entry != name);
                queue.removed.push(name);
            }
            queue.set.extend(entries);
        }
        self.pump(false);
    }

    /// Writes what waits, now.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Errno> {
        let (sender, receiver) = oneshot::channel();
        self.queue.lock().waiting.push(sender);
        self.pump(true);
        receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Whether something waits to be written.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.set.is_empty() && queue.removed.is_empty() && queue.writes == 0
    }

    /// Begins the next write, if one may begin.
    fn pump(self: &Arc<Self>, now: bool) {
        let batch = {
            let mut queue = self.queue.lock();
            let due = now
                || !queue.set.is_empty()
                || !queue.waiting.is_empty()
                || queue.removed.len() >= IDLE_REMOVALS;
            if queue.writes >= WRITES || !due {
                return;
            }
            queue.writes += 1;
            Batch {
                set: std::mem::take(&mut queue.set),
                removed: std::mem::take(&mut queue.removed),
                waiting: std::mem::take(&mut queue.waiting),
            }
        };
        let mut op = WriteOp::new(&self.place).guard(Guard::Exists);
        op.omap_remove(batch.removed.iter().map(Vec::as_slice));
        op.omap_set(
            batch
                .set
                .iter()
                .map(|(name, value)| (&name[..], &value[..])),
        );
        let journal = self.clone();
        op.send(&self.place, &self.object, None, move |done| {
            journal.written(batch, done.map(|_| ()));
        });
    }

    fn written(self: Arc<Self>, batch: Batch, done: Result<(), Errno>) {
        let more = {
            let mut queue = self.queue.lock();
            queue.writes -= 1;
            match done {
                Ok(()) | Err(Errno(libc::ENOENT)) => true,
                // A removal is tried again with the next entry; an entry is its writer's affair.
                Err(_) => {
                    queue.removed.extend(batch.removed);
                    !queue.set.is_empty() || !queue.waiting.is_empty()
                }
            }
        };
        for waiting in batch.waiting {
            let _ = waiting.send(done);
        }
        if more {
            self.pump(false);
        }
    }
}
