//! The loop of one link.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use forebay_fabric::{CloseReason, ErrorKind, Fabric, Link, Result};
use forebay_io::Slots;
use forebay_store::Store;
use tokio::task::yield_now;

use crate::call::{Buffers, Context, serve as serve_request};
use crate::messages::Messages;

/// Messages taken before other links of the thread get their turn.
const TURN: usize = 128;

/// Requests for which an idle link keeps messages' memory.
const KEPT_IDLE: usize = 16;

/// Of those, and of a busy link's, how many may have been long: they keep up to 32 KiB each ...
const KEPT_LONG: usize = 4;
/// ... and the others up to this.
const SHORT_BYTES: usize = 4 << 10;

/// Of the message by which the active side of a connection of iWARP speaks first, where MPA does not see to that (docs/token.md
/// section 7.3). It asks for nothing.
const GREETING_BYTES: usize = 8;

/// Serves requests until the link gives no more; returns why, with nothing of the link in progress.
pub(crate) async fn serve<S: Store, L: Link>(
    context: &Context<'_, S, L>,
    limit: usize,
    mut messages: Messages,
    shutdown: impl Future<Output = ()>,
) -> CloseReason {
    let mut shutdown = pin!(shutdown);
    let mut requests = Slots::new(limit.max(1));
    // Boxed once; a message costs no allocation.
    let mut receiving = Box::pin(None);
    let mut free: Vec<Buffers> = Vec::new();
    let mut ended: Option<CloseReason> = None;
    let mut may_greet = context.link.fabric() == Fabric::Iwarp;
    poll_fn(|cx| {
        let mut failed = None;
        context.turn.begin();
        context.counting.turn();
        requests.poll_woken(cx, |_, (buffers, sent): (Buffers, Result<()>)| {
            failed = failed.take().or(sent.err());
            messages.end(buffers.message.len());
            keep(&mut free, buffers);
        });
        if ended.is_none() && shutdown.as_mut().poll(cx).is_ready() {
            ended = Some(CloseReason::Done);
        }
        for taken in 0.. {
            if let Some(error) = failed.take() {
                ended.get_or_insert(reason(error));
            }
            if ended.is_some() || requests.is_full() || !messages.may_come() {
                context.link.pauses();
                break;
            }
            if taken == TURN || context.turn.is_over() {
                // Behind all that is ready by now, what arrived meanwhile among it.
                let _ = pin!(yield_now()).poll(cx);
                break;
            }
            if receiving.is_none() {
                receiving.set(Some(receive(context.link, free.pop().unwrap_or_default())));
            }
            let Some(next) = receiving.as_mut().as_pin_mut() else {
                break;
            };
            let Poll::Ready((buffers, received)) = next.poll(cx) else {
                break;
            };
            receiving.set(None);
            match received {
                Ok(Some(())) if may_greet && buffers.message.len() == GREETING_BYTES => {
                    may_greet = false;
                    keep(&mut free, buffers);
                }
                Ok(Some(())) => {
                    may_greet = false;
                    messages.begin(buffers.message.len());
                    if let Some((buffers, sent)) = requests.add(serve_request(context, buffers)) {
                        failed = sent.err();
                        messages.end(buffers.message.len());
                        keep(&mut free, buffers);
                    }
                }
                Ok(None) => ended = Some(CloseReason::Done),
                Err(error) => ended = Some(reason(error)),
            }
        }
        if requests.busy() == 0 {
            free.truncate(KEPT_IDLE);
        }
        match &ended {
            Some(reason) if requests.busy() == 0 => Poll::Ready(reason.clone()),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Keeps memory for the next messages, unless it is much already.
fn keep(free: &mut Vec<Buffers>, buffers: Buffers) {
    let bytes = buffers.message.capacity() + buffers.reply.capacity();
    if free.len() < KEPT_LONG || bytes <= SHORT_BYTES {
        free.push(buffers);
    }
}

async fn receive<L: Link>(link: &L, mut buffers: Buffers) -> (Buffers, Result<Option<()>>) {
    let received = link.recv(&mut buffers.message).await;
    (buffers, received)
}

fn reason(error: forebay_fabric::Error) -> CloseReason {
    match error.kind {
        ErrorKind::Closed | ErrorKind::Io => CloseReason::Lost,
        ErrorKind::NotReachable | ErrorKind::Busy | ErrorKind::Invalid | ErrorKind::Corrupt => {
            CloseReason::Violation(error.message)
        }
    }
}
