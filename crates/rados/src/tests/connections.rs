//! Several connections of one gateway.

use std::time::Instant;

use super::*;
use crate::pool::names_in;
use crate::support::ceph;

/// The lease is over, and what was sent before is waited for; and some time for a busy machine.
const SWEPT_WITHIN: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_has_lost_one_of_its_connections_is_dead() {
    let cluster = cluster();
    runtime().block_on(async {
        let (config, clock) = (short_lived(&cluster), TestClock::default());
        assert!(config.connections > 1);
        let (one, two) = (open(config.clone(), clock.clone()), open(config, clock));
        space(&one, "left").await;
        let options = StoreOptions {
            size: Some(9 << 20),
            ..StoreOptions::default()
        };
        let upload = one.store(Address::object("left", b"k"), options).await;
        let mut upload = upload.unwrap();
        for _ in 0..5 {
            upload.write(bytes(1, 1 << 20).into()).await.unwrap();
        }
        let address = one.core().registry.address_of(1);
        ceph(&cluster, &["osd", "blocklist", "add", &address, "300"]);
        let begun = Instant::now();
        while two.sweep().await.unwrap() == 0 {
            assert!(begun.elapsed() < SWEPT_WITHIN, "nobody sweeps");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let namespace = two.core().namespace("left").unwrap();
        let stripes = names_in(&namespace.stripes).await.unwrap();
        assert!(stripes.is_empty(), "{} stripes", stripes.len());
        let refused = upload.write(bytes(1, 4 << 20).into()).await.is_err();
        assert!(refused || upload.commit(Seal::default()).await.is_err());
    });
}
