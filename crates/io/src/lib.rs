//! The only room that talks to the operating system about storage and time, and its simulated twin.
//!
//! - [`Disk`] and [`File`]: a directory of files (or devices), with asynchronous aligned I/O on registered buffers and blocking
//!   I/O for threads that may wait.
//! - `files`: the real disk: io_uring with registered files and buffers on threads that own a ring, plain threads elsewhere and
//!   where io_uring is forbidden.
//! - `sim`: a disk that loses unsynced writes, tears sectors, reorders, fails and rots, driven by a seed.
//! - [`Clock`]: the time of day and a monotonic clock, real or simulated.
//! - `eventfd`: counters by which one process wakes another.
//! - `kernel_tls`: TLS of the kernel, for connections that have agreed on keys.
//! - `passing`: open files passed over a Unix socket; [`random`], [`processor`].
//! - `passthrough`: NVMe commands by the kernel's driver.
//! - `ring` and `shard`: a thread's io_uring, and a thread made to have one.
//! - [`Slots`]: futures side by side in one task; [`Patience`], [`Watch`]: how long to look before sleeping.
//! - `socket`: sends and receives on a stream from and into several places at once; connections and how they are to behave.
//! - `apart`: work that may have to wait, on a thread of its own, in turns.
//! - `unmapping`: letting go of much mapped memory without keeping anybody waiting.
//! - [`counters`]: what rings and workers did, for metrics; [`Striped`]: what threads count without sharing it.
//!
//! # Completion and cancellation
//! Buffers travel by value: an operation owns its buffer until the device is done, whether or not the future still exists. A
//! dropped read returns its buffer to the pool after completion. Futures are `Send`; a thread that owns a ring submits to it,
//! any other thread goes through worker threads.

//!
//! # What it does not do
//! No format, checksum, cache or retry: bytes go where they are told, and errors come back as the system gave them.
//!
//! # Invariants
//! Memory that the kernel was given belongs to the transfer until its completion was taken. Every transfer that begins is
//! answered. Nothing polls: an idle disk costs no processor time.
//!
//! # How it is tested
//! `tests/disk_suite.rs` runs one suite over worker threads, rings (also with tables too small) and the simulation;
//! `tests/rings.rs` what only rings have; `tests/sim_model.rs` the simulation against a model. `examples/disk_qd.rs` measures.

pub mod apart;
mod clock;
mod counters;
mod disk;
pub mod eventfd;
pub mod files;
pub mod kernel_tls;
pub mod passing;
pub mod passthrough;
mod patience;
mod processor;
mod random;
pub mod ring;
pub mod shard;
pub mod sim;
mod slots;
pub mod socket;
mod striped;
pub mod unmapping;

pub use clock::{Clock, SystemClock, UnixMillis};
pub use counters::{Counters, counters};
pub use disk::{Disk, File, Hold, OpenOptions};
pub use patience::{Patience, Watch};
pub use processor::processor;
pub use random::random;
pub use ring::backend;
pub use slots::Slots;
pub use striped::Striped;
