//! Objects that go in slices, because bodies of their tenant have most of the buffers that they may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use forebay_s3::Config;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, MemoryBody, MemoryStore, Object, Result, Store, VersionId,
};
use forebay_tier::Tier;
use tokio::task::yield_now;

use crate::between::gated;
use crate::gated::{At, Gate, Gated};
use crate::slow::{AHEAD, bytes, readers};
use crate::support::{ALPHA, Answer, Ask, BETA, START_MS, Server};

/// Asks for an object; `change` happens when it was found, and before anything of it is read.
async fn get_around(
    server: &Server<Gated>,
    gate: &Gate,
    target: &str,
    change: impl Future<Output = ()>,
) -> Answer {
    gate.close(At::Part);
    let (answer, ()) = tokio::join!(server.get(target), async {
        gate.arrival().await;
        change.await;
        gate.open();
    });
    answer
}

#[tokio::test]
async fn an_object_that_is_replaced_before_it_is_sent_is_found_again() {
    let (server, gate) = gated().await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = readers(&server, AHEAD).await;
    for next in [vec![1; object.len()], vec![1; 2 << 20], Vec::new()] {
        server.put("/bucket/other", &object).await;
        let replace = async {
            server.put("/bucket/other", &next).await;
        };
        let answer = get_around(&server, &gate, "/bucket/other", replace).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body == next);
    }
    server.put("/bucket/other", &object).await;
    let delete = async {
        server.ask(ALPHA, Ask::new("DELETE", "/bucket/other")).await;
    };
    let answer = get_around(&server, &gate, "/bucket/other", delete).await;
    answer.is(404, "NoSuchKey");
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn a_version_that_is_removed_before_it_is_sent_leaves_the_one_before_it() {
    let (server, gate) = gated().await;
    server.keep_versions("bucket").await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = readers(&server, AHEAD).await;
    server.put("/bucket/other", &object).await;
    let last = server.put("/bucket/other", &vec![1; 3 << 20]).await;
    let last = last.header("x-amz-version-id").expect("a version");
    let target = format!("/bucket/other?versionId={last}");
    let remove = async {
        server.ask(ALPHA, Ask::new("DELETE", &target)).await;
    };
    let answer = get_around(&server, &gate, "/bucket/other", remove).await;
    assert!(answer.status == 200 && answer.body == object);
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn an_object_that_is_found_again_is_none_of_the_next_bucket_of_its_name() {
    let (server, gate) = gated().await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = readers(&server, AHEAD).await;
    server.make_bucket("passed-on").await;
    server.put("/passed-on/key", &object).await;
    let pass_on = async {
        for (who, method, target) in [
            (ALPHA, "DELETE", "/passed-on/key"),
            (ALPHA, "DELETE", "/passed-on"),
            (BETA, "PUT", "/passed-on"),
            (BETA, "PUT", "/passed-on/key"),
        ] {
            let answer = server.ask(who, Ask::new(method, target)).await;
            assert!(answer.status < 300, "{}", answer.text());
        }
    };
    let answer = get_around(&server, &gate, "/passed-on/key", pass_on).await;
    answer.is(404, "NoSuchBucket");
    drop(readers);
    server.finish().await;
}

/// Counts how often a store is asked for a value.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Counting {
    /// How often that was since the last call of this.
    fn take(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

impl Detour<MemoryStore> for Counting {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        self.0.fetch_add(1, Relaxed);
        store.retrieve(address, version, range).await
    }
}

/// A server of what `wrap` makes of a store that counts, with a bucket.
async fn counted<S: Store<Body: Unpin>>(
    wrap: impl FnOnce(Around<MemoryStore, Counting>) -> S,
) -> (Server<S>, Counting) {
    let counting = Counting::default();
    let detour = counting.clone();
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| wrap(Around { store, detour });
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    (server, counting)
}

#[tokio::test]
async fn slices_of_what_a_cache_has_come_out_of_it() {
    let config = forebay_tier::Config::new(64 << 20, Arc::new(|| START_MS));
    let (server, asked) = counted(|store| Tier::new(Arc::new(store), config, None)).await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    assert!(server.get("/bucket/key").await.body == object);
    let readers = readers(&server, AHEAD).await;
    asked.take();
    let answer = server.get("/bucket/key").await;
    assert!(answer.status == 200 && answer.body == object);
    assert_eq!(asked.take(), 0);
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn a_short_object_beside_many_of_its_tenant_is_asked_for_once() {
    let (server, asked) = counted(|store| store).await;
    server.put("/bucket/key", &bytes(3 << 20)).await;
    server.put("/bucket/short", b"short").await;
    let readers = readers(&server, AHEAD).await;
    asked.take();
    assert_eq!(server.get("/bucket/short").await.body, b"short");
    assert_eq!(asked.take(), 1);
    // A long one once more for each MiB at most.
    let answer = server.get("/bucket/key").await;
    assert_eq!((answer.status, answer.body.len()), (200, 3 << 20));
    assert!(asked.take() <= 1 + 3);
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn slices_go_on_with_an_object_that_is_an_older_version_now() {
    let (server, gate) = gated().await;
    server.keep_versions("bucket").await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = readers(&server, AHEAD).await;
    for next in ["PUT", "DELETE"] {
        server.put("/bucket/other", &object).await;
        let replace = async {
            server.ask(ALPHA, Ask::new(next, "/bucket/other")).await;
        };
        let answer = get_around(&server, &gate, "/bucket/other", replace).await;
        assert!(answer.status == 200 && answer.body == object, "{next}");
    }
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn who_waits_for_a_short_object_may_find_a_long_one() {
    let (server, _) = gated().await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    server.put("/bucket/short", b"short").await;
    // As many as have all that a tenant alone may have.
    let readers = readers(&server, 2 * AHEAD).await;
    let (answer, ()) = tokio::join!(server.get("/bucket/short"), async {
        for _ in 0..1000 {
            // Until it waits.
            yield_now().await;
        }
        let copy = Ask::new("PUT", "/bucket/short").header("x-amz-copy-source", "/bucket/key");
        assert_eq!(server.ask(ALPHA, copy).await.status, 200);
        drop(readers);
    });
    assert!(answer.status == 200 && answer.body == object);
    server.finish().await;
}
