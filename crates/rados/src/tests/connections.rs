//! Several connections of one gateway.

use std::time::Instant;

use forebay_store::Result;

use super::*;
use crate::pool::names_in;
use crate::support::ceph;

/// The lease is over, and what was sent before is waited for; and some time for a busy machine.
const SWEPT_WITHIN: Duration = Duration::from_secs(60);

/// Puts a value, or says why it was refused.
async fn try_put(store: &RadosStore, address: Address<'_>, bytes: &[u8]) -> Result<()> {
    let options = StoreOptions {
        size: Some(bytes.len() as u64),
        ..StoreOptions::default()
    };
    let mut upload = store.store(address, options).await?;
    for piece in bytes.chunks(1 << 20) {
        upload.write(piece.to_vec().into()).await?;
    }
    upload.commit(Seal::default()).await.map(drop)
}

/// Makes a namespace whose changes are said by the first connection.
async fn reachable(store: &RadosStore) -> String {
    for number in 0..32 {
        let name = format!("reachable{number}");
        space(store, &name).await;
        let namespace = store.core().namespace(&name).unwrap();
        let journal = namespace.journal.object();
        if namespace.index.connection_for(journal) == 0 {
            return name;
        }
    }
    panic!("all journals go by the other connection");
}

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
        let busy = reachable(&one).await;
        let address = one.core().registry.address_of(1);
        ceph(&cluster, &["osd", "blocklist", "add", &address, "300"]);
        // What goes by the other connection alone is stored all the while. It has stripes: each time it is asked whether this gateway lives.
        let traffic = async {
            let part = bytes(2, 70_000);
            for number in 0_u64.. {
                let key = format!("k{number}");
                let stored = try_put(&one, Address::staging(&busy, key.as_bytes()), &part);
                drop(stored.await);
            }
        };
        let begun = Instant::now();
        let swept = async {
            while two.sweep().await.unwrap() == 0 {
                assert!(begun.elapsed() < SWEPT_WITHIN, "nobody sweeps");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        };
        tokio::select! {
            () = traffic => {}
            () = swept => {}
        }
        let refused = try_put(&one, Address::object(&busy, b"k"), b"v").await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("blocklisted"), "{refused}");
        let namespace = two.core().namespace("left").unwrap();
        let stripes = names_in(&namespace.stripes).await.unwrap();
        assert!(stripes.is_empty(), "{} stripes", stripes.len());
        let refused = upload.write(bytes(1, 4 << 20).into()).await.is_err();
        assert!(refused || upload.commit(Seal::default()).await.is_err());
    });
}
