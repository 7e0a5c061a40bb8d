//! A namespace of keys and values.

use bytes::Bytes;
use forebay_mem::Buf;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::{
    EXTENDED_KEY_BYTES_MAX, Key, KeyAt, KvCommand, ListReader, ListStart, RangeKey, StoreOptions,
    Verb, head,
};

use super::controller::{Completion, Controller, Repeat, Terms};
use super::data::{Data, Sink, Source};
use super::identify::KeyValueInfo;
use super::slots::REPEATS;
use super::{Error, Result};

/// A page of a list; grows when the keys of one place do not fit.
const PAGE_BYTES: usize = 64 << 10;
const PAGE_BYTES_MAX: usize = 64 << 20;

/// What is fetched of a result at once: no controller moves less with one command.
const RESULT_PIECE_BYTES: u32 = 1 << 20;

/// A namespace of keys and values. Cloning shares it.
///
/// Keys are any bytes: 1 to 16 with every controller. Longer ones, up to 255, need a controller that knows the extended verbs
/// (vendor commands C5h and CAh, and a key at the head of a Store's payload).
#[derive(Debug, Clone)]
pub struct KeyValueNamespace {
    controller: Controller,
    nsid: u32,
    info: KeyValueInfo,
}

/// A value that was found.
#[derive(Debug)]
pub struct Retrieved {
    /// Its whole length, in bytes.
    pub value_bytes: u64,
    /// How much of it was received: as much as there was room for.
    pub received: u64,
    /// The memory that it was received into.
    pub into: Sink,
}

/// What a function came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// The result's true length, in bytes.
    pub len: u64,
    /// As much of it as was wanted.
    pub bytes: Vec<u8>,
}

impl KeyValueNamespace {
    pub(super) fn new(controller: Controller, nsid: u32, info: KeyValueInfo) -> KeyValueNamespace {
        KeyValueNamespace {
            controller,
            nsid,
            info,
        }
    }

    /// Its controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Its number.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// What it was when it was looked at.
    pub fn info(&self) -> &KeyValueInfo {
        &self.info
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`Error::is_absent`] with `if_exists`; [`Status::KEY_EXISTS`] with `if_absent`; [`Error::Lost`], without either only when there was
    /// no other connection in time; [`Status::CAPACITY_EXCEEDED`]; see [`Error`].
    pub async fn store(
        &self,
        key: &[u8],
        value: impl Into<Source>,
        options: StoreOptions,
    ) -> Result<()> {
        let value = value.into();
        let value_bytes = match u32::try_from(value.len()) {
            Ok(bytes) if bytes <= self.info.value_bytes_max => bytes,
            _ => return Err(Error::Status(Status::INVALID_VALUE_SIZE)),
        };
        let (key, value) = match Key::new(key) {
            Some(key) => (KeyAt::Inline(key), value),
            None => (KeyAt::Head, value.led_by(long(key)?)),
        };
        let repeat = match options.if_exists || options.if_absent {
            true => Repeat::Never,
            false => Repeat::Safe,
        };
        let command = KvCommand::Store {
            key,
            value_bytes,
            options,
        };
        let data = match value.is_empty() {
            true => Data::None,
            false => Data::Out(value),
        };
        self.make(&command, data, repeat).await.0.map(drop)
    }

    /// Retrieves a value, from its begin, as far as there is room.
    ///
    /// # Errors
    /// [`Error::is_absent`]; see [`Error`].
    pub async fn retrieve(&self, key: &[u8], into: impl Into<Sink>) -> Result<Retrieved> {
        let into = into.into();
        let Some(key) = Key::new(key) else {
            return self.retrieve_range(key, 0, into).await;
        };
        let command = KvCommand::Retrieve {
            key,
            buffer_bytes: room(&into)?,
        };
        let (done, into) = self.receive(&command, into, Repeat::Safe, Some(0)).await;
        let done = done?;
        Ok(Retrieved {
            value_bytes: done.result & 0xffff_ffff,
            received: done.received,
            into,
        })
    }

    /// Retrieves a value from `offset` on, as far as there is room; for controllers that know the extended verbs.
    ///
    /// # Errors
    /// [`Error::is_absent`]; see [`Error`].
    pub async fn retrieve_range(
        &self,
        key: &[u8],
        offset: u64,
        into: impl Into<Sink>,
    ) -> Result<Retrieved> {
        let into = into.into();
        let buffer_bytes = room(&into)?;
        let command = |key| KvCommand::RetrieveRange {
            key,
            offset,
            buffer_bytes,
        };
        let behind = Some(offset);
        let (done, into) = match Key::new(key) {
            Some(key) => {
                let command = command(RangeKey::Inline(key));
                self.receive(&command, into, Repeat::Safe, behind).await
            }
            None => {
                let command = |handle| command(RangeKey::Bound(handle));
                self.receive_by_handle(key, Verb::Bind, command, into, behind)
                    .await
            }
        };
        let done = done?;
        Ok(Retrieved {
            value_bytes: done.result,
            received: done.received,
            into,
        })
    }

