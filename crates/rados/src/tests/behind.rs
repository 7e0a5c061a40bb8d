//! What a gateway does that does not know yet what became of a namespace.

use std::sync::Arc;

use forebay_mem::Region;
use forebay_store::{ByteRange, ErrorKind, NamespaceConfig, NamespaceInfo, Quota, Versioning};

use super::*;
use crate::keeper::REFRESH;
use crate::namespaces::NAMESPACE;
use crate::support::rados;

/// A value of each kind: in its key's object, in stripes, under a name that no object can have.
const KEYS: [(&[u8], usize); 3] = [(b"whole", 70_000), (b"striped", 5 << 20), (b"a\0b", 70_000)];

async fn of_tenant(store: &RadosStore, name: &str, tenant: &str) {
    let config = NamespaceConfig {
        tenant: tenant.to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace(name, config).await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn nobody_reads_what_is_in_the_next_namespace_of_the_name() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let place = format!("{}/reused", config.base);
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        of_tenant(&one, "reused", "first").await;
        let first = two.namespace("reused").unwrap();
        assert_eq!(first.config.tenant, "first");
        // From here on this one hears nothing.
        let deaf = two.core().reloading.lock().await;
        one.delete_namespace("reused").await.unwrap();
        of_tenant(&one, "reused", "second").await;
        for (key, len) in KEYS {
            put(&one, Address::object("reused", key), &bytes(1, len)).await;
        }
        put(&one, Address::staging("reused", b"part"), b"staged").await;
        let by_hand = std::env::temp_dir().join(format!("forebay-{}", std::process::id()));
        std::fs::write(&by_hand, bytes(2, 9000)).unwrap();
        let put = ["put", "plain", by_hand.to_str().unwrap()];
        rados(&cluster, &place, &put);
        std::fs::remove_file(by_hand).unwrap();
        let keys = KEYS.iter().map(|(key, _)| Address::object("reused", key));
        let others = [
            Address::object("reused", b"plain"),
            Address::staging("reused", b"part"),
        ];
        for address in keys.chain(others) {
            let into = Region::anonymous(8 << 20).unwrap();
            let into = into.slice(0..8 << 20).unwrap();
            let full = ByteRange::Full;
            for refused in [
                two.retrieve(address, None, full).await.map(drop),
                two.stat(address, None).await.map(drop),
                two.exist(&[address]).await.map(drop),
                two.retrieve_into(address, None, full, into).await.map(drop),
            ] {
                let kind = refused.expect_err("another tenant's").kind();
                assert_eq!(kind, ErrorKind::NoSuchNamespace);
            }
        }
        drop(deaf);
        let heard = async {
            let is_next = |info: Arc<NamespaceInfo>| info.id != first.id;
            while !two.namespace("reused").is_ok_and(is_next) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(5), heard).await;
        in_time.expect("who was refused asks what there is now");
        for (key, len) in KEYS {
            assert!(get(&two, Address::object("reused", key)).await == bytes(1, len));
        }
        let plain = Address::object("reused", b"plain");
        assert!(get(&two, plain).await == bytes(2, 9000));
    });
}

