//! The door: connections in, requests through their stages, responses out.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_proto::s3::error::{ErrorCode, S3Error};
use forebay_proto::s3::uri::{Query, Resource, parse_resource};
use forebay_store::Store;
use forebay_store::live::LiveTenant;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, SERVER};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::field::{Empty, debug};

use crate::admission::{Gate, Ticket};
use crate::auth::{AccessKeys, Authenticator, Caller};
use crate::call::Call;
use crate::claims::Proof;
use crate::config::Config;
use crate::demand::Demand;
use crate::direct::{Direct, Lender};
use crate::ingest::{Inbound, Room};
use crate::live::{Live, Served};
use crate::metrics::Metrics;
use crate::pace::{Paced, Patience, Phase};
use crate::reply::{self, Reply, ReplyBody};
use crate::router::{Operation, Route};
use crate::rules::RulesCache;
use crate::staging::Locks;
use crate::status::{Manner, Outcome, Refusal};
use crate::turns::Turns;
use crate::{cors, direct, dispatch, headers, presigned};

/// The longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Whoever waits for buffers, or for a share of them, for this part of `body_timeout` has others hurried.
const GRACE_PART: u32 = 6;

/// Unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// An S3 door to a store.
pub struct Door<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) rules: RulesCache,
    pub(crate) uploads: Locks,
    pub(crate) copies: Turns,
    pub(crate) demand: Arc<Demand>,
    pub(crate) authenticator: Authenticator,
    /// `config.domains` and `localhost`.
    domains: Vec<String>,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    live: Live,
    room: Room,
    ids: Ids,
    /// Where payloads go by remote memory access; absent where they do not.
    pub(crate) direct: Option<Lender>,
}

/// Where a request came from.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) peer: Option<SocketAddr>,
    secure: bool,
    phase: Arc<Phase>,
}

impl Connection {
    /// The request in progress is here with its body, if it has one, and ends when the client closes the connection.
    pub(crate) fn bind_request(&self) {
        self.phase.bind_request();
    }
}

/// A request whose operation is known and whose sender is not.
pub(crate) struct Asked<'a> {
    pub(crate) op: Operation,
    pub(crate) head: &'a Parts,
    pub(crate) connection: &'a Connection,
    pub(crate) query: &'a Query<'a>,
    resource: &'a Resource,
    host: Option<&'a str>,
    /// Unix milliseconds.
    pub(crate) now_ms: u64,
}

/// The answer would say what is not so: the connection is cut instead.
#[derive(Debug, thiserror::Error)]
#[error("the request is not answered")]
struct Unsaid;

impl<S: Store> Door<S> {
    /// A door to `store` for the holders of `keys`.
    pub fn new(
        store: Arc<S>,
        keys: Arc<dyn AccessKeys>,
        clock: Clock,
        config: Config,
    ) -> Arc<Door<S>> {
        Door::with_direct(store, keys, clock, config, None)
    }

