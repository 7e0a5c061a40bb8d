//! The only room that talks to the operating system about storage and time, and its simulated twin.
//!
//! - [`Disk`] and [`File`]: a directory of files (or devices), with asynchronous aligned I/O on registered buffers and blocking
//!   I/O for threads that may wait.
//! - `files`: the real disk: io_uring with registered files and buffers on threads that own a ring, plain threads elsewhere and
//!   where io_uring is forbidden.
//! - `sim`: a disk that loses unsynced writes, tears sectors, reorders, fails and rots, driven by a seed.
//! - [`Clock`]: the time of day and a monotonic clock, real or simulated.
//!
//! # Completion and cancellation
//! Buffers travel by value: an operation owns its buffer until the device is done, whether or not the future still exists. A
//! dropped read returns its buffer to the pool after completion. Futures are `Send`; a thread that owns a ring submits to it,
//! any other thread goes through worker threads.

mod clock;
mod counters;
mod disk;
pub mod files;
pub mod ring;
pub mod shard;
pub mod sim;

pub use clock::{Clock, SystemClock, UnixMillis};
pub use counters::{Counters, counters};
pub use disk::{Disk, File, OpenOptions};
pub use ring::backend;
