//! What only a leaf over a cluster has: objects that other hands write, several gateways, gateways that die.

#[path = "../../mem/tests/skipping/mod.rs"]
mod skipping;
mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_mem::Region;
use forebay_rados::RadosStore;
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, After, Away, Body, ByteRange, Condition, ErrorKind, Item, ListOptions, Notice, Scope,
    Seal, Source, Space, Store, StoreOptions, Upload,
};
use skipping::skip;
use support::{
    bytes, cluster, config, drain, fresh, get, open, put, rados, runtime, space, versioned,
};

/// Set for a test that was started by a test, to be killed by it.
const VICTIM: &str = "FOREBAY_RADOS_VICTIM";

/// Of gateways that are killed: short, so that their lease is soon over; long enough that a busy machine does not lose it.
const LEASE: Duration = Duration::from_secs(6);
/// So long what a gateway sent is waited for, and some seconds more, before it is swept.
const PATIENCE: Duration = Duration::from_secs(5);
/// The lease of one who died is over by then, many times.
const SWEPT_WITHIN: Duration = Duration::from_secs(60);

async fn names(store: &RadosStore, namespace: &str, space: Space) -> Vec<String> {
    let options = ListOptions {
        namespace,
        space,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit: 1000,
    };
    let page = store.list(options).await.unwrap();
    let name = |item| match item {
        Item::Value(key, _) | Item::Prefix(key) => String::from_utf8_lossy(&key).into_owned(),
    };
    page.items.into_iter().map(name).collect()
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn plain_objects_both_ways() {
    let cluster = cluster();
    let config = config(&cluster);
    let place = format!("{}/plain", config.base);
    let folder = std::env::temp_dir().join(&config.base);
    std::fs::write(&folder, bytes(1, 200_000)).unwrap();
    let file = folder.to_str().unwrap().to_owned();
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        space(&store, "plain").await;
        let theirs = Address::object("plain", b"theirs");
        rados(&cluster, &place, &["put", "theirs", &file]);
        assert_eq!(get(&store, theirs).await, bytes(1, 200_000));
        let meta = store.stat(theirs, None).await.unwrap();
        assert_eq!(
            meta.etag,
            forebay_store::Etag::of_value(meta.crc64nvme, 200_000)
        );
        assert_eq!(names(&store, "plain", Space::Objects).await, ["theirs"]);
        // Over a value of ours, and back.
        let ours = Address::object("plain", b"ours");
        put(&store, ours, &bytes(2, 70_000)).await;
        assert_eq!(
            rados(&cluster, &place, &["get", "ours", "-"]),
            bytes(2, 70_000)
        );
        rados(&cluster, &place, &["put", "ours", &file]);
        assert_eq!(get(&store, ours).await, bytes(1, 200_000));
        rados(&cluster, &place, &["put", "ours", &file]);
        put(&store, ours, b"short").await;
        assert_eq!(rados(&cluster, &place, &["get", "ours", "-"]), b"short");
        // What nobody asked for yet is found by looking through the pool.
        rados(&cluster, &place, &["put", "unseen", &file]);
        assert_eq!(store.adopt("plain").await.unwrap().more, 1);
        assert_eq!(
            names(&store, "plain", Space::Objects).await,
            ["ours", "theirs", "unseen"]
        );
        let usage = store.usage(Scope::Namespace("plain")).unwrap();
        assert_eq!((usage.objects, usage.bytes), (3, 400_005));
        rados(&cluster, &place, &["rm", "unseen"]);
        store.adopt("plain").await.unwrap();
        assert_eq!(
            names(&store, "plain", Space::Objects).await,
            ["ours", "theirs"]
        );
        let audit = store.audit("plain").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
    std::fs::remove_file(folder).unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_nobody_asks_for_is_taken_over() {
    let cluster = cluster();
    let mut config = config(&cluster);
    let place = format!("{}/plain", config.base);
    let file = std::env::temp_dir().join(&config.base);
    std::fs::write(&file, bytes(1, 9000)).unwrap();
    let write = |key: &str| rados(&cluster, &place, &["put", key, file.to_str().unwrap()]);
    let listed = async |store: &RadosStore, keys: &[&str]| {
        let there = async {
            while names(store, "plain", Space::Objects).await != keys {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), there).await;
        in_time.expect("what another hand wrote is listed");
    };
    runtime().block_on(async {
        let store = open(config.clone(), TestClock::default());
        space(&store, "plain").await;
        put(&store, Address::object("plain", b"ours"), b"ours").await;
        store.close().await;
        write("theirs");
        // When it starts, and every so often.
        config.adopt = Some(Duration::from_secs(2));
        let store = open(config.clone(), TestClock::default());
        listed(&store, &["ours", "theirs"]).await;
        write("too");
        listed(&store, &["ours", "theirs", "too"]).await;
        let counted = async {
            while store.usage(Scope::Namespace("plain")).unwrap().bytes != 18_004 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), counted).await;
        in_time.expect("and counted");
        store.close().await;
        // Who leaves lets the next one do it at once, and one is enough.
        config.adopt = Some(Duration::from_secs(3600));
        write("unseen");
        let store = open(config.clone(), TestClock::default());
        listed(&store, &["ours", "theirs", "too", "unseen"]).await;
        write("later");
        let other = open(config, TestClock::default());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(names(&other, "plain", Space::Objects).await.len(), 4);
        assert_eq!(other.adopt("plain").await.unwrap().more, 1);
        let audit = other.audit("plain").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 5, "{audit:?}");
    });
    std::fs::remove_file(&file).unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn large_objects_of_another_hand_are_read_as_they_are() {
    let cluster = cluster();
    let config = config(&cluster);
    let place = format!("{}/plain", config.base);
    let file = std::env::temp_dir().join(&config.base);
    let write = |seed: u8, len: usize| {
        std::fs::write(&file, bytes(seed, len)).unwrap();
        rados(&cluster, &place, &["put", "k", file.to_str().unwrap()])
    };
    const LEN: usize = (9 << 20) + 70_001;
    runtime().block_on(async {
        let store = open(config.clone(), TestClock::default());
        space(&store, "plain").await;
        write(1, LEN);
        let key = Address::object("plain", b"k");
        assert!(get(&store, key).await == bytes(1, LEN));
        let (from, to) = ((4 << 20) - 3, (6 << 20) + 70_000);
        let range = ByteRange::Inclusive(from as u64, to as u64);
        let part = store.retrieve(key, None, range).await.unwrap();
        assert!(drain(part).await == bytes(1, LEN)[from..=to]);
        let into = Region::anonymous(LEN).unwrap().slice(0..LEN).unwrap();
        let landed = store.retrieve_into(key, None, ByteRange::Full, into.clone());
        assert_eq!(landed.await.unwrap().1, 0..LEN as u64);
        let mut seen = vec![0; LEN];
        assert!(into.read(0, &mut seen) && seen == bytes(1, LEN));
        // Written again while it is read: not a byte of the other value.
        let mut reading = store.retrieve(key, None, ByteRange::Full).await.unwrap();
        let first = reading.body.next().await.unwrap().unwrap();
        assert!(bytes(1, LEN).starts_with(&first));
        write(2, LEN);
        let mut read = first.len();
        let told = loop {
            match reading.body.next().await {
                Ok(Some(buf)) => {
                    assert!(bytes(1, LEN)[read..].starts_with(&buf));
                    read += buf.len();
                }
                Ok(None) => panic!("it ends with an error"),
                Err(error) => break error,
            }
        };
        assert!(told.to_string().contains("another hand"), "{told}");
        write(3, LEN + 1);
        assert!(get(&store, key).await == bytes(3, LEN + 1));
        put(&store, key, b"ours").await;
        store.settle().await.unwrap();
        let audit = store.audit("plain").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 1, "{audit:?}");
        let usage = store.usage(Scope::Namespace("plain")).unwrap();
        assert_eq!((usage.objects, usage.bytes), (1, 4));
    });
    std::fs::remove_file(&file).unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn large_values_are_striped() {
    let cluster = cluster();
    runtime().block_on(async {
        let mut config = config(&cluster);
        config.grace = Duration::ZERO;
        let store = open(config, TestClock::default());
        space(&store, "large").await;
        let key = Address::object("large", b"k");
        put(&store, key, &bytes(1, 11 << 20)).await;
        let reading = store.retrieve(key, None, ByteRange::Full).await.unwrap();
        put(&store, key, &bytes(2, (9 << 20) + 5)).await;
        store.settle().await.unwrap();
        store.sweep().await.unwrap();
        // Being read, the replaced stripes are still there; then they go.
        let mut body = reading.body;
        let mut read = Vec::new();
        while let Some(buf) = body.next().await.unwrap() {
            read.extend_from_slice(&buf);
        }
        assert!(read == bytes(1, 11 << 20));
        drop(body);
        let range = ByteRange::Inclusive((4 << 20) - 3, (4 << 20) + 70_000);
        let mut object = store.retrieve(key, None, range).await.unwrap();
        let mut part = Vec::new();
        while let Some(buf) = object.body.next().await.unwrap() {
            part.extend_from_slice(&buf);
        }
        assert!(part == bytes(2, (9 << 20) + 5)[(4 << 20) - 3..=(4 << 20) + 70_000]);
        store.sweep().await.unwrap();
        store.sweep().await.unwrap();
        let audit = store.audit("large").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 1, "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn gateways_see_each_other() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = config(&cluster);
        let clock = TestClock::default();
        let one = open(config.clone(), clock.clone());
        let two = open(config, clock);
        space(&one, "shared").await;
        assert_eq!(two.namespaces().len(), 1, "told before the call returns");
        let mut heard = two.changes().unwrap();
        let key = Address::object("shared", b"k");
        put(&one, key, b"from one").await;
        let changed = Notice::Changed {
            namespace: "shared".to_owned(),
            key: "k".into(),
        };
        assert_eq!(heard.next().await, Some(changed));
        assert_eq!(get(&two, key).await, b"from one");
        assert_eq!(names(&two, "shared", Space::Objects).await, ["k"]);
        put(&two, key, b"from two, longer").await;
        put(&one, key, b"one again").await;
        assert_eq!(get(&two, key).await, b"one again");
        // Both change the same keys at once: each change happens once, and the index ends up with the last.
        let write = async |store: &RadosStore, mark: u8| {
            for round in 0..60_u8 {
                let name = [b'k', b'0' + round % 3];
                let key = Address::object("shared", &name);
                match round % 5 {
                    4 => drop(store.delete(key, Default::default()).await.unwrap()),
                    _ => put(store, key, &bytes(mark ^ round, usize::from(round) * 10)).await,
                }
            }
        };
        tokio::join!(write(&one, 0), write(&two, 128));
        one.settle().await.unwrap();
        two.settle().await.unwrap();
        assert_eq!(
            names(&one, "shared", Space::Objects).await,
            names(&two, "shared", Space::Objects).await
        );
        let audit = one.audit("shared").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
        one.close().await;
        let audit = two.audit("shared").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
        two.close().await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn one_winner_between_gateways() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = config(&cluster);
        let clock = TestClock::default();
        let gateways = [open(config.clone(), clock.clone()), open(config, clock)];
        space(&gateways[0], "raced").await;
        let key = Address::object("raced", b"counter");
        put(&gateways[0], key, &0_u64.to_le_bytes()).await;
        let add = async |store: &RadosStore| {
            let mut done = 0;
            while done < 40 {
                let found = store.retrieve(key, None, ByteRange::Full).await.unwrap();
                let condition = Condition::IfMatch(found.meta.etag);
                let value = drain(found).await;
                let next = u64::from_le_bytes(value.try_into().unwrap()) + 1;
                let options = StoreOptions {
                    size: None,
                    condition,
                };
                let stored = async {
                    let mut upload = store.store(key, options).await?;
                    upload.write(next.to_le_bytes().to_vec().into()).await?;
                    upload.commit(Seal::default()).await
                };
                match stored.await {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed),
                }
            }
        };
        tokio::join!(add(&gateways[0]), add(&gateways[1]));
        assert_eq!(get(&gateways[1], key).await, 80_u64.to_le_bytes());
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_namespace_is_not_deleted_under_a_writer() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = config(&cluster);
        let clock = TestClock::default();
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "closing").await;
        let key = Address::object("closing", b"k");
        put(&two, key, b"v").await;
        let refused = one.delete_namespace("closing").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NamespaceNotEmpty);
        let mut late = two.store(key, StoreOptions::default()).await.unwrap();
        late.write(bytes(1, 3 << 20).into()).await.unwrap();
        two.delete(key, Default::default()).await.unwrap();
        two.settle().await.unwrap();
        one.delete_namespace("closing").await.unwrap();
        let refused = late.commit(Seal::default()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSuchNamespace);
        // Who deletes it waits for the others to hear of it, but not for long.
        let heard = async {
            while !two.namespaces().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(60), heard).await;
        in_time.expect("the other gateway hears that it is gone");
    });
}

