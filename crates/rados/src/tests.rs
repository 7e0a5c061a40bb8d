//! What a gateway does after another one took it for dead, or a change was cut short: on a cluster, made to happen from inside.

use std::time::Duration;

use forebay_store::suite::TestClock;
use forebay_store::{
    Address, ErrorKind, ListOptions, NamespaceConfig, Quota, Scope, Seal, Source, Space, Store,
    StoreOptions, Upload, VersionId, VersionItem,
};

use crate::config::Config;
use crate::core::Namespace;
use crate::heads::set_record;
use crate::names;
use crate::orphans::{ORPHANS, Orphan};
use crate::record::{Head, Segment};
use crate::store::RadosStore;
use crate::support::{Cluster, bytes, cluster, config, get, open, put, runtime, space};
use crate::sweep::registered_name;
use crate::sys::{Guard, WriteOp};
use crate::under_way::{Named, Pending};

mod behind;
mod composing;
mod connections;
mod crowded;
mod entering;
mod inactive;
mod left;
mod paused;
mod strays;
mod sweeping;
mod unreadable;
mod versions;

/// Of gateways that are taken for dead soon.
fn short_lived(cluster: &Cluster) -> Config {
    Config {
        grace: Duration::ZERO,
        lease: Duration::from_secs(6),
        patience: Duration::from_secs(5),
        ..config(cluster)
    }
}

/// Has everybody know of a gateway that does not live.
async fn register_dead(store: &RadosStore, gateway: u64) {
    let core = store.core();
    let name = registered_name(gateway);
    let mut op = WriteOp::new(&core.registry).guard(Guard::Exists);
    op.omap_set([(&name[..], &[][..])]);
    core.write_registry(op).await.unwrap();
}

/// The versions that have a value, as they are listed.
async fn versions(store: &RadosStore, namespace: &str) -> Vec<VersionId> {
    let options = ListOptions::of(namespace, Space::Objects);
    let page = store.list_versions(options).await.unwrap();
    let version = |item| match item {
        VersionItem::Value { meta, .. } => Some(meta.version),
        VersionItem::Marker { .. } | VersionItem::Prefix(_) => None,
    };
    page.items.into_iter().filter_map(version).collect()
}

/// Stripes of the value of a key.
async fn segments(store: &RadosStore, namespace: &str, space: Space, key: &[u8]) -> Vec<Segment> {
    let core = store.core();
    let namespace = core.namespace(namespace).unwrap();
    let named = Named {
        space,
        key: key.to_vec(),
    };
    let seen = core.look(&namespace, &named).await.unwrap();
    let value = seen.head.as_ref().unwrap().current.clone().unwrap();
    value.segments().to_vec()
}

async fn registered_orphans(store: &RadosStore) -> usize {
    let core = store.core();
    let mut found = 0;
    let each = |name: bytes::Bytes, _| found += usize::from(name.starts_with(ORPHANS));
    core.keys(&core.registry, names::NAMESPACES, ORPHANS, each)
        .await
        .unwrap();
    found
}

/// What a gateway sent for a key that was not there, and what arrives now: the record of another key.
async fn create_late(store: &RadosStore, namespace: &Namespace, key: &[u8], head: &Head) {
    let (place, object) = namespace.object(Space::Objects, key);
    let mut op = WriteOp::new(place).guard(Guard::Absent);
    set_record(&mut op, namespace, &head.encode(), 0);
    let access = &store.core().access;
    let created = access.write(place, &object, op, Some(head.stamp), 0);
    created.await.unwrap();
}

