//! Uploads that nobody finishes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_s3::{Config, Swept};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, DeleteOptions, Deleted, ErrorKind, ListOptions, MemoryStore, Result, Seal, Store,
    StoreError, StoreOptions, Upload, VersionPage,
};

use forebay_tier::Tier;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::support::{ALPHA, Ask, START_MS, Server};

const DAY_MS: u64 = 86_400_000;

/// Begins an upload and gives it parts of these lengths; what it is called by, and the first part's tag.
async fn begin<S: Store<Body: Unpin>>(
    server: &Server<S>,
    key: &str,
    parts: &[usize],
) -> (String, String) {
    let begun = Ask::new("POST", &format!("/bucket/{key}?uploads"));
    let id = server.ask(ALPHA, begun).await.element("UploadId");
    let upload = format!("/bucket/{key}?uploadId={}", id.expect("an upload"));
    let mut etags = Vec::new();
    for (number, length) in (1..).zip(parts) {
        let target = format!("{upload}&partNumber={number}");
        etags.push(server.put(&target, &vec![1; *length]).await.etag());
    }
    (upload, etags.swap_remove(0))
}

#[tokio::test]
async fn an_upload_that_nobody_finished_gives_back_the_room_of_its_parts() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><Prefix>old/</Prefix></Filter><AbortIncompleteMultipartUpload>\
        <DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>\
        </LifecycleConfiguration>";
    let put = Ask::new("PUT", "/bucket?lifecycle").body(rule);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    let (old, etag) = begin(&server, "old/key", &[300_000, 2000, 0]).await;
    let (other, _) = begin(&server, "other/key", &[40]).await;
    let sweep = async || server.door.lifecycle_sweep(server.now_ms()).await;
    server.advance_ms(DAY_MS - 1000);
    assert_eq!(sweep().await, Swept::default());
    let (young, _) = begin(&server, "old/young", &[5]).await;
    assert_eq!(server.used().bytes, 302_045);

    server.advance_ms(1000);
    let swept = Swept {
        uploads: 1,
        ..Swept::default()
    };
    assert_eq!(sweep().await, swept);
    // Neither what the rule is not about goes, nor what is too young for it.
    assert_eq!(server.used().bytes, 45);
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    for ask in [
        Ask::new("GET", &old),
        Ask::new("PUT", &format!("{old}&partNumber=4")).body(b"late"),
        Ask::new("POST", &old).body(list),
        Ask::new("DELETE", &old),
    ] {
        server.ask(ALPHA, ask).await.is(404, "NoSuchUpload");
    }
    server.get("/bucket/old/key").await.is(404, "NoSuchKey");
    let uploads = server.get("/bucket?uploads").await.text();
    assert_eq!(uploads.matches("<Upload>").count(), 2, "{uploads}");
    for upload in [other, young] {
        let parts = server.get(&upload).await.text();
        assert_eq!(parts.matches("<Part>").count(), 1, "{parts}");
    }
    assert_eq!(server.used().bytes, 45);
    server.finish().await;
}

