//! What tenants leave each other of a cache.
#![forbid(unsafe_code)]

mod support;

use forebay_store::suite::TestClock;
use forebay_store::{
    Address, Body, ByteRange, MemoryStore, NamespaceConfig, Seal, Store, StoreOptions, Upload,
};
use forebay_tier::{Pin, Share, Tier};
use support::{Below, NS, Probe};

const MIB: usize = 1 << 20;

/// A store with a namespace of a tenant `a` and one of `b`.
async fn of_two(clock: &TestClock) -> MemoryStore {
    let store = support::with_namespace(clock, NamespaceConfig::default()).await;
    for (name, tenant) in [("of-a", "a"), ("of-b", "b")] {
        let config = NamespaceConfig {
            tenant: tenant.to_owned(),
            ..NamespaceConfig::default()
        };
        store.create_namespace(name, config).await.expect("a name");
    }
    store
}

async fn store(tier: &impl Store, address: Address<'_>, bytes: &[u8]) {
    let upload = begun(tier, address, bytes).await;
    upload.commit(Seal::default()).await.expect("committed");
}

/// An upload that has all its bytes.
async fn begun<S: Store>(tier: &S, address: Address<'_>, bytes: &[u8]) -> S::Upload {
    let options = StoreOptions {
        size: Some(bytes.len() as u64),
        ..StoreOptions::default()
    };
    let mut upload = tier.store(address, options).await.expect("room");
    for chunk in bytes.chunks(MIB) {
        upload.write(chunk.to_vec().into()).await.expect("room");
    }
    upload
}

async fn opened(tier: &Tier<Below>, address: Address<'_>) -> impl Body {
    let object = tier.retrieve(address, None, ByteRange::Full).await;
    object.expect("there").body
}

/// Whoever is slow keeps others from no more than half of the way into the cache.
#[tokio::test]
async fn who_is_slow_leaves_others_their_way_into_the_cache() {
    let clock = TestClock::default();
    let below = of_two(&clock).await;
    let probe = Probe::default();
    // 32 MiB may be on their way.
    let tier = support::tier(&below, &probe, support::config(128 << 20, &clock));
    let large = support::bytes(1, 8 * MIB);
    let keys: [&[u8]; 3] = [b"x", b"y", b"z"];
    for key in keys {
        store(&below, Address::object("of-a", key), &large).await;
    }
    let is_kept = async |key: &[u8]| {
        let before = probe.retrieves();
        let body = opened(&tier, Address::object("of-b", key)).await;
        support::drain(body).await.expect("read");
        probe.retrieves() == before
    };
    let value = support::bytes(2, 3 * MIB);
    store(&below, Address::object("of-b", b"read"), &value).await;

    let mut slow = Vec::new();
    for key in keys {
        slow.push(opened(&tier, Address::object("of-a", key)).await);
    }
    assert!(!is_kept(b"read").await);
    assert!(is_kept(b"read").await, "others read as they do");
    drop(slow);

    let mut slow = Vec::new();
    for key in keys {
        slow.push(begun(&tier, Address::object("of-a", key), &large).await);
    }
    store(&tier, Address::object("of-b", b"stored"), &value).await;
    assert!(is_kept(b"stored").await, "others store as they do");
}

/// What a cache keeps at all it keeps while little else is on its way.
#[tokio::test]
async fn the_longest_values_find_room_beside_others() {
    let clock = TestClock::default();
    let below = of_two(&clock).await;
    let is_kept_at_once = async |mib: usize, beside: bool| {
        let probe = Probe::default();
        let tier = support::tier(&below, &probe, support::config(64 << 20, &clock));
        let of_a = Address::object("of-a", b"x");
        let other = match beside {
            true => Some(begun(&tier, of_a, &[0; 4096]).await),
            false => None,
        };
        let of_b = Address::object("of-b", b"x");
        for _ in 0..2 {
            support::drain(opened(&tier, of_b).await)
                .await
                .expect("read");
        }
        let read_once = probe.retrieves() == 1;
        store(&tier, of_b, &support::bytes(2, mib * MIB)).await;
        support::drain(opened(&tier, of_b).await)
            .await
            .expect("read");
        drop(other);
        read_once && probe.retrieves() == 1
    };
    let mut kept = 0;
    for mib in [1, 2, 4, 8, 16] {
        let value = support::bytes(1, mib * MIB);
        store(&below, Address::object("of-b", b"x"), &value).await;
        if is_kept_at_once(mib, false).await {
            kept = mib;
            assert!(is_kept_at_once(mib, true).await, "{mib} MiB");
        }
    }
    assert!(kept >= 4, "{kept} MiB at most");
}

#[tokio::test]
async fn what_is_pinned_stays_and_tenants_have_their_shares() {
    let clock = TestClock::default();
    let below = of_two(&clock).await;
    let mut config = support::config(1_000_000, &clock);
    config.pins = vec![Pin {
        namespace: NS.to_owned(),
        prefix: b"keep/".to_vec(),
    }];
    config.shares = vec![Share {
        tenant: "a".to_owned(),
        weight: 3,
    }];
    let probe = Probe::default();
    let tier = support::tier(&below, &probe, config);
    support::put(&tier, "keep/me", &[1; 100_000]).await;
    for round in 0..200 {
        for namespace in ["of-a", "of-b"] {
            let key = format!("{round}");
            let address = Address::object(namespace, key.as_bytes());
            store(&tier, address, &[round as u8; 10_000]).await;
        }
    }
    support::get(&tier, "keep/me").await.expect("read");
    assert_eq!(probe.retrieves(), 0, "it is held");
    let mut of = [0, 0];
    for round in (0..200).rev() {
        for (at, namespace) in ["of-a", "of-b"].into_iter().enumerate() {
            let key = format!("{round}");
            let before = probe.retrieves();
            // Dropped before a byte is read: nothing is held by it.
            drop(opened(&tier, Address::object(namespace, key.as_bytes())).await);
            of[at] += u64::from(probe.retrieves() == before);
        }
    }
    assert!(of[0] > 2 * of[1] && of[1] > 10, "three to one: {of:?}");
    let metrics = tier.metrics().expect("it is on");
    assert!(metrics.memory_bytes <= 1_000_000 && metrics.pinned_bytes >= 100_000);
}
