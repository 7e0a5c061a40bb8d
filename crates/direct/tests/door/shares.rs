//! What one tenant keeps from others while its clients take their time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_direct::{Config, Door};
use forebay_fabric::{Access, CloseReason, Exposure, Fabric, Link};
use forebay_mem::{Buf, Pool, Region};
use forebay_proto::direct::{
    Body, List, ListAfter, Operation, Range, RequestWriter, Retrieve, Status, Target, Window,
    parse_reply,
};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body as _, ByteRange, ListOptions, ListPage, MemoryBody, MemoryStore, MemoryUpload,
    Object, Result, Seal, Store, Stored, Upload, VersionId,
};
use futures_util::future::poll_immediate;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::any::{Any, Way};
use crate::support::*;

const MIB: usize = 1 << 20;

/// Messages that a pipe holds for an end that reads none.
const PIPE_MESSAGES: usize = 64;

/// A network that maps nothing.
const NETWORK: Way = Way::Pipe(Fabric::Iwarp);

/// Counts what is asked of the store, and gives its bytes in buffers of a pool; what is written, and what is committed, waits until it may go on.
#[derive(Clone)]
struct Counted {
    pool: Pool,
    bodies: Arc<AtomicUsize>,
    lists: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    go_on: Arc<watch::Sender<bool>>,
    commits: Arc<AtomicUsize>,
    may_commit: Arc<watch::Sender<bool>>,
}

impl Detour<MemoryStore> for Counted {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        self.bodies.fetch_add(1, Relaxed);
        store.retrieve(address, version, range).await
    }

    async fn next(&self, body: &mut MemoryBody, _: usize) -> Result<Option<Buf>> {
        let Some(bytes) = body.next().await? else {
            return Ok(None);
        };
        let mut buf = self.pool.take(bytes.len()).await;
        buf.set_len(bytes.len());
        buf.copy_from_slice(&bytes);
        Ok(Some(buf.freeze()))
    }

    async fn list(&self, store: &MemoryStore, options: ListOptions<'_>) -> Result<ListPage> {
        self.lists.fetch_add(1, Relaxed);
        store.list(options).await
    }

    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        let mut go_on = self.go_on.subscribe();
        go_on.wait_for(|go_on| *go_on).await.unwrap();
        upload.write(buf).await
    }

    async fn commit(&self, upload: MemoryUpload, seal: Seal) -> Result<Stored> {
        self.commits.fetch_add(1, Relaxed);
        let mut may_commit = self.may_commit.subscribe();
        may_commit.wait_for(|may| *may).await.unwrap();
        upload.commit(seal).await
    }
}

/// A door with buffers of so many bytes, over a store that counts.
struct Counting {
    server: Server,
    door: Arc<Door<Around<MemoryStore, Counted>>>,
    counted: Counted,
}

/// The client's end of a link, and memory for everything.
struct Client {
    near: Any,
    exposure: Exposure,
    serving: JoinHandle<CloseReason>,
    next: u64,
}

impl Counting {
    async fn new(pool_bytes: usize) -> Counting {
        Counting::with(Config {
            pool_bytes,
            ..Config::default()
        })
        .await
    }

    async fn with(config: Config) -> Counting {
        let server = Server::new().await;
        let counted = Counted {
            pool: Pool::new(256 * MIB),
            bodies: Arc::default(),
            lists: Arc::default(),
            writes: Arc::default(),
            go_on: Arc::default(),
            commits: Arc::default(),
            may_commit: Arc::default(),
        };
        let store = Around {
            store: (*server.store).clone(),
            detour: counted.clone(),
        };
        Counting {
            server,
            door: Arc::new(Door::new(Arc::new(store), config)),
            counted,
        }
    }

    async fn client(&self, tenant: &str) -> Client {
        let session = self.server.session(tenant);
        let (near, far, _) = self.server.join(&session, NETWORK).await;
        let memory = Region::memfd(MIB).unwrap().slice(0..MIB).unwrap();
        let exposure = near.expose(memory, Access::ReadWrite).await.unwrap();
        let door = self.door.clone();
        let serving = tokio::task::spawn_local(async move {
            door.serve(&session, &far, std::future::pending()).await
        });
        Client {
            near,
            exposure,
            serving,
            next: 1,
        }
    }
}

impl Client {
    fn window(&self, len: usize) -> Window {
        Window {
            stag: self.exposure.stag.0,
            offset: 0,
            len: len as u64,
        }
    }

