//! A value leaving, from wherever its pieces are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, RegionSlice};
use forebay_store::{Body, ErrorKind, Meta, Result, Store, StoreError};

use crate::cache::Cache;
use crate::disk::Reading;
use crate::flight::{Reader, reread};
use crate::index::Place;
use crate::metrics::count;
use crate::piece::{Piece, bytes_of};

/// So much is checked at a time: what was just summed is still in the processor's cache when it is sent.
const STEP_BYTES: usize = 128 << 10;

/// What is in memory waits for nothing: when so much was placed, others of the thread get their turn.
const TURN_BYTES: usize = 4 << 20;

/// The bytes of a value in a [`Tier`](crate::Tier).
pub struct TierBody<S: Store> {
    repr: Repr<S>,
}

enum Repr<S: Store> {
    Store(S::Body),
    Cut(Cut<S::Body>),
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
    Flight(Arc<Reader<S>>),
}

impl<S: Store> TierBody<S> {
    pub(crate) fn of_store(body: S::Body) -> TierBody<S> {
        TierBody {
            repr: Repr::Store(body),
        }
    }

    /// The bytes `range` of a body that has `of`.
    pub(crate) fn cut_out(body: S::Body, of: &Range<u64>, range: &Range<u64>) -> TierBody<S> {
        TierBody {
            repr: Repr::Cut(Cut {
                body,
                skip: range.start - of.start,
                left: range.end - range.start,
            }),
        }
    }

    pub(crate) fn kept(kept: Box<Kept<S>>) -> TierBody<S> {
        TierBody {
            repr: Repr::Kept(kept),
        }
    }
}

impl<S: Store> Body for TierBody<S> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        match &mut self.repr {
            Repr::Store(body) => body.next().await,
            Repr::Cut(cut) => cut.next().await,
            Repr::Kept(kept) => kept.next().await,
        }
    }
}

/// A body of the store that was opened for more than was asked for.
struct Cut<B> {
    body: B,
    skip: u64,
    left: u64,
}

impl<B: Body> Cut<B> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        while self.left > 0 {
            let buf = self.body.next().await?.ok_or_else(ended)?;
            let len = buf.len() as u64;
            let first = self.skip.min(len);
            let end = len.min(first + self.left);
            self.skip -= first;
            self.left -= end - first;
            if first < end {
                return Ok(Some(buf.slice(first as usize..end as usize)));
            }
        }
        Ok(None)
    }
}

impl<S: Store> Kept<S> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        loop {
            if let Some(buf) = self.ready.pop_front() {
                return Ok(Some(buf));
            }
            let Some(part) = self.parts.front() else {
                return Ok(None);
            };
            let step = part.next_step();
            let mut ready = std::mem::take(&mut self.ready);
            let piece = self
                .take(|piece| Ok(piece.checked(step.clone(), &mut ready)))
                .await?;
            self.ready = ready;
            let left = self
                .parts
                .pop_front()
                .filter(|part| step.end < part.want.end);
            if let (Some(part), Some(piece)) = (left, piece) {
                self.parts.push_front(Part {
                    want: step.end..part.want.end,
                    from: From::Memory(piece),
                    ..part
                });
            }
        }
    }

    /// All bytes to the start of `target`, which has room for them.
    pub(crate) async fn land(&mut self, target: &RegionSlice) -> Result<()> {
        let mut at = 0;
        while let Some(part) = self.parts.front() {
            let want = part.want.clone();
            self.take(|piece| piece.place(want.clone(), target, at))
                .await?;
            at += want.len();
            self.parts.pop_front();
            if at / TURN_BYTES > (at - want.len()) / TURN_BYTES {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Gives the piece that comes next to `take`, which tells whether it is what came in; if it is not, once more as the store has it.
    async fn take(
        &mut self,
        mut take: impl FnMut(&Piece) -> Result<bool>,
    ) -> Result<Option<Piece>> {
        let Some(part) = self.parts.front_mut() else {
            return Ok(None);
        };
        let number = part.number;
        let piece = match &mut part.from {
            From::Memory(piece) => Some(piece.clone()),
            From::Flight(reader) => Some(reader.piece(&self.cache, number).await?),
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
        if let Some(piece) = piece
            && take(&piece)?
        {
            return Ok(Some(piece));
        }
        count(&self.cache.counters.corrupt);
        let index = &self.cache.index;
        self.cache
            .after(index.forget_piece(&self.place, self.value, number));
        let piece = self.read_again(number).await?;
        match take(&piece)? {
            true => Ok(Some(piece)),
            false => Err(StoreError::new(
                ErrorKind::Corrupt,
                "a value changes while it is in memory",
            )),
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
            false => Err(ended()),
        }
    }
}

fn ended() -> StoreError {
    StoreError::new(ErrorKind::Io, "the store ended a value early")
}

#[cfg(test)]
mod tests {
    use forebay_mem::{Pool, Region};
    use forebay_store::suite::{TestClock, content};
    use forebay_store::{
        Address, ByteRange, MemoryStore, NamespaceConfig, Seal, StoreOptions, Upload,
    };

    use super::*;
    use crate::read::Way;
    use crate::{Config, Tier};

    #[tokio::test]
    async fn what_turned_in_memory_is_placed_and_given_out_as_the_store_has_it() {
        let clock = TestClock::default();
        let (store_clock, tier_clock) = (clock.clone(), clock.clone());
        let store = MemoryStore::new(Pool::new(64 << 20), move || store_clock.now());
        let config = NamespaceConfig {
            tenant: "acme".to_owned(),
            ..NamespaceConfig::default()
        };
        let made = store.create_namespace("values", config);
        made.await.expect("a name");
        let value = content(1, 2_500_000);
        let address = Address::object("values", b"k");
        let upload = store.store(address, StoreOptions::default()).await;
        let mut upload = upload.expect("room");
        for chunk in value.chunks(1 << 20) {
            let buf = chunk.to_vec().into();
            upload.write(buf).await.expect("room");
        }
        upload.commit(Seal::default()).await.expect("committed");

        let config = Config::new(64 << 20, Arc::new(move || tier_clock.now()));
        let tier = Tier::new(Arc::new(store), config, None);
        let found = async || {
            let (cache, place) = tier.placed(address, None).expect("there").expect("on");
            let found = tier.kept(cache, place, ByteRange::Full).await;
            match found.expect("read") {
                Way::Kept(found) => found.body,
                Way::Cut(_) | Way::Pass => panic!("it is kept"),
            }
        };
        let drained = async |mut kept: Box<Kept<MemoryStore>>| {
            let mut bytes = Vec::new();
            while let Some(buf) = kept.next().await.expect("read") {
                bytes.extend_from_slice(&buf);
            }
            bytes
        };
        let region = Region::anonymous(value.len()).expect("memory");
        let target = region.slice(0..value.len()).expect("inside");
        for turned in 0..3 {
            for landing in [false, true] {
                // What was found bad is forgotten: one reader puts it back.
                assert!(drained(found().await).await == value);
                let mut kept = found().await;
                let part = &mut kept.parts[turned];
                let From::Memory(piece) = &part.from else {
                    panic!("it is held");
                };
                part.from = From::Memory(piece.with_damage_at(100_000));
                let bytes = match landing {
                    false => drained(kept).await,
                    true => {
                        kept.land(&target).await.expect("placed");
                        let mut bytes = vec![0; value.len()];
                        assert!(target.read(0, &mut bytes));
                        bytes
                    }
                };
                assert!(bytes == value, "piece {turned}, landing {landing}");
            }
        }
        assert_eq!(tier.metrics().expect("on").corrupt, 6);
    }
}
