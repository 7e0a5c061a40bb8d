//! What a client wants done with its memory, in the order in which it asked: a range that is still being mapped is neither unmapped nor
//! mapped once more before that has ended. What is about other memory is done meanwhile.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_io::passing::Passed;
use forebay_proto::vfio_user::{DmaMap, DmaUnmap, Header};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::errno::Errno;
use super::mapping::Mapped;
use super::messages::WAITING_MAX;

/// Requests that may wait for others: half of what waits at all, so that a client whose file is never mapped is heard all the same.
const KEPT_MAX: usize = WAITING_MAX / 2;

/// A request about memory.
pub(super) enum Remap {
    /// With its file, if it has one.
    Map(DmaMap, Option<Passed>),
    Unmap(DmaUnmap),
}

/// A range that is being mapped elsewhere.
struct Mapping {
    header: Header,
    range: Range<u64>,
    mapped: Pin<Box<dyn Future<Output = Result<Mapped, Errno>> + Send>>,
}

/// The requests of one client that are not done yet.
#[derive(Default)]
pub(super) struct Remapping {
    mapping: FuturesUnordered<Mapping>,
    /// Those whose turn has not come, in order.
    waiting: VecDeque<(Header, Remap)>,
}

impl Remap {
    /// What it is about.
    fn range(&self) -> Range<u64> {
        match self {
            Remap::Map(map, _) => range_of(map),
            Remap::Unmap(unmap) if unmap.all => 0..u64::MAX,
            Remap::Unmap(unmap) => unmap.address..unmap.address.saturating_add(unmap.size),
        }
    }
}

impl Future for Mapping {
    type Output = (Header, Result<Mapped, Errno>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mapped = ready!(self.mapped.as_mut().poll(cx));
        Poll::Ready((self.header, mapped))
    }
}

impl Remapping {
    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.mapping.len() + self.waiting.len()
    }

    /// Gives a request that has come back when nothing is to be done before it; else it is kept until then.
    pub(super) fn enter(&mut self, header: &Header, remap: Remap) -> Result<Option<Remap>, Errno> {
        if self.is_free(&remap.range(), self.waiting.len()) {
            return Ok(Some(remap));
        }
        if self.waiting.len() >= KEPT_MAX {
            return Err(Errno::BUSY);
        }
        self.waiting.push_back((*header, remap));
        Ok(None)
    }

    /// A range is mapped elsewhere from now on.
    pub(super) fn begin(
        &mut self,
        header: &Header,
        map: &DmaMap,
        mapped: impl Future<Output = Result<Mapped, Errno>> + Send + 'static,
    ) {
        self.mapping.push(Mapping {
            header: *header,
            range: range_of(map),
            mapped: Box::pin(mapped),
        });
    }

    /// What came of the next range that was mapped elsewhere.
    pub(super) fn poll_mapped(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Header, Result<Mapped, Errno>)> {
        match self.mapping.poll_next_unpin(cx) {
            Poll::Ready(Some(mapped)) => Poll::Ready(mapped),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The next request that was kept and whose turn has come.
    pub(super) fn next(&mut self) -> Option<(Header, Remap)> {
        let mut waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.find(|(at, (_, remap))| self.is_free(&remap.range(), *at))?;
        self.waiting.remove(at)
    }

    /// Whether a range is not being mapped, nor what one of the first `ahead` requests is about.
    fn is_free(&self, range: &Range<u64>, ahead: usize) -> bool {
        let shares = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        let mut waiting = self.waiting.iter().take(ahead);
        !self.mapping.iter().any(|mapping| shares(&mapping.range))
            && !waiting.any(|(_, remap)| shares(&remap.range()))
    }
}

/// Its end was checked when the message was read.
fn range_of(map: &DmaMap) -> Range<u64> {
    map.address..map.address.saturating_add(map.size)
}
