//! Buffers that hardware, guests and peers may also touch.
//!
//! - [`Region`]: page-aligned memory mapped once and never moved; the unit that a ring, a NIC or a peer registers.
//! - [`Pool`]: hands out [`BufMut`]s carved from regions, bounded by configuration. At the bound [`Pool::take`] first asks
//!   its pressure hooks (caches) to give memory back, then waits: callers see back-pressure, never growth.
//! - [`BufMut`] -> [`Buf`]: exclusively owned while it is filled, then frozen into reference-counted slices.
//! - [`RegionSlice`]: memory that somebody else may be writing at this moment. It is never a `&[u8]`; bytes are copied in or out.
//!   Memory of a file that its owner may truncate is copied by the kernel, which reports what is missing: no SIGBUS.
//! - [`copy`]: the only way payload bytes are copied; it counts (`forebay_copied_bytes_total{where}`).
//!
//! # The states of a buffer
//! *Owned* (`BufMut`): one holder may write. *Shared* (`Buf`): any number of holders read, nobody writes. *Lent*: an operation
//! (a disk read, a send) holds the buffer by value until the device is done, so a dropped future cannot free memory under a
//! device. *Exposed* (`RegionSlice`): a peer may read or write at any time.
//!
//! # Invariants
//! Block sizes are powers of two from [`BLOCK_MIN_BYTES`] to [`BLOCK_MAX_BYTES`]; every block starts at a multiple of its size
//! or of [`PAGE_BYTES`], whichever is smaller. [`BufMut::freeze`] zeroes the rest of the last page, so that whole pages may
//! go to a device without carrying another object's bytes.
//!
//! # What it does not do
//! No I/O, no registration with devices (rooms `io` and `fabric` do that, by [`Region::id`]), no object semantics.

mod ahead;
mod buf;
mod copies;
#[cfg(target_arch = "x86_64")]
mod folding;
mod pool;
mod region;
mod shared;
mod sum;
mod touch;

pub use buf::{Buf, BufMut, slices};
pub use copies::{CopySite, copied_bytes, copy, count_copy};
pub use pool::{Exhausted, Pool, PoolUsage};
pub use region::{HUGE_PAGE_BYTES, Region, RegionId, RegionSlice};
pub use shared::Backing;

/// Alignment of every block and unit of device I/O.
pub const PAGE_BYTES: usize = 4096;
/// The smallest block a [`Pool`] hands out.
pub const BLOCK_MIN_BYTES: usize = PAGE_BYTES;
/// The largest block a [`Pool`] hands out; a larger value travels as several buffers.
pub const BLOCK_MAX_BYTES: usize = 1 << 20;
