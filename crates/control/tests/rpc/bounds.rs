//! Bounds, and what is no message: each is refused, and the door goes on.

use std::future::Future;
use std::time::Duration;

use forebay_api::v1;
use forebay_control::rpc::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};

use crate::harness::{Choice, Client, Door, refusal, refused};

async fn works(client: &mut Client) {
    client
        .admin
        .get_limits(v1::GetLimitsRequest {})
        .await
        .unwrap();
}

#[tokio::test]
async fn messages_have_a_longest() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let limits = red.admin.get_limits(v1::GetLimitsRequest {}).await;
    let longest = limits.unwrap().into_inner().message_bytes_max as usize;
    let long_name = v1::CreateTenantRequest {
        name: "x".repeat(70_000),
        ..Default::default()
    };
    let answer = red.admin.create_tenant(long_name).await;
    refused(answer, Code::InvalidArgument, "TOO_LARGE");
    let store = |len| store("data", len);
    let answer = red.objects.store(store(longest)).await;
    refused(answer, Code::InvalidArgument, "TOO_LARGE");
    refused(
        red.objects.store(store(longest - 100)).await,
        Code::InvalidArgument,
        "TOO_LARGE",
    );
    // A full batch of the longest keys is no longer than that.
    let keys = (0..10_000u32).map(|i| {
        let mut key = i.to_be_bytes().to_vec();
        key.resize(1024, b'k');
        key.into()
    });
    let request = v1::ExistRequest {
        namespace: "data".into(),
        keys: keys.collect(),
        sizes: false,
    };
    let answer = red.objects.exist(request).await.unwrap().into_inner();
    assert_eq!(answer.found, vec![false; 10_000]);
}

#[tokio::test]
async fn a_refusal_repeats_little_of_what_was_asked() {
    const MOST: usize = 1024;
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut root = door.root().await;
    let long = "\u{1}".repeat(100_000);
    let stat = v1::StatRequest {
        namespace: long.clone(),
        key: "key".into(),
        version: None,
    };
    let execute = v1::ExecuteRequest {
        module: Some(v1::execute_request::Module::Name("echo".into())),
        inputs: vec![v1::ExecuteInput {
            namespace: long,
            key: "key".into(),
            ..v1::ExecuteInput::default()
        }],
        ..v1::ExecuteRequest::default()
    };
    for (code, reason, words) in [
        refusal(red.objects.stat(stat).await),
        refusal(red.execution.execute(execute).await),
    ] {
        assert_eq!((code, &*reason), (Code::NotFound, "NO_SUCH_NAMESPACE"));
        assert!(words.starts_with("there is no namespace"), "{words}");
        assert!(words.len() <= MOST, "{}", words.len());
    }
    for text in ["\u{1}", "x", "\u{fffd}"] {
        let name = text.repeat(60_000 / text.len());
        let get = v1::GetTenantRequest { name: name.clone() };
        let (code, reason, words) = refusal(root.admin.get_tenant(get).await);
        assert_eq!((code, &*reason), (Code::NotFound, "NOT_FOUND"));
        assert!(words.len() <= MOST, "{}", words.len());
        let create = v1::CreateTenantRequest {
            name,
            ..v1::CreateTenantRequest::default()
        };
        let (code, reason, words) = refusal(root.admin.create_tenant(create).await);
        assert_eq!((code, &*reason), (Code::InvalidArgument, "INVALID"));
        assert!(words.len() <= MOST, "{}", words.len());
    }
}

#[tokio::test]
async fn elements_have_a_most() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let gather = v1::GatherRequest {
        namespace: "data".into(),
        elements: vec![v1::GatherElement::default(); 10_001],
        ..Default::default()
    };
    refused(
        red.objects.gather(gather).await,
        Code::InvalidArgument,
        "INVALID",
    );
    let scatter = v1::ScatterRequest {
        namespace: "data".into(),
        elements: vec![v1::ScatterElement::default(); 10_001],
        ..Default::default()
    };
    refused(
        red.objects.scatter(scatter).await,
        Code::InvalidArgument,
        "INVALID",
    );
    let legal = v1::GatherRequest {
        namespace: "data".into(),
        elements: vec![v1::GatherElement::default(); 10_000],
        ..Default::default()
    };
    let mut answers = red.objects.gather(legal).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.index, count);
        assert_eq!(answer.failure.unwrap().reason(), v1::Reason::Invalid);
        count += 1;
    }
    assert_eq!(count, 10_000);
}

