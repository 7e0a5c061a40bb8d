//! The threads that run functions: a fixed number, off the shards, shared fairly by tenants.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, yield_now};

use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Limits;

type Work = Box<dyn FnOnce() + Send>;

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
    tenants: HashMap<String, Lane>,
    /// Tenants with work that waits, in the order of their turns.
    turns: VecDeque<String>,
    waiting: usize,
    running: usize,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Work>,
    running: usize,
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

    /// Has `work` done when it is the tenant's turn. Whether it is now: a thread is free for it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when as many wait already as may.
    pub fn submit(&self, tenant: &str, work: Work) -> Result<bool> {
        let mut queue = self.shared.queue.lock();
        let queue = &mut *queue;
        if !queue.tenants.contains_key(tenant) {
            queue.tenants.insert(tenant.to_owned(), Lane::default());
        }
        let Some(lane) = queue.tenants.get_mut(tenant) else {
            return Ok(false);
        };
        if lane.waiting.len() >= self.shared.waiting_per_tenant {
            return Err(StoreError::new(
                ErrorKind::Busy,
                "too many calls wait for a thread",
            ));
        }
        if lane.waiting.is_empty() {
            queue.turns.push_back(tenant.to_owned());
        }
        let (of_tenant, of_all) = (
            lane.waiting.len() + lane.running,
            queue.waiting + queue.running,
        );
        let at_once = of_tenant < self.shared.threads_per_tenant && of_all < self.shared.threads;
        lane.waiting.push_back(work);
        queue.waiting += 1;
        // Whoever looks takes the lock before it sleeps, and finds this.
        if !self.shared.looking.swap(false, Relaxed) {
            self.shared.wake.notify_one();
        }
        Ok(at_once)
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
            std::mem::take(&mut queue.tenants)
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
        while let Some((tenant, work)) = self.next(done.take()) {
            // A function's fault ends in an error; a panic is ours, and must not take the thread with it.
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!("running a function panicked");
            }
            done = Some(tenant);
        }
    }

    /// The next work, when there is some whose tenant may have another thread; `None` at the end.
    fn next(&self, done: Option<String>) -> Option<(String, Work)> {
        let mut queue = self.queue.lock();
        if let Some(tenant) = done {
            queue.finished(&tenant);
        }
        let mut looked = false;
        loop {
            if queue.closed {
                return None;
            }
            if let Some(found) = queue.take(self.threads_per_tenant) {
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
    fn take(&mut self, threads_per_tenant: usize) -> Option<(String, Work)> {
        let tenants = &mut self.tenants;
        let may = |tenant: &String| {
            let lane = tenants.get(tenant);
            lane.is_some_and(|lane| lane.running < threads_per_tenant)
        };
        let turn = self.turns.iter().position(may)?;
        let tenant = self.turns.remove(turn)?;
        let lane = tenants.get_mut(&tenant)?;
        let work = lane.waiting.pop_front()?;
        lane.running += 1;
        if !lane.waiting.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        self.waiting -= 1;
        self.running += 1;
        Some((tenant, work))
    }

    fn finished(&mut self, tenant: &str) {
        self.running -= 1;
        if let Some(lane) = self.tenants.get_mut(tenant) {
            lane.running -= 1;
            if lane.running == 0 && lane.waiting.is_empty() {
                self.tenants.remove(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

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
    fn held(
        workers: &Workers,
        tenant: &str,
        began: &std::sync::mpsc::Sender<String>,
    ) -> impl Sized {
        let (end, ended): (_, Receiver<()>) = channel();
        let (began, name) = (began.clone(), tenant.to_owned());
        let work = Box::new(move || {
            began.send(name).unwrap();
            let _ = ended.recv();
        });
        workers.submit(tenant, work).unwrap();
        end
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
        drop((first, rest));
        let order: Vec<String> = begins.iter().take(3).collect();
        assert_eq!(order, ["a", "b", "a"]);
    }

    #[test]
    fn too_many_are_refused_and_a_panic_harms_nobody() {
        let workers = workers(1, 1, 1);
        let (began, begins) = channel();
        let first = held(&workers, "a", &began);
        begins.recv().unwrap();
        let second = held(&workers, "a", &began);
        let refused = workers.submit("a", Box::new(|| ()));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        workers
            .submit("b", Box::new(|| panic!("on purpose")))
            .unwrap();
        drop((first, second));
        assert_eq!(begins.recv().unwrap(), "a");
        let third = held(&workers, "c", &began);
        assert_eq!(begins.recv().unwrap(), "c");
        drop(third);
    }
}
