//! Serves a store in memory: `cargo run -p forebay-s3 --example memory_server [ADDRESS]`. Prints its address.
//!
//! The access key is `forebay` with the secret `forebay-secret`, of tenant `alpha`; `other` with `other-secret` is of
//! tenant `beta`.

use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_mem::Pool;
use forebay_s3::{AccessKey, AccessKeys, Config, Door};
use forebay_store::MemoryStore;
use tokio::net::TcpListener;

struct Keys;

impl AccessKeys for Keys {
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>> {
        let (secret, tenant) = match access_key_id {
            "forebay" => ("forebay-secret", "alpha"),
            "other" => ("other-secret", "beta"),
            _ => return None,
        };
        Some(Arc::new(AccessKey {
            id: access_key_id.to_owned(),
            secret: secret.to_owned(),
            tenant: tenant.to_owned(),
        }))
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    println!("{}", listener.local_addr()?);
    let store = MemoryStore::new(Pool::new(2 << 30), now_ms);
    let door = Door::new(
        Arc::new(store),
        Arc::new(Keys),
        Arc::new(now_ms),
        Config::default(),
    );
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let door = Arc::clone(&door);
        tokio::spawn(door.serve_connection(stream, Some(peer), false, pending::<()>()));
    }
}
