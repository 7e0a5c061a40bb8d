//! One read of the store for everybody who wants the same bytes at the same time.
//!
//! A flight is a body of the store that its readers pull together: whoever needs the next piece reads on, the others find it done.
//! No task owns it, so a reader that goes away or dawdles holds nobody back, and nothing is read that nobody asked for.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use forebay_store::{Body, ByteRange, ErrorKind, Meta, Result, Store, StoreError, VersionId};
use parking_lot::Mutex;
use tokio::sync::{Mutex as TurnMutex, OwnedSemaphorePermit, Semaphore};

use crate::cache::{Cache, address};
use crate::index::{Place, is_same};
use crate::metrics::count;
use crate::piece::{Cutter, PIECE_BYTES, Piece, bytes_of, pieces_of};
use crate::stripes::Quiet;

const UNIT_BYTES: u64 = 4096;

type FlightKey = (u32, Arc<[u8]>);

/// The flights under way.
pub(crate) struct Flights<S: Store> {
    known: Mutex<HashMap<FlightKey, Vec<Weak<Flight<S>>>>>,
    /// What flights may hold together, in units.
    room: Arc<Semaphore>,
}

/// A read of the store that several may share.
pub(crate) struct Flight<S: Store> {
    flights: Arc<Flights<S>>,
    place: Place,
    /// What was asked of the store: whole pieces.
    request: ByteRange,
    /// Nothing was changing then.
    quiet: Quiet,
    /// Before the store was asked.
    pub began: u64,
    turn: TurnMutex<State<S>>,
}

enum State<S: Store> {
    /// Nobody has asked the store yet, or who did went away.
    Waiting,
    Open(Open<S>),
    /// Each reader has to read for itself.
    Private,
    Failed(Failure),
}

struct Open<S: Store> {
    meta: Meta,
    span: Range<u32>,
    body: S::Body,
    /// Whether somebody is reading or went away while reading: what the body yields next is not known then.
    reading: bool,
    cutter: Cutter,
    pieces: Vec<Piece>,
    _room: OwnedSemaphorePermit,
}

/// An error that is told to all.
#[derive(Debug, Clone)]
struct Failure {
    kind: ErrorKind,
    message: String,
    marker: Option<VersionId>,
}

/// How a flight began, for one of its readers.
pub(crate) enum Boarded {
    /// Its value and pieces; whether this call asked the store.
    Open(Meta, Range<u32>, bool),
    /// Read for yourself.
    Private,
}

impl<S: Store> Flights<S> {
    /// Flights that hold at most `bytes` together.
    pub fn new(bytes: u64) -> Flights<S> {
        Flights {
            known: Mutex::default(),
            room: Arc::new(Semaphore::new((bytes / UNIT_BYTES) as usize)),
        }
    }

    /// A flight over `request` of this value: one that is under way, if `joins` likes it, or a new one.
    pub fn board(
        self: &Arc<Self>,
        place: &Place,
        request: ByteRange,
        quiet: Quiet,
        now: u64,
        joins: impl Fn(&Flight<S>) -> bool,
    ) -> (Arc<Flight<S>>, bool) {
        let mut known = self.known.lock();
        let flights = known
            .entry((place.namespace.id, place.key.clone()))
            .or_default();
        // Whichever of them ends here takes the lock again: not before it is free.
        let alive: Vec<_> = flights.iter().filter_map(Weak::upgrade).collect();
        let joined = alive.iter().find(|flight| {
            flight.quiet == quiet && covers(flight.request, request) && joins(flight)
        });
        if let Some(flight) = joined.cloned() {
            drop(known);
            return (flight, true);
        }
        let flight = Arc::new(Flight {
            flights: self.clone(),
            place: place.clone(),
            request,
            quiet,
            began: now,
            turn: TurnMutex::new(State::Waiting),
        });
        flights.push(Arc::downgrade(&flight));
        drop(known);
        drop(alive);
        (flight, false)
    }
}

impl<S: Store> Drop for Flight<S> {
    fn drop(&mut self) {
        let key = (self.place.namespace.id, self.place.key.clone());
        let mut known = self.flights.known.lock();
        if let Some(flights) = known.get_mut(&key) {
            flights.retain(|flight| flight.strong_count() > 0);
            if flights.is_empty() {
                known.remove(&key);
            }
        }
    }
}

impl<S: Store> Flight<S> {
    /// Asks the store, if nobody has.
    pub async fn open(&self, cache: &Cache<S>, store: &S) -> Result<Boarded> {
        let mut state = self.turn.lock().await;
        match &*state {
            State::Open(open) => {
                return Ok(Boarded::Open(open.meta.clone(), open.span.clone(), false));
            }
            State::Private => return Ok(Boarded::Private),
            State::Failed(failure) => return Err(failure.error()),
            State::Waiting => {}
        }
        count(&cache.counters.fills);
        match store
            .retrieve(address(&self.place), None, self.request)
            .await
        {
            Err(error) => {
                // Where the bytes went is for each to hear.
                *state = match error.away() {
                    Some(_) => State::Private,
                    None => State::Failed(Failure::of(&error)),
                };
                self.leave();
                Err(error)
            }
            Ok(object) => {
                let bytes = object.range.end - object.range.start;
                let whole = object.range.start.is_multiple_of(PIECE_BYTES);
                let units = bytes.div_ceil(UNIT_BYTES).max(1);
                let room = u32::try_from(units)
                    .ok()
                    .filter(|_| whole && bytes <= cache.config.span_bytes_max)
                    .and_then(|units| self.flights.room.clone().try_acquire_many_owned(units).ok());
                let Some(room) = room else {
                    *state = State::Private;
                    return Ok(Boarded::Private);
                };
                let span = pieces_of(&object.range);
                let boarded = Boarded::Open(object.meta.clone(), span.clone(), true);
                *state = State::Open(Open {
                    meta: object.meta,
                    span,
                    body: object.body,
                    reading: false,
                    cutter: Cutter::default(),
                    pieces: Vec::new(),
                    _room: room,
                });
                Ok(boarded)
            }
        }
    }