    /// Deletes a key and its value.
    ///
    /// # Errors
    /// [`Error::is_absent`]; [`Error::Lost`]; see [`Error`].
    pub async fn delete(&self, key: &[u8]) -> Result<()> {
        let Some(inline) = Key::new(key) else {
            let deleted = self.extended(key, Verb::Delete, Repeat::Never).await;
            return deleted.map(drop);
        };
        let command = KvCommand::Delete { key: inline };
        self.make(&command, Data::None, Repeat::Never)
            .await
            .0
            .map(drop)
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn exist(&self, key: &[u8]) -> Result<bool> {
        let done = match Key::new(key) {
            Some(key) => {
                let command = KvCommand::Exist { key };
                self.make(&command, Data::None, Repeat::Safe).await.0
            }
            None => self.extended(key, Verb::Exist, Repeat::Safe).await,
        };
        match done {
            Ok(_) => Ok(true),
            Err(error) if error.is_absent() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Runs a function over a value: `operation` is the number that an administrator allowed it under. Of the result the first
    /// `capacity` bytes come back.
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`] for a function that is not allowed, or a controller that runs none;
    /// [`Status::ABORT_REQUESTED`] when it was stopped at one of its bounds, [`Status::INTERNAL_ERROR`] when it failed;
    /// [`Error::is_absent`]; see [`Error`].
    pub async fn execute(
        &self,
        key: &[u8],
        operation: u32,
        arguments: &[u8],
        capacity: u32,
    ) -> Result<Executed> {
        let mut payload = head::encode(key).ok_or(Error::Status(Status::INVALID_KEY_SIZE))?;
        payload.extend_from_slice(arguments);
        let payload_bytes = u32::try_from(payload.len());
        let command = KvCommand::ExecuteSubmit {
            payload_bytes: payload_bytes.map_err(|_| Error::invalid("4 GiB of arguments"))?,
            capacity,
            operation,
        };
        let data = Data::Out(Source::Buf(Bytes::from(payload).into()));
        // Functions read alone, but one that takes its time is not to run twice unasked.
        let done = self.make(&command, data, Repeat::Never).await.0?;
        let (len, handle) = (done.result & 0xffff_ffff, (done.result >> 32) as u32);
        let kept = if handle == 0 {
            0
        } else {
            len.min(u64::from(capacity))
        };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < kept {
            let left = kept - bytes.len() as u64;
            let room = left.min(u64::from(RESULT_PIECE_BYTES)) as u32;
            let command = KvCommand::ExecuteFetch {
                handle,
                offset: bytes.len() as u32,
                buffer_bytes: room,
            };
            // A handle is of one association.
            let into = Sink::Bytes(vec![0; room as usize]);
            let (done, into) = self.receive(&command, into, Repeat::Never, None).await;
            let done = done?;
            let Sink::Bytes(mut piece) = into else {
                return Err(Error::protocol("a result elsewhere"));
            };
            piece.truncate(usize::try_from(done.received).unwrap_or(usize::MAX));
            if done.result != left || piece.len() as u64 != u64::from(room) {
                return Err(Error::protocol("a result that became shorter"));
            }
            bytes.append(&mut piece);
        }
        Ok(Executed { len, bytes })
    }

    /// Makes what was stored durable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&self) -> Result<()> {
        self.make(&KvCommand::Flush, Data::None, Repeat::Safe)
            .await
            .0
            .map(drop)
    }

    /// The next keys after `after`, or the first ones, in the controller's order; none when there are no more. Keys of more than 16
    /// bytes are told by controllers that know the extended verbs.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list(&self, after: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
        let extended = self.info.vendor.extended_keys;
        let mut page_bytes = PAGE_BYTES;
        loop {
            let command = |start| KvCommand::List {
                start,
                extended,
                buffer_bytes: page_bytes as u32,
            };
            let into = Sink::Bytes(vec![0; page_bytes]);
            let start = match after {
                None => Ok(ListStart::First),
                Some(after) => Key::new(after).map(ListStart::Key).ok_or(after),
            };
            let (done, into) = match start {
                Ok(start) => {
                    let command = command(start);
                    self.receive(&command, into, Repeat::Safe, None).await
                }
                Err(long) => {
                    let command = |handle| command(ListStart::Bound(handle));
                    self.receive_by_handle(long, Verb::Position, command, into, None)
                        .await
                }
            };
            done?;
            let Sink::Bytes(page) = into else {
                return Ok(Vec::new());
            };
            let mut list =
                ListReader::new(&page).ok_or_else(|| Error::protocol("a list too short"))?;
            let told = list.left() as usize;
            let keys: Vec<&[u8]> = list.by_ref().collect();
            let used = page.len() - list.unread();
            if keys.len() < told {
                return Err(Error::protocol("a list with fewer keys than it says"));
            }
            // The list begins with the key itself, when it exists.
            let behind = after.and_then(|after| keys.iter().position(|key| *key == after));
            let fresh = match (behind, after) {
                (Some(at), _) => &keys[at + 1..],
                // Without it order is all there is to go by; ours is that of bytes.
                (None, Some(after)) => {
                    let at = keys.iter().position(|key| *key > after);
                    &keys[at.unwrap_or(keys.len())..]
                }
                (None, None) => &keys[..],
            };
            if fresh.is_empty() && !keys.is_empty() && page_bytes < PAGE_BYTES_MAX {
                let last = EXTENDED_KEY_BYTES_MAX + 8;
                if used + last >= page_bytes {
                    page_bytes *= 4;
                    continue;
                }
            }
            return Ok(fresh.iter().map(|key| key.to_vec()).collect());
        }
    }

    async fn extended(&self, key: &[u8], verb: Verb, repeat: Repeat) -> Result<Completion> {
        let payload = long(key)?;
        let entry = KvCommand::ExtendedKey { verb }
            .entry(0, self.nsid)
            .with_cdw(10, payload.len() as u32);
        let data = Data::Out(Source::Buf(payload));
        let (done, _) = self.controller.io(entry, data, repeat).await;
        done.map_err(plain)
    }

    /// `value_behind`: of a value, what lies behind this comes.
    async fn receive(
        &self,
        command: &KvCommand,
        into: Sink,
        repeat: Repeat,
        value_behind: Option<u64>,
    ) -> (Result<Completion>, Sink) {
        let entry = command.entry(0, self.nsid);
        let terms = Terms {
            repeat,
            patience: self.controller.patience(),
            value_behind,
        };
        let (done, data) = self.controller.io_on(entry, Data::In(into), terms).await;
        (done.map_err(plain), sink(data))
    }

    /// As [`receive`](Self::receive), by a handle that `verb` gives for the key. A handle is of one association: when that has ended before
    /// the command has, both are made again.
    async fn receive_by_handle(
        &self,
        key: &[u8],
        verb: Verb,
        command: impl Fn(u32) -> KvCommand,
        into: Sink,
        value_behind: Option<u64>,
    ) -> (Result<Completion>, Sink) {
        let mut into = into;
        let mut failed: Option<(u64, Error)> = None;
        let mut left = REPEATS;
        loop {
            let bound = match self.extended(key, verb, Repeat::Safe).await {
                Ok(bound) => bound,
                Err(error) => return (Err(error), into),
            };
            if let Some((association, error)) = failed.take()
                && association == bound.association
            {
                return (Err(error), into);
            }
            let command = command((bound.result >> 32) as u32);
            let received = self.receive(&command, into, Repeat::Never, value_behind);
            let (done, back) = received.await;
            into = back;
            match done {
                Err(error) if left > 0 && may_lack_handle(&error) => {
                    left -= 1;
                    failed = Some((bound.association, error));
                }
                done => return (done, into),
            }
        }
    }

    async fn make(
        &self,
        command: &KvCommand,
        data: Data,
        repeat: Repeat,
    ) -> (Result<Completion>, Data) {
        let entry = command.entry(0, self.nsid);
        let (done, data) = self.controller.io(entry, data, repeat).await;
        (done.map_err(plain), data)
    }
}

/// The head of a payload for a key that does not fit a command.
fn long(key: &[u8]) -> Result<Buf> {
    let head = head::encode(key).ok_or(Error::Status(Status::INVALID_KEY_SIZE))?;
    Ok(Bytes::from(head).into())
}

fn room(into: &Sink) -> Result<u32> {
    u32::try_from(into.len()).map_err(|_| Error::invalid("room for 4 GiB"))
}

fn sink(data: Data) -> Sink {
    match data {
        Data::In(sink) => sink,
        Data::None | Data::Out(_) => Sink::Bytes(Vec::new()),
    }
}

/// Whether a command may have failed because the association has ended that its handle was of.
fn may_lack_handle(error: &Error) -> bool {
    match error {
        Error::Status(status) => status.code() == Status::INVALID_FIELD,
        error => matches!(error, Error::Lost(_)),
    }
}

/// Some controllers answer with the command specific codes of the Key Value command set, others with the generic ones.
fn plain(error: Error) -> Error {
    match error {
        Error::Status(status) => match status.code() {
            Status::KV_KEY_DOES_NOT_EXIST_SPECIFIC => Error::Status(Status::KV_KEY_DOES_NOT_EXIST),
            Status::KEY_EXISTS_SPECIFIC => Error::Status(Status::KEY_EXISTS),
            _ => error,
        },
        error => error,
    }
}
