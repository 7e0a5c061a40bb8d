//! A namespace's journal: changes and values under way, which the index or a record do not know yet. One object for a namespace.
//!
//! Every change of a key is preceded by an entry here, so entries of changes that happen at once are written together: while one write is
//! under way, what arrives waits for the next. That begins once as many wait for it as have a change under way, whose next may go with it,
//! and a moment later at the latest. Completions of the library drive it, and who came first.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::sys::{Errno, Guard, Place, WriteOp};

/// Writes under way at once. With one, all that is to be entered meanwhile goes with the next.
const WRITES: usize = 1;
/// So long a write waits for those to go with it who have a change under way: of one that does not end nobody is to feel more.
const HOLD: Duration = Duration::from_millis(1);
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
    /// How many have begun.
    begun: u64,
    /// Changes that are being said here, or were and have not ended.
    changes: usize,
}

#[derive(Default)]
struct Batch {
    /// Entries whose writers wait, and do without them when they are told of an error.
    set: Vec<Line>,
    /// Entries that nobody waits for: they are tried until they are written.
    later: Vec<Line>,
    removed: Vec<Vec<u8>>,
    waiting: Vec<oneshot::Sender<Result<(), Errno>>>,
    /// It waits for nobody else.
    due: bool,
}

impl Batch {
    /// Whether it is to be written, while so many changes are under way.
    fn is_due(&self, changes: usize) -> bool {
        self.due
            || !self.later.is_empty()
            || self.removed.len() >= IDLE_REMOVALS
            || (self.is_awaited() && 2 * self.waiting.len() >= changes)
    }

    /// What somebody waits for is in it.
    fn is_awaited(&self) -> bool {
        !self.set.is_empty() || !self.waiting.is_empty()
    }

    fn remove(&mut self, name: Vec<u8>) {
        // What was not written yet need not be.
        self.set.retain(|(entry, _)| *entry != name);
        self.later.retain(|(entry, _)| *entry != name);
        self.removed.push(name);
    }

    /// Takes back what a write that failed was to enter and to remove. They stay together: stripes that a change let go are entered by
    /// the write that removes the change's own entry, which names them too.
    fn take_back(&mut self, failed: Batch) {
        let Batch { later, removed, .. } = failed;
        let again = later.into_iter();
        let again = again.filter(|(entry, _)| !self.removed.contains(entry));
        let again: Vec<Line> = again.collect();
        self.later.splice(0..0, again);
        self.removed.extend(removed);
    }
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

    /// One more change is under way, until this is dropped.
    pub fn changing(self: &Arc<Self>) -> Changing {
        self.queue.lock().changes += 1;
        Changing(self.clone())
    }

    /// Enters this, and returns when it is durable. `ENOENT`: the namespace is gone.
    pub async fn enter(self: &Arc<Self>, entries: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), Errno> {
        let (sender, mut receiver) = oneshot::channel();
        let (is_first, turn) = {
            let mut queue = self.queue.lock();
            queue.next.set.extend(entries);
            queue.next.waiting.push(sender);
            (queue.next.waiting.len() == 1, queue.begun)
        };
        self.pump();
        let gone = Err(Errno(libc::ESHUTDOWN));
        if is_first && !self.has_begun(turn) {
            let hold = Hold {
                journal: self,
                turn,
            };
            if let Ok(done) = timeout(HOLD, &mut receiver).await {
                return done.unwrap_or(gone);
            }
            drop(hold);
        }
        receiver.await.unwrap_or(gone)
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
                queue.next.remove(name);
            }
            queue.next.later.extend(entries);
        }
        self.pump();
    }

    /// Writes what waits, now.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Errno> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            queue.next.waiting.push(sender);
            queue.next.due = true;
        }
        self.pump();
        receiver.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Whether something waits to be written.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        let Batch { later, removed, .. } = &queue.next;
        !queue.next.is_awaited() && later.is_empty() && removed.is_empty() && queue.writes == 0
    }

    /// Whether the write has begun before which so many had.
    fn has_begun(&self, turn: u64) -> bool {
        self.queue.lock().begun > turn
    }

    /// Begins the next write, if one may begin.
    fn pump(self: &Arc<Self>) {
        let batch = {
            let mut queue = self.queue.lock();
            if queue.writes >= WRITES || !queue.next.is_due(queue.changes) {
                return;
            }
            queue.writes += 1;
            queue.begun += 1;
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
            self.pump();
        }
    }
}

