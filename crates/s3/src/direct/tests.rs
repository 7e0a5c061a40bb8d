//! Links that fail in ways that no honest one can be made to: T4 of docs/token.md section 8, and what is said when.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, Placed, RemoteRange, Result,
    Sessions, Stag, SystemClock, shm,
};
use forebay_mem::{Buf, BufMut, Pool, Region, RegionSlice};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::Query;
use forebay_store::{
    Address, Body, ByteRange, ListOptions, MemoryStore, NamespaceConfig, Space, Store, StoreOptions,
};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{self, Instant};

use super::get::{landing, stream};
use super::moved::BYTES_TRANSFERRED;
use super::put::put;
use super::transfer::{GRACE, Lease, Transfer};
use crate::auth::{AccessKey, AccessKeys, Caller};
use crate::call::Call;
use crate::config::Config;
use crate::demand::Demand;
use crate::door::{Connection, Door};
use crate::router::Operation;
use crate::status::{Manner, Outcome, Refusal};

const LEN: usize = 3 << 20;
const LONG: Duration = Duration::from_secs(60);

/// What a link does wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The read of this number brings back so many bytes too many (or too few).
    Read(usize, isize),
    /// The call of this number fails so.
    Call(usize, ErrorKind),
    /// The call of this number never ends.
    Hangs(usize),
    /// The fence fails.
    Fence,
    /// The fence never ends.
    FenceHangs,
}

/// A link over shared memory with a fault.
struct Faulty {
    inner: Arc<shm::ShmLink>,
    fault: Fault,
    calls: AtomicUsize,
    closed: Arc<AtomicBool>,
    /// Told when it hangs.
    hangs: Arc<Notify>,
    /// Whether nothing lands any more once it has ended.
    settles: bool,
}

impl Faulty {
    async fn step(&self) -> Result<usize> {
        let call = self.calls.fetch_add(1, Relaxed);
        match self.fault {
            Fault::Call(at, kind) if at == call => Err(Error::new(kind, "as the test says")),
            Fault::Hangs(at) if at == call => self.hang().await,
            _ => Ok(call),
        }
    }

    async fn hang<T>(&self) -> T {
        self.hangs.notify_one();
        std::future::pending().await
    }
}

/// What `work` comes to when, should its link hang, all of its time is over then.
async fn outlasting<T>(hangs: &Notify, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    tokio::select! {
        ended = work.as_mut() => return ended,
        () = hangs.notified() => {}
    }
    time::pause();
    time::advance(LONG + GRACE).await;
    time::resume();
    work.await
}

/// The key of all requests.
struct Key(Arc<AccessKey>);

impl AccessKeys for Key {
    fn find(&self, _: &str) -> Option<Arc<AccessKey>> {
        Some(self.0.clone())
    }
}

impl Link for Faulty {
    fn fabric(&self) -> Fabric {
        self.inner.fabric()
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        self.inner.expose(memory, access).await
    }

    async fn withdraw(&self, exposure: Exposure) {
        self.inner.withdraw(exposure).await;
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        self.step().await?;
        self.inner.write(to, from).await
    }

    async fn read(&self, from: RemoteRange, into: BufMut) -> Result<BufMut> {
        let call = self.step().await?;
        let mut back = self.inner.read(from, into).await?;
        if let Fault::Read(at, by) = self.fault
            && at == call
        {
            let len = back.len().saturating_add_signed(by);
            back.set_len(len.min(back.capacity()));
        }
        Ok(back)
    }

    async fn fence(&self) -> Result<Placed> {
        match self.fault {
            Fault::Fence => Err(Error::new(ErrorKind::Closed, "as the test says")),
            Fault::FenceHangs => self.hang().await,
            _ => self.inner.fence().await,
        }
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        self.inner.send(message).await
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        self.inner.recv(into).await
    }

    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        self.inner.mapped(range, access)
    }

    fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    fn close(&self, reason: CloseReason) {
        self.closed.store(true, Relaxed);
        self.inner.close(reason);
    }

    fn is_settled(&self) -> bool {
        self.settles && self.inner.is_settled()
    }

    async fn closed(&self) -> CloseReason {
        self.inner.closed().await
    }
}