/// Waits for what happens by itself, and fails in these words when it does not.
async fn soon(happens: impl Future<Output = ()>, words: &str) {
    let done = tokio::time::timeout(Duration::from_secs(20), happens).await;
    done.expect(words);
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_deletion_that_failed_takes_no_stripes() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, "large").await;
        let key = Address::object("large", b"k");
        put(&store, key, &bytes(1, 5 << 20)).await;
        let segment = segments(&store, "large", Space::Objects, b"k").await[0];
        // As if it had been under way when the deletion looked, and as such records once were.
        let core = store.core();
        let id = core.namespace("large").unwrap().id;
        for (mark, id) in [(0, Some(id)), (1, None)] {
            let orphan = Orphan {
                namespace: "large".to_owned(),
                segment,
                id,
            };
            let name = [ORPHANS, format!("{:032x}{mark}", segment.id).as_bytes()].concat();
            let mut op = WriteOp::new(&core.registry).guard(Guard::Exists);
            op.omap_set([(&name[..], &orphan.encode()[..])]);
            core.write_registry(op).await.unwrap();
        }
        store.sweep().await.unwrap();
        assert!(get(&store, key).await == bytes(1, 5 << 20));
        store.delete(key, Default::default()).await.unwrap();
        store.delete_namespace("large").await.unwrap();
        store.sweep().await.unwrap();
        assert_eq!(registered_orphans(&store).await, 0);
        space(&store, "large").await;
        let audit = store.audit("large").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_gateway_that_was_swept_counts_once() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "counted").await;
        let fold = async || {
            one.settle().await.unwrap();
            let namespace = two.core().namespace("counted").unwrap();
            let folded = two.core().fold(&namespace, one.core().gateway).await;
            folded.unwrap();
        };
        for round in 1..4_u8 {
            for lane in 0..20_u8 {
                let key = [b'k', round, lane];
                put(&one, Address::object("counted", &key), &bytes(1, 100)).await;
            }
            // The last time nothing follows that would notice.
            fold().await;
        }
        for store in [&one, &two] {
            store.core().refresh().await.unwrap();
            let usage = store.usage(Scope::Namespace("counted")).unwrap();
            assert_eq!((usage.objects, usage.bytes), (60, 6000));
        }
        let audit = two.audit("counted").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_is_left_counts_what_the_one_who_went_has_stored() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "counted").await;
        one.core().refresh().await.unwrap();
        put(&two, Address::object("counted", b"k"), &bytes(1, 100)).await;
        two.close().await;
        let counted = async {
            one.core().refresh().await.unwrap();
            let usage = one.usage(Scope::Namespace("counted")).unwrap();
            (usage.objects, usage.bytes)
        };
        assert_eq!(counted.await, (1, 100));
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_quota_bounds_gateways_together() {
    let cluster = cluster();
    const QUOTA: u64 = 12;
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let gateways = [open(config.clone(), clock.clone()), open(config, clock)];
        let bounded = NamespaceConfig {
            tenant: "acme".to_owned(),
            quota: Quota {
                objects: Some(QUOTA),
                bytes: None,
            },
            ..NamespaceConfig::default()
        };
        let made = gateways[0].create_namespace("bounded", bounded);
        made.await.unwrap();
        gateways[1].core().refresh().await.unwrap();
        // Stores until it is refused; how many.
        let fill = async |round: u8, lane: u8| {
            for stored in 0.. {
                let key = [b'k', round, lane, stored];
                let options = StoreOptions {
                    size: Some(1),
                    ..StoreOptions::default()
                };
                let store = &gateways[usize::from(lane)];
                let done = async {
                    let upload = store.store(Address::object("bounded", &key), options);
                    let mut upload = upload.await?;
                    upload.write(b"v".to_vec().into()).await?;
                    upload.commit(Seal::default()).await
                };
                if let Err(refused) = done.await {
                    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused}");
                    return u64::from(stored);
                }
            }
            0
        };
        let know = async || {
            for store in &gateways {
                store.settle().await.unwrap();
            }
            for store in &gateways {
                store.core().refresh().await.unwrap();
            }
        };
        // Neither knows yet what the other one stores.
        let (one, two) = tokio::join!(fill(b'a', 0), fill(b'a', 1));
        assert!((QUOTA..=2 * QUOTA).contains(&(one + two)), "{one} + {two}");
        know().await;
        assert_eq!((fill(b'b', 0).await, fill(b'b', 1).await), (0, 0));
        for store in &gateways {
            let usage = store.usage(Scope::Namespace("bounded")).unwrap();
            assert_eq!(usage.objects, one + two);
        }
        // What one removes makes room at the other.
        for stored in 0..one {
            let key = [b'k', b'a', 0, stored as u8];
            let gone = gateways[1].delete(Address::object("bounded", &key), Default::default());
            gone.await.unwrap();
        }
        know().await;
        assert_eq!(fill(b'c', 0).await, QUOTA.saturating_sub(two));
        know().await;
        let audit = gateways[0].audit("bounded").await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    });
}
