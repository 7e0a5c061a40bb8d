//! What stands before every service: who calls, and how much is in flight already.
//!
//! A call is let in before a byte of its message is read, and counts until the last byte of its answer is sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use forebay_api::v1::Reason;
use forebay_store::limits::may_have;
use forebay_store::live::{Live, Served};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::identity::Caller;
use super::metrics::{Metrics, Which};
use super::status::{self, Outcome, Refusal};

/// What may be in flight, or be there at all. Of calls and of bytes alike a tenant takes more only while what it then has is no more than was free: alone it
/// gets a half, two get a third each, and there is always room for one that has nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Calls in all.
    pub(crate) calls: usize,
    /// Calls of one tenant.
    pub(crate) of_tenant: usize,
    /// Bytes that they hold together.
    pub(crate) bytes: usize,
}

/// What is in flight through the services that share it.
pub(crate) struct InFlight {
    bound: Bound,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    all: Amount,
    tenants: HashMap<Box<str>, Amount>,
}

#[derive(Default, Clone, Copy)]
struct Amount {
    calls: usize,
    bytes: usize,
}

/// A call in flight, or something else that is counted like one.
pub(crate) struct Ticket {
    shared: Arc<InFlight>,
    tenant: Box<str>,
    bytes: AtomicUsize,
}

impl InFlight {
    pub(crate) fn new(bound: Bound) -> Arc<InFlight> {
        Arc::new(InFlight {
            bound,
            used: Mutex::default(),
        })
    }

    /// How many calls are in flight.
    pub(crate) fn calls(&self) -> usize {
        self.used.lock().all.calls
    }

    /// Counts one more of this tenant; none when there is no room.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &str) -> Option<Arc<Ticket>> {
        let mut used = self.used.lock();
        let own = used.tenants.get(tenant).copied().unwrap_or_default();
        if own.calls >= self.bound.of_tenant
            || !may_have(1, own.calls, used.all.calls, self.bound.calls)
        {
            return None;
        }
        used.all.calls += 1;
        used.tenants.entry(tenant.into()).or_default().calls += 1;
        Some(Arc::new(Ticket {
            shared: self.clone(),
            tenant: tenant.into(),
            bytes: AtomicUsize::new(0),
        }))
    }
}

impl Ticket {
    /// Of an admitted request.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Outcome<Arc<Ticket>> {
        let ticket = request.extensions().get::<Arc<Ticket>>().cloned();
        ticket.ok_or_else(|| Refusal::new(Reason::Busy, "the call was not admitted"))
    }

    /// Counts memory that the call holds until its answer is sent, besides the bytes of its message.
    pub(crate) fn hold(&self, bytes: usize) -> Outcome<()> {
        match bytes == 0 || self.take(bytes) {
            true => Ok(()),
            false => Err(full()),
        }
    }

    /// Counts bytes; false when there is no room for them.
    fn take(&self, bytes: usize) -> bool {
        let mut used = self.shared.used.lock();
        let all = used.all.bytes;
        let Some(own) = used.tenants.get_mut(&self.tenant) else {
            return false;
        };
        let room = may_have(bytes, own.bytes, all, self.shared.bound.bytes);
        if room {
            own.bytes += bytes;
            used.all.bytes += bytes;
            self.bytes.fetch_add(bytes, Relaxed);
        }
        room
    }

    /// Bytes are held no longer.
    fn give_back(&self, bytes: usize) {
        let mut used = self.shared.used.lock();
        used.all.bytes -= bytes;
        if let Some(own) = used.tenants.get_mut(&self.tenant) {
            own.bytes -= bytes;
        }
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Memory that a call holds for a while, besides what it holds until its answer is sent. The call does not last for it.
pub(crate) struct Held {
    call: Weak<Ticket>,
    bytes: usize,
}

impl Held {
    /// None yet.
    pub(crate) fn by(call: &Arc<Ticket>) -> Held {
        Held {
            call: Arc::downgrade(call),
            bytes: 0,
        }
    }

    /// Counts so many bytes, instead of as many as before.
    pub(crate) fn set(&mut self, bytes: usize) -> Outcome<()> {
        let call = self.call.upgrade();
        let call = call.ok_or_else(|| Refusal::new(Reason::Busy, "the call is over"))?;
        match bytes.checked_sub(self.bytes) {
            Some(more) => call.hold(more)?,
            None => call.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(call) = self.call.upgrade() {
            call.give_back(self.bytes);
        }
    }
}

fn full() -> Refusal {
    Refusal::new(Reason::Busy, "calls in flight hold too much memory")
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let mut used = self.shared.used.lock();
        used.all.calls -= 1;
        used.all.bytes -= bytes;
        if let Some(own) = used.tenants.get_mut(&self.tenant) {
            own.calls -= 1;
            own.bytes -= bytes;
            if own.calls == 0 {
                used.tenants.remove(&self.tenant);
            }
        }
    }
}

/// Says who makes a request, or refuses it; none where anybody may.
pub(crate) type Identify = Arc<dyn Fn(&Request<Body>) -> Outcome<Option<Caller>> + Send + Sync>;

/// What stands before a service.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) identify: Identify,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) which: Which,
    /// Where calls are told of while they are served.
    pub(crate) live: Option<Arc<Live>>,
    /// How long a message may be on its way.
    pub(crate) patience: Duration,
}