/// A store that cannot list one of its buckets.
#[derive(Clone)]
struct Unlisted(&'static str);

impl Detour<MemoryStore> for Unlisted {
    async fn list_versions(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        match options.namespace == self.0 {
            true => Err(StoreError::new(ErrorKind::Io, "a sector cannot be read")),
            false => store.list_versions(options).await,
        }
    }
}

#[tokio::test]
async fn a_bucket_that_cannot_be_listed_keeps_no_other_from_expiring() {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| Around {
        store,
        detour: Unlisted("broken"),
    };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><Prefix></Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>\
        </LifecycleConfiguration>";
    for bucket in ["broken", "sound"] {
        server.make_bucket(bucket).await;
        let put = Ask::new("PUT", &format!("/{bucket}?lifecycle")).body(rule);
        assert_eq!(server.ask(ALPHA, put).await.status, 200);
        server.put(&format!("/{bucket}/key"), b"abc").await;
    }
    server.advance_ms(3 * DAY_MS);
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    let expected = Swept {
        expired: 1,
        failed: 1,
        ..Swept::default()
    };
    assert_eq!(swept, expected);
    assert_eq!(server.get("/broken/key").await.body, b"abc");
    server.get("/sound/key").await.is(404, "NoSuchKey");
    server.finish().await;
}

/// A store in which another gateway stores the same bytes again, once a sweep has listed them.
#[derive(Clone, Default)]
struct Renewed {
    lists: Arc<AtomicUsize>,
}

impl Detour<MemoryStore> for Renewed {
    async fn list_versions(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        let page = store.list_versions(options).await?;
        let address = Address::object("bucket", b"key");
        if !page.items.is_empty() && self.lists.fetch_add(1, Ordering::Relaxed) == 0 {
            let found = store.stat(address, None).await?;
            let mut upload = store.store(address, StoreOptions::default()).await?;
            upload.write(b"abc".to_vec().into()).await?;
            let seal = Seal {
                etag: Some(found.etag),
                attributes: found.attributes,
                ..Seal::default()
            };
            upload.commit(seal).await?;
        }
        Ok(page)
    }
}

#[tokio::test]
async fn what_another_gateway_stored_again_does_not_expire_by_what_a_cache_knows() {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let told = clock.clone();
    let now = Arc::new(move || told.load(Ordering::Relaxed));
    let wrap = |store| {
        let detour = Renewed::default();
        let store = Arc::new(Around { store, detour });
        Tier::new(store, forebay_tier::Config::new(1 << 20, now), None)
    };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter/>\
        <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
    let put = Ask::new("PUT", "/bucket?lifecycle").body(rule);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    server.put("/bucket/key", b"abc").await;
    server.advance_ms(3 * DAY_MS);
    assert_eq!(server.get("/bucket/key").await.body, b"abc");
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!(swept, Swept::default());
    assert_eq!(server.get("/bucket/key").await.body, b"abc");
    // What the cache holds is no leak.
    let gone = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    assert_eq!(gone.status, 204);
    server.finish().await;
}

#[tokio::test]
async fn keys_that_are_no_text_are_listed_and_expire() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><Prefix>old/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>\
        </LifecycleConfiguration>";
    let put = Ask::new("PUT", "/bucket?lifecycle").body(rule);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    // As gRPC or a drive gives them.
    for key in [&b"new\xfe"[..], b"old/\xfe", b"old/\xff"] {
        let address = Address::object("bucket", key);
        let upload = server.store.store(address, StoreOptions::default()).await;
        let upload = upload.expect("room");
        upload.commit(Seal::default()).await.expect("committed");
    }
    for (list, marker, next) in [
        ("?", "marker", "NextMarker"),
        ("?versions", "key-marker", "NextKeyMarker"),
    ] {
        let mut target = format!("/bucket{list}&delimiter=~&encoding-type=url&max-keys=1");
        let mut keys = Vec::new();
        loop {
            let page = server.get(&target).await;
            assert_eq!(page.status, 200, "{}", page.text());
            keys.push(page.element("Key").expect("a key"));
            let Some(next) = page.element(next) else {
                break;
            };
            target =
                format!("/bucket{list}&delimiter=~&encoding-type=url&max-keys=1&{marker}={next}");
        }
        assert_eq!(keys, ["new%FE", "old/%FE", "old/%FF"], "{list}");
    }
    let after = server
        .get("/bucket?list-type=2&start-after=old/%FE&encoding-type=url")
        .await;
    assert_eq!(after.element("Key").as_deref(), Some("old/%FF"));
    server.advance_ms(3 * DAY_MS);
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    let expected = Swept {
        expired: 2,
        ..Swept::default()
    };
    assert_eq!(swept, expected);
    assert_eq!(server.used().objects, 1);
    server.finish().await;
}

/// A store that removes the first four values only together, as one does that takes long for each.
#[derive(Clone)]
struct Together {
    begun: Arc<AtomicUsize>,
    four: Arc<Barrier>,
}

impl Together {
    /// A server over one, with a bucket.
    async fn serve() -> Server<Around<MemoryStore, Together>> {
        let detour = Together {
            begun: Arc::default(),
            four: Arc::new(Barrier::new(4)),
        };
        let clock = Arc::new(AtomicU64::new(START_MS));
        let wrap = |store| Around { store, detour };
        let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
        server.make_bucket("bucket").await;
        server
    }
}

impl Detour<MemoryStore> for Together {
    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        if self.begun.fetch_add(1, Ordering::Relaxed) < 4 {
            self.four.wait().await;
        }
        store.delete(address, options).await
    }
}

#[tokio::test]
async fn what_an_upload_leaves_is_removed_side_by_side() {
    for ends in [
        |upload: &str| Ask::new("DELETE", upload),
        |_: &str| Ask::new("DELETE", "/bucket"),
    ] {
        let server = Together::serve().await;
        let (upload, _) = begin(&server, "key", &[5, 5, 5, 5]).await;
        let ended = server.ask(ALPHA, ends(&upload));
        let ended = timeout(Duration::from_secs(20), ended).await;
        let answer = ended.expect("one removal waits for another");
        assert_eq!(answer.status, 204, "{}", answer.text());
        server.finish().await;
    }
}

#[tokio::test]
async fn what_expires_is_removed_side_by_side() {
    let server = Together::serve().await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter/>\
        <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
    let put = Ask::new("PUT", "/bucket?lifecycle").body(rule);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    for key in 0..40 {
        server.put(&format!("/bucket/{key}"), b"x").await;
    }
    server.advance_ms(2 * DAY_MS);
    let sweep = server.door.lifecycle_sweep(server.now_ms());
    let swept = timeout(Duration::from_secs(20), sweep).await;
    let expected = Swept {
        expired: 40,
        ..Swept::default()
    };
    assert_eq!(swept.expect("one removal waits for another"), expected);
    server.finish().await;
}
