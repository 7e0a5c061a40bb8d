//! One read of the store for everybody who wants the same bytes at the same time.
//!
//! A flight is a body of the store that its readers pull together: whoever needs the next piece reads on, the others find it done.
//! No task owns it, so a reader that goes away or dawdles holds nobody back, and nothing is read that nobody asked for. What one
//! asked for and did not wait for, the next one waits for.

use std::collections::HashMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use forebay_mem::Buf;
use forebay_store::{
    Body, ByteRange, ErrorKind, Meta, Object, Result, Store, StoreError, VersionId,
};
use parking_lot::Mutex;
use tokio::sync::Mutex as TurnMutex;

use crate::cache::Cache;
use crate::index::{Place, PlaceId, is_same};
use crate::metrics::count;
use crate::namesake::address;
use crate::piece::{Cutter, PIECE_BYTES, Piece, bytes_of, pieces_of};
use crate::room::Held;
use crate::stripes::Quiet;

/// The flights under way.
pub(crate) struct Flights<S: Store> {
    known: Mutex<HashMap<PlaceId, Vec<Weak<Flight<S>>>>>,
}

impl<S: Store> Default for Flights<S> {
    fn default() -> Flights<S> {
        Flights {
            known: Mutex::default(),
        }
    }
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
    began: u64,
    turn: TurnMutex<State<S>>,
}

enum State<S: Store> {
    /// Nobody has asked the store yet, or who did went away.
    Waiting,
    Open(Box<Open<S>>),
    /// Each reader has to read for itself.
    Private,
    Failed(Failure),
}

struct Open<S: Store> {
    meta: Meta,
    span: Range<u32>,
    source: Source<S::Body>,
    cutter: Cutter,
    /// Those that were read and that a reader may still ask for; `first` is the number of the first.
    pieces: Vec<Piece>,
    first: u32,
    /// What each reader asks for next, at the earliest.
    seats: Vec<Weak<AtomicU32>>,
    /// For everything from `first` on.
    room: Held,
}

/// A body of the store as several readers in turn read it.
struct Source<B> {
    /// Unless it was asked for more.
    body: Option<B>,
    /// What it was asked for and has yet to give.
    asked: Option<Asked<B>>,
}

type Asked<B> = Pin<Box<dyn Future<Output = (B, Result<Option<Buf>>)> + Send>>;

impl<B: Body> Source<B> {
    fn new(body: B) -> Source<B> {
        Source {
            body: Some(body),
            asked: None,
        }
    }

    /// What comes next. May be dropped and called again: nothing that was asked for is lost.
    async fn next(&mut self) -> Result<Option<Buf>> {
        if let Some(mut body) = self.body.take() {
            self.asked = Some(Box::pin(async move {
                let next = body.next().await;
                (body, next)
            }));
        }
        let asked = self.asked.as_mut().ok_or_else(gone)?;
        let (body, next) = asked.await;
        self.asked = None;
        self.body = Some(body);
        next
    }
}

impl<S: Store> Open<S> {
    /// A seat for a reader of `request`, unless its first piece was let go.
    fn seat(&mut self, request: ByteRange) -> Option<Arc<AtomicU32>> {
        let wanted = request.resolve(self.meta.size);
        let next = wanted.map_or(self.span.end, |bytes| pieces_of(&bytes).start);
        if next < self.first {
            return None;
        }
        let seat = Arc::new(AtomicU32::new(next));
        self.seats.retain(|seat| seat.strong_count() > 0);
        self.seats.push(Arc::downgrade(&seat));
        Some(seat)
    }

    /// Lets go what every reader is past, and the room that it took.
    fn let_go(&mut self) {
        let seats = self.seats.iter().filter_map(Weak::upgrade);
        let Some(needed) = seats.map(|seat| seat.load(Relaxed)).min() else {
            return;
        };
        let past = needed.saturating_sub(self.first) as usize;
        // What is not the last one that was read is a whole piece.
        let past = past.min(self.pieces.len().saturating_sub(1));
        self.pieces.drain(..past);
        self.first += past as u32;
        self.room.give_back(past as u64 * PIECE_BYTES);
    }
}

/// A reader of an opened flight; it takes the pieces in their order.
pub(crate) struct Reader<S: Store> {
    flight: Arc<Flight<S>>,
    next: Arc<AtomicU32>,
}

impl<S: Store> Reader<S> {
    /// Before the store was asked.
    pub fn began(&self) -> u64 {
        self.flight.began
    }

    /// A piece of what it reads; none before it is asked for any more.
    pub async fn piece(&self, cache: &Cache<S>, number: u32) -> Result<Piece> {
        self.next.store(number, Relaxed);
        self.flight.piece(cache, number).await
    }
}

/// An error that is told to all.
#[derive(Debug, Clone)]
struct Failure {
    kind: ErrorKind,
    message: String,
    marker: Option<VersionId>,
}

