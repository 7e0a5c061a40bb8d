//! Payload of calls on its way by links whose clients take their time.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebay_api::v1::place::Memory;
use forebay_api::v1::{self, Access as Wire};
use forebay_control::rpc::Config;
use forebay_fabric::sessions::proof;
use forebay_fabric::{Accepted, Access, Connection, Exposure, Fabric, Link, SessionId, iwarp};
use forebay_mem::{Pool, Region};
use forebay_store::waiting::Shares;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::harness::{Choice, Client, Door};
use crate::memory::{Shared, noise, place, retrieve, store};
use crate::objects::stored;

const MIB: usize = 1 << 20;
/// Of which one tenant's share is a half.
const BUFFERS: usize = 8 * MIB;
/// In a mebibyte of buffers, which the store in memory does not keep for so little.
const GIVEN: usize = 600 << 10;
/// More than a socket holds beside that, of a mebibyte each.
const CALLS: usize = 80;
const SOON: Duration = Duration::from_secs(20);

/// Memory of a client that neither takes nor answers anything any more.
struct Stuck {
    session: Vec<u8>,
    region: u64,
    _accepted: Accepted,
    /// Its thread ends when this goes.
    _stays: mpsc::Sender<()>,
}

impl Stuck {
    async fn open(door: &Door, client: &mut Client) -> Stuck {
        let request = v1::OpenSessionRequest { lease_ms: 600_000 };
        let opened = client.sessions.open(request).await.unwrap().into_inner();
        let id = SessionId(opened.session.as_ref().try_into().unwrap());
        let shown = proof(id, opened.key.as_ref().try_into().unwrap());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = oneshot::channel();
        let (stays, left) = mpsc::channel::<()>();
        thread::spawn(move || {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            let _link = runtime.block_on(async {
                let stream = TcpStream::connect(address).await.unwrap();
                let options = iwarp::Options::default();
                let link = iwarp::connect(stream, &shown, options).await.unwrap();
                let memory = Region::memfd(MIB).unwrap().slice(0..MIB).unwrap();
                let exposure = link.expose(memory, Access::ReadWrite).await.unwrap();
                link.recv(&mut Vec::new()).await.unwrap().unwrap();
                tell.send(exposure).unwrap();
                link
            });
            // Nobody runs what it began.
            let _ = left.recv();
        });
        let (stream, _) = listener.accept().await.unwrap();
        let admit = |data: &[u8]| door.sessions.admit(data.try_into().ok()?);
        let accepted = iwarp::accept(stream, iwarp::Options::default(), admit).await;
        let (link, session) = accepted.unwrap();
        let link = Connection::Iwarp(Arc::new(link));
        let accepted = Accepted {
            id: session.attach(link.clone()).unwrap(),
            session,
            link,
        };
        accepted.link.send(b"last words").await.unwrap();
        let Exposure { stag, base, len } = told.await.unwrap();
        let request = v1::RegisterRegionRequest {
            session: opened.session.clone(),
            stag: stag.0,
            base,
            length: len,
            access: Wire::ReadWrite.into(),
            ..Default::default()
        };
        let registered = client.sessions.register_region(request).await.unwrap();
        Stuck {
            session: opened.session.to_vec(),
            region: registered.into_inner().region,
            _accepted: accepted,
            _stays: stays,
        }
    }

    fn place(&self, len: usize) -> Option<v1::Place> {
        place(Memory::Region(self.region), 0, len as u64)
    }
}

/// A door that lets links carry what fits in so many bytes of buffers.
async fn door() -> Door {
    let choice = Choice::default();
    let config = Config {
        carried: Shares::new(BUFFERS),
        ..choice.config
    };
    Door::choose(Choice { config, ..choice }).await
}

/// Until a tenant has all that it may have, or more.
async fn filled(pool: &Pool) {
    while pool.usage().in_use < BUFFERS / 2 {
        yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_does_not_take_leaves_buffers_to_others() {
    let door = door().await;
    let pool = Pool::new(BUFFERS);
    door.beside.buffers.set(pool.clone()).unwrap();
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    red.namespace("data").await;
    blue.namespace("other").await;
    for namespace in ["data", "other"] {
        stored(&door.store, namespace, b"value", &noise(MIB)).await;
    }
    let stuck = Stuck::open(&door, &mut red).await;
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let request = retrieve(&stuck.session, "value", stuck.place(MIB));
        let mut objects = red.objects.clone();
        calls.spawn(async move { objects.retrieve(request).await.map(drop) });
    }
    filled(&pool).await;
    for _ in 0..20 {
        let request = v1::RetrieveRequest {
            namespace: "other".into(),
            ..retrieve(&[], "value", None)
        };
        let answer = timeout(SOON, blue.objects.retrieve(request)).await;
        let answer = answer.expect("others go on").unwrap();
        assert_eq!(answer.into_inner().length, MIB as u64);
    }
    assert!(pool.usage().in_use <= BUFFERS / 2);
    // What waits has nothing to wait for once its session has ended.
    let request = v1::CloseSessionRequest {
        session: stuck.session.clone().into(),
    };
    red.sessions.close(request).await.unwrap();
    while let Some(ended) = timeout(SOON, calls.join_next()).await.expect("it ends") {
        let _ = ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_does_not_give_leaves_buffers_to_others() {
    let door = door().await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    red.namespace("data").await;
    blue.namespace("other").await;
    let stuck = Stuck::open(&door, &mut red).await;
    let given = Shared::open(&door, &mut blue, Fabric::Iwarp, MIB).await;
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let key = format!("value-{number}");
        let request = store(&stuck.session, &key, stuck.place(GIVEN).unwrap());
        let mut objects = red.objects.clone();
        calls.spawn(async move { objects.store(request).await.map(drop) });
    }
    filled(&door.pool).await;
    for _ in 0..20 {
        let request = v1::StoreRequest {
            namespace: "other".into(),
            ..store(
                &given.session,
                "value",
                given.place(0, GIVEN as u64).unwrap(),
            )
        };
        let answer = timeout(SOON, blue.objects.store(request)).await;
        answer.expect("others go on").unwrap();
    }
}
