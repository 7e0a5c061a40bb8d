//! How a value is found: what is held of it, what has to come from the store, and whether what is held may still be believed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::RegionSlice;
use forebay_store::{ByteRange, ErrorKind, Meta, Object, Result, Store, StoreError};

use crate::body::{From, Kept, Part, TierBody};
use crate::cache::Cache;
use crate::flight::{Boarded, Reader, whole_pieces};
use crate::index::{Found, Held, Place, is_same};
use crate::metrics::count;
use crate::namesake::{address, still};
use crate::piece::{PIECE_BYTES, part_of, pieces_of};
use crate::stripes::Quiet;
use crate::tier::Tier;
use crate::write_back::Pending;

/// A value may be replaced again and again while it is looked for; then the store answers alone.
const LOOKS_MAX: usize = 4;

/// How a value is given out.
pub(crate) enum Way<S: Store> {
    /// From what is held, and from what others read, too.
    Kept(Object<Box<Kept<S>>>),
    /// Out of a body that was opened to share it, before it came out that there is no room to.
    Cut(Object<TierBody<S>>),
    /// The store has to answer alone, in this turn.
    Pass,
}

/// How a read of the store that others may share began.
enum Begun<S: Store> {
    Shared(Arc<Reader<S>>, Meta, Range<u32>),
    /// Nobody else has a part in it.
    Own(Object<S::Body>),
    /// The store has to answer alone.
    Pass,
}

/// One look's end.
enum Look<S: Store> {
    Done(Object<Box<Kept<S>>>),
    Cut(Object<TierBody<S>>),
    /// What was held is gone: look again.
    Again,
    /// The store has to answer alone.
    Pass,
}

impl<S: Store> Tier<S> {
    /// From what is held and from the store.
    pub(crate) async fn kept(
        &self,
        cache: &Arc<Cache<S>>,
        place: Place,
        range: ByteRange,
    ) -> Result<Way<S>> {
        if let Some(pending) = cache.write_back.find(&place, cache.now()).await {
            return self.pending(cache, place, &pending, range).map(Way::Kept);
        }
        for _ in 0..LOOKS_MAX {
            let now = cache.now();
            let look = match cache.index.find(&place, range, now) {
                Some(found) => self.held(cache, &place, found, now).await?,
                None => self.fill(cache, &place, range, now).await?,
            };
            match look {
                Look::Done(object) => return Ok(Way::Kept(object)),
                Look::Cut(object) => return Ok(Way::Cut(object)),
                Look::Again => {}
                Look::Pass => break,
            }
        }
        still(&*self.store, &place.namespace)?;
        Ok(Way::Pass)
    }

    /// The same, with the bytes at the start of `target`; `None` when the store has to answer alone, in this turn.
    pub(crate) async fn kept_into(
        &self,
        cache: &Arc<Cache<S>>,
        place: Place,
        range: ByteRange,
        target: &RegionSlice,
    ) -> Result<Option<(Meta, Range<u64>)>> {
        let namespace = place.namespace.clone();
        let mut found = match self.kept(cache, place, range).await? {
            Way::Kept(found) => found,
            Way::Cut(found) => {
                found.check_room(target)?;
                if found.range.end - found.range.start <= cache.config.span_bytes_max {
                    return found.place_into(target).await.map(Some);
                }
                // What is too long to be kept goes the store's own way, which may be straight into the target.
                drop(found);
                still(&*self.store, &namespace)?;
                return Ok(None);
            }
            Way::Pass => return Ok(None),
        };
        found.check_room(target)?;
        found.body.land(target).await?;
        Ok(Some((found.meta, found.range)))
    }

