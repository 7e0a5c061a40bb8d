//! Keys and values.

use std::future::Future;

use forebay_io::File;
use forebay_mem::BLOCK_MAX_BYTES;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::{
    EXTENDED_KEY_BYTES_MAX, KEY_BYTES_MAX, KeyAt, KvCommand, ListStart, ListWriter, RangeKey,
    StoreOptions, Verb, head,
};
use forebay_store::limits::LIST_ITEMS_MAX;
use forebay_store::{
    Address, After, Condition, DeleteOptions, Durability, Item, ListOptions, Seal, Space, Store,
    Upload,
};
use tokio::task::yield_now;

use super::entered::{Entered, Named};
use super::parts::Unfinished;
use super::session::Session;
use super::status::{of_condition, of_store};
use super::transfer::{fill, place};
use super::{Payload, Target};

/// A key wherever it came from.
pub(super) struct KeyBuf {
    bytes: [u8; EXTENDED_KEY_BYTES_MAX],
    len: u8,
}

impl KeyBuf {
    fn new(key: &[u8]) -> KeyBuf {
        let mut bytes = [0; EXTENDED_KEY_BYTES_MAX];
        bytes[..key.len()].copy_from_slice(key);
        KeyBuf {
            bytes,
            len: key.len() as u8,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// DW0 alone: what does not fit is said as the greatest number.
pub(super) fn dword(size: u64) -> u64 {
    size.min(u64::from(u32::MAX))
}

fn condition(options: &StoreOptions) -> Condition {
    match (options.if_exists, options.if_absent) {
        (true, _) => Condition::IfPresent,
        (_, true) => Condition::IfAbsent,
        _ => Condition::None,
    }
}

impl<S: Store, F: File> Target<S, F> {
    /// DW0 and DW1.
    pub(super) async fn execute_kv(
        &self,
        session: &Session<S>,
        nsid: u32,
        entered: &Entered<'_, S>,
        command: &KvCommand,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        match command {
            KvCommand::Store {
                key: KeyAt::Inline(key),
                value_bytes,
                options,
            } => {
                let len = u64::from(*value_bytes);
                if payload.len() < len {
                    return Err(Status::DATA_SGL_LENGTH_INVALID);
                }
                let value = entered.key(key.as_bytes());
                self.store_value(session, value, len, options, payload)
                    .await
            }
            KvCommand::Retrieve { key, buffer_bytes } => {
                let value = entered.key(key.as_bytes());
                let room = u64::from(*buffer_bytes);
                let size = place(&value, 0, room, payload).await?;
                Ok(dword(size))
            }
            KvCommand::Exist { key } => {
                let value = entered.key(key.as_bytes());
                self.exist(&value).await
            }
            KvCommand::Delete { key } => {
                let value = entered.key(key.as_bytes());
                self.delete(session, &value, payload).await
            }
            // The others are seldom: they need no place in the future of every command.
            command => {
                let seldom = self.execute_seldom(session, nsid, entered, command, payload);
                Box::pin(seldom).await
            }
        }
    }

    async fn execute_seldom(
        &self,
        session: &Session<S>,
        nsid: u32,
        entered: &Entered<'_, S>,
        command: &KvCommand,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        match command {
            KvCommand::Store {
                key,
                value_bytes,
                options,
            } => {
                let key = self.key(key, *value_bytes, payload).await?;
                let value = entered.key(key.as_bytes());
                let len = u64::from(*value_bytes);
                self.store_value(session, value, len, options, payload)
                    .await
            }
            KvCommand::StorePart {
                key,
                offset,
                value_bytes,
                options,
                last,
            } => {
                let key = self.key(key, *value_bytes, payload).await?;
                let part = Part {
                    offset: *offset,
                    len: u64::from(*value_bytes),
                    last: *last,
                };
                let value = entered.key(key.as_bytes());
                self.store_part(session, value, part, options, payload)
                    .await
            }
            KvCommand::Flush => self.flush(entered).await,
            KvCommand::RetrieveByHead { buffer_bytes } => {
                let key = self.head(payload).await?;
                let head_bytes = (head::LENGTH_BYTES + key.as_bytes().len()) as u64;
                let room = u64::from(*buffer_bytes);
                if payload.len() < head_bytes + room {
                    return Err(Status::DATA_SGL_LENGTH_INVALID);
                }
                let value = entered.key(key.as_bytes());
                let size = place(&value, 0, room, payload).await?;
                Ok(dword(size))
            }
            KvCommand::RetrieveRange {
                key,
                offset,
                buffer_bytes,
            } => {
                let bound;
                let key = match key {
                    RangeKey::Inline(key) => key.as_bytes(),
                    RangeKey::Bound(handle) => {
                        bound = session.bound.lock().key(*handle, entered.id());
                        bound.as_deref().ok_or(Status::INVALID_FIELD)?
                    }
                };
                let value = entered.key(key);
                let room = u64::from(*buffer_bytes);
                place(&value, *offset, room, payload).await
            }
            KvCommand::List {
                start,
                extended,
                buffer_bytes,
            } => {
                let bound;
                let start = match start {
                    ListStart::First => None,
                    ListStart::Key(key) => Some(key.as_bytes()),
                    ListStart::Bound(handle) => {
                        bound = session.bound.lock().key(*handle, entered.id());
                        Some(bound.as_deref().ok_or(Status::INVALID_FIELD)?)
                    }
                };
                let key_bytes_max = match extended {
                    true => EXTENDED_KEY_BYTES_MAX,
                    false => KEY_BYTES_MAX,
                };
                self.list(entered, start, key_bytes_max, *buffer_bytes, payload)
                    .await
            }
            KvCommand::ExtendedKey { verb } => {
                let key = self.head(payload).await?;
                payload.whole().await?;
                let value = entered.key(key.as_bytes());
                match verb {
                    Verb::Exist => self.exist(&value).await,
                    Verb::Delete => self.delete(session, &value, payload).await,
                    Verb::Bind => {
                        let size = self.exist(&value).await?;
                        Ok(size | u64::from(self.bind(session, entered, &key)) << 32)
                    }
                    Verb::Position => Ok(u64::from(self.bind(session, entered, &key)) << 32),
                }
            }
            KvCommand::Execute { .. }
            | KvCommand::ExecuteSubmit { .. }
            | KvCommand::ExecuteFetch { .. }
            | KvCommand::ExecuteInline { .. } => {
                self.program(session, nsid, entered, command, payload).await
            }
            // Executed where they came from.
            KvCommand::Retrieve { .. } | KvCommand::Exist { .. } | KvCommand::Delete { .. } => {
                Err(Status::INTERNAL_ERROR)
            }
        }
    }

    /// The key of a Store, taken from the payload's head when it is there; what follows is the value.
    async fn key(
        &self,
        key: &KeyAt,
        value_bytes: u32,
        payload: &mut impl Payload,
    ) -> Result<KeyBuf, Status> {
        let value_bytes = u64::from(value_bytes);
        match key {
            KeyAt::Inline(_) if payload.len() < value_bytes => Err(Status::DATA_SGL_LENGTH_INVALID),
            KeyAt::Inline(key) => Ok(KeyBuf::new(key.as_bytes())),
            // No more bytes than the value has: what was meant is a key of no length.
            KeyAt::Head if payload.len() <= value_bytes => Err(Status::INVALID_KEY_SIZE),
            KeyAt::Head => {
                let key = self.head(payload).await?;
                let head_bytes = (head::LENGTH_BYTES + key.as_bytes().len()) as u64;
                match payload.len() - value_bytes >= head_bytes {
                    true => Ok(key),
                    false => Err(Status::INVALID_KEY_SIZE),
                }
            }
        }
    }

    pub(super) async fn head(&self, payload: &mut impl Payload) -> Result<KeyBuf, Status> {
        const LENGTH: usize = head::LENGTH_BYTES;
        if payload.len() <= LENGTH as u64 {
            return Err(Status::INVALID_KEY_SIZE);
        }
        payload.ready().await?;
        let mut buf = self.pool.take(head::BYTES_MAX).await;
        payload.receive(&mut buf, LENGTH).await?;
        let len = head::key_len([buf[0], buf[1]])?;
        if payload.len() < (LENGTH + len) as u64 {
            return Err(Status::INVALID_KEY_SIZE);
        }
        payload.receive(&mut buf, len).await?;
        Ok(KeyBuf::new(&buf[LENGTH..LENGTH + len]))
    }

    /// Makes a change of a value to its end, also when its command is given up meanwhile: it may be durable already.
    async fn land<T: Send + 'static>(
        &self,
        session: &Session<S>,
        payload: &mut impl Payload,
        change: impl Future<Output = T> + Send + 'static,
    ) -> T {
        payload.land();
        self.under_way.make(&session.host, change).await
    }

    async fn store_value(
        &self,
        session: &Session<S>,
        value: Named<'_, S>,
        len: u64,
        options: &StoreOptions,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        let seal = self.seal(options)?;
        let condition = condition(options);
        // Nothing is reserved for a value of which no byte has come.
        if len > 0 {
            payload.ready().await?;
        }
        let upload = self.store.store(
            value.address()?,
            forebay_store::StoreOptions {
                size: Some(len),
                condition,
            },
        );
        let mut upload = upload
            .await
            .map_err(|error| of_condition(&error, condition))?;
        fill(&mut upload, payload, len).await?;
        payload.whole().await?;
        value.address()?;
        let stored = self.land(session, payload, upload.commit(seal)).await;
        stored.map_err(|error| of_condition(&error, condition))?;
        Ok(0)
    }

    async fn store_part(
        &self,
        session: &Session<S>,
        value: Named<'_, S>,
        part: Part,
        options: &StoreOptions,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        let condition = condition(options);
        if part.offset.saturating_add(part.len) > u64::from(self.config.value_bytes_max) {
            return Err(Status::INVALID_VALUE_SIZE);
        }
        if part.len > 0 {
            payload.ready().await?;
        }
        let unfinished = session
            .parts
            .lock()
            .take(value.within.id(), value.key, part.offset);
        let mut unfinished = match (unfinished, part.offset) {
            (Some(unfinished), _) => unfinished,
            (None, 0) => self.begin_value(session, &value, condition).await?,
            (None, _) => return Err(Status::COMMAND_SEQUENCE_ERROR),
        };
        fill(&mut unfinished.upload, payload, part.len).await?;
        payload.whole().await?;
        value.address()?;
        if part.last {
            let commit = unfinished.upload.commit(Seal::default());
            let stored = self.land(session, payload, commit).await;
            stored.map_err(|error| of_condition(&error, condition))?;
            return Ok(0);
        }
        unfinished.arrived(part.len, self.clock.unix_millis());
        let mut parts = session.parts.lock();
        parts.put(value.within.id(), value.key, unfinished);
        session.unfinished.notify_one();
        Ok(0)
    }

    /// Begins a value that comes in parts, if its host, and its tenant, may have one more.
    async fn begin_value(
        &self,
        session: &Session<S>,
        value: &Named<'_, S>,
        condition: Condition,
    ) -> Result<Unfinished<S::Upload>, Status> {
        let now_ms = self.clock.unix_millis();
        let place = session.parts.lock().place(now_ms);
        let place = place.ok_or(Status::CAPACITY_EXCEEDED)?;
        let info = value.within.info()?;
        let room = self.parts.take(&info.config.tenant);
        let room = room.ok_or(Status::CAPACITY_EXCEEDED)?;
        let options = forebay_store::StoreOptions {
            size: None,
            condition,
        };
        let upload = self.store.store(value.address()?, options).await;
        let upload = upload.map_err(|error| of_condition(&error, condition))?;
        Ok(Unfinished::new(upload, place, room, now_ms))
    }

    /// Makes durable what was answered early; where nothing is, there is nothing to do.
    async fn flush(&self, entered: &Entered<'_, S>) -> Result<u64, Status> {
        let durability = entered.info()?.config.durability;
        if let Durability::Relaxed { .. } = durability {
            let settled = self.store.settle().await;
            settled.map_err(|error| of_store(&error))?;
        }
        Ok(0)
    }

    fn seal(&self, options: &StoreOptions) -> Result<Seal, Status> {
        let expires = match options.ttl_s {
            // A value that is gone before it is there.
            Some(0) => return Err(Status::INVALID_FIELD),
            Some(ttl_s) => Some(
                self.clock
                    .unix_millis()
                    .saturating_add(u64::from(ttl_s) * 1000),
            ),
            None => None,
        };
        Ok(Seal {
            expires,
            ..Seal::default()
        })
    }

    async fn delete(
        &self,
        session: &Session<S>,
        value: &Named<'_, S>,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        let condition = Condition::IfPresent;
        let options = DeleteOptions {
            version: None,
            condition,
        };
        let (name, key) = (value.within.name()?.to_owned(), value.key.to_vec());
        let store = self.store.clone();
        let delete = async move { store.delete(Address::object(&name, &key), options).await };
        let deleted = self.land(session, payload, delete).await;
        match deleted.map_err(|error| of_condition(&error, condition))? {
            deleted if deleted.existed => Ok(0),
            _ => Err(Status::KV_KEY_DOES_NOT_EXIST),
        }
    }

    async fn exist(&self, value: &Named<'_, S>) -> Result<u64, Status> {
        let metas = self.store.exist(&[value.address()?]).await;
        let metas = metas.map_err(|error| of_store(&error))?;
        match metas.into_iter().next().flatten() {
            Some(meta) => Ok(dword(meta.size)),
            None => Err(Status::KV_KEY_DOES_NOT_EXIST),
        }
    }

    /// The keys from `start` on, itself included; longer ones than `key_bytes_max` are left out.
    async fn list(
        &self,
        entered: &Entered<'_, S>,
        start: Option<&[u8]>,
        key_bytes_max: usize,
        buffer_bytes: u32,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        let room = usize::try_from(buffer_bytes).unwrap_or(usize::MAX);
        if room < 4 || payload.len() < u64::from(buffer_bytes) {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        let room = room.min(BLOCK_MAX_BYTES);
        let mut buf = self.pool.take(room).await;
        buf.set_len(room);
        let mut writer = ListWriter::new(&mut buf).ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        let mut full = false;
        if let Some(start) = start.filter(|start| start.len() <= key_bytes_max) {
            let there = self.exist(&entered.key(start)).await;
            match there {
                Ok(_) => full = !writer.push(start),
                Err(Status::KV_KEY_DOES_NOT_EXIST) => {}
                Err(status) => return Err(status),
            }
        }
        let mut last: Option<Vec<u8>> = start.map(<[u8]>::to_vec);
        while !full {
            let options = ListOptions {
                namespace: entered.name()?,
                space: Space::Objects,
                prefix: &[],
                delimiter: None,
                after: last.as_deref().map_or(After::Start, After::Key),
                limit: LIST_ITEMS_MAX,
            };
            let page = self.store.list(options).await;
            let page = page.map_err(|error| of_store(&error))?;
            for item in &page.items {
                let (Item::Value(key, _) | Item::Prefix(key)) = item;
                if key.len() <= key_bytes_max && !writer.push(key) {
                    full = true;
                    break;
                }
            }
            last = match (page.items.last(), page.more) {
                (Some(Item::Value(key, _) | Item::Prefix(key)), true) => Some(key.to_vec()),
                _ => break,
            };
            // A store answers from memory and at once, and of many pages none may have a key that is wanted.
            yield_now().await;
        }
        let len = writer.len();
        buf.set_len(len);
        payload.send(buf.freeze()).await?;
        Ok(0)
    }

    fn bind(&self, session: &Session<S>, entered: &Entered<'_, S>, key: &KeyBuf) -> u32 {
        let mut random = [0; 4];
        super::admission::random(&mut random);
        let handle = u32::from_le_bytes(random);
        let mut bound = session.bound.lock();
        bound.bind(handle, entered.id(), key.as_bytes())
    }
}

/// Which part of a value.
struct Part {
    offset: u64,
    len: u64,
    last: bool,
}
