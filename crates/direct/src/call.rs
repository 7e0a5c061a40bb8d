//! One request of one link, from its message to its last reply.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use forebay_fabric::{Access, Error, ErrorKind, Link, RemoteRange, Result, Stag};
use forebay_proto::direct::{
    Call, Full, Operation, ReplyWriter, Request, Status, Window, parse_request, peek_id,
};
use forebay_store::Store;
use forebay_store::waiting::{Held, Share};
use futures_util::future::{Either, poll_immediate, select};
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::sync::Mutex;
use tokio::task::coop::unconstrained;

use crate::live::Counting;
use crate::retrieve::Retrieved;
use crate::status::Failure;
use crate::turn::Turn;

/// Elements of one request worked on at once.
const ELEMENTS_AT_ONCE: usize = 16;

/// What the requests of a link have in common.
pub(crate) struct Context<'a, S, L> {
    pub(crate) store: &'a S,
    pub(crate) tenant: &'a str,
    pub(crate) link: &'a L,
    pub(crate) share: &'a Arc<Share>,
    pub(crate) counting: &'a Counting,
    pub(crate) turn: Turn,
}

/// A namespace that is the session's tenant's, as it was when the request came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own<'a> {
    pub(crate) name: &'a str,
    id: u32,
}

/// A message received and the buffer for its reply, both used again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) message: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

/// Serves the request in `buffers.message`. An error is the link's.
pub(crate) async fn serve<S: Store, L: Link>(
    context: &Context<'_, S, L>,
    buffers: Buffers,
) -> (Buffers, Result<()>) {
    let Buffers { message, reply } = buffers;
    let parsed = parse_request(&message);
    let (operation, id) = match &parsed {
        Ok(request) => (request.call.operation(), request.id),
        Err(malformed) => match peek_id(&message) {
            Some(id) => (Operation::Ping, id),
            None => {
                let error = Error::new(ErrorKind::Invalid, malformed.to_string());
                return (Buffers { message, reply }, Err(error));
            }
        },
    };
    let timing = context.counting.begin(operation);
    let mut replies = Replies {
        link: context.link,
        writer: ReplyWriter::begin(reply, operation, id, 0),
    };
    let sent = match &parsed {
        Ok(request) => answer(context, request, &mut replies).await,
        Err(malformed) => {
            context.counting.failed(Status::Malformed);
            replies.refuse(&Failure::malformed(*malformed)).await
        }
    };
    drop(timing);
    let reply = replies.writer.into_buffer();
    (Buffers { message, reply }, sent)
}

async fn answer<S: Store, L: Link>(
    context: &Context<'_, S, L>,
    request: &Request<'_>,
    replies: &mut Replies<'_, L>,
) -> Result<()> {
    if let Call::Ping = request.call {
        return replies.last(false).await;
    }
    let own = match context.admit(request.namespace) {
        Ok(own) => own,
        Err(failure) => {
            context.counting.failed(failure.status);
            return replies.refuse(&failure).await;
        }
    };
    // A future is moved into its place whole, every time: the short way of one retrieve must not pay for the length of the others.
    if let Call::Retrieve(mut elements) = request.call {
        if elements.len() == 1
            && let Some(only) = elements.next()
        {
            let result = context.retrieve(own, only).await;
            context.counting.outcome(&result);
            return replies
                .only(result, |writer, done| done.write(writer))
                .await;
        }
        let work = |element| context.retrieve_waiting(own, element);
        let write =
            |writer: &mut ReplyWriter, (done, _): &(Retrieved, Option<Held>)| done.write(writer);
        return Box::pin(each(context, own, elements, replies, work, write)).await;
    }
    Box::pin(answer_other(context, request, own, replies)).await
}

/// Everything but a retrieve.
async fn answer_other<S: Store, L: Link>(
    context: &Context<'_, S, L>,
    request: &Request<'_>,
    own: Own<'_>,
    replies: &mut Replies<'_, L>,
) -> Result<()> {
    match request.call {
        // Answered already.
        Call::Ping | Call::Retrieve(_) => Ok(()),
        Call::Store(elements) => {
            let work = |element| context.put(own, element);
            each(context, own, elements, replies, work, |writer, stored| {
                crate::store::write(writer, stored)
            })
            .await
        }
        Call::Stat(elements) => {
            let work = |element| context.stat(own, element);
            each(context, own, elements, replies, work, |writer, meta| {
                writer.value(&crate::retrieve::described(meta))
            })
            .await
        }
        Call::Delete(elements) => {
            let work = |element| context.delete(own, element);
            each(context, own, elements, replies, work, |writer, deleted| {
                writer.deleted(deleted)
            })
            .await
        }
        Call::Exist(keys) => {
            let sizes = context.exist(own, keys).await;
            context.counting.outcome(&sizes);
            replies
                .put(&sizes, |writer, sizes| writer.sizes(sizes.iter().copied()))
                .await?;
            replies.last(false).await
        }
        Call::LongestPrefix(keys) => {
            let count = context.longest_prefix(own, keys).await;
            context.counting.outcome(&count);
            replies
                .put(&count, |writer, count| writer.prefix(*count))
                .await?;
            replies.last(false).await
        }
        Call::List(list) => context.list(own, &list, replies).await,
    }
}