    /// Something of the value is held.
    async fn held(
        &self,
        cache: &Arc<Cache<S>>,
        place: &Place,
        found: Found,
        now: u64,
    ) -> Result<Look<S>> {
        if found.range.is_some() && found.pieces.is_empty() {
            // Too long to be kept.
            return Ok(Look::Pass);
        }
        let missing = missing(&found);
        let mut meta = found.meta.clone();
        if missing.is_none() && !cache.is_trusted(found.known, now) {
            let checked = cache.check(&*self.store, place, &meta, found.value).await?;
            match checked {
                Some(current) => meta = current,
                None => return Ok(Look::Again),
            }
        }
        let Some(wanted) = found.range.clone() else {
            return Err(unsatisfiable(meta.size));
        };
        let flight = match missing {
            None => None,
            Some(span) => {
                let rest = self.rest(cache, place, found.value, &mut meta, &span, now);
                match rest.await? {
                    Ok(flight) => Some((flight, span)),
                    Err(look) => return Ok(look),
                }
            }
        };
        let mut parts = VecDeque::with_capacity(found.pieces.len());
        for (number, held) in found.pieces {
            let from = match (held, &flight) {
                (_, Some((flight, span))) if span.contains(&number) => {
                    count(&cache.counters.misses);
                    From::Flight(flight.clone())
                }
                (Held::Memory(piece), _) => {
                    count(&cache.counters.memory_hits);
                    From::Memory(piece)
                }
                (Held::Disk | Held::Nowhere, _) => {
                    let opened = match &cache.disk {
                        Some(disk) => disk.open(place, number, &meta).await,
                        None => None,
                    };
                    let Some(reading) = opened else {
                        let index = &cache.index;
                        cache.after(index.forget_piece(place, found.value, number));
                        return Ok(Look::Again);
                    };
                    count(&cache.counters.disk_hits);
                    From::Disk(reading)
                }
            };
            parts.push_back(Part {
                number,
                want: part_of(number, &wanted),
                from,
            });
        }
        let value = found.value;
        Ok(Look::Done(
            self.object(cache, place, meta, value, wanted, parts),
        ))
    }

