//! Many values on their way with few buffers.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_mem::{Buf, Pool};
use forebay_store::{NamespaceConfig, Seal, Store, StoreOptions, Upload};
use forebay_tier::cold::{Bucket, Cold, Config};
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::far::Far;
use crate::support::{HOME, content, drain, object};

/// All that they have, and what each would hold.
const POOL_BYTES: usize = 16 << 20;
const VALUE_BYTES: usize = 7 << 20;
const VALUES: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn values_do_not_wait_for_each_others_buffers() {
    let pool = Pool::new(POOL_BYTES);
    let config = forebay_engine::Config {
        segment_bytes: 8 << 20,
        reserve_bytes: 0,
        cache_bytes: 0,
        ..forebay_engine::Config::default()
    };
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let engine = Engine::open(SimDisk::new(1), clock, pool.clone(), config).expect("open");
    let tenant = NamespaceConfig {
        tenant: "acme".to_owned(),
        ..NamespaceConfig::default()
    };
    engine.create_namespace("ns", tenant).await.expect("create");
    let config = Config {
        pool,
        clock: Arc::new(|| 1_700_000_000_000),
        runtime: Handle::current(),
        reads: None,
        shared: None,
        buffer_bytes: POOL_BYTES,
        grace_ms: 0,
    };
    let bucket = Bucket::new(Arc::new(Far::default()), HOME);
    let cold = Cold::new(Arc::new(engine), bucket, config);
    let mover = cold.mover().expect("a bucket");
    let mut metas = Vec::new();
    for number in 0..VALUES {
        let key = number.to_string();
        let begun = cold.store(object(&key), StoreOptions::default()).await;
        let mut upload = begun.expect("store");
        for piece in content(number, VALUE_BYTES).chunks(1 << 20) {
            let wrote = upload.write(Buf::from(piece.to_vec())).await;
            wrote.expect("write");
        }
        let stored = upload.commit(Seal::default()).await.expect("commit");
        metas.push((key, stored.meta));
    }

    let moves = metas.iter().map(async |(key, meta)| {
        let moved = mover.move_out(object(key), meta).await;
        moved.expect("move");
    });
    let all = tokio::time::timeout(PATIENCE, join_all(moves)).await;
    all.expect("those that go hold each other up");

    let recalls = metas.iter().map(async |(key, _)| {
        let back = mover.recall(object(key), None).await;
        assert!(back.expect("recall"));
    });
    let all = tokio::time::timeout(PATIENCE, join_all(recalls)).await;
    all.expect("those that come back hold each other up");
    for (number, (key, _)) in (0..).zip(&metas) {
        let object = cold
            .retrieve(object(key), None, forebay_store::ByteRange::Full)
            .await
            .expect("there");
        assert!(drain(object).await.expect("read") == content(number, VALUE_BYTES));
    }
}
