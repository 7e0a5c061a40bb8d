//! A leaf is whichever store it is.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::{EngineBody, EngineUpload};
use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_rados::{RadosBody, RadosUpload};
use forebay_store::{
    Address, Attributes, Away, Body, ByteRange, Caps, DeleteOptions, Deleted, ListOptions,
    ListPage, MemoryBody, MemoryUpload, Meta, NamespaceConfig, NamespaceInfo, Object, Quota,
    Result, Scope, Seal, Source, Store, StoreOptions, Stored, Upload, Usage, VersionId,
    VersionPage, Watch,
};

use super::Leaf;
use crate::serve::device::Device;

/// A value leaving a leaf.
pub enum LeafBody {
    Engine(EngineBody<Device>),
    Memory(MemoryBody),
    Rados(RadosBody),
}

/// A value arriving at a leaf. Each in a box, since every layer above hands it on.
pub enum LeafUpload {
    Engine(EngineUpload<Device>),
    Memory(Box<MemoryUpload>),
    Rados(Box<RadosUpload>),
}

/// The same call of whichever store it is, when it is done at once.
macro_rules! each {
    ($this:expr, $store:ident => $call:expr) => {
        match $this {
            Leaf::Engine($store) => $call,
            Leaf::Memory($store) => $call,
            Leaf::Rados($store) => $call,
        }
    };
}

/// The same call of whichever store it is, awaited. What RADOS does is boxed: its state would be a part of every request's, whatever
/// the store, and moved with it.
macro_rules! each_in_time {
    ($this:expr, $store:ident => $call:expr) => {
        match $this {
            Leaf::Engine($store) => $call.await,
            Leaf::Memory($store) => $call.await,
            Leaf::Rados($store) => Box::pin($call).await,
        }
    };
}

/// The same call of whichever value is on its way, awaited.
macro_rules! each_way_in_time {
    ($kind:ident, $this:expr, $value:ident => $call:expr) => {
        match $this {
            $kind::Engine($value) => $call.await,
            $kind::Memory($value) => $call.await,
            $kind::Rados($value) => Box::pin($call).await,
        }
    };
}

impl Body for LeafBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        each_way_in_time!(LeafBody, self, body => body.next())
    }
}

impl Upload for LeafUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        each_way_in_time!(LeafUpload, self, upload => upload.buffer(len))
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        each_way_in_time!(LeafUpload, self, upload => upload.write(buf))
    }

    async fn read_from(&mut self, source: RegionSlice) -> Result<()> {
        each_way_in_time!(LeafUpload, self, upload => upload.read_from(source))
    }

    fn crc64nvme(&self) -> u64 {
        match self {
            LeafUpload::Engine(upload) => upload.crc64nvme(),
            LeafUpload::Memory(upload) => upload.crc64nvme(),
            LeafUpload::Rados(upload) => upload.crc64nvme(),
        }
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        each_way_in_time!(LeafUpload, self, upload => upload.commit(seal))
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
                Box::pin(store.retrieve(address, version, range)).await?,
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
        each_in_time!(self, store => store.retrieve_into(address, version, range, target))
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        each_in_time!(self, store => store.exist(addresses))
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        each_in_time!(self, store => store.stat(address, version))
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<LeafUpload> {
        Ok(match self {
            Leaf::Engine(store) => LeafUpload::Engine(store.store(address, options).await?),
            Leaf::Memory(store) => {
                LeafUpload::Memory(Box::new(store.store(address, options).await?))
            }
            Leaf::Rados(store) => {
                LeafUpload::Rados(Box::new(Box::pin(store.store(address, options)).await?))
            }
        })
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        each_in_time!(self, store => store.compose(target, sources, consumed, options, seal))
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        each_in_time!(self, store => store.amend(address, version, seen, attributes))
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        each_in_time!(self, store => store.away(address, version))
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        each_in_time!(self, store => store.let_go(address, seen, away))
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
                LeafUpload::Memory(Box::new(store.take_back(address, version, away).await?))
            }
            Leaf::Rados(store) => {
                let upload = Box::pin(store.take_back(address, version, away)).await?;
                LeafUpload::Rados(Box::new(upload))
            }
        })
    }

    async fn settle(&self) -> Result<()> {
        each_in_time!(self, store => store.settle())
    }

    fn forgotten(&self) -> Vec<Away> {
        each!(self, store => store.forgotten())
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        each_in_time!(self, store => store.delete(address, options))
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        each_in_time!(self, store => store.list(options))
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        each_in_time!(self, store => store.list_versions(options))
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        each_in_time!(self, store => store.create_namespace(name, config))
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        each_in_time!(self, store => store.delete_namespace(name))
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        each_in_time!(self, store => store.update_namespace(name, revision, config))
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
        each_in_time!(self, store => store.set_tenant_quota(tenant, quota))
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        each!(self, store => store.tenant_quota(tenant))
    }
}
