//! Between the thread that runs a function and the task that serves it: what is asked, what comes back.
//!
//! The function's thread never touches the store: it asks, and waits for no longer than its deadline. The task may wait for
//! the store as long as it likes, and is told when nobody waits for it any more. Bytes of inputs come ahead of what is asked
//! for when reading goes forward, so that the two work at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use forebay_io::Clock;
use forebay_mem::Buf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::ending::{Bound, Ending};
use crate::inputs::{PIECE_BYTES, Window};

/// How many pieces of an input are on their way to a function that reads on and on.
const AHEAD: usize = 3;
/// Buffers of output that may be on their way to the store.
const WRITES: usize = 2;

/// What the function's thread wants; there are never more than a few at a time, since it waits for the answers.
pub(crate) enum Ask<D> {
    /// A piece of an input from an offset on, of so many bytes if it can be; none of another any more.
    From {
        input: usize,
        offset: u64,
        wanted: u64,
        run: u32,
    },
    /// One piece more of the same.
    More,
    /// Bytes for the value that the output becomes.
    Write(Buf),
    /// The end; nothing follows.
    Done(D),
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

/// Whether anybody still waits for a call; it stops when nobody does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub fn is(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Says that nobody waits when it is dropped.
pub(crate) struct Waiting(Abandoned);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Relaxed);
    }
}

/// How long a call may take, and whether it is to go on at all.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub clock: Arc<dyn Clock>,
    /// By the clock's monotonic time.
    pub deadline: Duration,
    pub abandoned: Abandoned,
}

impl Patience {
    /// How much time is left.
    pub fn left(&self) -> Result<Duration, Ending> {
        if self.abandoned.is() {
            return Err(Ending::Abandoned);
        }
        let left = self.deadline.checked_sub(self.clock.monotonic());
        left.ok_or(Ending::Stopped(Bound::Time))
    }
}

/// The function's end.
pub(crate) struct Exchange<D> {
    asks: UnboundedSender<Ask<D>>,
    answers: Receiver<Answer>,
    pub patience: Patience,
    run: Run,
    writing: usize,
}

/// Pieces that are on their way.
#[derive(Debug, Default)]
struct Run {
    /// Tells its pieces from those of runs that were given up.
    number: u32,
    input: usize,
    /// Where the next piece begins.
    next: u64,
    /// How many there are, and how many have come.
    coming: usize,
    came: usize,
}

/// The task's end.
pub(crate) struct Service<D> {
    pub asks: UnboundedReceiver<Ask<D>>,
    pub answers: Sender<Answer>,
    /// Kept as long as the call is waited for.
    _waiting: Waiting,
}

/// Both ends.
pub(crate) fn exchange<D>(patience: Patience) -> (Exchange<D>, Service<D>) {
    let (ask, asks) = unbounded_channel();
    let (answer, answers) = channel();
    let waiting = Waiting(patience.abandoned.clone());
    let exchange = Exchange {
        asks: ask,
        answers,
        patience,
        run: Run::default(),
        writing: 0,
    };
    let service = Service {
        asks,
        answers: answer,
        _waiting: waiting,
    };
    (exchange, service)
}

impl<D> Exchange<D> {
    /// Brings the piece of `input` that holds `offset` into the window.
    pub fn fetch(
        &mut self,
        window: &mut Window,
        input: usize,
        offset: u64,
        wanted: u64,
    ) -> Result<(), Ending> {
        let Run { next, .. } = self.run;
        let begun = self.run.coming + self.run.came > 0;
        // Whoever reads on is given more, and more ahead; what is a little further on comes anyway.
        if begun && self.run.input == input && (next..=next + PIECE_BYTES).contains(&offset) {
            while self.run.coming < AHEAD.min(self.run.came + 1) {
                self.more()?;
            }
        } else {
            self.run = Run {
                number: self.run.number.wrapping_add(1),
                input,
                next: offset,
                coming: 1,
                came: 0,
            };
            self.ask(Ask::From {
                input,
                offset,
                wanted,
                run: self.run.number,
            })?;
        }
        while !window.holds(input, offset) {
            if self.run.coming == 0 {
                self.more()?;
            }
            self.wait(window)?;
        }
        Ok(())
    }

    fn more(&mut self) -> Result<(), Ending> {
        self.run.coming += 1;
        self.ask(Ask::More)
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
        // Nobody waits any more: then nothing is to be told.
        let _ = self.asks.send(Ask::Done(done));
    }

    fn ask(&self, ask: Ask<D>) -> Result<(), Ending> {
        self.asks.send(ask).map_err(|_| Ending::Abandoned)
    }

    fn wait(&mut self, window: &mut Window) -> Result<(), Ending> {
        let answer = match self.answers.recv_timeout(self.patience.left()?) {
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
                if run == self.run.number {
                    self.run.next = offset + buf.len() as u64;
                    self.run.coming -= 1;
                    self.run.came += 1;
                    // The second piece that is waited for shows that it goes on.
                    if self.run.came > 1 {
                        self.more()?;
                    }
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
