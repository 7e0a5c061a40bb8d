//! A door with its store, its clients, and a clock that tests move.

use std::fmt::Debug;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use forebay_api::REASON_METADATA;
use forebay_api::v1::admin_client::AdminClient;
use forebay_api::v1::execution_client::ExecutionClient;
use forebay_api::v1::objects_client::ObjectsClient;
use forebay_api::v1::sessions_client::SessionsClient;
use forebay_api::v1::watch_client::WatchClient;
use forebay_api::v1::{CreateNamespaceRequest, Path};
use forebay_control::api::{LifecycleReport, ScrubReport, Server};
use forebay_control::rpc::{Config, Service, serve};
use forebay_control::{AccessKey, Admin, Identities, Node, Result};
use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::{Clock, Sessions};
use forebay_mem::{Buf, Pool, RegionSlice};
use forebay_proto::bearer;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body as _, ByteRange, DeleteOptions, Deleted, ErrorKind, Execute, Executed,
    ListOptions, ListPage, MemoryStore, Meta, NamespaceConfig, NamespaceInfo, Scope, Seal,
    Store as _, StoreError, Stored, Upload as _, Usage, VersionId,
};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::execute;

/// What the clocks show at first, in milliseconds since 1970.
pub const START: u64 = 1_790_000_000_000;

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct Hands {
    now: AtomicU64,
    /// After how many looks at the monotonic time it moves, and by how much.
    later: Mutex<Option<(usize, Duration)>>,
}

impl Hands {
    fn new() -> Hands {
        Hands {
            now: AtomicU64::new(START),
            later: Mutex::default(),
        }
    }

    pub fn forward(&self, by: Duration) {
        self.now.fetch_add(by.as_millis() as u64, Relaxed);
    }

    /// Moves when leases have been looked at so many times.
    pub fn forward_after(&self, looks: usize, by: Duration) {
        *self.later.lock() = Some((looks, by));
    }

    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }
}

impl Clock for Hands {
    fn unix_millis(&self) -> u64 {
        self.now()
    }

    fn monotonic(&self) -> Duration {
        let mut later = self.later.lock();
        *later = match later.take() {
            Some((0, by)) => {
                self.forward(by);
                None
            }
            Some((looks, by)) => Some((looks - 1, by)),
            None => None,
        };
        drop(later);
        Duration::from_millis(self.now() - START)
    }
}

struct Quiet {
    checks: Checks,
}

/// What checking the next module waits for.
pub type Checks = Arc<Mutex<Option<mpsc::Receiver<()>>>>;

impl Node for Quiet {
    fn check_module(&self, wasm: &[u8]) -> std::result::Result<(), String> {
        let waits = self.checks.lock().take();
        if let Some(go_on) = waits {
            let told = go_on.recv_timeout(Duration::from_secs(60));
            told.map_err(|error| error.to_string())?;
        }
        match wasm.starts_with(b"\0asm") {
            true => Ok(()),
            false => Err("that is no module".to_owned()),
        }
    }

    fn server(&self) -> Server {
        Server {
            version: "1.2.3".into(),
            pid: 7,
            uptime_s: 11,
            doors: [("rpc".to_owned(), "127.0.0.1:1".to_owned())].into(),
            backend: "memory".into(),
            disk_io: "none".into(),
            shards: 2,
        }
    }

    fn scrub(&self) -> Pin<Box<dyn Future<Output = Result<ScrubReport>> + Send + '_>> {
        let report = ScrubReport {
            objects: 3,
            bytes: 5,
            ..ScrubReport::default()
        };
        Box::pin(async { Ok(report) })
    }

    fn lifecycle_run(&self) -> Pin<Box<dyn Future<Output = Result<LifecycleReport>> + Send + '_>> {
        let report = LifecycleReport {
            expired: 4,
            ..LifecycleReport::default()
        };
        Box::pin(async move { Ok(report) })
    }
}

