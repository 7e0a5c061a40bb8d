//! The pool through its public door: bounds, reuse across sizes, zeroed tails, no leaks.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Exhausted, PAGE_BYTES, Pool, Region};
use proptest::prelude::*;

#[test]
fn at_the_bound_it_refuses_and_recovers() {
    let pool = Pool::new(2 * BLOCK_MAX_BYTES);
    let first = pool.try_take(BLOCK_MAX_BYTES).unwrap();
    let second = pool.try_take(BLOCK_MAX_BYTES).unwrap();
    assert_eq!(pool.try_take(1).unwrap_err(), Exhausted);
    drop(first);
    assert_eq!(pool.try_take(1).unwrap().capacity(), PAGE_BYTES);
    drop(second);
    assert_eq!(pool.usage().in_use, 0);
}

#[test]
fn a_waiter_gets_the_block_that_is_freed() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pool = Pool::new(BLOCK_MAX_BYTES);
        let held = pool.take(BLOCK_MAX_BYTES).await;
        let waiter = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take(PAGE_BYTES).await.capacity() }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiter.await.unwrap(), PAGE_BYTES);
    });
}

#[test]
fn pressure_hooks_are_asked_before_refusing() {
    let pool = Pool::new(BLOCK_MAX_BYTES);
    let cache = std::sync::Arc::new(std::sync::Mutex::new(Vec::<BufMut>::new()));
    for _ in 0..256 {
        cache
            .lock()
            .unwrap()
            .push(pool.try_take(PAGE_BYTES).unwrap());
    }
    let victim = cache.clone();
    pool.on_pressure(move |_| victim.lock().unwrap().pop().is_some());
    assert_eq!(
        pool.try_take(BLOCK_MAX_BYTES).unwrap().capacity(),
        BLOCK_MAX_BYTES
    );
    assert!(cache.lock().unwrap().is_empty());
}

#[test]
fn freezing_zeroes_the_rest_of_the_last_page() {
    let pool = Pool::new(BLOCK_MAX_BYTES);
    let mut dirty = pool.try_take(2 * PAGE_BYTES).unwrap();
    dirty.spare().fill(0xff);
    drop(dirty);
    let mut buf = pool.try_take(2 * PAGE_BYTES).unwrap();
    buf.spare().fill(0xff);
    buf.set_len(PAGE_BYTES + 10);
    let frozen = buf.freeze();
    let padded = frozen.padded_to_page().unwrap();
    assert_eq!(padded.len(), 2 * PAGE_BYTES);
    assert!(padded[PAGE_BYTES + 10..].iter().all(|byte| *byte == 0));
    assert!(
        frozen.slice(0..100).padded_to_page().is_none(),
        "data would follow, not zeroes"
    );
    assert!(
        frozen.slice(1..10).padded_to_page().is_none(),
        "not on a page"
    );
}

#[test]
fn a_region_slice_never_leaves_its_region() {
    let region = Region::anonymous(PAGE_BYTES).unwrap();
    let slice = region.slice(100..200).unwrap();
    assert!(slice.write(0, &[7; 100]));
    assert!(!slice.write(1, &[7; 100]));
    assert!(!slice.write(usize::MAX, &[7; 2]));
    let mut out = [0; 2];
    assert!(slice.read(98, &mut out));
    assert_eq!(out, [7, 7]);
    assert!(!slice.read(99, &mut out));
    assert!(region.slice(0..PAGE_BYTES + 1).is_none());
}

#[test]
fn regions_of_a_row_are_neighbours_and_outlive_each_other() {
    let mut row = Region::anonymous_row(3, 8192).unwrap();
    let begins: Vec<usize> = row
        .iter()
        .map(|region| region.base().addr().get())
        .collect();
    assert_eq!(begins, [0, 8192, 16_384].map(|offset| begins[0] + offset));
    for (region, byte) in row.iter().zip(1..) {
        let whole = region.slice(0..8192).unwrap();
        assert!(whole.write(0, &[byte; 8192]));
        assert!(region.slice(0..8193).is_none());
    }
    let last = row.pop().unwrap();
    drop(row);
    let mut seen = [0; 8192];
    assert!(last.slice(0..8192).unwrap().read(0, &mut seen));
    assert!(seen == [3; 8192]);
    assert!(Region::anonymous_row(usize::MAX, 4096).is_err());
}

