//! A program's end: it drives an NVMe controller that is served over vfio-user, ours or another's.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_mem::Region;
//! use forebay_nvme::vfio_user::client::{Device, DoorbellMode, QueueOptions};
//! use forebay_proto::nvme::SubmissionQueueEntry;
//!
//! let device = Device::connect("/run/forebay/vfio/vm0/cntrl".as_ref(), DoorbellMode::Shadow).await?;
//! let memory = device.map(Region::memfd(1 << 20)?).await?;
//! let mut queue = device.create_queue(QueueOptions::default()).await?;
//! let read = memory.point(SubmissionQueueEntry::new(0x02, 0, 1), 0, 4096).ok_or("too long")?;
//! queue.submit(&read);
//! queue.ring().await?;
//! queue.wait(|completion| println!("{}", completion.status)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The public interface
//! - [`Device`]: a connection and the controller behind it, enabled; admin commands.
//! - [`QueuePair`]: commands in, completions out, by the shared memory of a pair of queues. One at a time uses it; several pairs are used
//!   side by side.
//! - [`Mapping`]: memory that the device reads and writes, in place ([`Device::map`]) or by asking us ([`Device::lend`]).
//!
//! # What it does not do
//! A [`Device`] reconnects to nobody and gives up no command: when the connection ends, whoever waits is told. What does, and knows
//! namespaces, is [`initiator`](crate::initiator). The device's questions are answered by whoever waits: who only polls answers none.

mod admin;
mod connection;
mod device;
mod lent;
mod queue;

use std::io;

use forebay_proto::nvme::Status;
use forebay_proto::vfio_user::Malformed;

pub(crate) use device::point;
pub use device::{Device, DoorbellMode, Mapping, QueueMemory};
pub use lent::DeviceMay;
pub use queue::{QueueOptions, QueuePair};

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection, or the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server refused a request; an errno.
    #[error("the server refused: errno {0}")]
    Refused(u32),
    /// The server's answer is none.
    #[error("the server's answer is none: {0}")]
    Malformed(#[from] Malformed),
    /// An admin command failed.
    #[error("{0}")]
    Status(Status),
    /// The device cannot do what is asked, or has stopped.
    #[error("{0}")]
    Device(&'static str),
}

/// What may fail.
pub type Result<T> = std::result::Result<T, Error>;
