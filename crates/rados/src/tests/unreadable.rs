//! Objects whose records nobody can read: they keep nothing else, and can be replaced and removed.

use forebay_store::{
    Attributes, Condition, DeleteOptions, Deleted, Etag, Item, ListOptions, Result, Upload,
    VersionItem,
};

use super::*;
use crate::support::versioned;

const NS: &str = "unreadable";

fn at(key: &[u8]) -> Address<'_> {
    Address::object(NS, key)
}

/// Damages the record of a key that is there, as a hand does that knows no better.
async fn damage(store: &RadosStore, space: Space, key: &[u8]) {
    store.settle().await.unwrap();
    let core = store.core();
    let namespace = core.namespace(NS).unwrap();
    let (place, object) = namespace.object(space, key);
    let mut op = WriteOp::new(place).guard(Guard::Exists);
    op.set_xattr(b"forebay", b"\x04\0\0\0????");
    let written = core.access.write(place, &object, op, None, 0);
    written.await.unwrap();
}

async fn delete(store: &RadosStore, address: Address<'_>, condition: Condition) -> Result<Deleted> {
    let options = DeleteOptions {
        condition,
        ..DeleteOptions::default()
    };
    store.delete(address, options).await
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_cannot_be_read_can_be_replaced_and_removed() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let store = open(config.clone(), clock.clone());
        space(&store, NS).await;
        let addresses = [at(b"whole"), at(b"a\0b"), Address::staging(NS, b"part")];
        for address in addresses {
            put(&store, address, &bytes(1, 70_000)).await;
            damage(&store, address.space, address.key).await;
        }
        // One that remembers them, and one that does not.
        for store in [&store, &open(config, clock)] {
            for address in addresses {
                damage(store, address.space, address.key).await;
                let refused = store.stat(address, None).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt);
                // Whoever says what is to be there is told that nobody knows.
                let condition = Condition::IfMatch(Etag::of_value(1, 1));
                let refused = delete(store, address, condition).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt);
                put(store, address, b"replaced").await;
                assert_eq!(get(store, address).await, b"replaced");
                damage(store, address.space, address.key).await;
                assert!(
                    delete(store, address, Condition::None)
                        .await
                        .unwrap()
                        .existed
                );
                let gone = store.stat(address, None).await.unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::NotFound);
                put(store, address, b"again").await;
            }
            store.settle().await.unwrap();
        }
        let usage = store.usage(Scope::Namespace(NS)).unwrap();
        // A short staged value counts as an object, too.
        assert_eq!((usage.objects, usage.bytes), (3, 15));
        let audit = store.audit(NS).await.unwrap();
        assert_eq!((audit.keys, audit.counted), (3, true), "{audit:?}");
        assert_eq!(audit.unlisted, [""; 0]);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_cannot_be_read_is_found_and_keeps_nothing_else() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        versioned(&store, NS).await;
        for key in [b"a", b"b", b"c"] {
            put(&store, at(key), b"first").await;
            put(&store, at(key), b"second").await;
        }
        damage(&store, Space::Objects, b"b").await;
        // One of which there are old versions alone.
        for bytes in [b"first", b"third"] {
            put(&store, at(b"d"), bytes).await;
        }
        delete(&store, at(b"d"), Condition::None).await.unwrap();
        damage(&store, Space::Objects, b"d").await;
        // Another one, which the index does not know.
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        let (place, object) = namespace.object(Space::Objects, b"unlisted");
        let mut op = WriteOp::new(place);
        op.set_xattr(b"forebay", b"\x04\0\0\0????");
        let written = core.access.write(place, &object, op, None, 0);
        written.await.unwrap();
        let adopted = store.adopt(NS).await.unwrap();
        let told = adopted.unreadable.iter().map(|error| error.message());
        let told: Vec<_> = told.filter(|told| told.contains("\"unlisted\"")).collect();
        assert_eq!(told.len(), 1, "{adopted:?}");
        let mut audit = store.audit(NS).await.unwrap();
        audit.unreadable.sort();
        assert_eq!(audit.unreadable, ["\"b\"", "\"d\"", "\"unlisted\""]);
        assert!(!audit.is_clean() && audit.keys == 2, "{audit:?}");
        let options = ListOptions::of(NS, Space::Objects);
        let page = store.list_versions(options).await.unwrap();
        assert_eq!(page.passed_over, [&b"b"[..], b"d"]);
        let keys = page.items.iter().map(|item| match item {
            VersionItem::Value { key, .. } | VersionItem::Marker { key, .. } => &key[..],
            VersionItem::Prefix(prefix) => &prefix[..],
        });
        let keys: Vec<&[u8]> = keys.collect();
        assert_eq!(keys, [b"a", b"a", b"b", b"c", b"c"], "as far as is known");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_was_kept_of_it_is_not_counted_among_what_is_kept_since() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (config(&cluster), TestClock::default());
        let store = open(config.clone(), clock.clone());
        versioned(&store, NS).await;
        for bytes in [&b"first"[..], b"second"] {
            put(&store, at(b"k"), bytes).await;
        }
        let first = versions(&store, NS).await[1];
        damage(&store, Space::Objects, b"k").await;
        let store = open(config, clock);
        put(&store, at(b"k"), b"third").await;
        let left = versions(&store, NS).await;
        assert_eq!(left.len(), 2, "the third, and the second as it was found");
        assert!(!left.contains(&first));
        store.settle().await.unwrap();
        let usage = store.usage(Scope::Namespace(NS)).unwrap();
        assert_eq!((usage.objects, usage.bytes), (2, 11));
        // Nothing else is taken for gone with one of them.
        let newest = DeleteOptions {
            version: Some(left[0]),
            ..DeleteOptions::default()
        };
        let old = DeleteOptions {
            version: Some(first),
            ..DeleteOptions::default()
        };
        assert!(!store.delete(at(b"k"), old).await.unwrap().existed);
        store.delete(at(b"k"), newest).await.unwrap();
        assert_eq!(get(&store, at(b"k")).await, b"second");
    });
}