/// How a flight began, for one of its readers.
pub(crate) enum Boarded<S: Store> {
    /// A seat in it, its value and pieces; whether this call asked the store.
    Open(Arc<Reader<S>>, Meta, Range<u32>, bool),
    /// Read for yourself; when this call asked the store, this is what it gave.
    Private(Option<Object<S::Body>>),
    /// What is wanted was read and let go, or its time is over: try another.
    Late,
}

impl<S: Store> Flights<S> {
    /// A flight over `request` of this value: one that is under way, if `joins` likes when it began, or a new one.
    pub fn board(
        self: &Arc<Self>,
        place: &Place,
        request: ByteRange,
        quiet: Quiet,
        now: u64,
        joins: impl Fn(u64) -> bool,
    ) -> (Arc<Flight<S>>, bool) {
        let mut known = self.known.lock();
        let flights = known.entry(place.id()).or_default();
        // Whichever of them ends here takes the lock again: not before it is free.
        let alive: Vec<_> = flights.iter().filter_map(Weak::upgrade).collect();
        let joined = alive.iter().find(|flight| {
            flight.quiet == quiet && covers(flight.request, request) && joins(flight.began)
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
        let id = self.place.id();
        let mut known = self.flights.known.lock();
        if let Some(flights) = known.get_mut(&id) {
            flights.retain(|flight| flight.strong_count() > 0);
            if flights.is_empty() {
                known.remove(&id);
            }
        }
    }
}

impl<S: Store> Flight<S> {
    /// Asks the store, if nobody has, on behalf of a reader of `request`, which this covers.
    pub async fn open(
        self: &Arc<Self>,
        cache: &Cache<S>,
        store: &S,
        request: ByteRange,
    ) -> Result<Boarded<S>> {
        let mut state = self.turn.lock().await;
        match &mut *state {
            State::Open(open) => {
                let over = open.meta.expires.is_some_and(|at| at <= cache.now());
                let boarded = match over {
                    true => Boarded::Late,
                    false => self.take_seat(open, request, false),
                };
                if matches!(boarded, Boarded::Late) {
                    self.leave();
                }
                return Ok(boarded);
            }
            State::Private => return Ok(Boarded::Private(None)),
            State::Failed(failure) => return Err(failure.error()),
            State::Waiting => {}
        }
        count(&cache.counters.fills);
        match store
            .retrieve(address(store, &self.place)?, None, self.request)
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
                let small = whole && bytes <= cache.config.span_bytes_max;
                let room = small.then(|| cache.room_for(&self.place, bytes.max(1)));
                let Some(room) = room.flatten() else {
                    *state = State::Private;
                    return Ok(Boarded::Private(Some(object)));
                };
                let span = pieces_of(&object.range);
                let mut open = Box::new(Open {
                    meta: object.meta,
                    first: span.start,
                    span,
                    source: Source::new(object.body),
                    cutter: Cutter::default(),
                    pieces: Vec::new(),
                    seats: Vec::new(),
                    room,
                });
                let boarded = self.take_seat(&mut open, request, true);
                *state = State::Open(open);
                Ok(boarded)
            }
        }
    }

    fn take_seat(
        self: &Arc<Self>,
        open: &mut Open<S>,
        request: ByteRange,
        by_us: bool,
    ) -> Boarded<S> {
        let Some(next) = open.seat(request) else {
            return Boarded::Late;
        };
        let reader = Reader {
            flight: self.clone(),
            next,
        };
        Boarded::Open(
            Arc::new(reader),
            open.meta.clone(),
            open.span.clone(),
            by_us,
        )
    }

    /// A piece of it, which was opened and holds it.
    async fn piece(&self, cache: &Cache<S>, number: u32) -> Result<Piece> {
        let mut state = self.turn.lock().await;
        let open = match &mut *state {
            State::Open(open) => open,
            State::Failed(failure) => return Err(failure.error()),
            State::Waiting | State::Private => return Err(gone()),
        };
        open.let_go();
        let at = number.checked_sub(open.first).ok_or_else(gone)? as usize;
        while open.pieces.len() <= at {
            if let Err(error) = self.read_on(cache, open).await {
                *state = State::Failed(Failure::of(&error));
                self.leave();
                return Err(error);
            }
        }
        Ok(open.pieces[at].clone())
    }

    /// Reads until there is one more piece.
    async fn read_on(&self, cache: &Cache<S>, open: &mut Open<S>) -> Result<()> {
        let had = open.pieces.len();
        while open.pieces.len() == had {
            match open.source.next().await? {
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
        self.keep(cache, open, had)
    }

    /// Checks the lengths of new pieces and gives them to the index.
    fn keep(&self, cache: &Cache<S>, open: &Open<S>, had: usize) -> Result<()> {
        let first = open.first + had as u32;
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
        let id = self.place.id();
        if let Some(flights) = self.flights.known.lock().get_mut(&id) {
            flights.retain(|flight| !std::ptr::eq(flight.as_ptr(), self));
        }
    }
}

/// A new body of `bytes` of a value that was read once, if the store still has it.
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
    let object = store.retrieve(address(store, place)?, None, range).await?;
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
