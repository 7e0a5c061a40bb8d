//! A far side that is not there, fails between two calls, or holds something else than it was given.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Away, ByteRange, Condition, ErrorKind, ListOptions, MemoryStore, MemoryUpload,
    NamespaceInfo, Result, Scope, Seal, Store, StoreError, StoreOptions, Stored, Upload, VersionId,
    VersionPage, Versioning,
};
use forebay_tier::cold::{ColdUrl, Secret, Swept};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::support::{HOME, World, content, drain, object, over, over_objects, swept_twice};

#[tokio::test]
async fn any_call_may_fail_or_its_answer_be_lost() {
    for size in [5000, (9 << 20) + 17] {
        let bytes = content(3, size);
        for lost in [false, true] {
            for call in 1.. {
                let mut world = World::new(Versioning::Off).await;
                let meta = world.put("key", &bytes).await;
                let knob = if lost {
                    &world.far.knobs.lost
                } else {
                    &world.far.knobs.fails
                };
                knob.store(call, SeqCst);
                let moved = world.mover().move_out(object("key"), &meta).await;
                let calls = world.far.knobs.calls.load(SeqCst);
                knob.store(0, SeqCst);
                match &moved {
                    Ok(()) => assert!(world.is_cold("key").await),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Busy);
                        assert!(!world.is_cold("key").await);
                    }
                }
                let cold = usize::from(moved.is_ok());
                world.mover().tidy().await;
                world.restart();
                swept_twice(world.mover()).await;
                assert_eq!(world.far.names().await.len(), cold);
                assert_eq!(world.get("key").await, bytes);
                if calls < call {
                    assert!(moved.is_ok(), "no call failed");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn what_was_damaged_on_its_way_does_not_count() {
    for size in [5000, (9 << 20) + 17] {
        let world = World::new(Versioning::Off).await;
        let bytes = content(4, size);
        let meta = world.put("key", &bytes).await;
        world.far.knobs.damages.store(true, SeqCst);
        let moved = world.mover().move_out(object("key"), &meta).await;
        let error = moved.expect_err("the copy is not the value");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(!world.is_cold("key").await);
        assert!(world.mover().tidy().await);
        assert_eq!(world.far.names().await.len(), 0);
        assert_eq!(world.get("key").await, bytes);
    }
}

#[tokio::test]
async fn another_copy_of_the_same_size_is_no_copy_of_it() {
    for size in [300_001, (9 << 20) + 17] {
        let world = World::new(Versioning::Off).await;
        let bytes = content(7, size);
        world.put_away("key", &bytes).await;
        let own = world.far.names().await.remove(0);
        world.put_away("other", &content(8, size)).await;
        let mut names = world.far.names().await;
        names.retain(|name| *name != own);
        let other = world.far.objects.get(&names[0]).await.expect("there");
        let other = other.bytes().await.expect("read");
        let put = world.far.objects.put(&own, other.into()).await;
        put.expect("write");
        for (first, last) in [(0, 9), (70_000, 200_000), (250_000, 300_000)] {
            let read = world.read("key", ByteRange::Inclusive(first, last)).await;
            let error = read.expect_err("bytes of another value");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{first} of {size}");
        }
    }
}

#[tokio::test]
async fn damaged_copies_are_errors_and_never_bytes() {
    let bytes = content(5, (2 << 20) + 9);
    let world = World::new(Versioning::Off).await;
    world.put_away("key", &bytes).await;
    let copy = world.far.names().await.remove(0);
    world.far.damage(&copy, 1_500_000).await;
    let whole = world.read("key", ByteRange::Full).await;
    assert_eq!(whole.expect_err("damaged").kind(), ErrorKind::Corrupt);
    assert!(
        world.is_cold("key").await,
        "what is damaged does not come back"
    );
    let part = world
        .read("key", ByteRange::Inclusive(1_499_999, 1_499_999))
        .await;
    assert_eq!(part.expect_err("the same block").kind(), ErrorKind::Corrupt);
    let part = world.read("key", ByteRange::Inclusive(10, 1_400_000)).await;
    assert_eq!(part.expect("other blocks"), &bytes[10..=1_400_000]);
    // Its sums are no better than its bytes.
    let trailer = bytes.len() + 24 + 3;
    world.far.damage(&copy, trailer).await;
    let part = world.read("key", ByteRange::Inclusive(0, 9)).await;
    assert_eq!(part.expect_err("no sum").kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_copy_that_is_missing_is_said_so() {
    use object_store::ObjectStoreExt;
    let world = World::new(Versioning::Off).await;
    world.put_away("key", b"these bytes").await;
    let copy = world.far.names().await.remove(0);
    world.far.objects.delete(&copy).await.expect("delete");
    let error = world.read("key", ByteRange::Full).await.expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains("missing"), "{error}");
}

#[tokio::test]
async fn while_the_far_side_is_away_all_else_goes_on() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(6, 300_001);
    let meta = world.put_away("cold", &bytes).await;
    world.put("hot", b"hot bytes").await;
    let usage = world.cold.usage(Scope::Namespace("ns")).expect("usage");
    world.far.knobs.down.store(true, SeqCst);

    for range in [ByteRange::Full, ByteRange::Inclusive(5, 10)] {
        let error = world.read("cold", range).await.expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.message().contains("cold tier"), "{error}");
    }
    assert_eq!(world.get("hot").await, b"hot bytes");
    assert_eq!(
        world.cold.stat(object("cold"), None).await.expect("stat"),
        meta
    );
    assert_eq!(
        world.cold.usage(Scope::Namespace("ns")).expect("usage"),
        usage
    );
    let options = StoreOptions {
        condition: Condition::IfAbsent,
        ..StoreOptions::default()
    };
    let taken = world.cold.store(object("cold"), options).await;
    let error = taken.err().expect("there is a value");
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed);
    let policy = forebay_tier::cold::Policy {
        larger_than: 0,
        ..Default::default()
    };
    world.policy(&policy).await;
    let passed = world.mover().run("ns").await.expect("run");
    assert!(
        passed.gave_up && passed.moved == 0 && passed.cold == 1,
        "{passed:?}"
    );
    world.delete("cold").await;
    assert!(!world.mover().tidy().await, "its copy waits");
    assert_eq!(
        world.mover().metrics().waiting,
        2,
        "this one and that of the move"
    );

    world.far.knobs.down.store(false, SeqCst);
    assert!(world.mover().tidy().await);
    assert_eq!(world.far.names().await.len(), 0);
    assert_eq!(world.get("hot").await, b"hot bytes");
}

#[tokio::test]
async fn a_line_that_breaks_in_the_middle_gives_no_more_than_came() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(7, (9 << 20) + 17);
    world.put_away("key", &bytes).await;
    let some = ByteRange::Inclusive(1, bytes.len() as u64 - 1);
    let found = world.cold.retrieve(object("key"), None, some).await;
    let mut body = found.expect("retrieve").body;
    use forebay_store::Body;
    let first = body.next().await.expect("comes").expect("some");
    assert_eq!(&first[..], &bytes[1..=first.len()]);
    world.far.knobs.down.store(true, SeqCst);
    let mut came = first.len();
    let error = loop {
        match body.next().await {
            Ok(Some(buf)) => {
                assert_eq!(&buf[..], &bytes[1 + came..1 + came + buf.len()]);
                came += buf.len();
            }
            Ok(None) => panic!("an end before the end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Busy);
}

/// A server whose list goes on and on.
#[tokio::test]
async fn an_answer_that_has_no_end_is_given_up() {
    let world = World::new(Versioning::Off).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("asked");
        let head = b"HTTP/1.1 200 OK\r\n\r\n<?xml version=\"1.0\"?><ListBucketResult>";
        stream.write_all(head).await.expect("heard");
        let mut sent = 0;
        while stream.write_all(&[b' '; 65_536]).await.is_ok() {
            sent += 65_536;
        }
        sent
    });
    let error = sweep_of(&world, address).await;
    assert_eq!(error.expect_err("no list").kind(), ErrorKind::Busy);
    assert!(serving.await.expect("served") < 64 << 20);
}

/// A bucket that is not there, or not for us: said so, and no copy counts as lost for it.
#[tokio::test]
async fn why_the_bucket_answers_nothing_is_said() {
    let world = World::new(Versioning::Off).await;
    world.never_back().await;
    let bytes = content(9, (9 << 20) + 17);
    world.put_away("cold", &bytes).await;
    for (answer, words, reads) in [
        (
            "404 Not Found NoSuchBucket",
            "bucket is not there",
            ErrorKind::Busy,
        ),
        (
            "403 Forbidden AccessDenied",
            "refuses the keys",
            ErrorKind::Busy,
        ),
        (
            "401 Unauthorized Unauthorized",
            "refuses the keys",
            ErrorKind::Busy,
        ),
        (
            "400 Bad Request Whatever",
            "cannot be reached",
            ErrorKind::Busy,
        ),
        (
            "404 Not Found NoSuchKey",
            "copy of the value is missing",
            ErrorKind::Io,
        ),
    ] {
        let (address, serving) = refusing(answer).await;
        let cold = over_objects(world.hot.clone(), objects_at(address), &world.clock);
        let found = cold.retrieve(object("cold"), None, ByteRange::Full).await;
        let error = drain(found.expect("known")).await.expect_err("no bytes");
        assert_eq!(error.kind(), reads, "{answer}");
        assert!(error.message().contains(words), "{answer}: {error}");
        let mover = cold.mover().expect("a bucket");
        for size in [5000, (9 << 20) + 17] {
            let meta = world.put("hot", &content(1, size)).await;
            let moved = mover.move_out(object("hot"), &meta).await;
            let listed = mover.sweep().await.map(drop);
            for error in [moved, listed].map(|done| done.expect_err("refused")) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{answer}");
                let is_said = reads == ErrorKind::Io || error.message().contains(words);
                assert!(is_said, "{answer}: {error}");
            }
        }
        serving.abort();
    }
}

