//! Ends of links and sessions, in the middle of what they do.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_direct::{Config, Door};
use forebay_fabric::{Access, CloseReason, Fabric, Link, MESSAGE_BYTES_MAX, Session};
use forebay_mem::{Buf, Region, RegionSlice};
use forebay_proto::direct::{
    Body, Condition, Delete, Operation, RequestWriter, Status, Target, Window, parse_reply,
};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, DeleteOptions, Deleted, MemoryBody, MemoryStore, MemoryUpload, Meta,
    Object, Result, Seal, Store, Stored, Upload, VersionId,
};
use futures_util::future::poll_immediate;
use tokio::sync::{Notify, oneshot, watch};

use crate::any::{Any, WAYS, Way};
use crate::support::*;

#[tokio::test(flavor = "local")]
async fn many_requests_at_once_are_all_answered() {
    for (way, limit) in WAYS.into_iter().zip([256, 3, 256, 7]) {
        let server = Server::with(Config {
            requests_per_link: limit,
            ..Config::default()
        })
        .await;
        server.set(NAMESPACE, b"key", &noise(1, 4096)).await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(4096 * 64, Access::Write).await;
        let mut message = Vec::new();
        for round in 0..20u64 {
            let mut waiting: Vec<u64> = Vec::new();
            for slot in 0..60u64 {
                let id = caller
                    .send(Operation::Retrieve, NAMESPACE, |writer| {
                        let window = Target::Window(memory.window(slot * 4096, 4096));
                        writer.retrieve(&whole(b"key", window)).unwrap();
                    })
                    .await;
                waiting.push(id);
            }
            while !waiting.is_empty() {
                caller.link.recv(&mut message).await.unwrap().unwrap();
                let reply = parse_reply(&message).unwrap();
                let at = waiting.iter().position(|id| *id == reply.id).unwrap();
                waiting.swap_remove(at);
            }
            for slot in 0..60 {
                assert_eq!(
                    memory.bytes(slot * 4096, 4096),
                    noise(1, 4096),
                    "round {round}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_session_that_ends_takes_its_link_along() {
    for way in WAYS {
        let server = Server::new().await;
        let caller = server.connect(TENANT, way).await;
        let said = caller.store(NAMESPACE, b"k", Body::Message(b"v")).await;
        assert_eq!(said.status(), Status::Ok);
        match way {
            // What a session does to the server's ends of its links.
            Way::Pipe(_) => caller.far.close(CloseReason::SessionEnded),
            Way::Shm | Way::Iwarp => assert!(server.sessions.close(caller.session.id())),
        }
        assert_eq!(caller.serving.await.unwrap(), CloseReason::SessionEnded);
        caller.link.closed().await;
        assert!(caller.link.send(b"anything").await.is_err());
        assert!(server.door.live().is_empty());
    }
}

/// Where transfers wait until they are let go.
#[derive(Clone, Default)]
struct Gate {
    arrived: Arc<Notify>,
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    async fn pass(&self) {
        self.arrived.notify_one();
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
    }
}

impl Detour<MemoryStore> for Gate {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        self.pass().await;
        store.retrieve(address, version, range).await
    }

    async fn retrieve_into(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, std::ops::Range<u64>)> {
        self.pass().await;
        store.retrieve_into(address, version, range, target).await
    }

    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        self.pass().await;
        upload.write(buf).await
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        self.pass().await;
        store.delete(address, options).await
    }
}

/// Both ends of a link whose requests go to a store around that of `server`.
async fn served<D: Detour<MemoryStore>>(
    server: &Server,
    way: Way,
    detour: &D,
) -> (Any, Arc<Any>, tokio::task::JoinHandle<CloseReason>) {
    let session = server.session(TENANT);
    served_of(server, session, way, detour).await
}

/// The same of this session.
async fn served_of<D: Detour<MemoryStore>>(
    server: &Server,
    session: Arc<Session>,
    way: Way,
    detour: &D,
) -> (Any, Arc<Any>, tokio::task::JoinHandle<CloseReason>) {
    let (near, far, _) = server.join(&session, way).await;
    let far = Arc::new(far);
    let store = Around {
        store: (*server.store).clone(),
        detour: detour.clone(),
    };
    let door = Door::new(Arc::new(store), Config::default());
    let link = far.clone();
    let serving = tokio::task::spawn_local(async move {
        door.serve(&session, &*link, std::future::pending()).await
    });
    (near, far, serving)
}

async fn ask(near: &Any, operation: Operation, elements: impl FnOnce(&mut RequestWriter<'_>)) {
    let mut message = Vec::new();
    let mut writer = RequestWriter::begin(&mut message, operation, 1, NAMESPACE).unwrap();
    elements(&mut writer);
    writer.finish();
    near.send(&message).await.unwrap();
}

/// Asks to store, and loses the link when the store has come to the gate.
async fn lose_a_store(near: &Any, far: &Any, gate: &Gate) {
    ask(near, Operation::Store, |writer| {
        let first = plain(b"key", Body::Message(b"first"));
        writer.store(&first).unwrap();
    })
    .await;
    gate.arrived.notified().await;
    near.close(CloseReason::Lost);
    far.closed().await;
}

/// Whoever loses a link stores once more over another one: the first store, still in progress, must not come after that.
#[tokio::test(flavor = "local")]
async fn a_store_in_progress_ends_with_its_link() {
    for way in WAYS {
        let server = Server::new().await;
        let gate = Gate::default();
        let (near, far, serving) = served(&server, way, &gate).await;
        lose_a_store(&near, &far, &gate).await;
        server.set(NAMESPACE, b"key", b"second").await;
        gate.open.send_replace(true);
        serving.await.unwrap();
        let kept = server.value(NAMESPACE, b"key").await;
        assert_eq!(kept.as_deref(), Some(&b"second"[..]), "{way:?}");
    }
}

/// A store that is being committed cannot be given up: whoever loses its link ends the session, and waits for that.
#[tokio::test(flavor = "local")]
async fn a_session_is_quiet_when_nothing_of_its_links_may_still_happen() {
    /// Keeps what is committed until it is let go.
    #[derive(Clone)]
    struct Committing(Gate);

    impl Detour<MemoryStore> for Committing {
        async fn commit(&self, upload: MemoryUpload, seal: Seal) -> Result<Stored> {
            self.0.pass().await;
            upload.commit(seal).await
        }
    }

    for way in WAYS {
        let server = Server::new().await;
        let gate = Gate::default();
        let session = server.session(TENANT);
        let committing = Committing(gate.clone());
        let (near, far, serving) = served_of(&server, session.clone(), way, &committing).await;
        lose_a_store(&near, &far, &gate).await;
        server.sessions.close(session.id());
        let mut quiet = pin!(session.quiet());
        assert!(poll_immediate(&mut quiet).await.is_none(), "{way:?}");
        gate.open.send_replace(true);
        quiet.await;
        server.set(NAMESPACE, b"key", b"second").await;
        serving.await.unwrap();
        let kept = server.value(NAMESPACE, b"key").await;
        assert_eq!(kept.as_deref(), Some(&b"second"[..]), "{way:?}");
    }
}

/// So it is with each of the elements of a request, though an answer to those before it reaches nobody.
#[tokio::test(flavor = "local")]
async fn a_session_is_quiet_when_no_element_of_a_request_may_still_happen() {
    /// Keeps the first change until it is let go, and the others until they are.
    #[derive(Clone, Default)]
    struct Changing {
        come: Arc<AtomicUsize>,
        first: Gate,
        others: Gate,
    }

    impl Changing {
        async fn pass(&self) {
            match self.come.fetch_add(1, Relaxed) {
                0 => self.first.pass().await,
                _ => self.others.pass().await,
            }
        }
    }

    impl Detour<MemoryStore> for Changing {
        async fn commit(&self, upload: MemoryUpload, seal: Seal) -> Result<Stored> {
            self.pass().await;
            upload.commit(seal).await
        }

        async fn delete(
            &self,
            store: &MemoryStore,
            address: Address<'_>,
            options: DeleteOptions,
        ) -> Result<Deleted> {
            self.pass().await;
            store.delete(address, options).await
        }
    }

    const KEYS: [&[u8]; 3] = [b"first", b"second", b"third"];
    for way in WAYS {
        for operation in [Operation::Store, Operation::Delete] {
            let server = Server::new().await;
            for key in KEYS {
                server.set(NAMESPACE, key, b"before").await;
            }
            let changing = Changing::default();
            let session = server.session(TENANT);
            let (near, far, serving) = served_of(&server, session.clone(), way, &changing).await;
            ask(&near, operation, |writer| {
                for key in KEYS {
                    match operation {
                        Operation::Store => {
                            let store = plain(key, Body::Message(b"asked"));
                            writer.store(&store).unwrap();
                        }
                        _ => {
                            let delete = Delete {
                                key,
                                version: None,
                                condition: Condition::None,
                            };
                            writer.delete(&delete).unwrap();
                        }
                    }
                }
            })
            .await;
            changing.others.arrived.notified().await;
            near.close(CloseReason::Lost);
            far.closed().await;
            server.sessions.close(session.id());
            changing.first.open.send_replace(true);
            // Time enough for the answer to the first one, which the link does not take.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let mut quiet = pin!(session.quiet());
            let early = poll_immediate(&mut quiet).await.is_some();
            assert!(!early, "{operation:?} {way:?}");
            changing.others.open.send_replace(true);
            quiet.await;
            let asked = match operation {
                Operation::Store => Some(&b"asked"[..]),
                _ => None,
            };
            for key in KEYS {
                let kept = server.value(NAMESPACE, key).await;
                assert_eq!(kept.as_deref(), asked, "{operation:?} {way:?}");
            }
            serving.await.unwrap();
        }
    }
}

/// Whoever loses a link deletes once more over another one, and stores: a delete that waited for its turn must not come after that.
#[tokio::test(flavor = "local")]
async fn a_delete_that_has_not_begun_ends_with_its_link() {
    /// As many as are worked on at once.
    const BEFORE: u8 = 16;
    for way in WAYS {
        let server = Server::new().await;
        let gate = Gate::default();
        let (near, far, serving) = served(&server, way, &gate).await;
        ask(&near, Operation::Delete, |writer| {
            for key in 0..=BEFORE {
                let delete = Delete {
                    key: &[key],
                    version: None,
                    condition: Condition::None,
                };
                writer.delete(&delete).unwrap();
            }
        })
        .await;
        gate.arrived.notified().await;
        near.close(CloseReason::Lost);
        far.closed().await;
        for key in [0, BEFORE] {
            server.set(NAMESPACE, &[key], b"later").await;
        }
        gate.open.send_replace(true);
        serving.await.unwrap();
        // The store had the first one already.
        assert_eq!(server.value(NAMESPACE, &[0]).await, None, "{way:?}");
        let kept = server.value(NAMESPACE, &[BEFORE]).await;
        assert_eq!(kept.as_deref(), Some(&b"later"[..]), "{way:?}");
    }
}

/// Says when so many values are being read.
#[derive(Clone)]
struct Reads {
    left: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

impl Detour<MemoryStore> for Reads {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            self.all.notify_one();
        }
        store.retrieve(address, version, range).await
    }
}

/// However little of it the connection has taken by then.
#[tokio::test(flavor = "local")]
async fn what_was_answered_arrives_though_no_more_is_served() {
    const REQUESTS: usize = 20;
    const BYTES: usize = 64 << 10;
    let server = Server::new().await;
    server.set(NAMESPACE, b"key", &[7; BYTES]).await;
    let reads = Reads {
        left: Arc::new(AtomicUsize::new(REQUESTS)),
        all: Arc::default(),
    };
    let session = server.session(TENANT);
    let (near, far, _) = server.join(&session, Way::Iwarp).await;
    let memory = Region::memfd(REQUESTS * BYTES).unwrap();
    let memory = memory.slice(0..memory.len()).unwrap();
    let exposed = near.expose(memory.clone(), Access::Write).await.unwrap();
    let store = Around {
        store: (*server.store).clone(),
        detour: reads.clone(),
    };
    let door = Door::new(Arc::new(store), Config::default());
    let serving =
        tokio::task::spawn_local(
            async move { door.serve(&session, &far, reads.all.notified()).await },
        );
    for number in 0..REQUESTS {
        ask(&near, Operation::Retrieve, |writer| {
            let window = Window {
                stag: exposed.stag.0,
                offset: (number * BYTES) as u64,
                len: BYTES as u64,
            };
            let window = Target::Window(window);
            writer.retrieve(&whole(b"key", window)).unwrap();
        })
        .await;
    }
    assert_eq!(serving.await.unwrap(), CloseReason::Done);
    let mut message = Vec::new();
    let mut answered = 0;
    while let Ok(Some(())) = near.recv(&mut message).await {
        answered += 1;
    }
    assert_eq!(answered, REQUESTS);
    let mut bytes = vec![0; REQUESTS * BYTES];
    assert!(memory.read(0, &mut bytes));
    assert!(bytes.iter().all(|byte| *byte == 7));
}

/// One value is written at a time, and not in one go.
#[derive(Clone, Default)]
struct Turns {
    turn: Arc<tokio::sync::Mutex<()>>,
    begun: Arc<Notify>,
}

impl Detour<MemoryStore> for Turns {
    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.begun.notify_one();
        tokio::task::yield_now().await;
        upload.write(buf).await
    }
}

/// A caller that takes no replies keeps no turn at the store from others.
#[tokio::test(flavor = "local")]
async fn what_has_begun_ends_though_no_reply_is_taken() {
    for way in [Way::Pipe(Fabric::Shm), Way::Shm] {
        let server = Server::new().await;
        let turns = Turns::default();
        let (near, far, _serving) = served(&server, way, &turns).await;
        let fill = [0; MESSAGE_BYTES_MAX];
        while poll_immediate(far.send(&fill)).await.is_some() {}
        ask(&near, Operation::Store, |writer| {
            let refused = forebay_proto::direct::Store {
                condition: Condition::IfPresent,
                ..plain(b"none", Body::Message(b""))
            };
            writer.store(&refused).unwrap();
            let first = plain(b"key", Body::Message(b"first"));
            writer.store(&first).unwrap();
        })
        .await;
        turns.begun.notified().await;
        let (other, _, _) = served(&server, way, &turns).await;
        ask(&other, Operation::Store, |writer| {
            let second = plain(b"key", Body::Message(b"second"));
            writer.store(&second).unwrap();
        })
        .await;
        let mut message = Vec::new();
        let answered = tokio::time::timeout(Duration::from_secs(20), other.recv(&mut message));
        answered.await.unwrap().unwrap().unwrap();
        let mut reply = parse_reply(&message).unwrap();
        assert_eq!(reply.results.next().unwrap().status, Status::Ok, "{way:?}");
        let kept = server.value(NAMESPACE, b"key").await;
        assert_eq!(kept.as_deref(), Some(&b"second"[..]), "{way:?}");
    }
}

/// A door to a store that waits, one request in progress, and the ends of its link.
struct Stuck {
    gate: Gate,
    server: Server,
    session: Arc<Session>,
    near: Any,
    far: Arc<Any>,
    memory: RegionSlice,
    serving: tokio::task::JoinHandle<CloseReason>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Stuck {
    async fn new(way: Way) -> Stuck {
        let server = Server::new().await;
        server.set(NAMESPACE, b"key", &[7; 4096]).await;
        let gate = Gate::default();
        let session = server.session(TENANT);
        let (near, far, _) = server.join(&session, way).await;
        let far = Arc::new(far);
        let memory = forebay_mem::Region::memfd(4096)
            .unwrap()
            .slice(0..4096)
            .unwrap();
        let exposed = near
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let (shutdown, stop) = oneshot::channel();
        let serving = {
            let store = Around {
                store: (*server.store).clone(),
                detour: gate.clone(),
            };
            let door = Door::new(Arc::new(store), Config::default());
            let (session, far) = (session.clone(), far.clone());
            tokio::task::spawn_local(async move {
                door.serve(&session, &*far, async {
                    // A test that lets go of the sender stops nothing.
                    if stop.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                })
                .await
            })
        };
        let mut message = Vec::new();
        let mut writer =
            RequestWriter::begin(&mut message, Operation::Retrieve, 1, NAMESPACE).unwrap();
        let window = forebay_proto::direct::Window {
            stag: exposed.stag.0,
            offset: 0,
            len: 4096,
        };
        writer
            .retrieve(&whole(b"key", Target::Window(window)))
            .unwrap();
        writer.finish();
        near.send(&message).await.unwrap();
        gate.arrived.notified().await;
        Stuck {
            gate,
            server,
            session,
            near,
            far,
            memory,
            serving,
            shutdown: Some(shutdown),
        }
    }

    fn placed(&self) -> bool {
        let mut bytes = [0; 4096];
        assert!(self.memory.read(0, &mut bytes));
        bytes == [7; 4096]
    }
}

/// When a session is killed in the middle of a transfer, nothing lands in the client's memory after its end of the link has ended.
#[tokio::test(flavor = "local")]
async fn a_session_killed_in_the_middle_of_a_transfer() {
    for way in WAYS {
        let stuck = Stuck::new(way).await;
        match way {
            Way::Pipe(_) => stuck.far.close(CloseReason::SessionEnded),
            Way::Shm | Way::Iwarp => assert!(stuck.server.sessions.close(stuck.session.id())),
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(!stuck.serving.is_finished(), "a transfer is in progress");
        // The pipe's end waits for nobody: there it is the door alone that tells when all is over.
        let mut freed = pin!(stuck.near.closed());
        let early = !matches!(way, Way::Pipe(_)) && poll_immediate(&mut freed).await.is_some();
        if early {
            assert!(stuck.memory.write(0, &[1; 4096]));
        }
        stuck.gate.open.send_replace(true);
        assert_eq!(stuck.serving.await.unwrap(), CloseReason::SessionEnded);
        if !early {
            freed.await;
            // From here on the memory may be given to somebody else.
            assert!(stuck.memory.write(0, &[1; 4096]));
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let mut bytes = [0; 4096];
        assert!(stuck.memory.read(0, &mut bytes));
        assert_eq!(bytes, [1; 4096], "{way:?}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_shutdown_answers_what_was_begun() {
    for way in WAYS {
        let mut stuck = Stuck::new(way).await;
        stuck.shutdown.take().unwrap().send(()).unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!stuck.serving.is_finished());
        stuck.gate.open.send_replace(true);
        let mut message = Vec::new();
        stuck.near.recv(&mut message).await.unwrap().unwrap();
        let mut reply = parse_reply(&message).unwrap();
        assert_eq!(reply.results.next().unwrap().status, Status::Ok);
        assert!(stuck.placed());
        assert_eq!(stuck.serving.await.unwrap(), CloseReason::Done);
        assert_eq!(stuck.near.recv(&mut message).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "local")]
async fn a_client_that_is_gone_frees_what_it_had() {
    let server = Server::new().await;
    for round in 0..50 {
        let way = WAYS[round % WAYS.len()];
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(1 << 20, Access::ReadWrite).await;
        for key in 0..8u8 {
            caller
                .send(Operation::Store, NAMESPACE, |writer| {
                    let window = memory.window(0, 1 << 20);
                    writer.store(&plain(&[key], Body::Window(window))).unwrap();
                })
                .await;
        }
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        caller.link.close(CloseReason::Lost);
        caller.serving.await.unwrap();
    }
    assert!(server.door.live().is_empty());
    // Values are whole or absent.
    for key in 0..8u8 {
        if let Some(value) = server.value(NAMESPACE, &[key]).await {
            assert_eq!(value, vec![0; 1 << 20]);
        }
    }
}

#[tokio::test(flavor = "local")]
async fn an_idle_link_ends_at_shutdown_at_once() {
    let stop = Duration::from_secs(10);
    let server = Server::new().await;
    let session = server.session(TENANT);
    let (near, far, _) = server.join(&session, Way::Shm).await;
    let served = server.door.serve(&session, &far, std::future::ready(()));
    assert_eq!(
        tokio::time::timeout(stop, served).await.unwrap(),
        CloseReason::Done
    );
    assert_eq!(near.closed().await, CloseReason::Done);
}
