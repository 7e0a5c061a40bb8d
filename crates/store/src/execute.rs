//! Arguments and answer of [`Store::execute`](crate::Store::execute): a function sent to the data.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use forebay_mem::{Buf, RegionSlice};

use crate::{Address, ByteRange, Seal, StoreOptions, Stored, VersionId};

/// The SHA-256 of a module's bytes: what it is allowed by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleDigest(pub [u8; 32]);

impl ModuleDigest {
    /// The digest that `text` writes in 64 hexadecimal digits, with or without `sha256:` before them.
    pub fn parse(text: &str) -> Option<ModuleDigest> {
        let text = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let mut digest = [0; 32];
        if text.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(ModuleDigest(digest))
    }
}

impl fmt::Display for ModuleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ModuleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleDigest({self})")
    }
}

/// Which module is to run. Whichever way it is named, it runs only where an administrator allowed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module<'a> {
    /// The one with these bytes.
    Digest(ModuleDigest),
    /// The one that was allowed under this name.
    Name(&'a str),
    /// The one that was allowed under this number: the operation of an NVMe command.
    Number(u32),
}

/// A value that the function reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input<'a> {
    /// Where it is; in the objects space.
    pub address: Address<'a>,
    /// Which version; the current one when `None`.
    pub version: Option<VersionId>,
    /// Which bytes; the function sees no others, and counts from the first of these.
    pub range: ByteRange,
}

impl<'a> Input<'a> {
    /// All bytes of the current value.
    pub fn whole(namespace: &'a str, key: &'a [u8]) -> Input<'a> {
        Input {
            address: Address::object(namespace, key),
            version: None,
            range: ByteRange::Full,
        }
    }
}

/// Where the output goes.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a call, and a box would be an allocation"
)]
pub enum Output<'a> {
    /// Back to the caller in buffers, cut after so many bytes.
    Inline {
        /// The most bytes that come back.
        capacity: usize,
    },
    /// To the start of memory that the caller registered, cut at its end. After an error its bytes are undefined.
    Into(RegionSlice),
    /// Into a value, whole: as by [`Store::store`](crate::Store::store), or not at all.
    Store {
        /// Where; in the objects space.
        address: Address<'a>,
        /// What must hold; a size is what the output has to have.
        options: StoreOptions,
        /// What is kept with it.
        seal: Seal,
    },
}

/// A function to run over values.
#[derive(Debug, Clone)]
pub struct Execute<'a> {
    /// Who calls: every input and the output must be in namespaces of this tenant, and the module allowed to it in all of them.
    pub tenant: &'a str,
    /// Which module.
    pub module: Module<'a>,
    /// Which of the functions it exports; without one that which the administrator named, else [`Execute::FUNCTION`].
    pub function: Option<&'a str>,
    /// What it reads, in an order that is the function's own business.
    pub inputs: &'a [Input<'a>],
    /// What else it is told. Whoever calls counts what this keeps in memory.
    pub arguments: Bytes,
    /// Where its output goes.
    pub output: Output<'a>,
    /// How long it may take, when that is less than the store's own bound.
    pub deadline: Option<Duration>,
}

impl<'a> Execute<'a> {
    /// The function that a module exports unless it says otherwise.
    pub const FUNCTION: &'static str = "run";

    /// A call whose output comes back in buffers, with a copy of its arguments.
    pub fn inline(
        tenant: &'a str,
        module: Module<'a>,
        inputs: &'a [Input<'a>],
        arguments: &[u8],
        capacity: usize,
    ) -> Execute<'a> {
        Execute {
            tenant,
            module,
            function: None,
            inputs,
            arguments: Bytes::copy_from_slice(arguments),
            output: Output::Inline { capacity },
            deadline: None,
        }
    }
}

/// What a function came to.
#[derive(Debug, Clone, Default)]
pub struct Executed {
    /// The bytes that it wrote, also those that were cut off.
    pub len: u64,
    /// Those that come back in buffers.
    pub bytes: Vec<Buf>,
    /// The value that they became.
    pub stored: Option<Stored>,
    /// What it logged: lines of text as it wrote them, not checked to be any, cut at the store's bound.
    pub logs: Bytes,
    /// What it took.
    pub effort: Effort,
}

/// What a call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// Bytes of inputs that the function read.
    pub read: u64,
    /// The time in which a thread was given to it, in nanoseconds.
    pub nanos: u64,
    /// The most linear memory that it had, in bytes.
    pub memory: u64,
}

/// What a failed function had to say; the source of errors of [`ErrorKind::ProgramFailed`](crate::ErrorKind::ProgramFailed) and
/// [`ErrorKind::ProgramStopped`](crate::ErrorKind::ProgramStopped).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it had logged {} bytes", logs.len())]
pub struct ProgramFault {
    /// The code that it ended with, if it ended by itself.
    pub code: Option<i32>,
    /// What it had logged.
    pub logs: Bytes,
}
