//! Links that fail in ways that no honest one can be made to: T4 of docs/token.md section 8, and what is said when.

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
use forebay_store::{Address, Body, ByteRange, MemoryStore, NamespaceConfig, Store, StoreOptions};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::get::{landing, stream};
use super::moved::BYTES_TRANSFERRED;
use super::put::Pull;
use super::transfer::{Lease, Transfer};
use crate::demand::Demand;
use crate::ingest::Source;
use crate::status::{Manner, Refusal};

const LEN: usize = 3 << 20;

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
    closed: AtomicBool,
    /// Whether nothing lands any more once it has ended.
    settles: bool,
}

impl Faulty {
    async fn step(&self) -> Result<usize> {
        let call = self.calls.fetch_add(1, Relaxed);
        match self.fault {
            Fault::Call(at, kind) if at == call => Err(Error::new(kind, "as the test says")),
            Fault::Hangs(at) if at == call => std::future::pending().await,
            _ => Ok(call),
        }
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
            Fault::FenceHangs => std::future::pending().await,
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

    fn transfer(&self, fault: Fault, lease: Duration) -> Transfer<Faulty> {
        let link = Faulty {
            inner: self.server.clone(),
            fault,
            calls: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            settles: true,
        };
        let whole = RemoteRange {
            stag: self.stag,
            offset: 0,
            len: LEN as u64,
        };
        let lease = Lease::new(Instant::now(), lease, u32::MAX);
        let demand = Arc::new(Demand::new(LONG));
        Transfer::new(link, vec![whole], lease, &demand)
    }

    /// A store out of the client's memory: how it ends, and whether the link was closed.
    async fn pull(
        &self,
        fault: Fault,
        lease: Duration,
    ) -> (std::result::Result<u64, Refusal>, bool) {
        let mut pull = Pull::new(self.transfer(fault, lease), None);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let claims = pull.claims(&headers).unwrap();
        let options = StoreOptions {
            size: Some(LEN as u64),
            ..StoreOptions::default()
        };
        let address = Address::object("bucket", b"key");
        let mut upload = self.store.store(address, options).await.unwrap();
        let ended = pull.store_into(claims, &mut upload, true).await;
        let crc = forebay_store::Upload::crc64nvme(&upload);
        (ended.map(|_| crc), pull.transfer.link.closed.load(Relaxed))
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
        let patience = match fault {
            Fault::Hangs(_) | Fault::FenceHangs => Duration::from_millis(200),
            _ => LONG,
        };
        let mut transfer = self.transfer(fault, patience);
        transfer.link.settles = settles;
        let ended = stream(&mut transfer, object.body, LEN as u64).await;
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

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn t4_reads_that_bring_back_another_number_of_bytes() {
    let bench = Bench::new().await;
    let (good, _) = bench.pull(Fault::None, LONG).await;
    let chunk = bench.store.caps().chunk_bytes as isize;
    assert!(LEN as isize > 2 * chunk, "several reads");
    for at in [0, 1, 2] {
        for by in [-chunk, 1 - chunk, -1] {
            let (ended, _) = bench.pull(Fault::Read(at, by), LONG).await;
            assert_eq!(
                bytes(&ended.unwrap_err()),
                (at as isize * chunk) as u64,
                "{at} {by}"
            );
        }
    }
    // One byte too many, which only a buffer with room can show.
    let bench_of_odd = Fault::Read(0, 1);
    let mut pull = Pull::new(
        {
            let mut transfer = bench.transfer(bench_of_odd, LONG);
            transfer.windows = super::transfer::Windows::new(vec![RemoteRange {
                stag: bench.stag,
                offset: 0,
                len: 1000,
            }]);
            transfer
        },
        None,
    );
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    let claims = pull.claims(&headers).unwrap();
    let address = Address::object("bucket", b"key");
    let mut upload = bench
        .store
        .store(address, StoreOptions::default())
        .await
        .unwrap();
    let ended = pull.store_into(claims, &mut upload, true).await;
    assert_eq!(bytes(&ended.err().unwrap()), 0);
    drop((upload, pull));
    // And after all that the right bytes are still the right ones.
    let (again, _) = bench.pull(Fault::None, LONG).await;
    assert_eq!(again.unwrap(), good.unwrap());
    assert!(
        bench
            .store
            .stat(Address::object("bucket", b"key"), None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn reads_that_fail_or_never_end() {
    let bench = Bench::new().await;
    let (ended, _) = bench.pull(Fault::Call(0, ErrorKind::Busy), LONG).await;
    assert_eq!(ended.unwrap_err().code(), ErrorCode::SlowDown);
    let chunk = bench.store.caps().chunk_bytes as u64;
    for kind in [ErrorKind::Busy, ErrorKind::Closed, ErrorKind::Corrupt] {
        let (ended, _) = bench.pull(Fault::Call(1, kind), LONG).await;
        assert_eq!(bytes(&ended.unwrap_err()), chunk, "{kind:?}");
    }
    let (ended, closed) = bench.pull(Fault::Hangs(0), Duration::from_millis(20)).await;
    assert_eq!((bytes(&ended.unwrap_err()), closed), (0, true));
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
    let mut transfer = bench.transfer(Fault::Hangs(1), LONG);
    {
        let writing = stream(&mut transfer, object.body, LEN as u64);
        tokio::pin!(writing);
        // As far as the write that never ends.
        let poll = tokio::time::timeout(Duration::from_millis(20), writing.as_mut());
        assert!(poll.await.is_err());
    }
    assert!(transfer.link.closed.load(Relaxed));
}

#[tokio::test]
async fn a_request_that_is_dropped_while_a_device_writes_takes_its_link_along() {
    let bench = Bench::new().await;
    let transfer = bench.transfer(Fault::None, LONG);
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
