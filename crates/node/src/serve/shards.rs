//! Threads that serve connections, and who gives them out.
//!
//! A shard is a thread with a current-thread runtime and, where the kernel allows, an io_uring of its own: a connection's requests
//! run where its disk reads complete, without a lock or a wake-up across threads. One acceptor hands each connection to the shard
//! that has the fewest: with `SO_REUSEPORT` the kernel's hash leaves eight connections on two threads as often as on four.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::LocalSet;

use forebay_io::ring;

use super::REST;

/// Of a thread that serves requests: a short function of a module, whose own stack has half a MiB, may run in the task that calls it.
pub const STACK_BYTES: usize = 4 << 20;

/// Serves one connection to its end; runs on the shard's thread.
pub type Serve =
    Arc<dyn Fn(TcpStream, SocketAddr) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// Begins to serve a connection; called on the shard's thread.
pub type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The threads.
pub struct Shards {
    shards: Vec<Shard>,
    connections: Arc<Semaphore>,
    connections_max: u32,
}

struct Shard {
    arrivals: mpsc::UnboundedSender<Arrival>,
    active: Arc<AtomicUsize>,
}

struct Arrival {
    work: Work,
    /// Bounds the connections of all shards, and so the length of the queues.
    permit: OwnedSemaphorePermit,
}

/// Takes one off a count when it is dropped, by a panic, too.
pub struct OneLess<'a>(pub &'a AtomicUsize);

impl Drop for OneLess<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// How the shards reach the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskIo {
    /// Each by its own ring.
    Uring,
    /// By worker threads, for this reason.
    Threads(String),
}

impl std::fmt::Display for DiskIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DiskIo::Uring => f.write_str("io_uring"),
            DiskIo::Threads(why) => write!(f, "threads ({why})"),
        }
    }
}

impl Shards {
    /// Starts `count` threads and says how they reach the disk.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub async fn start(
        count: usize,
        connections_max: u32,
        uring: bool,
    ) -> io::Result<(Shards, DiskIo)> {
        let mut shards = Vec::with_capacity(count);
        let mut disk_io = DiskIo::Uring;
        for index in 0..count {
            let (arrivals, queue) = mpsc::unbounded_channel();
            let (started, starting) = oneshot::channel();
            let active = Arc::new(AtomicUsize::new(0));
            let counter = active.clone();
            // It ends with the process; a connection that it serves is waited for by `drained`.
            thread::Builder::new()
                .name(format!("forebay-shard-{index}"))
                .stack_size(STACK_BYTES)
                .spawn(move || run(queue, &counter, uring, started))?;
            let outcome = starting
                .await
                .unwrap_or_else(|_| Err(io::Error::other("a shard ended at once")))?;
            if let DiskIo::Threads(why) = outcome {
                disk_io = DiskIo::Threads(why);
            }
            shards.push(Shard { arrivals, active });
        }
        let shards = Shards {
            shards,
            connections: Arc::new(Semaphore::new(connections_max as usize)),
            connections_max,
        };
        Ok((shards, disk_io))
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.active.load(Relaxed))
            .sum()
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// Accepts from `listener` until `shutdown` says so; then it is closed. At the bound on connections one of each
    /// door waits here and the others in the kernel's backlog.
    ///
    /// # Errors
    /// When the listener cannot be watched at all.
    pub async fn accept(
        &self,
        listener: std::net::TcpListener,
        serve: Serve,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let accepting = async {
            loop {
                let (stream, peer) = next(&listener).await;
                // Only now: several doors share the bound, and one that waits for a client must not take from the others.
                let Ok(permit) = self.connections.clone().acquire_owned().await else {
                    return Ok(());
                };
                // A connection that is gone already has no options to set; serving it ends at once.
                let _ = stream.set_nodelay(true);
                let serve = serve.clone();
                let work: Work = Box::new(move || {
                    Box::pin(async move {
                        match TcpStream::from_std(stream) {
                            Ok(stream) => serve(stream, peer).await,
                            Err(error) => tracing::warn!(%error, "cannot watch a connection"),
                        }
                    })
                });
                self.hand_over(Arrival { work, permit })?;
            }
        };
        tokio::select! {
            ended = accepting => ended,
            () = super::stopped(shutdown) => Ok(()),
        }
    }

    /// Gives a connection of a Unix socket to the shard that has the fewest. `what` says who comes.
    pub fn give_unix<F: Future<Output = ()> + 'static>(
        &self,
        what: &'static str,
        stream: UnixStream,
        serve: impl FnOnce(UnixStream) -> F + Send + 'static,
    ) {
        // Its wake-ups belong to the shard that will serve it.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "a connection is lost"),
        };
        let given = self.give(Box::new(move || {
            Box::pin(async move {
                match UnixStream::from_std(stream) {
                    Ok(stream) => serve(stream).await,
                    Err(error) => tracing::warn!(%error, "a connection is lost"),
                }
            })
        }));
        if !given {
            tracing::debug!("{what} was sent away: too many connections");
        }
    }

    /// Gives a connection that came in another way to the shard that has the fewest; false at the bound on connections.
    fn give(&self, work: Work) -> bool {
        let permit = self.connections.clone().try_acquire_owned();
        permit.is_ok_and(|permit| self.hand_over(Arrival { work, permit }).is_ok())
    }

    fn hand_over(&self, arrival: Arrival) -> io::Result<()> {
        let least = self
            .shards
            .iter()
            .min_by_key(|shard| shard.active.load(Relaxed));
        let Some(shard) = least else {
            return Err(io::Error::other("there is no shard"));
        };
        shard.active.fetch_add(1, Relaxed);
        shard
            .arrivals
            .send(arrival)
            .map_err(|_| io::Error::other("a shard has ended"))
    }

    /// Returns when no connection is open.
    pub async fn drained(&self) {
        // It fails only when the semaphore is closed, which nobody does.
        let _ = self.connections.acquire_many(self.connections_max).await;
    }
}

/// The next connection, taken off this thread's reactor: it belongs to a shard's.
async fn next(listener: &TcpListener) -> (std::net::TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match stream.into_std() {
                Ok(stream) => return (stream, peer),
                Err(error) => tracing::warn!(%error, "a connection is lost"),
            },
            // The peer went before we came (accept(2) reports it here).
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

fn run(
    mut queue: mpsc::UnboundedReceiver<Arrival>,
    active: &Arc<AtomicUsize>,
    uring: bool,
    started: oneshot::Sender<io::Result<DiskIo>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            // Nobody waits any more when the start was given up.
            let _ = started.send(Err(error));
            return;
        }
    };
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let disk_io = match uring.then(|| ring::install(ring::Config::default())) {
            None => DiskIo::Threads("--no-uring".to_owned()),
            Some(Err(why)) => DiskIo::Threads(why.to_string()),
            Some(Ok(driver)) => {
                tokio::task::spawn_local(driver);
                DiskIo::Uring
            }
        };
        let _ = started.send(Ok(disk_io));
        while let Some(arrival) = queue.recv().await {
            let active = active.clone();
            tokio::task::spawn_local(async move {
                let Arrival { work, permit } = arrival;
                let _permit = permit;
                let _one = OneLess(&active);
                work().await;
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_whose_task_panics_is_over() {
        let (shards, _) = Shards::start(1, 1, false).await.unwrap();
        let panics: Work = Box::new(|| Box::pin(async { std::panic::resume_unwind(Box::new(())) }));
        assert!(shards.give(panics));
        shards.drained().await;
        assert_eq!(shards.connections(), 0);
    }
}
