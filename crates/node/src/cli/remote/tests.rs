//! What is refused ends a command alike, whichever way it was asked for.

use std::future;
use std::iter;
use std::sync::Arc;

use forebay_client::direct::Options;
use forebay_client::{Credentials, Endpoint};
use forebay_control::rpc::{Config, Service, serve};
use forebay_control::{Identities, ROOT_TENANT};
use forebay_fabric::Sessions;
use forebay_fabric::sessions::Limits;
use forebay_io::{Clock, SystemClock};
use forebay_mem::Pool;
use forebay_store::{ErrorKind, MemoryStore, Store, StoreError};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::nobody::Nobody;

/// A store that refuses to bound tenants.
struct Refusing {
    store: MemoryStore,
    kind: Mutex<ErrorKind>,
}

#[warn(clippy::missing_trait_methods)]
impl Store for Refusing {
    type Upload = <MemoryStore as Store>::Upload;
    type Body = <MemoryStore as Store>::Body;

    async fn set_tenant_quota(&self, _: &str, _: Quota) -> forebay_store::Result<()> {
        Err(StoreError::new(*self.kind.lock(), "so it is told"))
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten,
        settle, execute, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, namespaces,
        usage, tenant_quota, changes
    }
}

/// The kind after this one. Whoever adds a kind is told here, and puts it in the row.
fn next(kind: ErrorKind) -> Option<ErrorKind> {
    Some(match kind {
        ErrorKind::NotFound => ErrorKind::NoSuchVersion,
        ErrorKind::NoSuchVersion => ErrorKind::IsDeleteMarker,
        ErrorKind::IsDeleteMarker => ErrorKind::NoSuchNamespace,
        ErrorKind::NoSuchNamespace => ErrorKind::NamespaceExists,
        ErrorKind::NamespaceExists => ErrorKind::NamespaceNotEmpty,
        ErrorKind::NamespaceNotEmpty => ErrorKind::PreconditionFailed,
        ErrorKind::PreconditionFailed => ErrorKind::RangeNotSatisfiable,
        ErrorKind::RangeNotSatisfiable => ErrorKind::Invalid,
        ErrorKind::Invalid => ErrorKind::TooLarge,
        ErrorKind::TooLarge => ErrorKind::QuotaExceeded,
        ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        ErrorKind::NoSpace => ErrorKind::Busy,
        ErrorKind::Busy => ErrorKind::Corrupt,
        ErrorKind::Corrupt => ErrorKind::ReadOnly,
        ErrorKind::ReadOnly => ErrorKind::OutcomeUnknown,
        ErrorKind::OutcomeUnknown => ErrorKind::Unsupported,
        ErrorKind::Unsupported => ErrorKind::Io,
        ErrorKind::Io => ErrorKind::Denied,
        ErrorKind::Denied => ErrorKind::ProgramStopped,
        ErrorKind::ProgramStopped => ErrorKind::ProgramFailed,
        ErrorKind::ProgramFailed => return None,
    })
}

#[tokio::test]
async fn what_the_store_refuses_ends_alike_by_the_socket_and_by_grpc() {
    let store = Arc::new(Refusing {
        store: MemoryStore::new(Pool::new(4 << 20), || 1),
        kind: Mutex::new(ErrorKind::NotFound),
    });
    let clock = Arc::new(SystemClock::default());
    let now = clock.clone();
    let identities = Identities::open(store.clone(), Arc::new(move || now.unix_millis())).await;
    let identities = Arc::new(identities.unwrap());
    let root = identities.ensure_root(None).await.unwrap();
    let sessions = Arc::new(Sessions::new(clock, Limits::default()));
    let socket = Arc::new(forebay_control::Admin::new(
        store.clone(),
        identities.clone(),
        Arc::new(Nobody),
        sessions.clone(),
    ));
    let service = Service::new(
        store.clone(),
        identities,
        socket.clone(),
        sessions,
        Config::default(),
    );
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let endpoint: Endpoint = endpoint.parse().unwrap();
    tokio::spawn(serve(listener, None, service, future::pending()));
    let credentials = Credentials {
        access_key: root.id.clone(),
        secret_key: root.secret.clone(),
    };
    let admin = Admin::new(&endpoint, &credentials, &Options::default()).unwrap();

    let path = ["tenants", ROOT_TENANT, "quota"];
    let written = format!("/v1/{}", path.join("/"));
    let body = json!({ "bytes": 1 });
    let asked = body.to_string();
    let mut differ = Vec::new();
    for kind in iter::successors(Some(ErrorKind::NotFound), |kind| next(*kind)) {
        *store.kind.lock() = kind;
        let reply = socket.handle("PUT", &written, asked.as_bytes()).await;
        let here: Refused = serde_json::from_slice(&reply.body).unwrap();
        let here = Failure::from(here);
        let there = ask(&admin, &Method::PUT, &path, body.clone()).await;
        let there = there.unwrap_err();
        // Of damage the client says where it was done, too.
        assert!(there.message.ends_with("so it is told"), "{there}");
        assert!(here.message.ends_with("so it is told"), "{here}");
        if there.exit != here.exit {
            differ.push((kind, there.exit, here.exit));
        }
    }
    assert_eq!(differ, []);
}
