//! The Key Value command set (Key Value Command Set 1.0, section 3), and vendor commands for longer keys and parts of values.
//!
//! - [`Key`]: 1 to 16 bytes, in the command itself; longer ones travel at the head of a payload ([`KeyAt::Head`], [`head`]);
//! - [`KvCommand`]: every command, parsed and made;
//! - [`ListWriter`], [`ListReader`]: the payload of List.

mod command;
pub mod head;
mod key;
mod list;

pub use command::{KeyAt, KvCommand, ListStart, RangeKey, StoreOptions, Verb};
pub use key::Key;
pub use list::{ListReader, ListWriter};

/// The longest key in a command, in bytes (KVKML).
pub const KEY_BYTES_MAX: usize = 16;
/// The longest key at the head of a payload, in bytes.
pub const EXTENDED_KEY_BYTES_MAX: usize = 255;
