//! A store that has every block and costs nothing: what is below the cache while a trace is replayed.

use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::{Buf, BufMut};
use forebay_store::{
    Address, Attributes, Body, ByteRange, Caps, DeleteOptions, Deleted, ErrorKind, Etag,
    ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result, Scope,
    Seal, Source, Store, StoreError, StoreOptions, Stored, Upload, Usage, VersionId, VersionPage,
};

/// Every key holds the same bytes.
pub(super) struct Blocks {
    bytes: Bytes,
    crc64nvme: u64,
    namespace: Arc<NamespaceInfo>,
}

/// A block leaving.
pub(super) struct Block(Option<Buf>);

/// Nothing arrives.
pub(super) enum Never {}

impl Blocks {
    pub(super) fn new(len: u64) -> Blocks {
        let bytes = Bytes::from(vec![0x5a; len as usize]);
        Blocks {
            crc64nvme: crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes),
            bytes,
            namespace: Arc::new(NamespaceInfo {
                name: super::NAMESPACE.to_owned(),
                id: 1,
                created: 0,
                revision: 0,
                config: NamespaceConfig::default(),
            }),
        }
    }

    fn meta(&self) -> Meta {
        let size = self.bytes.len() as u64;
        Meta {
            size,
            etag: Etag::of_value(self.crc64nvme, size),
            modified: 1,
            version: VersionId::NULL,
            crc64nvme: self.crc64nvme,
            expires: None,
            attributes: Attributes::EMPTY,
        }
    }
}

fn refused<T>() -> Result<T> {
    Err(StoreError::new(
        ErrorKind::Unsupported,
        "blocks are only read",
    ))
}

impl Body for Block {
    async fn next(&mut self) -> Result<Option<Buf>> {
        Ok(self.0.take())
    }
}

impl Upload for Never {
    async fn buffer(&mut self, _: usize) -> Result<BufMut> {
        match *self {}
    }

    async fn write(&mut self, _: Buf) -> Result<()> {
        match *self {}
    }

    fn crc64nvme(&self) -> u64 {
        match *self {}
    }

    async fn commit(self, _: Seal) -> Result<Stored> {
        match self {}
    }
}

impl Store for Blocks {
    type Upload = Never;
    type Body = Block;

    fn caps(&self) -> Caps {
        Caps {
            name: "blocks",
            durable: false,
            versions: false,
            value_bytes_max: self.bytes.len() as u64,
            chunk_bytes: self.bytes.len(),
            read_ahead: 0,
            write_behind: 0,
        }
    }

    async fn retrieve(
        &self,
        _: Address<'_>,
        _: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<Block>> {
        let Some(range) = range.resolve(self.bytes.len() as u64) else {
            return refused();
        };
        let bytes = self.bytes.slice(range.start as usize..range.end as usize);
        Ok(Object {
            meta: self.meta(),
            range,
            body: Block(Some(bytes.into())),
        })
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        Ok(addresses.iter().map(|_| Some(self.meta())).collect())
    }

    async fn stat(&self, _: Address<'_>, _: Option<VersionId>) -> Result<Meta> {
        Ok(self.meta())
    }

    async fn store(&self, _: Address<'_>, _: StoreOptions) -> Result<Never> {
        refused()
    }

    async fn compose(
        &self,
        _: Address<'_>,
        _: &[Source<'_>],
        _: &[&[u8]],
        _: StoreOptions,
        _: Seal,
    ) -> Result<Stored> {
        refused()
    }

    async fn amend(
        &self,
        _: Address<'_>,
        _: Option<VersionId>,
        _: Option<&Meta>,
        _: Attributes,
    ) -> Result<Meta> {
        refused()
    }

    async fn delete(&self, _: Address<'_>, _: DeleteOptions) -> Result<Deleted> {
        refused()
    }

    async fn list(&self, _: ListOptions<'_>) -> Result<ListPage> {
        refused()
    }

    async fn list_versions(&self, _: ListOptions<'_>) -> Result<VersionPage> {
        refused()
    }

    async fn create_namespace(&self, _: &str, _: NamespaceConfig) -> Result<Arc<NamespaceInfo>> {
        Ok(self.namespace.clone())
    }

    async fn delete_namespace(&self, _: &str) -> Result<()> {
        refused()
    }

    async fn update_namespace(
        &self,
        _: &str,
        _: Option<u64>,
        _: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        refused()
    }

    fn namespace(&self, _: &str) -> Result<Arc<NamespaceInfo>> {
        Ok(self.namespace.clone())
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        vec![self.namespace.clone()]
    }

    fn usage(&self, _: Scope<'_>) -> Result<Usage> {
        Ok(Usage::default())
    }

    async fn set_tenant_quota(&self, _: &str, _: Quota) -> Result<()> {
        refused()
    }

    fn tenant_quota(&self, _: &str) -> Quota {
        Quota::default()
    }
}