#[tokio::test]
async fn calls_in_flight_have_a_most() {
    let door = Door::choose(bounded(Config {
        calls: 3,
        calls_of_tenant: 2,
        watches: 8,
        ..Config::default()
    }))
    .await;
    let mut red = door.slow_tenant("red").await;
    let mut blue = door.slow_tenant("blue").await;
    red.namespace("red-data").await;
    blue.namespace("blue-data").await;
    let first = red.objects.gather(endless("red-data")).await.unwrap();
    let second = red.objects.gather(endless("red-data")).await.unwrap();
    let limits = v1::GetLimitsRequest {};
    let busy = (Code::ResourceExhausted, "BUSY");
    refused(red.admin.get_limits(limits).await, busy.0, busy.1);
    let third = blue.objects.gather(endless("blue-data")).await.unwrap();
    refused(blue.admin.get_limits(limits).await, busy.0, busy.1);
    let metrics = door.metrics();
    for line in [
        "forebay_rpc_in_flight{kind=\"call\"} 3\n",
        "forebay_rpc_calls_total{service=\"admin\",code=\"ResourceExhausted\"} 2\n",
        "forebay_rpc_calls_total{service=\"objects\",code=\"Ok\"} 3\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    drop((first, second, third));
    // The door learns of it when the reset arrives, before any later call of the same connection.
    works(&mut red).await;
    works(&mut blue).await;

    let watch = v1::WatchNamespacesRequest::default();
    let _first = red.watch.namespaces(watch.clone()).await.unwrap();
    let second = red.watch.namespaces(watch.clone()).await.unwrap();
    refused(red.watch.namespaces(watch.clone()).await, busy.0, busy.1);
    works(&mut red).await;
    drop(second);
    red.watch.namespaces(watch).await.unwrap();
}

#[tokio::test]
async fn bytes_in_flight_have_a_most() {
    let door = Door::choose(bounded(Config {
        call_bytes: 600_000,
        ..Config::default()
    }))
    .await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let store = |len| store("data", len);
    // What ended no longer counts.
    for _ in 0..3 {
        red.objects.store(store(200_000)).await.unwrap();
        refused(
            red.objects.store(store(400_000)).await,
            Code::ResourceExhausted,
            "BUSY",
        );
    }
}

#[tokio::test]
async fn there_is_room_for_a_tenant_that_has_nothing_in_flight() {
    let door = Door::choose(bounded(Config {
        calls: 8,
        calls_of_tenant: 4,
        ..Config::default()
    }))
    .await;
    let mut held = Vec::new();
    for (name, most) in [("red", 4), ("blue", 2), ("green", 1)] {
        let mut tenant = door.slow_tenant(name).await;
        tenant.namespace(&format!("{name}-data")).await;
        let endless = endless(&format!("{name}-data"));
        for _ in 0..most {
            held.push(tenant.objects.gather(endless.clone()).await.unwrap());
        }
        let more = tenant.objects.gather(endless).await;
        refused(more.map(drop), Code::ResourceExhausted, "BUSY");
    }
}

#[tokio::test]
async fn there_is_room_for_a_message_beside_another_tenants_unfinished_ones() {
    let door = Door::choose(bounded(Config {
        call_bytes: 600_000,
        ..Config::default()
    }))
    .await;
    let mut red = door.tenant("red").await;
    let mut blue = door.tenant("blue").await;
    red.namespace("red-data").await;
    blue.namespace("blue-data").await;
    // More than a half.
    let whole = red.objects.store(store("red-data", 400_000)).await;
    refused(whole, Code::ResourceExhausted, "BUSY");
    let unfinished = tokio::spawn(never_ends(&door, &red, 200_000).await);
    for _ in 0..10 {
        let beside = blue.objects.store(store("blue-data", 150_000));
        beside.await.unwrap();
    }
    assert!(!unfinished.is_finished());
}

#[tokio::test]
async fn a_message_that_never_ends_is_given_up() {
    let door = Door::choose(hasty(Config::default())).await;
    let red = door.tenant("red").await;
    let late = never_ends(&door, &red, 1000).await.await;
    refused(late, Code::DeadlineExceeded, "STOPPED");
}

pub fn bounded(config: Config) -> Choice {
    Choice {
        config,
        ..Choice::default()
    }
}

/// With little patience.
fn hasty(config: Config) -> Choice {
    bounded(Config {
        patience: Duration::from_millis(100),
        ..config
    })
}

/// Stores so many bytes.
fn store(namespace: &str, len: usize) -> v1::StoreRequest {
    v1::StoreRequest {
        namespace: namespace.into(),
        key: "key".into(),
        source: Some(v1::store_request::Source::Data(vec![0; len].into())),
        ..Default::default()
    }
}

/// An answer longer than the window, which keeps its call in flight while nobody reads it.
fn endless(namespace: &str) -> v1::GatherRequest {
    v1::GatherRequest {
        namespace: namespace.into(),
        elements: vec![v1::GatherElement::default(); 10_000],
        ..Default::default()
    }
}

/// A call whose message has so many bytes and no end.
async fn never_ends(
    door: &Door,
    client: &Client,
    len: usize,
) -> impl Future<Output = Result<(), Status>> + use<> {
    use futures_util::stream::{StreamExt, once, pending};
    use tonic::codegen::http::uri::PathAndQuery;

    let token = door.token(&door.identities.find(&client.access_key).unwrap());
    let mut grpc = tonic::client::Grpc::new(door.channel().await);
    // A field that nobody knows, again and again.
    let message = bytes::Bytes::from([0x78, 1].repeat(len / 2));
    let message = once(async move { message }).chain(pending());
    let mut request = tonic::Request::new(message);
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    async move {
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/forebay.v1.Objects/Store");
        grpc.client_streaming(request, path, Raw).await.map(drop)
    }
}

#[tokio::test]
async fn a_connection_is_not_held_by_somebody_who_is_not_known() {
    let door = Door::choose(hasty(Config {
        connections: 1,
        ..Config::default()
    }))
    .await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    for bytes in [
        Vec::new(),
        preface[..20].to_vec(),
        [&preface[..], &settings].concat(),
    ] {
        let mut silent = TcpStream::connect(door.address).await.unwrap();
        silent.write_all(&bytes).await.unwrap();
        works(&mut door.tenant("red").await).await;
    }
    // Refused calls are no proof.
    let mut stranger = Client::raw(door.channel().await, String::new(), None);
    let limits = v1::GetLimitsRequest {};
    let unknown = stranger.admin.get_limits(limits).await;
    refused(unknown, Code::Unauthenticated, "UNAUTHENTICATED");
    works(&mut door.tenant("red").await).await;
}

#[tokio::test]
async fn a_tenant_leaves_connections_to_others() {
    let door = Door::choose(bounded(Config {
        connections: 4,
        ..Config::default()
    }))
    .await;
    let (mut first, mut second) = (door.tenant("red").await, door.tenant("red").await);
    works(&mut first).await;
    works(&mut second).await;
    let mut third = door.tenant("red").await;
    let limits = v1::GetLimitsRequest {};
    let more = third.admin.get_limits(limits).await;
    refused(more, Code::ResourceExhausted, "BUSY");
    works(&mut door.tenant("blue").await).await;
    works(&mut first).await;
    // One that ends makes room for another one.
    drop(second);
    while third.admin.get_limits(limits).await.is_err() {}
}

#[tokio::test]
async fn what_is_no_http_ends_its_own_connection() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 1000],
        [&preface[..], &[0xff; 100]].concat(),
        // A frame that says it is longer than any.
        [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        // Headers on stream zero.
        [
            &preface[..],
            &[0, 0, 0, 4, 0, 0, 0, 0, 0],
            &[0, 0, 1, 1, 4, 0, 0, 0, 0, 0x88],
        ]
        .concat(),
    ] {
        let mut stream = TcpStream::connect(door.address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        // It ends; what it says is HTTP's affair.
        let _ = stream.read_to_end(&mut answer).await;
        works(&mut red).await;
    }
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    use tonic::client::Grpc;
    use tonic::codegen::http::uri::PathAndQuery;

    let door = Door::open().await;
    let red = door.tenant("red").await;
    let key = door.identities.find(&red.access_key).unwrap();
    let token = forebay_proto::bearer::make(&key.id, &key.secret, door.hands.now() / 1000 + 60);
    // A string sent where bytes of another shape are expected: field 3 as a varint, or a length past the end.
    for message in [
        vec![0x18, 0x01],
        vec![0x0a, 0xff, 0xff, 0x03],
        vec![0x0f; 40],
    ] {
        let mut grpc = Grpc::new(door.channel().await);
        grpc.ready().await.unwrap();
        let mut request = tonic::Request::new(bytes::Bytes::from(message.clone()));
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let path = PathAndQuery::from_static("/forebay.v1.Objects/Store");
        let answer = grpc.unary(request, path, Raw).await;
        refused(answer, Code::InvalidArgument, "INVALID");
    }
    let mut red = red;
    works(&mut red).await;
}

