//! One payload between the store and a client's memory, and the moments until when.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{CloseReason, Error, ErrorKind, Link, RemoteRange};
use forebay_proto::s3::error::ErrorCode;
use forebay_store::StoreError;
use http::header::HeaderValue;
use tokio::time::{Instant, timeout_at};

use super::moved::BYTES_TRANSFERRED;
use crate::demand::Demand;
use crate::status::{Manner, Outcome, Refusal};

/// How long work that was given to the fabric in time may still take.
pub(super) const GRACE: Duration = Duration::from_millis(1500);

/// Until when work may be given to the fabric (section 6.5).
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// Nothing is begun after it.
    until: Instant,
    /// Nothing is waited for after it; still before clients give up.
    over: Instant,
}

impl Lease {
    /// Counted from the arrival of the request's head: what the token asks for, but no longer than the door allows.
    pub(super) fn new(arrived: Instant, most: Duration, asked_ms: u32) -> Lease {
        let until = arrived + most.min(Duration::from_millis(u64::from(asked_ms)));
        Lease {
            until,
            over: until + GRACE,
        }
    }

    /// What the store does before anything is begun.
    ///
    /// # Errors
    /// `SlowDown` when it takes too long.
    pub(super) async fn before<T>(&self, work: impl Future<Output = T>) -> Outcome<T> {
        let done = timeout_at(self.until, work).await.map_err(|_| late())?;
        match Instant::now() < self.until {
            true => Ok(done),
            false => Err(late()),
        }
    }

    /// Whether something may still be begun.
    pub(super) fn is_running(&self) -> bool {
        Instant::now() < self.until
    }

    /// Waits for what was begun; `None` when it takes too long.
    pub(super) async fn finish<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.over, work).await.ok()
    }
}

/// Nothing was begun.
pub(super) fn late() -> Refusal {
    Refusal::new(
        ErrorCode::SlowDown,
        "The storage did not answer within the lease of the token.",
    )
}

/// The fabric failed after `bytes` had been moved.
pub(super) fn failed(bytes: u64) -> Refusal {
    Refusal::from(ErrorCode::RDMATransferFailed).header(BYTES_TRANSFERRED, HeaderValue::from(bytes))
}

/// What a failed call of a link is to the client.
pub(super) fn broken(error: &Error, bytes: u64) -> Refusal {
    tracing::debug!(%error, bytes, "a transfer failed");
    match error.kind {
        ErrorKind::Busy if bytes == 0 => ErrorCode::SlowDown.into(),
        _ => failed(bytes),
    }
}

/// What a store that fails after `bytes` had been moved is to the client.
pub(super) fn stopped(error: StoreError, bytes: u64) -> Refusal {
    match bytes {
        0 => error.into(),
        _ => Refusal {
            cause: Some(error),
            ..failed(bytes)
        },
    }
}

/// Whether a failed call says that it moved nothing and the link goes on.
pub(super) fn is_whole(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotReachable | ErrorKind::Busy | ErrorKind::Invalid
    )
}

/// A failure in the midst of work, which takes its link along. It is told only where nothing can land after it.
pub(super) fn parted<L: Link>(link: &L, refusal: Refusal) -> Refusal {
    link.close(CloseReason::Lost);
    match link.is_settled() {
        true => refusal,
        false => refusal.manner(Manner::Unsaid),
    }
}

/// A link, the client's memory behind it, and the lease.
pub(super) struct Transfer<L> {
    pub(super) link: L,
    pub(super) windows: Windows,
    pub(super) lease: Lease,
    /// Whoever keeps buffers that this one waits for is hurried; its own go with the lease.
    pub(super) demand: Arc<Demand>,
}

impl<L: Link> Transfer<L> {
    pub(super) fn new(
        link: L,
        windows: Vec<RemoteRange>,
        lease: Lease,
        demand: &Arc<Demand>,
    ) -> Transfer<L> {
        Transfer {
            link,
            windows: Windows::new(windows),
            lease,
            demand: Arc::clone(demand),
        }
    }
}

/// Closes a link whose work is not known to have ended, when the request is dropped or fails in the midst of it: afterwards
/// nothing more is sent.
pub(super) struct Quiesce<'l, L: Link> {
    link: &'l L,
    armed: bool,
}

impl<'l, L: Link> Quiesce<'l, L> {
    pub(super) fn new(link: &'l L) -> Quiesce<'l, L> {
        Quiesce { link, armed: false }
    }

    /// Work begins.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// The work has ended.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }
}

impl<L: Link> Drop for Quiesce<'_, L> {
    fn drop(&mut self) {
        if self.armed {
            self.link.close(CloseReason::Lost);
        }
    }
}

/// The client's memory, front to back.
#[derive(Debug)]
pub(super) struct Windows {
    ranges: Vec<RemoteRange>,
    /// Which one is next.
    at: usize,
    total: u64,
}

impl Windows {
    pub(super) fn new(ranges: Vec<RemoteRange>) -> Windows {
        let total = ranges.iter().map(|range| range.len).sum();
        Windows {
            ranges,
            at: 0,
            total,
        }
    }

    /// Their length together, in bytes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The first `len` bytes, when they lie together.
    pub(super) fn together(&self, len: u64) -> Option<RemoteRange> {
        let first = self.ranges.first().filter(|first| first.len >= len)?;
        Some(RemoteRange { len, ..*first })
    }

    /// The next piece, of at most `len` bytes; `None` when all were given out.
    pub(super) fn next(&mut self, len: u64) -> Option<RemoteRange> {
        let range = self.ranges.get_mut(self.at)?;
        let len = len.min(range.len);
        let piece = RemoteRange { len, ..*range };
        // Their ends do not overflow: the token was checked.
        range.offset += len;
        range.len -= len;
        if range.len == 0 {
            self.at += 1;
        }
        Some(piece)
    }
}
