//! The store over a store.

use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Pool, RegionSlice};
use forebay_store::limits::{check_batch, check_compose, check_key};
use forebay_store::{
    Address, Attributes, Away, ByteRange, Condition, DeleteOptions, Deleted, Execute, Executed,
    ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result, Seal,
    Source, Store, StoreOptions, Stored, VersionId, VersionPage,
};

use crate::body::TierBody;
use crate::cache::Cache;
use crate::change;
use crate::config::Config;
use crate::disk::{self, Disk, StoreShelf};
use crate::follow;
use crate::index::Place;
use crate::metrics::{Metrics, count};
use crate::namesake::{address, still};
use crate::read::Way;
use crate::upload::TierUpload;
use crate::write_back::Unlanded;

/// A pool that ran out runs out again: so many times what is wanted is given back.
const SHRINK_STEPS: u64 = 4;

/// A store with a cache before it, or just that store. Clones share it.
pub struct Tier<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) cache: Option<Arc<Cache<S>>>,
}

/// A cache and the place in it of a value that it may hold.
type Placed<'a, S> = (&'a Arc<Cache<S>>, Place);

impl<S: Store> Clone for Tier<S> {
    fn clone(&self) -> Tier<S> {
        Tier {
            store: self.store.clone(),
            cache: self.cache.clone(),
        }
    }
}

impl<S: Store> Tier<S> {
    /// Nothing between: every call is passed on.
    pub fn off(store: Arc<S>) -> Tier<S> {
        Tier { store, cache: None }
    }

    /// A cache in memory. When `pool`, from which the store takes its buffers, runs out, the cache gives some back.
    pub fn new(store: Arc<S>, config: Config, pool: Option<&Pool>) -> Tier<S> {
        Tier::with(store, config, pool, None)
    }

    /// The same with a local disk behind the memory: a store of its own that nobody else uses. [`tend`](Tier::tend) has to run.
    pub fn with_disk<D: Store>(
        store: Arc<S>,
        config: Config,
        pool: Option<&Pool>,
        disk: D,
    ) -> Tier<S> {
        Tier::with(store, config, pool, Some(Disk::new(StoreShelf(disk))))
    }

    fn with(store: Arc<S>, config: Config, pool: Option<&Pool>, disk: Option<Disk>) -> Tier<S> {
        let cache = Arc::new(Cache::new(config, disk));
        if let Some(pool) = pool {
            let cache = Arc::downgrade(&cache);
            pool.on_pressure(move |wanted| {
                cache
                    .upgrade()
                    .is_some_and(|cache| cache.shrink(wanted as u64 * SHRINK_STEPS))
            });
        }
        Tier {
            store,
            cache: Some(cache),
        }
    }

    /// The store below.
    pub fn store_below(&self) -> &Arc<S> {
        &self.store
    }

    /// What the cache did and holds; `None` when it is off.
    pub fn metrics(&self) -> Option<Metrics> {
        self.cache.as_ref().map(|cache| cache.metrics())
    }

    /// What goes on beside the calls: the local disk is written and tidied, notices of changes are followed. Runs until it is
    /// dropped; one is enough for all clones. A disk that cannot be read or takes nothing is logged, and the cache goes on without it.
    pub async fn tend(&self) {
        let Some(cache) = &self.cache else {
            return;
        };
        let tending = async {
            if let Some(disk) = &cache.disk
                && let Err(error) = disk::tend(cache, &*self.store, disk).await
            {
                tracing::error!(%error, "the cache goes on without its disk");
                disk.give_up_for_good(&cache.counters);
                cache.index.forget_disk().await;
            }
        };
        tokio::join!(tending, follow::follow(cache, &*self.store));
    }

