//! The commands.

use super::{EXTENDED_KEY_BYTES_MAX, KEY_BYTES_MAX, Key, head};
use crate::nvme::opcode::kv as opcode;
use crate::nvme::{Namespace, NamespaceKind, Status, SubmissionQueueEntry};

/// Options of Store and Store-part (command dword 11, bits 15:8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// Only if the key exists (SIKE).
    pub if_exists: bool,
    /// Only if the key does not exist (SINKE).
    pub if_absent: bool,
    /// A hint that is not followed: values are never compressed.
    pub no_compression: bool,
    /// Vendor: the value expires after this many seconds. Not with Store-part.
    pub ttl_s: Option<u32>,
}

/// Where a command's key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAt {
    /// In the command.
    Inline(Key),
    /// At the head of the payload, see [`head`].
    Head,
}

/// How Retrieve-range names its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKey {
    /// In the command.
    Inline(Key),
    /// By a handle that [`Verb::Bind`] gave.
    Bound(u32),
}

/// Where a list begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListStart {
    /// At the first key.
    #[default]
    First,
    /// At this key, or at the next one when it does not exist.
    Key(Key),
    /// Likewise, by a handle that [`Verb::Bind`] or [`Verb::Position`] gave; only with `extended`.
    Bound(u32),
}

/// What [`KvCommand::ExtendedKey`] does with the key in its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// As Exist; DW0 is the stored length.
    Exist,
    /// As Delete.
    Delete,
    /// Keeps the key of a value for Retrieve-range: DW1 is its handle, DW0 the stored length.
    Bind,
    /// Keeps a key, whether or not there is a value, for List: DW1 is its handle.
    Position,
}

/// A parsed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCommand {
    /// Flush.
    Flush,
    /// Store.
    Store {
        /// The key.
        key: KeyAt,
        /// The value's length.
        value_bytes: u32,
        /// When, and for how long.
        options: StoreOptions,
    },
    /// Retrieve; DW0 is the value's true length.
    Retrieve {
        /// The key.
        key: Key,
        /// What the host has room for.
        buffer_bytes: u32,
    },
    /// Vendor: the same with the key at the head of the payload, behind which the value is placed; only where data of one command goes both
    /// ways. (Clients of rados-nkv give the head a segment of its own.)
    RetrieveByHead {
        /// What the host has room for behind the head.
        buffer_bytes: u32,
    },
    /// Delete.
    Delete {
        /// The key.
        key: Key,
    },
    /// Exist.
    Exist {
        /// The key.
        key: Key,
    },
    /// List.
    List {
        /// Where it begins.
        start: ListStart,
        /// Vendor: keys of up to 255 bytes are listed, too (CDW11 bit 15).
        extended: bool,
        /// What the host has room for.
        buffer_bytes: u32,
    },
    /// Vendor: [`Verb`] with the key as payload.
    ExtendedKey {
        /// What to do.
        verb: Verb,
    },
    /// Vendor: the value's bytes from an offset on; DW0 and DW1 are its whole length.
    RetrieveRange {
        /// The key.
        key: RangeKey,
        /// Where to begin.
        offset: u64,
        /// What the host has room for.
        buffer_bytes: u32,
    },
    /// Vendor: runs a function over a value. The payload is the key's head and then the arguments; the result lies at its begin
    /// afterwards. DW0 is the result's true length.
    Execute {
        /// Bytes of head and arguments.
        payload_bytes: u32,
        /// Room for the result.
        capacity: u32,
        /// Which function: the number that an administrator allowed it under.
        operation: u32,
    },
    /// Vendor: the same; DW1 is a handle of the result, of as much of it as there is room for, or 0 when nothing is kept.
    ExecuteSubmit {
        /// Bytes of head and arguments.
        payload_bytes: u32,
        /// How much of the result is kept.
        capacity: u32,
        /// Which function.
        operation: u32,
    },
    /// Vendor: bytes of a result that was kept; DW0 is how many there are from the offset on. Fetching the last byte forgets it.
    ExecuteFetch {
        /// The result's.
        handle: u32,
        /// Where to begin.
        offset: u32,
        /// What the host has room for.
        buffer_bytes: u32,
    },
    /// Vendor: runs a function over a value of a short key, whose arguments are these four bytes, little-endian. DW0 is the result's
    /// true length.
    ExecuteInline {
        /// The key.
        key: Key,
        /// What the function is told.
        argument: u32,
        /// Which function.
        operation: u32,
        /// What the host has room for.
        buffer_bytes: u32,
    },
    /// Vendor: the next part of a value, which appears as a whole with the last. The part at offset 0 begins it anew.
    StorePart {
        /// The key.
        key: KeyAt,
        /// Where the part belongs: right behind the previous one.
        offset: u64,
        /// The part's length.
        value_bytes: u32,
        /// When to store: the condition holds when the value begins and when it ends, and is said with both parts.
        options: StoreOptions,
        /// Whether the value ends with this part.
        last: bool,
    },
}

