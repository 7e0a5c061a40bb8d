//! A value leaving, from wherever its pieces are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::Buf;
use forebay_store::{Body, ErrorKind, Meta, Result, Store, StoreError};

use crate::cache::Cache;
use crate::disk::Reading;
use crate::flight::{Flight, reread};
use crate::index::Place;
use crate::metrics::count;
use crate::piece::{Piece, bytes_of};

/// So much is checked at a time: what was just summed is still in the processor's cache when it is sent.
const STEP_BYTES: usize = 128 << 10;

/// The bytes of a value in a [`Tier`](crate::Tier).
pub struct TierBody<S: Store> {
    repr: Repr<S>,
}

enum Repr<S: Store> {
    Store(S::Body),
    Kept(Box<Kept<S>>),
}

pub(crate) struct Kept<S: Store> {
    pub cache: Arc<Cache<S>>,
    pub store: Arc<S>,
    pub place: Place,
    pub meta: Meta,
    /// The number of the value in the index.
    pub value: u64,
    pub parts: VecDeque<Part<S>>,
    pub ready: VecDeque<Buf>,
}

/// Bytes `want` of piece `number`.
pub(crate) struct Part<S: Store> {
    pub number: u32,
    pub want: Range<usize>,
    pub from: From<S>,
}

impl<S: Store> Part<S> {
    /// What is checked and given out next.
    fn next_step(&self) -> Range<usize> {
        let end = (self.want.start / STEP_BYTES + 1) * STEP_BYTES;
        self.want.start..self.want.end.min(end)
    }
}

/// Where a piece comes from; everything was opened before the body was given out, so that it stays what it was.
pub(crate) enum From<S: Store> {
    Memory(Piece),
    Disk(Reading),
    Flight(Arc<Flight<S>>),
}

impl<S: Store> TierBody<S> {
    pub(crate) fn of_store(body: S::Body) -> TierBody<S> {
        TierBody {
            repr: Repr::Store(body),
        }
    }

    pub(crate) fn kept(kept: Kept<S>) -> TierBody<S> {
        TierBody {
            repr: Repr::Kept(Box::new(kept)),
        }
    }
}

impl<S: Store> Body for TierBody<S> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        match &mut self.repr {
            Repr::Store(body) => body.next().await,
            Repr::Kept(kept) => kept.next().await,
        }
    }
}

impl<S: Store> Kept<S> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        loop {
            if let Some(buf) = self.ready.pop_front() {
                return Ok(Some(buf));
            }
            let Some(part) = self.parts.front_mut() else {
                return Ok(None);
            };
            let number = part.number;
            let piece = match &mut part.from {
                From::Memory(piece) => Some(piece.clone()),
                From::Flight(flight) => Some(flight.piece(&self.cache, &self.store, number).await?),
                From::Disk(reading) => match reading.piece().await {
                    Ok(piece) => {
                        let index = &self.cache.index;
                        let fallout = index.promote(&self.place, self.value, number, piece.clone());
                        self.cache.after(fallout);
                        Some(piece)
                    }
                    Err(_) => None,
                },
            };
            let step = part.next_step();
            let mut good = piece.filter(|piece| piece.checked(step.clone(), &mut self.ready));
            if good.is_none() {
                count(&self.cache.counters.corrupt);
                let fallout = self
                    .cache
                    .index
                    .forget_piece(&self.place, self.value, number);
                self.cache.after(fallout);
                let piece = self.read_again(number).await?;
                if !piece.checked(step.clone(), &mut self.ready) {
                    return Err(StoreError::new(
                        ErrorKind::Corrupt,
                        "a value changes while it is in memory",
                    ));
                }
                good = Some(piece);
            }
            let left = self
                .parts
                .pop_front()
                .filter(|part| step.end < part.want.end);
            if let (Some(part), Some(piece)) = (left, good) {
                self.parts.push_front(Part {
                    want: step.end..part.want.end,
                    from: From::Memory(piece),
                    ..part
                });
            }
        }
    }

    /// A piece from the store, in place of one that was not what it should be.
    async fn read_again(&mut self, number: u32) -> Result<Piece> {
        let bytes = bytes_of(&(number..number + 1), self.meta.size);
        let len = bytes.end - bytes.start;
        let mut body = reread(&self.cache, &self.store, &self.place, &self.meta, bytes).await?;
        let mut bufs = Vec::new();
        while let Some(buf) = body.next().await? {
            bufs.push(buf);
        }
        let piece = Piece::new(bufs);
        match piece.len() as u64 == len {
            true => Ok(piece),
            false => Err(StoreError::new(
                ErrorKind::Io,
                "the store ended a value early",
            )),
        }
    }
}