/// As a rule in a bucket does that ends unfinished uploads.
#[tokio::test]
async fn an_upload_that_was_ended_at_the_far_side_is_one_values_affair() {
    let world = World::new(Versioning::Off).await;
    let begun =
        "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
    let begun = answer("200 OK", begun);
    let (address, serving) = serving(begun, refusal("404 Not Found NoSuchUpload")).await;
    let cold = over_objects(world.hot.clone(), objects_at(address), &world.clock);
    let meta = world.put("hot", &content(1, (9 << 20) + 17)).await;
    let moved = cold
        .mover()
        .expect("a bucket")
        .move_out(object("hot"), &meta);
    let error = moved.await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    serving.abort();
}

fn answer(status: &str, body: &str) -> String {
    let head = format!("content-length: {}\r\nconnection: close", body.len());
    format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}")
}

/// The answer of an S3 with this status and code.
fn refusal(refused: &str) -> String {
    let (status, code) = refused.rsplit_once(' ').expect("both");
    answer(status, &format!("<Error><Code>{code}</Code></Error>"))
}

/// An S3 that answers everything with this status and code.
async fn refusing(refused: &str) -> (SocketAddr, JoinHandle<()>) {
    serving(refusal(refused), refusal(refused)).await
}

/// An S3 that gives the first answer to whoever begins an upload in parts, and the other to everything else.
async fn serving(begun: String, otherwise: String) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("asked");
            let mut stream = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            let mut answer = &otherwise;
            while stream.read_line(&mut line).await.is_ok_and(|len| len > 2) {
                if let Some(said) = line.to_lowercase().strip_prefix("content-length:") {
                    length = said.trim().parse().expect("a number");
                }
                if line.starts_with("POST") && line.contains("?uploads") {
                    answer = &begun;
                }
                line.clear();
            }
            let mut sent = vec![0; length];
            if stream.read_exact(&mut sent).await.is_ok() {
                // Whoever has gone away is not told.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    (address, serving)
}

