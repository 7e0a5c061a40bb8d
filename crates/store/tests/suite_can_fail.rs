//! The suite refuses stores that break the contract: each fault here is one that a real store might have.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, Pool};
use forebay_store::suite::{Suite, TestClock};
use forebay_store::{
    Address, After, Attributes, Body, ByteRange, Caps, Condition, DeleteOptions, Deleted,
    ListOptions, ListPage, MemoryBody, MemoryStore, MemoryUpload, Meta, NamespaceConfig,
    NamespaceInfo, Object, Quota, Result, Scope, Seal, Store, StoreOptions, Stored, Upload, Usage,
    VersionId, VersionPage,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A bit of a body is wrong.
    BitFlip,
    /// An inclusive range lacks its last byte.
    ShortRange,
    /// Conditions are checked when an upload begins, and not when it is committed.
    EarlyConditionOnly,
    /// Conditions of deletes are not checked.
    DeleteUnconditionally,
    /// The door's tag is forgotten.
    LostTag,
    /// Times of expiry are forgotten.
    NeverExpires,
    /// Attributes of an old version are changed on the current one.
    AmendsCurrent,
    /// Attributes meant for one value end up on the next.
    AmendsWhatCame,
    /// Consumed keys stay.
    KeepsConsumed,
    /// The key that a page begins after is listed again.
    RepeatsKey,
    /// The delimiter counts only when there is a prefix.
    LosesDelimiter,
    /// A full page says that it is the last.
    ForgetsMore,
    /// Version lists forget the version they begin after.
    SkipsVersions,
    /// One version is deleted as if the key were.
    DeletesKeyForVersion,
    /// Tenants have no bound.
    NoTenantQuota,
    /// A declared size is not reserved.
    NoReservation,
    /// Usage counts one object too many once there are some.
    WrongUsage,
    /// The last of a batch is not looked for.
    ShortBatch,
}

struct Faulty {
    store: MemoryStore,
    fault: Fault,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

struct FaultyBody {
    body: MemoryBody,
    flip: bool,
}

impl Body for FaultyBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        let Some(buf) = self.body.next().await? else {
            return Ok(None);
        };
        let mut bytes = buf.to_vec();
        if self.flip
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
        Ok(Some(bytes.into()))
    }
}

struct FaultyUpload {
    upload: MemoryUpload,
    fault: Fault,
}

impl Upload for FaultyUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        self.upload.buffer(len).await
    }
    async fn write(&mut self, buf: Buf) -> Result<()> {
        self.upload.write(buf).await
    }
    fn crc64nvme(&self) -> u64 {
        self.upload.crc64nvme()
    }
    async fn commit(self, mut seal: Seal) -> Result<Stored> {
        match self.fault {
            Fault::LostTag => seal.etag = None,
            Fault::NeverExpires => seal.expires = None,
            _ => {}
        }
        self.upload.commit(seal).await
    }
}

impl Store for Faulty {
    type Upload = FaultyUpload;
    type Body = FaultyBody;

