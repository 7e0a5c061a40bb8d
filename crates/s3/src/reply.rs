//! A response's body, and what ends with it.
//!
//! What writes a response drops the body as soon as it has the last bytes of it, and these wait for a client that takes its time. So the
//! request ends with the last bytes, not with the body.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_mem::Buf;
use forebay_store::{Body as StoreBody, StoreError};
use futures_util::Stream;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body, Frame, SizeHint};

use crate::admission::Ticket;
use crate::demand::Demand;

/// A response.
pub(crate) type Reply<B> = http::Response<ReplyBody<B>>;

type Next<B> = Pin<Box<dyn Future<Output = (B, Result<Option<Buf>, StoreError>)> + Send>>;
type Slices = Pin<Box<dyn Stream<Item = Result<Bytes, StoreError>> + Send>>;

enum Content<B> {
    Empty,
    /// Bytes at hand.
    Whole(Bytes),
    /// The same in pieces, none of them empty.
    Pieces(VecDeque<Bytes>),
    /// A first buffer at hand, the rest with the store.
    Stream {
        first: Option<Bytes>,
        rest: Rest<B>,
        /// Bytes not yet handed out.
        left: u64,
    },
}

impl<B> Content<B> {
    fn is_empty(&self) -> bool {
        matches!(self, Content::Empty)
    }
}

/// What the store still has of a response.
enum Rest<B> {
    Body {
        /// Absent while `next` has it.
        body: Option<B>,
        next: Option<Next<B>>,
        demand: Arc<Demand>,
    },
    Slices(Slices),
}

impl<B: StoreBody> Rest<B> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        let (body, next, demand) = match self {
            Rest::Body { body, next, demand } => (body, next, demand),
            Rest::Slices(slices) => return slices.as_mut().poll_next(cx),
        };
        if let Some(mut body) = body.take() {
            let demand = demand.clone();
            *next = Some(Box::pin(async move {
                let found = demand.wait(body.next()).await;
                (body, found)
            }));
        }
        let Some(future) = next else {
            return Poll::Ready(None);
        };
        let (rest, found) = ready!(future.as_mut().poll(cx));
        *next = None;
        *body = Some(rest);
        Poll::Ready(found.map(|buf| buf.map(Buf::into_bytes)).transpose())
    }
}

/// The bytes of a response.
pub struct ReplyBody<B> {
    content: Content<B>,
    /// The request that this answers; the last chunk takes it along.
    ticket: Option<Ticket>,
}

/// Bytes of a response that are to be written.
pub struct Chunk {
    bytes: Bytes,
    /// Of the last one: the request has ended when these are written, or given up.
    _ticket: Option<Ticket>,
}

impl bytes::Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        bytes::Buf::advance(&mut self.bytes, count);
    }
}

/// The stored bytes could not be read to their end; the connection is cut, since the length was already said.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut short: {0}")]
pub struct CutShort(#[from] StoreError);

/// A store's body is only ever moved, never pinned in place.
impl<B> Unpin for ReplyBody<B> {}

impl<B> ReplyBody<B> {
    pub(crate) fn empty() -> ReplyBody<B> {
        ReplyBody {
            content: Content::Empty,
            ticket: None,
        }
    }

    pub(crate) fn whole(bytes: Bytes) -> ReplyBody<B> {
        ReplyBody {
            content: Content::Whole(bytes),
            ticket: None,
        }
    }

    pub(crate) fn pieces(bytes: impl IntoIterator<Item = Bytes>) -> ReplyBody<B> {
        let bytes = bytes.into_iter().filter(|bytes| !bytes.is_empty());
        let bytes: VecDeque<Bytes> = bytes.collect();
        ReplyBody {
            content: match bytes.is_empty() {
                true => Content::Empty,
                false => Content::Pieces(bytes),
            },
            ticket: None,
        }
    }

    /// `first` and then what `rest` yields, `length` bytes in all.
    pub(crate) fn stream(first: Bytes, rest: B, length: u64, demand: Arc<Demand>) -> ReplyBody<B> {
        ReplyBody {
            content: Content::Stream {
                first: Some(first),
                rest: Rest::Body {
                    body: Some(rest),
                    next: None,
                    demand,
                },
                left: length,
            },
            ticket: None,
        }
    }

    /// The same where the rest comes in slices.
    pub(crate) fn sliced(first: Bytes, rest: Slices, length: u64) -> ReplyBody<B> {
        ReplyBody {
            content: Content::Stream {
                first: Some(first),
                rest: Rest::Slices(rest),
                left: length,
            },
            ticket: None,
        }
    }

    pub(crate) fn with_ticket(mut self, ticket: Ticket) -> ReplyBody<B> {
        self.ticket = Some(ticket);
        self
    }

    fn left(&self) -> u64 {
        match &self.content {
            Content::Empty => 0,
            Content::Whole(bytes) => bytes.len() as u64,
            Content::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Content::Stream { left, .. } => *left,
        }
    }
}

impl<B: StoreBody> Body for ReplyBody<B> {
    type Data = Chunk;
    type Error = CutShort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, CutShort>>> {
        let this = &mut *self;
        let bytes = match &mut this.content {
            Content::Empty => return Poll::Ready(None),
            Content::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                this.content = Content::Empty;
                bytes
            }
            Content::Pieces(pieces) => {
                let piece = pieces.pop_front().unwrap_or_default();
                if pieces.is_empty() {
                    this.content = Content::Empty;
                }
                piece
            }
            Content::Stream { first, rest, left } => {
                let bytes = match first.take() {
                    Some(bytes) => bytes,
                    None => match ready!(rest.poll_next(cx)) {
                        Some(Ok(bytes)) => bytes,
                        None => {
                            this.content = Content::Empty;
                            return Poll::Ready(None);
                        }
                        Some(Err(error)) => {
                            tracing::error!(error = %error, "a response was cut short");
                            this.content = Content::Empty;
                            return Poll::Ready(Some(Err(error.into())));
                        }
                    },
                };
                *left = left.saturating_sub(bytes.len() as u64);
                if *left == 0 {
                    this.content = Content::Empty;
                }
                bytes
            }
        };
        if let Some(ticket) = &this.ticket {
            ticket.sent(bytes.len());
        }
        let chunk = Chunk {
            bytes,
            _ticket: this.ticket.take_if(|_| this.content.is_empty()),
        };
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}

/// A response without a body.
pub(crate) fn empty<B>(status: StatusCode) -> Reply<B> {
    let mut reply = http::Response::new(ReplyBody::empty());
    *reply.status_mut() = status;
    reply
}

/// An XML document.
pub(crate) fn xml<B>(document: String) -> Reply<B> {
    let mut reply = http::Response::new(ReplyBody::whole(document.into()));
    reply.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/xml"),
    );
    reply
}

/// A response with headers and no body, `200 OK`.
pub(crate) fn ok<B>(headers: HeaderMap) -> Reply<B> {
    let mut reply = http::Response::new(ReplyBody::empty());
    *reply.headers_mut() = headers;
    reply
}