/// Two ends, a client's memory, and a store.
struct Bench {
    server: Arc<shm::ShmLink>,
    /// Keeps the memory exposed.
    _client: shm::ShmLink,
    memory: RegionSlice,
    stag: Stag,
    store: MemoryStore,
    data: Vec<u8>,
}

impl Bench {
    async fn new() -> Bench {
        let clock = Arc::new(SystemClock::default());
        let sessions = Sessions::new(clock, Limits::default());
        let hour = Duration::from_secs(3600);
        let principal = Principal {
            tenant: "tenant",
            id: "key",
            secret: "secret",
        };
        let session = sessions.open_with_random_key(principal, hour).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let proof = session.proof();
        let (accepted, client) =
            tokio::join!(shm::accept(here, &sessions), shm::connect(there, &proof));
        let client = client.unwrap();
        let forebay_fabric::Connection::Shm(server) = accepted.unwrap().link else {
            panic!("another fabric");
        };
        let memory = Region::memfd(LEN).unwrap().slice(0..LEN).unwrap();
        let exposed = client.expose(memory.clone(), Access::ReadWrite).await;
        let data: Vec<u8> = (0..LEN).map(|at| ((at * 7) >> 3) as u8).collect();
        assert!(memory.write(0, &data));
        let store = MemoryStore::new(Pool::new(64 << 20), || 0);
        let config = NamespaceConfig {
            tenant: "tenant".into(),
            ..NamespaceConfig::default()
        };
        store.create_namespace("bucket", config).await.unwrap();
        Bench {
            server,
            _client: client,
            memory,
            stag: exposed.unwrap().stag,
            store,
            data,
        }
    }

    fn transfer(&self, fault: Fault) -> Transfer<Faulty> {
        self.transfer_of(fault, LEN)
    }

    /// Of the first `len` bytes of the client's memory.
    fn transfer_of(&self, fault: Fault, len: usize) -> Transfer<Faulty> {
        let link = Faulty {
            inner: self.server.clone(),
            fault,
            calls: AtomicUsize::new(0),
            closed: Arc::default(),
            hangs: Arc::default(),
            settles: true,
        };
        let window = RemoteRange {
            stag: self.stag,
            offset: 0,
            len: len as u64,
        };
        let lease = Lease::new(Instant::now(), LONG, u32::MAX);
        let demand = Arc::new(Demand::new(LONG));
        Transfer::new(link, vec![window], lease, &demand)
    }

    /// A PUT out of the client's memory: how many bytes it stored, and whether the link was closed.
    async fn put(&self, fault: Fault) -> (Outcome<u64>, bool) {
        self.put_of(fault, LEN).await
    }

    /// The same of the first `len` bytes.
    async fn put_of(&self, fault: Fault, len: usize) -> (Outcome<u64>, bool) {
        let key = Arc::new(AccessKey {
            id: "key".to_owned(),
            secret: "secret".to_owned(),
            tenant: "tenant".to_owned(),
        });
        let door = Door::new(
            Arc::new(self.store.clone()),
            Arc::new(Key(key.clone())),
            Arc::new(|| 0_u64),
            Config::default(),
        );
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let mut call = Call {
            door: &door,
            headers: &headers,
            query: &Query::parse("").unwrap(),
            bucket: "bucket",
            key: "key",
            caller: &Caller::Key(key),
            namespace: None,
            rules: None,
            connection: &Connection::default(),
            secure: false,
            peer: None,
            host: None,
            path: "/bucket/key",
            now_ms: 0,
        };
        call.admit(Operation::PutObject).await.unwrap();
        let transfer = self.transfer_of(fault, len);
        let (closed, hangs) = (transfer.link.closed.clone(), transfer.link.hangs.clone());
        let putting = put(Operation::PutObject, &call, transfer, None);
        let ended = outlasting(&hangs, putting).await;
        (ended.map(|(_, bytes)| bytes), closed.load(Relaxed))
    }

