//! Records: small JSON values in a namespace of the store that no door can name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use forebay_mem::Buf;
use forebay_store::{
    Address, ByteRange, Condition, DeleteOptions, ErrorKind, Item, ListOptions, Meta,
    NamespaceConfig, Seal, Store, StoreOptions, Upload,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Kind, Result, SYSTEM_NAMESPACE};

/// A record is a line of JSON; anything longer was not written by us.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// What is written at a time of what is longer than a record.
const PIECE_BYTES: usize = 1 << 20;

/// The folders of what is held in memory.
pub(crate) const TENANTS: &str = "tenant/";
pub(crate) const KEYS: &str = "key/";
pub(crate) const HOSTS: &str = "host/";
pub(crate) const NUMBERS: &str = "nsid/";
pub(crate) const MODULES: &str = "module/";
const FOLDERS: [&str; 5] = [TENANTS, KEYS, HOSTS, NUMBERS, MODULES];

/// Which records there are in folders that were looked at, and of what content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<&'static str, Folder>);

type Folder = BTreeMap<Bytes, (u64, u64)>;

/// What tells one content of a record from another.
fn content(meta: &Meta) -> (u64, u64) {
    (meta.modified, meta.crc64nvme)
}

/// The records of a store, in folders.
pub(crate) struct Records<S> {
    store: Arc<S>,
    /// Whether a change began that nobody saw end well: it failed, or whoever waited for it went away.
    in_doubt: AtomicBool,
}

impl<S: Store> Records<S> {
    /// Makes their namespace when it is missing.
    pub(crate) async fn open(store: Arc<S>) -> Result<Records<S>> {
        if store.namespace(SYSTEM_NAMESPACE).is_err() {
            let config = NamespaceConfig {
                tenant: SYSTEM_NAMESPACE.to_owned(),
                ..NamespaceConfig::default()
            };
            match store.create_namespace(SYSTEM_NAMESPACE, config).await {
                // Another gateway has made it at this moment: it is known here from now on.
                Err(error) if error.kind() == ErrorKind::NamespaceExists => store.settle().await?,
                made => drop(made?),
            }
        }
        Ok(Records {
            store,
            in_doubt: AtomicBool::new(false),
        })
    }

    /// Whether there may be more or less than was told to those who changed records, since [`Records::are_read`].
    pub(crate) fn are_in_doubt(&self) -> bool {
        self.in_doubt.load(Relaxed)
    }

    /// What there is was read, and nothing has been changed since.
    pub(crate) fn are_read(&self) {
        self.in_doubt.store(false, Relaxed);
    }

    /// Every record of a folder, by name. The folder is listed if `seen` does not say what is there; what was read is noted in its place.
    pub(crate) async fn load<R: DeserializeOwned>(
        &self,
        folder: &'static str,
        seen: &mut Seen,
    ) -> Result<Vec<R>> {
        let listed = match seen.0.remove(folder) {
            Some(listed) => listed,
            None => self.list(folder).await?,
        };
        let mut records = Vec::new();
        let mut read = Folder::new();
        for key in listed.into_keys() {
            let Some((meta, bytes)) = self.read(&key).await? else {
                continue;
            };
            let record = serde_json::from_slice(&bytes).map_err(|error| {
                let key = String::from_utf8_lossy(&key);
                Error::new(Kind::Failed, format!("{key} is not a record: {error}"))
            })?;
            records.push(record);
            read.insert(key, content(&meta));
        }
        seen.0.insert(folder, read);
        Ok(records)
    }

    /// What there is now in all folders that are loaded.
    pub(crate) async fn seen_now(&self) -> Result<Seen> {
        let mut seen = Seen::default();
        for folder in FOLDERS {
            seen.0.insert(folder, self.list(folder).await?);
        }
        Ok(seen)
    }

    /// The names of all that there is in a folder.
    pub(crate) async fn names(&self, folder: &str) -> Result<Vec<String>> {
        let listed = self.list(folder).await?;
        let names = listed.keys().map(|key| String::from_utf8_lossy(key));
        let names = names.filter_map(|key| key.strip_prefix(folder).map(str::to_owned));
        Ok(names.collect())
    }

