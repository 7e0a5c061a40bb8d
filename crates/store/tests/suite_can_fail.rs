//! The suite refuses stores that break the contract: each fault here is one that a real store might have.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_mem::{Buf, Pool};
use forebay_store::suite::{Around, Detour, Suite, TestClock};
use forebay_store::{
    Address, After, Attributes, Body, ByteRange, Condition, DeleteOptions, Deleted, ListOptions,
    ListPage, MemoryBody, MemoryStore, MemoryUpload, Meta, NamespaceConfig, NamespaceInfo, Object,
    Quota, Result, Scope, Seal, Source, Store, StoreOptions, Stored, Upload, Usage, VersionId,
    VersionPage,
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

impl Fault {
    fn is(self, fault: Fault) -> bool {
        self == fault
    }
}

impl Detour<MemoryStore> for Fault {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        let range = match range {
            ByteRange::Inclusive(first, last) if self.is(Fault::ShortRange) && first < last => {
                ByteRange::Inclusive(first, last - 1)
            }
            range => range,
        };
        store.retrieve(address, version, range).await
    }

    async fn next(&self, body: &mut MemoryBody, _given: usize) -> Result<Option<Buf>> {
        let Some(buf) = body.next().await? else {
            return Ok(None);
        };
        let mut bytes = buf.to_vec();
        if self.is(Fault::BitFlip)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
        Ok(Some(bytes.into()))
    }

    async fn exist(
        &self,
        store: &MemoryStore,
        addresses: &[Address<'_>],
    ) -> Result<Vec<Option<Meta>>> {
        let mut found = store.exist(addresses).await?;
        if self.is(Fault::ShortBatch)
            && let Some(last) = found.last_mut()
        {
            *last = None;
        }
        Ok(found)
    }

    async fn store(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        mut options: StoreOptions,
    ) -> Result<MemoryUpload> {
        if self.is(Fault::NoReservation) {
            options.size = None;
        }
        if self.is(Fault::EarlyConditionOnly) {
            drop(store.store(address, options).await?);
            options.condition = Condition::None;
        }
        store.store(address, options).await
    }

    async fn commit(&self, upload: MemoryUpload, mut seal: Seal) -> Result<Stored> {
        match self {
            Fault::LostTag => seal.etag = None,
            Fault::NeverExpires => seal.expires = None,
            _ => {}
        }
        upload.commit(seal).await
    }

    async fn compose(
        &self,
        store: &MemoryStore,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        let consumed = match self.is(Fault::KeepsConsumed) {
            true => &[],
            false => consumed,
        };
        store
            .compose(target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        let seen = seen.filter(|_| !self.is(Fault::AmendsWhatCame));
        let version = version.filter(|_| !self.is(Fault::AmendsCurrent));
        store.amend(address, version, seen, attributes).await
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        mut options: DeleteOptions,
    ) -> Result<Deleted> {
        match self {
            Fault::DeleteUnconditionally => options.condition = Condition::None,
            Fault::DeletesKeyForVersion => options.version = None,
            _ => {}
        }
        store.delete(address, options).await
    }

    async fn list(&self, store: &MemoryStore, mut options: ListOptions<'_>) -> Result<ListPage> {
        let mut shorter = Vec::new();
        if let After::Key(key) = options.after
            && self.is(Fault::RepeatsKey)
        {
            shorter.extend_from_slice(&key[..key.len() - 1]);
            options.after = After::Key(&shorter);
        }
        if self.is(Fault::LosesDelimiter) && options.prefix.is_empty() {
            options.delimiter = None;
        }
        let mut page = store.list(options).await?;
        page.more &= !self.is(Fault::ForgetsMore);
        Ok(page)
    }

    async fn list_versions(
        &self,
        store: &MemoryStore,
        mut options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        if let After::Version(key, _) = options.after
            && self.is(Fault::SkipsVersions)
        {
            options.after = After::Key(key);
        }
        store.list_versions(options).await
    }

    async fn create_namespace(
        &self,
        store: &MemoryStore,
        name: &str,
        mut config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        if self.is(Fault::NeverExpires) {
            config.ttl_ms = None;
        }
        store.create_namespace(name, config).await
    }

    fn usage(&self, store: &MemoryStore, scope: Scope<'_>) -> Result<Usage> {
        let mut usage = store.usage(scope)?;
        usage.objects += u64::from(self.is(Fault::WrongUsage) && usage.objects > 1);
        Ok(usage)
    }

    async fn set_tenant_quota(
        &self,
        store: &MemoryStore,
        tenant: &str,
        quota: Quota,
    ) -> Result<()> {
        let quota = match self.is(Fault::NoTenantQuota) {
            true => Quota::default(),
            false => quota,
        };
        store.set_tenant_quota(tenant, quota).await
    }
}

fn maker(fault: Fault) -> impl AsyncFn(TestClock) -> (Around<MemoryStore, Fault>, ()) {
    async move |clock: TestClock| {
        let pool = Pool::new(16 << 20);
        let store = MemoryStore::new(pool, move || clock.now());
        let detour = fault;
        (Around { store, detour }, ())
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
                // Sequences that a fault survives are many more than those that a sound store is given, and random: few find what is
                // rare by the first of these.
                let suite = Suite::new(maker(Fault::$fault)).with_cases(1000);
                $(assert!((0..4).any(|_| fails(|| suite.$area())), "{} finds it", stringify!($area));)+
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