/// Works on elements side by side and answers them in order, each as soon as it and those before it are done.
///
/// Each finds its namespace by name, perhaps long after the request came: the caller decides how soon replies leave, and only then
/// do the next elements begin. So each is checked when it begins, in the turn in which the store is asked: what the store does is of the
/// namespace that has the name then. What it gives back is given on only if that is so still. A check is a look-up in memory beside a
/// call of the store, and allocates nothing.
async fn each<S, L, E, T, F>(
    context: &Context<'_, S, L>,
    own: Own<'_>,
    elements: impl Iterator<Item = E>,
    replies: &mut Replies<'_, L>,
    work: impl Fn(E) -> F,
    write: impl Fn(&mut ReplyWriter, &T) -> std::result::Result<(), Full>,
) -> Result<()>
where
    S: Store,
    L: Link,
    F: Future<Output = std::result::Result<T, Failure>>,
{
    let work = &work;
    let order = &Mutex::new(());
    let results = elements.map(|element| async move {
        // They begin in their order, whichever is woken first when the next turn begins.
        {
            let _first = unconstrained(order.lock()).await;
            context.turn.wait().await;
            context.turn.keys(1);
        }
        context.recheck(own)?;
        work(element).await
    });
    let mut results = Results::of(results);
    let answered = async {
        while let Some(result) = results.next(replies).await? {
            context.counting.outcome(&result);
            results.beside(replies.put(&result, &write)).await?;
        }
        replies.last(false).await
    }
    .await;
    if answered.is_err() {
        // A store may have what it was asked for, and goes on with it whoever waits: the request has not ended before that.
        while let Some(result) = results.begun().await {
            context.counting.outcome(&result);
        }
    }
    answered
}

/// Results of a request's elements, in their order.
///
/// What an element at work holds others wait for: buffers, keys, turns at the store. So what has begun ends however long the caller
/// takes no replies, or when it is gone; only what has not begun waits for it.
struct Results<I, F: Future> {
    waiting: I,
    at_work: FuturesOrdered<F>,
    /// What ended while a reply waited for the link's room.
    done: VecDeque<F::Output>,
}

impl<I: Iterator<Item = F>, F: Future> Results<I, F> {
    fn of(elements: I) -> Results<I, F> {
        Results {
            waiting: elements,
            at_work: FuturesOrdered::new(),
            done: VecDeque::new(),
        }
    }

    /// The next result; what is written already goes out before anybody waits.
    async fn next<L: Link>(&mut self, replies: &mut Replies<'_, L>) -> Result<Option<F::Output>> {
        self.begin();
        if let Some(done) = self.done.pop_front() {
            return Ok(Some(done));
        }
        if let Some(at_once) = poll_immediate(self.at_work.next()).await {
            return Ok(at_once);
        }
        self.beside(replies.flush()).await?;
        Ok(self.begun().await)
    }

    /// The next result of those that have begun.
    async fn begun(&mut self) -> Option<F::Output> {
        match self.done.pop_front() {
            Some(done) => Some(done),
            None => self.at_work.next().await,
        }
    }

    /// Begins as many as there may be at work or done and not written.
    fn begin(&mut self) {
        while self.at_work.len() + self.done.len() < ELEMENTS_AT_ONCE
            && let Some(element) = self.waiting.next()
        {
            self.at_work.push_back(element);
        }
    }

    /// Waits for `sending` while the elements go on.
    async fn beside<T>(&mut self, sending: impl Future<Output = T>) -> T {
        let mut sending = pin!(sending);
        poll_fn(|cx| {
            let sent = sending.as_mut().poll(cx);
            while sent.is_pending()
                && let Poll::Ready(Some(done)) = self.at_work.poll_next_unpin(cx)
            {
                self.done.push_back(done);
            }
            sent
        })
        .await
    }
}

