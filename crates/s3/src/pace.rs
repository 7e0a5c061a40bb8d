//! A stream that gives up on a client that neither sends nor takes.
//!
//! Which wait is too long depends on where the connection stands: between requests (`idle_timeout`), inside a head
//! (`header_timeout`), or sending a response (`body_timeout`, without progress). Waiting for a request's body is timed by
//! who reads it ([`crate::ingest`]), because only there is it known whether the door or the client is late.
//!
//! A response keeps buffers until the client has taken them. A client may take its time, as on a bad line, while there are others;
//! when requests wait for buffers, or for what the response keeps of its tenant's share of them ([`crate::demand`]), a client that takes
//! little is given up as one that takes nothing.
//!
//! A client may say that it sends nothing more and still wait for its response. Only where a request is bound to its client
//! ([`Phase::bind_request`]) does that end it: whoever has left may use its memory for something else, and has no function run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::demand::Demand;

/// While others wait for buffers, a client that takes less than this of a response in `body_timeout` is too slow, and so is
/// one that sends less of a body that has a buffer.
pub(crate) const HURRIED_BYTES: usize = 1 << 20;

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const SERVING: u8 = 2;
const BOUND: u8 = 3;

/// Where a connection stands, shared by its stream and its requests.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    stands: AtomicU8,
    /// Who waits for what the response keeps.
    demand: Mutex<Option<Arc<Demand>>>,
}

impl Phase {
    /// A whole head has arrived.
    pub(crate) fn begin_request(&self) {
        self.stands.store(SERVING, Relaxed);
    }

    /// The request is here with its body, if it has one, and goes when its client does: what it moves is the client's memory, or it is
    /// long and for the client alone.
    pub(crate) fn bind_request(&self) {
        self.stands.store(BOUND, Relaxed);
    }

    /// A response is here; with `demand` it keeps what that is for.
    pub(crate) fn begin_response(&self, demand: Option<&Arc<Demand>>) {
        let mut known = self.demand.lock();
        // Mostly it is the one of the response before.
        if known.as_ref().map(Arc::as_ptr) != demand.map(Arc::as_ptr) {
            *known = demand.cloned();
        }
    }

    /// Whether somebody waits for what the response keeps.
    fn is_hurried(&self) -> bool {
        let demand = self.demand.lock();
        demand.as_ref().is_some_and(|demand| demand.is_there())
    }

    /// The response is out, or given up.
    pub(crate) fn end_request(&self) {
        self.stands.store(IDLE, Relaxed);
    }
}

/// The time-outs of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) idle: Duration,
    pub(crate) header: Duration,
    pub(crate) write: Duration,
}

/// One direction's wait. The timer is made when there is first something to wait for, and moved afterwards.
#[derive(Default)]
struct Wait {
    timer: Option<Pin<Box<Sleep>>>,
    since: Option<(u8, Instant)>,
}

impl Wait {
    /// Ready when `limit` has gone by since the first call after the last [`Wait::over`], or since `phase` changed.
    fn poll(&mut self, cx: &mut Context<'_>, phase: u8, limit: Duration) -> Poll<()> {
        let since = match self.since {
            Some((seen, since)) if seen == phase => since,
            _ => {
                let now = Instant::now();
                self.since = Some((phase, now));
                let deadline = now + limit;
                match &mut self.timer {
                    // A timer that fires early is moved below; moving it later on every wait would cost more.
                    Some(timer) if timer.deadline() <= deadline && !timer.is_elapsed() => {}
                    Some(timer) => timer.as_mut().reset(deadline),
                    None => self.timer = Some(Box::pin(sleep_until(deadline))),
                }
                now
            }
        };
        let Some(timer) = &mut self.timer else {
            return Poll::Pending;
        };
        loop {
            ready!(timer.as_mut().poll(cx));
            let deadline = since + limit;
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }

    /// How long it was waited.
    fn over(&mut self) -> Duration {
        self.since
            .take()
            .map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

/// The stream.
pub(crate) struct Paced<T> {
    inner: T,
    phase: Arc<Phase>,
    patience: Patience,
    demand: Arc<Demand>,
    reading: Wait,
    writing: Wait,
    /// What the client has taken, and for how long it was waited for, since it last took enough.
    taken: usize,
    waited: Duration,
    /// What came of the next request while the client was watched.
    ahead: Option<u8>,
}

impl<T> Paced<T> {
    pub(crate) fn new(
        inner: T,
        phase: Arc<Phase>,
        patience: Patience,
        demand: Arc<Demand>,
    ) -> Paced<T> {
        Paced {
            inner,
            phase,
            patience,
            demand,
            reading: Wait::default(),
            writing: Wait::default(),
            taken: 0,
            waited: Duration::ZERO,
            ahead: None,
        }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = &poll {
            self.taken += done.as_ref().map_or(0, |bytes| *bytes);
            self.waited += self.writing.over();
        }
        // Without others any progress is enough.
        let is_hurried = self.demand.is_there() || self.phase.is_hurried();
        if self.taken >= HURRIED_BYTES || !is_hurried {
            self.taken = 0;
            self.waited = Duration::ZERO;
        }
        if poll.is_ready() {
            return poll;
        }
        let left = self.patience.write.saturating_sub(self.waited);
        ready!(self.writing.poll(cx, SERVING, left));
        Poll::Ready(Err(too_slow("the client does not take the response")))
    }

    fn finished(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.wrote(cx, poll.map_ok(|()| 0)).map_ok(|_| ())
    }
}

fn too_slow(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<T: AsyncRead + Unpin> Paced<T> {
    /// While a request is bound to its client nobody reads: looks whether the client has left.
    fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.phase.stands.load(Relaxed) != BOUND || self.ahead.is_some() {
            return Ok(());
        }
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
            Poll::Pending => Ok(()),
            Poll::Ready(read) => {
                read?;
                self.ahead = buf.filled().first().copied();
                let left = || io::Error::new(io::ErrorKind::ConnectionAborted, "the client left");
                self.ahead.map(|_| ()).ok_or_else(left)
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let read = match this.ahead.take() {
            Some(byte) => {
                buf.put_slice(&[byte]);
                Poll::Ready(Ok(()))
            }
            None => Pin::new(&mut this.inner).poll_read(cx, buf),
        };
        let phase = this.phase.stands.load(Relaxed);
        if read.is_ready() {
            if phase == IDLE {
                this.phase.stands.store(HEAD, Relaxed);
            }
            if phase != HEAD {
                this.reading.over();
            }
            return read;
        }
        let limit = match phase {
            IDLE => this.patience.idle,
            HEAD => this.patience.header,
            _ => return Poll::Pending,
        };
        ready!(this.reading.poll(cx, phase, limit));
        Poll::Ready(Err(too_slow("the client sends no request")))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.wrote(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = Pin::new(&mut self.inner);
        // One slice is sent by send(2), which costs the kernel less than writev(2).
        let poll = match bufs {
            [only] => inner.poll_write(cx, only),
            _ => inner.poll_write_vectored(cx, bufs),
        };
        self.wrote(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        // Whoever serves a connection flushes it whenever it is looked at.
        self.watch(cx)?;
        self.finished(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.finished(cx, poll)
    }
}
