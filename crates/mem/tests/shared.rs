//! Memory shared by files: what a hostile holder of the same file can and cannot do.

mod skipping;

use std::fs::File;
use std::hint::spin_loop;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_mem::{HUGE_PAGE_BYTES, PAGE_BYTES, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use skipping::skip;

fn memfd(len: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("test", flags).unwrap();
    ftruncate(&file, len as u64).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn two_mappings_of_one_memfd_show_the_same_bytes() {
    let ours = Region::memfd(3 * PAGE_BYTES).unwrap();
    let passed = ours.backing().unwrap().file.try_clone_to_owned().unwrap();
    let theirs = Region::received(passed, 5000, 100, true, Box::new(())).unwrap();
    assert!(theirs.write(10, b"hello"));
    assert!(!theirs.write(96, b"hello"), "past the window");
    let mut there = [0; 5];
    assert!(ours.slice(0..ours.len()).unwrap().read(5010, &mut there));
    assert_eq!(&there, b"hello");
    assert!(theirs.region().is_steady());
}

#[test]
fn a_file_that_shrinks_fails_copies_and_nothing_else() {
    let file = memfd(4 * PAGE_BYTES, SealFlags::GROW);
    let hand = file.try_clone().unwrap();
    let window = Region::received(file, 0, 4 * PAGE_BYTES, true, Box::new(())).unwrap();
    assert!(!window.region().is_steady());
    assert!(window.write(0, &[7; 4 * PAGE_BYTES]));
    ftruncate(&hand, PAGE_BYTES as u64).unwrap();
    let mut there = vec![0; 2 * PAGE_BYTES];
    assert!(!window.read(0, &mut there), "its second page is gone");
    assert!(!window.write(PAGE_BYTES, &[1]));
    assert!(!window.for_each_chunk(|_| ()));
    assert!(window.read(0, &mut there[..PAGE_BYTES]));
    assert!(there[..PAGE_BYTES].iter().all(|byte| *byte == 7));
    assert!(window.word(0).is_none(), "a word is touched directly");
}

/// Which pages a process has (proc_pid_pagemap(5), bit 63).
fn are_there(region: &Region, pages: std::ops::Range<usize>) -> Vec<bool> {
    let map = File::open("/proc/self/pagemap").unwrap();
    let first = region.base().addr().get() / PAGE_BYTES;
    let is_there = |page| {
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, 8 * (first + page) as u64)
            .unwrap();
        u64::from_le_bytes(entry) >> 63 == 1
    };
    pages.map(is_there).collect()
}

#[test]
fn what_is_fetched_is_there() {
    for writes in [true, false] {
        let file = memfd(6 * PAGE_BYTES, SealFlags::GROW);
        let hand = file.try_clone().unwrap();
        let window = Region::received(file, 100, 5 * PAGE_BYTES, true, Box::new(())).unwrap();
        window.fetch(PAGE_BYTES, PAGE_BYTES + 1, writes);
        let there = are_there(window.region(), 0..4);
        assert_eq!(there, [false, true, true, false]);
        // What is gone is none the worse.
        ftruncate(&hand, 0).unwrap();
        window.fetch(0, 5 * PAGE_BYTES, writes);
        window.fetch(usize::MAX, 1, writes);
        assert!(!window.read(0, &mut [0]));
    }
}

#[test]
fn two_ends_find_the_same_huge_pages() {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let begins = || {
        let ours = Region::memfd(3 * HUGE_PAGE_BYTES + PAGE_BYTES).unwrap();
        let file = ours.backing().unwrap().file.try_clone_to_owned().unwrap();
        let offset = HUGE_PAGE_BYTES as u64 + 100;
        let theirs = Region::received(file, offset, HUGE_PAGE_BYTES, true, Box::new(())).unwrap();
        [ours.base(), theirs.region().base()].map(|base| base.as_ptr().addr())
    };
    // The place may be taken by another thread meanwhile.
    let aligned = (0..20).any(|_| {
        begins()
            .iter()
            .all(|base| base.is_multiple_of(HUGE_PAGE_BYTES))
    });
    assert!(aligned);
}

#[test]
fn a_sealed_memfd_cannot_shrink() {
    let file = memfd(PAGE_BYTES, SealFlags::SHRINK);
    let hand = file.try_clone().unwrap();
    let window = Region::received(file, 0, PAGE_BYTES, true, Box::new(())).unwrap();
    assert!(window.region().is_steady());
    ftruncate(&hand, 0).unwrap_err();
}

/// What shrinks, and is sealed against it, while it is looked at: either it is known to vanish, or all of it is there.
#[test]
fn a_memfd_that_is_sealed_too_late_is_not_steady() {
    const TRIES_FOR: Duration = Duration::from_secs(2);
    /// The other thread has panicked.
    const GIVEN_UP: Duration = Duration::from_secs(60);
    let (files, to_shrink) = sync_channel::<(OwnedFd, u32)>(1);
    let (shrunk, done) = sync_channel(1);
    // Both threads are on their processors when they begin: a wake-up would take longer than what is to be hit.
    let begun = Arc::new(AtomicUsize::new(0));
    let begin_together = |begun: &AtomicUsize, number: usize| {
        begun.fetch_add(1, SeqCst);
        let since = Instant::now();
        for spins in 1usize.. {
            assert!(!spins.is_multiple_of(1 << 20) || since.elapsed() < GIVEN_UP);
            match begun.load(SeqCst) < 2 * (number + 1) {
                true if spins.is_multiple_of(1000) => thread::yield_now(),
                true => spin_loop(),
                false => break,
            }
        }
    };
    let there = begun.clone();
    let other = thread::spawn(move || {
        for (number, (file, delay)) in to_shrink.iter().enumerate() {
            begin_together(&there, number);
            (0..delay).for_each(|_| spin_loop());
            ftruncate(&file, 0).unwrap();
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            shrunk.send(()).unwrap();
        }
    });
    let mut delay = 0u32;
    let begin = Instant::now();
    for number in (0..).take_while(|_| begin.elapsed() < TRIES_FOR) {
        let file = memfd(PAGE_BYTES, SealFlags::GROW);
        let hand = file.try_clone().unwrap();
        files.send((file.try_clone().unwrap(), delay)).unwrap();
        begin_together(&begun, number);
        let received = Region::received(file, 0, PAGE_BYTES, true, Box::new(()));
        done.recv().unwrap();
        // The next try's shrinking is nearer to the looking.
        delay = match &received {
            Ok(_) => delay.saturating_sub(1),
            Err(_) => delay + 1,
        };
        let steady = received.is_ok_and(|window| window.region().is_steady());
        assert!(!steady || fstat(&hand).unwrap().st_size as usize == PAGE_BYTES);
    }
    drop(files);
    other.join().unwrap();
}

#[test]
fn memory_sealed_against_writing_is_read_only() {
    let file = memfd(PAGE_BYTES, SealFlags::SHRINK | SealFlags::WRITE);
    let again = file.try_clone().unwrap();
    Region::received(file, 0, PAGE_BYTES, true, Box::new(())).unwrap_err();
    let window = Region::received(again, 0, PAGE_BYTES, false, Box::new(())).unwrap();
    assert!(!window.write(0, &[1]));
    assert!(window.word(0).is_none());
    assert!(window.read(0, &mut [0; 10]));
}

#[test]
fn what_is_passed_is_checked() {
    let received = |file: OwnedFd, offset, len| {
        Region::received(file, offset, len, true, Box::new(())).map(drop)
    };
    let page = || memfd(PAGE_BYTES, SealFlags::SHRINK);
    received(page(), 0, PAGE_BYTES + 1).unwrap_err();
    received(page(), 1, PAGE_BYTES).unwrap_err();
    received(page(), u64::MAX, 1).unwrap_err();
    received(page(), 0, 0).unwrap_err();
    received(page(), u64::MAX - 5, usize::MAX).unwrap_err();
    received(File::open("/dev/zero").unwrap().into(), 0, 1).unwrap_err();
    received(File::open("/proc/self/maps").unwrap().into(), 0, 1).unwrap_err();
    received(File::open("/").unwrap().into(), 0, 1).unwrap_err();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    received(socket.into(), 0, 1).unwrap_err();
}

#[test]
fn what_is_kept_goes_after_the_last_window() {
    struct Told(Arc<AtomicBool>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let told = Arc::new(AtomicBool::new(false));
    let keep = Box::new(Told(told.clone()));
    let file = memfd(PAGE_BYTES, SealFlags::SHRINK);
    let window = Region::received(file, 0, PAGE_BYTES, true, keep).unwrap();
    let part = window.slice(10..20).unwrap();
    drop(window);
    assert!(!told.load(SeqCst));
    drop(part);
    assert!(told.load(SeqCst));
}

#[test]
fn words_are_shared_and_aligned() {
    let region = Region::memfd(PAGE_BYTES).unwrap();
    let window = region.slice(0..PAGE_BYTES).unwrap();
    window.word(8).unwrap().store(5, SeqCst);
    let mut bytes = [0; 8];
    assert!(window.read(8, &mut bytes));
    assert_eq!(bytes, 5u64.to_le_bytes());
    assert!(window.word(4).is_none());
    assert!(window.word(PAGE_BYTES - 4).is_none());
    assert!(window.word(usize::MAX).is_none());
}

#[test]
fn an_odd_file_of_a_directory_is_shared_too() {
    let file = tempfile();
    ftruncate(&file, 5001).unwrap();
    let region = Region::from_fd(file).unwrap();
    assert_eq!(region.len(), 5001);
    let window = region.slice(0..5001).unwrap();
    assert!(window.write(4995, b"ending"));
    let mut all = Vec::new();
    assert!(window.for_each_chunk(|chunk| all.extend_from_slice(chunk)));
    assert_eq!(all.len(), 5001);
    assert!(all.ends_with(b"ending"));
}

/// An unnamed file beside the build's results.
fn tempfile() -> OwnedFd {
    use rustix::fs::{Mode, OFlags, open};
    let dir = env!("CARGO_TARGET_TMPDIR");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(dir, flags, Mode::from_raw_mode(0o600)).unwrap()
}

/// Huge pages can be punched out of a sealed file for good, where there are no more of them: they are copied by the kernel.
#[test]
fn huge_pages_are_shared_where_there_are_some() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let made = memfd_create("test", flags | MemfdFlags::HUGE_2MB);
    let Some(file) = made
        .ok()
        .filter(|file| ftruncate(file, 2 * HUGE_PAGE_BYTES as u64).is_ok())
    else {
        return skip("the system has no huge pages to give");
    };
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let ours = Region::from_fd(file.try_clone().unwrap()).unwrap();
    let ours = ours.slice(0..2 * HUGE_PAGE_BYTES).unwrap();
    let window = Region::received(
        file,
        HUGE_PAGE_BYTES as u64 + 5000,
        9000,
        true,
        Box::new(()),
    )
    .unwrap();
    assert!(!window.region().is_steady());
    // Without a huge page to be had, it fails, and nothing worse happens.
    if !window.write(3, b"hello") {
        return skip("the system has no huge page left");
    }
    let mut there = [0; 5];
    assert!(ours.read(HUGE_PAGE_BYTES + 5003, &mut there));
    assert_eq!(&there, b"hello");
}

#[test]
fn memory_that_gets_huge_pages_keeps_its_bytes() {
    let len = 2 * HUGE_PAGE_BYTES + 5000;
    let region = Region::memfd(len).unwrap();
    let memory = region.slice(0..len).unwrap();
    let places = [0, 4096, HUGE_PAGE_BYTES - 2, 2 * HUGE_PAGE_BYTES, len - 3];
    for place in places {
        assert!(memory.write(place, b"abc"));
    }
    let file = region.backing().unwrap().file.try_clone_to_owned().unwrap();
    let sharer = Region::received(file, 0, len, true, Box::new(())).unwrap();
    // Whether there are any is the system's affair.
    let made = region.take_huge_pages();
    assert!(!made || region.take_huge_pages(), "once more");
    for place in places {
        let mut there = [0; 3];
        assert!(sharer.read(place, &mut there) && &there == b"abc");
    }
    assert!(sharer.write(HUGE_PAGE_BYTES, b"def"));
    let mut there = [0; 3];
    assert!(memory.read(HUGE_PAGE_BYTES, &mut there) && &there == b"def");
    assert!(
        !Region::memfd(HUGE_PAGE_BYTES - 1)
            .unwrap()
            .take_huge_pages()
    );
    let unsealed = memfd(len, SealFlags::GROW);
    assert!(
        !Region::from_fd(unsealed).unwrap().take_huge_pages(),
        "it may vanish"
    );
}

#[test]
fn memory_is_copied_to_memory_as_far_as_both_are_there() {
    let steady = Region::memfd(4 * PAGE_BYTES).unwrap();
    let file = memfd(4 * PAGE_BYTES, SealFlags::GROW);
    let hand = file.try_clone().unwrap();
    let shaky = Region::received(file, 0, 4 * PAGE_BYTES, true, Box::new(())).unwrap();
    let whole = steady.slice(0..4 * PAGE_BYTES).unwrap();
    let part = |from: usize, to: usize| steady.slice(from..to).unwrap();
    assert!(whole.write(0, b"0123456789"));
    assert!(part(0, 10).copy_to(&part(5000, 5010)));
    let mut there = [0; 10];
    assert!(whole.read(5000, &mut there) && &there == b"0123456789");
    assert!(!part(0, 10).copy_to(&part(6000, 6009)), "it does not fit");
    // Where they overlap.
    assert!(part(5000, 5008).copy_to(&part(5002, 5010)));
    assert!(whole.read(5000, &mut there) && &there == b"0101234567");
    assert!(whole.copy_to(&shaky));
    let back = Region::anonymous(4 * PAGE_BYTES).unwrap();
    let back = back.slice(0..4 * PAGE_BYTES).unwrap();
    assert!(shaky.copy_to(&back));
    assert!(back.read(5000, &mut there) && &there == b"0101234567");
    ftruncate(&hand, PAGE_BYTES as u64).unwrap();
    assert!(!shaky.copy_to(&back) && !whole.copy_to(&shaky));
    let sealed = memfd(PAGE_BYTES, SealFlags::SHRINK | SealFlags::WRITE);
    let sealed = Region::received(sealed, 0, PAGE_BYTES, true, Box::new(()));
    let read_only = sealed.or_else(|_| {
        let again = memfd(PAGE_BYTES, SealFlags::SHRINK | SealFlags::WRITE);
        Region::received(again, 0, PAGE_BYTES, false, Box::new(()))
    });
    let read_only = read_only.unwrap();
    assert!(!part(0, 10).copy_to(&read_only));
}