#[test]
fn a_pool_gives_no_more_than_its_bound_from_several_rows() {
    let pool = Pool::new(40 * BLOCK_MAX_BYTES);
    let mut taken: Vec<_> = (0..40)
        .map(|_| pool.try_take(BLOCK_MAX_BYTES).unwrap())
        .collect();
    assert!(pool.try_take(1).is_err());
    assert_eq!(pool.usage().mapped, 40 * BLOCK_MAX_BYTES);
    let mut begins: Vec<usize> = taken
        .iter_mut()
        .map(|buf| buf.spare().as_ptr().addr())
        .collect();
    begins.sort_unstable();
    let apart = |pair: &[usize]| pair[1] - pair[0] >= BLOCK_MAX_BYTES;
    assert!(begins.windows(2).all(apart), "blocks do not overlap");
}

/// A block for a device, if there is one now.
fn try_cold(pool: &Pool, len: usize) -> Option<BufMut> {
    match pin!(pool.take_cold(len)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(buf) => Some(buf),
        Poll::Pending => None,
    }
}

#[test]
fn blocks_for_a_device_come_from_a_wide_range_and_others_from_a_narrow_one() {
    let pool = Pool::new(64 * BLOCK_MAX_BYTES);
    let distinct = |take: fn(&Pool) -> BufMut| {
        let (mut held, mut places) = (VecDeque::new(), BTreeSet::new());
        for _ in 0..4096 {
            if held.len() == 32 {
                held.pop_front();
            }
            let mut buf = take(&pool);
            places.insert(buf.spare().as_ptr().addr());
            held.push_back(buf);
        }
        places.len()
    };
    assert!(distinct(|pool| pool.try_take(PAGE_BYTES).unwrap()) <= 33);
    let wide = distinct(|pool| try_cold(pool, PAGE_BYTES).unwrap());
    assert!(
        wide * PAGE_BYTES >= 4 << 20,
        "second-level caches hold less"
    );
    assert_eq!(pool.usage().in_use, 0);
    assert!(pool.usage().mapped <= 9 * BLOCK_MAX_BYTES);
}

#[test]
fn blocks_for_a_device_leave_others_their_memory() {
    let pool = Pool::new(2 * BLOCK_MAX_BYTES);
    let mut small: Vec<BufMut> = (0..200)
        .map(|_| try_cold(&pool, PAGE_BYTES).unwrap())
        .collect();
    assert!(pool.try_take(BLOCK_MAX_BYTES).is_ok());
    small.extend((200..512).map(|_| try_cold(&pool, PAGE_BYTES).unwrap()));
    assert!(try_cold(&pool, 1).is_none());
    small.clear();
    assert_eq!(pool.usage().in_use, 0);
    let whole = [(); 2].map(|()| try_cold(&pool, BLOCK_MAX_BYTES).unwrap());
    assert_eq!(pool.try_take(1).unwrap_err(), Exhausted);
    drop(whole);
}

#[test]
fn blocks_for_a_device_leave_no_memory_behind() {
    let pool = Pool::new(64 * BLOCK_MAX_BYTES);
    for len in [PAGE_BYTES, 4 * PAGE_BYTES, BLOCK_MAX_BYTES / 2] {
        let few = [(); 8].map(|()| try_cold(&pool, len).unwrap());
        drop(few);
    }
    let whole: Vec<BufMut> = (0..64)
        .map(|_| pool.try_take(BLOCK_MAX_BYTES).unwrap())
        .collect();
    assert_eq!(pool.try_take(1).unwrap_err(), Exhausted);
    drop(whole);
    assert_eq!(pool.usage().in_use, 0);
}

#[test]
fn copies_are_counted() {
    let before = forebay_mem::copied_bytes(CopySite::Client);
    forebay_mem::copy(CopySite::Client, &mut [0; 3], b"abc");
    assert_eq!(forebay_mem::copied_bytes(CopySite::Client), before + 3);
}

proptest! {
    /// No two live buffers overlap, whatever the order of taking and dropping; afterwards all memory is back.
    #[test]
    fn live_buffers_never_overlap(steps in prop::collection::vec((0usize..1 << 16, any::<u8>()), 1..60)) {
        let pool = Pool::new(8 * BLOCK_MAX_BYTES);
        let mut live: Vec<(u8, Buf)> = Vec::new();
        for (len, mark) in steps {
            if mark % 3 == 0 && !live.is_empty() {
                let at = len % live.len();
                let (mark, buf) = live.swap_remove(at);
                prop_assert!(buf.iter().all(|byte| *byte == mark));
                continue;
            }
            let taken = match mark % 3 {
                1 => try_cold(&pool, len),
                _ => pool.try_take(len).ok(),
            };
            if let Some(mut buf) = taken {
                buf.set_len(len.min(buf.capacity()));
                buf.fill(mark);
                live.push((mark, buf.freeze()));
            }
        }
        for (mark, buf) in &live {
            prop_assert!(buf.iter().all(|byte| byte == mark));
        }
        live.clear();
        prop_assert_eq!(pool.usage().in_use, 0);
    }
}
