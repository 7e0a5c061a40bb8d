//! What the store below is spared, what stays, and whose memory it is.
#![forbid(unsafe_code)]

mod support;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;
use forebay_mem::{CopySite, Region, copied_bytes};
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, Attributes, Body, ByteRange, Durability, ErrorKind, NamespaceConfig, Seal, Store,
    StoreOptions, Upload,
};
use forebay_tier::{Pin, Tier, Trust};
use futures_util::poll;
use support::{Below, NS, Probe};
use tokio::sync::Semaphore;

const MIB: usize = 1 << 20;

async fn made(
    probe: &Probe,
    change: impl FnOnce(&mut forebay_tier::Config),
) -> (Tier<Below>, TestClock) {
    let clock = TestClock::default();
    let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
    let mut config = support::config(128 << 20, &clock);
    change(&mut config);
    (support::tier(&store, probe, config), clock)
}

fn metrics(tier: &Tier<Below>) -> forebay_tier::Metrics {
    tier.metrics().expect("it is on")
}

#[tokio::test]
async fn many_readers_of_a_cold_value_read_the_store_once() {
    for strict in [false, true] {
        let probe = Probe {
            gate: Arc::new(Semaphore::new(0)),
            ..Probe::default()
        };
        let (tier, _) = made(&probe, |config| {
            if strict {
                config.trust = Trust::Strict;
            }
        })
        .await;
        let value = support::bytes(1, 5 * MIB + 17);
        support::put(&tier.store_below().store, "cold", &value).await;
        let readers: Vec<_> = (0..64)
            .map(|_| {
                let tier = tier.clone();
                tokio::spawn(async move { support::get(&tier, "cold").await })
            })
            .collect();
        tokio::task::yield_now().await;
        probe.gate.add_permits(1000);
        for reader in readers {
            assert!(reader.await.expect("no panic").expect("read") == value);
        }
        assert_eq!(probe.retrieves(), 1);
        assert_eq!(probe.bytes.load(SeqCst), value.len() as u64);
        assert_eq!(metrics(&tier).joined, 63);
        assert!(support::get(&tier, "cold").await.expect("held") == value);
        assert_eq!(probe.retrieves(), 1, "it is held now");
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_holds_nobody_back() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    let value = support::bytes(2, 3 * MIB);
    support::put(&tier.store_below().store, "k", &value).await;
    let address = Address::object(NS, b"k");
    let mut first = tier
        .retrieve(address, None, ByteRange::Full)
        .await
        .expect("there");
    let second = tier
        .retrieve(address, None, ByteRange::Full)
        .await
        .expect("there");
    {
        // It is in the middle of reading when it is dropped.
        let reading = first.body.next();
        tokio::pin!(reading);
        assert!(futures_poll(reading.as_mut()).await.is_none());
    }
    drop(first);
    // It is read on, not anew: that would be another value by now.
    support::put(&tier.store_below().store, "k", b"another").await;
    assert!(support::drain(second.body).await.expect("read") == value);
    assert_eq!(probe.retrieves(), 1);
}

/// Polls once.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn a_range_costs_the_pieces_that_it_touches() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    let value = support::bytes(3, 8 * MIB);
    support::put(&tier.store_below().store, "k", &value).await;
    let read = async |first: usize, last: usize| {
        let range = ByteRange::Inclusive(first as u64, last as u64);
        let got = support::get_range(&tier, "k", range).await.expect("read");
        assert!(got == value[first..=last.min(value.len() - 1)]);
    };
    read(3 * MIB + 5, 3 * MIB + 9).await;
    assert_eq!(probe.bytes.load(SeqCst), MIB as u64);
    read(3 * MIB + 500, 4 * MIB + 500).await;
    assert_eq!(probe.bytes.load(SeqCst), 2 * MIB as u64, "one was there");
    read(3 * MIB, 5 * MIB - 1).await;
    assert_eq!(probe.bytes.load(SeqCst), 2 * MIB as u64, "both were there");
    read(0, 100 * MIB).await;
    let suffix = support::get_range(&tier, "k", ByteRange::Suffix(10)).await;
    assert!(suffix.expect("read") == value[8 * MIB - 10..]);
    let before = probe.bytes.load(SeqCst);
    let address = Address::object(NS, b"k");
    let headed = tier
        .retrieve(address, None, ByteRange::Full)
        .await
        .expect("there");
    assert_eq!(
        (headed.meta.size, probe.bytes.load(SeqCst)),
        (value.len() as u64, before)
    );
    let past = ByteRange::From(8 * MIB as u64);
    let refused = support::get_range(&tier, "k", past)
        .await
        .expect_err("past the end");
    assert_eq!(refused.kind(), ErrorKind::RangeNotSatisfiable);
}