#[tokio::test]
async fn a_call_that_is_not_known_is_refused() {
    use tonic::client::Grpc;
    use tonic::codegen::http::uri::PathAndQuery;

    let door = Door::open().await;
    let red = door.tenant("red").await;
    let token = door.token(&door.identities.find(&red.access_key).unwrap());
    let mut grpc = Grpc::new(door.channel().await);
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(bytes::Bytes::new());
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let path = PathAndQuery::from_static("/forebay.v1.Objects/Juggle");
    let answer = grpc.unary(request, path, Raw).await;
    refused(answer, Code::Unimplemented, "UNSUPPORTED");
}

#[tokio::test]
async fn elements_without_content_are_counted_before_they_take_memory() {
    use tonic::client::Grpc;
    use tonic::codegen::http::uri::PathAndQuery;

    let door = Door::open().await;
    let red = door.tenant("red").await;
    let token = door.token(&door.identities.find(&red.access_key).unwrap());
    // The number of the field that is repeated.
    for (call, field) in [
        ("Execution/Execute", 5),
        ("Objects/Gather", 3),
        ("Objects/Scatter", 3),
        ("Objects/Exist", 2),
    ] {
        for (elements, refusal) in [
            (10_000, "no namespace"),
            (6_000_000, "in at most 262144 steps"),
        ] {
            let refusal = match (call, elements) {
                ("Execution/Execute", 10_000) => "no module is named",
                _ => refusal,
            };
            let mut grpc = Grpc::new(door.channel().await);
            grpc.ready().await.unwrap();
            let message = bytes::Bytes::from([field << 3 | 2, 0].repeat(elements));
            let mut request = tonic::Request::new(message);
            let bearer = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", bearer);
            let path = PathAndQuery::try_from(format!("/forebay.v1.{call}")).unwrap();
            let answer = grpc.unary(request, path, Raw).await;
            let status = answer.unwrap_err();
            assert!(status.message().contains(refusal), "{call}: {status}");
            if elements > 10_000 {
                refused(Err::<(), _>(status), Code::InvalidArgument, "INVALID");
            }
        }
    }
}