#[test]
fn no_cluster_is_an_error_and_no_wait_for_ever() {
    if let Err(error) = forebay_rados::librados_version() {
        return skip(&error.to_string());
    }
    let conf = std::env::temp_dir().join(format!("forebay-nowhere-{}", std::process::id()));
    // Nobody listens at port 1.
    std::fs::write(
        &conf,
        "[global]\nmon_host = v2:127.0.0.1:1\nauth_client_required = none\n",
    )
    .unwrap();
    let mut config = forebay_rados::Config::new("forebay");
    config.conf = Some(conf.clone());
    config.connect_patience = Duration::from_secs(1);
    let pool = forebay_mem::Pool::new(1 << 20);
    let error = RadosStore::open(config, pool, || 0).err().expect("refused");
    assert!(error.to_string().contains("no connection"), "{error}");
    std::fs::remove_file(conf).unwrap();
}

#[test]
fn a_lease_that_cannot_be_held_is_refused() {
    let mut config = forebay_rados::Config::new("forebay");
    config.lease = Duration::ZERO;
    let pool = forebay_mem::Pool::new(1 << 20);
    let error = RadosStore::open(config, pool, || 0).err().expect("refused");
    assert!(error.to_string().contains("a lease"), "{error}");
}

/// Writes until it is killed: values of all kinds, over and over the same keys.
#[test]
#[ignore = "another test starts it, and kills it"]
fn victim() {
    let base = std::env::var(VICTIM).expect("the test that starts it says where");
    let cluster = cluster();
    let mut config = config(&cluster);
    config.base = base;
    config.lease = LEASE;
    config.patience = PATIENCE;
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        println!("begun");
        let write = async |lane: u8| {
            for round in 0_u32.. {
                let key = [b'k', b'0' + (round % 7) as u8, lane];
                let kept = if lane.is_multiple_of(2) {
                    "kept"
                } else {
                    "plain"
                };
                let address = Address::object(kept, &key);
                let part = [b'p', lane];
                let staged = Address::staging(kept, &part);
                match round % 8 {
                    0 => put(&store, address, &bytes(lane, 5 << 20)).await,
                    1 => drop(store.delete(address, Default::default()).await.unwrap()),
                    2 => {
                        put(&store, staged, &bytes(lane, 3000)).await;
                        let free = StoreOptions::default();
                        let parts = [Source::any(&part)];
                        let joined = store.compose(address, &parts, &[], free, Seal::default());
                        joined.await.unwrap();
                    }
                    3 => {
                        // What went comes back every second time.
                        let (name, value) = (Away(round.into()), bytes(lane, 5 << 20));
                        put(&store, address, &value).await;
                        let meta = store.stat(address, None).await.unwrap();
                        store.let_go(address, &meta, name).await.unwrap();
                        if round % 16 == 3 {
                            let back = store.take_back(address, None, name);
                            let mut back = back.await.unwrap();
                            back.write(value.into()).await.unwrap();
                            back.commit(Seal::default()).await.unwrap();
                        }
                    }
                    // A part that is replaced, and given up.
                    4 => {
                        for len in [3000, 2000] {
                            put(&store, staged, &bytes(lane, len)).await;
                        }
                        store.delete(staged, Default::default()).await.unwrap();
                    }
                    _ => put(&store, address, &bytes(lane, round as usize % 9000)).await,
                }
            }
        };
        tokio::join!(write(0), write(1), write(2), write(3));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_a_killed_gateway_leaves_is_swept() {
    let cluster = cluster();
    let mut config = config(&cluster);
    config.lease = LEASE;
    config.patience = PATIENCE;
    config.grace = Duration::ZERO;
    let setup = open(config.clone(), TestClock::default());
    let runtime = runtime();
    runtime.block_on(async {
        space(&setup, "plain").await;
        versioned(&setup, "kept").await;
        setup.close().await;
    });
    for round in 0..3_u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "victim", "--nocapture"])
            .env(VICTIM, &config.base)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(victim.stdout.take().unwrap());
        while !said.contains("begun") {
            said.clear();
            let read = std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
            assert!(read > 0, "the victim ended by itself");
        }
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(700 + 433 * round)).await;
        });
        victim.kill().unwrap();
        let ended = victim.wait().unwrap();
        assert_eq!(ended.code(), None, "the victim ended by itself: {ended}");
        runtime.block_on(async {
            let store = open(config.clone(), TestClock::default());
            let begun = std::time::Instant::now();
            while store.sweep().await.unwrap() == 0 {
                assert!(begun.elapsed() < SWEPT_WITHIN, "nothing is swept");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            for namespace in ["plain", "kept"] {
                store.settle().await.unwrap();
                store.sweep().await.unwrap();
                let audit = store.audit(namespace).await.unwrap();
                assert!(audit.is_clean(), "round {round}, {namespace}: {audit:#?}");
                for name in names(&store, namespace, Space::Objects).await {
                    let address = Address::object(namespace, name.as_bytes());
                    let meta = store.stat(address, None).await.unwrap();
                    if store.away(address, None).await.unwrap().is_none() {
                        assert_eq!(get(&store, address).await.len() as u64, meta.size);
                    }
                }
            }
            store.close().await;
        });
    }
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn usage_outlives_gateways() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = config(&cluster);
        for round in 1..4_u64 {
            let store = open(config.clone(), TestClock::default());
            if round == 1 {
                space(&store, "counted").await;
            }
            let key = [b'k', round as u8];
            put(&store, Address::object("counted", &key), &bytes(1, 1000)).await;
            put(&store, Address::object("counted", &key), &bytes(1, 100)).await;
            let usage = store.usage(Scope::Namespace("counted")).unwrap();
            assert_eq!((usage.objects, usage.bytes), (round, 100 * round));
            store.close().await;
        }
        let last = fresh(&cluster, TestClock::default());
        assert!(
            last.namespaces().is_empty(),
            "another base is another store"
        );
    });
}