/// What a test chooses.
pub struct Choice {
    pub config: Config,
    pub limits: Limits,
    pub tls: Option<Arc<ServerConfig>>,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            config: Config {
                paths: vec![Path {
                    fabric: "shm".into(),
                    address: "/run/forebay.sock".into(),
                    ..Path::default()
                }],
                ..Config::default()
            },
            limits: Limits::default(),
            tls: None,
        }
    }
}

type Later = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Does once what a test says, after so many others passed.
#[derive(Clone, Default)]
pub struct Once(Arc<Mutex<Option<(usize, Later)>>>);

impl Once {
    pub fn once(&self, what: impl Future<Output = ()> + Send + 'static) {
        self.after(0, what);
    }

    /// The same, beside the one that comes after so many others.
    pub fn after(&self, others: usize, what: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock() = Some((others, Box::pin(what)));
    }

    async fn pass(&self) {
        if let Some(what) = self.turn() {
            what.await;
        }
    }

    fn turn(&self) -> Option<Later> {
        let mut waiting = self.0.lock();
        if let Some((others @ 1.., _)) = &mut *waiting {
            *others -= 1;
            return None;
        }
        waiting.take().map(|(_, what)| what)
    }
}

/// What happens beside calls of the store.
#[derive(Clone, Default)]
pub struct Beside {
    /// After keys were looked up.
    pub looked_up: Once,
    /// Before a value is committed.
    pub committing: Once,
    /// After a value was committed.
    pub committed: Once,
    /// After keys were listed.
    pub listed: Once,
    /// Before a namespace is changed.
    pub changing: Once,
    /// After it was.
    pub changed: Once,
    /// Before bytes are read.
    pub reading: Once,
    /// After a client's memory was filled.
    pub filled: Once,
    /// Before a value is deleted.
    pub deleting: Once,
    /// After a function has run.
    pub executed: Once,
    /// Before a namespace is made.
    pub creating: Once,
    /// Outputs of functions that are not let go yet have clones.
    pub outputs: Arc<()>,
    /// How often usage was asked for.
    pub usages: Arc<AtomicU64>,
    /// Where what bodies give is copied to, if there are any.
    pub buffers: Arc<OnceLock<Pool>>,
    /// What making a namespace fails with.
    pub making: Arc<Mutex<Option<ErrorKind>>>,
    /// What deleting the next value fails with.
    pub unmaking: Arc<Mutex<Option<ErrorKind>>>,
}

