//! A leaf is whichever store it is.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::{EngineBody, EngineUpload};
use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_rados::{RadosBody, RadosUpload};
use forebay_store::{
    Address, Attributes, Away, Body, ByteRange, Caps, DeleteOptions, Deleted, ListOptions,
    ListPage, MemoryBody, MemoryUpload, Meta, NamespaceConfig, NamespaceInfo, Object, Quota,
    Result, Scope, Seal, Store, StoreOptions, Stored, Upload, Usage, VersionId, VersionPage, Watch,
};

use super::Leaf;
use crate::serve::device::Device;

/// A value leaving a leaf.
pub enum LeafBody {
    Engine(EngineBody<Device>),
    Memory(MemoryBody),
    Rados(RadosBody),
}

/// A value arriving at a leaf.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for every value"
)]
pub enum LeafUpload {
    Engine(EngineUpload<Device>),
    Memory(MemoryUpload),
    Rados(RadosUpload),
}

/// The same call of whichever store it is.
macro_rules! each {
    ($this:expr, $store:ident => $call:expr) => {
        match $this {
            Leaf::Engine($store) => $call,
            Leaf::Memory($store) => $call,
            Leaf::Rados($store) => $call,
        }
    };
}

/// The same call of whichever value is on its way.
macro_rules! each_way {
    ($kind:ident, $this:expr, $value:ident => $call:expr) => {
        match $this {
            $kind::Engine($value) => $call,
            $kind::Memory($value) => $call,
            $kind::Rados($value) => $call,
        }
    };
}

impl Body for LeafBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        each_way!(LeafBody, self, body => body.next().await)
    }
}

impl Upload for LeafUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        each_way!(LeafUpload, self, upload => upload.buffer(len).await)
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        each_way!(LeafUpload, self, upload => upload.write(buf).await)
    }

    async fn read_from(&mut self, source: RegionSlice) -> Result<()> {
        each_way!(LeafUpload, self, upload => upload.read_from(source).await)
    }

    fn crc64nvme(&self) -> u64 {
        each_way!(LeafUpload, self, upload => upload.crc64nvme())
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        each_way!(LeafUpload, self, upload => upload.commit(seal).await)
    }
}

impl Store for Leaf {
    type Upload = LeafUpload;
    type Body = LeafBody;

    fn caps(&self) -> Caps {
        each!(self, store => store.caps())
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<LeafBody>> {
        fn with<B>(object: Object<B>, body: impl FnOnce(B) -> LeafBody) -> Object<LeafBody> {
            Object {
                meta: object.meta,
                range: object.range,
                body: body(object.body),
            }
        }
        Ok(match self {
            Leaf::Engine(store) => with(
                store.retrieve(address, version, range).await?,
                LeafBody::Engine,
            ),
            Leaf::Memory(store) => with(
                store.retrieve(address, version, range).await?,
                LeafBody::Memory,
            ),
            Leaf::Rados(store) => with(
                store.retrieve(address, version, range).await?,
                LeafBody::Rados,
            ),
        })
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        each!(self, store => store.retrieve_into(address, version, range, target).await)
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        each!(self, store => store.exist(addresses).await)
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        each!(self, store => store.stat(address, version).await)
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<LeafUpload> {
        Ok(match self {
            Leaf::Engine(store) => LeafUpload::Engine(store.store(address, options).await?),
            Leaf::Memory(store) => LeafUpload::Memory(store.store(address, options).await?),
            Leaf::Rados(store) => LeafUpload::Rados(store.store(address, options).await?),
        })
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[&[u8]],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        each!(self, store => store.compose(target, sources, consumed, options, seal).await)
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        each!(self, store => store.amend(address, version, seen, attributes).await)
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        each!(self, store => store.away(address, version).await)
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        each!(self, store => store.let_go(address, seen, away).await)
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<LeafUpload> {
        Ok(match self {
            Leaf::Engine(store) => {
                LeafUpload::Engine(store.take_back(address, version, away).await?)
            }
            Leaf::Memory(store) => {
                LeafUpload::Memory(store.take_back(address, version, away).await?)
            }
            Leaf::Rados(store) => LeafUpload::Rados(store.take_back(address, version, away).await?),
        })
    }

    async fn settle(&self) -> Result<()> {
        each!(self, store => store.settle().await)
    }

    fn forgotten(&self) -> Vec<Away> {
        each!(self, store => store.forgotten())
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        each!(self, store => store.delete(address, options).await)
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        each!(self, store => store.list(options).await)
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        each!(self, store => store.list_versions(options).await)
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        each!(self, store => store.create_namespace(name, config).await)
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        each!(self, store => store.delete_namespace(name).await)
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        each!(self, store => store.update_namespace(name, revision, config).await)
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        each!(self, store => store.namespace(name))
    }

    fn changes(&self) -> Option<Box<dyn Watch>> {
        each!(self, store => store.changes())
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        each!(self, store => store.namespaces())
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        each!(self, store => store.usage(scope))
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        each!(self, store => store.set_tenant_quota(tenant, quota).await)
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        each!(self, store => store.tenant_quota(tenant))
    }
}
