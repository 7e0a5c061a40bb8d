//! Gateways over one store that do the same at the same moment: none is refused what another has done for it.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_control::api::{LifecycleReport, ScrubReport, Server};
use forebay_control::{Admin, Identities, Kind, Node, SYSTEM_NAMESPACE};
use forebay_fabric::sessions::Limits;
use forebay_fabric::{Sessions, SystemClock};
use forebay_mem::Pool;
use forebay_store::{
    ErrorKind, MemoryStore, NamespaceConfig, NamespaceInfo, Result, Store, StoreError,
};
use parking_lot::Mutex;

/// A store as one of its gateways has it: of namespaces it knows those that it has made, and those that it has looked for.
struct Gateway {
    store: MemoryStore,
    known: Mutex<BTreeSet<String>>,
}

#[warn(clippy::missing_trait_methods)]
impl Store for Gateway {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let made = self.store.create_namespace(name, config).await?;
        self.known.lock().insert(name.to_owned());
        Ok(made)
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        match self.known.lock().contains(name) {
            true => self.store.namespace(name),
            false => Err(StoreError::new(ErrorKind::NoSuchNamespace, "not known")),
        }
    }

    async fn settle(&self) -> Result<()> {
        let all = self.store.namespaces();
        *self.known.lock() = all.iter().map(|one| one.name.clone()).collect();
        Ok(())
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten,
        execute, list, list_versions, delete_namespace, update_namespace, namespaces, usage, set_tenant_quota, tenant_quota, changes
    }
}

struct Quiet;

impl Node for Quiet {
    fn server(&self) -> Server {
        unreachable!("nobody asks")
    }

    fn scrub(
        &self,
    ) -> Pin<Box<dyn Future<Output = forebay_control::Result<ScrubReport>> + Send + '_>> {
        unreachable!("nobody asks")
    }

    fn lifecycle_run(
        &self,
    ) -> Pin<Box<dyn Future<Output = forebay_control::Result<LifecycleReport>> + Send + '_>> {
        unreachable!("nobody asks")
    }

    fn check_module(&self, _: &[u8]) -> std::result::Result<(), String> {
        unreachable!("nobody asks")
    }
}

fn pool() -> MemoryStore {
    MemoryStore::new(Pool::new(4 << 20), || 1)
}

/// What starts now: it hears of nothing that others do later.
async fn start(pool: &MemoryStore) -> (Admin<Gateway>, Arc<Identities<Gateway>>) {
    let gateway = Arc::new(Gateway {
        store: pool.clone(),
        known: Mutex::default(),
    });
    let identities = Identities::open(gateway.clone(), Arc::new(|| 7)).await;
    let identities = Arc::new(identities.unwrap());
    identities.ensure_root(None).await.unwrap();
    assert!(gateway.namespace(SYSTEM_NAMESPACE).is_ok());
    let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
    let admin = Admin::new(
        gateway,
        identities.clone(),
        Arc::new(Quiet),
        Arc::new(sessions),
    );
    (admin, identities)
}

#[tokio::test]
async fn they_publish_the_same_under_one_number() {
    let pool = pool();
    let (first, _) = start(&pool).await;
    let (second, _) = start(&pool).await;
    let published = first.publish_namespace("data", None).await.unwrap();
    assert_eq!(published.nsid, Some(1));
    assert_eq!(
        second.publish_namespace("data", None).await.unwrap(),
        published
    );
    // A number that is taken makes no namespace, whoever took it.
    let taken = second.publish_namespace("other", Some(1)).await;
    assert_eq!(taken.unwrap_err().kind, Kind::Exists);
    assert!(pool.namespace("other").is_err());
}

#[tokio::test]
async fn they_give_exports_numbers() {
    let pool = pool();
    let (_, first) = start(&pool).await;
    let (_, second) = start(&pool).await;
    let disk = first.publish_block("disk", None).await.unwrap();
    assert_eq!(second.publish_block("disk", None).await.unwrap(), disk);
    // What is free to one of them may be another's.
    assert_eq!(first.publish_block("a", None).await.unwrap().nsid, 2);
    assert_eq!(second.publish_block("b", None).await.unwrap().nsid, 3);
    first.publish_block("c", Some(9)).await.unwrap();
    let taken = second.publish_block("d", Some(9)).await.unwrap_err();
    assert_eq!(taken.kind, Kind::Exists);
    assert_eq!(second.published().len(), 4);
}

#[tokio::test]
async fn they_make_a_key_once() {
    const ID: &str = "AKIAIMPORTED";
    let pool = pool();
    let (_, first) = start(&pool).await;
    let (_, second) = start(&pool).await;
    let made = first.create_key("root", Some((ID, "the-first-secret")));
    let made = made.await.unwrap();
    // It is not known there yet.
    assert!(second.find(ID).is_none());
    let taken = second.create_key("root", Some((ID, "the-second-secret")));
    assert_eq!(taken.await.unwrap_err().kind, Kind::Exists);
    let (_, third) = start(&pool).await;
    assert_eq!(third.find(ID).unwrap(), made);
}

#[tokio::test]
async fn they_start_with_one_root_key() {
    const PAIR: (&str, &str) = ("AKIAROOT", "the-root-secret");
    let pool = pool();
    let (_, first) = start(&pool).await;
    let (_, second) = start(&pool).await;
    let key = first.ensure_root(Some(PAIR)).await.unwrap();
    assert_eq!(second.ensure_root(Some(PAIR)).await.unwrap(), key);
}

#[tokio::test]
async fn who_has_not_heard_of_a_namespace_leaves_it_its_number() {
    let pool = pool();
    let (first, _) = start(&pool).await;
    let (_, second) = start(&pool).await;
    first.publish_namespace("data", None).await.unwrap();
    // It hears of the number alone.
    let block = second.publish_block("disk", None).await.unwrap();
    assert_eq!(block.nsid, 2);
    second.unpublish_removed().await.unwrap();
    assert_eq!(second.published().len(), 2);
    let (_, third) = start(&pool).await;
    assert_eq!(third.published().len(), 2);
    pool.delete_namespace("data").await.unwrap();
    second.unpublish_removed().await.unwrap();
    assert_eq!(second.published(), [block]);
}
