//! The bar that a person watches.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes moved of bytes known so far.
pub struct Progress {
    bar: ProgressBar,
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
        Progress { bar }
    }

    /// So many more bytes are to be moved.
    pub fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
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
