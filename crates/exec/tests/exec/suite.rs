//! The layer is a store like any other.

use forebay_exec::{Exec, Limits};
use forebay_mem::Pool;
use forebay_store::MemoryStore;
use forebay_store::suite::Suite;

use crate::support::executor;

forebay_store::conformance!(Suite::new(async |clock| {
    let pool = Pool::new(64 << 20);
    let executor = executor(Limits::default(), pool.clone());
    let store = MemoryStore::new(pool, move || clock.now());
    (Exec::new(store, Some(executor)), ())
}));
