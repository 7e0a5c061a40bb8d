//! Letting go of mapped memory: of much it takes some milliseconds to give back the pages, when nobody else has them, and longer than a
//! thread may take that serves others. So a thread that may wait does that.

use std::sync::Arc;

use forebay_mem::{Region, RegionSlice};
use tokio::runtime::Handle;

/// So much is unmapped where nobody is kept waiting by it.
pub const MUCH_BYTES: usize = 64 << 20;

/// The same memory; if it is much, a thread that may wait unmaps it when the last of it goes.
#[must_use]
pub fn unmapped_apart(memory: RegionSlice) -> RegionSlice {
    match memory.len() < MUCH_BYTES {
        true => memory,
        false => memory.letting_go(drop_apart::<Arc<Region>>),
    }
}

/// Drops what `bytes` of memory in all go with: if they are much together, on a thread that may wait.
pub fn let_go<T: Send + 'static>(memory: T, bytes: usize) {
    match bytes < MUCH_BYTES {
        true => drop(memory),
        false => drop_apart(memory),
    }
}

/// Without a runtime, which has such threads, right here.
fn drop_apart<T: Send + 'static>(memory: T) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(memory))),
        Err(_) => drop(memory),
    }
}