#[tokio::test]
async fn a_value_held_in_part_that_became_another_is_read_anew() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    let below = &tier.store_below().store;
    for (at, next) in [vec![1; 10], vec![2; 3 * MIB], Vec::new()]
        .into_iter()
        .enumerate()
    {
        let key = format!("{at}");
        support::put(below, &key, &support::bytes(5, 3 * MIB)).await;
        let first = ByteRange::Inclusive(0, 9);
        support::get_range(&tier, &key, first).await.expect("read");
        support::put(below, &key, &next).await;
        assert!(support::get(&tier, &key).await.expect("read") == next);
        support::get_range(&tier, &key, ByteRange::Full)
            .await
            .expect("held");
    }
}

#[tokio::test]
async fn a_hit_is_the_memory_that_came_in() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    let pool = forebay_mem::Pool::new(4 << 20);
    let mut buf = pool.take(MIB).await;
    buf.set_len(MIB);
    buf.fill(7);
    let buf = buf.freeze();
    let place = buf.place();
    let address = Address::object(NS, b"k");
    let mut upload = tier.store(address, Default::default()).await.expect("room");
    forebay_store::Upload::write(&mut upload, buf)
        .await
        .expect("room");
    forebay_store::Upload::commit(upload, Default::default())
        .await
        .expect("done");
    let mut object = tier
        .retrieve(address, None, ByteRange::Full)
        .await
        .expect("held");
    let hit = object.body.next().await.expect("read").expect("bytes");
    assert_eq!(hit.place(), place, "registered memory, and the same");
    assert_eq!(probe.retrieves(), 0);
    drop(object);

    let region = Region::anonymous(MIB).expect("memory");
    let target = region.slice(0..MIB).expect("inside");
    let before = copied_bytes(CopySite::RetrieveInto);
    let into = tier.retrieve_into(address, None, ByteRange::Full, target.clone());
    assert_eq!(into.await.expect("held").1, 0..MIB as u64);
    let copied = copied_bytes(CopySite::RetrieveInto) - before;
    if support::alone::is_alone() {
        assert_eq!(copied, MIB as u64, "once");
    }
    let mut placed = vec![0; MIB];
    assert!(target.read(0, &mut placed) && placed == [7; MIB]);
    assert_eq!(probe.retrieves(), 0);
}

#[tokio::test]
async fn what_has_little_of_a_block_does_not_keep_it() {
    let (tier, _) = made(&Probe::default(), |_| {}).await;
    let pool = forebay_mem::Pool::new(4 << 20);
    let mut block = pool.take(MIB).await;
    block.set_len(MIB);
    block.fill(7);
    let block = block.freeze();
    let parts = [(5000..9096, 4096), (0..600_000, MIB as u64)];
    for (at, (part, held)) in parts.into_iter().enumerate() {
        let key = [at as u8];
        let address = Address::object(NS, &key);
        let (copied, before) = (copied_bytes(CopySite::CacheKeep), metrics(&tier));
        let mut upload = tier.store(address, Default::default()).await.expect("room");
        upload.write(block.slice(part.clone())).await.expect("room");
        upload.commit(Seal::default()).await.expect("committed");
        let copied = copied_bytes(CopySite::CacheKeep) - copied;
        if support::alone::is_alone() {
            assert_eq!(copied > 0, held == 4096, "{part:?}");
        }
        let counted = metrics(&tier).memory_bytes - before.memory_bytes;
        assert!(
            (held..held + 2048).contains(&counted),
            "{counted} of {held}"
        );
        let found = tier.retrieve(address, None, ByteRange::Full).await;
        let found = support::drain(found.expect("held").body).await;
        assert!(found.expect("read") == vec![7; part.len()]);
    }
}

