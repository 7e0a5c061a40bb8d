//! A store under test, and short words for using it.

use std::sync::Arc;

use forebay_mem::Buf;

use super::TestClock;
use crate::{
    Address, Attributes, Body, ByteRange, Condition, DeleteOptions, Deleted, ErrorKind, Etag,
    NamespaceConfig, Object, Result, Seal, Store, StoreOptions, Stored, Upload, Versioning,
};

/// The tenant that owns what examples make.
pub(super) const TENANT: &str = "acme";

pub(super) struct Subject<S> {
    pub store: Arc<S>,
    pub clock: TestClock,
}

impl<S: Store> Subject<S> {
    pub fn new(store: S, clock: TestClock) -> Subject<S> {
        Subject {
            store: Arc::new(store),
            clock,
        }
    }

    pub async fn namespace(&self, name: &str) {
        self.configured(name, NamespaceConfig::default()).await;
    }

    pub async fn versioned_namespace(&self, name: &str) {
        let versioning = Versioning::Enabled;
        self.configured(
            name,
            NamespaceConfig {
                versioning,
                ..NamespaceConfig::default()
            },
        )
        .await;
    }

    pub async fn configured(&self, name: &str, mut config: NamespaceConfig) {
        if config.tenant.is_empty() {
            TENANT.clone_into(&mut config.tenant);
        }
        let made = self.store.create_namespace(name, config).await;
        made.expect("create a namespace");
    }

    pub async fn set_versioning(&self, name: &str, versioning: Versioning) {
        let mut config = self
            .store
            .namespace(name)
            .expect("namespace")
            .config
            .clone();
        config.versioning = versioning;
        let changed = self.store.update_namespace(name, None, config).await;
        changed.expect("change versioning");
    }

    pub async fn put(&self, namespace: &str, key: &str, bytes: &[u8]) -> Stored {
        let address = Address::object(namespace, key.as_bytes());
        self.try_put(address, bytes, Condition::None)
            .await
            .expect("store")
    }

    pub async fn stage(&self, namespace: &str, key: &str, bytes: &[u8]) -> Stored {
        let address = Address::staging(namespace, key.as_bytes());
        self.try_put(address, bytes, Condition::None)
            .await
            .expect("stage")
    }

    pub async fn try_put(
        &self,
        address: Address<'_>,
        bytes: &[u8],
        condition: Condition,
    ) -> Result<Stored> {
        let options = StoreOptions {
            size: Some(bytes.len() as u64),
            condition,
        };
        put_with(&*self.store, address, bytes, options, Seal::default()).await
    }

    pub async fn delete(&self, namespace: &str, key: &str) -> Deleted {
        let address = Address::object(namespace, key.as_bytes());
        let deleted = self.store.delete(address, DeleteOptions::default()).await;
        deleted.expect("delete")
    }

    /// The current value, or `None`.
    pub async fn get(&self, namespace: &str, key: &str) -> Option<Vec<u8>> {
        let address = Address::object(namespace, key.as_bytes());
        match self.store.retrieve(address, None, ByteRange::Full).await {
            Ok(object) => Some(drain(object).await),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("retrieve: {error:?}"),
        }
    }
}

/// Stores `bytes` through the store's own buffers.
pub(super) async fn put_with<S: Store>(
    store: &S,
    address: Address<'_>,
    bytes: &[u8],
    options: StoreOptions,
    seal: Seal,
) -> Result<Stored> {
    let mut upload = store.store(address, options).await?;
    fill(&mut upload, bytes).await?;
    upload.commit(seal).await
}

pub(super) async fn fill<U: Upload>(upload: &mut U, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut buf = upload.buffer(bytes.len()).await?;
        let (now, rest) = bytes.split_at(buf.capacity().min(bytes.len()));
        buf.set_len(now.len());
        buf.copy_from_slice(now);
        upload.write(buf.freeze()).await?;
        bytes = rest;
    }
    Ok(())
}

/// Appends `bytes` in heap buffers of at most `piece` bytes: lengths and places that no store chose.
pub(super) async fn fill_pieces<U: Upload>(
    upload: &mut U,
    bytes: &[u8],
    piece: usize,
) -> Result<()> {
    for piece in bytes.chunks(piece) {
        upload.write(Buf::from(piece.to_vec())).await?;
    }
    Ok(())
}

/// Every byte of a body, after checking that it yields exactly its range.
pub(super) async fn drain<B: Body>(object: Object<B>) -> Vec<u8> {
    try_drain(object).await.expect("read a body")
}

pub(super) async fn try_drain<B: Body>(mut object: Object<B>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(buf) = object.body.next().await? {
        bytes.extend_from_slice(&buf);
    }
    let wanted = object.range.end - object.range.start;
    assert_eq!(bytes.len() as u64, wanted, "a body yields its range");
    let end = object.body.next().await?;
    assert!(end.is_none(), "a body stays at its end");
    Ok(bytes)
}

/// Bytes that depend on `seed` at every offset.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(super) fn crc64nvme(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

pub(super) fn etag(text: &str) -> Etag {
    Etag::new(text).expect("a legal tag")
}

pub(super) fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    let mut builder = Attributes::builder();
    for (name, value) in pairs {
        builder.insert(name, value);
    }
    builder.build().expect("small attributes")
}

/// Asserts that a call was refused for this reason.
#[track_caller]
pub(super) fn refused<T>(result: Result<T>, kind: ErrorKind) {
    match result {
        Ok(_) => panic!("succeeded, but should be refused as {kind:?}"),
        Err(error) => assert_eq!(error.kind(), kind, "{error:?}"),
    }
}
