//! A shard: one thread with a current-thread runtime, local tasks and, where it can be had, a ring.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use crate::ring;

/// A running shard.
#[derive(Debug)]
pub struct Shard<T> {
    thread: JoinHandle<io::Result<T>>,
}

/// Starts shard `index`, whose thread is called `name-index`, and runs there the future that `main` makes. It may spawn
/// local tasks; those that still run when it ends are dropped, and their transfers waited for. Why there is no ring, if
/// there is none, is logged.
///
/// # Errors
/// When the thread cannot be started.
pub fn spawn<F, Fut>(
    index: usize,
    name: &str,
    config: ring::Config,
    main: F,
) -> io::Result<Shard<Fut::Output>>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future,
    Fut::Output: Send + 'static,
{
    let thread = thread::Builder::new()
        .name(format!("{name}-{index}"))
        .spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let tasks = LocalSet::new();
            let result = tasks.block_on(&runtime, async move {
            match ring::install(config) {
                Ok(driver) => drop(spawn_local(driver)),
                Err(reason) => {
                    tracing::warn!(shard = index, %reason, "disk I/O goes through worker threads");
                }
            }
            main().await
        });
            Ok(result)
        })?;
    Ok(Shard { thread })
}

impl<T> Shard<T> {
    /// Waits, blocking, for the shard's end and its result.
    ///
    /// # Errors
    /// When its runtime could not be made.
    ///
    /// # Panics
    /// When the shard panicked.
    pub fn join(self) -> io::Result<T> {
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}
