//! Threads that do asynchronous transfers by blocking, for callers whose thread has no ring.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::transfer::{Progress, Transfer};
use crate::counters::cells;

/// As many transfers as are worth having in one device's queue when each costs a thread.
const WORKERS_MAX: usize = 16;

/// A pool that starts a thread when all are busy, up to a bound. The queue is bounded by the buffers in it.
#[derive(Default)]
pub(crate) struct Workers {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Transfer>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Workers {
    pub(super) fn start(&self, transfer: Transfer) {
        let mut state = self.queue.state.lock();
        if state.idle <= state.waiting.len() && state.threads < WORKERS_MAX {
            let queue = self.queue.clone();
            let spawned = thread::Builder::new()
                .name(format!("disk-{}", state.threads))
                .spawn(move || queue.work());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    drop(state);
                    return transfer.finish(Err(error));
                }
                Err(_) => {}
            }
        }
        state.waiting.push_back(transfer);
        drop(state);
        self.queue.arrived.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.arrived.notify_all();
    }
}

impl Queue {
    /// Ends when the pool is closed and everything in it is done.
    fn work(&self) {
        while let Some(mut transfer) = self.next() {
            let result = complete(&mut transfer);
            cells().worker_operations.fetch_add(1, Relaxed);
            transfer.finish(result);
        }
    }

    fn next(&self) -> Option<Transfer> {
        let mut state = self.state.lock();
        loop {
            if let Some(transfer) = state.waiting.pop_front() {
                return Some(transfer);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            self.arrived.wait(&mut state);
            state.idle -= 1;
        }
    }
}

fn complete(transfer: &mut Transfer) -> io::Result<()> {
    while let Progress::More = transfer.step()? {}
    Ok(())
}