    async fn ask(
        &mut self,
        operation: Operation,
        namespace: &str,
        elements: impl FnOnce(&mut RequestWriter<'_>),
    ) {
        let mut message = Vec::new();
        let id = self.next;
        self.next += 1;
        let mut writer = RequestWriter::begin(&mut message, operation, id, namespace).unwrap();
        elements(&mut writer);
        writer.finish();
        self.near.send(&message).await.unwrap();
    }

    async fn ask_for(&mut self, namespace: &str, key: &[u8], len: usize) {
        let window = self.window(len);
        self.ask(Operation::Retrieve, namespace, |writer| {
            writer
                .retrieve(&whole(key, Target::Window(window)))
                .unwrap();
        })
        .await;
    }

    /// Takes replies until so many requests are answered, each of them well.
    async fn take_answers(&self, count: usize) {
        let mut message = Vec::new();
        let mut answered = 0;
        while answered < count {
            self.near.recv(&mut message).await.unwrap().unwrap();
            let reply = parse_reply(&message).unwrap();
            answered += usize::from(reply.last);
            for result in reply.results {
                assert_eq!(result.status, Status::Ok);
            }
        }
    }
}

/// Lets everything happen that may.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "local")]
async fn what_a_client_does_not_take_leaves_buffers_to_others() {
    let counting = Counting::new(8 * MIB).await;
    let bodies = || counting.counted.bodies.load(Relaxed);
    for namespace in [NAMESPACE, FOREIGN] {
        let bytes = noise(1, MIB);
        counting.server.set(namespace, b"key", &bytes).await;
    }
    let mut slow = counting.client(TENANT).await;
    let mut same = counting.client(TENANT).await;
    for _ in 0..10 {
        slow.ask_for(NAMESPACE, b"key", MIB).await;
        same.ask_for(NAMESPACE, b"key", MIB).await;
    }
    settle().await;
    // A half, though all of it was written by then.
    assert_eq!(bodies(), 4);
    let mut other = counting.client(OTHER).await;
    for _ in 0..10 {
        other.ask_for(FOREIGN, b"key", MIB).await;
    }
    settle().await;
    assert_eq!(bodies(), 6);
    other.take_answers(10).await;
    let (one, two) = (slow.take_answers(10), same.take_answers(10));
    tokio::join!(one, two);
    assert_eq!(bodies(), 30);
}

#[tokio::test(flavor = "local")]
async fn sixteen_requests_of_a_mebibyte_wait_for_nothing() {
    let counting = Counting::with(Config::default()).await;
    counting
        .server
        .set(NAMESPACE, b"key", &noise(1, 3 * MIB))
        .await;
    let mut client = counting.client(TENANT).await;
    for _ in 0..16 {
        let window = Target::Window(client.window(MIB));
        client
            .ask(Operation::Retrieve, NAMESPACE, |writer| {
                let element = Retrieve {
                    range: Range::From(2 * MIB as u64),
                    ..whole(b"key", window)
                };
                writer.retrieve(&element).unwrap();
            })
            .await;
    }
    settle().await;
    assert_eq!(counting.counted.bodies.load(Relaxed), 16);
}

#[tokio::test(flavor = "local")]
async fn what_is_being_stored_leaves_buffers_to_others() {
    let counting = Counting::new(8 * MIB).await;
    let writes = || counting.counted.writes.load(Relaxed);
    let mut client = counting.client(TENANT).await;
    let window = client.window(MIB);
    client
        .ask(Operation::Store, NAMESPACE, |writer| {
            for key in 0..10u8 {
                writer.store(&plain(&[key], Body::Window(window))).unwrap();
            }
        })
        .await;
    settle().await;
    assert_eq!(writes(), 4);
    counting.counted.go_on.send_replace(true);
    settle().await;
    assert_eq!((writes(), counting.counted.commits.load(Relaxed)), (4, 4));
    counting.counted.may_commit.send_replace(true);
    client.take_answers(1).await;
    assert_eq!(writes(), 10);
}

/// Asks for so many bytes of each of the first keys, in the reply, behind so many replies that the link takes no more.
async fn ask_for_inline(client: &mut Client, keys: u8, len: usize) {
    for _ in 0..PIPE_MESSAGES {
        client.ask(Operation::Ping, "", |_| {}).await;
    }
    client
        .ask(Operation::Retrieve, NAMESPACE, |writer| {
            for key in 0..keys {
                let key = [key];
                let element = Retrieve {
                    range: Range::Inclusive(0, len as u64 - 1),
                    ..whole(&key, Target::Message)
                };
                writer.retrieve(&element).unwrap();
            }
        })
        .await;
    settle().await;
}

#[tokio::test(flavor = "local")]
async fn what_waits_to_ride_in_a_reply_holds_no_buffers() {
    const KEYS: u8 = 40;
    let counting = Counting::new(64 * MIB).await;
    for key in 0..KEYS {
        counting.server.set(NAMESPACE, &[key], &noise(1, MIB)).await;
    }
    let mut client = counting.client(TENANT).await;
    ask_for_inline(&mut client, KEYS, 8192).await;
    // One is in a reply, and as many as there may be wait behind it.
    assert_eq!(counting.counted.bodies.load(Relaxed), 1 + 16);
    assert_eq!(counting.counted.pool.usage().in_use, 0);
}

#[tokio::test(flavor = "local")]
async fn what_waits_to_ride_in_replies_is_bounded() {
    const REQUESTS: usize = 4;
    let counting = Counting::new(MIB / 4).await;
    let bodies = || counting.counted.bodies.load(Relaxed);
    for key in 0..16 {
        counting
            .server
            .set(NAMESPACE, &[key], &noise(1, 8192))
            .await;
    }
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = counting.client(TENANT).await;
        ask_for_inline(&mut client, 16, 8192).await;
        clients.push(client);
    }
    assert_eq!(bodies(), 18);
    for client in clients {
        client.take_answers(PIPE_MESSAGES + 1).await;
    }
    assert_eq!(bodies(), REQUESTS * 16);
}

