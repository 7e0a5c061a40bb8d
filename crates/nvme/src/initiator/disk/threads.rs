//! Threads that connections run on, and waiting on others for what they do.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Threads that connections run on; they end when this is dropped.
pub(super) struct Threads {
    pub(super) handles: Vec<Handle>,
    _stops: Vec<oneshot::Sender<()>>,
}

impl Threads {
    pub(super) fn start(count: usize) -> io::Result<Threads> {
        let mut threads = Threads {
            handles: Vec::new(),
            _stops: Vec::new(),
        };
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel::<()>();
            threads._stops.push(stop);
            thread::Builder::new()
                .name(format!("forebay-nvme-{index}"))
                .spawn(move || {
                    // Its end is the sender's.
                    let _ = runtime.block_on(stopped);
                })?;
        }
        Ok(threads)
    }

    /// Waits, blocking, on a thread that may. What the future leaves to a runtime (it sleeps between attempts) is left to that of one of
    /// these threads: the caller need not have one, and one that it has may stand still meanwhile.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.handles.first().map(Handle::enter);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        // On a runtime's thread a task that has used up its turn would be woken by the runtime, which waits for this.
        let mut future = pin!(tokio::task::unconstrained(future));
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
