//! What a module of Forebay is written against: the functions of the host, safely wrapped.
//!
//! ```ignore
//! use forebay_module::{export, inputs, write};
//!
//! export!(run);
//!
//! fn run() -> Result<(), &'static str> {
//!     for input in inputs() {
//!         write(&input.size().to_le_bytes());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - [`export!`]: functions that calls can name.
//! - [`inputs`], [`Input`], [`arguments`]: what a call brings; [`write()`], [`Input::pass`]: what it gives back; [`log`], [`fail`].
//! - [`quick`]: loops over slices that the host runs at its own speed.
//! - With the feature `std`, which is on: `Input::reader`, `Output`, `words`, and panics whose words reach the caller. Without it
//!   there is no allocator and nothing but `core`, and a panic handler is the module's own.
//!
//! The host's functions are described in `docs/execute.md`; `forebay.h` beside this package is the same for C.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

mod host;
pub mod quick;
#[cfg(feature = "std")]
mod streams;

use core::fmt::{self, Display, Write};

#[cfg(feature = "std")]
pub use streams::{Output, Reader, say, words};

/// Exports functions of the type `fn() -> Result<(), E>`, `E` being anything that can be displayed, under their own names. An error
/// ends the call with code 1 and its words.
#[macro_export]
macro_rules! export {
    ($($function:ident),+ $(,)?) => {
        $(
            const _: () = {
                #[unsafe(export_name = stringify!($function))]
                extern "C" fn exported() -> i32 {
                    $crate::enter($function)
                }
            };
        )+
    };
}

/// What [`export!`] calls.
#[doc(hidden)]
pub fn enter<E: Display>(function: fn() -> Result<(), E>) -> i32 {
    #[cfg(feature = "std")]
    std::panic::set_hook(std::boxed::Box::new(|panic| fail(2, panic)));
    match function() {
        Ok(()) => 0,
        Err(error) => fail(1, error),
    }
}

/// One of the values that the call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input(u32);

/// The inputs, in the call's order.
pub fn inputs() -> impl ExactSizeIterator<Item = Input> {
    (0..host::inputs()).map(Input)
}

impl Input {
    /// The first one.
    pub fn first() -> Option<Input> {
        inputs().next()
    }

    /// Its length in bytes; of a range, when the call asked for one.
    pub fn size(self) -> u64 {
        host::size(self.0)
    }

    /// Fills `into` from `offset` on; returns how many bytes, which are fewer than it holds only at the input's end.
    pub fn read(self, offset: u64, into: &mut [u8]) -> usize {
        host::read(self.0, offset, into)
    }

    /// Copies its key, cut to the room there is, and returns the key's whole length.
    pub fn key(self, into: &mut [u8]) -> usize {
        host::key(self.0, into)
    }

    /// Appends its bytes to the output without a copy through the module's memory; returns how many, fewer only at its end.
    pub fn pass(self, offset: u64, len: u64) -> u64 {
        host::pass(self.0, offset, len)
    }
}

/// Copies the arguments, cut to the room there is, and returns their whole length.
pub fn arguments(into: &mut [u8]) -> usize {
    host::arguments(into)
}

/// Bytes of output that reach the caller; `None`: all, the output becomes a value.
pub fn capacity() -> Option<u64> {
    host::capacity()
}

/// Appends to the output.
pub fn write(bytes: &[u8]) {
    host::write(bytes);
}

/// A line for the caller's eyes.
pub fn log(line: &str) {
    host::log(line.as_bytes());
}

/// Ends the call with a code that is not 0 and words for a person, of which the first 512 bytes count.
pub fn fail(code: i32, words: impl Display) -> ! {
    let mut text = Text::default();
    // What does not fit is left out.
    let _ = write!(text, "{words}");
    host::fail(code, &text.bytes[..text.len])
}

/// Text in no more room than this.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            bytes: [0; 512],
            len: 0,
        }
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
