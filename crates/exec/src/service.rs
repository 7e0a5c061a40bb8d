//! The task's side of a call: reads inputs and stores output for a function that runs elsewhere.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use forebay_mem::{BLOCK_MIN_BYTES, Buf, CopySite, count_copy};
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Input, Meta, Object, Result, Store, StoreError, Upload,
    VersionId,
};

use crate::exchange::{Answer, Ask, Patience, Service, Upto};
use crate::host::Done;
use crate::inputs;

/// Inputs that are at most so long together are read before the function begins: it then waits for nothing.
const AT_ONCE_BYTES: u64 = 128 << 10;

/// An input as the store sees it.
pub(crate) struct Opened<'a, B> {
    address: Address<'a>,
    /// The version that the call named.
    version: Option<VersionId>,
    meta: Meta,
    /// Where the range begins in the value, and how many bytes it has.
    start: u64,
    size: u64,
    /// What yields the bytes from `position` of the range on, while there are some: it keeps what it has read ahead. Of all inputs
    /// one has a body: whoever waits for memory keeps none that others wait for.
    body: Option<B>,
    position: u64,
    /// Where the next body to be opened ends, if the input does not before.
    end: u64,
    /// Whether any of it was asked for. Until then it is opened to its end: most functions read one input after the other.
    begun: bool,
}

/// Opens the inputs, and reads them when they are short.
pub(crate) async fn open<'a, S: Store>(
    store: &S,
    wanted: &[Input<'a>],
) -> Result<(Vec<Opened<'a, S::Body>>, Vec<inputs::Input>)> {
    let mut opened = Vec::with_capacity(wanted.len());
    let mut known = Vec::with_capacity(wanted.len());
    let mut room = AT_ONCE_BYTES;
    for input in wanted {
        let found = store.retrieve(input.address, input.version, input.range);
        let Object { meta, range, body } = found.await?;
        let mut input = Opened {
            address: input.address,
            version: input.version,
            meta,
            start: range.start,
            size: range.end - range.start,
            body: Some(body),
            position: 0,
            end: u64::MAX,
            begun: false,
        };
        let mut whole = Vec::new();
        if input.size <= room {
            room -= input.size;
            while input.position < input.size {
                let offset = input.position;
                let buf = input.next(store).await?;
                whole.push((offset, at_hand(buf)));
            }
        }
        if wanted.len() > 1 {
            input.let_go();
        }
        known.push(inputs::Input {
            key: input.address.key.into(),
            size: input.size,
            whole,
        });
        opened.push(input);
    }
    Ok((opened, known))
}

/// Bytes that are kept until the call ends, or has to wait for a thread. A short part would keep the whole of its block from
/// everybody else so long: it is copied, so that what a call keeps is bounded by what it asked for.
fn at_hand(buf: Buf) -> Buf {
    if buf.held_bytes() <= (2 * buf.len()).max(BLOCK_MIN_BYTES) {
        return buf;
    }
    count_copy(CopySite::Execute, buf.len());
    Buf::from(buf.to_vec())
}

impl<B: Body> Opened<'_, B> {
    /// Moves to an offset of the range, from where on bytes are wanted up to `end`.
    fn seek(&mut self, offset: u64, end: u64) {
        let first = !std::mem::replace(&mut self.begun, true);
        if self.position != offset {
            self.body = None;
            self.position = offset.min(self.size);
        }
        if !first || offset > 0 {
            self.end = end;
        }
    }

    /// Keeps no memory. What it had read ahead is read again, if it is asked for.
    pub fn let_go(&mut self) {
        self.body = None;
    }

    /// The next bytes; there are some. A future that is dropped makes no difference but the bytes that it had.
    async fn next<S: Store<Body = B>>(&mut self, store: &S) -> Result<Buf> {
        let mut opened = false;
        loop {
            let mut body = match self.body.take() {
                Some(body) => body,
                None if opened => {
                    return Err(StoreError::new(ErrorKind::Io, "an input ended early"));
                }
                None => {
                    opened = true;
                    let end = self.end.min(self.size);
                    let (first, last) = (self.start + self.position, self.start + end);
                    let range = ByteRange::Inclusive(first, last.saturating_sub(1));
                    self.reopen(store, range).await?
                }
            };
            while let Some(buf) = body.next().await? {
                if !buf.is_empty() {
                    self.position += buf.len() as u64;
                    self.body = (self.position < self.size).then_some(body);
                    return Ok(buf);
                }
            }
        }
    }

    /// Opens the same value again, in the middle: as the call named it, by which a cache knows it, else the version that it was.
    async fn reopen<S: Store<Body = B>>(&mut self, store: &S, range: ByteRange) -> Result<B> {
        let found = store.retrieve(self.address, self.version, range).await;
        if let Some(body) = same(found, &self.meta)? {
            return Ok(body);
        }
        if self.version.is_none() {
            let version = Some(self.meta.version);
            let found = store.retrieve(self.address, version, range).await;
            if let Some(body) = same(found, &self.meta)? {
                return Ok(body);
            }
        }
        // Nothing of this call was stored, and the next one finds what there is then: it is no condition of the caller's that failed.
        Err(StoreError::new(
            ErrorKind::Busy,
            "an input was replaced or removed while it was read",
        ))
    }
}