/// The next write waits for others to go with it until who came first drops this.
struct Hold<'j> {
    journal: &'j Arc<Journal>,
    /// How many writes had begun before.
    turn: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if !self.journal.has_begun(self.turn) {
            self.journal.queue.lock().next.due = true;
            self.journal.pump();
        }
    }
}

/// A change that is under way.
pub(crate) struct Changing(Arc<Journal>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.queue.lock().changes -= 1;
        self.0.pump();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::Poll;

    use forebay_store::suite::TestClock;
    use futures_util::future::join;

    use super::*;
    use crate::support::{cluster, config, open, runtime, space};

    fn line(name: &str) -> Line {
        (name.as_bytes().to_vec(), Vec::new())
    }

    /// Polls it once.
    async fn begin<T>(work: &mut (impl Future<Output = T> + Unpin)) {
        let begun = poll_fn(|cx| Poll::Ready(Pin::new(&mut *work).poll(cx).is_pending()));
        assert!(begun.await, "it waits");
    }

    #[test]
    fn a_write_waits_for_those_who_come_next_and_not_for_long() {
        let Some(cluster) = cluster() else {
            return;
        };
        runtime().block_on(async {
            let store = open(config(&cluster), TestClock::default());
            space(&store, "said").await;
            let namespace = store.core().namespace("said").unwrap();
            let journal = &namespace.journal;
            let enter = |name: &str| Box::pin(journal.enter(vec![line(name)]));
            let waiting = || journal.queue.lock().next.waiting.len();
            let changes: Vec<Changing> = (0..4).map(|_| journal.changing()).collect();
            let (mut first, mut second) = (enter("x1"), enter("x2"));
            begin(&mut first).await;
            assert_eq!(waiting(), 1);
            begin(&mut second).await;
            assert_eq!(waiting(), 0, "as many wait as others have under way");
            assert_eq!(join(first, second).await, (Ok(()), Ok(())));
            assert_eq!(enter("x3").await, Ok(()), "though nobody comes");
            // Who came first goes away, and the others do not wait for that.
            let more: Vec<Changing> = (0..4).map(|_| journal.changing()).collect();
            let (mut first, mut second) = (enter("x4"), enter("x5"));
            begin(&mut first).await;
            begin(&mut second).await;
            assert_eq!(waiting(), 2);
            drop(first);
            assert_eq!(waiting(), 0);
            assert_eq!(second.await, Ok(()));
            let mut last = enter("x6");
            begin(&mut last).await;
            drop(more);
            assert_eq!(waiting(), 1);
            drop(changes);
            assert_eq!(waiting(), 0, "nobody is to come any more");
            assert_eq!(last.await, Ok(()));
        });
    }

    #[test]
    fn what_nobody_waits_for_outlives_a_failed_write() {
        let failed = Batch {
            set: vec![line("p2")],
            later: vec![line("g1"), line("g2")],
            removed: vec![b"p1".to_vec()],
            ..Batch::default()
        };
        let mut next = Batch::default();
        next.set.push(line("p3"));
        // It was written for all that, found and collected.
        next.remove(b"g2".to_vec());
        next.take_back(failed);
        assert_eq!(next.set, [line("p3")], "an entry is its writer's affair");
        assert_eq!(next.later, [line("g1")]);
        assert_eq!(next.removed, [b"g2".to_vec(), b"p1".to_vec()]);
    }
}
