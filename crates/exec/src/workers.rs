//! The threads that run functions: a fixed number, off the shards, shared fairly by tenants. They make modules ready, too: one at a time
//! for each tenant that asked, beside its functions, since others may wait for the same one.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, yield_now};

use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Limits;

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The stack of a thread besides that of the function on it: compilers recurse.
const STACK_BYTES: usize = 4 << 20;

/// How often a thread looks for more work before it sleeps: some tens of microseconds, in which whoever has the answer of one
/// call makes the next. To wake a thread takes longer than a short function does.
const LOOKS: usize = 64;

/// The threads. Dropping it waits for the work that has begun, and forgets the rest.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Whether a thread looks for work, and nobody has told it yet that there is some. Changes under the queue's lock.
    looking: AtomicBool,
    threads: usize,
    threads_per_tenant: usize,
    waiting_per_tenant: usize,
}

#[derive(Default)]
struct Queue {
    lanes: HashMap<String, Lane>,
    /// Lanes with work that waits, in the order of their turns.
    turns: VecDeque<String>,
    /// Counts works.
    next: u64,
    waiting: usize,
    running: usize,
    closed: bool,
}

/// What one tenant has to run, or to make.
struct Lane {
    /// Each with its number, in their order.
    waiting: VecDeque<(u64, Work)>,
    running: usize,
    /// How many may.
    most: usize,
}

/// Work that was submitted. If it still waits when this is dropped, it leaves the queue with all that it holds.
pub(crate) struct Turn<'w> {
    shared: &'w Shared,
    lane: String,
    number: u64,
    /// Whether a thread was free for it.
    pub at_once: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let forgotten = self.shared.queue.lock().forget(&self.lane, self.number);
        // What it holds may take a while to go.
        drop(forgotten);
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Of the system.
    pub fn start(limits: &Limits) -> std::io::Result<Workers> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            looking: AtomicBool::new(false),
            threads: limits.threads.max(1),
            threads_per_tenant: limits.threads_per_tenant.max(1),
            waiting_per_tenant: limits.waiting_per_tenant,
        });
        let mut workers = Workers {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for number in 0..workers.shared.threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("forebay-exec-{number}"))
                .stack_size(STACK_BYTES + limits.stack_bytes)
                .spawn(move || shared.work());
            workers.threads.push(thread?);
        }
        Ok(workers)
    }

    /// Has a function run when it is the tenant's turn: what is made of it depends on whether that is at once.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when as many wait already as may.
    pub fn submit(&self, tenant: &str, work: impl FnOnce(bool) -> Work) -> Result<Turn<'_>> {
        self.queue(tenant.to_owned(), self.shared.threads_per_tenant, work)
    }

    /// Has a module made ready, which this tenant wants.
    ///
    /// # Errors
    /// As above.
    pub fn make(&self, tenant: &str, work: Work) -> Result<Turn<'_>> {
        // No tenant's name begins with a dot.
        self.queue(format!(".modules/{tenant}"), 1, |_| work)
    }

    fn queue(
        &self,
        name: String,
        most: usize,
        work: impl FnOnce(bool) -> Work,
    ) -> Result<Turn<'_>> {
        let shared = &*self.shared;
        let mut queue = shared.queue.lock();
        let queue = &mut *queue;
        let of_all = queue.waiting + queue.running;
        let lane = queue.lanes.entry(name.clone()).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            running: 0,
            most,
        });
        if lane.waiting.len() >= shared.waiting_per_tenant {
            return Err(StoreError::new(
                ErrorKind::Busy,
                "too many calls wait for a thread",
            ));
        }
        if lane.waiting.is_empty() {
            queue.turns.push_back(name.clone());
        }
        let turn = Turn {
            shared,
            number: queue.next,
            at_once: lane.waiting.len() + lane.running < most && of_all < shared.threads,
            lane: name,
        };
        lane.waiting.push_back((turn.number, work(turn.at_once)));
        queue.next += 1;
        queue.waiting += 1;
        // Whoever looks takes the lock before it sleeps, and finds this.
        if !shared.looking.swap(false, Relaxed) {
            shared.wake.notify_one();
        }
        Ok(turn)
    }

    /// Calls that wait, and calls that run.
    pub fn load(&self) -> (usize, usize) {
        let queue = self.shared.queue.lock();
        (queue.waiting, queue.running)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let forgotten = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            queue.turns.clear();
            std::mem::take(&mut queue.lanes)
        };
        drop(forgotten);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // What panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut done = None;
        while let Some((lane, work)) = self.next(done.take()) {
            // A function's fault ends in an error; a panic is ours, and must not take the thread with it.
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!("running a function panicked");
            }
            done = Some(lane);
        }
    }

    /// The next work, when there is some whose lane may have another thread; `None` at the end.
    fn next(&self, done: Option<String>) -> Option<(String, Work)> {
        let mut queue = self.queue.lock();
        if let Some(lane) = done {
            queue.finished(&lane);
        }
        let mut looked = false;
        loop {
            if queue.closed {
                return None;
            }
            if let Some(found) = queue.take() {
                return Some(found);
            }
            // One is enough, and once: the others and an idle process sleep.
            looked |= self.looking.load(Relaxed);
            match std::mem::replace(&mut looked, true) {
                true => self.wake.wait(&mut queue),
                false => {
                    self.looking.store(true, Relaxed);
                    MutexGuard::unlocked(&mut queue, || self.look());
                    self.looking.store(false, Relaxed);
                }
            }
        }
    }

    /// Gives way to others until there is work, or for long enough.
    fn look(&self) {
        for _ in 0..LOOKS {
            if !self.looking.load(Relaxed) {
                return;
            }
            yield_now();
        }
    }
}

