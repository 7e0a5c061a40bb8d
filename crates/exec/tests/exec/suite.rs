//! The layer is a store like any other.

use forebay_exec::{Exec, Limits};
use forebay_mem::Pool;
use forebay_store::MemoryStore;
use forebay_store::suite::{Suite, check_layer};

use crate::support::executor;

forebay_store::conformance!(Suite::new(async |clock| {
    let pool = Pool::new(64 << 20);
    let executor = executor(Limits::default(), pool.clone());
    let store = MemoryStore::new(pool, move || clock.now());
    (Exec::new(store, Some(executor)), ())
}));

#[tokio::test]
async fn what_the_layer_passes_on() {
    check_layer(async |store| Exec::new(store, None), &[]).await;
    let executor = executor(Limits::default(), Pool::new(64 << 20));
    let running = async |store| Exec::new(store, Some(executor));
    check_layer(running, &["execute"]).await;
}
