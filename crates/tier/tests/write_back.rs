//! Values answered before the store has committed them: who waits for them, and for no others.
#![forbid(unsafe_code)]

mod support;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use forebay_store::suite::{Around, Detour, TestClock};
use forebay_store::{
    Address, ByteRange, DeleteOptions, Deleted, Durability, ErrorKind, Etag, ListOptions,
    MemoryStore, NamespaceConfig, Quota, Result, Seal, Space, Store, StoreError, StoreOptions,
    Stored, Upload, VersionId, Versioning,
};
use forebay_tier::{Tier, Unlanded};
use support::{Below, NS, Probe, TENANT};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const RELAXED: Durability = Durability::Relaxed { within_ms: 100 };

/// A store with a namespace whose values may be acknowledged early.
async fn relaxed(clock: &TestClock) -> MemoryStore {
    let relaxed = NamespaceConfig {
        durability: RELAXED,
        ..NamespaceConfig::default()
    };
    support::with_namespace(clock, relaxed).await
}

/// A tier over a store whose commits wait until the probe lets them.
async fn made() -> (Tier<Below>, MemoryStore, Probe) {
    let clock = TestClock::default();
    let store = relaxed(&clock).await;
    let probe = Probe {
        commits: Arc::new(Semaphore::new(0)),
        ..Probe::default()
    };
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 1 << 20;
    (support::tier(&store, &probe, config), store, probe)
}

fn relaxed_no_more(durability: Durability, versioning: Versioning) -> NamespaceConfig {
    NamespaceConfig {
        tenant: TENANT.to_owned(),
        durability,
        versioning,
        ..NamespaceConfig::default()
    }
}

/// What waits for all that is pending in a namespace.
async fn ask(tier: Tier<Below>, what: &str) {
    match what {
        "list" => {
            let options = ListOptions {
                namespace: NS,
                space: Space::Objects,
                prefix: b"",
                delimiter: None,
                after: Default::default(),
                limit: 10,
            };
            let page = tier.list(options).await.expect("a list");
            assert_eq!(page.items.len(), 1, "what was acknowledged before");
        }
        "update" => {
            let config = relaxed_no_more(Durability::Sync, Versioning::Off);
            tier.update_namespace(NS, None, config)
                .await
                .expect("a change");
        }
        "delete" => {
            let refused = tier.delete_namespace(NS).await.expect_err("it has a value");
            assert_eq!(refused.kind(), ErrorKind::NamespaceNotEmpty);
        }
        _ => {
            let set = tier.set_tenant_quota(TENANT, Quota::default());
            set.await.expect("a quota");
        }
    }
}

#[tokio::test]
async fn what_is_stored_on_and_on_holds_nobody_up() {
    for what in ["list", "update", "delete", "quota"] {
        let (tier, store, probe) = made().await;
        support::put(&tier, "before", b"value").await;
        let mut asked = tokio::spawn(ask(tier.clone(), what));
        tokio::task::yield_now().await;
        assert!(!asked.is_finished(), "{what} waits for what was before");
        support::put(&tier, "meanwhile", b"value").await;
        probe.commits.add_permits(1);
        let ended = tokio::time::timeout(Duration::from_secs(20), &mut asked).await;
        ended.expect(what).expect("no panic");
        assert!(support::get(&store, "before").await.is_ok());
        assert!(support::get(&store, "meanwhile").await.is_err());
    }
}

/// What a process does at its end, begun.
async fn landing(tier: &Tier<Below>) -> JoinHandle<()> {
    let tier = tier.clone();
    let landing = tokio::spawn(async move { tier.land().await });
    tokio::task::yield_now().await;
    landing
}

#[tokio::test]
async fn nothing_is_acknowledged_early_once_all_is_to_land() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "before", b"value").await;
    let landing = landing(&tier).await;
    let late = tokio::spawn({
        let tier = tier.clone();
        async move { support::put(&tier, "late", b"another").await }
    });
    tokio::task::yield_now().await;
    let before = Unlanded {
        values: 1,
        bytes: 5,
    };
    assert_eq!(tier.unlanded(), before);
    assert!(!landing.is_finished());

    probe.commits.add_permits(1);
    landing.await.expect("no panic");
    assert_eq!(tier.unlanded(), Unlanded::default());
    assert!(support::get(&store, "before").await.is_ok());
    assert!(!late.is_finished(), "it has not landed yet");

    probe.commits.add_permits(1);
    late.await.expect("no panic");
    assert!(support::get(&store, "late").await.is_ok());
}