#[tokio::test]
async fn what_is_in_memory_leaves_others_their_turn() {
    let value = support::bytes(1, 32 << 20);
    let (tier, _) = made(&Probe::default(), |config| config.memory_bytes = 512 << 20).await;
    support::put(&tier, "k", &value).await;
    let address = Address::object(NS, b"k");
    let region = Region::anonymous(value.len()).expect("memory");
    let target = region.slice(0..value.len()).expect("inside");
    let mut placing = pin!(tier.retrieve_into(address, None, ByteRange::Full, target.clone()));
    let mut turns = 1;
    while poll!(placing.as_mut()).is_pending() {
        turns += 1;
        tokio::task::yield_now().await;
    }
    assert!(turns >= 4, "{turns}");
    let mut placed = vec![0; value.len()];
    assert!(target.read(0, &mut placed) && placed == value);
}

#[tokio::test]
async fn what_is_too_long_to_be_kept_is_placed_by_the_store() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |config| config.span_bytes_max = MIB as u64).await;
    let value = support::bytes(4, 3 * MIB);
    support::put(&tier.store_below().store, "long", &value).await;
    let region = Region::anonymous(value.len()).expect("memory");
    let address = Address::object(NS, b"long");
    let place = async |range: ByteRange, len: usize| {
        let target = region.slice(0..len).expect("inside");
        let placed = tier.retrieve_into(address, None, range, target.clone());
        let (_, range) = placed.await?;
        let mut found = vec![0; (range.end - range.start) as usize];
        assert!(target.read(0, &mut found));
        assert!(found == value[range.start as usize..range.end as usize]);
        Ok::<_, forebay_store::StoreError>(probe.placed.load(SeqCst))
    };
    let long = place(ByteRange::Full, value.len()).await;
    assert_eq!(long.expect("placed"), 1);
    let found = place(ByteRange::Full, MIB).await.expect_err("no room");
    assert_eq!(found.kind(), ErrorKind::Invalid);
    assert_eq!(probe.placed.load(SeqCst), 1, "what was opened says it");
    let short = place(ByteRange::Inclusive(5, 50_000), MIB).await;
    assert_eq!(short.expect("by way of the cache"), 1);
}

#[tokio::test]
async fn what_is_held_is_placed_from_there_however_long_the_target_is() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |config| config.span_bytes_max = MIB as u64).await;
    let value = support::bytes(4, 50_000);
    support::put(&tier.store_below().store, "short", &value).await;
    let region = Region::anonymous(3 * MIB).expect("memory");
    let target = region.slice(0..3 * MIB).expect("inside");
    let address = Address::object(NS, b"short");
    for range in [ByteRange::Full, ByteRange::Full, ByteRange::Suffix(9)] {
        let placed = tier.retrieve_into(address, None, range, target.clone());
        let (_, range) = placed.await.expect("there is room");
        let mut found = vec![0; (range.end - range.start) as usize];
        assert!(target.read(0, &mut found));
        assert!(found == value[range.start as usize..]);
    }
    assert_eq!((probe.retrieves(), probe.placed.load(SeqCst)), (1, 0));
}

