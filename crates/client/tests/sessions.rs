//! Sessions of the direct path, with a server that answers when the test lets it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::v1;
use forebay_api::v1::sessions_server::SessionsServer;
use forebay_client::direct::{Choice, Client, Listing, Options, Path, Region, Request as Asked};
use forebay_client::{Credentials, Endpoint, Error};
use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::{CloseReason, Connection, Link, SessionId, Sessions, SystemClock, shm};
use forebay_proto::direct::{Hop, ReplyWriter, Status as Told, parse_request};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Code, Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// What happened in the server, in its order.
#[derive(Debug)]
enum Event {
    Opened,
    Linked(Connection),
    /// A session is to be closed, which waits for this.
    Closing(SessionId, oneshot::Sender<()>),
    Closed,
}

/// The server's end of sessions and links.
struct Fake {
    sessions: Arc<Sessions>,
    socket: PathBuf,
    events: mpsc::UnboundedSender<Event>,
}

/// A client of such a server, and what happens in that.
async fn start(name: &str) -> (Client, Arc<Sessions>, mpsc::UnboundedReceiver<Event>) {
    let socket = format!("forebay-{name}-{}.sock", std::process::id());
    let socket = std::env::temp_dir().join(socket);
    // Of a process that had the same number.
    let _ = std::fs::remove_file(&socket);
    let links = UnixListener::bind(&socket).unwrap();
    let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
    let sessions = Arc::new(sessions);
    let (events, happened) = mpsc::unbounded_channel();
    let (accepting, linked) = (sessions.clone(), events.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = links.accept().await {
            let link = shm::accept(stream, &accepting).await.unwrap().link;
            if linked.send(Event::Linked(link)).is_err() {
                break;
            }
        }
    });
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", incoming.local_addr().unwrap());
    let fake = Fake {
        sessions: sessions.clone(),
        socket,
        events,
    };
    let serving = Server::builder().add_service(SessionsServer::new(fake));
    tokio::spawn(serving.serve_with_incoming(incoming));
    let endpoint: Endpoint = endpoint.parse().unwrap();
    let credentials = Credentials {
        access_key: "KEY".to_owned(),
        secret_key: "secret".to_owned(),
    };
    let options = Options {
        path: Choice::Only(Path::Shm),
        ..Options::default()
    };
    let client = Client::connect(&endpoint, &credentials, options).await;
    (client.unwrap(), sessions, happened)
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Fake {
    fn tell(&self, event: Event) {
        // A test that has ended wants to know no more.
        let _ = self.events.send(event);
    }
}