    fn caps(&self) -> Caps {
        self.store.caps()
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<FaultyBody>> {
        let range = match range {
            ByteRange::Inclusive(first, last) if self.has(Fault::ShortRange) && first < last => {
                ByteRange::Inclusive(first, last - 1)
            }
            range => range,
        };
        let Object { meta, range, body } = self.store.retrieve(address, version, range).await?;
        let flip = self.has(Fault::BitFlip);
        let body = FaultyBody { body, flip };
        Ok(Object { meta, range, body })
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        let mut found = self.store.exist(addresses).await?;
        if self.has(Fault::ShortBatch)
            && let Some(last) = found.last_mut()
        {
            *last = None;
        }
        Ok(found)
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        self.store.stat(address, version).await
    }

    async fn store(&self, address: Address<'_>, mut options: StoreOptions) -> Result<FaultyUpload> {
        if self.has(Fault::NoReservation) {
            options.size = None;
        }
        if self.has(Fault::EarlyConditionOnly) {
            drop(self.store.store(address, options).await?);
            options.condition = Condition::None;
        }
        let upload = self.store.store(address, options).await?;
        let fault = self.fault;
        Ok(FaultyUpload { upload, fault })
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[&[u8]],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        let consumed = match self.has(Fault::KeepsConsumed) {
            true => &[],
            false => consumed,
        };
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
        let seen = seen.filter(|_| !self.has(Fault::AmendsWhatCame));
        let version = version.filter(|_| !self.has(Fault::AmendsCurrent));
        self.store.amend(address, version, seen, attributes).await
    }

    async fn delete(&self, address: Address<'_>, mut options: DeleteOptions) -> Result<Deleted> {
        match self.fault {
            Fault::DeleteUnconditionally => options.condition = Condition::None,
            Fault::DeletesKeyForVersion => options.version = None,
            _ => {}
        }
        self.store.delete(address, options).await
    }

    async fn list(&self, mut options: ListOptions<'_>) -> Result<ListPage> {
        let mut shorter = Vec::new();
        if let After::Key(key) = options.after
            && self.has(Fault::RepeatsKey)
        {
            shorter.extend_from_slice(&key[..key.len() - 1]);
            options.after = After::Key(&shorter);
        }
        if self.has(Fault::LosesDelimiter) && options.prefix.is_empty() {
            options.delimiter = None;
        }
        let mut page = self.store.list(options).await?;
        page.more &= !self.has(Fault::ForgetsMore);
        Ok(page)
    }

    async fn list_versions(&self, mut options: ListOptions<'_>) -> Result<VersionPage> {
        if let After::Version(key, _) = options.after
            && self.has(Fault::SkipsVersions)
        {
            options.after = After::Key(key);
        }
        self.store.list_versions(options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        mut config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        if self.has(Fault::NeverExpires) {
            config.ttl_ms = None;
        }
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
        let mut usage = self.store.usage(scope)?;
        usage.objects += u64::from(self.has(Fault::WrongUsage) && usage.objects > 1);
        Ok(usage)
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        let quota = match self.has(Fault::NoTenantQuota) {
            true => Quota::default(),
            false => quota,
        };
        self.store.set_tenant_quota(tenant, quota).await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.store.tenant_quota(tenant)
    }
}

fn maker(fault: Fault) -> impl AsyncFn(TestClock) -> (Faulty, ()) {
    async move |clock: TestClock| {
        let pool = Pool::new(16 << 20);
        let store = MemoryStore::new(pool, move || clock.now());
        (Faulty { store, fault }, ())
    }
}

fn fails(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

#[test]
fn a_store_without_fault_passes() {
    Suite::new(maker(Fault::None)).run_all();
}

macro_rules! found {
    ($($test:ident: $fault:ident by $($area:ident)+;)*) => {
        $(
            #[test]
            fn $test() {
                // Sequences that a fault survives are many more than those that a sound store is given.
                let suite = Suite::new(maker(Fault::$fault)).with_cases(1000);
                $(assert!(fails(|| suite.$area()), "{} finds it", stringify!($area));)+
            }
        )*
    };
}

found! {
    bit_flip: BitFlip by values composing model;
    short_range: ShortRange by values model;
    early_condition_only: EarlyConditionOnly by conditions;
    delete_unconditionally: DeleteUnconditionally by conditions model;
    lost_tag: LostTag by values model;
    never_expires: NeverExpires by expiry model;
    amends_current: AmendsCurrent by versioned model;
    amends_what_came: AmendsWhatCame by values;
    keeps_consumed: KeepsConsumed by composing model;
    repeats_key: RepeatsKey by lists model;
    loses_delimiter: LosesDelimiter by lists model;
    forgets_more: ForgetsMore by lists model;
    skips_versions: SkipsVersions by versioned model;
    deletes_key_for_version: DeletesKeyForVersion by versioned model;
    no_tenant_quota: NoTenantQuota by quotas;
    no_reservation: NoReservation by quotas;
    wrong_usage: WrongUsage by quotas model;
    short_batch: ShortBatch by values model;
}
