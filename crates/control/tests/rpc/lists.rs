//! What a tenant's lists cost does not depend on what others have, and is counted.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_api::v1;
use forebay_control::Leave;
use forebay_control::rpc::Config;
use forebay_store::{NamespaceConfig, Store};
use tonic::Code;

use crate::bounds::bounded;
use crate::harness::{Door, principal, refused};

#[tokio::test]
async fn a_list_looks_at_what_its_caller_sees() {
    let door = Door::open().await;
    let (mut red, _blue) = (door.tenant("red").await, door.tenant("blue").await);
    red.namespace("red-data").await;
    for i in 0..100 {
        let config = NamespaceConfig {
            tenant: "blue".to_owned(),
            ..NamespaceConfig::default()
        };
        let name = format!("blue-{i}");
        let made = door.store.create_namespace(&name, config);
        made.await.unwrap();
    }
    let asked = || door.beside.usages.swap(0, Relaxed);
    asked();
    let list = v1::ListNamespacesRequest {};
    let listed = red.admin.list_namespaces(list).await.unwrap().into_inner();
    assert_eq!(listed.namespaces.len(), 1);
    assert_eq!(asked(), 1);
    let list = v1::ListTenantsRequest {};
    let listed = red.admin.list_tenants(list).await.unwrap().into_inner();
    assert_eq!(listed.tenants.len(), 1);
    assert_eq!(listed.tenants[0].namespaces, 1);
    assert_eq!(asked(), 1);
    // Root sees them all.
    let mut root = door.root().await;
    let listed = root.admin.list_tenants(list).await.unwrap().into_inner();
    let mut tenants = listed.tenants.iter();
    let blue = tenants.find(|tenant| tenant.name == "blue").unwrap();
    assert_eq!(blue.namespaces, 100);
}

#[tokio::test]
async fn a_list_counts_as_what_its_call_holds() {
    const MANY: usize = 500;
    let door = Door::choose(bounded(Config {
        call_bytes: 32 << 10,
        ..Config::default()
    }))
    .await;
    let mut red = door.tenant("red").await;
    let key = door.identities.find(&red.access_key).unwrap();
    for i in 0..MANY {
        door.identities.create_key("red", None).await.unwrap();
        let leave = Leave {
            tenant: "red".to_owned(),
            ..Leave::default()
        };
        let wasm = format!("{i}").into_bytes();
        door.identities.allow_module(leave, wasm).await.unwrap();
        let principal = principal(&key);
        let lease = Duration::from_secs(60);
        door.sessions
            .open_with_random_key(principal, lease)
            .unwrap();
    }
    let full = (Code::ResourceExhausted, "BUSY");
    let keys = v1::ListKeysRequest {
        tenant: "red".into(),
    };
    refused(red.admin.list_keys(keys).await, full.0, full.1);
    let grants = v1::ListGrantsRequest::default();
    refused(red.admin.list_grants(grants).await, full.0, full.1);
    let modules = v1::ListModulesRequest {};
    refused(red.execution.list_modules(modules).await, full.0, full.1);
    // A page of a few has room.
    let few = v1::ListGrantsRequest {
        limit: 10,
        ..v1::ListGrantsRequest::default()
    };
    let listed = red.admin.list_grants(few).await.unwrap().into_inner();
    assert_eq!(listed.grants.len(), 10);
}