    /// Waits for a value that the store has yet to commit, when it is asked for by the one version that such values have.
    async fn settled_version(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Result<()> {
        if version == Some(VersionId::NULL)
            && let Some((cache, place)) = self.placed(address, None)?
        {
            cache.write_back.settle(&place).await;
            still(&*self.store, &place.namespace)?;
        }
        Ok(())
    }

    /// Returns when the store has committed everything that was acknowledged before.
    async fn landed(&self) {
        if let Some(cache) = &self.cache {
            cache.write_back.settle_all().await;
        }
    }

    /// For the end of a process: from now on nothing is acknowledged before the store has committed it. Returns when the store has
    /// committed, or refused, everything that was.
    pub async fn land(&self) {
        if let Some(cache) = &self.cache {
            cache.write_back.close();
            cache.write_back.settle_all().await;
        }
    }

    /// What would be lost if the process ended now: what the store has yet to commit of what was acknowledged, and, once all is to
    /// [`land`](Tier::land), what it has refused since.
    pub fn unlanded(&self) -> Unlanded {
        let cache = self.cache.as_ref();
        cache.map_or_else(Unlanded::default, |cache| cache.write_back.unlanded())
    }

    /// Waits for what the store has yet to commit of what was acknowledged in a namespace before, so that the store's own account
    /// has it.
    ///
    /// # Errors
    /// When another namespace has got its name meanwhile: it is not what was meant.
    async fn settled(&self, name: &str) -> Result<()> {
        if let Some(cache) = &self.cache
            && cache.write_back.is_on()
            && let Ok(meant) = self.store.namespace(name)
        {
            cache.write_back.settle_namespace(meant.id).await;
            still(&*self.store, &meant)?;
        }
        Ok(())
    }

    /// The cache and the place in it of a value that it may hold.
    pub(crate) fn placed(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> Result<Option<Placed<'_, S>>> {
        let Some(cache) = &self.cache else {
            return Ok(None);
        };
        check_key(address.space, address.key)?;
        let place = cache.place(&*self.store, address, version)?;
        Ok(place.map(|place| (cache, place)))
    }

    /// Notes that the store answers alone.
    fn count_passed(&self) {
        if let Some(cache) = &self.cache {
            count(&cache.counters.passed);
        }
    }
}

#[warn(clippy::missing_trait_methods)]
impl<S: Store> Store for Tier<S> {
    type Upload = TierUpload<S>;
    type Body = TierBody<S>;

