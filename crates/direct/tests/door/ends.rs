//! Ends of links and sessions, in the middle of what they do.

use std::sync::Arc;
use std::time::Duration;

use forebay_direct::{Config, Door};
use forebay_fabric::{Access, CloseReason, Fabric, Link};
use forebay_mem::RegionSlice;
use forebay_proto::direct::{Body, Operation, Status, Target, parse_reply};
use forebay_store::{
    Address, ByteRange, DeleteOptions, Deleted, ListOptions, ListPage, MemoryStore, Meta,
    NamespaceConfig, NamespaceInfo, Object, Quota, Result, Scope, Seal, Store, StoreOptions,
    Stored, Usage, VersionId, VersionPage,
};
use tokio::sync::{Notify, oneshot, watch};

use crate::pipe::Pipe;
use crate::support::*;

#[tokio::test(flavor = "local")]
async fn many_requests_at_once_are_all_answered() {
    for (fabric, limit) in [(Fabric::Shm, 256), (Fabric::Iwarp, 3)] {
        let server = Server::with(Config {
            requests_per_link: limit,
        })
        .await;
        server.set(NAMESPACE, b"key", &noise(1, 4096)).await;
        let caller = Arc::new(server.connect(TENANT, fabric));
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
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let server = Server::new().await;
        let caller = server.connect(TENANT, fabric);
        let said = caller.store(NAMESPACE, b"k", Body::Message(b"v")).await;
        assert_eq!(said.status(), Status::Ok);
        // What the session does to the server's ends of its links.
        caller.far.close(CloseReason::SessionEnded);
        assert_eq!(caller.serving.await.unwrap(), CloseReason::SessionEnded);
        assert!(caller.link.send(b"anything").await.is_err());
        assert!(server.door.live().is_empty());
    }
}

/// A store whose transfers into a client's memory wait until they are let go.
struct Gate {
    inner: MemoryStore,
    arrived: Notify,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn pass(&self) {
        self.arrived.notify_one();
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
    }
}

impl Store for Gate {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    fn caps(&self) -> forebay_store::Caps {
        self.inner.caps()
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<Self::Body>> {
        self.pass().await;
        self.inner.retrieve(address, version, range).await
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, std::ops::Range<u64>)> {
        self.pass().await;
        self.inner
            .retrieve_into(address, version, range, target)
            .await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        self.inner.exist(addresses).await
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        self.inner.stat(address, version).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<Self::Upload> {
        self.pass().await;
        self.inner.store(address, options).await
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[&[u8]],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        self.inner
            .compose(target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: forebay_store::Attributes,
    ) -> Result<Meta> {
        self.inner.amend(address, version, seen, attributes).await
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        self.inner.delete(address, options).await
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.inner.list(options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        self.inner.list_versions(options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.inner.create_namespace(name, config).await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.inner.delete_namespace(name).await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.inner.update_namespace(name, revision, config).await
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        self.inner.namespace(name)
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        self.inner.namespaces()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        self.inner.usage(scope)
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.inner.set_tenant_quota(tenant, quota).await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.inner.tenant_quota(tenant)
    }
}

/// A door to a store that waits, one request in progress, and the ends of its link.
struct Stuck {
    gate: Arc<Gate>,
    near: Pipe,
    far: Arc<Pipe>,
    memory: RegionSlice,
    serving: tokio::task::JoinHandle<CloseReason>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Stuck {
    async fn new(fabric: Fabric) -> Stuck {
        let server = Server::new().await;
        server.set(NAMESPACE, b"key", &[7; 4096]).await;
        let gate = Arc::new(Gate {
            inner: (*server.store).clone(),
            arrived: Notify::new(),
            open: watch::Sender::new(false),
        });
        let (near, far) = Pipe::pair(fabric);
        let far = Arc::new(far);
        let memory = forebay_mem::Region::anonymous(4096)
            .unwrap()
            .slice(0..4096)
            .unwrap();
        let exposed = near
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let (shutdown, stop) = oneshot::channel();
        let serving = {
            let door = Door::new(gate.clone(), Config::default());
            let (session, far) = (server.session(TENANT), far.clone());
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
        let mut writer = forebay_proto::direct::RequestWriter::begin(
            &mut message,
            Operation::Retrieve,
            1,
            NAMESPACE,
        )
        .unwrap();
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

/// When a session is killed in the middle of a transfer, the door is not done with the link before the transfer is: nothing
/// lands in the memory afterwards.
#[tokio::test(flavor = "local")]
async fn a_session_killed_in_the_middle_of_a_transfer() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let stuck = Stuck::new(fabric).await;
        stuck.far.close(CloseReason::SessionEnded);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!stuck.serving.is_finished(), "a transfer is in progress");
        stuck.gate.open.send_replace(true);
        let reason = stuck.serving.await.unwrap();
        assert_eq!(reason, CloseReason::SessionEnded);
        // From here on the memory may be given to somebody else.
        assert!(stuck.memory.write(0, &[1; 4096]));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut bytes = [0; 4096];
        assert!(stuck.memory.read(0, &mut bytes));
        assert_eq!(bytes, [1; 4096]);
    }
}

#[tokio::test(flavor = "local")]
async fn a_shutdown_answers_what_was_begun() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let mut stuck = Stuck::new(fabric).await;
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
        let fabric = [Fabric::Shm, Fabric::Iwarp][round % 2];
        let caller = server.connect(TENANT, fabric);
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
    let (near, far) = Pipe::pair(Fabric::Shm);
    let session = server.session(TENANT);
    let served = server.door.serve(&session, &far, std::future::ready(()));
    assert_eq!(
        tokio::time::timeout(stop, served).await.unwrap(),
        CloseReason::Done
    );
    assert_eq!(near.closed().await, CloseReason::Done);
}
