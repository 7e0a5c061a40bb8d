//! A namespace's journal: changes and values under way, which the index or a record do not know yet. One object for a namespace.
//!
//! Every change of a key is preceded by an entry here, so entries of changes that happen at once are written together: while one write is
//! under way, what arrives waits for the next. Completions of the library drive it: it needs nobody to wait for it.

use std::collections::HashSet;
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

/// A key beside the journal's data, and its value.
type Line = (Vec<u8>, Vec<u8>);

#[derive(Default)]
struct Queue {
    next: Batch,
    writes: usize,
}

#[derive(Default)]
struct Batch {
    /// Entries whose writers wait, and do without them when they are told of an error.
    set: Vec<Line>,
    /// Entries that nobody waits for: they are tried until they are written.
    later: Vec<Line>,
    removed: Vec<Vec<u8>>,
    waiting: Vec<oneshot::Sender<Result<(), Errno>>>,
}

impl Batch {
    /// What somebody waits for is in it.
    fn is_awaited(&self) -> bool {
        !self.set.is_empty() || !self.waiting.is_empty()
    }

    fn remove(&mut self, names: Vec<Vec<u8>>) {
        // What was not written yet need not be.
        self.set.retain(without(&names));
        self.later.retain(without(&names));
        self.removed.extend(names);
    }

    /// Takes back what a write that failed was to enter and to remove. They stay together: stripes that a change let go are entered by
    /// the write that removes the change's own entry, which names them too.
    fn take_back(&mut self, failed: Batch) {
        let Batch { later, removed, .. } = failed;
        let again: Vec<Line> = later.into_iter().filter(without(&self.removed)).collect();
        self.later.splice(0..0, again);
        self.removed.extend(removed);
    }
}

/// Whether a line is none of these.
fn without(names: &[Vec<u8>]) -> impl Fn(&Line) -> bool {
    let names: HashSet<&Vec<u8>> = names.iter().collect();
    move |(entry, _)| !names.contains(entry)
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
            queue.next.set.extend(entries);
            queue.next.waiting.push(sender);
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
            queue.next.remove(removed.into_iter().collect());
            queue.next.later.extend(entries);
        }
        self.pump(false);
    }

    /// Writes what waits, now.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Errno> {
        let (sender, receiver) = oneshot::channel();
        self.queue.lock().next.waiting.push(sender);
        self.pump(true);
        receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Whether something waits to be written.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        let Batch { later, removed, .. } = &queue.next;
        !queue.next.is_awaited() && later.is_empty() && removed.is_empty() && queue.writes == 0
    }

    /// Begins the next write, if one may begin.
    fn pump(self: &Arc<Self>, now: bool) {
        let batch = {
            let mut queue = self.queue.lock();
            let due = now
                || queue.next.is_awaited()
                || !queue.next.later.is_empty()
                || queue.next.removed.len() >= IDLE_REMOVALS;
            if queue.writes >= WRITES || !due {
                return;
            }
            queue.writes += 1;
            std::mem::take(&mut queue.next)
        };
        let mut op = WriteOp::new(&self.place).guard(Guard::Exists);
        op.omap_remove(batch.removed.iter().map(Vec::as_slice));
        let entries = batch.set.iter().chain(&batch.later);
        op.omap_set(entries.map(|(name, value)| (&name[..], &value[..])));
        let journal = self.clone();
        op.send(&self.place, &self.object, None, move |done| {
            journal.written(batch, done.map(|_| ()));
        });
    }

    fn written(self: Arc<Self>, mut batch: Batch, done: Result<(), Errno>) {
        let waiting = std::mem::take(&mut batch.waiting);
        let more = {
            let mut queue = self.queue.lock();
            queue.writes -= 1;
            match done {
                Ok(()) | Err(Errno(libc::ENOENT)) => true,
                // It is tried again with the next entry, not at once: what failed may fail for some time.
                Err(_) => {
                    queue.next.take_back(batch);
                    queue.next.is_awaited()
                }
            }
        };
        for waiting in waiting {
            let _ = waiting.send(done);
        }
        if more {
            self.pump(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_outlives_a_failed_write() {
        let line = |name: &str| (name.as_bytes().to_vec(), Vec::new());
        let failed = Batch {
            set: vec![line("p2")],
            later: vec![line("g1"), line("g2")],
            removed: vec![b"p1".to_vec()],
            waiting: Vec::new(),
        };
        let mut next = Batch::default();
        next.set.push(line("p3"));
        // It was written for all that, found and collected.
        next.remove(vec![b"g2".to_vec()]);
        next.take_back(failed);
        assert_eq!(next.set, [line("p3")], "an entry is its writer's affair");
        assert_eq!(next.later, [line("g1")]);
        assert_eq!(next.removed, [b"g2".to_vec(), b"p1".to_vec()]);
    }
}