/// What a store found, if it is still the value of `meta`.
fn same<B>(found: Result<Object<B>>, meta: &Meta) -> Result<Option<B>> {
    match found {
        Ok(object) => Ok(is_same(&object.meta, meta).then_some(object.body)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NoSuchVersion
            | ErrorKind::IsDeleteMarker
            // The range lies in the value that there was.
            | ErrorKind::RangeNotSatisfiable => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether two values are the same but for their attributes.
fn is_same(one: &Meta, other: &Meta) -> bool {
    let of = |meta: &Meta| {
        (
            meta.size,
            meta.etag,
            meta.crc64nvme,
            meta.modified,
            meta.version,
        )
    };
    of(one) == of(other)
}

/// Pieces that the function is to get without asking for each.
#[derive(Default)]
struct Bringing {
    number: u32,
    input: usize,
    upto: u64,
}

type Fetching<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Serves a function until it is done. When the store fails, the function is of no use and may go on for a moment all the same.
pub(crate) async fn serve<S: Store>(
    store: &S,
    mut inputs: Vec<Opened<'_, S::Body>>,
    mut upload: Option<&mut S::Upload>,
    service: &mut Service<Done>,
) -> Result<Done> {
    let mut bringing = Bringing::default();
    let mut asked = VecDeque::new();
    loop {
        let ask = match asked.pop_front() {
            Some(ask) => ask,
            None => {
                let input = inputs.get_mut(bringing.input);
                let next = input.filter(|input| input.position < bringing.upto.min(input.size));
                match next {
                    None => next_ask(service).await?,
                    Some(input) => {
                        let offset = input.position;
                        let fetching: Fetching<'_, _> = Box::pin(input.next(store));
                        let piece = until(service, &mut asked, false, fetching).await?;
                        // What was asked meanwhile may have ended this run: its pieces are of use all the same.
                        let Some(piece) = piece else {
                            continue;
                        };
                        let answer = Answer::Piece {
                            input: bringing.input,
                            offset,
                            buf: piece?,
                            run: bringing.number,
                        };
                        // A function that no longer waits says so itself.
                        let _ = service.answers.send(answer);
                        continue;
                    }
                }
            }
        };
        match ask {
            Ask::Done(done) => return Ok(done),
            Ask::From {
                input,
                offset,
                upto: Upto { pieces, end },
                run: number,
            } => {
                if input != bringing.input
                    && let Some(left) = inputs.get_mut(bringing.input)
                {
                    left.let_go();
                }
                bringing = Bringing {
                    number,
                    input,
                    upto: pieces,
                };
                if let Some(input) = inputs.get_mut(input) {
                    input.seek(offset, end);
                }
            }
            Ask::More(Upto { pieces, end }) => {
                bringing.upto = pieces;
                if let Some(input) = inputs.get_mut(bringing.input) {
                    input.end = end;
                }
            }
            Ask::Write(buf) => {
                let Some(upload) = upload.as_deref_mut() else {
                    continue;
                };
                let writing: Fetching<'_, _> = Box::pin(upload.write(buf));
                let written = until(service, &mut asked, true, writing).await?;
                let Some(written) = written else {
                    continue;
                };
                written?;
                // As above.
                let _ = service.answers.send(Answer::Written);
            }
        }
    }
}

fn gone() -> StoreError {
    StoreError::new(ErrorKind::Io, "the thread of a function is gone")
}

/// What the function asks next. It ends in time by itself once it has begun; until then its turn is waited for no longer.
async fn next_ask(service: &mut Service<Done>) -> Result<Ask<Done>> {
    let Service { asks, patience, .. } = service;
    let ask = match patience.has_begun() {
        true => asks.recv().await,
        false => tokio::select! {
            biased;
            ask = asks.recv() => ask,
            () = patience.over() => match patience.has_begun() {
                true => asks.recv().await,
                false => return Err(Patience::out_of_time()),
            },
        },
    };
    ask.ok_or_else(gone)
}

/// Waits for `work`, and notes what is asked meanwhile. Gives the work up when the function has ended badly, or has ended at all and
/// the work is not `needed` for that: the end is then among what was asked. What is needed has no longer than the function had.
async fn until<T>(
    service: &mut Service<Done>,
    asked: &mut VecDeque<Ask<Done>>,
    needed: bool,
    mut work: Fetching<'_, T>,
) -> Result<Option<T>> {
    loop {
        // The end is noted last, perhaps while something before this was waited for.
        let ended = matches!(asked.back(), Some(Ask::Done(_)));
        tokio::select! {
            biased;
            done = &mut work => return Ok(Some(done)),
            () = service.patience.over(), if ended => return Err(Patience::out_of_time()),
            ask = service.asks.recv(), if !ended => {
                let ask = ask.ok_or_else(gone)?;
                let ends = matches!(&ask, Ask::Done(_));
                let badly = matches!(&ask, Ask::Done(done) if done.ending.is_err());
                if badly {
                    asked.clear();
                }
                asked.push_back(ask);
                if badly || (ends && !needed) {
                    return Ok(None);
                }
            }
        }
    }
}
