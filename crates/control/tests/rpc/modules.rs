//! Which functions may be sent to the data: leaves, and what becomes of them.

use bytes::Bytes;
use forebay_api::v1;
use forebay_api::v1::add_module_request::Source;
use forebay_control::SYSTEM_NAMESPACE;
use forebay_store::{Address, Store};
use tokio::task::yield_now;
use tonic::Code;

use crate::execute::{all, call, door};
use crate::harness::refusal;

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
