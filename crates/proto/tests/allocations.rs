//! How much memory it takes to read a token of anybody (docs/token.md section 2).
#![expect(
    unsafe_code,
    reason = "an allocator that counts is an allocator, and those are unsafe"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use forebay_proto::token;
use forebay_proto::token::ort1::OpenToken;

/// The most that reading one token takes, in bytes.
const BYTES_MAX: usize = 512;

/// The system's, which counts what a thread takes.
struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on as it came to an allocator that keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.with(|taken| taken.set(taken.get() + layout.size()));
        // SAFETY: the caller keeps the contract of this function, which is that one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: likewise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that are allocated for `work`, whether they are given back or not.
fn taken_by(work: impl FnOnce()) -> usize {
    let before = TAKEN.get();
    work();
    TAKEN.get() - before
}

#[test]
fn what_is_allocated_is_counted() {
    let taken = taken_by(|| drop(std::hint::black_box(vec![0_u8; 513])));
    assert_eq!(taken, 513);
}

/// Seeds of the fuzzers: as they are, cut anywhere, and with any byte another.
#[test]
fn no_token_takes_more_than_so_many_bytes_to_be_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let is_read = |data: &[u8]| {
        let taken = taken_by(|| {
            let _ = std::hint::black_box((token::detect(data), token::read(data)));
            let _ = std::hint::black_box(OpenToken::decode(data));
        });
        let shown = data.escape_ascii();
        assert!(taken <= BYTES_MAX, "{taken} bytes for {shown}");
    };
    for folder in ["token", "token_payload"] {
        for entry in fs::read_dir(corpus.join(folder)).expect("a corpus") {
            let mut data = fs::read(entry.expect("readable").path()).expect("a seed");
            for length in 0..=data.len() {
                is_read(&data[..length]);
            }
            for at in 0..data.len() {
                let right = data[at];
                for wrong in [0, b':', b'.', b'f', 0xff] {
                    data[at] = wrong;
                    is_read(&data);
                }
                data[at] = right;
            }
        }
    }
    for byte in [b'0', b':', b'a', b'.'] {
        for length in [512, 513, 64 << 10] {
            is_read(&vec![byte; length]);
            is_read(&[b"ort1.", &vec![byte; length][..]].concat());
            is_read(&[b"rc:", &vec![byte; length][..]].concat());
        }
    }
}