impl<S: Store, L: Link> Context<'_, S, L> {
    /// Refuses a namespace that is not the session's tenant's.
    fn admit<'n>(&self, name: &'n str) -> std::result::Result<Own<'n>, Failure> {
        match self.store.namespace(name) {
            Ok(info) if info.config.tenant == self.tenant => Ok(Own { name, id: info.id }),
            _ => Err(Failure::NO_NAMESPACE),
        }
    }

    /// Refuses a name that no longer stands for the namespace that was admitted. Numbers are never used again, and a namespace
    /// never changes its tenant: the number alone tells.
    pub(crate) fn recheck(&self, own: Own<'_>) -> std::result::Result<(), Failure> {
        match self.store.namespace(own.name) {
            Ok(info) if info.id == own.id => Ok(()),
            _ => Err(Failure::NO_NAMESPACE),
        }
    }

    /// Refuses a change that was asked for over a link that has ended.
    pub(crate) fn still_asked(&self) -> std::result::Result<(), Failure> {
        match self.link.has_ended() {
            true => Err(Failure::LINK_ENDED),
            false => Ok(()),
        }
    }

    /// Counts bytes for the tenant, as soon as it may have so many and while the link lasts.
    pub(crate) async fn hold(&self, bytes: usize) -> std::result::Result<Held, Failure> {
        // What can be had at once is had before the link is looked at.
        match select(pin!(self.share.take(bytes)), pin!(self.link.closed())).await {
            Either::Left((held, _)) => Ok(held),
            Either::Right(_) => Err(Failure::LINK_ENDED),
        }
    }

    /// Refuses a window that wraps around.
    pub(crate) fn check(window: &Window) -> std::result::Result<(), Failure> {
        match window.offset.checked_add(window.len) {
            Some(_) => Ok(()),
            None => Err(Failure::NOT_REACHABLE),
        }
    }

    /// The caller's window as the link names it, cut to `len` bytes from `skip` on.
    pub(crate) fn remote(window: &Window, skip: u64, len: u64) -> Option<RemoteRange> {
        let end = skip.checked_add(len)?;
        Some(RemoteRange {
            stag: Stag(window.stag),
            offset: window.offset.checked_add(skip)?,
            len: (end <= window.len).then_some(len)?,
        })
    }

    /// The caller's window in this process' memory, where the fabric maps it.
    pub(crate) fn mapped(
        &self,
        window: &Window,
        access: Access,
    ) -> Option<forebay_mem::RegionSlice> {
        let range = Self::remote(window, 0, window.len)?;
        let mapped = self.link.mapped(range, access)?;
        (mapped.len() as u64 == window.len).then_some(mapped)
    }
}

/// Results on their way to the caller.
pub(crate) struct Replies<'a, L> {
    link: &'a L,
    writer: ReplyWriter,
}

impl<L: Link> Replies<'_, L> {
    /// Sends the only result there is. The first one of a reply fits.
    async fn only<T>(
        &mut self,
        result: std::result::Result<T, Failure>,
        write: impl Fn(&mut ReplyWriter, &T) -> std::result::Result<(), Full>,
    ) -> Result<()> {
        let written = append(&mut self.writer, &result, write);
        // The buffer of a value that rides in the reply does not wait with it.
        drop(result);
        written.map_err(too_long)?;
        self.last(false).await
    }

    /// Appends a result; sends what there is when it does not fit any more.
    pub(crate) async fn put<T>(
        &mut self,
        result: &std::result::Result<T, Failure>,
        write: impl Fn(&mut ReplyWriter, &T) -> std::result::Result<(), Full>,
    ) -> Result<()> {
        if append(&mut self.writer, result, &write).is_ok() {
            return Ok(());
        }
        self.flush().await?;
        append(&mut self.writer, result, &write).map_err(too_long)
    }

    /// Sends what there is, if anything, and begins the next reply.
    async fn flush(&mut self) -> Result<()> {
        if self.writer.count() > 0 {
            self.link.send(self.writer.finish(false, false)).await?;
            self.writer.next();
        }
        Ok(())
    }

    /// Sends the last reply.
    pub(crate) async fn last(&mut self, more: bool) -> Result<()> {
        self.link.send(self.writer.finish(true, more)).await
    }

    /// Sends a failure as all there is to say.
    pub(crate) async fn refuse(&mut self, failure: &Failure) -> Result<()> {
        self.put(&Err::<(), _>(failure.clone()), |_, ()| Ok(()))
            .await?;
        self.last(false).await
    }
}

fn append<T>(
    writer: &mut ReplyWriter,
    result: &std::result::Result<T, Failure>,
    write: impl Fn(&mut ReplyWriter, &T) -> std::result::Result<(), Full>,
) -> std::result::Result<(), Full> {
    match result {
        Ok(done) => write(writer, done),
        Err(failure) => writer.failed(failure.status, failure.hop, &failure.text),
    }
}

fn too_long(full: Full) -> Error {
    Error::new(ErrorKind::Invalid, format!("a result: {full}"))
}