    /// A read of the pieces that are missing, if the store has the value that is held: it says as much of it as a look would.
    async fn rest(
        &self,
        cache: &Arc<Cache<S>>,
        place: &Place,
        value: u64,
        meta: &mut Meta,
        span: &Range<u32>,
        now: u64,
    ) -> Result<std::result::Result<Arc<Reader<S>>, Look<S>>> {
        let Some(quiet) = cache.stripes.quiet(place.hash) else {
            return Ok(Err(Look::Pass));
        };
        let first = u64::from(span.start) * PIECE_BYTES;
        let last = u64::from(span.end) * PIECE_BYTES - 1;
        let request = ByteRange::Inclusive(first, last);
        match self.board(cache, place, request, quiet, now).await {
            Ok(Begun::Shared(flight, current, _)) if is_same(&current, meta) => {
                cache.confirm(place, value, &current, flight.began(), Some(quiet));
                *meta = current;
                return Ok(Ok(flight));
            }
            Ok(Begun::Shared(..)) => {}
            // It has but the bytes that are not held.
            Ok(Begun::Own(_) | Begun::Pass) => return Ok(Err(Look::Pass)),
            // Another value, too short for these pieces, or none.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::RangeNotSatisfiable | ErrorKind::NotFound
                ) => {}
            Err(error) => return Err(error),
        }
        count(&cache.counters.outdated);
        cache.after(cache.index.remove(place, Some(value)));
        Ok(Err(Look::Again))
    }

    /// Nothing of the value is held.
    async fn fill(
        &self,
        cache: &Arc<Cache<S>>,
        place: &Place,
        range: ByteRange,
        now: u64,
    ) -> Result<Look<S>> {
        let Some(quiet) = cache.stripes.quiet(place.hash) else {
            return Ok(Look::Pass);
        };
        let request = match (whole_pieces(range), range) {
            (Some(request), _) => request,
            (None, ByteRange::Suffix(bytes)) => {
                let size = self
                    .store
                    .stat(address(&*self.store, place)?, None)
                    .await?
                    .size;
                let whole = whole_pieces(ByteRange::From(size.saturating_sub(bytes)));
                whole.unwrap_or(ByteRange::Full)
            }
            (None, _) => return Ok(Look::Pass),
        };
        let boarded = match self.board(cache, place, request, quiet, now).await {
            // The size that the request was made from is another value's.
            Err(error)
                if error.kind() == ErrorKind::RangeNotSatisfiable
                    && matches!(range, ByteRange::Suffix(_)) =>
            {
                Begun::Pass
            }
            boarded => boarded?,
        };
        let (flight, meta, span) = match boarded {
            Begun::Shared(flight, meta, span) => (flight, meta, span),
            Begun::Own(object) => return cut_out(object, range),
            Begun::Pass => return Ok(Look::Pass),
        };
        let wanted = range
            .resolve(meta.size)
            .ok_or_else(|| unsatisfiable(meta.size))?;
        let pieces = pieces_of(&wanted);
        if pieces.start < span.start || pieces.end > span.end {
            return Ok(Look::Pass);
        }
        let parts = pieces.map(|number| {
            count(&cache.counters.misses);
            Part {
                number,
                want: part_of(number, &wanted),
                from: From::Flight(flight.clone()),
            }
        });
        let parts = parts.collect();
        Ok(Look::Done(
            self.object(cache, place, meta, 0, wanted, parts),
        ))
    }

    /// An opened flight, its value's metadata and its pieces, if there is room for what it reads.
    async fn board(
        &self,
        cache: &Arc<Cache<S>>,
        place: &Place,
        request: ByteRange,
        quiet: Quiet,
        now: u64,
    ) -> Result<Begun<S>> {
        let strict = cache.is_strict();
        let joins = |began| strict || cache.is_trusted(began, now);
        let (boarded, joined) = loop {
            let (flight, joined) = cache.flights.board(place, request, quiet, now, joins);
            match flight.open(cache, &self.store, request).await {
                Ok(Boarded::Late) => {}
                boarded => break (boarded, joined),
            }
        };
        if joined {
            count(&cache.counters.joined);
        }
        match boarded {
            Ok(Boarded::Open(flight, meta, span, by_us)) => {
                // What another asked for may be older than this call.
                if strict && !by_us {
                    count(&cache.counters.checks);
                    let current = self.store.stat(address(&*self.store, place)?, None).await?;
                    if !is_same(&current, &meta) {
                        return Ok(Begun::Pass);
                    }
                    return Ok(Begun::Shared(flight, current, span));
                }
                Ok(Begun::Shared(flight, meta, span))
            }
            Ok(Boarded::Private(Some(object))) => Ok(Begun::Own(object)),
            Ok(Boarded::Private(None) | Boarded::Late) => Ok(Begun::Pass),
            Err(_) if strict && joined => Ok(Begun::Pass),
            // Where the bytes went is for the store to say, of the range that was asked for.
            Err(error) if error.away().is_some() => Ok(Begun::Pass),
            Err(error) => Err(error),
        }
    }

    /// A value that the store has yet to commit.
    fn pending(
        &self,
        cache: &Arc<Cache<S>>,
        place: Place,
        pending: &Pending,
        range: ByteRange,
    ) -> Result<Object<Box<Kept<S>>>> {
        let meta = pending.meta.clone();
        let wanted = range
            .resolve(meta.size)
            .ok_or_else(|| unsatisfiable(meta.size))?;
        let parts = pieces_of(&wanted).filter_map(|number| {
            let piece = pending.pieces.get(number as usize)?.clone();
            count(&cache.counters.memory_hits);
            Some(Part {
                number,
                want: part_of(number, &wanted),
                from: From::Memory(piece),
            })
        });
        let parts = parts.collect();
        Ok(self.object(cache, &place, meta, 0, wanted, parts))
    }

    fn object(
        &self,
        cache: &Arc<Cache<S>>,
        place: &Place,
        meta: Meta,
        value: u64,
        range: Range<u64>,
        parts: VecDeque<Part<S>>,
    ) -> Object<Box<Kept<S>>> {
        let body = Box::new(Kept {
            cache: cache.clone(),
            store: self.store.clone(),
            place: place.clone(),
            meta: meta.clone(),
            value,
            parts,
            ready: VecDeque::new(),
        });
        Object { meta, range, body }
    }
}

/// What was asked for out of what was opened for it, if that has it.
fn cut_out<S: Store>(object: Object<S::Body>, range: ByteRange) -> Result<Look<S>> {
    let Object {
        meta,
        range: of,
        body,
    } = object;
    let wanted = range
        .resolve(meta.size)
        .ok_or_else(|| unsatisfiable(meta.size))?;
    if wanted.start < of.start || wanted.end > of.end {
        return Ok(Look::Pass);
    }
    Ok(Look::Cut(Object {
        body: TierBody::cut_out(body, &of, &wanted),
        meta,
        range: wanted,
    }))
}

/// The pieces from the first that is missing to the last.
fn missing(found: &Found) -> Option<Range<u32>> {
    let mut missing = found
        .pieces
        .iter()
        .filter(|(_, held)| matches!(held, Held::Nowhere))
        .map(|(number, _)| *number);
    let first = missing.next()?;
    Some(first..missing.next_back().unwrap_or(first) + 1)
}

fn unsatisfiable(size: u64) -> StoreError {
    StoreError::new(
        ErrorKind::RangeNotSatisfiable,
        format!("the value has {size} bytes"),
    )
}