/// A sweep of what the S3 at `address` holds.
async fn sweep_of(world: &World, address: SocketAddr) -> forebay_store::Result<Swept> {
    let cold = over_objects(world.hot.clone(), objects_at(address), &world.clock);
    cold.mover().expect("a bucket").sweep().await
}

fn objects_at(address: SocketAddr) -> Arc<dyn ObjectStore> {
    let url = ColdUrl::parse(&format!("s3://bucket?endpoint=http://{address}")).expect("legal");
    let secret = Secret {
        access_key: "key".to_owned(),
        secret_key: "secret".to_owned(),
        session_token: None,
    };
    let objects = url.open(Some(secret), None, &Handle::current());
    objects.expect("open")
}

/// A server that says of the next page what it said of the last.
#[tokio::test]
async fn a_list_that_begins_again_is_given_up_and_nothing_deleted() {
    let world = World::new(Versioning::Off).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let name = |at: u8| {
        format!(
            "<Contents><Key>{HOME}/00000001/{at:024x}</Key><Size>1</Size>\
             <LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
        )
    };
    let page = format!(
        "<ListBucketResult>{}{}<IsTruncated>true</IsTruncated>\
         <NextContinuationToken>next</NextContinuationToken></ListBucketResult>",
        name(1),
        name(2)
    );
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let asking = asked.clone();
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("asked");
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.is_ok_and(|len| len > 0) {
                asking.lock().expect("whole").push(line.clone());
                while stream.read_line(&mut line).await.is_ok_and(|len| len > 2) {}
                line.clear();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
                for part in [head.as_bytes(), page.as_bytes()] {
                    if stream.write_all(part).await.is_err() {
                        break;
                    }
                }
            }
        }
    });
    let error = sweep_of(&world, address).await.expect_err("no list");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let asked = asked.lock().expect("whole");
    assert!((2..10).contains(&asked.len()), "{asked:?}");
    assert!(
        asked.iter().all(|line| line.starts_with("GET ")),
        "{asked:?}"
    );
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_list_without_news_or_end_is_given_up() {
    let world = World::new(Versioning::Off).await;
    world.put_away("key", &content(9, 5000)).await;
    let orphan = world.far.names().await[0].to_string().replace('0', "1");
    let orphan = orphan.replace("tier/1111", HOME).into();
    let put = world.far.objects.put(&orphan, vec![1].into());
    put.await.expect("written");
    for (knob, kind) in [
        (&world.far.knobs.circles, ErrorKind::Io),
        (&world.far.knobs.dawdles, ErrorKind::Busy),
    ] {
        knob.store(true, SeqCst);
        let error = world.mover().sweep().await.expect_err("no end");
        assert_eq!(error.kind(), kind);
        knob.store(false, SeqCst);
        assert_eq!(world.far.names().await.len(), 2);
    }
    assert_eq!(swept_twice(world.mover()).await, 1);
    assert_eq!(world.get("key").await, content(9, 5000));
}

