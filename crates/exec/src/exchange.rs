//! Between the thread that runs a function and the task that serves it: what is asked, what comes back.
//!
//! The function's thread never touches the store: it asks, and waits for no longer than its deadline. The task waits for the store
//! meanwhile, and is told when nobody waits for it any more. Bytes of inputs come ahead of what is asked
//! for when reading goes forward, so that the two work at the same time.
//!
//! A function that runs in the task itself (`here`) has nobody to ask: it gets what is at hand, and is to be short.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use forebay_io::Clock;
use forebay_mem::Buf;
use forebay_store::StoreError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::ending::{Bound, Ending};
use crate::inputs::Window;

/// How many bytes of an input are on their way to a function that reads on and on, at most.
const AHEAD_BYTES: u64 = 3 << 20;
/// What is read at least where a function begins to read.
const AT_LEAST_BYTES: u64 = 64 << 10;
/// Buffers of output that may be on their way to the store.
const WRITES: usize = 2;
/// Imports look at the time whenever they have worked on so many bytes: the runtime does not meanwhile.
const LOOK_BYTES: usize = 64 << 10;
/// Bytes of work that calling an import is worth, however little it is about.
const CALL_BYTES: usize = 64;
/// What imports work on in a task, at most: some tens of microseconds.
const HERE_BYTES: usize = 512 << 10;

/// What the function's thread wants; there are never more than a few at a time, since it waits for the answers.
pub(crate) enum Ask<D> {
    /// Pieces of an input from an offset on; none of another any more.
    From {
        input: usize,
        offset: u64,
        upto: Upto,
        run: u32,
    },
    /// More of the same.
    More(Upto),
    /// Bytes for the value that the output becomes.
    Write(Buf),
    /// The end; nothing follows.
    Done(D),
}

/// How far to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upto {
    /// Pieces come until one holds what lies before this.
    pub pieces: u64,
    /// What is wanted goes on to here, for the store to know; pieces from behind it are of no use.
    pub end: u64,
}

impl Upto {
    /// So many bytes from `offset` on, of which the first are brought.
    fn of(offset: u64, bytes: u64) -> Upto {
        let bytes = bytes.max(AT_LEAST_BYTES);
        Upto {
            pieces: offset.saturating_add(bytes.min(AHEAD_BYTES)),
            end: offset.saturating_add(bytes),
        }
    }
}

/// What comes back.
pub(crate) enum Answer {
    /// Bytes of an input from an offset on.
    Piece {
        input: usize,
        offset: u64,
        buf: Buf,
        run: u32,
    },
    /// A buffer of output is with the store.
    Written,
}

/// What the two ends know of each other without asking.
#[derive(Debug, Default)]
struct Signs {
    /// Nobody waits for the call any more: it stops.
    abandoned: AtomicBool,
    /// The function has begun, or never will.
    begun: AtomicBool,
}

/// Says that nobody waits when it is dropped.
struct Waiting(Arc<Signs>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Relaxed);
    }
}

/// How long a call may take, and whether it is to go on at all.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    clock: Arc<dyn Clock>,
    /// By the clock's monotonic time.
    deadline: Duration,
    signs: Arc<Signs>,
}

impl Patience {
    /// Of a call that begins now.
    pub fn new(clock: Arc<dyn Clock>, time: Duration) -> Patience {
        Patience {
            deadline: clock.monotonic().saturating_add(time),
            clock,
            signs: Arc::default(),
        }
    }

    /// How much time is left.
    pub fn left(&self) -> Result<Duration, Ending> {
        if self.signs.abandoned.load(Relaxed) {
            return Err(Ending::Abandoned);
        }
        let left = self.deadline.checked_sub(self.clock.monotonic());
        left.ok_or(Ending::Stopped(Bound::Time))
    }

    /// What `work` comes to, if that is in time.
    pub async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let left = self.left().unwrap_or_default();
        match timeout(left, work).await {
            Ok(done) => done,
            Err(_) => Err(Patience::out_of_time()),
        }
    }

    /// Returns when no time is left.
    pub async fn over(&self) {
        sleep(self.left().unwrap_or_default()).await;
    }

    /// What the caller is told then.
    pub fn out_of_time() -> StoreError {
        Ending::Stopped(Bound::Time).into_error(Bytes::new())
    }

    /// Whether the function may begin: it begins once, or never when its memory was taken back before.
    pub fn begin(&self) -> bool {
        !self.signs.begun.swap(true, AcqRel)
    }

    /// Whether it has.
    pub fn has_begun(&self) -> bool {
        self.signs.begun.load(Relaxed)
    }
}

/// The function's end.
pub(crate) struct Exchange<D> {
    side: Side<D>,
    pub patience: Patience,
    run: Option<Run>,
    runs: u32,
    writing: usize,
    /// Bytes that imports have worked on since they looked at the time.
    worked: usize,
}

/// Where the function runs.
enum Side<D> {
    /// On a thread of its own, beside the task.
    Apart {
        asks: UnboundedSender<Ask<D>>,
        answers: Receiver<Answer>,
    },
    /// In the task. So many bytes may imports still work on.
    Here { bytes: usize },
}

/// Pieces that are on their way, one behind the other.
#[derive(Debug)]
struct Run {
    /// Tells its pieces from those of runs that were given up.
    number: u32,
    input: usize,
    /// Where the first one began, and where the next one begins.
    start: u64,
    next: u64,
    /// How far was asked for.
    pieces: u64,
}

