//! Records: small JSON values in a namespace of the store that no door can name.

use std::sync::Arc;

use forebay_mem::Buf;
use forebay_store::{
    Address, Body, ByteRange, DeleteOptions, ErrorKind, Item, ListOptions, NamespaceConfig, Seal,
    Store, StoreOptions, Upload,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Kind, Result, SYSTEM_NAMESPACE};

/// A record is a line of JSON; anything longer was not written by us.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// What is written at a time of what is longer than a record.
const PIECE_BYTES: usize = 1 << 20;

/// The records of a store, in folders.
pub(crate) struct Records<S> {
    store: Arc<S>,
}

impl<S: Store> Records<S> {
    /// Makes their namespace when it is missing.
    pub(crate) async fn open(store: Arc<S>) -> Result<Records<S>> {
        if store.namespace(SYSTEM_NAMESPACE).is_err() {
            let config = NamespaceConfig {
                tenant: SYSTEM_NAMESPACE.to_owned(),
                ..NamespaceConfig::default()
            };
            store.create_namespace(SYSTEM_NAMESPACE, config).await?;
        }
        Ok(Records { store })
    }

    /// Every record of a folder, by name.
    pub(crate) async fn load<R: DeserializeOwned>(&self, folder: &str) -> Result<Vec<R>> {
        let mut records = Vec::new();
        let mut last = None::<bytes::Bytes>;
        loop {
            let options = ListOptions {
                namespace: SYSTEM_NAMESPACE,
                space: forebay_store::Space::Objects,
                prefix: folder.as_bytes(),
                delimiter: None,
                after: match &last {
                    Some(key) => forebay_store::After::Key(key),
                    None => forebay_store::After::Start,
                },
                limit: usize::MAX,
            };
            let page = self.store.list(options).await?;
            for item in &page.items {
                if let Item::Value(key, _) = item {
                    if let Some(bytes) = self.read(key).await? {
                        records.push(serde_json::from_slice(&bytes).map_err(|error| {
                            Error::new(
                                Kind::Failed,
                                format!(
                                    "{} is not a record: {error}",
                                    String::from_utf8_lossy(key)
                                ),
                            )
                        })?);
                    }
                    last = Some(key.clone());
                }
            }
            if !page.more || page.items.is_empty() {
                return Ok(records);
            }
        }
    }

    /// Keeps a record: on stable storage when this returns.
    pub(crate) async fn save(
        &self,
        folder: &str,
        name: &str,
        record: &impl Serialize,
    ) -> Result<()> {
        let record = serde_json::to_vec(record)
            .map_err(|error| Error::new(Kind::Failed, error.to_string()))?;
        self.save_bytes(folder, name, record).await
    }

    /// Keeps bytes that are no record, likewise.
    pub(crate) async fn save_bytes(&self, folder: &str, name: &str, record: Vec<u8>) -> Result<()> {
        let key = format!("{folder}{name}");
        let options = StoreOptions {
            size: Some(record.len() as u64),
            ..StoreOptions::default()
        };
        let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
        let mut upload = self.store.store(address, options).await?;
        let record = Buf::from(record);
        for start in (0..record.len()).step_by(PIECE_BYTES) {
            let end = record.len().min(start + PIECE_BYTES);
            upload.write(record.slice(start..end)).await?;
        }
        upload.commit(Seal::default()).await?;
        Ok(())
    }

    /// Removes a record.
    pub(crate) async fn forget(&self, folder: &str, name: &str) -> Result<()> {
        let key = format!("{folder}{name}");
        let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
        self.store.delete(address, DeleteOptions::default()).await?;
        Ok(())
    }

    async fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let address = Address::object(SYSTEM_NAMESPACE, key);
        let mut object = match self.store.retrieve(address, None, ByteRange::Full).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        if object.meta.size > RECORD_BYTES_MAX {
            return Err(Error::new(
                Kind::Failed,
                format!("{} is not a record: too long", String::from_utf8_lossy(key)),
            ));
        }
        let mut bytes = Vec::new();
        while let Some(buf) = object.body.next().await? {
            bytes.extend_from_slice(&buf);
        }
        Ok(Some(bytes))
    }
}