#[tokio::test]
async fn what_the_store_refuses_at_the_end_is_told() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "k", b"value").await;
    let landing = landing(&tier).await;
    store.delete_namespace(NS).await.expect("it is empty yet");
    probe.commits.add_permits(1);
    landing.await.expect("no panic");
    let lost = Unlanded {
        values: 1,
        bytes: 5,
    };
    assert_eq!(tier.unlanded(), lost);
}

/// What a store answers to commits, one after the other; then it does them.
#[derive(Clone)]
struct Answers(Arc<Mutex<VecDeque<Option<ErrorKind>>>>);

impl Detour<MemoryStore> for Answers {
    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        let answer = self.0.lock().expect("no panic").pop_front();
        match answer {
            Some(Some(kind)) => Err(StoreError::new(kind, "as the test said")),
            Some(None) => panic!("as the test said"),
            None => upload.commit(seal).await,
        }
    }
}

async fn answering(answers: &[Option<ErrorKind>]) -> Tier<Around<MemoryStore, Answers>> {
    let clock = TestClock::default();
    let below = Around {
        store: relaxed(&clock).await,
        detour: Answers(Arc::new(Mutex::new(answers.iter().copied().collect()))),
    };
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 8 << 20;
    Tier::new(Arc::new(below), config, None)
}