impl Queue {
    fn take(&mut self) -> Option<(String, Work)> {
        let lanes = &mut self.lanes;
        let may = |name: &String| {
            let lane = lanes.get(name);
            lane.is_some_and(|lane| lane.running < lane.most)
        };
        let turn = self.turns.iter().position(may)?;
        let name = self.turns.remove(turn)?;
        let lane = lanes.get_mut(&name)?;
        let (_, work) = lane.waiting.pop_front()?;
        lane.running += 1;
        if !lane.waiting.is_empty() {
            self.turns.push_back(name.clone());
        }
        self.waiting -= 1;
        self.running += 1;
        Some((name, work))
    }

    /// Takes work out that waits.
    fn forget(&mut self, name: &str, number: u64) -> Option<Work> {
        let lane = self.lanes.get_mut(name)?;
        let at = lane
            .waiting
            .binary_search_by_key(&number, |(number, _)| *number);
        let (_, work) = lane.waiting.remove(at.ok()?)?;
        self.waiting -= 1;
        if lane.waiting.is_empty() {
            self.turns.retain(|turn| turn != name);
        }
        self.let_go_of_idle(name);
        Some(work)
    }

    fn finished(&mut self, name: &str) {
        self.running -= 1;
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.running -= 1;
        }
        self.let_go_of_idle(name);
    }

    fn let_go_of_idle(&mut self, name: &str) {
        let lane = self.lanes.get(name);
        if lane.is_some_and(|lane| lane.running == 0 && lane.waiting.is_empty()) {
            self.lanes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn workers(threads: usize, per_tenant: usize, waiting: usize) -> Workers {
        let limits = Limits {
            threads,
            threads_per_tenant: per_tenant,
            waiting_per_tenant: waiting,
            ..Limits::default()
        };
        Workers::start(&limits).unwrap()
    }

    /// Work that says that it began, and ends when it is told.
    fn endless(name: &str, began: &Sender<String>) -> (Work, Sender<()>) {
        let (end, ended): (_, Receiver<()>) = channel();
        let (began, name) = (began.clone(), name.to_owned());
        let work = Box::new(move || {
            began.send(name).unwrap();
            let _ = ended.recv();
        });
        (work, end)
    }

    fn held<'w>(
        workers: &'w Workers,
        tenant: &str,
        began: &Sender<String>,
    ) -> (Sender<()>, Turn<'w>) {
        let (work, end) = endless(tenant, began);
        (end, workers.submit(tenant, |_| work).unwrap())
    }

    #[test]
    fn a_tenant_leaves_a_thread_to_its_neighbours() {
        let workers = workers(2, 1, 8);
        let (began, begins) = channel();
        let first = held(&workers, "greedy", &began);
        assert_eq!(begins.recv().unwrap(), "greedy");
        let second = held(&workers, "greedy", &began);
        let other = held(&workers, "modest", &began);
        assert_eq!(
            begins.recv().unwrap(),
            "modest",
            "the free thread is not for the greedy"
        );
        drop(first);
        assert_eq!(begins.recv().unwrap(), "greedy");
        drop((second, other));
    }

    #[test]
    fn tenants_take_turns() {
        let workers = workers(1, 1, 8);
        let (began, begins) = channel();
        let first = held(&workers, "a", &began);
        assert_eq!(begins.recv().unwrap(), "a");
        let rest = ["a", "a", "b"].map(|tenant| held(&workers, tenant, &began));
        let (ends, turns): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
        drop((first, ends));
        let order: Vec<String> = begins.iter().take(3).collect();
        assert_eq!(order, ["a", "b", "a"]);
        drop(turns);
    }

    #[test]
    fn too_many_are_refused_and_a_panic_harms_nobody() {
        let workers = workers(1, 1, 1);
        let (began, begins) = channel();
        let first = held(&workers, "a", &began);
        begins.recv().unwrap();
        let second = held(&workers, "a", &began);
        let refused = workers.submit("a", |_| Box::new(|| ()));
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::Busy);
        // What nobody waits for any more is in nobody's way.
        drop(second);
        assert_eq!(workers.load(), (0, 1));
        let second = held(&workers, "a", &began);
        let panics = workers.submit("b", |_| Box::new(|| panic!("on purpose")));
        let third = held(&workers, "c", &began);
        drop(first);
        assert_eq!(begins.recv().unwrap(), "a");
        drop(second);
        assert_eq!(begins.recv().unwrap(), "c");
        drop((panics, third));
    }

    #[test]
    fn a_tenant_has_one_module_made_at_a_time() {
        let workers = workers(4, 3, 8);
        let (began, begins) = channel();
        let (mut ends, mut turns) = (Vec::new(), Vec::new());
        for (name, tenant) in [
            ("first", "greedy"),
            ("second", "greedy"),
            ("other", "modest"),
        ] {
            let (work, end) = endless(name, &began);
            turns.push(workers.make(tenant, work).unwrap());
            ends.push(end);
        }
        let mut begun: Vec<String> = begins.iter().take(2).collect();
        begun.sort();
        assert_eq!(begun, ["first", "other"]);
        assert_eq!(workers.load(), (1, 2));
        ends.remove(0);
        assert_eq!(begins.recv().unwrap(), "second");
        drop((ends, turns));
    }
}