    /// A piece of it, which was opened and holds it.
    pub async fn piece(&self, cache: &Cache<S>, store: &S, number: u32) -> Result<Piece> {
        let mut state = self.turn.lock().await;
        let open = match &mut *state {
            State::Open(open) => open,
            State::Failed(failure) => return Err(failure.error()),
            State::Waiting | State::Private => return Err(gone()),
        };
        let at = number.checked_sub(open.span.start).ok_or_else(gone)? as usize;
        while open.pieces.len() <= at {
            if let Err(error) = self.read_on(cache, store, open).await {
                *state = State::Failed(Failure::of(&error));
                self.leave();
                return Err(error);
            }
        }
        Ok(open.pieces[at].clone())
    }

    /// Reads until there is one more piece.
    async fn read_on(&self, cache: &Cache<S>, store: &S, open: &mut Open<S>) -> Result<()> {
        if std::mem::replace(&mut open.reading, true) {
            self.reopen(cache, store, open).await?;
        }
        let had = open.pieces.len();
        while open.pieces.len() == had {
            match open.body.next().await? {
                Some(buf) => open.cutter.push(buf, &mut open.pieces),
                None => {
                    let last = open.cutter.finish();
                    // A value of no bytes has one piece of none.
                    let empty = || (open.meta.size == 0).then(|| Piece::new(Vec::new()));
                    match last.or_else(empty) {
                        Some(piece) => open.pieces.push(piece),
                        None => return Err(gone()),
                    }
                }
            }
        }
        open.reading = false;
        self.keep(cache, open, had)
    }

    /// Goes on where the pieces end, with a body of its own.
    async fn reopen(&self, cache: &Cache<S>, store: &S, open: &mut Open<S>) -> Result<()> {
        let rest = open.span.start + open.pieces.len() as u32..open.span.end;
        let bytes = bytes_of(&rest, open.meta.size);
        open.cutter = Cutter::default();
        open.body = reread(cache, store, &self.place, &open.meta, bytes).await?;
        Ok(())
    }

    /// Checks the lengths of new pieces and gives them to the index.
    fn keep(&self, cache: &Cache<S>, open: &Open<S>, had: usize) -> Result<()> {
        let first = open.span.start + had as u32;
        let fresh = (first..).zip(open.pieces[had..].iter().cloned());
        for (number, piece) in fresh.clone() {
            let bytes = bytes_of(&(number..number + 1), open.meta.size);
            if piece.len() as u64 != bytes.end.saturating_sub(bytes.start) {
                return Err(gone());
            }
        }
        let still = || cache.stripes.still(self.place.hash, self.quiet);
        let fallout = cache
            .index
            .put(&self.place, &open.meta, self.began, fresh, still);
        cache.after(fallout);
        Ok(())
    }

    /// Nobody new comes aboard.
    fn leave(&self) {
        let key = (self.place.namespace.id, self.place.key.clone());
        if let Some(flights) = self.flights.known.lock().get_mut(&key) {
            flights.retain(|flight| !std::ptr::eq(flight.as_ptr(), self));
        }
    }
}

/// A new body of `bytes` of a value whose reading was interrupted, if the store still has it.
pub(crate) async fn reread<S: Store>(
    cache: &Cache<S>,
    store: &S,
    place: &Place,
    meta: &Meta,
    bytes: Range<u64>,
) -> Result<S::Body> {
    count(&cache.counters.fills);
    let range = match bytes.is_empty() {
        true => ByteRange::Full,
        false => ByteRange::Inclusive(bytes.start, bytes.end - 1),
    };
    let object = store.retrieve(address(place), None, range).await?;
    match is_same(&object.meta, meta) && object.range == bytes {
        true => Ok(object.body),
        false => Err(gone()),
    }
}

fn gone() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        "the value was replaced while reading it had to begin again",
    )
}

impl Failure {
    fn of(error: &StoreError) -> Failure {
        Failure {
            kind: error.kind(),
            message: error.message().to_owned(),
            marker: error.marker(),
        }
    }

    fn error(&self) -> StoreError {
        let error = StoreError::new(self.kind, self.message.clone());
        match self.marker {
            Some(marker) => error.with_marker(marker),
            None => error,
        }
    }
}

/// Whether every byte of `inner` is in `outer`, whatever the size. Both are of whole pieces.
fn covers(outer: ByteRange, inner: ByteRange) -> bool {
    match (outer, inner) {
        (ByteRange::Full, _) => true,
        (ByteRange::From(a), ByteRange::From(b) | ByteRange::Inclusive(b, _)) => a <= b,
        (ByteRange::Inclusive(a, b), ByteRange::Inclusive(c, d)) => a <= c && d <= b,
        _ => false,
    }
}

/// The same range in whole pieces; `None` when that depends on the size.
pub(crate) fn whole_pieces(range: ByteRange) -> Option<ByteRange> {
    let floor = |at: u64| at - at % PIECE_BYTES;
    match range {
        ByteRange::Full => Some(ByteRange::Full),
        ByteRange::From(first) => Some(ByteRange::From(floor(first))),
        ByteRange::Inclusive(first, last) if first <= last => {
            let end = floor(last).saturating_add(PIECE_BYTES - 1);
            Some(ByteRange::Inclusive(floor(first), end))
        }
        ByteRange::Inclusive(..) | ByteRange::Suffix(_) => None,
    }
}
