//! Values whose bytes are away, read whole, in part, by many, and while they end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_mem::Pool;
use forebay_store::{Body, ByteRange, ErrorKind, NamespaceConfig, Store, Versioning};
use futures_util::poll;

use crate::support::{SIZES, World, content, drain, object, swept_twice};

#[tokio::test]
async fn whole_and_in_part() {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let world = World::new(Versioning::Off).await;
        world.never_back().await;
        let bytes = content(seed as u64, size);
        let meta = world.put_away("key", &bytes).await;
        assert_eq!(world.get("key").await, bytes);
        let last = size as u64 - 1;
        for (first, end) in [
            (0, 0),
            (last, last),
            (size as u64 / 3, size as u64 / 2),
            (1.min(last), last),
        ] {
            let range = ByteRange::Inclusive(first, end);
            let read = world.read("key", range).await.expect("read");
            assert_eq!(
                read,
                &bytes[first as usize..=end as usize],
                "{first}-{end} of {size}"
            );
        }
        let read = world.read("key", ByteRange::Suffix(2)).await.expect("read");
        assert_eq!(read, &bytes[size.saturating_sub(2)..]);
        assert_eq!(
            world.cold.stat(object("key"), None).await.expect("stat"),
            meta
        );
        assert!(world.is_cold("key").await);

        let pool = Pool::new(16 << 20);
        let target = pool.take(1 << 20).await;
        let (region, offset) = (target.region().clone(), target.place().1);
        let wanted = size.min(1 << 20);
        let slice = region.slice(offset..offset + wanted).expect("room");
        let range = ByteRange::Inclusive(0, wanted as u64 - 1);
        let placed = world
            .cold
            .retrieve_into(object("key"), None, range, slice.clone());
        placed.await.expect("place");
        let mut read = vec![0; wanted];
        assert!(slice.read(0, &mut read));
        assert_eq!(read, &bytes[..wanted]);
    }
}

#[tokio::test]
async fn a_range_asks_for_its_blocks_alone() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(1, 9 << 20);
    world.put_away("key", &bytes).await;
    let before = world.mover().metrics().read_bytes;
    let read = world
        .read("key", ByteRange::Inclusive(70_000, 70_009))
        .await;
    assert_eq!(read.expect("read"), &bytes[70_000..70_010]);
    assert_eq!(world.mover().metrics().read_bytes - before, 10);
    assert!(world.is_cold("key").await, "a range brings nothing back");
}

#[tokio::test]
async fn as_many_bytes_in_ranges_as_it_has_are_the_whole() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(6, 300_000);
    world.put_away("key", &bytes).await;
    for (first, last) in [(0, 99_999), (200_000, 299_999), (100_000, 199_998)] {
        let read = world.read("key", ByteRange::Inclusive(first, last)).await;
        assert_eq!(read.expect("read"), &bytes[first as usize..=last as usize]);
        tokio::task::yield_now().await;
        assert!(world.is_cold("key").await);
    }
    let read = world.read("key", ByteRange::Suffix(1)).await;
    assert_eq!(read.expect("read"), &bytes[299_999..]);
    let waited = world.mover().recall(object("key"), None).await;
    waited.expect("recall");
    assert_eq!(world.mover().metrics().recalled, 1, "it was on its way");
    assert!(!world.is_cold("key").await);
}

#[tokio::test]
async fn many_readers_bring_it_back_once() {
    let world = Arc::new(World::new(Versioning::Off).await);
    let bytes = content(2, 300_001);
    world.put_away("key", &bytes).await;
    let before = world.gets();
    world.far.knobs.slow.store(true, SeqCst);
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.get("key").await })
        })
        .collect();
    for reader in readers {
        assert_eq!(reader.await.expect("no panic"), bytes);
    }
    assert_eq!(world.gets() - before, 1, "the far side is asked once");
    assert_eq!(world.mover().metrics().recalled, 1);
    assert!(!world.is_cold("key").await);
    assert!(world.mover().tidy().await);
    assert_eq!(world.far.names().await.len(), 0, "its copy is gone");
    assert_eq!(world.get("key").await, bytes);
}

#[tokio::test]
async fn a_large_value_leaves_as_it_comes_and_comes_back_beside_that() {
    let world = World::new(Versioning::Off).await;
    let bytes = content(3, (33 << 20) + 1);
    world.put_away("key", &bytes).await;
    let found = world.cold.retrieve(object("key"), None, ByteRange::Full);
    let found = found.await.expect("retrieve");
    assert_eq!(drain(found).await.expect("read"), bytes);
    // Whoever asks for it by name waits for the same recall.
    let waited = world.mover().recall(object("key"), None).await;
    waited.expect("recall");
    assert_eq!(world.mover().metrics().recalled, 1);
    assert!(!world.is_cold("key").await);
    assert_eq!(world.get("key").await, bytes);
}

#[tokio::test]
async fn recalls_that_take_long_keep_no_small_read_waiting() {
    let world = World::new(Versioning::Off).await;
    // What waits for a turn, and what has one and is slow: as many of each as there are turns.
    for (size, holds) in [((33 << 20) + 1, 33 << 20), (300_001, 200_000)] {
        let bytes = content(8, size);
        let small = content(9, 100_000);
        world.put_away("small", &small).await;
        for key in 0..9 {
            world.put_away(&format!("slow {key}"), &bytes).await;
        }
        world.far.knobs.holds.store(holds, SeqCst);
        let mover = world.mover().clone();
        let recalls: Vec<_> = (0..9)
            .map(|key| {
                let mover = mover.clone();
                tokio::spawn(async move {
                    let key = format!("slow {key}");
                    mover.recall(object(&key), None).await
                })
            })
            .collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let read = tokio::time::timeout(Duration::from_secs(20), world.get("small"));
        assert!(read.await.expect("it does not wait for those") == small);
        world.far.knobs.holds.store(0, SeqCst);
        for recall in recalls {
            assert!(recall.await.expect("no panic").expect("recall"));
        }
        world
            .mover()
            .recall(object("small"), None)
            .await
            .expect("recall");
        assert!(!world.is_cold("small").await, "it came back beside that");
    }
}