const OPTION_IF_EXISTS: u32 = 1 << 8;
const OPTION_IF_ABSENT: u32 = 1 << 9;
const OPTION_NO_COMPRESSION: u32 = 1 << 10;
const OPTION_TTL: u32 = 1 << 11;
const OPTIONS: u32 = 0xff00;
const LIST_EXTENDED: u32 = 1 << 15;
const LAST: u32 = 1 << 31;
/// The longest payload of Execute: a key's head and 1 MiB of arguments.
const EXECUTE_PAYLOAD_BYTES_MAX: u32 = head::BYTES_MAX as u32 + (1 << 20);

impl StoreOptions {
    fn parse(entry: &SubmissionQueueEntry, ttl: bool) -> Result<StoreOptions, Status> {
        let bits = entry.cdw(11) & OPTIONS;
        let ttl_bit = if ttl { OPTION_TTL } else { 0 };
        let known = OPTION_IF_EXISTS | OPTION_IF_ABSENT | OPTION_NO_COMPRESSION | ttl_bit;
        let options = StoreOptions {
            if_exists: bits & OPTION_IF_EXISTS != 0,
            if_absent: bits & OPTION_IF_ABSENT != 0,
            no_compression: bits & OPTION_NO_COMPRESSION != 0,
            ttl_s: (bits & ttl_bit != 0).then(|| entry.cdw(12)),
        };
        // The standard says nothing about a key that must and must not exist.
        match bits & !known != 0 || options.if_exists && options.if_absent {
            true => Err(Status::INVALID_FIELD),
            false => Ok(options),
        }
    }

    fn put(&self, mut entry: SubmissionQueueEntry) -> SubmissionQueueEntry {
        let mut bits = entry.cdw(11);
        for (set, bit) in [
            (self.if_exists, OPTION_IF_EXISTS),
            (self.if_absent, OPTION_IF_ABSENT),
            (self.no_compression, OPTION_NO_COMPRESSION),
            (self.ttl_s.is_some(), OPTION_TTL),
        ] {
            bits |= if set { bit } else { 0 };
        }
        if let Some(ttl_s) = self.ttl_s {
            entry = entry.with_cdw(12, ttl_s);
        }
        entry.with_cdw(11, bits)
    }
}

