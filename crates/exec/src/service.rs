//! The task's side of a call: reads inputs and stores output for a function that runs elsewhere.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::Pin;

use forebay_mem::Buf;
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Input, Meta, Object, Result, Store, StoreError, Upload,
};

use crate::exchange::{AHEAD, Answer, Ask, Service};
use crate::host::Done;
use crate::inputs;

/// Inputs that are at most so long together are read before the function begins: it then waits for nothing.
const AT_ONCE_BYTES: u64 = 256 << 10;

/// An input as the store sees it.
pub(crate) struct Opened<'a, B> {
    address: Address<'a>,
    meta: Meta,
    /// Where the range begins in the value, and how many bytes it has.
    start: u64,
    size: u64,
    /// What yields the bytes from `position` of the range on.
    body: Option<B>,
    position: u64,
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
            meta,
            start: range.start,
            size: range.end - range.start,
            body: Some(body),
            position: 0,
        };
        let mut whole = Vec::new();
        if input.size <= room {
            room -= input.size;
            while input.position < input.size {
                let offset = input.position;
                let buf = input.next(store).await?;
                whole.push((offset, buf));
            }
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

impl<B: Body> Opened<'_, B> {
    /// Moves to an offset of the range.
    fn seek(&mut self, offset: u64) {
        if self.position != offset {
            self.body = None;
            self.position = offset.min(self.size);
        }
    }

    /// The next bytes; there are some. A future that is dropped makes no difference but the bytes that it had.
    async fn next<S: Store<Body = B>>(&mut self, store: &S) -> Result<Buf> {
        let mut body = match self.body.take() {
            Some(body) => body,
            None => {
                let last = (self.start + self.size).saturating_sub(1);
                let range = ByteRange::Inclusive(self.start + self.position, last);
                reopen(store, self.address, &self.meta, range).await?
            }
        };
        loop {
            match body.next().await? {
                Some(buf) if buf.is_empty() => {}
                Some(buf) => {
                    self.position += buf.len() as u64;
                    self.body = Some(body);
                    return Ok(buf);
                }
                None => return Err(StoreError::new(ErrorKind::Io, "an input ended early")),
            }
        }
    }
}

/// Opens the same value again, in the middle.
async fn reopen<S: Store>(
    store: &S,
    address: Address<'_>,
    meta: &Meta,
    range: ByteRange,
) -> Result<S::Body> {
    let changed = || {
        StoreError::new(
            ErrorKind::PreconditionFailed,
            "an input was replaced while it was read",
        )
    };
    match store.retrieve(address, Some(meta.version), range).await {
        Ok(object) if object.meta == *meta => Ok(object.body),
        Ok(_) => Err(changed()),
        Err(error) => Err(match error.kind() {
            ErrorKind::NotFound | ErrorKind::NoSuchVersion => changed(),
            _ => error,
        }),
    }
}

/// Pieces that the function is to get without asking for each.
#[derive(Default)]
struct Run {
    number: u32,
    input: usize,
    pieces: usize,
}

type Fetching<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Serves a function until it is done. When the store fails, the function is given up.
pub(crate) async fn serve<S: Store>(
    store: &S,
    mut inputs: Vec<Opened<'_, S::Body>>,
    mut upload: Option<&mut S::Upload>,
    mut service: Service<Done>,
) -> Result<Done> {
    let mut run = Run::default();
    let mut asked = VecDeque::new();
    loop {
        let ask = match asked.pop_front() {
            Some(ask) => ask,
            None => {
                let input = inputs.get_mut(run.input);
                let next = input.filter(|input| run.pieces > 0 && input.position < input.size);
                match next {
                    None => next_ask(&mut service).await?,
                    Some(input) => {
                        let offset = input.position;
                        let fetching: Fetching<'_, _> = Box::pin(input.next(store));
                        let (piece, begun) = until(&mut service, &mut asked, fetching).await?;
                        // What was asked meanwhile may have ended this run: its pieces are of use all the same.
                        let Some(piece) = piece else {
                            return begun.ok_or_else(gone);
                        };
                        let answer = Answer::Piece {
                            input: run.input,
                            offset,
                            buf: piece?,
                            run: run.number,
                        };
                        run.pieces -= 1;
                        // A function that no longer waits says so itself.
                        let _ = service.answers.send(answer);
                        continue;
                    }
                }
            }
        };
        match ask {
            Ask::Done(done) => return Ok(done),
            Ask::More => run.pieces += 1,
            Ask::From {
                input,
                offset,
                run: number,
            } => {
                run = Run {
                    number,
                    input,
                    pieces: AHEAD,
                };
                if let Some(input) = inputs.get_mut(input) {
                    input.seek(offset);
                }
            }
            Ask::Write(buf) => {
                let Some(upload) = upload.as_deref_mut() else {
                    continue;
                };
                let writing: Fetching<'_, _> = Box::pin(upload.write(buf));
                let (written, begun) = until(&mut service, &mut asked, writing).await?;
                let Some(written) = written else {
                    return begun.ok_or_else(gone);
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

async fn next_ask(service: &mut Service<Done>) -> Result<Ask<Done>> {
    service.asks.recv().await.ok_or_else(gone)
}

/// Waits for `work`, and notes what is asked meanwhile; gives the work up when the function has ended badly.
async fn until<T>(
    service: &mut Service<Done>,
    asked: &mut VecDeque<Ask<Done>>,
    mut work: Fetching<'_, T>,
) -> Result<(Option<T>, Option<Done>)> {
    let mut ended = false;
    loop {
        let ask = async {
            match ended {
                true => pending().await,
                false => service.asks.recv().await,
            }
        };
        tokio::select! {
            biased;
            done = &mut work => return Ok((Some(done), None)),
            ask = ask => match ask.ok_or_else(gone)? {
                Ask::Done(done) if done.ending.is_err() => return Ok((None, Some(done))),
                ask => {
                    ended |= matches!(ask, Ask::Done(_));
                    asked.push_back(ask);
                }
            },
        }
    }
}
