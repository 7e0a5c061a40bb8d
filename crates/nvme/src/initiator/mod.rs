//! A host: it connects to controllers over NVMe/TCP, or over vfio-user on the same machine, and uses their namespaces of blocks and of
//! keys and values.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use forebay_nvme::initiator::{Controller, Options, Sink, StoreOptions};
//!
//! let controller = Controller::connect("127.0.0.1:4420".parse()?, "nqn.2026-01.org.example:pool", Options::default()).await?;
//! let values = controller.key_value(1).await?;
//! values.store(b"key", bytes::Bytes::from_static(b"value"), StoreOptions::default()).await?;
//! let found = values.retrieve(b"key", Sink::Bytes(vec![0; 4096])).await?;
//! println!("{} bytes", found.value_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! # The public interface
//! - [`Controller`]: one host and one controller, of a subsystem ([`Controller::connect`]) or behind a socket ([`Controller::open`]);
//!   [`Options`] says as whom and how.
//! - [`BlockNamespace`]: read, write, flush, write zeroes, deallocate, compare. [`KeyValueNamespace`]: store, retrieve, delete,
//!   exist, list; keys of up to 16 bytes with any controller, of up to 255 with those that know our extended verbs.
//! - [`discover`]: what subsystems there are.
//! - [`Source`], [`Sink`]: where payload is; buffers and registered memory are sent from and received into as they lie.
//! - [`NamespaceDisk`]: a [`forebay_io::Disk`] whose data file is a namespace of blocks.
//! - [`NamespaceUrl`], [`Place`], [`Address`]: how all of that is written on a command line.
//!
//! # How it moves
//! Each queue is a connection and a task. A call leaves its command in a place of the queue (`slots`), from which the task takes all
//! there are, lays them out, and sends them with one call (`sender`); what arrives is received straight into place and ends as many
//! commands as it tells of (`receiver`, `driver`). No task and no allocation is made for a command. A thread's commands go to one
//! queue, so that threads need not share one.
//!
//! Over vfio-user a queue is a pair of queues in shared memory, and a task (`device`): it lays the commands of a moment down and rings once.
//! Registered memory of a file, such as that of `Region::memfd`, is read and written by the device in place, from the first command
//! that names it until it is dropped; other payload is copied once, and counted.
//!
//! # When a controller cannot, for now
//! A command that may be made twice (below) is made again, with growing pauses, when it ends with a status that speaks of now: not
//! ready, a transient transport error, aborted, outcome unknown, or path related but for persistent loss; unless the controller says Do
//! Not Retry. Each as long as its patience lasts. Once its outcome was unknown, a command that fails ends with [`Error::Lost`].
//!
//! # When a connection is lost
//! All connections end, and are made again with growing pauses (`keeper`). Meanwhile commands wait, each as long as
//! [`Options::patience`]. A command that was with the controller is sent again where making it twice is the same as making it once:
//! reads, compares, flushes, lists, exist, and those that write the same bytes to the same place (write, write zeroes, deallocate,
//! unconditional store). Others (delete, conditional store, parts of a value) end with [`Error::Lost`]: they may have taken place.
//! So do those that were to be sent again when their patience ends, or the host is closed, unless they only read. A
//! namespace that is another one than before is not used: its commands end as if there were no connection, and others go on. This trusts a controller to
//! carry out nothing of a connection that has ended after it has let the same host connect again, as our target does. What the system has
//! not sent when a connection ends is dropped, also when its process dies.
//!
//! A controller that stops amid a write and starts again has perhaps forgotten what it had not flushed.
//! Every completion tells in which association it was made, so that [`NamespaceDisk`] can write such data again.
//!
//! # What it does not do
//! No multipath, no reservations, no metadata; of fused operations none. Over vfio-user no events: of what changes nobody tells.
//!
//! # Invariants
//! - Memory of a command is let go when the command has ended, also when its future was dropped before. A device that is left is first told
//!   to unmap it, and has five seconds to answer.
//! - What a controller sends is placed only where a command asked for it, and only as much.
//! - It sleeps when it has nothing to do; then a keep alive twice in [`Options::keep_alive`] is all that wakes it.
mod again;
mod auth;
mod block;
mod controller;
mod data;
mod device;
mod discovery;
mod disk;
mod driver;
mod error;
mod establishing;
mod flights;
mod host;
mod identify;
mod keeper;
mod kv;
mod queue;
mod receiver;
mod sender;
mod setup;
mod slots;
#[cfg(test)]
mod tests;

pub use block::BlockNamespace;
pub use controller::{Completion, Controller, Repeat};
pub use data::{Data, Hold, Sink, Source};
pub use discovery::discover;
pub use disk::{NamespaceDisk, NamespaceFile};
pub use error::{Error, Result};
pub use forebay_proto::nvme::discovery::{DiscoveryEntry, SecureChannel, SubsystemType};
pub use forebay_proto::nvme::fabrics::DISCOVERY_NQN;
pub use forebay_proto::nvme::identify::KvVendor;
pub use forebay_proto::nvme::kv::StoreOptions;
pub use forebay_proto::nvme::psk::TlsKey;
pub use host::{
    Address, DEPTH_MAX, DISCOVERY_PORT, HostIdentity, NamespaceUrl, Options, PORT, Place, Scheme,
    Secret, uuid,
};
pub use identify::{BlockInfo, ControllerInfo, KeyValueInfo, NamespaceContent, NamespaceInfo};
pub use kv::{Executed, KeyValueNamespace, Retrieved};