/// A service behind its gate.
#[derive(Clone)]
pub(crate) struct Guarded<T> {
    service: T,
    gate: Gate,
}

impl Gate {
    /// Stands before this service.
    pub(crate) fn guard<T>(self, service: T) -> Guarded<T> {
        Guarded {
            service,
            gate: self,
        }
    }

    fn admit(&self, request: &Request<Body>) -> Outcome<(Option<Caller>, Arc<Ticket>)> {
        let caller = (self.identify)(request)?;
        let tenant = caller.as_ref().map_or("", Caller::tenant);
        let ticket = self.in_flight.enter(tenant);
        let busy = || Refusal::new(Reason::Busy, "too many calls are in flight");
        Ok((caller, ticket.ok_or_else(busy)?))
    }
}

impl<T: NamedService> NamedService for Guarded<T> {
    const NAME: &'static str = T::NAME;
}

impl<T> Service<Request<Body>> for Guarded<T>
where
    T: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Send,
    T::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Gate { metrics, which, .. } = &self.gate;
        let (metrics, which) = (metrics.clone(), *which);
        let (caller, ticket) = match self.gate.admit(&request) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let status = Status::from(refusal);
                metrics.answered(which, status.code());
                let refused = status.into_http();
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        let live = self.gate.live.as_ref();
        let served = live.zip(caller.as_ref());
        let served = served.map(|(live, caller)| Arc::new(live.begin(caller.tenant())));
        if let Some(caller) = caller {
            tracing::debug!(
                call = request.uri().path(),
                tenant = caller.tenant(),
                access_key = caller.principal(),
                "gRPC call"
            );
            let extensions = request.extensions_mut();
            extensions.insert(caller.making(served.clone()));
            extensions.insert(ticket.clone());
        }
        let arrival = match which {
            // What is asked there comes message by message.
            Which::Reflection => None,
            _ => Instant::now().checked_add(self.gate.patience),
        };
        let counted = request.map(|body| {
            Body::new(Arriving {
                body,
                ticket: ticket.clone(),
                until: arrival,
                waiting: None,
            })
        });
        let whole = happens_whole(which, counted.uri().path());
        let answered = self.service.call(counted);
        let answer = async move {
            let mut response = answered.await?;
            status::give_reason(response.headers_mut());
            // An answer that begins well has its code behind its messages.
            metrics.answered(which, code(response.headers()));
            Ok(response.map(|body| {
                Body::new(Answering {
                    body,
                    served,
                    ticket,
                })
            }))
        };
        match whole {
            true => Box::pin(to_the_end(answer)),
            false => Box::pin(answer),
        }
    }
}

/// What an answer, or the part of it whose headers these are, ends with.
fn code(headers: &HeaderMap) -> Code {
    Status::from_header_map(headers).map_or(Code::Ok, |status| status.code())
}

/// Whether what is asked happens whole or not at all: what changes records does.
fn happens_whole(which: Which, path: &str) -> bool {
    match which {
        Which::Admin => true,
        Which::Execution => path.ends_with("/AddModule") || path.ends_with("/RemoveModule"),
        Which::Sessions | Which::Objects | Which::Watch | Which::Reflection => false,
    }
}

/// Has a change happen whole: it goes on when whoever asked for it goes away.
async fn to_the_end(
    answer: impl Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
) -> Result<Response<Body>, Infallible> {
    match tokio::spawn(answer).await {
        Ok(answered) => answered,
        Err(failed) => {
            let refusal = Refusal::new(Reason::OutcomeUnknown, failed.to_string());
            Ok(Status::from(refusal).into_http())
        }
    }
}

/// What a call says.
struct Arriving {
    body: Body,
    ticket: Arc<Ticket>,
    until: Option<Instant>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl hyper::body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            if let Some(until) = self.until {
                let waiting = self
                    .waiting
                    .get_or_insert_with(|| Box::pin(sleep_until(until)));
                ready!(waiting.as_mut().poll(context));
                let late = Refusal::new(Reason::Stopped, "the message did not arrive in time");
                return Poll::Ready(Some(Err(late.into())));
            }
            return Poll::Pending;
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !self.ticket.take(data.remaining())
        {
            return Poll::Ready(Some(Err(full().into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What is answered to a call, which is in flight until all of it is sent.
struct Answering {
    body: Body,
    served: Option<Arc<Served>>,
    ticket: Arc<Ticket>,
}

/// Bytes of an answer. HTTP/2 takes as many as there are once its client has room for one, and has them until they are sent or the client
/// lets go of the answer, which may be long after the answer itself is gone: so they hold their call.
struct Unsent {
    bytes: Bytes,
    _ticket: Arc<Ticket>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(served) = &self.served
            && let Some(trailers) = frame.trailers_ref()
            && code(trailers) == Code::Ok
        {
            served.went_well();
        }
        let held = |bytes| {
            Bytes::from_owner(Unsent {
                bytes,
                _ticket: self.ticket.clone(),
            })
        };
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