/// What is small on the wire and large in memory may be deep in a message, too.
#[tokio::test]
async fn a_message_of_very_many_attributes_is_not_read() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let attributes = |count: u32| v1::Attributes {
        metadata: (0..count)
            .map(|at| (at.to_string(), String::new()))
            .collect(),
        ..v1::Attributes::default()
    };
    // Too many either way, but the first are few enough to be counted.
    for (count, refusal) in [
        (2000, "metadata headers exceed"),
        (60_000, "in at most 262144 steps"),
    ] {
        let request = v1::StoreRequest {
            namespace: "data".into(),
            key: "key".into(),
            attributes: Some(attributes(count)),
            ..v1::StoreRequest::default()
        };
        let status = red.objects.store(request).await.unwrap_err();
        assert!(status.message().contains(refusal), "{count}: {status}");
    }
}

/// Sends bytes as they are.
#[derive(Clone)]
pub struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = bytes::Bytes;
    type Decode = bytes::Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = bytes::Bytes;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: bytes::Bytes,
        into: &mut tonic::codec::EncodeBuf<'_>,
    ) -> Result<(), tonic::Status> {
        bytes::BufMut::put(into, item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = bytes::Bytes;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        from: &mut tonic::codec::DecodeBuf<'_>,
    ) -> Result<Option<bytes::Bytes>, tonic::Status> {
        let len = bytes::Buf::remaining(from);
        Ok(Some(bytes::Buf::copy_to_bytes(from, len)))
    }
}
