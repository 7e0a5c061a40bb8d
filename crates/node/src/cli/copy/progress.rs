//! The bar that a person watches.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::work::COMPARE_BYTES_MIN;

/// Bytes moved of bytes known so far.
pub struct Progress {
    bar: ProgressBar,
    /// Copies known so far.
    copies: AtomicUsize,
    /// The most bytes of one of them.
    largest: AtomicU64,
}

impl Progress {
    /// A bar on standard error, or nothing.
    pub fn new(visible: bool) -> Progress {
        let bar = ProgressBar::new(0);
        let target = match visible {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        bar.set_draw_target(target);
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Progress {
            bar,
            copies: AtomicUsize::new(0),
            largest: AtomicU64::new(0),
        }
    }

    /// More copies are to be made, of so many bytes each.
    pub fn expect(&self, sizes: impl IntoIterator<Item = u64>) {
        for size in sizes {
            self.copies.fetch_add(1, Relaxed);
            self.largest.fetch_max(size, Relaxed);
            self.bar.inc_length(size);
        }
    }

    /// Whether a copy that goes on may find one of several that is there, and is compared.
    pub fn is_compared(&self) -> bool {
        self.copies.load(Relaxed) > 1 && self.largest.load(Relaxed) >= COMPARE_BYTES_MIN
    }

    /// Whether it may find parts of one.
    pub fn is_in_parts(&self, part_bytes: u64) -> bool {
        self.largest.load(Relaxed) > part_bytes
    }

    /// So many bytes have arrived.
    pub fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
