//! Copies inside the server, many at once.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_mem::{Buf, BufMut, Pool};
use forebay_s3::{Config, EtagKind};
use forebay_store::suite::{Around, Detour};
use forebay_store::{Body, MemoryBody, MemoryStore, MemoryUpload, Result, Upload};
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::support::{ALPHA, Ask, START_MS, Server};

/// A store that reads into buffers of the pool, and packs into others what it writes, as a store on a device does.
#[derive(Clone, Default)]
struct Packing(Arc<OnceLock<Pool>>);

impl Packing {
    async fn packed(&self, from: &[u8]) -> Buf {
        let pool = self.0.get().expect("set before anything moves");
        let mut buf: BufMut = pool.take(from.len()).await;
        buf.spare()[..from.len()].copy_from_slice(from);
        buf.set_len(from.len());
        buf.freeze()
    }
}

impl Detour<MemoryStore> for Packing {
    async fn next(&self, body: &mut MemoryBody, _: usize) -> Result<Option<Buf>> {
        match body.next().await? {
            Some(buf) => Ok(Some(self.packed(&buf).await)),
            None => Ok(None),
        }
    }

    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        // Meanwhile every other copy comes as far as it may.
        for _ in 0..300 {
            yield_now().await;
        }
        let packed = self.packed(&buf).await;
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
    let clock = Arc::new(AtomicU64::new(START_MS));
    let detour = Packing::default();
    let pool = Arc::clone(&detour.0);
    let wrap = |store| Around { store, detour };
    let server = Server::over(config, u64::MAX, clock, wrap, None).await;
    pool.set(server.pool.clone()).expect("set once");
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