#[tonic::async_trait]
impl v1::sessions_server::Sessions for Fake {
    async fn open(&self, _: Request<v1::OpenSessionRequest>) -> Answer<v1::OpenSessionResponse> {
        let principal = Principal {
            tenant: "tenant",
            id: "KEY",
            secret: "secret",
        };
        let lease = Duration::from_secs(60);
        let session = self.sessions.open_with_random_key(principal, lease);
        let session = session.unwrap();
        self.tell(Event::Opened);
        Ok(Response::new(v1::OpenSessionResponse {
            session: session.id().0.to_vec().into(),
            key: session.key().to_vec().into(),
            lease_ms: 60_000,
            paths: vec![v1::Path {
                fabric: "shm".to_owned(),
                address: self.socket.to_str().unwrap().to_owned(),
                tls: false,
            }],
        }))
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Answer<v1::CloseSessionResponse> {
        let id = SessionId(request.get_ref().session.as_ref().try_into().unwrap());
        let (permit, permitted) = oneshot::channel();
        self.tell(Event::Closing(id, permit));
        let _ = permitted.await;
        let there = self.sessions.close(id);
        self.tell(Event::Closed);
        match there {
            true => Ok(Response::new(v1::CloseSessionResponse::default())),
            false => Err(gone()),
        }
    }

    async fn keep_alive(&self, _: Request<v1::KeepAliveRequest>) -> Answer<v1::KeepAliveResponse> {
        Ok(Response::new(v1::KeepAliveResponse::default()))
    }

    async fn register_region(
        &self,
        _: Request<v1::RegisterRegionRequest>,
    ) -> Answer<v1::RegisterRegionResponse> {
        Err(gone())
    }

    async fn deregister_region(
        &self,
        _: Request<v1::DeregisterRegionRequest>,
    ) -> Answer<v1::DeregisterRegionResponse> {
        Err(gone())
    }

    async fn grant(&self, _: Request<v1::GrantRequest>) -> Answer<v1::GrantResponse> {
        Err(gone())
    }

    async fn renew(&self, _: Request<v1::RenewRequest>) -> Answer<v1::RenewResponse> {
        Err(gone())
    }

    async fn revoke(&self, _: Request<v1::RevokeRequest>) -> Answer<v1::RevokeResponse> {
        Err(gone())
    }
}

/// As a server says that it has no such session.
fn gone() -> Status {
    let mut status = Status::new(Code::NotFound, "no such session");
    let reason = "REASON_NO_SUCH_SESSION".parse().unwrap();
    let metadata = status.metadata_mut();
    metadata.insert(forebay_api::REASON_METADATA, reason);
    status
}

async fn next(events: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    let event = tokio::time::timeout(Duration::from_secs(20), events.recv()).await;
    event.expect("something happens").expect("a server")
}

macro_rules! expect {
    ($events:ident, $pattern:pat) => {
        let event = next(&mut $events).await;
        let $pattern = event else {
            panic!("{event:?}");
        };
    };
}

/// Answers a request of the client: it is about nothing that is there.
async fn answer(link: &Connection, asked: &[u8]) {
    let request = parse_request(asked).unwrap();
    let operation = request.call.operation();
    let mut writer = ReplyWriter::begin(Vec::new(), operation, request.id, 0);
    writer.failed(Told::NotFound, Hop::None, "nothing").unwrap();
    link.send(writer.finish(true, false)).await.unwrap();
}

#[tokio::test]
async fn a_broken_session_is_closed_before_anything_is_tried_again() {
    let (client, _sessions, mut events) = start("mended").await;
    expect!(events, Event::Opened);
    expect!(events, Event::Linked(broken));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.stat("ns", "key").await }
    });
    broken.recv(&mut Vec::new()).await.unwrap();
    broken.close(CloseReason::Lost);
    expect!(events, Event::Closing(_, permit));
    permit.send(()).unwrap();
    expect!(events, Event::Closed);
    expect!(events, Event::Opened);
    expect!(events, Event::Linked(link));
    let mut asked = Vec::new();
    link.recv(&mut asked).await.unwrap();
    answer(&link, &asked).await;
    let told = asking.await.unwrap();
    assert!(
        matches!(&told, Err(Error::Refused(refusal)) if refusal.status == 404),
        "{told:?}"
    );
    // What is closed is not closed again.
    drop(client);
    expect!(events, Event::Closing(_, permit));
    permit.send(()).unwrap();
    expect!(events, Event::Closed);
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_mended() {
    let (client, sessions, mut events) = start("forgotten").await;
    expect!(events, Event::Opened);
    expect!(events, Event::Linked(broken));
    broken.close(CloseReason::Lost);
    let asking = tokio::spawn(async move { client.stat("ns", "key").await });
    expect!(events, Event::Closing(id, permit));
    // Its lease was over.
    assert!(sessions.close(id));
    permit.send(()).unwrap();
    expect!(events, Event::Closed);
    expect!(events, Event::Opened);
    expect!(events, Event::Linked(link));
    let mut asked = Vec::new();
    link.recv(&mut asked).await.unwrap();
    answer(&link, &asked).await;
    assert!(matches!(asking.await.unwrap(), Err(Error::Refused(_))));
}

#[tokio::test]
async fn a_token_is_not_shown() {
    let (client, _sessions, _events) = start("shown").await;
    let region = Region::alloc(4096).unwrap();
    let request = Asked {
        method: "GET",
        path: "/bucket/key",
        query: "",
        range: "",
    };
    let token = client.token(&request, &region).await.unwrap();
    let shown = format!("{token:?}");
    assert!(!shown.contains(&token.value), "{shown}");
    assert!(shown.contains(&token.sequence.to_string()), "{shown}");
    token.answered();
}

#[tokio::test]
async fn what_is_under_way_goes_on_when_another_door_fails() {
    let (client, _sessions, mut events) = start("doors").await;
    expect!(events, Event::Opened);
    expect!(events, Event::Linked(link));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.stat("ns", "key").await }
    });
    let mut asked = Vec::new();
    link.recv(&mut asked).await.unwrap();
    // This server has no such service.
    let listed = client.list("ns", &Listing::default()).await;
    assert!(matches!(listed, Err(Error::Transport { .. })), "{listed:?}");
    answer(&link, &asked).await;
    assert!(matches!(asking.await.unwrap(), Err(Error::Refused(_))));
}
