//! Deadlines that come with calls, by a client that leaves them to the server.

use std::task::{Context, Poll};
use std::time::Duration;

use forebay_api::v1::objects_client::ObjectsClient;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, Uri};
use tonic::codegen::{BoxFuture, Service};

use crate::harness::{Client, Door};
use crate::memory::{FABRICS, Shared, noise, retrieve};
use crate::objects::stored;

/// Waits for the server, whatever a call says.
#[derive(Clone)]
struct Patient(SendRequest<Body>);

impl Service<Request<Body>> for Patient {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Response<Incoming>, hyper::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

async fn patient(door: &Door) -> ObjectsClient<Patient> {
    let stream = TcpStream::connect(door.address).await.unwrap();
    let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = shaken.await.unwrap();
    tokio::spawn(connection);
    let origin = Uri::try_from(format!("http://{}", door.address)).unwrap();
    ObjectsClient::with_origin(Patient(sender), origin)
}

fn with_deadline<T>(door: &Door, client: &Client, asked: T) -> tonic::Request<T> {
    let token = door.token(&door.identities.find(&client.access_key).unwrap());
    let mut request = tonic::Request::new(asked);
    let metadata = request.metadata_mut();
    metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
    metadata.insert("grpc-timeout", "1m".parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_of_a_transfer_before_its_bytes_are_in_place() {
    for fabric in FABRICS {
        let door = Door::open().await;
        let mut red = door.tenant("red").await;
        red.namespace("data").await;
        let shared = Shared::open(&door, &mut red, fabric, 8192).await;
        stored(&door.store, "data", b"value", &noise(5000)).await;
        let (begun, is_begun) = oneshot::channel();
        let (open, gate) = oneshot::channel::<()>();
        door.beside.reading.once(async {
            let _ = begun.send(());
            let _ = gate.await;
        });
        let asked = retrieve(&shared.session, "value", shared.place(0, 5000));
        let request = with_deadline(&door, &red, asked);
        let mut objects = patient(&door).await;
        let mut call = tokio::spawn(async move { objects.retrieve(request).await });
        is_begun.await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), &mut call).await;
        assert!(early.is_err(), "{early:?}");
        open.send(()).unwrap();
        let answer = call.await.unwrap().unwrap().into_inner();
        assert_eq!(answer.length, 5000);
        assert_eq!(shared.bytes(0, 5000), noise(5000));
    }
}