/// Puts a value with more attributes than the index has room for.
async fn put_with_attributes(store: &RadosStore, key: &[u8]) {
    let long = "a".repeat(2000);
    let seal = Seal {
        attributes: Attributes::builder().set("long", long).build().unwrap(),
        ..Seal::default()
    };
    let mut upload = store.store(at(key), StoreOptions::default()).await.unwrap();
    upload.write(b"v".to_vec().into()).await.unwrap();
    upload.commit(seal).await.unwrap();
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_cannot_be_read_is_listed_as_far_as_it_is_known() {
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        versioned(&store, NS).await;
        let core = store.core();
        let namespace = core.namespace(NS).unwrap();
        put_with_attributes(&store, b"attributes").await;
        damage(&store, Space::Objects, b"attributes").await;
        for key in [&b"entry"[..], b"last", b"named"] {
            put(&store, at(key), b"v").await;
        }
        // A change of theirs was under way at a gateway that died: one is known to the index, the other one is not.
        damage(&store, Space::Objects, b"named").await;
        let (place, object) = namespace.object(Space::Objects, b"new");
        let mut op = WriteOp::new(place);
        op.set_xattr(b"forebay", b"\x04\0\0\0????");
        let written = core.access.write(place, &object, op, None, 0);
        written.await.unwrap();
        for (number, key) in (0..).zip([&b"named"[..], b"new"]) {
            let pending = Pending {
                named: Named::object(key.to_vec()),
                composes: false,
                freed: Vec::new(),
            };
            let name = names::pending(u128::from(7_u64) << 64 | number);
            let entered = namespace.journal.enter(vec![(name, pending.encode())]);
            entered.await.unwrap();
        }
        // The record can be read, and the index cannot.
        let entry = names::entry(Space::Objects, b"entry");
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Exists);
        op.omap_set([(&entry[..], &b"????"[..])]);
        let shard = &namespace.shard(&entry).object;
        let written = core.access.write(&namespace.index, shard, op, None, 0);
        written.await.unwrap();
        let options = ListOptions::of(NS, Space::Objects);
        let page = store.list(options).await.unwrap();
        let keys = page.items.iter().map(|item| match item {
            Item::Value(key, _) | Item::Prefix(key) => &key[..],
        });
        let known = [&b"attributes"[..], b"entry", b"last", b"named"];
        assert_eq!(keys.collect::<Vec<_>>(), known);
        let page = store.list_versions(options).await.unwrap();
        let keys = page.items.iter().map(|item| match item {
            VersionItem::Value { key, .. } | VersionItem::Marker { key, .. } => &key[..],
            VersionItem::Prefix(prefix) => &prefix[..],
        });
        assert_eq!(keys.collect::<Vec<_>>(), known);
    });
}
