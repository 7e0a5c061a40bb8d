//! HTTP for the crate `object_store`: our TLS, our bounds on waiting, and connections of a runtime of their own.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::header::RANGE;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// For a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// For the head of an answer, once the request is sent or being sent, and for each piece of its body.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest answer that is held whole: a page of a list, or what an error says. Bytes of copies are asked for by range, and pass.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// After so long without a request a connection is closed.
const IDLE: Duration = Duration::from_secs(60);
type BoxError = Box<dyn Error + Send + Sync>;
type Called<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the client of an `object_store`.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: Client<Dial, HttpRequestBody>,
}

impl Connector {
    /// Connections live on `runtime`, whoever asks. `tls` is needed for `https` alone.
    pub fn new(runtime: &Handle, tls: Option<Arc<ClientConfig>>) -> Connector {
        let dial = Dial {
            runtime: runtime.clone(),
            tls: tls.map(TlsConnector::from),
        };
        let client = Client::builder(On(runtime.clone()))
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(dial);
        Connector { client }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Connector {
    fn call<'this, 'call>(
        &'this self,
        request: HttpRequest,
    ) -> Called<'call, Result<HttpResponse, HttpError>>
    where
        'this: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            let room = match request.headers().contains_key(RANGE) {
                true => u64::MAX,
                false => ANSWER_BYTES_MAX,
            };
            // However slow the line, a request of some MiB is through in this time, or the far side does not take it.
            let answer = timeout(CONNECT + ANSWER, self.client.request(request));
            let answer = answer.await.map_err(|_| late())?.map_err(|error| {
                let kind = match error.is_connect() {
                    true => HttpErrorKind::Connect,
                    false => HttpErrorKind::Interrupted,
                };
                HttpError::new(kind, error)
            })?;
            let (head, body) = answer.into_parts();
            let body = Patient {
                body,
                room,
                deadline: Box::pin(sleep(ANSWER)),
                waiting: false,
            };
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
        })
    }
}

/// A body that is an error when its next piece is too long in coming, or when it is too long itself.
struct Patient {
    body: Incoming,
    /// How many more bytes may come.
    room: u64,
    deadline: Pin<Box<Sleep>>,
    /// Whether a piece was asked for that has not come: a reader that takes its time is no fault of the far side.
    waiting: bool,
}

impl Body for Patient {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waiting = false;
            if let Some(Ok(frame)) = &frame
                && let Some(bytes) = frame.data_ref()
            {
                let Some(room) = this.room.checked_sub(bytes.len() as u64) else {
                    return Poll::Ready(Some(Err(endless())));
                };
                this.room = room;
            }
            let failed = |error| HttpError::new(HttpErrorKind::Interrupted, error);
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        if !this.waiting {
            this.waiting = true;
            this.deadline.as_mut().reset(Instant::now() + ANSWER);
        }
        match this.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(late()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn late() -> HttpError {
    HttpError::new_boxed(HttpErrorKind::Timeout, "no answer in time".into())
}

fn endless() -> HttpError {
    HttpError::new_boxed(HttpErrorKind::Decode, "the answer has no end".into())
}

/// Runs what a client needs beside its calls.
#[derive(Debug, Clone)]
struct On(Handle);

impl<F> Executor<F> for On
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// Makes connections.
#[derive(Clone)]
struct Dial {
    runtime: Handle,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dial")
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Line>;
    type Error = BoxError;
    type Future = Called<'static, Result<TokioIo<Line>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        let dialled = self
            .runtime
            .spawn(async move { timeout(CONNECT, dial(uri, tls)).await? });
        Box::pin(async move { Ok(TokioIo::new(dialled.await??)) })
    }
}

async fn dial(uri: Uri, tls: Option<TlsConnector>) -> Result<Line, BoxError> {
    let secure = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or("the endpoint names no host")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if !secure {
        return Ok(Line::Plain(stream));
    }
    let tls = tls.ok_or("the endpoint is not one for TLS")?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = tls.connect(name, stream).await?;
    Ok(Line::Tls(Box::new(stream)))
}

/// A connection.
enum Line {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Line::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Line::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Line::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Line::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Line::Plain(stream) => Pin::new(stream).poll_flush(context),
            Line::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Line::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Line::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