/// Has a gateway ask for something of a namespace that is gone without a word to it, and with it these objects of its index.
async fn is_heard_of(
    cluster: &Cluster,
    gone: impl Fn(&Namespace) -> Vec<Vec<u8>>,
    ask: impl AsyncFn(&RadosStore) -> forebay_store::Result<()>,
) {
    let store = open(config(cluster), TestClock::default());
    space(&store, "gone").await;
    put(&store, Address::staging("gone", b"part"), b"staged").await;
    store.settle().await.unwrap();
    let core = store.core();
    let namespace = core.namespace("gone").unwrap();
    let registered = [&[NAMESPACE][..], b"gone"].concat();
    core.forget_registered(&registered).await.unwrap();
    for object in gone(&namespace) {
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
        op.remove();
        let index = &namespace.index;
        let removed = core.access.write(index, &object, op, None, 0);
        removed.await.unwrap();
    }
    let refused = ask(&store).await.expect_err("it is gone");
    assert_eq!(refused.kind(), ErrorKind::NoSuchNamespace, "{refused}");
    let heard = async {
        while store.namespace("gone").is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Sooner than everybody asks by himself.
    let in_time = tokio::time::timeout(REFRESH / 3, heard).await;
    in_time.expect("who was refused asks what there is now");
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_finds_that_a_namespace_is_gone_asks_what_there_is() {
    let cluster = cluster();
    let index = |namespace: &Namespace| {
        let shards = namespace.shards.iter();
        shards.map(|shard| shard.object.clone()).collect()
    };
    let all = |namespace: &Namespace| {
        let journal = namespace.journal.object().to_vec();
        [vec![journal], index(namespace)].concat()
    };
    let key = Address::object("gone", b"k");
    let list = ListOptions::of("gone", Space::Objects);
    let upload = async |store: &RadosStore| {
        let options = StoreOptions {
            size: Some(5 << 20),
            ..StoreOptions::default()
        };
        let mut upload = store.store(key, options).await?;
        upload.write(bytes(1, 1 << 20).into()).await
    };
    let compose = async |store: &RadosStore| {
        let (parts, seal) = ([Source::any(b"part")], Seal::default());
        let joined = store.compose(key, &parts, &[], StoreOptions::default(), seal);
        joined.await.map(drop)
    };
    let listing = async |store: &RadosStore| store.list(list).await.map(drop);
    let busy = async |store: &RadosStore| {
        let namespace = store.core().namespace("gone")?;
        let mut held = Vec::new();
        for shard in &namespace.shards {
            held.push(shard.hold().await);
        }
        for number in 0..8 {
            let named = Named::object(vec![b'k', number]);
            store.core().find_out(&namespace, named);
        }
        store.list(list).await.map(drop)
    };
    let audit = async |store: &RadosStore| store.audit("gone").await.map(drop);
    runtime().block_on(async {
        is_heard_of(&cluster, &all, upload).await;
        is_heard_of(&cluster, &all, compose).await;
        is_heard_of(&cluster, &index, listing).await;
        is_heard_of(&cluster, &all, busy).await;
        is_heard_of(&cluster, &all, audit).await;
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_record_of_another_namespace_is_no_record() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, "here").await;
        let key = Address::object("here", b"k");
        put(&store, key, b"copied by another hand").await;
        store.settle().await.unwrap();
        let core = store.core();
        let namespace = core.namespace("here").unwrap();
        let (place, object) = namespace.object(Space::Objects, b"k");
        let mut op = WriteOp::new(place).guard(Guard::Exists);
        op.set_xattr(b"forebay.namespace", &u32::MAX.to_le_bytes());
        let stamp = Some(core.seconds());
        let copied = core.access.write(place, &object, op, stamp, 0).await;
        copied.unwrap();
        let before = store.stat(key, None).await.unwrap();
        assert_eq!(get(&store, key).await, b"copied by another hand");
        store.settle().await.unwrap();
        let audit = store.audit("here").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 1, "{audit:?}");
        put(&store, key, b"ours again").await;
        assert_eq!(get(&store, key).await, b"ours again");
        assert_ne!(store.stat(key, None).await.unwrap().etag, before.etag);
        // A record from before it named its namespace.
        let mut op = WriteOp::new(place).guard(Guard::Exists);
        op.remove_xattr(b"forebay.namespace");
        let aged = core.access.write(place, &object, op, stamp, 0).await;
        aged.unwrap();
        let seen = core.look(&namespace, &Named::object(b"k".to_vec())).await;
        assert!(seen.unwrap().head.is_some());
        assert_eq!(get(&store, key).await, b"ours again");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn an_index_that_does_not_answer_keeps_no_news_back() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "stuck").await;
        let namespace = two.core().namespace("stuck").unwrap();
        let mut held = Vec::new();
        for shard in &namespace.shards {
            held.push(shard.hold().await);
        }
        put(&two, Address::object("stuck", b"k"), b"acknowledged").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        for name in ["news", "more"] {
            space(&one, name).await;
            let told = two.namespace(name);
            assert!(told.is_ok(), "told before the call returns");
        }
        drop(held);
        two.settle().await.unwrap();
        let audit = two.audit("stuck").await.unwrap();
        assert!(audit.is_clean() && audit.keys == 1, "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_change_that_is_not_heard_of_is_waited_for() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "told").await;
        let kept = NamespaceConfig {
            tenant: "acme".to_owned(),
            versioning: Versioning::Enabled,
            ..NamespaceConfig::default()
        };
        let deaf = two.core().reloading.lock().await;
        let changed = async {
            one.update_namespace("told", None, kept).await.unwrap();
            let told = two.namespace("told").unwrap();
            assert_eq!(told.config.versioning, Versioning::Enabled);
        };
        let heard_late = async {
            tokio::time::sleep(2 * crate::namespaces::PATIENCE).await;
            drop(deaf);
        };
        tokio::join!(changed, heard_late);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_namespace_that_does_not_open_keeps_no_news_back() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "told").await;
        // Numbers follow each other: this one cannot open the next.
        let next = two.namespace("told").unwrap().id + 1;
        let core = two.core();
        let stuck = core.opening(next).await;
        let hearing = async {
            let waits = || {
                let openings = core.openings.lock();
                openings
                    .get(&next)
                    .is_some_and(|turn| Arc::strong_count(turn) > 2)
            };
            let opening = async {
                while !waits() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(opening, "it is told of the new namespace").await;
            let kept = NamespaceConfig {
                tenant: "acme".to_owned(),
                versioning: Versioning::Enabled,
                ..NamespaceConfig::default()
            };
            let heard = async {
                let is_heard = || {
                    let told = two.namespace("told").unwrap();
                    told.config.versioning == Versioning::Enabled
                };
                while !is_heard() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let reloaded = tokio::time::timeout(crate::keeper::REFRESH, core.reload());
            let (updated, reloaded, ()) = tokio::join!(
                one.update_namespace("told", None, kept),
                reloaded,
                soon(heard, "it is told of a change"),
            );
            updated.unwrap();
            let reloaded = reloaded.expect("the next reading is in time");
            assert_eq!(reloaded.unwrap_err().kind(), ErrorKind::Io);
            drop(stuck);
        };
        tokio::join!(space(&one, "next"), hearing);
        core.reload().await.unwrap();
        assert_eq!(two.namespace("next").unwrap().id, next);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_change_that_took_effect_is_none_that_failed() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&two, "updated").await;
        space(&two, "deleted").await;
        // Numbers follow each other: this one cannot open the next.
        let next = two.namespace("deleted").unwrap().id + 1;
        let _stuck = two.core().opening(next).await;
        let kept = NamespaceConfig {
            tenant: "acme".to_owned(),
            versioning: Versioning::Enabled,
            ..NamespaceConfig::default()
        };
        let quota = Quota {
            objects: Some(7),
            bytes: None,
        };
        let others = async {
            let there = async {
                while !two.core().is_registered("stuck").await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(there, "the other one makes it").await;
            let (made, updated, bounded, deleted) = tokio::join!(
                two.create_namespace("made", kept.clone()),
                two.update_namespace("updated", None, kept.clone()),
                two.set_tenant_quota("acme", quota),
                two.delete_namespace("deleted"),
            );
            assert_eq!(made.unwrap().config, kept);
            assert_eq!(updated.unwrap().config, kept);
            bounded.unwrap();
            deleted.unwrap();
            assert_eq!(two.tenant_quota("acme"), quota);
        };
        tokio::join!(space(&one, "stuck"), others);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_change_that_its_gateway_has_not_taken_in_may_have_happened() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, "first").await;
        let core = store.core();
        let next = store.namespace("first").unwrap().id + 1;
        let stuck = core.opening(next).await;
        let made = store.create_namespace(
            "next",
            NamespaceConfig {
                tenant: "acme".to_owned(),
                ..NamespaceConfig::default()
            },
        );
        let made = made.await.unwrap_err();
        assert_eq!(made.kind(), ErrorKind::OutcomeUnknown, "{made}");
        drop(stuck);
        core.reload().await.unwrap();
        assert_eq!(store.namespace("next").unwrap().id, next);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_record_that_cannot_be_read_keeps_no_news_back() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let store = open(config.clone(), clock.clone());
        space(&store, "known").await;
        let key = Address::object("known", b"k");
        put(&store, key, b"v").await;
        let quota = Quota {
            objects: Some(7),
            bytes: None,
        };
        store.set_tenant_quota("known", quota).await.unwrap();
        let core = store.core();
        let mut op = WriteOp::new(&core.registry).guard(Guard::Exists);
        let broken = [&b"nknown"[..], b"nnever", b"tknown", b"tnever"];
        op.omap_set(broken.map(|name| (name, &b"????"[..])));
        core.write_registry(op).await.unwrap();
        space(&store, "made").await;
        assert_eq!(store.tenant_quota("known"), quota, "as it was known");
        put(&store, key, b"w").await;
        assert_eq!(get(&store, key).await, b"w");
        assert!(store.namespace("never").is_err());
        let usage = store.usage(Scope::Namespace("known")).unwrap();
        assert_eq!(usage.objects, 1);
        // Who knows nothing of it has the others.
        let other = open(config, clock);
        assert!(other.namespace("made").is_ok() && other.namespace("known").is_err());
        // Whoever would take what it does not see for gone is told.
        for store in [&store, &other] {
            let refused = store.settle().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
        }
    });
}