/// A store that has not heard yet which namespaces there are.
struct Late {
    store: Arc<MemoryStore>,
    heard: AtomicBool,
}

impl Store for Late {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    async fn settle(&self) -> Result<()> {
        self.heard.store(true, SeqCst);
        self.store.settle().await
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        match self.heard.load(SeqCst) {
            true => self.store.namespaces(),
            false => Vec::new(),
        }
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten,
        execute, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, usage,
        set_tenant_quota, tenant_quota, changes
    }
}

#[tokio::test]
async fn copies_of_a_namespace_that_was_not_heard_of_stay() {
    let world = World::new(Versioning::Off).await;
    world.put_away("key", &content(9, 5000)).await;
    let late = Late {
        store: world.hot.clone(),
        heard: AtomicBool::new(false),
    };
    let cold = over(Arc::new(late), &world.far, &world.clock);
    let swept = cold.mover().expect("a bucket").sweep().await;
    assert_eq!(swept.expect("a list"), Swept::default());
    assert_eq!(world.get("key").await, content(9, 5000));
}

/// A store of which something cannot be read: its lists pass it over, or it says so when it is asked for it.
struct Damaged {
    store: Arc<MemoryStore>,
    listed: bool,
}

impl Store for Damaged {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        let mut page = self.store.list_versions(options).await?;
        if !self.listed && !page.items.is_empty() {
            page.items.clear();
            page.passed_over.push("key".into());
        }
        Ok(page)
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        match self.listed {
            true => Err(StoreError::new(ErrorKind::Corrupt, "as the test said")),
            false => self.store.away(address, version).await,
        }
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, let_go, take_back, forgotten,
        execute, list, settle, create_namespace, delete_namespace, update_namespace, namespace, namespaces, usage,
        set_tenant_quota, tenant_quota, changes
    }
}

#[tokio::test]
async fn copies_that_what_cannot_be_read_may_refer_to_stay() {
    let world = World::new(Versioning::Off).await;
    world.put_away("key", &content(9, 5000)).await;
    for listed in [false, true] {
        let damaged = Damaged {
            store: world.hot.clone(),
            listed,
        };
        let cold = over(Arc::new(damaged), &world.far, &world.clock);
        let swept = cold.mover().expect("a bucket").sweep().await;
        assert_eq!(swept.expect("a list"), Swept::default());
    }
    assert_eq!(world.get("key").await, content(9, 5000));
}

/// A store that commits nothing while it is told so.
#[derive(Clone, Default)]
struct Stuck(Arc<AtomicBool>);

impl Detour<MemoryStore> for Stuck {
    async fn commit(&self, upload: MemoryUpload, seal: Seal) -> Result<Stored> {
        match self.0.load(SeqCst) {
            true => Err(StoreError::new(ErrorKind::Busy, "as the test said")),
            false => upload.commit(seal).await,
        }
    }
}

#[tokio::test]
async fn what_the_near_side_cannot_take_back_is_read_from_the_far_side() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(3, 300_001);
    world.put_away("key", &bytes).await;
    let stuck = Stuck::default();
    let near = Around {
        store: MemoryStore::clone(&world.hot),
        detour: stuck.clone(),
    };
    let cold = over(Arc::new(near), &world.far, &world.clock);
    stuck.0.store(true, SeqCst);
    let found = cold.retrieve(object("key"), None, ByteRange::Full).await;
    assert_eq!(drain(found.expect("there")).await.expect("read"), bytes);
    assert!(world.is_cold("key").await);
    stuck.0.store(false, SeqCst);
    let found = cold.retrieve(object("key"), None, ByteRange::Full).await;
    assert_eq!(drain(found.expect("there")).await.expect("read"), bytes);
    assert!(!world.is_cold("key").await);
}