#[tokio::test]
async fn a_scan_leaves_few_recalls_behind() {
    const TURNS: usize = 8;
    const WAITING: usize = 64;
    const READ: usize = WAITING + 20;
    let world = World::new(Versioning::Off).await;
    let held = content(10, 300_001);
    for key in 0..TURNS {
        world.put_away(&format!("held {key}"), &held).await;
    }
    for key in 0..READ {
        world.put_away(&format!("{key}"), b"value").await;
    }
    world.far.knobs.holds.store(200_000, SeqCst);
    let recalls: Vec<_> = (0..TURNS)
        .map(|key| {
            let mover = world.mover().clone();
            tokio::spawn(async move { mover.recall(object(&format!("held {key}")), None).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let before = world.gets();
    for key in 0..READ {
        assert_eq!(world.get(&format!("{key}")).await, b"value");
    }
    assert_eq!(world.gets() - before, READ, "they do not wait");
    world.far.knobs.holds.store(0, SeqCst);
    for recall in recalls {
        assert!(recall.await.expect("no panic").expect("recall"));
    }
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let recalled = world.mover().metrics().recalled;
    assert_eq!(recalled, (TURNS + WAITING) as u64);
    assert_eq!(world.gets() - before, READ + WAITING);
    let last = format!("{}", READ - 1);
    assert!(world.is_cold(&last).await, "it is read where it is");
    assert_eq!(world.get(&last).await, b"value");
    assert!(!world.is_cold(&last).await, "nobody is before it now");
}

#[tokio::test]
async fn a_body_stays_while_its_value_ends() {
    let world = World::new(Versioning::Off).await;
    world.never_back().await;
    let bytes = content(4, (9 << 20) + 17);
    world.put_away("key", &bytes).await;
    let found = world.cold.retrieve(object("key"), None, ByteRange::Full);
    let found = found.await.expect("retrieve");
    world.delete("key").await;
    assert!(world.mover().tidy().await);
    assert_eq!(swept_twice(world.mover()).await, 0);
    assert_eq!(drain(found).await.expect("read"), bytes);
    assert!(world.mover().tidy().await);
    assert_eq!(world.far.names().await.len(), 0);
}

#[tokio::test]
async fn overwritten_amended_and_versioned() {
    let world = World::new(Versioning::Enabled).await;
    world.never_back().await;
    let first = world.put_away("key", b"first bytes").await;
    let second = world.put_away("key", b"second bytes").await;
    let read = world
        .cold
        .retrieve(object("key"), Some(first.version), ByteRange::Full);
    assert_eq!(
        drain(read.await.expect("kept")).await.expect("read"),
        b"first bytes"
    );
    let attributes = forebay_store::Attributes::builder()
        .set("color", "red")
        .build();
    let attributes = attributes.expect("small");
    let amended = world
        .cold
        .amend(object("key"), None, Some(&second), attributes)
        .await
        .expect("amend");
    assert_eq!(amended.modified, second.modified);
    assert_eq!(world.get("key").await, b"second bytes");
    let only = forebay_store::DeleteOptions {
        version: Some(first.version),
        ..Default::default()
    };
    world
        .cold
        .delete(object("key"), only)
        .await
        .expect("delete");
    assert!(world.mover().tidy().await);
    assert_eq!(world.far.names().await.len(), 1);
    assert_eq!(world.get("key").await, b"second bytes");
}

#[tokio::test]
async fn a_reader_that_goes_leaves_the_recall_to_others() {
    let world = Arc::new(World::new(Versioning::Off).await);
    let bytes = content(5, 300_001);
    world.put_away("key", &bytes).await;
    world.far.knobs.slow.store(true, SeqCst);
    let reader = {
        let world = world.clone();
        tokio::spawn(async move { world.get("key").await })
    };
    tokio::task::yield_now().await;
    reader.abort();
    assert_eq!(world.get("key").await, bytes);
    assert_eq!(world.mover().metrics().recalled, 1);
    let mut none = world
        .cold
        .retrieve(object("key"), None, ByteRange::Full)
        .await
        .expect("retrieve")
        .body;
    while none.next().await.expect("read").is_some() {}
    assert!(none.next().await.expect("read").is_none());
}

#[tokio::test]
async fn what_comes_back_is_not_looked_for_in_another_namespace_of_the_name() {
    let world = World::new(Versioning::Off).await;
    world.put_away("key", &content(1, 5000)).await;
    world.far.knobs.slow.store(true, SeqCst);
    let mut reading = pin!(world.read("key", ByteRange::Full));
    assert!(poll!(reading.as_mut()).is_pending());
    world.delete("key").await;
    world.hot.delete_namespace("ns").await.expect("it is empty");
    let config = NamespaceConfig {
        tenant: "another".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = world.hot.create_namespace("ns", config).await;
    made.expect("the name is free");
    world.put("key", b"theirs").await;
    let told = reading.await.expect_err("it is another's");
    assert_eq!(told.kind(), ErrorKind::NoSuchNamespace);
}
