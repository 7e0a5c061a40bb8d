//! Which functions may be sent to the data: leaves, and what becomes of them.

use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1;
use forebay_api::v1::add_module_request::Source;
use forebay_control::SYSTEM_NAMESPACE;
use forebay_store::{Address, ErrorKind, Store};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::Code;

use crate::execute::{all, call, door};
use crate::harness::{Client, Door, Once, refusal, refused};

fn module(namespace: &str) -> v1::AddModuleRequest {
    v1::AddModuleRequest {
        tenant: "red".into(),
        namespace: namespace.into(),
        source: Some(Source::Wasm(Bytes::from_static(b"\0asm and so on"))),
        ..v1::AddModuleRequest::default()
    }
}

#[tokio::test]
async fn others_are_served_while_a_module_is_checked() {
    let (door, mut red, _) = door().await;
    let mut root = door.root().await;
    let (go_on, checks) = std::sync::mpsc::channel();
    *door.checks.lock() = Some(checks);
    let others = async {
        while door.checks.lock().is_some() {
            yield_now().await;
        }
        all(&mut red, call("echo", None)).await.unwrap();
        go_on.send(()).unwrap();
    };
    let (added, ()) = tokio::join!(root.execution.add_module(module("")), others);
    assert_eq!(added.unwrap().into_inner().tenant, "red");
}

#[tokio::test]
async fn a_module_comes_from_no_namespace_of_the_servers_own() {
    let (door, ..) = door().await;
    let mut root = door.root().await;
    let key = Bytes::from(format!("key/{}", root.access_key));
    let record = Address::object(SYSTEM_NAMESPACE, &key);
    let found = door.store.exist(&[record]).await.unwrap();
    assert!(found[0].is_some());
    for key in [key, Bytes::from_static(b"key/none")] {
        let mut from = async |namespace: &str| {
            let object = v1::ModuleObject {
                namespace: namespace.into(),
                key: key.clone(),
            };
            let request = v1::AddModuleRequest {
                source: Some(Source::Object(object)),
                ..module("")
            };
            refusal(root.execution.add_module(request).await)
        };
        let (code, reason, words) = from(SYSTEM_NAMESPACE).await;
        assert_eq!(
            (code, reason.as_str()),
            (Code::NotFound, "NO_SUCH_NAMESPACE")
        );
        let (_, _, absent) = from("nowhere").await;
        assert_eq!(words, absent.replace("nowhere", SYSTEM_NAMESPACE));
    }
}

#[tokio::test]
async fn what_is_allowed_in_a_namespace_goes_with_it() {
    let (door, mut red, _) = door().await;
    let mut root = door.root().await;
    red.namespace("other").await;
    for namespace in ["", "data", "other"] {
        root.execution.add_module(module(namespace)).await.unwrap();
    }
    red.admin
        .remove_namespace(v1::RemoveNamespaceRequest {
            name: "other".into(),
        })
        .await
        .unwrap();
    red.namespace("other").await;
    let left = red.execution.list_modules(v1::ListModulesRequest {}).await;
    let left = left.unwrap().into_inner().modules;
    let places: Vec<&str> = left.iter().map(|one| one.namespace.as_str()).collect();
    assert_eq!(places, ["", "data"]);
}

#[tokio::test]
async fn a_leave_is_for_a_namespace_and_not_for_its_name() {
    let (door, mut red, _) = door().await;
    let mut root = door.root().await;
    let places = async |red: &mut Client| {
        let listed = red.execution.list_modules(v1::ListModulesRequest {}).await;
        let listed = listed.unwrap().into_inner().modules;
        let places = listed.into_iter().map(|one| one.namespace);
        places.collect::<Vec<_>>()
    };
    let remove = || v1::RemoveNamespaceRequest {
        name: "other".into(),
    };
    // It is removed by another door, or by this one, though its leave cannot be.
    for elsewhere in [true, false] {
        red.namespace("other").await;
        root.execution.add_module(module("other")).await.unwrap();
        assert_eq!(places(&mut red).await, ["other"]);
        match elsewhere {
            true => door.store.delete_namespace("other").await.unwrap(),
            false => {
                *door.beside.unmaking.lock() = Some(ErrorKind::Io);
                let removed = red.admin.remove_namespace(remove()).await;
                refused(removed, Code::Internal, "IO");
            }
        }
        red.namespace("other").await;
        assert!(places(&mut red).await.is_empty());
        red.admin.remove_namespace(remove()).await.unwrap();
    }
}

/// A call of root's that its client gives up while it waits beside a call of the store.
async fn given_up(door: &Door, beside: &Once, call: impl AsyncFnOnce(Client)) {
    let root = door.root().await;
    let (tell, begun) = oneshot::channel();
    let (go_on, may_go_on) = oneshot::channel::<()>();
    beside.once(async move {
        tell.send(()).unwrap();
        let _ = may_go_on.await;
    });
    tokio::select! {
        () = call(root.clone()) => panic!("it waits"),
        begun = begun => begun.unwrap(),
    }
    // The door has learned of it before any later call of the same connection.
    let mut admin = root.admin.clone();
    admin.get_limits(v1::GetLimitsRequest {}).await.unwrap();
    // What waits for it may have gone with the call.
    let _ = go_on.send(());
}

/// Waits until this is so.
async fn soon(is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            yield_now().await;
        }
    };
    let waited = timeout(Duration::from_secs(60), waiting).await;
    waited.expect("it is so at last");
}

#[tokio::test]
async fn what_is_allowed_and_forbidden_is_so_whole() {
    let (door, ..) = door().await;
    given_up(&door, &door.beside.committed, async |mut root: Client| {
        let _ = root.execution.add_module(module("")).await;
    })
    .await;
    soon(async || !door.identities.modules().is_empty()).await;
    let added = door.identities.modules().remove(0);
    given_up(&door, &door.beside.deleting, async |mut root: Client| {
        let request = v1::RemoveModuleRequest {
            tenant: "red".into(),
            namespace: String::new(),
            module: added.sha256.clone(),
        };
        let _ = root.execution.remove_module(request).await;
    })
    .await;
    for key in [format!("module/red//{}", added.sha256), added.key()] {
        let address = Address::object(SYSTEM_NAMESPACE, key.as_bytes());
        soon(async || door.store.stat(address, None).await.is_err()).await;
    }
}
