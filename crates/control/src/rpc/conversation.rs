//! HTTP/2 over connections: how much of it, and for how long.
//!
//! A call takes the time that it takes. Its client keeps its deadline (`grpc-timeout`) and gives the call up when that has passed; an
//! answer in its place, made here, would say of a transfer that it is over while bytes of it may still land.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tonic::service::Routes;

use super::incoming::Connection;

const STREAMS_PER_CONNECTION: u32 = 256;
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// A connection that does not answer for so long is given up.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Answers by `routes` what comes over `connections` until `shutdown`, and then what is in progress. A connection on which nobody has
/// proved who calls for as long as `patience` is given up.
pub(crate) async fn hold(
    connections: impl Stream<Item = Connection>,
    routes: Routes,
    patience: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let (stopping, stop) = watch::channel(false);
    {
        let mut connections = pin!(connections);
        let mut shutdown = pin!(shutdown);
        loop {
            let connection = tokio::select! {
                () = &mut shutdown => break,
                next = connections.next() => match next {
                    Some(connection) => connection,
                    None => break,
                },
            };
            tokio::spawn(converse(connection, routes.clone(), patience, stop.clone()));
        }
    }
    drop(stop);
    stopping.send_replace(true);
    stopping.closed().await;
}

async fn converse(
    connection: Connection,
    routes: Routes,
    patience: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let peer = connection.peer().clone();
    let address = peer.address;
    let other_end = peer.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(other_end.clone());
        routes.clone().call(request.map(Body::new))
    });
    let mut serving = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(KEEPALIVE)
            .serve_connection(TokioIo::new(connection), service)
    );
    let mut introduction = pin!(sleep(patience));
    let (mut introduced, mut stopped) = (false, false);
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%address, %error, "a gRPC connection broke");
                }
                return;
            }
            () = introduction.as_mut(), if !introduced => {
                introduced = peer.is_known();
                if !introduced {
                    tracing::debug!(%address, "nobody has proved who calls in time");
                    return;
                }
            }
            _ = stop.wait_for(|stop| *stop), if !stopped => {
                // Nothing is in progress for somebody who is not known, and HTTP/2 may never have begun.
                if !peer.is_known() {
                    return;
                }
                stopped = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
