//! A store around another, for tests: calls that fail, wait, or go wrong in one way, and are else passed on.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, RegionSlice};

use crate::{
    Address, Attributes, Away, Body, ByteRange, DeleteOptions, Deleted, Execute, Executed,
    ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result, Scope,
    Seal, Source, Store, StoreOptions, Stored, Upload, Usage, VersionId, VersionPage, Watch,
};

/// What happens to the calls of a store: each as it is, unless it is said otherwise. Clones are the same.
pub trait Detour<S: Store>: Clone + Send + Sync + 'static {
    /// Before each call of the store that may wait and has a detour here.
    fn before(&self, store: &S) -> impl Future<Output = ()> + Send {
        let _ = store;
        async {}
    }

    /// Of [`Store::retrieve`].
    fn retrieve(
        &self,
        store: &S,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> impl Future<Output = Result<Object<S::Body>>> + Send {
        store.retrieve(address, version, range)
    }

    /// Of [`Body::next`], after so many buffers were given.
    fn next(
        &self,
        body: &mut S::Body,
        given: usize,
    ) -> impl Future<Output = Result<Option<Buf>>> + Send {
        let _ = given;
        body.next()
    }

    /// Of [`Store::retrieve_into`].
    fn retrieve_into(
        &self,
        store: &S,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> impl Future<Output = Result<(Meta, Range<u64>)>> + Send {
        store.retrieve_into(address, version, range, target)
    }

    /// Of [`Store::exist`].
    fn exist(
        &self,
        store: &S,
        addresses: &[Address<'_>],
    ) -> impl Future<Output = Result<Vec<Option<Meta>>>> + Send {
        store.exist(addresses)
    }

    /// Of [`Store::store`].
    fn store(
        &self,
        store: &S,
        address: Address<'_>,
        options: StoreOptions,
    ) -> impl Future<Output = Result<S::Upload>> + Send {
        store.store(address, options)
    }

    /// Of [`Upload::write`].
    fn write(&self, upload: &mut S::Upload, buf: Buf) -> impl Future<Output = Result<()>> + Send {
        upload.write(buf)
    }

    /// Of [`Upload::commit`].
    fn commit(&self, upload: S::Upload, seal: Seal) -> impl Future<Output = Result<Stored>> + Send {
        upload.commit(seal)
    }

    /// Of [`Store::compose`].
    fn compose(
        &self,
        store: &S,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> impl Future<Output = Result<Stored>> + Send {
        store.compose(target, sources, consumed, options, seal)
    }

    /// Of [`Store::amend`].
    fn amend(
        &self,
        store: &S,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> impl Future<Output = Result<Meta>> + Send {
        store.amend(address, version, seen, attributes)
    }

    /// Of [`Store::delete`].
    fn delete(
        &self,
        store: &S,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> impl Future<Output = Result<Deleted>> + Send {
        store.delete(address, options)
    }

    /// Of [`Store::let_go`].
    fn let_go(
        &self,
        store: &S,
        address: Address<'_>,
        seen: &Meta,
        away: Away,
    ) -> impl Future<Output = Result<()>> + Send {
        store.let_go(address, seen, away)
    }

    /// Of [`Store::execute`].
    fn execute(
        &self,
        store: &S,
        call: Execute<'_>,
    ) -> impl Future<Output = Result<Executed>> + Send {
        store.execute(call)
    }

    /// Of [`Store::list`].
    fn list(
        &self,
        store: &S,
        options: ListOptions<'_>,
    ) -> impl Future<Output = Result<ListPage>> + Send {
        store.list(options)
    }

    /// Of [`Store::list_versions`].
    fn list_versions(
        &self,
        store: &S,
        options: ListOptions<'_>,
    ) -> impl Future<Output = Result<VersionPage>> + Send {
        store.list_versions(options)
    }

    /// Of [`Store::create_namespace`].
    fn create_namespace(
        &self,
        store: &S,
        name: &str,
        config: NamespaceConfig,
    ) -> impl Future<Output = Result<Arc<NamespaceInfo>>> + Send {
        store.create_namespace(name, config)
    }

    /// Of [`Store::update_namespace`].
    fn update_namespace(
        &self,
        store: &S,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> impl Future<Output = Result<Arc<NamespaceInfo>>> + Send {
        store.update_namespace(name, revision, config)
    }

    /// Of [`Store::usage`].
    ///
    /// # Errors
    /// The store's.
    fn usage(&self, store: &S, scope: Scope<'_>) -> Result<Usage> {
        store.usage(scope)
    }

    /// Of [`Store::changes`].
    fn changes(&self, store: &S) -> Option<Box<dyn Watch>> {
        store.changes()
    }

    /// Of [`Store::set_tenant_quota`].
    fn set_tenant_quota(
        &self,
        store: &S,
        tenant: &str,
        quota: Quota,
    ) -> impl Future<Output = Result<()>> + Send {
        store.set_tenant_quota(tenant, quota)
    }
}

/// A store whose calls take a detour.
#[derive(Debug, Clone)]
pub struct Around<S, D> {
    /// The store that is called in the end.
    pub store: S,
    /// What happens to calls.
    pub detour: D,
}

/// A body of such a store.
pub struct AroundBody<S: Store, D> {
    body: S::Body,
    detour: D,
    given: usize,
}

/// An upload of such a store.
pub struct AroundUpload<S: Store, D> {
    upload: S::Upload,
    detour: D,
}

impl<S: Store, D: Detour<S>> Body for AroundBody<S, D> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        let next = self.detour.next(&mut self.body, self.given).await;
        self.given += 1;
        next
    }
}

impl<S: Store, D: Detour<S>> Upload for AroundUpload<S, D> {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        self.upload.buffer(len).await
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        self.detour.write(&mut self.upload, buf).await
    }

    fn crc64nvme(&self) -> u64 {
        self.upload.crc64nvme()
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        self.detour.commit(self.upload, seal).await
    }
}

#[warn(clippy::missing_trait_methods)]
impl<S: Store, D: Detour<S>> Store for Around<S, D> {
    type Upload = AroundUpload<S, D>;
    type Body = AroundBody<S, D>;

    crate::pass_on! {
        store: caps, stat, away, forgotten, settle, delete_namespace, namespace, namespaces, tenant_quota
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<Self::Body>> {
        self.detour.before(&self.store).await;
        let found = self.detour.retrieve(&self.store, address, version, range);
        let Object { meta, range, body } = found.await?;
        let detour = self.detour.clone();
        Ok(Object {
            meta,
            range,
            body: AroundBody {
                body,
                detour,
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
        self.detour.before(&self.store).await;
        self.detour
            .retrieve_into(&self.store, address, version, range, target)
            .await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        self.detour.before(&self.store).await;
        self.detour.exist(&self.store, addresses).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<Self::Upload> {
        self.detour.before(&self.store).await;
        Ok(AroundUpload {
            upload: self.detour.store(&self.store, address, options).await?,
            detour: self.detour.clone(),
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
        self.detour.before(&self.store).await;
        self.detour
            .compose(&self.store, target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.detour.before(&self.store).await;
        self.detour
            .amend(&self.store, address, version, seen, attributes)
            .await
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        self.detour.before(&self.store).await;
        self.detour.delete(&self.store, address, options).await
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        self.detour.before(&self.store).await;
        self.detour.let_go(&self.store, address, seen, away).await
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<Self::Upload> {
        Ok(AroundUpload {
            upload: self.store.take_back(address, version, away).await?,
            detour: self.detour.clone(),
        })
    }

    async fn execute(&self, call: Execute<'_>) -> Result<Executed> {
        self.detour.before(&self.store).await;
        self.detour.execute(&self.store, call).await
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.detour.before(&self.store).await;
        self.detour.list(&self.store, options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        self.detour.before(&self.store).await;
        self.detour.list_versions(&self.store, options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.detour.before(&self.store).await;
        self.detour
            .create_namespace(&self.store, name, config)
            .await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.detour.before(&self.store).await;
        self.detour
            .update_namespace(&self.store, name, revision, config)
            .await
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        self.detour.usage(&self.store, scope)
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.detour.before(&self.store).await;
        self.detour
            .set_tenant_quota(&self.store, tenant, quota)
            .await
    }

    fn changes(&self) -> Option<Box<dyn Watch>> {
        self.detour.changes(&self.store)
    }
}