#[tokio::test(flavor = "local")]
async fn lists_that_nobody_reads_are_bounded() {
    const KEYS: usize = 1000;
    let counting = Counting::new(3 * MIB).await;
    let lists = || counting.counted.lists.load(Relaxed);
    for number in 0..KEYS {
        let key = format!("{number:01000}");
        counting.server.set(NAMESPACE, key.as_bytes(), b"").await;
    }
    let mut client = counting.client(TENANT).await;
    for _ in 0..20 {
        client
            .ask(Operation::List, NAMESPACE, |writer| {
                let list = List {
                    prefix: b"",
                    delimiter: b"",
                    after: ListAfter::Start,
                    limit: KEYS as u32,
                };
                writer.list(&list).unwrap();
            })
            .await;
    }
    settle().await;
    assert_eq!(lists(), 1);
    client.take_answers(20).await;
    assert_eq!(lists(), 20);
}

/// What waits for its turn has nothing to wait for once its link has ended.
#[tokio::test(flavor = "local")]
async fn a_link_that_ends_does_not_wait_for_another() {
    let counting = Counting::new(2 * MIB).await;
    counting.server.set(NAMESPACE, b"key", &noise(1, MIB)).await;
    let mut slow = counting.client(TENANT).await;
    slow.ask_for(NAMESPACE, b"key", MIB).await;
    settle().await;
    let mut ended = counting.client(TENANT).await;
    ended.ask_for(NAMESPACE, b"key", MIB).await;
    settle().await;
    assert_eq!(counting.counted.bodies.load(Relaxed), 1);
    ended.near.close(CloseReason::Lost);
    assert_eq!(ended.serving.await.unwrap(), CloseReason::Lost);
}

/// Requests wait with their messages, on whichever links of a tenant they came.
#[tokio::test(flavor = "local")]
async fn messages_of_requests_that_wait_are_bounded() {
    const POOL: usize = 8 * MIB;
    const LINKS: usize = 8;
    let counting = Counting::new(POOL).await;
    counting.server.set(NAMESPACE, b"key", &noise(1, MIB)).await;
    let mut slow = counting.client(TENANT).await;
    for _ in 0..10 {
        slow.ask_for(NAMESPACE, b"key", MIB).await;
    }
    settle().await;
    let (mut bytes, mut clients) = (0, Vec::new());
    for _ in 0..LINKS {
        let client = counting.client(TENANT).await;
        // All of its requests wait for what the slow one has.
        let mut message = Vec::new();
        let writer = RequestWriter::begin(&mut message, Operation::Retrieve, 1, NAMESPACE);
        let mut writer = writer.unwrap();
        let target = Target::Window(client.window(MIB));
        while writer.retrieve(&whole(b"key", target)).is_ok() {}
        writer.finish();
        let mut sent = 0;
        while poll_immediate(pin!(client.near.send(&message)))
            .await
            .is_some()
        {
            sent += 1;
            settle().await;
        }
        bytes += (sent - PIPE_MESSAGES) * message.len();
        clients.push(client);
    }
    assert!(bytes <= POOL / 2, "{bytes}");
    // And they are served, one after the other, as soon as that is taken.
    slow.take_answers(10).await;
    let mut other = counting.client(OTHER).await;
    other.ask(Operation::Ping, "", |_| {}).await;
    other.take_answers(1).await;
}
