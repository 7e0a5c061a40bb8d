//! The two small HTTP servers beside the doors: the console over TCP and the admin API over the Unix socket.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_control::MODULE_BYTES_MAX;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use super::places::{Place, Places};
use super::{REST, stopped};

/// The longest request body where none is of use.
pub const WORDS_BYTES_MAX: usize = 64 << 10;
/// The longest request body of whoever owns the server: a module in base64, and a few names.
pub const MODULES_BYTES_MAX: usize = MODULE_BYTES_MAX / 3 * 4 + WORDS_BYTES_MAX;
/// Connections of one server at once. They carry a request each.
const CONNECTIONS_MAX: u32 = 64;
/// How long a client may take for the head of its request, and for the body.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take for the answer.
const TAKING_TIMEOUT: Duration = Duration::from_secs(30);

/// A request, read whole.
pub struct Asked {
    /// GET, POST, ...
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// At most as long as the server takes.
    pub body: Bytes,
}

/// What is answered.
pub struct Answer {
    /// An HTTP status.
    pub status: u16,
    /// Of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// A line of text.
    pub fn text(status: u16, text: impl Into<String>) -> Answer {
        Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: text.into().into_bytes(),
        }
    }
}

/// Something that is listened on.
pub trait Listen {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next connection that may be served.
    fn next(&mut self) -> impl Future<Output = io::Result<Self::Stream>>;
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn next(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Serves until `shutdown`, and returns when the requests in progress are finished.
pub async fn serve<L, H, F>(
    mut listener: L,
    handle: H,
    body_bytes: usize,
    shutdown: watch::Receiver<bool>,
) where
    L: Listen,
    H: Fn(Asked) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let handle = Arc::new(handle);
    let places = Places::new(CONNECTIONS_MAX);
    loop {
        let arriving = async {
            let stream = listener.next().await?;
            let place = places.take().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((stream, place))
        };
        let (stream, place) = tokio::select! {
            arrived = arriving => match arrived {
                Ok(arrived) => arrived,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            },
            () = stopped(shutdown.clone()) => break,
        };
        let (handle, down) = (handle.clone(), shutdown.clone());
        tokio::spawn(async move {
            let answered = Arc::new(Notify::new());
            let (asked, taking) = (place.clone(), answered.clone());
            let service = service_fn(move |request| {
                let (handle, place, answered) = (handle.clone(), asked.clone(), answered.clone());
                async move {
                    let answer = answer(request, body_bytes, &*handle, place).await;
                    answered.notify_one();
                    Ok::<_, Infallible>(answer)
                }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(ASKING_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            let overdue = async {
                taking.notified().await;
                tokio::time::sleep(TAKING_TIMEOUT).await;
            };
            tokio::pin!(serving);
            // A connection that breaks is its client's affair.
            let served = async {
                tokio::select! {
                    _ = serving.as_mut() => return,
                    () = stopped(down) => serving.as_mut().graceful_shutdown(),
                }
                let _ = serving.await;
            };
            tokio::select! {
                () = served => {}
                () = overdue => {}
                () = place.lost() => {}
            }
        });
    }
    // Who comes now is not left waiting.
    drop(listener);
    places.all_free().await;
}

/// Answers a request, for which `place` is held until it is finished.
async fn answer<H, F>(
    request: Request<Incoming>,
    body_bytes: usize,
    handle: &H,
    place: Arc<Place>,
) -> Response<Full<Bytes>>
where
    H: Fn(Asked) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(ASKING_TIMEOUT, Limited::new(body, body_bytes).collect());
    let answer = match body.await {
        Ok(Ok(body)) => {
            let handled = handle(Asked {
                method: head.method,
                path: head.uri.path().to_owned(),
                body: body.to_bytes(),
            });
            place.work();
            let held = place.clone();
            // A change happens whole: it goes on when whoever asked for it goes away.
            let handled = tokio::spawn(async move {
                let answer = handled.await;
                drop(held);
                answer
            });
            let handled = handled.await;
            place.wait();
            handled.unwrap_or_else(|failed| Answer::text(500, format!("{failed}\n")))
        }
        Ok(Err(_)) => Answer::text(413, "the body is too long or broken\n"),
        Err(_) => Answer::text(408, "the body did not come\n"),
    };
    let mut response = Response::new(Full::new(answer.body.into()));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = HeaderValue::from_static(answer.content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    impl Listen for UnboundedReceiver<DuplexStream> {
        type Stream = DuplexStream;

        async fn next(&mut self) -> io::Result<DuplexStream> {
            self.recv().await.ok_or_else(|| io::Error::other("none"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_change_whose_client_went_away() {
        let (arrive, arrivals) = unbounded_channel();
        let (stop, stopping) = watch::channel(false);
        let (begin, mut begun) = unbounded_channel();
        let may_end = Arc::new(Semaphore::new(0));
        let until = may_end.clone();
        let change = move |_| {
            begin.send(()).unwrap();
            let until = until.clone();
            async move {
                let _ended = until.acquire().await;
                Answer::text(200, "changed\n")
            }
        };
        let mut serving = tokio::spawn(serve(arrivals, change, WORDS_BYTES_MAX, stopping));
        let (mut client, connection) = duplex(1024);
        arrive.send(connection).unwrap();
        let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        client.write_all(request).await.unwrap();
        begun.recv().await.unwrap();
        client.shutdown().await.unwrap();
        let left = client.read(&mut [0]).await.unwrap();
        assert_eq!(left, 0, "the connection is gone");

        stop.send(true).unwrap();
        // The clock stands while anybody has something to do.
        let early = tokio::time::timeout(Duration::from_secs(1), &mut serving).await;
        assert!(early.is_err(), "the change is not done");
        may_end.add_permits(1);
        serving.await.unwrap();
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// Serves an answer that nobody has room for.
    fn long(arrivals: UnboundedReceiver<DuplexStream>) -> watch::Sender<bool> {
        let (stop, stopping) = watch::channel(false);
        let handle = |_| async { Answer::text(200, "x".repeat(1 << 20)) };
        tokio::spawn(serve(arrivals, handle, WORDS_BYTES_MAX, stopping));
        stop
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_or_reads_nothing_makes_way() {
        let (arrive, arrivals) = unbounded_channel();
        let _stop = long(arrivals);
        let mut others = Vec::new();
        for number in 0..2 * CONNECTIONS_MAX {
            let (mut client, connection) = duplex(1024);
            arrive.send(connection).unwrap();
            if number % 2 == 0 {
                client.write_all(&GET.repeat(3)).await.unwrap();
            }
            others.push(client);
        }
        let (mut client, connection) = duplex(1024);
        arrive.send(connection).unwrap();
        client.write_all(GET).await.unwrap();
        let mut answer = [0; 12];
        // The clock stands while anybody has something to do.
        let read = tokio::time::timeout(Duration::from_secs(1), client.read_exact(&mut answer));
        read.await.expect("it is answered at once").unwrap();
        assert_eq!(answer, *b"HTTP/1.1 200");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_given_up() {
        let (arrive, arrivals) = unbounded_channel();
        let _stop = long(arrivals);
        let (mut client, connection) = duplex(1024);
        arrive.send(connection).unwrap();
        client.write_all(GET).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut taken = Vec::new();
        client.read_to_end(&mut taken).await.unwrap();
        assert!(taken.len() < 1 << 20, "{} bytes", taken.len());
    }
}
