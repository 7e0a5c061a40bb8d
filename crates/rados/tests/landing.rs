//! Values that are read into memory of the caller's: librados puts them there, and nothing that nobody may see.

mod support;

use forebay_mem::{CopySite, Region, RegionSlice, copied_bytes};
use forebay_rados::RadosStore;
use forebay_store::suite::TestClock;
use forebay_store::{Address, ByteRange, ErrorKind, Result, Seal, Store, StoreOptions, Upload};
use support::{bytes, cluster, config, fresh, open, put, rados, runtime, space};

const NS: &str = "landing";
const GUARD: u8 = 0xa5;
/// Longer than an object.
const STRIPED: usize = (9 << 20) + 70_001;
const INLINE: usize = 300_001;

fn memory(len: usize) -> RegionSlice {
    let target = Region::anonymous(len).unwrap().slice(0..len).unwrap();
    target.write(0, &vec![GUARD; len]);
    target
}

fn seen(target: &RegionSlice) -> Vec<u8> {
    let mut bytes = vec![0; target.len()];
    assert!(target.read(0, &mut bytes));
    bytes
}

/// The bytes that landed, and how many of them were copied here.
async fn into(
    store: &RadosStore,
    key: &[u8],
    range: ByteRange,
    len: usize,
) -> Result<(Vec<u8>, u64)> {
    let target = memory(len);
    let before = copied_bytes(CopySite::RetrieveInto);
    let address = Address::object(NS, key);
    let (_, range) = store
        .retrieve_into(address, None, range, target.clone())
        .await?;
    assert_eq!((range.end - range.start) as usize, len);
    let copied = copied_bytes(CopySite::RetrieveInto) - before;
    Ok((seen(&target), copied))
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn nothing_is_copied_twice() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = config(&cluster);
        let store = open(config.clone(), TestClock::default());
        space(&store, NS).await;
        let striped = bytes(1, STRIPED);
        put(&store, Address::object(NS, b"striped"), &striped).await;
        let (found, copied) = into(&store, b"striped", ByteRange::Full, STRIPED)
            .await
            .unwrap();
        assert!(found == striped && copied == 0, "{copied}");
        // Blocks that are wanted in part come by way of a buffer, and those with them that are read together.
        let (first, last) = (3, (8 << 20) + 5);
        let range = ByteRange::Inclusive(first as u64, last as u64);
        let (found, copied) = into(&store, b"striped", range, last - first + 1)
            .await
            .unwrap();
        assert!(found == striped[first..=last]);
        assert_eq!(copied, (1 << 20) - 3 + 6);

        let inline = bytes(2, INLINE);
        let key = Address::object(NS, b"inline");
        put(&store, key, &inline).await;
        let (found, copied) = into(&store, b"inline", ByteRange::Full, INLINE)
            .await
            .unwrap();
        assert!(found == inline && copied == 0, "{copied}");
        let range = ByteRange::From(65_536);
        let (found, copied) = into(&store, b"inline", range, INLINE - 65_536)
            .await
            .unwrap();
        assert!(found == inline[65_536..] && copied == 0, "{copied}");

        // Another gateway knows nothing of it, and then what it saw.
        let other = open(config, TestClock::default());
        for expected in [INLINE as u64, 0] {
            let (found, copied) = into(&other, b"inline", ByteRange::Full, INLINE)
                .await
                .unwrap();
            assert!(found == inline);
            assert_eq!(copied, expected);
        }
        // What is remembered does not hold any more.
        let inline = bytes(3, INLINE);
        put(&other, key, &inline).await;
        let (found, copied) = into(&store, b"inline", ByteRange::Full, INLINE)
            .await
            .unwrap();
        assert!(found == inline);
        assert_eq!(copied, INLINE as u64);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_may_not_be_seen_does_not_land() {
    let cluster = cluster();
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = fresh(&cluster, clock.clone());
        space(&store, NS).await;
        let key = Address::object(NS, b"short-lived");
        let upload = store.store(key, StoreOptions::default()).await;
        let mut upload = upload.unwrap();
        upload.write(bytes(1, INLINE).into()).await.unwrap();
        let seal = Seal {
            expires: Some(clock.now() + 1000),
            ..Seal::default()
        };
        upload.commit(seal).await.unwrap();
        let refused = async |len: usize| {
            let target = memory(len);
            let placed = store.retrieve_into(key, None, ByteRange::Full, target.clone());
            let kind = placed.await.expect_err("refused").kind();
            assert!(seen(&target).iter().all(|byte| *byte == GUARD));
            kind
        };
        assert_eq!(refused(INLINE - 1).await, ErrorKind::Invalid);
        assert!(
            into(&store, b"short-lived", ByteRange::Full, INLINE)
                .await
                .is_ok()
        );
        clock.advance(1001);
        assert_eq!(refused(INLINE).await, ErrorKind::NotFound);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn a_damaged_block_is_an_error() {
    let cluster = cluster();
    let config = config(&cluster);
    let folder = std::env::temp_dir().join(&config.base);
    let stripes = format!("{}/{NS}//stripes", config.base);
    runtime().block_on(async {
        let store = open(config, TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, STRIPED)).await;
        let listed = rados(&cluster, &stripes, &["ls"]);
        let listed = String::from_utf8(listed).unwrap();
        let stripe = listed.lines().next().expect("stripes");
        let mut data = rados(&cluster, &stripes, &["get", stripe, "-"]);
        data[100_000] ^= 1;
        std::fs::write(&folder, data).unwrap();
        let file = folder.to_str().unwrap();
        rados(&cluster, &stripes, &["put", stripe, file]);
        let landed = into(&store, b"k", ByteRange::Full, STRIPED).await;
        assert_eq!(landed.expect_err("damaged").kind(), ErrorKind::Corrupt);
        std::fs::remove_file(&folder).unwrap();
    });
}
