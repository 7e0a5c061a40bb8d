//! Answers that nobody reads, and calls that are given up in their midst.

use std::iter::repeat_n;
use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1;
use forebay_control::rpc::Config;
use forebay_fabric::Fabric;
use futures_util::stream::once;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::bounds::{Raw, bounded};
use crate::harness::{Client, Door, refused};
use crate::memory::Shared;
use crate::objects::stored;

/// Fewer bytes than any answer has.
const WINDOW: u32 = 16;
const SOON: Duration = Duration::from_secs(20);

/// A client that takes less than an answer, with memory.
async fn narrow() -> (Door, Client, Shared) {
    let door = Door::open().await;
    let mut red = door.narrow_tenant("red", WINDOW).await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    (door, red, shared)
}

/// Stores values of these keys after one that has no place to come from.
async fn scatter(
    client: &mut Client,
    shared: &Shared,
    keys: &[&str],
) -> Streaming<v1::ScatterResponse> {
    let element = |key: &str, place| v1::ScatterElement {
        key: key.to_owned().into(),
        place,
        ..Default::default()
    };
    let none = element("none", None);
    let stored = keys.iter().map(|key| element(key, shared.place(0, 4096)));
    let request = v1::ScatterRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: std::iter::once(none).chain(stored).collect(),
    };
    client.objects.scatter(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn what_has_begun_ends_though_no_answer_is_read() {
    let (door, mut red, shared) = narrow().await;
    // The first answer fills the window, the second one is in the server's hands, and the third is being made.
    let beside = door.beside.clone();
    door.beside.committing.once(async move {
        beside.committing.once(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        yield_now().await;
    });
    let mut answers = scatter(&mut red, &shared, &["second", "third"]).await;
    let mut other = door.tenant("red").await;
    let stat = v1::StatRequest {
        namespace: "data".into(),
        key: "third".into(),
        version: None,
    };
    let stored = async { while other.objects.stat(stat.clone()).await.is_err() {} };
    timeout(SOON, stored).await.expect("it is stored");
    // Then they are read.
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.failure.unwrap().reason(), v1::Reason::Invalid);
    for index in 1..3 {
        let stored = answers.message().await.unwrap().unwrap();
        assert_eq!((stored.index, stored.failure), (index, None));
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn what_is_at_work_is_given_up_with_its_call() {
    let (door, mut red, shared) = narrow().await;
    let (begun, is_begun) = oneshot::channel();
    let (at_work, mut given_up) = oneshot::channel::<()>();
    door.beside.committing.once(async {
        let _at_work = at_work;
        let _ = begun.send(());
        std::future::pending().await
    });
    let answers = scatter(&mut red, &shared, &["value"]).await;
    is_begun.await.unwrap();
    drop((answers, red));
    // Nothing of it outlives the door.
    timeout(SOON, door.close()).await.expect("the door closes");
    let gone = given_up.try_recv();
    assert_eq!(gone, Err(oneshot::error::TryRecvError::Closed));
}

#[tokio::test]
async fn answers_that_cannot_be_made_are_no_end() {
    let (door, mut red, shared) = narrow().await;
    door.beside.committing.once(async { panic!("on purpose") });
    let mut answers = scatter(&mut red, &shared, &["value"]).await;
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.index, 0);
    let ended = answers.message().await;
    refused(ended, Code::Unknown, "OUTCOME_UNKNOWN");
}

/// Calls of a tenant whose answers are asked for and never read: HTTP/2 gives a byte of each.
struct Unread {
    grpc: Grpc<Channel>,
    bearer: String,
    held: Vec<Streaming<Bytes>>,
}

impl Unread {
    async fn of(door: &Door, access_key: &str) -> Unread {
        let token = door.token(&door.identities.find(access_key).unwrap());
        let narrow = door.endpoint().initial_stream_window_size(1);
        Unread {
            grpc: Grpc::new(narrow.connect().await.unwrap()),
            bearer: format!("Bearer {token}"),
            held: Vec::new(),
        }
    }

    /// Makes a call of one message.
    async fn call(&mut self, path: &'static str, message: Vec<u8>) -> Result<(), Status> {
        self.grpc.ready().await.unwrap();
        let mut request = Request::new(once(async move { Bytes::from(message) }));
        let bearer = self.bearer.parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let path = PathAndQuery::from_static(path);
        let answer = self.grpc.streaming(request, path, Raw).await?;
        self.held.push(answer.into_inner());
        Ok(())
    }

    /// Calls until there is no room; how many answers are on their way then.
    async fn fill(&mut self, path: &'static str, message: &[u8]) -> usize {
        const MANY: usize = 20;
        for _ in 0..MANY {
            if let Err(status) = self.call(path, message.to_vec()).await {
                refused(Err::<(), _>(status), Code::ResourceExhausted, "BUSY");
                return self.held.len();
            }
        }
        panic!("{MANY} unread answers of {path} fit");
    }
}

const RETRIEVE: &str = "/forebay.v1.Objects/Retrieve";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// Asks reflection for all services.
const SERVICES: [u8; 2] = [7 << 3 | 2, 0];

/// A message of these fields, texts or bytes by their numbers.
fn message(fields: &[(u8, &str)]) -> Vec<u8> {
    let encoded = fields.iter().flat_map(|(number, field)| {
        let head = [number << 3 | 2, field.len() as u8];
        [&head, field.as_bytes()].concat()
    });
    encoded.collect()
}

#[tokio::test]
async fn a_call_is_in_flight_until_its_answer_is_sent() {
    let door = Door::choose(bounded(Config {
        calls_of_tenant: 2,
        watches: 8,
        ..Config::default()
    }))
    .await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    stored(&door.store, "data", b"value", &[1; 1 << 20]).await;
    let mut unread = Unread::of(&door, &red.access_key).await;
    for (path, asked, kind) in [
        (RETRIEVE, message(&[(1, "data"), (2, "value")]), "call"),
        (REFLECT, SERVICES.to_vec(), "watch"),
    ] {
        assert_eq!(unread.fill(path, &asked).await, 2, "{path}");
        let line = format!("forebay_rpc_in_flight{{kind=\"{kind}\"}} 2\n");
        let metrics = door.metrics();
        assert!(metrics.contains(&line), "{line}{metrics}");
        // Who lets go of an answer has room again.
        unread.held.clear();
        while unread.call(path, asked.clone()).await.is_err() {}
        unread.held.clear();
    }
}

#[tokio::test]
async fn what_a_call_holds_is_counted() {
    let door = Door::choose(bounded(Config {
        call_bytes: 5 << 20,
        ..Config::default()
    }))
    .await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    stored(&door.store, "data", b"value", &[1; 1 << 20]).await;
    for i in 0..400 {
        let key = format!("{i:01000}");
        stored(&door.store, "data", key.as_bytes(), b"").await;
    }
    // An element without content is two bytes of the message.
    let elements = |count| [message(&[(1, "data")]), [3 << 3 | 2, 0].repeat(count)].concat();
    // Nor does one with an empty attribute have many.
    let element = [3 << 3 | 2, 4, 6 << 3 | 2, 2, 7 << 3 | 2, 0];
    let attributes = [message(&[(1, "data")]), element.repeat(200)].concat();
    let capacity = [7 << 3, 0xff, 0xff, 0xff, 1].to_vec();
    let zeros = [message(&[(2, "zeros"), (6, "1000000")]), capacity].concat();
    for (path, asked) in [
        (RETRIEVE, message(&[(1, "data"), (2, "value")])),
        ("/forebay.v1.Execution/Execute", zeros),
        ("/forebay.v1.Objects/List", message(&[(1, "data")])),
        ("/forebay.v1.Objects/Gather", elements(10_000)),
        ("/forebay.v1.Objects/Scatter", elements(5000)),
        ("/forebay.v1.Objects/Scatter", attributes),
    ] {
        let mut unread = Unread::of(&door, &red.access_key).await;
        assert!(unread.fill(path, &asked).await > 0, "{path}");
        drop(unread);
        // What ended no longer counts.
        let line = "forebay_rpc_in_flight{kind=\"call\"} 0\n";
        while !door.metrics().contains(line) {
            yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_batch_ends_with_its_key() {
    const MANY: usize = 2000;
    let (door, mut red, _shared) = narrow().await;
    let request = v1::ScatterRequest {
        namespace: "data".into(),
        elements: repeat_n(v1::ScatterElement::default(), MANY).collect(),
        ..Default::default()
    };
    let mut answers = red.objects.scatter(request).await.unwrap().into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.failure.unwrap().reason(), v1::Reason::Invalid);
    door.identities.remove_key(&red.access_key).await.unwrap();
    let mut reasons = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        reasons.push(answer.failure.unwrap().reason());
    }
    assert_eq!(reasons.len(), MANY - 1);
    let begun = reasons
        .iter()
        .take_while(|reason| **reason == v1::Reason::Invalid);
    let rest = &reasons[begun.count()..];
    assert!(rest.len() > MANY / 2, "{}", rest.len());
    assert!(
        rest.iter()
            .all(|reason| *reason == v1::Reason::Unauthenticated)
    );
}
