//! What the cache counts is what it takes, of the smallest values too.
#![expect(
    unsafe_code,
    reason = "an allocator that counts is an allocator, and those are unsafe"
)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_store::suite::TestClock;
use forebay_store::{NamespaceConfig, Store};
use support::{NS, Probe};

/// The system's, which counts what a thread has.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on as it came to an allocator that keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.with(|held| held.set(held.get() + layout.size() as isize));
        // SAFETY: the caller keeps the contract of this function, which is that one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.with(|held| held.set(held.get() - layout.size() as isize));
        // SAFETY: likewise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[tokio::test]
async fn tiny_values_count_what_they_take() {
    // Tables are fullest, and emptiest, about such numbers.
    for values in [3500, 3700, 7000, 7500] {
        let clock = TestClock::default();
        let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
        for at in 0..values {
            support::put(&store, &format!("{at}"), &support::bytes(at, 1)).await;
        }
        let config = support::config(64 << 20, &clock);
        let tier = support::tier(&store, &Probe::default(), config);
        let before = HELD.get();
        for at in 0..values {
            let found = support::get(&tier, &format!("{at}")).await;
            assert_eq!(found.expect("there"), support::bytes(at, 1));
        }
        let taken = HELD.get() - before;
        let metrics = tier.metrics().expect("on");
        assert_eq!(metrics.objects, values);
        let counted = metrics.memory_bytes as isize;
        assert!(taken <= counted, "{values}: {taken} of {counted}");
        assert!(counted <= 2 * taken, "{values}: {taken} of {counted}");
    }
}

#[tokio::test]
async fn tenants_of_whom_nothing_is_held_take_nothing() {
    const TENANTS: isize = 300;
    let clock = TestClock::default();
    let store = support::memory(&clock);
    let config = support::config(64 << 20, &clock);
    let tier = support::tier(&store, &Probe::default(), config);
    let comes_and_goes = async |tenant: isize| {
        let config = NamespaceConfig {
            tenant: format!("{tenant}"),
            ..NamespaceConfig::default()
        };
        let made = tier.create_namespace(NS, config);
        made.await.expect("a name");
        support::put(&tier, "k", b"v").await;
        assert_eq!(tier.metrics().expect("on").objects, 1);
        support::delete(&tier, "k").await;
        tier.delete_namespace(NS).await.expect("it is empty");
    };
    for tenant in 0..10 {
        comes_and_goes(tenant).await;
    }
    let before = HELD.get();
    for tenant in 0..TENANTS {
        comes_and_goes(10 + tenant).await;
    }
    let each = (HELD.get() - before) / TENANTS;
    assert!(each < 100, "{each}");
}
