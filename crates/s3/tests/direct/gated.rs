//! A store that can be made to wait, where a test says.

use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_store::*;
use tokio::sync::watch;

/// Where the store waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nowhere.
    Nowhere,
    /// Before it finds a value.
    Retrieve,
    /// Before the bytes of a body after so many buffers.
    Body(usize),
    /// Before it reads into the client's memory.
    Into,
    /// Before it takes a buffer of an upload.
    Write,
    /// Before it takes an upload's end.
    Commit,
}

/// What a test turns.
#[derive(Clone)]
pub struct Gate {
    closed: Arc<watch::Sender<At>>,
    /// How often somebody came to where it was closed last.
    arrivals: Arc<watch::Sender<usize>>,
}

impl Gate {
    pub fn close(&self, at: At) {
        self.arrivals.send_replace(0);
        self.closed.send_replace(at);
    }

    pub fn open(&self) {
        self.closed.send_replace(At::Nowhere);
    }

    /// Returns when somebody has come to where it was closed last.
    pub async fn arrival(&self) {
        let _ = self
            .arrivals
            .subscribe()
            .wait_for(|arrivals| *arrivals > 0)
            .await;
    }

    async fn pass(&self, at: At) {
        let mut seen = self.closed.subscribe();
        if *seen.borrow() == at {
            self.arrivals.send_modify(|arrivals| *arrivals += 1);
        }
        let _ = seen.wait_for(|closed| *closed != at).await;
    }
}

pub struct Gated {
    store: MemoryStore,
    pub gate: Gate,
}

impl Gated {
    pub fn new(store: MemoryStore, gate: Gate) -> Gated {
        Gated { store, gate }
    }

    pub fn gate() -> Gate {
        Gate {
            closed: Arc::new(watch::Sender::new(At::Nowhere)),
            arrivals: Arc::default(),
        }
    }
}

pub struct GatedBody {
    body: MemoryBody,
    gate: Gate,
    given: usize,
}

impl Body for GatedBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        self.gate.pass(At::Body(self.given)).await;
        self.given += 1;
        self.body.next().await
    }
}

pub struct GatedUpload {
    upload: MemoryUpload,
    gate: Gate,
}

impl Upload for GatedUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        self.upload.buffer(len).await
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        self.gate.pass(At::Write).await;
        self.upload.write(buf).await
    }

    fn crc64nvme(&self) -> u64 {
        self.upload.crc64nvme()
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        self.gate.pass(At::Commit).await;
        self.upload.commit(seal).await
    }
}

impl Store for Gated {
    type Upload = GatedUpload;
    type Body = GatedBody;

    fn caps(&self) -> Caps {
        self.store.caps()
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<GatedBody>> {
        self.gate.pass(At::Retrieve).await;
        let Object { meta, range, body } = self.store.retrieve(address, version, range).await?;
        Ok(Object {
            meta,
            range,
            body: GatedBody {
                body,
                gate: self.gate.clone(),
                given: 0,
            },
        })
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        self.gate.pass(At::Into).await;
        self.store
            .retrieve_into(address, version, range, target)
            .await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        self.store.exist(addresses).await
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        self.store.stat(address, version).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<GatedUpload> {
        Ok(GatedUpload {
            upload: self.store.store(address, options).await?,
            gate: self.gate.clone(),
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
        self.store
            .compose(target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.store.amend(address, version, seen, attributes).await
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        self.store.delete(address, options).await
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.store.list(options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        self.store.list_versions(options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.store.create_namespace(name, config).await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.store.delete_namespace(name).await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.store.update_namespace(name, revision, config).await
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        self.store.namespace(name)
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        self.store.namespaces()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        self.store.usage(scope)
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.store.set_tenant_quota(tenant, quota).await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.store.tenant_quota(tenant)
    }
}
