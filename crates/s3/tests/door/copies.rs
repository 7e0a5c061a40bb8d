//! Copies inside the server, many at once.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_mem::{Buf, BufMut, Pool};
use forebay_s3::{Config, EtagKind};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body, ByteRange, MemoryBody, MemoryStore, MemoryUpload, Object, Result, Store, Upload,
    VersionId,
};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::gated::{At, Gate};
use crate::support::{ALPHA, Ask, BETA, START_MS, Server};

/// What a store reads at once.
const EXTENT: usize = 1 << 20;

/// A store that reads into buffers of the pool, whole ones for whatever part of them, and packs into others what it writes, as a store on
/// a device does.
#[derive(Clone, Default)]
pub struct Packing(Arc<OnceLock<Pool>>);

impl Packing {
    /// A server over one.
    pub async fn serve(config: Config) -> Server<Around<MemoryStore, Packing>> {
        let detour = Packing::default();
        let pool = Arc::clone(&detour.0);
        let clock = Arc::new(AtomicU64::new(START_MS));
        let wrap = |store| Around { store, detour };
        let server = Server::over(config, u64::MAX, clock, wrap, None).await;
        pool.set(server.pool.clone()).expect("set once");
        server
    }

    async fn packed(&self, from: &[u8], room: usize) -> Buf {
        let pool = self.0.get().expect("set before anything moves");
        let mut buf: BufMut = pool.take(room).await;
        buf.spare()[..from.len()].copy_from_slice(from);
        buf.set_len(from.len());
        buf.freeze()
    }
}

impl Detour<MemoryStore> for Packing {
    async fn next(&self, body: &mut MemoryBody, _: usize) -> Result<Option<Buf>> {
        match body.next().await? {
            Some(buf) => Ok(Some(self.packed(&buf, EXTENT).await)),
            None => Ok(None),
        }
    }

    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        // Meanwhile every other copy comes as far as it may.
        for _ in 0..300 {
            yield_now().await;
        }
        let packed = self.packed(&buf, buf.len()).await;
        drop(buf);
        upload.write(packed).await
    }
}

#[tokio::test]
async fn more_copies_than_the_pool_has_buffers_end_all_the_same() {
    let config = Config {
        etag: EtagKind::Crc64Nvme,
        ..Config::default()
    };
    let server = Packing::serve(config).await;
    server.make_bucket("bucket").await;
    let body: Vec<u8> = (0..3u32 << 20).map(|at| (at % 251) as u8).collect();
    server.put("/bucket/source", &body).await;
    server.put("/bucket/short", &body[..700_000]).await;
    let upload = server
        .ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads"))
        .await;
    let id = upload.element("UploadId").expect("an upload");
    let parts = (1..=80).map(|number| {
        Ask::new(
            "PUT",
            &format!("/bucket/parts?partNumber={number}&uploadId={id}"),
        )
        .header("x-amz-copy-source", "/bucket/source")
        .header("x-amz-copy-source-range", "bytes=12345-2345678")
    });
    let wholes = (0..80).map(|number| {
        Ask::new("PUT", &format!("/bucket/copy-{number}"))
            .header("x-amz-copy-source", "/bucket/short")
    });
    let copies = parts.chain(wholes).map(|ask| server.ask(ALPHA, ask));
    let answers = timeout(Duration::from_secs(60), join_all(copies))
        .await
        .expect("the copies wait for each other");
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(server.get("/bucket/copy-7").await.body == body[..700_000]);
    server.finish().await;
}

/// A store that begins to read what is in a bucket of this name only when it is opened.
#[derive(Clone)]
struct Closed {
    bucket: &'static str,
    opened: Arc<watch::Sender<bool>>,
    /// How many wait.
    waiting: Arc<watch::Sender<usize>>,
}

impl Detour<MemoryStore> for Closed {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        if address.namespace == self.bucket {
            self.waiting.send_modify(|waiting| *waiting += 1);
            let _ = self.opened.subscribe().wait_for(|opened| *opened).await;
        }
        store.retrieve(address, version, range).await
    }
}

#[tokio::test]
async fn copies_of_one_tenant_leave_turns_to_others() {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let detour = Closed {
        bucket: "bucket",
        opened: Arc::new(watch::Sender::new(false)),
        waiting: Arc::new(watch::Sender::new(0)),
    };
    let (opened, waiting) = (detour.opened.clone(), detour.waiting.clone());
    let wrap = |store| Around { store, detour };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    let source = vec![1; 2 << 20];
    for (who, bucket) in [(ALPHA, "bucket"), (BETA, "betas")] {
        for ask in [
            Ask::new("PUT", &format!("/{bucket}")),
            Ask::new("PUT", &format!("/{bucket}/source")).body(&source),
        ] {
            assert_eq!(server.ask(who, ask).await.status, 200);
        }
    }
    let copy = |bucket: &str, number: usize| {
        Ask::new("PUT", &format!("/{bucket}/copy-{number}"))
            .header("x-amz-copy-source", &format!("/{bucket}/source"))
    };
    let own = join_all((0..16).map(|number| server.ask(ALPHA, copy("bucket", number))));
    let others = async {
        let mut waiting = waiting.subscribe();
        let _ = waiting.wait_for(|waiting| *waiting >= 4).await;
        for _ in 0..1000 {
            // Until as many wait as may.
            yield_now().await;
        }
        let other = server.ask(BETA, copy("betas", 0));
        let other = timeout(Duration::from_secs(20), other).await;
        opened.send_replace(true);
        other.expect("it waits for another tenant's copies")
    };
    let (own, other) = tokio::join!(own, others);
    assert_eq!(other.status, 200, "{}", other.text());
    for answer in own {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    server.finish().await;
}

#[tokio::test]
async fn a_copy_goes_with_its_client() {
    let gate = Gate::default();
    let detour = gate.clone();
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| Around { store, detour };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    server.put("/bucket/source", &vec![1; 2 << 20]).await;
    let upload = server
        .ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads"))
        .await;
    let id = upload.element("UploadId").expect("an upload");
    let part = format!("/bucket/parts?partNumber=1&uploadId={id}");
    for target in ["/bucket/copy", &part] {
        gate.close(At::Write);
        let mut client = server.connect().await;
        let copy = Ask::new("PUT", target).header("x-amz-copy-source", "/bucket/source");
        client.send(&copy.signed(ALPHA, server.now_ms())).await;
        gate.arrival().await;
        drop(client);
        let gone = timeout(Duration::from_secs(20), server.door.drain());
        gone.await.expect("the copy goes with its client");
        gate.open();
    }
    server.get("/bucket/copy").await.is(404, "NoSuchKey");
    let parts = server.get(&format!("/bucket/parts?uploadId={id}")).await;
    assert_eq!(parts.element("PartNumber"), None, "{}", parts.text());
    server.finish().await;
}