    /// How many objects and parts there are.
    async fn count(&self) -> usize {
        let mut count = 0;
        for space in [Space::Objects, Space::Staging] {
            let page = self.store.list(ListOptions::of("bucket", space)).await;
            count += page.unwrap().items.len();
        }
        count
    }

    /// A retrieve into the client's memory, buffer by buffer.
    async fn push(&self, fault: Fault) -> (std::result::Result<(), Refusal>, bool) {
        self.push_over(fault, true).await
    }

    /// The same over a link that settles when it is closed, or not.
    async fn push_over(
        &self,
        fault: Fault,
        settles: bool,
    ) -> (std::result::Result<(), Refusal>, bool) {
        let object = self
            .store
            .retrieve(Address::object("bucket", b"key"), None, ByteRange::Full)
            .await
            .unwrap();
        let mut transfer = self.transfer(fault);
        transfer.link.settles = settles;
        let hangs = transfer.link.hangs.clone();
        let writing = stream(&mut transfer, object.body, LEN as u64);
        let ended = outlasting(&hangs, writing).await;
        (ended.map(|_| ()), transfer.link.closed.load(Relaxed))
    }

    async fn stored(&self) {
        let options = StoreOptions::default();
        let address = Address::object("bucket", b"key");
        let mut upload = self.store.store(address, options).await.unwrap();
        forebay_store::Upload::read_from(&mut upload, self.memory.clone())
            .await
            .unwrap();
        forebay_store::Upload::commit(upload, Default::default())
            .await
            .unwrap();
    }
}