/// The task's end.
pub(crate) struct Service<D> {
    pub asks: UnboundedReceiver<Ask<D>>,
    pub answers: Sender<Answer>,
    pub patience: Patience,
    /// Kept as long as the call is waited for.
    waiting: Waiting,
}

impl<D> Service<D> {
    /// Says that nobody waits any more, and returns when the function has ended, or never will begin: it touches nothing of the
    /// caller's from then on.
    pub async fn give_up(self) {
        let Service {
            mut asks,
            answers,
            patience,
            waiting,
        } = self;
        if patience.begin() {
            return;
        }
        // Whatever it waits for ends with these.
        drop((answers, waiting));
        while let Some(ask) = asks.recv().await {
            if matches!(ask, Ask::Done(_)) {
                return;
            }
        }
    }
}

/// Both ends.
pub(crate) fn exchange<D>(patience: Patience) -> (Exchange<D>, Service<D>) {
    let (ask, asks) = unbounded_channel();
    let (answer, answers) = channel();
    let waiting = Waiting(patience.signs.clone());
    let side = Side::Apart { asks: ask, answers };
    let exchange = Exchange::of(side, patience.clone());
    let service = Service {
        asks,
        answers: answer,
        patience,
        waiting,
    };
    (exchange, service)
}

impl<D> Exchange<D> {
    fn of(side: Side<D>, patience: Patience) -> Exchange<D> {
        Exchange {
            side,
            patience,
            run: None,
            runs: 0,
            writing: 0,
            worked: 0,
        }
    }

    /// Of a function that runs in the task.
    pub fn here(patience: Patience) -> Exchange<D> {
        let bytes = HERE_BYTES;
        Exchange::of(Side::Here { bytes }, patience)
    }

    /// Whether the function runs in the task.
    pub fn is_here(&self) -> bool {
        matches!(self.side, Side::Here { .. })
    }

    /// Whether a function that has run for a while may go on.
    pub fn go_on(&self) -> Result<(), Ending> {
        match self.side {
            Side::Here { .. } => Err(Ending::TooLong),
            Side::Apart { .. } => self.patience.left().map(drop),
        }
    }

    /// Whether an import may work on so many bytes, during which nothing looks at the time.
    pub fn may_work(&mut self, bytes: usize) -> Result<(), Ending> {
        let bytes = bytes.saturating_add(CALL_BYTES);
        if let Side::Here { bytes: left } = &mut self.side {
            *left = left.checked_sub(bytes).ok_or(Ending::TooLong)?;
            return Ok(());
        }
        self.worked = self.worked.saturating_add(bytes);
        if self.worked < LOOK_BYTES {
            return Ok(());
        }
        self.worked = 0;
        self.patience.left().map(drop)
    }

    /// Brings the piece of `input` that holds `offset` into the window; `wanted` bytes from there on will be asked for.
    pub fn fetch(
        &mut self,
        window: &mut Window,
        input: usize,
        offset: u64,
        wanted: u64,
    ) -> Result<(), Ending> {
        match &mut self.run {
            // Whoever reads on gets as much ahead as was read: a long run has enough of it, and behind a short one little is
            // read in vain.
            Some(run)
                if run.input == input
                    && (run.next..=run.next.max(run.pieces)).contains(&offset) =>
            {
                let upto = Upto::of(offset, wanted.max(offset - run.start));
                if upto.pieces > run.pieces {
                    run.pieces = upto.pieces;
                    self.ask(Ask::More(upto))?;
                }
            }
            _ => {
                let upto = Upto::of(offset, wanted);
                self.runs = self.runs.wrapping_add(1);
                self.run = Some(Run {
                    number: self.runs,
                    input,
                    start: offset,
                    next: offset,
                    pieces: upto.pieces,
                });
                self.ask(Ask::From {
                    input,
                    offset,
                    upto,
                    run: self.runs,
                })?;
            }
        }
        while !window.holds(input, offset) {
            self.wait(window)?;
        }
        Ok(())
    }

    /// Hands a buffer of output to the store; waits while others are on their way.
    pub fn write(&mut self, window: &mut Window, buf: Buf) -> Result<(), Ending> {
        while self.writing >= WRITES {
            self.wait(window)?;
        }
        self.writing += 1;
        self.ask(Ask::Write(buf))
    }

    /// Says what came of it. Nobody may be there to hear.
    pub fn done(&self, done: D) {
        if let Side::Apart { asks, .. } = &self.side {
            // Nobody waits any more: then nothing is to be told.
            let _ = asks.send(Ask::Done(done));
        }
    }

    fn ask(&self, ask: Ask<D>) -> Result<(), Ending> {
        match &self.side {
            Side::Apart { asks, .. } => asks.send(ask).map_err(|_| Ending::Abandoned),
            Side::Here { .. } => Err(Ending::TooLong),
        }
    }

    fn wait(&mut self, window: &mut Window) -> Result<(), Ending> {
        let Side::Apart { answers, .. } = &self.side else {
            return Err(Ending::TooLong);
        };
        let answer = match answers.recv_timeout(self.patience.left()?) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => return Err(Ending::Stopped(Bound::Time)),
            Err(RecvTimeoutError::Disconnected) => return Err(Ending::Abandoned),
        };
        match answer {
            Answer::Piece {
                input,
                offset,
                buf,
                run,
            } => {
                if let Some(current) = self.run.as_mut().filter(|now| now.number == run) {
                    current.next = offset + buf.len() as u64;
                }
                window.put(input, offset, buf);
                Ok(())
            }
            Answer::Written => {
                self.writing = self.writing.saturating_sub(1);
                Ok(())
            }
        }
    }
}
