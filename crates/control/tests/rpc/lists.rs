//! What a tenant's lists cost does not depend on what others have.

use std::sync::atomic::Ordering::Relaxed;

use forebay_api::v1;
use forebay_store::{NamespaceConfig, Store};

use crate::harness::Door;

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