impl KvCommand {
    /// The command of an entry for a KV namespace.
    ///
    /// # Errors
    /// The status to answer.
    pub fn parse(entry: &SubmissionQueueEntry, namespace: &Namespace) -> Result<KvCommand, Status> {
        let NamespaceKind::Kv {
            value_bytes_max, ..
        } = namespace.kind
        else {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        let key_len = entry.cdw(11) as u8;
        let key = || Key::of_entry(entry, key_len).ok_or(Status::INVALID_KEY_SIZE);
        let key_or_head = || match key_len {
            0 => Ok(KeyAt::Head),
            _ => key().map(KeyAt::Inline),
        };
        let size = entry.cdw(10);
        Ok(match entry.opcode() {
            opcode::FLUSH => KvCommand::Flush,
            opcode::STORE => {
                let key = key_or_head()?;
                let options = StoreOptions::parse(entry, true)?;
                if size > value_bytes_max {
                    return Err(Status::INVALID_VALUE_SIZE);
                }
                KvCommand::Store {
                    key,
                    value_bytes: size,
                    options,
                }
            }
            opcode::RETRIEVE => match key_or_head()? {
                KeyAt::Inline(key) => KvCommand::Retrieve {
                    key,
                    buffer_bytes: size,
                },
                KeyAt::Head => KvCommand::RetrieveByHead { buffer_bytes: size },
            },
            opcode::DELETE => KvCommand::Delete { key: key()? },
            opcode::EXIST => KvCommand::Exist { key: key()? },
            opcode::LIST => {
                let extended = entry.cdw(11) & LIST_EXTENDED != 0;
                KvCommand::List {
                    start: match (key_len, extended, entry.cdw(14)) {
                        (0, false, _) | (0, true, 0) => ListStart::First,
                        (0, true, handle) => ListStart::Bound(handle),
                        _ => ListStart::Key(key()?),
                    },
                    extended,
                    buffer_bytes: size,
                }
            }
            opcode::EXTENDED_KEY => KvCommand::ExtendedKey {
                verb: match entry.cdw(12) as u8 {
                    0 => Verb::Exist,
                    1 => Verb::Delete,
                    2 => Verb::Bind,
                    3 => Verb::Position,
                    _ => return Err(Status::INVALID_FIELD),
                },
            },
            opcode::RETRIEVE_RANGE => KvCommand::RetrieveRange {
                key: match key_len {
                    0 => RangeKey::Bound(entry.cdw(14)),
                    _ => RangeKey::Inline(key()?),
                },
                offset: entry.cdw64(12),
                buffer_bytes: size,
            },
            opcode::EXECUTE | opcode::EXECUTE_SUBMIT if size > EXECUTE_PAYLOAD_BYTES_MAX => {
                return Err(Status::INVALID_VALUE_SIZE);
            }
            opcode::EXECUTE => KvCommand::Execute {
                payload_bytes: size,
                capacity: entry.cdw(12),
                operation: entry.cdw(13),
            },
            opcode::EXECUTE_SUBMIT => KvCommand::ExecuteSubmit {
                payload_bytes: size,
                capacity: entry.cdw(12),
                operation: entry.cdw(13),
            },
            opcode::EXECUTE_FETCH => KvCommand::ExecuteFetch {
                handle: entry.cdw(12),
                offset: entry.cdw(13),
                buffer_bytes: size,
            },
            opcode::EXECUTE_INLINE => KvCommand::ExecuteInline {
                key: key()?,
                argument: entry.cdw(12),
                operation: entry.cdw(13),
                buffer_bytes: size,
            },
            opcode::STORE_PART => {
                let key = key_or_head()?;
                let options = StoreOptions::parse(entry, false)?;
                let offset = entry.cdw64(12);
                if offset.checked_add(u64::from(size)).is_none() || size > value_bytes_max {
                    return Err(Status::INVALID_VALUE_SIZE);
                }
                KvCommand::StorePart {
                    key,
                    offset,
                    value_bytes: size,
                    options,
                    last: entry.cdw(11) & LAST != 0,
                }
            }
            _ => return Err(Status::INVALID_OPCODE),
        })
    }

    /// The entry of this command, without a data pointer. (A [`KvCommand::ExtendedKey`]'s CDW10 is the caller's to set, with the
    /// length of its payload.)
    pub fn entry(&self, cid: u16, nsid: u32) -> SubmissionQueueEntry {
        let new = |opcode: u8| SubmissionQueueEntry::new(opcode, cid, nsid);
        let key_at = |entry: SubmissionQueueEntry, key: &KeyAt| match key {
            KeyAt::Inline(key) => key.put(entry),
            KeyAt::Head => entry,
        };
        let at_offset = |entry: SubmissionQueueEntry, offset: u64| {
            entry
                .with_cdw(12, offset as u32)
                .with_cdw(13, (offset >> 32) as u32)
        };
        match self {
            KvCommand::Flush => new(opcode::FLUSH),
            KvCommand::Store {
                key,
                value_bytes,
                options,
            } => options.put(key_at(new(opcode::STORE).with_cdw(10, *value_bytes), key)),
            KvCommand::Retrieve { key, buffer_bytes } => {
                key.put(new(opcode::RETRIEVE).with_cdw(10, *buffer_bytes))
            }
            KvCommand::RetrieveByHead { buffer_bytes } => {
                new(opcode::RETRIEVE).with_cdw(10, *buffer_bytes)
            }
            KvCommand::Delete { key } => key.put(new(opcode::DELETE)),
            KvCommand::Exist { key } => key.put(new(opcode::EXIST)),
            KvCommand::List {
                start,
                extended,
                buffer_bytes,
            } => {
                let entry = new(opcode::LIST)
                    .with_cdw(10, *buffer_bytes)
                    .with_cdw(11, if *extended { LIST_EXTENDED } else { 0 });
                match start {
                    ListStart::First => entry,
                    ListStart::Key(key) => key.put(entry),
                    ListStart::Bound(handle) => entry.with_cdw(14, *handle),
                }
            }
            KvCommand::ExtendedKey { verb } => new(opcode::EXTENDED_KEY).with_cdw(
                12,
                match verb {
                    Verb::Exist => 0,
                    Verb::Delete => 1,
                    Verb::Bind => 2,
                    Verb::Position => 3,
                },
            ),
            KvCommand::RetrieveRange {
                key,
                offset,
                buffer_bytes,
            } => {
                let entry = new(opcode::RETRIEVE_RANGE).with_cdw(10, *buffer_bytes);
                let entry = at_offset(entry, *offset);
                match key {
                    RangeKey::Inline(key) => key.put(entry),
                    RangeKey::Bound(handle) => entry.with_cdw(14, *handle),
                }
            }
            KvCommand::Execute {
                payload_bytes,
                capacity,
                operation,
            }
            | KvCommand::ExecuteSubmit {
                payload_bytes,
                capacity,
                operation,
            } => {
                let opcode = match self {
                    KvCommand::Execute { .. } => opcode::EXECUTE,
                    _ => opcode::EXECUTE_SUBMIT,
                };
                new(opcode)
                    .with_cdw(10, *payload_bytes)
                    .with_cdw(12, *capacity)
                    .with_cdw(13, *operation)
            }
            KvCommand::ExecuteFetch {
                handle,
                offset,
                buffer_bytes,
            } => new(opcode::EXECUTE_FETCH)
                .with_cdw(10, *buffer_bytes)
                .with_cdw(12, *handle)
                .with_cdw(13, *offset),
            KvCommand::ExecuteInline {
                key,
                argument,
                operation,
                buffer_bytes,
            } => key
                .put(new(opcode::EXECUTE_INLINE))
                .with_cdw(10, *buffer_bytes)
                .with_cdw(12, *argument)
                .with_cdw(13, *operation),
            KvCommand::StorePart {
                key,
                offset,
                value_bytes,
                options,
                last,
            } => {
                let entry = options.put(new(opcode::STORE_PART).with_cdw(10, *value_bytes));
                let entry = at_offset(key_at(entry, key), *offset);
                entry.with_cdw(11, entry.cdw(11) | if *last { LAST } else { 0 })
            }
        }
    }

    /// How many bytes go to the controller, without a key at the payload's head.
    pub fn bytes_to_controller(&self) -> u64 {
        match self {
            KvCommand::Store { value_bytes, .. } | KvCommand::StorePart { value_bytes, .. } => {
                u64::from(*value_bytes)
            }
            KvCommand::Execute { payload_bytes, .. }
            | KvCommand::ExecuteSubmit { payload_bytes, .. } => u64::from(*payload_bytes),
            _ => 0,
        }
    }

    /// Of a command that runs a function, or fetches its result: how much of a result it wants.
    pub fn result_bytes(&self) -> Option<u32> {
        match self {
            KvCommand::Execute { capacity, .. } | KvCommand::ExecuteSubmit { capacity, .. } => {
                Some(*capacity)
            }
            KvCommand::ExecuteFetch { .. } => Some(0),
            KvCommand::ExecuteInline { buffer_bytes, .. } => Some(*buffer_bytes),
            _ => None,
        }
    }

    /// How many bytes go to the host at most.
    pub fn bytes_to_host(&self) -> u64 {
        match self {
            KvCommand::Retrieve { buffer_bytes, .. }
            | KvCommand::RetrieveByHead { buffer_bytes }
            | KvCommand::List { buffer_bytes, .. }
            | KvCommand::RetrieveRange { buffer_bytes, .. }
            | KvCommand::ExecuteFetch { buffer_bytes, .. }
            | KvCommand::ExecuteInline { buffer_bytes, .. } => u64::from(*buffer_bytes),
            KvCommand::Execute { capacity, .. } => u64::from(*capacity),
            _ => 0,
        }
    }
}

const _: () = assert!(KEY_BYTES_MAX < EXTENDED_KEY_BYTES_MAX);
const _: () = assert!(head::BYTES_MAX == 257);
