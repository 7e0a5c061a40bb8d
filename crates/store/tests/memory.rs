//! The memory leaf keeps the contract.
#![forbid(unsafe_code)]

use forebay_mem::Pool;
use forebay_store::MemoryStore;
use forebay_store::suite::{Suite, TestClock};

async fn make(clock: TestClock) -> (MemoryStore, ()) {
    let pool = Pool::new(16 << 20);
    (MemoryStore::new(pool, move || clock.now()), ())
}

forebay_store::conformance!(Suite::new(make));