    forebay_store::pass_on! {
        store: caps, forgotten, create_namespace, namespace, namespaces, usage, tenant_quota, changes
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<TierBody<S>>> {
        // Boxed, as below: without a cache it would be dead weight of every request.
        if let Some((cache, place)) = self.placed(address, version)? {
            match Box::pin(self.kept(cache, place, range)).await? {
                Way::Kept(found) => {
                    return Ok(Object {
                        meta: found.meta,
                        range: found.range,
                        body: TierBody::kept(found.body),
                    });
                }
                Way::Cut(found) => return Ok(found),
                Way::Pass => {}
            }
        }
        self.count_passed();
        self.settled_version(address, version).await?;
        let found = self.store.retrieve(address, version, range).await?;
        Ok(Object {
            meta: found.meta,
            range: found.range,
            body: TierBody::of_store(found.body),
        })
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        if let Some((cache, place)) = self.placed(address, version)?
            && let Some(found) = Box::pin(self.kept_into(cache, place, range, &target)).await?
        {
            return Ok(found);
        }
        self.count_passed();
        self.settled_version(address, version).await?;
        let into = self.store.retrieve_into(address, version, range, target);
        into.await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        if self.cache.is_none() {
            return self.store.exist(addresses).await;
        }
        check_batch(addresses)?;
        let mut meant: Vec<Arc<NamespaceInfo>> = Vec::new();
        for Address { namespace, .. } in addresses {
            if meant.last().is_none_or(|last| last.name != *namespace) {
                meant.push(self.store.namespace(namespace)?);
            }
        }
        let mut metas = Vec::with_capacity(addresses.len());
        let mut asked = Vec::new();
        for address in addresses {
            let known = match self.placed(*address, None)? {
                Some((cache, place)) => cache.known(&place).await,
                None => None,
            };
            if known.is_none() {
                asked.push(*address);
            }
            metas.push(known);
        }
        meant
            .iter()
            .try_for_each(|meant| still(&*self.store, meant))?;
        if !asked.is_empty() {
            let mut found = self.store.exist(&asked).await?.into_iter();
            for meta in metas.iter_mut().filter(|meta| meta.is_none()) {
                *meta = found.next().flatten();
            }
        }
        Ok(metas)
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        if let Some((cache, place)) = self.placed(address, version)? {
            if let Some(meta) = cache.known(&place).await {
                return Ok(meta);
            }
            still(&*self.store, &place.namespace)?;
        }
        self.settled_version(address, version).await?;
        self.store.stat(address, version).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<TierUpload<S>> {
        let Some((cache, place)) = self.placed(address, None)? else {
            let upload = self.store.store(address, options).await?;
            return Ok(TierUpload::passed(upload));
        };
        if options.condition != Condition::None {
            cache.write_back.settle(&place).await;
            still(&*self.store, &place.namespace)?;
        }
        let upload = self.store.store(address, options).await?;
        Ok(TierUpload::kept(
            upload,
            self.store.clone(),
            cache.clone(),
            place,
            options,
        ))
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        let pass = || {
            self.store
                .compose(target, sources, consumed, options, seal.clone())
        };
        if self.cache.is_none() {
            return pass().await;
        }
        check_compose(target, sources, consumed)?;
        let Some((cache, place)) = self.placed(target, None)? else {
            return pass().await;
        };
        let seen = |source: &Source<'_>| (source.key.to_vec(), source.seen.cloned());
        let sources: Vec<_> = sources.iter().map(seen).collect();
        let consumed: Vec<_> = consumed.iter().map(|key| key.to_vec()).collect();
        let direct = cache.write_back.pass(&place).await;
        let changing = cache.change(&place);
        let store = self.store.clone();
        change::make(direct, changing, async move {
            let sources: Vec<_> = sources
                .iter()
                .map(|(key, seen)| Source {
                    key,
                    seen: seen.as_ref(),
                })
                .collect();
            let consumed: Vec<_> = consumed.iter().map(|key| &key[..]).collect();
            let target = address(&*store, &place)?;
            store
                .compose(target, &sources, &consumed, options, seal)
                .await
        })
        .await
    }

    async fn amend(
        &self,
        target: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        let Some((cache, place)) = self.placed(target, None)? else {
            return self.store.amend(target, version, seen, attributes).await;
        };
        let direct = cache.write_back.pass(&place).await;
        // The bytes stay; what is held is looked at again before it is believed.
        let changing = cache.stripes.change(place.hash);
        cache.index.doubt(&place);
        let (store, seen) = (self.store.clone(), seen.cloned());
        change::make(direct, changing, async move {
            store
                .amend(
                    address(&*store, &place)?,
                    version,
                    seen.as_ref(),
                    attributes,
                )
                .await
        })
        .await
    }

    async fn delete(&self, target: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        let Some((cache, place)) = self.placed(target, None)? else {
            return self.store.delete(target, options).await;
        };
        let direct = cache.write_back.pass(&place).await;
        let changing = cache.change(&place);
        let store = self.store.clone();
        change::make(direct, changing, async move {
            store.delete(address(&*store, &place)?, options).await
        })
        .await
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        self.settled(address.namespace).await?;
        self.store.away(address, version).await
    }

    async fn let_go(&self, target: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        let Some((cache, place)) = self.placed(target, None)? else {
            return self.store.let_go(target, seen, away).await;
        };
        let direct = cache.write_back.pass(&place).await;
        let changing = cache.change(&place);
        let (store, seen) = (self.store.clone(), seen.clone());
        change::make(direct, changing, async move {
            store.let_go(address(&*store, &place)?, &seen, away).await
        })
        .await
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<TierUpload<S>> {
        let upload = self.store.take_back(address, version, away).await?;
        Ok(TierUpload::passed(upload))
    }

    async fn settle(&self) -> Result<()> {
        self.landed().await;
        self.store.settle().await
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.settled(options.namespace).await?;
        self.store.list(options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        self.settled(options.namespace).await?;
        self.store.list_versions(options).await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.settled(name).await?;
        let id = self.store.namespace(name).map(|namespace| namespace.id);
        self.store.delete_namespace(name).await?;
        if let (Some(cache), Ok(id)) = (&self.cache, id) {
            cache.after(cache.index.remove_namespace(id));
        }
        Ok(())
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.settled(name).await?;
        self.store.update_namespace(name, revision, config).await
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.landed().await;
        self.store.set_tenant_quota(tenant, quota).await
    }

    async fn execute(&self, call: Execute<'_>) -> Result<Executed> {
        self.landed().await;
        self.store.execute(call).await
    }
}