    /// The same, that also moves payloads straight between the store and the memory of the clients of `direct`'s sessions.
    pub fn with_direct(
        store: Arc<S>,
        keys: Arc<dyn AccessKeys>,
        clock: Clock,
        config: Config,
        direct: Option<Direct>,
    ) -> Arc<Door<S>> {
        let metrics = Arc::new(Metrics::new());
        let grace = config.body_timeout / GRACE_PART;
        let caps = store.caps();
        let direct = direct.map(|direct| Lender::new(direct, config.pool_bytes, &caps));
        let mut domains = config.domains.clone();
        if !domains.iter().any(|domain| domain == "localhost") {
            domains.push("localhost".to_owned());
        }
        Arc::new(Door {
            store,
            rules: RulesCache::default(),
            uploads: Locks::default(),
            copies: Turns::new(config.pool_bytes),
            demand: Arc::new(Demand::new(grace)),
            authenticator: Authenticator::new(keys),
            domains,
            gate: Gate::new(config.requests_in_flight, Arc::clone(&metrics)),
            metrics,
            live: Live::new(config.pool_bytes, grace),
            room: Room::of(&caps),
            ids: Ids::new(clock()),
            clock,
            config,
            direct,
        })
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What each tenant's requests did so far.
    pub fn live(&self) -> Vec<LiveTenant> {
        self.live.look()
    }

    /// Returns when no request is in flight. New ones are still served, and close their connections.
    pub async fn drain(&self) {
        self.gate.drain().await;
    }

    /// Serves one connection until it ends, or until the request in progress is answered after `shutdown`. `secure` says
    /// whether the stream is encrypted. Runs on any tokio runtime, a current-thread one included.
    pub async fn serve_connection<T, F>(
        self: Arc<Self>,
        stream: T,
        peer: Option<SocketAddr>,
        secure: bool,
        shutdown: F,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future + Send,
    {
        let phase = Arc::new(Phase::default());
        let patience = Patience {
            idle: self.config.idle_timeout,
            header: self.config.header_timeout,
            write: self.config.body_timeout,
        };
        let stream = TokioIo::new(Paced::new(
            stream,
            Arc::clone(&phase),
            patience,
            Arc::clone(&self.demand),
        ));
        let connection = Arc::new(Connection {
            peer,
            secure,
            phase,
        });
        let service = service_fn(move |request| {
            let (door, connection) = (Arc::clone(&self), Arc::clone(&connection));
            async move { door.answer(request, &connection).await }
        });
        let serving = http1::Builder::new()
            .half_close(true)
            .header_read_timeout(None)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(stream, service);
        tokio::pin!(serving, shutdown);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            _ = &mut shutdown => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(?peer, %error, "a connection broke");
        }
    }

    async fn answer(
        &self,
        request: http::Request<Incoming>,
        connection: &Connection,
    ) -> Result<Reply<S::Body>, Unsaid> {
        let (mut ticket, admitted) = self.gate.enter(Arc::clone(&connection.phase));
        let id = self.ids.next();
        let id_text = id.as_str();
        let (mut head, body) = request.into_parts();
        name_host(&mut head);
        // At debug level, because a span that is kept costs a request more than its signature does. Lines that are written
        // without it name the request themselves.
        let span = tracing::debug_span!("s3", request_id = id_text, op = Empty, status = Empty);
        let mut inbound = Inbound::new(
            body,
            Arc::clone(&self.metrics),
            Arc::clone(&self.demand),
            self.room,
            self.config.body_timeout,
        );
        let mut close = self.gate.is_draining();
        let mut marks = HeaderMap::new();
        let mut reply = {
            let mut serving = pin!(async {
                let outcome = match admitted {
                    true => {
                        self.serve(&head, &mut inbound, connection, &mut ticket, &mut marks)
                            .await
                    }
                    false => {
                        close = true;
                        Err(ErrorCode::SlowDown.into())
                    }
                };
                let mut reply = match outcome {
                    Ok(reply) => reply,
                    Err(refusal) => {
                        if refusal.manner == Manner::Unsaid {
                            tracing::warn!(request_id = id_text, path = head.uri.path(), error = %refusal.error, "a request is not answered");
                            return Err(Unsaid);
                        }
                        if refusal.status().is_server_error() {
                            let cause = refusal.cause.as_ref().map(debug);
                            tracing::warn!(request_id = id_text, op = ticket.op.name(), path = head.uri.path(), error = %refusal.error, cause, "a request failed");
                        }
                        let refusal = match ticket.op {
                            Operation::Unknown => direct::Carried::refused(
                                refusal,
                                &head.headers,
                                self.direct.as_ref(),
                            ),
                            _ => refusal,
                        };
                        // Whoever is refused takes no place of one who is served while the rest of its body comes.
                        ticket.leave();
                        if let Some(served) = &mut inbound.served {
                            served.leave();
                        }
                        if !close {
                            close = !inbound.drain(&head.headers).await;
                        }
                        refused(refusal, &head, id_text)
                    }
                };
                if !marks.is_empty() {
                    reply.headers_mut().extend(marks);
                }
                if close {
                    reply
                        .headers_mut()
                        .insert(CONNECTION, HeaderValue::from_static("close"));
                }
                tracing::debug!(
                    op = ticket.op.name(),
                    peer = ?connection.peer,
                    method = %head.method,
                    path = head.uri.path(),
                    status = reply.status().as_u16(),
                    "answered"
                );
                Ok(reply)
            });
            // In the span, and where it is: `Instrument` would move it, which is as much as the state of a whole request.
            let served = poll_fn(|context| span.in_scope(|| serving.as_mut().poll(context)));
            served.await?
        };
        ticket.served = inbound.served.take();
        let demand = ticket.served.as_ref().and_then(Served::demand);
        connection.phase.begin_response(demand);
        ticket.code = reply.status().as_u16();
        span.record("op", ticket.op.name());
        span.record("status", ticket.code);
        let response = reply.headers_mut();
        response.insert(headers::REQUEST_ID, id.value());
        response.insert(SERVER, headers::SERVER);
        Ok(reply.map(|body| body.with_ticket(ticket)))
    }

    /// The stages of a request. `marks` takes headers that the response has whether it succeeds or not.
    async fn serve(
        &self,
        head: &Parts,
        inbound: &mut Inbound,
        connection: &Connection,
        ticket: &mut Ticket,
        marks: &mut HeaderMap,
    ) -> Outcome<Reply<S::Body>> {
        let path = head.uri.path();
        if let Some(control) = direct::Control::of(head) {
            ticket.op = Operation::RdmaControl;
            return Box::pin(control.serve(self, head, connection)).await;
        }
        let host = headers::text(&head.headers, &HOST);
        let domains: Vec<&str> = self.domains.iter().map(String::as_str).collect();
        let resource = parse_resource(path, host, &domains)?;
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let route = Route {
            method: &head.method,
            bucket: resource != Resource::Service,
            key: resource.key().is_some(),
            query: &query,
            copies: head.headers.contains_key(headers::COPY_SOURCE),
        };
        let op = route.operation()?;
        ticket.op = op;
        let bucket = resource.bucket().unwrap_or_default();
        if op == Operation::Preflight {
            return cors::preflight(self, &head.headers, bucket);
        }
        cors::respond(self, bucket, &head.method, &head.headers, marks);
        let asked = Asked {
            op,
            head,
            connection,
            query: &query,
            resource: &resource,
            host,
            now_ms: (self.clock)(),
        };
        match direct::Carried::of(op, &head.headers, self.direct.as_ref()) {
            None => self.perform(&asked, inbound).await,
            Some(carried) => Box::pin(carried.serve(self, &asked, inbound)).await,
        }
    }

    /// Who asks, may they, and the handler.
    pub(crate) async fn perform(
        &self,
        asked: &Asked<'_>,
        inbound: &mut Inbound,
    ) -> Outcome<Reply<S::Body>> {
        let (caller, proof) = self.identify(asked.head, asked.now_ms)?;
        self.begin(&caller, inbound)?;
        let joined = presigned::joined(asked.op, &proof, asked.query, &asked.head.headers)?;
        inbound.prove(proof);
        let mut call = self.call(asked, joined.as_ref(), &caller);
        call.admit(asked.op).await?;
        dispatch::dispatch(asked.op, &call, inbound).await
    }

    /// Counts the request among those of its sender.
    ///
    /// # Errors
    /// `SlowDown` when the sender has its share of the requests in flight already.
    pub(crate) fn begin(&self, caller: &Caller, inbound: &mut Inbound) -> Outcome<()> {
        if inbound.served.is_some() {
            return Ok(());
        }
        let (served, before) = self.live.begin(caller);
        inbound.served = Some(served);
        match self.gate.may_go_on(before) {
            true => Ok(()),
            false => Err(ErrorCode::SlowDown.into()),
        }
    }

    /// Who asks.
    ///
    /// # Errors
    /// Any refusal of the signature.
    pub(crate) fn identify(&self, head: &Parts, now_ms: u64) -> Outcome<(Caller, Proof)> {
        let now_s = i64::try_from(now_ms / 1000).unwrap_or(i64::MAX);
        self.authenticator.authenticate(head, now_s)
    }

    /// The request as its handler sees it, once it is admitted. `joined`: its headers, where some are in its query.
    pub(crate) fn call<'a>(
        &'a self,
        asked: &Asked<'a>,
        joined: Option<&'a HeaderMap>,
        caller: &'a Caller,
    ) -> Call<'a, S> {
        Call {
            door: self,
            headers: joined.unwrap_or(&asked.head.headers),
            query: asked.query,
            bucket: asked.resource.bucket().unwrap_or_default(),
            key: asked.resource.key().unwrap_or_default(),
            caller,
            namespace: None,
            rules: None,
            connection: asked.connection,
            secure: asked.connection.secure,
            peer: asked.connection.peer,
            host: asked.host,
            path: asked.head.uri.path(),
            now_ms: asked.now_ms,
        }
    }
}