impl Detour<MemoryStore> for Beside {
    async fn exist(
        &self,
        store: &MemoryStore,
        addresses: &[Address<'_>],
    ) -> forebay_store::Result<Vec<Option<Meta>>> {
        let found = store.exist(addresses).await;
        self.looked_up.pass().await;
        found
    }

    async fn execute(
        &self,
        store: &MemoryStore,
        call: Execute<'_>,
    ) -> forebay_store::Result<Executed> {
        let executed = execute::run(store, call, &self.outputs).await;
        self.executed.pass().await;
        executed
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> forebay_store::Result<Deleted> {
        self.deleting.pass().await;
        let failure = self.unmaking.lock().take();
        match failure {
            Some(kind) => Err(StoreError::new(kind, "so it is told")),
            None => store.delete(address, options).await,
        }
    }

    async fn list(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> forebay_store::Result<ListPage> {
        let page = store.list(options).await;
        self.listed.pass().await;
        page
    }

    async fn create_namespace(
        &self,
        store: &MemoryStore,
        name: &str,
        config: NamespaceConfig,
    ) -> forebay_store::Result<Arc<NamespaceInfo>> {
        self.creating.pass().await;
        let failure = *self.making.lock();
        match failure {
            Some(kind) => Err(StoreError::new(kind, "so it is told")),
            None => store.create_namespace(name, config).await,
        }
    }

    async fn update_namespace(
        &self,
        store: &MemoryStore,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> forebay_store::Result<Arc<NamespaceInfo>> {
        self.changing.pass().await;
        let changed = store.update_namespace(name, revision, config).await;
        self.changed.pass().await;
        changed
    }

    fn usage(&self, store: &MemoryStore, scope: Scope<'_>) -> forebay_store::Result<Usage> {
        self.usages.fetch_add(1, Relaxed);
        store.usage(scope)
    }

    async fn retrieve_into(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> forebay_store::Result<(Meta, Range<u64>)> {
        self.reading.pass().await;
        let filled = store.retrieve_into(address, version, range, target).await;
        self.filled.pass().await;
        filled
    }

    async fn next(
        &self,
        body: &mut <MemoryStore as forebay_store::Store>::Body,
        _: usize,
    ) -> forebay_store::Result<Option<Buf>> {
        self.reading.pass().await;
        let bytes = body.next().await?;
        let (Some(bytes), Some(pool)) = (&bytes, self.buffers.get()) else {
            return Ok(bytes);
        };
        let mut buf = pool.take(bytes.len()).await;
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        Ok(Some(buf.freeze()))
    }

    async fn commit(&self, upload: Writing, seal: Seal) -> forebay_store::Result<Stored> {
        self.committing.pass().await;
        let stored = upload.commit(seal).await;
        self.committed.pass().await;
        stored
    }
}

type Writing = <MemoryStore as forebay_store::Store>::Upload;

/// A door that is open until it is dropped.
pub struct Door {
    pub address: SocketAddr,
    pub store: Arc<MemoryStore>,
    /// Its buffers.
    pub pool: Pool,
    pub identities: Arc<Identities<Around<MemoryStore, Beside>>>,
    pub beside: Beside,
    pub checks: Checks,
    pub sessions: Arc<Sessions>,
    pub hands: Arc<Hands>,
    registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Door {
    pub async fn open() -> Door {
        Door::choose(Choice::default()).await
    }

    pub async fn choose(choice: Choice) -> Door {
        let hands = Arc::new(Hands::new());
        let clock = hands.clone();
        let pool = Pool::new(64 << 20);
        let store = MemoryStore::new(pool.clone(), move || clock.now());
        let store = Arc::new(store);
        let beside = Beside::default();
        let checks = Checks::default();
        let around = Arc::new(Around {
            store: MemoryStore::clone(&store),
            detour: beside.clone(),
        });
        let clock = hands.clone();
        let clock: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(move || clock.now());
        let identities = Identities::open(around.clone(), clock).await.unwrap();
        let identities = Arc::new(identities);
        let sessions = Arc::new(Sessions::new(hands.clone(), choice.limits));
        let admin = Arc::new(Admin::new(
            around.clone(),
            identities.clone(),
            Arc::new(Quiet {
                checks: checks.clone(),
            }),
            sessions.clone(),
        ));
        let service = Service::new(
            around,
            identities.clone(),
            admin,
            sessions.clone(),
            choice.config,
        );
        let mut registry = Registry::default();
        service.register(&mut registry);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            serve(listener, choice.tls, service, shutdown)
                .await
                .unwrap();
        });
        Door {
            address,
            store,
            pool,
            identities,
            beside,
            checks,
            sessions,
            hands,
            registry,
            stop: Some(stop),
            serving,
        }
    }

    /// Ends the door and waits until it has ended.
    pub async fn close(mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        self.serving.await.unwrap();
    }

    /// What a node would tell on `/metrics`.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    pub async fn channel(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    pub fn endpoint(&self) -> Endpoint {
        Channel::from_shared(format!("http://{}", self.address)).unwrap()
    }

    /// A client with a new key of the root tenant.
    pub async fn root(&self) -> Client {
        let key = self.identities.ensure_root(None).await.unwrap();
        self.client(&key).await
    }

    /// A client with a new key of a tenant, which is made if there is none.
    pub async fn tenant(&self, name: &str) -> Client {
        if self.identities.tenant(name).is_err() {
            self.identities.create_tenant(name, "").await.unwrap();
        }
        let key = self.identities.create_key(name, None).await.unwrap();
        self.client(&key).await
    }

    /// A client of a tenant that takes a few answers at a time: what is streamed to it waits for it.
    pub async fn slow_tenant(&self, name: &str) -> Client {
        self.narrow_tenant(name, 16 << 10).await
    }

    /// A client of a tenant that takes so many bytes of an answer at a time.
    pub async fn narrow_tenant(&self, name: &str, window: u32) -> Client {
        let key = self.tenant(name).await.access_key;
        let key = self.identities.find(&key).unwrap();
        let narrow = self.endpoint().initial_stream_window_size(window);
        self.client_over(narrow.connect().await.unwrap(), &key)
    }

    pub async fn client(&self, key: &AccessKey) -> Client {
        self.client_over(self.channel().await, key)
    }

    fn client_over(&self, channel: Channel, key: &AccessKey) -> Client {
        Client::new(channel, key.id.clone(), Some(&self.token(key)))
    }

    /// A bearer token.
    pub fn token(&self, key: &AccessKey) -> String {
        let expires_s = self.hands.now() / 1000 + 3600;
        bearer::make(&key.id, &key.secret, expires_s)
    }
}

/// Adds the token.
#[derive(Debug, Clone)]
pub struct Signed(Option<String>);

impl Interceptor for Signed {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            let value = value.parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

type Carried = InterceptedService<Channel, Signed>;

/// The services for one identity.
#[derive(Debug, Clone)]
pub struct Client {
    pub access_key: String,
    pub admin: AdminClient<Carried>,
    pub sessions: SessionsClient<Carried>,
    pub objects: ObjectsClient<Carried>,
    pub execution: ExecutionClient<Carried>,
    pub watch: WatchClient<Carried>,
}

impl Client {
    pub fn new(channel: Channel, access_key: String, token: Option<&str>) -> Client {
        let signed = Signed(token.map(|token| format!("Bearer {token}")));
        Client::raw(channel, access_key, signed.0)
    }

    /// With an authorization that need not be of the right form.
    pub fn raw(channel: Channel, access_key: String, authorization: Option<String>) -> Client {
        let signed = Signed(authorization);
        Client {
            access_key,
            admin: AdminClient::with_interceptor(channel.clone(), signed.clone()),
            sessions: SessionsClient::with_interceptor(channel.clone(), signed.clone()),
            objects: ObjectsClient::with_interceptor(channel.clone(), signed.clone()),
            execution: ExecutionClient::with_interceptor(channel.clone(), signed.clone()),
            watch: WatchClient::with_interceptor(channel, signed),
        }
    }

    /// Makes a namespace of the client's own.
    pub async fn namespace(&mut self, name: &str) {
        let request = CreateNamespaceRequest {
            name: name.into(),
            ..CreateNamespaceRequest::default()
        };
        self.admin.create_namespace(request).await.unwrap();
    }
}

/// Code, reason and words of a refusal.
#[track_caller]
pub fn refusal<T: Debug>(answer: std::result::Result<T, Status>) -> (Code, String, String) {
    let status = answer.expect_err("a refusal");
    let reason = status.metadata().get(REASON_METADATA);
    let reason = reason.map_or("", |reason| reason.to_str().unwrap());
    (
        status.code(),
        reason.strip_prefix("REASON_").unwrap_or(reason).to_owned(),
        status.message().to_owned(),
    )
}

/// Who acts by a key.
pub fn principal(key: &AccessKey) -> Principal<'_> {
    Principal {
        tenant: &key.tenant,
        id: &key.id,
        secret: &key.secret,
    }
}

/// Whether a refusal has this code and this reason.
#[track_caller]
pub fn refused<T: Debug>(answer: std::result::Result<T, Status>, code: Code, reason: &str) {
    let (found, why, words) = refusal(answer);
    assert_eq!((found, why.as_str()), (code, reason), "{words}");
}
