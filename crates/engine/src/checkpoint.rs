//! The thread that writes frozen memtables to the index, and waits for writes that nobody waits for any more.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use forebay_io::Disk;
use forebay_store::{ErrorKind, StoreError};
use parking_lot::{Condvar, Mutex};

use crate::Result;
use crate::core::Core;
use crate::extent::Run;
use crate::group::Position;

/// A transaction of the index takes so much even where there is less room: it may well have pages to spare.
pub(crate) const STEP_BYTES_MIN: u64 = 1 << 20;
/// How often it is tried to open an index again.
const REVIVE_EVERY: Duration = Duration::from_millis(100);

/// A write in flight, and where to.
pub(crate) type Writing = Pin<Box<dyn Future<Output = (Run, std::io::Result<()>)> + Send>>;

/// An upload that was dropped: its runs are free once its writes have ended.
pub(crate) struct Orphan {
    pub writing: Vec<Writing>,
    pub runs: Vec<Run>,
    /// Those of them that could not be written.
    pub suspect: Vec<Run>,
}

#[derive(Default)]
struct Work {
    position: Option<Position>,
    /// Why the checkpoint cannot be written now; it is tried again when somebody asks for that.
    held_up: Option<ErrorKind>,
    orphans: Vec<Orphan>,
    /// Whether room is to be looked for.
    cramped: bool,
    /// The thread takes no more, or has ended.
    closed: bool,
}

impl Work {
    fn is_none(&self) -> bool {
        self.due().is_none() && self.orphans.is_empty() && !self.cramped
    }

    fn due(&self) -> Option<Position> {
        self.position.filter(|_| self.held_up.is_none())
    }
}

/// What the checkpoint thread is asked to do.
#[derive(Default)]
pub(crate) struct Handoff {
    work: Mutex<Work>,
    changed: Condvar,
}

impl Handoff {
    /// The frozen memtable is to be written; the journal goes on at `position`.
    pub fn checkpoint(&self, position: Position) {
        self.work.lock().position = Some(position);
        self.changed.notify_all();
    }

    /// A checkpoint that was held up is to be tried again.
    pub fn retry(&self) {
        self.work.lock().held_up = None;
        self.changed.notify_all();
    }

    /// Waits until no checkpoint is under way, or it was held up once more.
    pub fn wait(&self) -> Result<()> {
        self.retry();
        let mut work = self.work.lock();
        while work.due().is_some() && !work.closed {
            self.changed.wait(&mut work);
        }
        let Some(kind) = work.held_up else {
            return Ok(());
        };
        let what = match kind {
            ErrorKind::NoSpace => "the file system has no space left for the index",
            _ => "the index cannot be read where it is to be written",
        };
        Err(StoreError::new(kind, what))
    }

    /// Takes care of an orphan, or gives it back when the thread ends.
    pub fn adopt(&self, orphan: Orphan) -> Result<(), Orphan> {
        let mut work = self.work.lock();
        if work.closed {
            return Err(orphan);
        }
        work.orphans.push(orphan);
        drop(work);
        self.changed.notify_all();
        Ok(())
    }

    /// Somebody found no space.
    pub fn look_for_room(&self) {
        self.work.lock().cramped = true;
        self.changed.notify_all();
    }

    pub fn close(&self) {
        self.work.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Runs until [`Handoff::close`].
pub(crate) fn run<D: Disk>(core: &Core<D>) {
    core.look_at_room();
    loop {
        core.revive_index();
        let mut work = core.handoff.work.lock();
        while work.is_none() && !work.closed {
            let changed = &core.handoff.changed;
            if !core.index.is_down() {
                changed.wait(&mut work);
            } else if changed.wait_for(&mut work, REVIVE_EVERY).timed_out() {
                break;
            }
        }
        if work.is_none() && work.closed {
            return;
        }
        let position = work.due();
        let orphans = std::mem::take(&mut work.orphans);
        let cramped = std::mem::take(&mut work.cramped);
        drop(work);
        for mut orphan in orphans {
            for writing in orphan.writing {
                let (run, written) = block_on(writing);
                orphan.suspect.extend(written.is_err().then_some(run));
            }
            core.let_go(orphan.runs, &orphan.suspect);
        }
        if cramped {
            core.look_at_room();
        }
        if let Some(position) = position {
            let held_up = held_up(core, write(core, position));
            core.revive_index();
            let mut work = core.handoff.work.lock();
            work.held_up = held_up;
            if held_up.is_none() {
                work.position = None;
            }
            core.handoff.changed.notify_all();
        }
    }
}

/// After a panic: nobody waits for a checkpoint that will not come, and others wait for the writes that nobody waits for.
pub(crate) fn give_up<D: Disk>(core: &Core<D>) {
    core.latch_read_only(&StoreError::new(
        ErrorKind::Io,
        "the index's thread panicked",
    ));
    let mut work = core.handoff.work.lock();
    work.closed = true;
    let orphans = std::mem::take(&mut work.orphans);
    drop(work);
    core.handoff.changed.notify_all();
    for orphan in orphans {
        core.wait_beyond_close(orphan.writing);
    }
}

/// Why a checkpoint failed that may be tried again: nothing of it is in the index, or what is may be there twice.
fn held_up<D: Disk>(core: &Core<D>, written: Result<()>) -> Option<ErrorKind> {
    let error = written.err()?;
    let kind = error.kind();
    if core.index.is_unknown() || !matches!(kind, ErrorKind::NoSpace | ErrorKind::Io) {
        core.latch_read_only(&error);
        return None;
    }
    let error: &dyn std::error::Error = &error;
    tracing::error!(error, "what changed does not get into the index");
    if kind == ErrorKind::NoSpace {
        core.starve();
    }
    Some(kind)
}

fn write<D: Disk>(core: &Core<D>, position: Position) -> Result<()> {
    let Some(frozen) = core.tables.frozen() else {
        return Ok(());
    };
    core.look_at_room();
    core.open_index()?;
    let show = |snapshot| core.tables.refresh(snapshot);
    let waiting = core.tables.unplaced();
    let unplaced = core
        .index
        .checkpoint(&frozen, &waiting, position, show, || {
            // Pages that a snapshot has do not come free.
            show(core.index.snapshot()?);
            Ok(step_bytes(core.index_room()))
        })?;
    let snapshot = core.index.snapshot()?;
    core.note_unplaced(unplaced.len());
    core.tables.thaw(snapshot, unplaced);
    core.count_removed(frozen.removals());
    core.look_at_room();
    core.counters.checkpoints.fetch_add(1, Relaxed);
    Ok(())
}

/// How many bytes of new pages a transaction of the index may take where there is room for so many: what it lets go is free only after
/// the next.
pub(crate) fn step_bytes(room: u64) -> u64 {
    (room / 2).max(STEP_BYTES_MIN)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