/// Values that arrive together hold no more than there is room for: the others go to the store, and wait for no buffers that these have.
#[tokio::test]
async fn what_arrives_at_once_is_held_as_far_as_there_is_room() {
    let probe = Probe::default();
    // Of 128 MiB a quarter may be on its way, and half of that be one tenant's.
    let (tier, _) = made(&probe, |config| config.memory_bytes = 128 << 20).await;
    let value = support::bytes(7, 8 * MIB);
    for size in [Some(value.len() as u64), None] {
        let mut uploads = Vec::new();
        for key in ["a", "b", "c"] {
            let options = StoreOptions {
                size,
                ..StoreOptions::default()
            };
            let address = Address::object(NS, key.as_bytes());
            let mut upload = tier.store(address, options).await.expect("room");
            for chunk in value.chunks(MIB) {
                upload.write(chunk.to_vec().into()).await.expect("room");
            }
            uploads.push(upload);
        }
        for upload in uploads {
            upload.commit(Seal::default()).await.expect("committed");
        }
        for (key, asked) in [("a", 0), ("b", 0), ("c", 1)] {
            let before = probe.retrieves();
            assert!(support::get(&tier, key).await.expect("read") == value);
            assert_eq!(probe.retrieves() - before, asked, "{key} of {size:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_shared_is_read_once_all_the_same() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |config| config.span_bytes_max = MIB as u64).await;
    let value = support::bytes(6, 4 * MIB + 9);
    support::put(&tier.store_below().store, "k", &value).await;
    let size = value.len();
    // Out of the whole pieces that were opened for them.
    for (first, last) in [
        (0, size - 1),
        (5, 2 * MIB + 7),
        (MIB + 1, 3 * MIB - 1),
        (MIB - 1, MIB),
    ] {
        let before = probe.retrieves();
        let range = ByteRange::Inclusive(first as u64, last as u64);
        let got = support::get_range(&tier, "k", range).await.expect("read");
        assert!(got == value[first..=last], "{first} to {last}");
        assert_eq!(probe.retrieves(), before + 1, "{first} to {last}");
    }
    let suffix = support::get_range(&tier, "k", ByteRange::Suffix(2 * MIB as u64)).await;
    assert!(suffix.expect("read") == value[size - 2 * MIB..]);
}

#[tokio::test]
async fn slow_readers_cost_the_others_no_second_read() {
    let probe = Probe::default();
    // Room for two readers of 8 MiB each.
    let (tier, _) = made(&probe, |config| config.memory_bytes = 128 << 20).await;
    let value = support::bytes(7, 8 * MIB);
    for key in ["a", "b", "c"] {
        support::put(&tier.store_below().store, key, &value).await;
    }
    let mut slow = Vec::new();
    for key in [b"a", b"b"] {
        let address = Address::object(NS, key);
        let opened = tier.retrieve(address, None, ByteRange::Full).await;
        slow.push(opened.expect("there"));
    }
    let before = probe.retrieves();
    assert!(support::get(&tier, "c").await.expect("read") == value);
    assert_eq!(probe.retrieves(), before + 1);
    let region = Region::anonymous(value.len()).expect("memory");
    let target = region.slice(0..value.len()).expect("inside");
    let into = tier.retrieve_into(
        Address::object(NS, b"c"),
        None,
        ByteRange::Full,
        target.clone(),
    );
    assert_eq!(into.await.expect("placed").1, 0..value.len() as u64);
    assert_eq!(
        (probe.retrieves(), probe.placed.load(SeqCst)),
        (before + 2, 0)
    );
    let mut placed = vec![0; value.len()];
    assert!(target.read(0, &mut placed) && placed == value);
    drop(slow);
    support::get(&tier, "c").await.expect("read");
    support::get(&tier, "c").await.expect("held");
    assert_eq!(probe.retrieves(), before + 3, "there is room again");
}

async fn opened(tier: &Tier<Below>, key: &str) -> impl Body {
    let address = Address::object(NS, key.as_bytes());
    let object = tier.retrieve(address, None, ByteRange::Full).await;
    object.expect("there").body
}

/// At least so many bytes of a body.
async fn read(body: &mut impl Body, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let next = body.next().await.expect("read");
        bytes.extend_from_slice(&next.expect("more"));
    }
    bytes
}

#[tokio::test]
async fn a_slow_reader_takes_room_for_what_is_before_it_alone() {
    let probe = Probe::default();
    // Room for two reads of 8 MiB.
    let (tier, _) = made(&probe, |config| config.memory_bytes = 128 << 20).await;
    let value = support::bytes(8, 8 * MIB);
    for (key, len) in [("a", 8), ("b", 8), ("c", 4)] {
        support::put(&tier.store_below().store, key, &value[..len * MIB]).await;
    }
    let is_kept = async || {
        support::get(&tier, "c").await.expect("read");
        let before = probe.retrieves();
        support::get(&tier, "c").await.expect("read");
        probe.retrieves() == before
    };
    let (mut first, mut second) = (opened(&tier, "a").await, opened(&tier, "a").await);
    let beside = opened(&tier, "b").await;
    assert!(!is_kept().await);
    let mut begin = read(&mut first, 6 * MIB + 1).await;
    assert!(!is_kept().await, "the second reader needs all of it");
    let fills = metrics(&tier).fills;
    assert!(read(&mut second, 8 * MIB).await == value);
    assert_eq!(metrics(&tier).fills, fills, "out of one read");
    assert!(is_kept().await, "all are past most of it");
    begin.extend(support::drain(first).await.expect("read"));
    assert!(begin == value);
    drop(beside);
}

#[tokio::test]
async fn who_comes_late_has_what_was_let_go_read_again() {
    let probe = Probe::default();
    // Hardly anything stays.
    let (tier, _) = made(&probe, |config| config.memory_bytes = 1 << 20).await;
    let value = support::bytes(9, 4 * MIB);
    support::put(&tier.store_below().store, "k", &value).await;
    let mut first = opened(&tier, "k").await;
    let mut begin = read(&mut first, 3 * MIB).await;
    let second = opened(&tier, "k").await;
    assert!(support::drain(second).await.expect("read") == value);
    assert_eq!(probe.retrieves(), 2);
    begin.extend(support::drain(first).await.expect("read"));
    assert!(begin == value);
    assert_eq!(probe.retrieves(), 2);
}

#[tokio::test]
async fn time_to_live_and_expiry_end_what_is_held() {
    let probe = Probe::default();
    let (tier, clock) = made(&probe, |config| config.ttl_ms = Some(5000)).await;
    support::put(&tier, "k", b"value").await;
    clock.advance(4999);
    support::get(&tier, "k").await.expect("held");
    assert_eq!((probe.retrieves(), metrics(&tier).checks), (0, 1));
    clock.advance(1);
    support::get(&tier, "k").await.expect("read again");
    assert_eq!(probe.retrieves(), 1);
    // From then on it is held as anything new is.
    clock.advance(4999);
    support::get(&tier, "k").await.expect("held");
    assert_eq!(probe.retrieves(), 1);
    clock.advance(1);
    support::get(&tier, "k").await.expect("read again");
    assert_eq!(probe.retrieves(), 2);
}

/// Says when its memory is given back.
struct Told(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

#[tokio::test]
async fn what_is_kept_of_a_message_is_the_value_alone() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    let freed = Arc::new(AtomicBool::new(false));
    let message = Bytes::from_owner(Told(vec![7; MIB], freed.clone()));
    let address = Address::object(NS, b"k");
    let mut upload = tier.store(address, Default::default()).await.expect("room");
    upload
        .write(message.slice(5..15).into())
        .await
        .expect("room");
    upload
        .write(message.slice(20..25).into())
        .await
        .expect("room");
    drop(message);
    upload.commit(Seal::default()).await.expect("committed");
    // What the store below keeps is its own affair.
    support::put(&tier.store_below().store, "k", b"another").await;
    assert!(freed.load(SeqCst));
    assert_eq!(support::get(&tier, "k").await.expect("held"), [7; 15]);
    assert_eq!(probe.retrieves(), 0);
    let held = metrics(&tier).memory_bytes;
    assert!(held < 2000, "{held}");
}

#[tokio::test]
async fn an_amended_value_keeps_its_bytes() {
    let probe = Probe::default();
    let (tier, _) = made(&probe, |_| {}).await;
    support::put(&tier, "k", b"value").await;
    let address = Address::object(NS, b"k");
    let attributes = Attributes::builder().set("a", "b").build().expect("small");
    let amended = tier.amend(address, None, None, attributes).await;
    let amended = amended.expect("there");
    let object = tier
        .retrieve(address, None, ByteRange::Full)
        .await
        .expect("there");
    assert_eq!(object.meta, amended);
    assert_eq!(probe.retrieves(), 0);
}

#[tokio::test]
async fn relaxed_values_are_answered_early_and_read_at_once() {
    let clock = TestClock::default();
    let relaxed = NamespaceConfig {
        durability: Durability::Relaxed { within_ms: 100 },
        ..NamespaceConfig::default()
    };
    let store = support::with_namespace(&clock, relaxed).await;
    let probe = Probe::default();
    let mut config = support::config(64 << 20, &clock);
    config.write_back_bytes = 3 * MIB as u64;
    let tier = support::tier(&store, &probe, config);
    let value = support::bytes(9, 2 * MIB);
    let stored = support::put(&tier, "k", &value).await;
    // The commit is a task that had no turn yet.
    assert!(support::get(&store, "k").await.is_err());
    assert_eq!(metrics(&tier).write_back_bytes, 2 * MIB as u64);
    assert!(support::get(&tier, "k").await.expect("read") == value);
    let address = Address::object(NS, b"k");
    assert_eq!(tier.stat(address, None).await.expect("known"), stored.meta);
    // What no longer fits is answered when it is stored.
    support::put(&tier, "big", &value).await;
    assert!(support::get(&store, "big").await.expect("stored") == value);
    let list = forebay_store::ListOptions {
        namespace: NS,
        space: forebay_store::Space::Objects,
        prefix: b"",
        delimiter: None,
        after: Default::default(),
        limit: 10,
    };
    assert_eq!(tier.list(list).await.expect("a list").items.len(), 2);
    tier.settle().await.expect("nothing to fail");
    assert_eq!(metrics(&tier).write_back_bytes, 0);
    assert!(support::get(&store, "k").await.expect("stored") == value);
    assert!(support::get(&tier, "k").await.expect("held") == value);
    assert_eq!(probe.retrieves(), 0);
}

#[tokio::test]
async fn what_is_over_is_pinned_no_more() {
    let probe = Probe::default();
    let (tier, clock) = made(&probe, |config| {
        config.memory_bytes = 1_000_000;
        config.pins = vec![Pin {
            namespace: NS.to_owned(),
            prefix: Vec::new(),
        }];
    })
    .await;
    let value = support::bytes(11, 100_000);
    let below = &tier.store_below().store;
    for at in 0..4 {
        support::put(&tier, &format!("dead {at}"), &value).await;
        // Elsewhere, and nobody tells.
        support::delete(below, &format!("dead {at}")).await;
    }
    assert!(metrics(&tier).pinned_bytes > 400_000);
    clock.advance(3_600_000);
    for at in 0..4 {
        support::put(&tier, &format!("live {at}"), &value).await;
    }
    // All that is not pinned leaves.
    for at in 0..40 {
        support::put(&tier, &format!("new {at}"), &value).await;
    }
    for at in 0..4 {
        support::get(&tier, &format!("live {at}"))
            .await
            .expect("there");
    }
    assert_eq!(probe.retrieves(), 0, "they are pinned");
    assert!(metrics(&tier).pinned_bytes <= 500_000);
}

#[tokio::test]
async fn a_read_that_others_share_ends_for_newcomers_with_its_value() {
    let probe = Probe::default();
    let (tier, clock) = made(&probe, |_| {}).await;
    let below = &tier.store_below().store;
    let value = support::bytes(10, 3 * MIB);
    let address = Address::object(NS, b"k");
    let mut upload = below
        .store(address, Default::default())
        .await
        .expect("room");
    upload.write(value.clone().into()).await.expect("room");
    let seal = Seal {
        expires: Some(clock.now() + 500),
        ..Seal::default()
    };
    upload.commit(seal).await.expect("committed");
    let begun = opened(&tier, "k").await;
    clock.advance(500);
    let late = tier.retrieve(address, None, ByteRange::Full).await;
    assert_eq!(late.map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(support::drain(begun).await.expect("read") == value);
}
