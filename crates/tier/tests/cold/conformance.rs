//! The contract, with the bytes of every value away before each call.

use std::sync::Arc;

use forebay_mem::{Buf, Pool, RegionSlice};
use forebay_store::suite::{Around, Detour, Suite, TestClock};
use forebay_store::{
    Address, Attributes, ByteRange, DeleteOptions, Deleted, ErrorKind, ListOptions, ListPage,
    MemoryStore, Meta, Object, Result, Seal, Store, StoreOptions, Stored, VersionId, VersionPage,
};
use forebay_tier::cold::{Cold, ColdBody};

use crate::far::Far;
use crate::support::{over, versions};

type Tested = Cold<MemoryStore>;

/// Sends everything away whenever anybody asks for anything.
#[derive(Clone)]
struct Eager;

impl Eager {
    async fn send_away(&self, store: &Tested) {
        let mover = store.mover().expect("a bucket");
        for namespace in store.namespaces() {
            for (key, meta) in versions(store, &namespace.name).await {
                let address = Address::object(&namespace.name, &key);
                if meta.size == 0
                    || mover
                        .is_cold(address, Some(meta.version))
                        .await
                        .is_ok_and(|cold| cold)
                {
                    continue;
                }
                match mover.move_out(address, &meta).await {
                    Ok(()) => {}
                    // Others change the same values at the same time.
                    Err(error) => assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::PreconditionFailed
                                | ErrorKind::NoSuchVersion
                                | ErrorKind::NotFound
                                | ErrorKind::NoSuchNamespace
                                | ErrorKind::Busy
                        ),
                        "{error:?}"
                    ),
                }
            }
        }
        assert!(mover.tidy().await);
    }
}

impl Detour<Tested> for Eager {
    async fn retrieve(
        &self,
        store: &Tested,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<ColdBody<forebay_store::MemoryBody>>> {
        self.send_away(store).await;
        store.retrieve(address, version, range).await
    }

    async fn next(
        &self,
        body: &mut ColdBody<forebay_store::MemoryBody>,
        _: usize,
    ) -> Result<Option<Buf>> {
        forebay_store::Body::next(body).await
    }

    async fn retrieve_into(
        &self,
        store: &Tested,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, std::ops::Range<u64>)> {
        self.send_away(store).await;
        store.retrieve_into(address, version, range, target).await
    }

    async fn exist(&self, store: &Tested, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        self.send_away(store).await;
        store.exist(addresses).await
    }

    async fn store(
        &self,
        store: &Tested,
        address: Address<'_>,
        options: StoreOptions,
    ) -> Result<forebay_store::MemoryUpload> {
        self.send_away(store).await;
        store.store(address, options).await
    }

    async fn compose(
        &self,
        store: &Tested,
        target: Address<'_>,
        sources: &[&[u8]],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        self.send_away(store).await;
        store
            .compose(target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        store: &Tested,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.send_away(store).await;
        store.amend(address, version, seen, attributes).await
    }

    async fn delete(
        &self,
        store: &Tested,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        self.send_away(store).await;
        store.delete(address, options).await
    }

    async fn list(&self, store: &Tested, options: ListOptions<'_>) -> Result<ListPage> {
        self.send_away(store).await;
        store.list(options).await
    }

    async fn list_versions(&self, store: &Tested, options: ListOptions<'_>) -> Result<VersionPage> {
        self.send_away(store).await;
        store.list_versions(options).await
    }
}

async fn make(clock: TestClock) -> (Around<Tested, Eager>, ()) {
    let told = clock.clone();
    let hot = MemoryStore::new(Pool::new(64 << 20), move || told.now());
    let store = over(Arc::new(hot), &Far::default(), &clock);
    let detour = Eager;
    (Around { store, detour }, ())
}

async fn make_off(clock: TestClock) -> (Tested, ()) {
    let hot = MemoryStore::new(Pool::new(64 << 20), move || clock.now());
    (Cold::off(Arc::new(hot)), ())
}

mod all_away {
    use super::*;
    forebay_store::conformance!(Suite::new(make).with_cases(24));
}

mod off {
    use super::*;
    forebay_store::conformance!(Suite::new(make_off).with_cases(8));
}