impl<S: Store> Door<S> {
    /// Sixteen digits that this process gives out once.
    pub(crate) fn unique(&self) -> Id {
        self.ids.next()
    }
}

/// A target in absolute form names the host, and what `Host` says is ignored (RFC 9112 section 3.2.2). It takes the place of
/// `Host` before anybody looks, so that the signature is over the host that picks the bucket.
fn name_host(head: &mut Parts) {
    if let Some(authority) = head.uri.authority() {
        let text = authority.as_str();
        let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let host = headers::value(host.as_bytes());
        head.headers.insert(HOST, host);
    }
}

/// The response of a refusal.
fn refused<B>(refusal: Refusal, head: &Parts, id: &str) -> Reply<B> {
    let status = refusal.status();
    let Refusal { error, headers, .. } = refusal;
    let silent = head.method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let mut reply = match silent {
        true => reply::empty(status),
        false => document(&error, head.uri.path(), id),
    };
    *reply.status_mut() = status;
    if let Some(headers) = headers {
        reply.headers_mut().extend(*headers);
    }
    reply
}

fn document<B>(error: &S3Error, resource: &str, id: &str) -> Reply<B> {
    let text = error.to_xml(resource, id);
    let mut reply = http::Response::new(ReplyBody::whole(text.into()));
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    reply
}

/// Request ids: 16 hexadecimal digits, different for every request of a process and unlikely to meet another's.
struct Ids {
    next: AtomicU64,
}

pub(crate) struct Id([u8; 16]);

impl Ids {
    fn new(seed: u64) -> Ids {
        Ids {
            next: AtomicU64::new(seed.rotate_left(20)),
        }
    }

    fn next(&self) -> Id {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        // A bijection (the finaliser of splitmix64), so that counting on never repeats an id.
        let mut mixed = self.next.fetch_add(1, Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Id(std::array::from_fn(|at| {
            DIGITS[(mixed >> (60 - 4 * at)) as usize & 15]
        }))
    }
}

impl Id {
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    fn value(&self) -> HeaderValue {
        headers::value(&self.0)
    }
}
