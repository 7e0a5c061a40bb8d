//! What hosts are shown by servers over one store, and when it goes away.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::{Args, FromArgMatches};
use forebay_fabric::Sessions;
use forebay_fabric::sessions::Limits;
use forebay_nvme::target::Viewer;
use forebay_store::{
    Address, DeleteOptions, Deleted, ErrorKind, MemoryStore, Notice, Result, StoreError, Watch,
};

use super::*;
use crate::nobody::Nobody;

/// A store that others have, too, and that fails to delete so many times.
#[derive(Clone)]
struct Shared {
    store: MemoryStore,
    failures: Arc<AtomicUsize>,
}

struct Silence;

impl Watch for Silence {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Notice>> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

#[warn(clippy::missing_trait_methods)]
impl Store for Shared {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        let left = |failures: usize| failures.checked_sub(1);
        match self.failures.fetch_update(Relaxed, Relaxed, left) {
            Ok(_) => Err(StoreError::new(ErrorKind::Io, "not now")),
            Err(_) => self.store.delete(address, options).await,
        }
    }

    fn changes(&self) -> Option<Box<dyn Watch>> {
        Some(Box::new(Silence))
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, away, let_go, take_back, forgotten, settle,
        execute, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, namespaces, usage,
        set_tenant_quota, tenant_quota
    }
}

fn shared() -> Shared {
    Shared {
        store: MemoryStore::new(Pool::new(4 << 20), || 1),
        failures: Arc::default(),
    }
}

/// The doors of a server that starts over `store` with such flags.
async fn start(store: &Shared, dir: &Path, flags: &[&str]) -> Arc<Nvme<Shared>> {
    let command = ServeArgs::augment_args(clap::Command::new("serve").no_binary_name(true));
    let flags = [&[dir.to_str().unwrap()], flags].concat();
    let matches = command.try_get_matches_from(flags).unwrap();
    let args = ServeArgs::from_arg_matches(&matches).unwrap();
    let store = Arc::new(store.clone());
    let identities = Identities::open(store.clone(), Arc::new(|| 7)).await;
    let identities = Arc::new(identities.unwrap());
    identities.ensure_root(None).await.unwrap();
    let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
    let admin = Admin::new(
        store.clone(),
        identities.clone(),
        Arc::new(Nobody),
        Arc::new(sessions),
    );
    let opened = Nvme::open(&args, &admin, identities, store, Pool::new(4 << 20)).await;
    opened.unwrap()
}

/// What a host sees there: numbers and UUIDs.
fn shown(nvme: &Arc<Nvme<Shared>>) -> Vec<(u32, [u8; 16])> {
    let session = nvme.target.attach(Viewer::Everything).unwrap();
    let controller = nvme.target.device(0, &session, 1);
    let namespaces = controller.subsystem().namespaces.iter();
    namespaces.map(|one| (one.nsid, one.uuid)).collect()
}

#[test]
fn a_uuid_is_written_as_people_do() {
    assert_eq!(
        hyphenated("0123456789abcdef0123456789abcdef"),
        "01234567-89ab-cdef-0123-456789abcdef"
    );
}

#[tokio::test]
async fn files_of_two_servers_are_two_disks() {
    let store = shared();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut servers = Vec::new();
    for folder in &folders {
        let dir = folder.path().join("data");
        let disk = folder.path().join("scratch.img");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&disk, [0; 4096]).unwrap();
        let export = format!("scratch={}:2", disk.display());
        let flags = ["--nvme-namespace", "cache=1", "--export", &export];
        let server = start(&store, &dir, &flags).await;
        // The same when it is started anew.
        assert_eq!(shown(&server), shown(&start(&store, &dir, &flags).await));
        servers.push(server);
    }
    let [one, other] = &servers[..] else {
        unreachable!()
    };
    assert_eq!(one.target.config().nqn, other.target.config().nqn);
    let [(1, cache), (2, disk)] = shown(one)[..] else {
        panic!("{:?}", shown(one))
    };
    let [(1, same), (2, another)] = shown(other)[..] else {
        panic!("{:?}", shown(other))
    };
    assert_eq!(cache, same, "values are the same by both");
    assert_ne!(disk, another);
}

#[tokio::test]
async fn the_number_of_an_export_is_free_when_it_is_forgotten() {
    let store = shared();
    let dir = tempfile::tempdir().unwrap();
    start(&store, dir.path(), &["--export", "m=memory:4KiB:5"]).await;
    let flags = ["--export", "n=memory:4KiB:5", "--export", "m=none"];
    let server = start(&store, dir.path(), &flags).await;
    assert_eq!(shown(&server).len(), 1);
    let names = server.identities.published();
    assert_eq!(names[0].what.to_string(), "the export \"n\"");
}

#[tokio::test(start_paused = true)]
async fn a_removed_namespace_loses_its_number_although_the_store_failed_once() {
    let store = shared();
    let dir = tempfile::tempdir().unwrap();
    let server = start(&store, dir.path(), &["--nvme-namespace", "data=3"]).await;
    store.failures.store(1, Relaxed);
    store.delete_namespace("data").await.unwrap();
    let minute = std::time::Duration::from_secs(60);
    let followed = tokio::time::timeout(minute, server.follow()).await;
    assert!(followed.is_err(), "it ends never");
    assert_eq!(store.failures.load(Relaxed), 0);
    assert!(server.identities.published().is_empty());
}
