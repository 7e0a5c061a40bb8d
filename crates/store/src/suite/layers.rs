//! Whether the calls of a layer arrive at the store below it.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_mem::{Pool, Region};
use parking_lot::Mutex;

use super::TestClock;
use super::subject::Subject;
use crate::{
    Address, After, Attributes, Away, ByteRange, DeleteOptions, Execute, ListOptions, MemoryBody,
    MemoryStore, MemoryUpload, Module, NamespaceConfig, Quota, Scope, Seal, Source, Space, Store,
    StoreOptions,
};

const NAMESPACE: &str = "layer";
const MEMORY_BYTES: usize = 16 << 20;

/// The store below a layer: it notes which of its methods are called.
#[derive(Clone)]
pub struct Noting {
    store: MemoryStore,
    noted: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Noting {
    fn note(&self, method: &'static str) {
        self.noted.lock().insert(method);
    }
}

macro_rules! noting {
    ($($method:ident)+) => {
        const METHODS: &[&str] = &[$(stringify!($method)),+];

        #[warn(clippy::missing_trait_methods)]
        impl Store for Noting {
            type Upload = MemoryUpload;
            type Body = MemoryBody;

            crate::pass_on! { store after note: $($method),+ }
        }
    };
}

noting! {
    caps retrieve retrieve_into exist stat store compose amend delete away let_go take_back forgotten settle execute list
    list_versions create_namespace delete_namespace update_namespace namespace namespaces usage set_tenant_quota
    tenant_quota changes
}

/// Calls, and whether they arrived.
struct Calls<'a> {
    noted: &'a Mutex<BTreeSet<&'static str>>,
    made: BTreeSet<&'static str>,
    arrived: BTreeSet<&'static str>,
}

impl Calls<'_> {
    /// What comes of a call is no matter: it may be refused, below.
    async fn make<T>(&mut self, method: &'static str, call: impl Future<Output = T>) {
        self.noted.lock().clear();
        drop(call.await);
        self.made.insert(method);
        if self.noted.lock().contains(method) {
            self.arrived.insert(method);
        }
    }
}

/// Makes every call of a layer once, and compares which of them become the same call of the store below: all but those that it
/// answers `itself`. So none is forgotten, also among those of which the trait has a default.
///
/// # Panics
/// When another call arrives, or one does not.
pub async fn check_layer<L: Store>(make: impl AsyncFnOnce(Noting) -> L, itself: &[&'static str]) {
    let clock = TestClock::default();
    let told = clock.clone();
    let store = MemoryStore::new(Pool::new(MEMORY_BYTES), move || told.now());
    let below = Subject::new(store.clone(), clock);
    below.namespace(NAMESPACE).await;
    below.namespace("leaves").await;
    for key in ["first", "second", "third"] {
        below.put(NAMESPACE, key, b"some bytes").await;
    }
    below.stage(NAMESPACE, "part", b"more").await;
    let seen = store.stat(object(b"third"), None).await.expect("stored");

    let noting = Noting {
        store,
        noted: Arc::default(),
    };
    let noted = noting.noted.clone();
    let layer = make(noting).await;
    let mut calls = Calls {
        noted: &noted,
        made: BTreeSet::new(),
        arrived: BTreeSet::new(),
    };

    calls.make("caps", async { layer.caps() }).await;
    let named = async { layer.namespace(NAMESPACE) };
    calls.make("namespace", named).await;
    calls.make("namespaces", async { layer.namespaces() }).await;
    let usage = async { layer.usage(Scope::Namespace(NAMESPACE)) };
    calls.make("usage", usage).await;
    let bound = async { layer.tenant_quota("acme") };
    calls.make("tenant_quota", bound).await;
    calls.make("changes", async { layer.changes() }).await;
    calls.make("forgotten", async { layer.forgotten() }).await;
    calls.make("settle", layer.settle()).await;

    let found = layer.retrieve(object(b"first"), None, ByteRange::Full);
    calls.make("retrieve", found).await;
    let region = Region::anonymous(4096).expect("memory");
    let target = region.slice(0..4096).expect("within");
    let placed = layer.retrieve_into(object(b"second"), None, ByteRange::Full, target);
    calls.make("retrieve_into", placed).await;
    let address = object(b"third");
    calls.make("exist", layer.exist(&[address])).await;
    calls.make("stat", layer.stat(address, None)).await;
    let options = ListOptions {
        namespace: NAMESPACE,
        space: Space::Objects,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit: 10,
    };
    calls.make("list", layer.list(options)).await;
    let versions = layer.list_versions(options);
    calls.make("list_versions", versions).await;
    let call = Execute::inline("acme", Module::Name("none"), &[], b"", 0);
    calls.make("execute", layer.execute(call)).await;

    let begun = layer.store(object(b"fourth"), StoreOptions::default());
    calls.make("store", begun).await;
    let (options, seal) = (StoreOptions::default(), Seal::default());
    let sources = [Source::any(b"part")];
    let joined = layer.compose(object(b"fifth"), &sources, &[], options, seal);
    calls.make("compose", joined).await;
    let amended = layer.amend(address, None, None, Attributes::EMPTY);
    calls.make("amend", amended).await;
    calls.make("away", layer.away(address, None)).await;
    let gone = layer.let_go(address, &seen, Away(1));
    calls.make("let_go", gone).await;
    let back = layer.take_back(address, None, Away(1));
    calls.make("take_back", back).await;
    let deleted = layer.delete(address, DeleteOptions::default());
    calls.make("delete", deleted).await;

    let config = NamespaceConfig::default();
    let made = layer.create_namespace("new", config.clone());
    calls.make("create_namespace", made).await;
    let changed = layer.update_namespace(NAMESPACE, None, config);
    calls.make("update_namespace", changed).await;
    let removed = layer.delete_namespace("leaves");
    calls.make("delete_namespace", removed).await;
    let bounded = layer.set_tenant_quota("acme", Quota::default());
    calls.make("set_tenant_quota", bounded).await;

    let all: BTreeSet<_> = METHODS.iter().copied().collect();
    assert_eq!(calls.made, all, "every method is called");
    let itself = itself.iter().copied().collect();
    let passed: BTreeSet<_> = all.difference(&itself).copied().collect();
    assert_eq!(calls.arrived, passed, "what the layer passes on");
}

fn object(key: &[u8]) -> Address<'_> {
    Address::object(NAMESPACE, key)
}
