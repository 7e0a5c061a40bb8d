//! What stands before every service: who calls, and how much is in flight already.
//!
//! A call is let in before a byte of its message is read, and counts until the last byte of its answer is sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use forebay_api::v1::Reason;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::identity::Caller;
use super::metrics::{Metrics, Which};
use super::status::{Outcome, Refusal};

/// How many calls may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// In all.
    pub(crate) calls: usize,
    /// Of one tenant.
    pub(crate) of_tenant: usize,
    /// Bytes of their messages, together.
    pub(crate) bytes: usize,
}

/// What is in flight through the services that share it.
pub(crate) struct InFlight {
    bound: Bound,
    calls: Mutex<HashMap<Box<str>, usize>>,
    bytes: AtomicUsize,
}

/// A call in flight.
struct Ticket {
    shared: Arc<InFlight>,
    tenant: Box<str>,
    bytes: AtomicUsize,
}

impl InFlight {
    pub(crate) fn new(bound: Bound) -> Arc<InFlight> {
        Arc::new(InFlight {
            bound,
            calls: Mutex::default(),
            bytes: AtomicUsize::new(0),
        })
    }

    /// How many calls are in flight.
    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().values().sum()
    }

    fn enter(self: &Arc<Self>, tenant: &str) -> Outcome<Arc<Ticket>> {
        let mut calls = self.calls.lock();
        let total: usize = calls.values().sum();
        let own = calls.get(tenant).copied().unwrap_or(0);
        if total >= self.bound.calls || own >= self.bound.of_tenant {
            return Err(Refusal::new(Reason::Busy, "too many calls are in flight"));
        }
        calls.insert(tenant.into(), own + 1);
        Ok(Arc::new(Ticket {
            shared: self.clone(),
            tenant: tenant.into(),
            bytes: AtomicUsize::new(0),
        }))
    }
}

impl Ticket {
    /// Counts bytes of the message; false when there is no room for them.
    fn take(&self, bytes: usize) -> bool {
        self.bytes.fetch_add(bytes, Relaxed);
        let before = self.shared.bytes.fetch_add(bytes, Relaxed);
        before.saturating_add(bytes) <= self.shared.bound.bytes
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Relaxed);
        self.shared.bytes.fetch_sub(bytes, Relaxed);
        let mut calls = self.shared.calls.lock();
        if let Some(own) = calls.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                calls.remove(&self.tenant);
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
        let ticket = self.in_flight.enter(tenant)?;
        Ok((caller, ticket))
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
        if let Some(caller) = caller {
            tracing::debug!(
                call = request.uri().path(),
                tenant = caller.tenant(),
                access_key = caller.principal(),
                "gRPC call"
            );
            request.extensions_mut().insert(caller);
        }
        let counted = request.map(|body| {
            Body::new(Counted {
                body,
                ticket: ticket.clone(),
                incoming: true,
            })
        });
        let answered = self.service.call(counted);
        let answer = async move {
            let response = answered.await?;
            // An answer that begins well has its code behind its messages.
            let refused = Status::from_header_map(response.headers());
            metrics.answered(which, refused.map_or(Code::Ok, |status| status.code()));
            Ok(response.map(|body| {
                Body::new(Counted {
                    body,
                    ticket,
                    incoming: false,
                })
            }))
        };
        match which {
            Which::Admin => Box::pin(to_the_end(answer)),
            _ => Box::pin(answer),
        }
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

/// A body of a call in flight.
struct Counted {
    body: Body,
    ticket: Arc<Ticket>,
    incoming: bool,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if self.incoming
            && let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !self.ticket.take(data.remaining())
        {
            let refusal = Refusal::new(Reason::Busy, "too many bytes of messages are in flight");
            return Poll::Ready(Some(Err(refusal.into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