    async fn list(&self, folder: &str) -> Result<Folder> {
        let mut listed = Folder::new();
        loop {
            let options = ListOptions {
                namespace: SYSTEM_NAMESPACE,
                space: forebay_store::Space::Objects,
                prefix: folder.as_bytes(),
                delimiter: None,
                after: match listed.last_key_value() {
                    Some((key, _)) => forebay_store::After::Key(key),
                    None => forebay_store::After::Start,
                },
                limit: usize::MAX,
            };
            let page = self.store.list(options).await?;
            let before = listed.len();
            for item in page.items {
                if let Item::Value(key, meta) = item {
                    listed.insert(key, content(&meta));
                }
            }
            if !page.more || listed.len() == before {
                return Ok(listed);
            }
        }
    }

    /// Keeps a record that must be new: on stable storage when this returns.
    ///
    /// # Errors
    /// [`Kind::Exists`] when there is one of that name, which another gateway may have made at this moment.
    pub(crate) async fn create(
        &self,
        folder: &str,
        name: &str,
        record: &impl Serialize,
    ) -> Result<()> {
        let made = self
            .write(folder, name, encode(record)?, Condition::IfAbsent)
            .await;
        made.map_err(|error| match error.kind() {
            ErrorKind::PreconditionFailed => {
                Error::new(Kind::Exists, format!("{name:?} exists already"))
            }
            _ => error.into(),
        })
    }

    /// Keeps a record: on stable storage when this returns.
    pub(crate) async fn save(
        &self,
        folder: &str,
        name: &str,
        record: &impl Serialize,
    ) -> Result<()> {
        self.save_bytes(folder, name, encode(record)?).await
    }

    /// Keeps bytes that are no record, likewise.
    pub(crate) async fn save_bytes(&self, folder: &str, name: &str, bytes: Vec<u8>) -> Result<()> {
        Ok(self.write(folder, name, bytes, Condition::None).await?)
    }

    async fn write(
        &self,
        folder: &str,
        name: &str,
        bytes: Vec<u8>,
        condition: Condition,
    ) -> forebay_store::Result<()> {
        let key = format!("{folder}{name}");
        let options = StoreOptions {
            size: Some(bytes.len() as u64),
            condition,
        };
        let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
        let doubt = self.begin();
        let mut upload = self.store.store(address, options).await?;
        let bytes = Buf::from(bytes);
        for start in (0..bytes.len()).step_by(PIECE_BYTES) {
            let end = bytes.len().min(start + PIECE_BYTES);
            upload.write(bytes.slice(start..end)).await?;
        }
        upload.commit(Seal::default()).await?;
        self.end(doubt);
        Ok(())
    }

    /// Removes a record.
    pub(crate) async fn forget(&self, folder: &str, name: &str) -> Result<()> {
        let key = format!("{folder}{name}");
        let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
        let doubt = self.begin();
        self.store.delete(address, DeleteOptions::default()).await?;
        self.end(doubt);
        Ok(())
    }

    /// A change begins; whether one was in doubt before. Only one is under way at a time.
    fn begin(&self) -> bool {
        self.in_doubt.swap(true, Relaxed)
    }

    fn end(&self, doubt: bool) {
        self.in_doubt.store(doubt, Relaxed);
    }

    async fn read(&self, key: &[u8]) -> Result<Option<(Meta, Vec<u8>)>> {
        let address = Address::object(SYSTEM_NAMESPACE, key);
        let object = match self.store.retrieve(address, None, ByteRange::Full).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        if object.meta.size > RECORD_BYTES_MAX {
            return Err(Error::new(
                Kind::Failed,
                format!("{} is not a record: too long", String::from_utf8_lossy(key)),
            ));
        }
        let meta = object.meta.clone();
        Ok(Some((meta, object.bytes().await?)))
    }
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| Error::new(Kind::Failed, error.to_string()))
}