#[tokio::test(start_paused = true)]
async fn what_does_not_land_now_is_stored_again() {
    let tier = answering(&[
        Some(ErrorKind::Busy),
        Some(ErrorKind::OutcomeUnknown),
        Some(ErrorKind::Busy),
    ])
    .await;
    let value = support::bytes(3, 3 << 20);
    support::put(&tier, "k", &value).await;
    assert!(support::get(&tier, "k").await.expect("acknowledged") == value);
    tier.settle().await.expect("nothing to fail");
    let store = &tier.store_below().store;
    assert!(support::get(store, "k").await.expect("it landed") == value);
    assert_eq!(tier.metrics().expect("on").write_backs_lost, 0);
    assert!(support::get(&tier, "k").await.expect("held") == value);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_land_in_two_minutes_keeps_nobody_waiting_longer() {
    for kind in [ErrorKind::Busy, ErrorKind::Io, ErrorKind::OutcomeUnknown] {
        let tier = answering(&[Some(kind); 1000]).await;
        support::put(&tier, "k", b"value").await;
        let began = Instant::now();
        let removed = tier.delete_namespace(NS);
        let removed = tokio::time::timeout(Duration::from_secs(150), removed).await;
        removed.expect("it ends").expect("nothing is in it");
        assert!(began.elapsed() >= Duration::from_secs(120), "{kind:?}");
        assert_eq!(tier.metrics().expect("on").write_backs_lost, 1);
        assert!(support::get(&tier, "k").await.is_err());
    }
}

#[tokio::test]
async fn what_is_refused_for_good_is_lost_once() {
    let tier = answering(&[Some(ErrorKind::NoSpace)]).await;
    support::put(&tier, "k", b"value").await;
    tier.settle().await.expect("nothing to fail");
    assert_eq!(tier.metrics().expect("on").write_backs_lost, 1);
    assert!(support::get(&tier, "k").await.is_err());
}

#[tokio::test]
async fn a_panic_of_the_store_keeps_nobody_waiting() {
    let tier = answering(&[None]).await;
    support::put(&tier, "k", b"value").await;
    let landed = tokio::time::timeout(Duration::from_secs(20), tier.land());
    landed.await.expect("it ends");
    let lost = Unlanded {
        values: 1,
        bytes: 5,
    };
    assert_eq!(tier.unlanded(), lost);
    assert_eq!(tier.metrics().expect("on").write_backs_lost, 1);
}

#[tokio::test]
async fn values_of_no_bytes_take_room_too() {
    let (tier, _, _) = made().await;
    for at in 0..256 {
        support::put(&tier, &format!("{at}"), b"").await;
    }
    let one_more = tokio::spawn({
        let tier = tier.clone();
        async move { support::put(&tier, "one more", b"").await }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!one_more.is_finished(), "it waits for the store");
    assert_eq!(tier.unlanded().values, 256);
}

#[tokio::test]
async fn attributes_take_room_too() {
    let (tier, _, _) = made().await;
    for key in ["a", "b"] {
        support::put_with(&tier, key, &support::long_attributes(400 << 10)).await;
    }
    let one_more = tokio::spawn({
        let tier = tier.clone();
        async move { support::put_with(&tier, "c", &support::long_attributes(400 << 10)).await }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!one_more.is_finished(), "it waits for the store");
    assert_eq!(tier.unlanded().values, 2);
}

#[tokio::test]
async fn what_waits_is_gone_when_its_time_is_over() {
    let (tier, store, probe) = made().await;
    support::put(&store, "k", b"old").await;
    let over = TestClock::default().now();
    let options = StoreOptions {
        size: Some(5),
        ..StoreOptions::default()
    };
    let mut upload = tier.store(K, options).await.expect("room");
    upload.write(b"value".to_vec().into()).await.expect("room");
    let seal = Seal {
        expires: Some(over),
        ..Seal::default()
    };
    upload.commit(seal).await.expect("acknowledged");
    let asked = tokio::spawn({
        let tier = tier.clone();
        async move {
            let read = support::get(&tier, "k").await.map(drop);
            let stat = tier.stat(K, None).await.map(drop);
            let exist = tier.exist(&[K]).await.expect("an answer");
            (read, stat, exist)
        }
    });
    tokio::task::yield_now().await;
    probe.commits.add_permits(1);
    let (read, stat, exist) = asked.await.expect("no panic");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(stat.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(exist, [None]);
}

#[tokio::test]
async fn a_namespace_that_got_the_name_meanwhile_is_not_what_was_meant() {
    let (tier, store, probe) = made().await;
    support::put(&tier, "k", b"value").await;
    let removing = tokio::spawn({
        let tier = tier.clone();
        async move { tier.delete_namespace(NS).await }
    });
    tokio::task::yield_now().await;
    store.delete_namespace(NS).await.expect("it is empty yet");
    let config = NamespaceConfig {
        tenant: "another".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = store.create_namespace(NS, config).await;
    let made = made.expect("the name is free");
    probe.commits.add_permits(1);
    let removed = removing.await.expect("no panic");
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::NoSuchNamespace);
    assert_eq!(store.namespace(NS).expect("it stays").id, made.id);
}

#[tokio::test]
async fn the_version_that_is_none_is_waited_for() {
    let (tier, _, probe) = made().await;
    let value = support::bytes(1, 5000);
    support::put(&tier, "k", &value).await;
    let read = tokio::spawn({
        let tier = tier.clone();
        async move {
            let address = Address::object(NS, b"k");
            let version = Some(VersionId::NULL);
            let meta = tier.stat(address, version).await?;
            let object = tier.retrieve(address, version, ByteRange::Full).await?;
            assert_eq!(object.meta, meta);
            support::drain(object.body).await
        }
    });
    tokio::task::yield_now().await;
    probe.commits.add_permits(1);
    let read = read.await.expect("no panic");
    assert!(read.expect("it was acknowledged") == value);
}

#[tokio::test]
async fn an_upload_heeds_what_its_namespace_has_become() {
    for (durability, versioning) in [
        (Durability::Sync, Versioning::Off),
        (RELAXED, Versioning::Enabled),
    ] {
        let (tier, store, probe) = made().await;
        let address = Address::object(NS, b"k");
        let options = StoreOptions {
            size: Some(5),
            ..StoreOptions::default()
        };
        let mut upload = tier.store(address, options).await.expect("room");
        upload.write(b"value".to_vec().into()).await.expect("room");
        let config = relaxed_no_more(durability, versioning);
        tier.update_namespace(NS, None, config)
            .await
            .expect("a change");
        probe.commits.add_permits(1);
        let stored = upload.commit(Seal::default()).await.expect("committed");
        let found = store.stat(address, None).await.expect("it is there");
        assert_eq!(found, stored.meta);
        assert_eq!(
            found.version == VersionId::NULL,
            versioning == Versioning::Off
        );
    }
}

/// What a store waits with until a test opens it: `commit TAG` and `answer TAG` of the value of that tag, `delete`.
#[derive(Clone)]
struct Gates(Arc<HashMap<&'static str, Semaphore>>);

impl Gates {
    fn closed(names: &[&'static str]) -> Gates {
        let gates = names.iter().map(|name| (*name, Semaphore::new(0)));
        Gates(Arc::new(gates.collect()))
    }

    fn open(&self, name: &str) {
        self.0[name].add_permits(1);
    }

    async fn pass(&self, name: &str) {
        if let Some(gate) = self.0.get(name) {
            gate.acquire().await.expect("never closed").forget();
        }
    }
}

impl Detour<MemoryStore> for Gates {
    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        let tag = seal.etag.map_or_else(String::new, |tag| tag.to_string());
        self.pass(&format!("commit {tag}")).await;
        let stored = upload.commit(seal).await;
        self.pass(&format!("answer {tag}")).await;
        stored
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        self.pass("delete").await;
        store.delete(address, options).await
    }
}

type Gated = Tier<Around<MemoryStore, Gates>>;

const K: Address<'static> = Address {
    namespace: NS,
    space: Space::Objects,
    key: b"k",
};

fn gated(store: &MemoryStore, gates: &Gates, mut config: forebay_tier::Config) -> Gated {
    config.write_back_bytes = 1 << 20;
    let below = Around {
        store: store.clone(),
        detour: gates.clone(),
    };
    Tier::new(Arc::new(below), config, None)
}

/// An upload that has its bytes.
async fn uploaded(tier: &Gated, value: &[u8]) -> <Gated as Store>::Upload {
    let options = StoreOptions {
        size: Some(value.len() as u64),
        ..StoreOptions::default()
    };
    let mut upload = tier.store(K, options).await.expect("room");
    upload.write(value.to_vec().into()).await.expect("room");
    upload
}

fn tagged(tag: &str) -> Seal {
    Seal {
        etag: Etag::new(tag),
        ..Seal::default()
    }
}

#[tokio::test]
async fn what_was_deleted_meanwhile_is_not_read_again() {
    let clock = TestClock::default();
    let store = relaxed(&clock).await;
    let gates = Gates::closed(&["delete", "answer 0"]);
    let tier = gated(&store, &gates, support::config(64 << 20, &clock));
    let deleting = tokio::spawn({
        let tier = tier.clone();
        async move { tier.delete(K, DeleteOptions::default()).await }
    });
    tokio::task::yield_now().await;
    let upload = uploaded(&tier, b"value").await;
    let storing = tokio::spawn(upload.commit(tagged("0")));
    while store.stat(K, None).await.is_err() {
        tokio::task::yield_now().await;
    }
    // The store has it, and the answer is on its way.
    gates.open("delete");
    let deleted = deleting.await.expect("no panic").expect("deleted");
    assert!(deleted.existed);
    let gone = support::get(&tier, "k").await.expect_err("it was deleted");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    gates.open("answer 0");
    storing.await.expect("no panic").expect("committed");
    let gone = support::get(&tier, "k").await.expect_err("it was deleted");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_two_values_at_once_the_one_that_the_store_has_is_read() {
    let clock = TestClock::default();
    let store = relaxed(&clock).await;
    let gates = Gates::closed(&["commit 0", "answer 0", "commit 1", "answer 1"]);
    // Who asks for the time while this is armed waits for another who does: both see that nothing waits, and then both want to.
    let (armed, both) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let config = forebay_tier::Config::new(64 << 20, {
        let armed = armed.clone();
        Arc::new(move || {
            let asked = armed.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            if asked.is_ok() {
                both.wait();
            }
            clock.now()
        })
    });
    let tier = gated(&store, &gates, config);
    let values: [&[u8]; 2] = [b"one", b"other"];
    let mut uploads = Vec::new();
    for value in values {
        uploads.push(uploaded(&tier, value).await);
    }
    armed.store(2, SeqCst);
    let commits = (0..).zip(uploads);
    let commits = commits.map(|(number, upload): (usize, _)| {
        let seal = tagged(&number.to_string());
        tokio::spawn(async move { upload.commit(seal).await.map(|_| number) })
    });
    let commits: Vec<_> = commits.collect();
    let [mut one, mut other]: [_; 2] = commits.try_into().expect("two");
    // One is acknowledged before the store has it.
    let (early, mut late) = tokio::select! {
        early = &mut one => (early, other),
        early = &mut other => (early, one),
    };
    let early = early.expect("no panic").expect("acknowledged");
    let then = 1 - early;
    gates.open(&format!("commit {early}"));
    while support::get(&store, "k").await.is_err() {
        tokio::task::yield_now().await;
    }
    gates.open(&format!("commit {then}"));
    gates.open(&format!("answer {then}"));
    // Once it is acknowledged it is read, though the first was not told yet that it is in the store.
    let acknowledged = tokio::time::timeout(Duration::from_millis(200), &mut late).await;
    if acknowledged.is_ok() {
        let read = support::get(&tier, "k").await.expect("a value");
        assert_eq!(read, values[then]);
    }
    gates.open(&format!("answer {early}"));
    if acknowledged.is_err() {
        late.await.expect("no panic").expect("committed");
    }
    let read = support::get(&tier, "k").await.expect("a value");
    assert_eq!(read, values[then]);
}