#[track_caller]
fn bytes(refusal: &Refusal) -> u64 {
    assert_eq!(refusal.code(), ErrorCode::RDMATransferFailed);
    let headers = refusal.headers.as_ref().unwrap();
    headers[BYTES_TRANSFERRED]
        .to_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn t4_reads_that_bring_back_another_number_of_bytes() {
    let bench = Bench::new().await;
    let chunk = bench.store.caps().chunk_bytes as isize;
    assert!(LEN as isize > 2 * chunk, "several reads");
    for at in [0, 1, 2] {
        for by in [-chunk, 1 - chunk, -1] {
            let (ended, _) = bench.put(Fault::Read(at, by)).await;
            assert_eq!(
                bytes(&ended.unwrap_err()),
                (at as isize * chunk) as u64,
                "{at} {by}"
            );
            assert_eq!(bench.count().await, 0, "{at} {by}");
        }
    }
    // One byte too many, which only a buffer with room can show.
    let (ended, _) = bench.put_of(Fault::Read(0, 1), 1000).await;
    assert_eq!(bytes(&ended.unwrap_err()), 0);
    assert_eq!(bench.count().await, 0);
    // And after all that the right bytes are still the right ones.
    let (ended, _) = bench.put(Fault::None).await;
    assert_eq!((ended.unwrap(), bench.count().await), (LEN as u64, 1));
    let address = Address::object("bucket", b"key");
    let stored = bench.store.retrieve(address, None, ByteRange::Full).await;
    assert!(stored.unwrap().bytes().await.unwrap() == bench.data);
}

#[tokio::test]
async fn reads_that_fail_or_never_end() {
    let bench = Bench::new().await;
    let (ended, _) = bench.put(Fault::Call(0, ErrorKind::Busy)).await;
    assert_eq!(ended.unwrap_err().code(), ErrorCode::SlowDown);
    let chunk = bench.store.caps().chunk_bytes as u64;
    for kind in [ErrorKind::Busy, ErrorKind::Closed, ErrorKind::Corrupt] {
        let (ended, _) = bench.put(Fault::Call(1, kind)).await;
        assert_eq!(bytes(&ended.unwrap_err()), chunk, "{kind:?}");
    }
    let (ended, closed) = bench.put(Fault::Hangs(0)).await;
    assert_eq!((bytes(&ended.unwrap_err()), closed), (0, true));
    assert_eq!(bench.count().await, 0);
}

#[tokio::test]
async fn writes_are_told_of_only_when_nothing_can_land() {
    let chunk = {
        let bench = Bench::new().await;
        bench.store.caps().chunk_bytes as u64
    };
    for (fault, moved, closes) in [
        // Nothing of that write moved: the fence says when the rest has landed, and the link goes on.
        (Fault::Call(0, ErrorKind::NotReachable), 0, false),
        (Fault::Call(1, ErrorKind::NotReachable), chunk, false),
        // Whether it moved is not known, or whether it landed: the link ends first.
        (Fault::Call(1, ErrorKind::Closed), chunk, true),
        (Fault::Call(0, ErrorKind::Io), 0, true),
        (Fault::Hangs(1), chunk, true),
        (Fault::Fence, LEN as u64, true),
        (Fault::FenceHangs, LEN as u64, true),
    ] {
        let bench = Bench::new().await;
        bench.stored().await;
        let (ended, closed) = bench.push(fault).await;
        assert_eq!(
            (bytes(&ended.unwrap_err()), closed),
            (moved, closes),
            "{fault:?}"
        );
    }
    // Where they may land after the link was cut, nothing is said.
    for fault in [
        Fault::Call(1, ErrorKind::Closed),
        Fault::Hangs(1),
        Fault::Fence,
        Fault::FenceHangs,
    ] {
        let bench = Bench::new().await;
        bench.stored().await;
        let (ended, closed) = bench.push_over(fault, false).await;
        let manner = ended.unwrap_err().manner;
        assert_eq!((manner, closed), (Manner::Unsaid, true), "{fault:?}");
    }
    let bench = Bench::new().await;
    bench.stored().await;
    assert!(bench.memory.write(0, &vec![0; LEN]));
    let (ended, closed) = bench.push(Fault::None).await;
    assert!(ended.is_ok() && !closed);
    let mut landed = vec![0; LEN];
    assert!(bench.memory.read(0, &mut landed));
    assert!(landed == bench.data);
}

#[tokio::test]
async fn a_request_that_is_dropped_takes_its_link_along() {
    let bench = Bench::new().await;
    bench.stored().await;
    let object = bench
        .store
        .retrieve(Address::object("bucket", b"key"), None, ByteRange::Full)
        .await
        .unwrap();
    let mut transfer = bench.transfer(Fault::Hangs(1));
    let hangs = transfer.link.hangs.clone();
    tokio::select! {
        ended = stream(&mut transfer, object.body, LEN as u64) => panic!("{ended:?}"),
        // As far as the write that never ends.
        () = hangs.notified() => {}
    }
    assert!(transfer.link.closed.load(Relaxed));
}

#[tokio::test]
async fn a_request_that_is_dropped_while_a_device_writes_takes_its_link_along() {
    let bench = Bench::new().await;
    let transfer = bench.transfer(Fault::None);
    let placed = landing(&transfer, std::future::ready(7)).await;
    assert_eq!(placed.unwrap().unwrap(), 7);
    assert!(!transfer.link.closed.load(Relaxed));
    let writing = landing(&transfer, std::future::pending::<()>());
    assert!(
        futures_util::future::poll_immediate(writing)
            .await
            .is_none()
    );
    assert!(transfer.link.closed.load(Relaxed));
}

/// Bodies of the in-memory store are as long as the tests above think.
#[tokio::test]
async fn a_body_comes_in_several_buffers() {
    let bench = Bench::new().await;
    bench.stored().await;
    let address = Address::object("bucket", b"key");
    let object = bench.store.retrieve(address, None, ByteRange::Full).await;
    let mut body = object.unwrap().body;
    let first = body.next().await.unwrap().unwrap();
    assert_eq!(first.len(), bench.store.caps().chunk_bytes);
}
