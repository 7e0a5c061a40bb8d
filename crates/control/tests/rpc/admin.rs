//! Administration: everything that the Unix socket offers, and who may.

use std::future::Future;

use forebay_api::v1::{self, Versioning};
use forebay_store::{ErrorKind, Store};
use tokio::sync::oneshot;
use tonic::Code;

use crate::harness::{Door, START, refusal, refused};

fn bound(value: Option<u64>) -> Option<v1::Bound> {
    Some(v1::Bound { value })
}

#[tokio::test]
async fn the_root_tenant_administers() {
    let door = Door::open().await;
    let mut root = door.root().await.admin;

    let server = root.get_server(v1::GetServerRequest {}).await.unwrap();
    let server = server.into_inner();
    assert_eq!((server.version.as_str(), server.pid), ("1.2.3", 7));
    assert_eq!(server.doors["rpc"], "127.0.0.1:1");

    let made = root
        .create_tenant(v1::CreateTenantRequest {
            name: "blue".into(),
            display_name: "Blue team".into(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((made.name.as_str(), made.created_ms), ("blue", START));
    let again = root
        .create_tenant(v1::CreateTenantRequest {
            name: "blue".into(),
            ..Default::default()
        })
        .await;
    refused(again, Code::AlreadyExists, "EXISTS");
    let wrong = root
        .create_tenant(v1::CreateTenantRequest {
            name: "Not A Name".into(),
            ..Default::default()
        })
        .await;
    refused(wrong, Code::InvalidArgument, "INVALID");

    let bounded = root
        .set_tenant_quota(v1::SetTenantQuotaRequest {
            name: "blue".into(),
            quota: Some(v1::QuotaChange {
                bytes: bound(Some(1000)),
                objects: None,
            }),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(bounded.quota.unwrap().bytes, Some(1000));

    let key = root
        .create_key(v1::CreateKeyRequest {
            tenant: "blue".into(),
            access_key: "BLUEKEY".into(),
            secret_key: "blue-secret".into(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(key.secret_key, "blue-secret");
    let half = root
        .create_key(v1::CreateKeyRequest {
            tenant: "blue".into(),
            access_key: "HALF".into(),
            ..Default::default()
        })
        .await;
    refused(half, Code::InvalidArgument, "INVALID");
    let keys = root.list_keys(v1::ListKeysRequest::default()).await;
    let keys = keys.unwrap().into_inner().keys;
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.secret_key.is_empty()));

    let report = root.scrub(v1::ScrubRequest {}).await.unwrap().into_inner();
    assert_eq!((report.objects, report.bytes), (3, 5));
    let report = root.run_lifecycle(v1::RunLifecycleRequest {}).await;
    assert_eq!(report.unwrap().into_inner().expired, 4);

    let removed = v1::RemoveKeyRequest {
        access_key: "BLUEKEY".into(),
    };
    root.remove_key(removed.clone()).await.unwrap();
    refused(root.remove_key(removed).await, Code::NotFound, "NOT_FOUND");
    let removed = v1::RemoveTenantRequest {
        name: "blue".into(),
    };
    root.remove_tenant(removed.clone()).await.unwrap();
    refused(
        root.remove_tenant(removed).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let root_itself = v1::RemoveTenantRequest {
        name: "root".into(),
    };
    refused(
        root.remove_tenant(root_itself).await,
        Code::PermissionDenied,
        "DENIED",
    );
    let tenants = root.list_tenants(v1::ListTenantsRequest {}).await;
    assert_eq!(tenants.unwrap().into_inner().tenants.len(), 1);
}

#[tokio::test]
async fn a_namespace_from_its_making_to_its_end() {
    let door = Door::open().await;
    door.identities.create_tenant("blue", "").await.unwrap();
    let mut root = door.root().await.admin;
    let made = root
        .create_namespace(v1::CreateNamespaceRequest {
            name: "models".into(),
            tenant: "blue".into(),
            config: Some(v1::NamespaceChange {
                durability: Some(v1::Durability { relaxed_ms: 50 }),
                versioning: Versioning::Enabled.into(),
                ttl_ms: bound(Some(9000)),
                quota: Some(v1::QuotaChange {
                    bytes: bound(Some(77)),
                    objects: bound(Some(3)),
                }),
                nsid: None,
            }),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.tenant, "blue");
    assert_eq!(made.durability.unwrap().relaxed_ms, 50);
    assert_eq!(made.versioning(), Versioning::Enabled);
    assert_eq!(made.ttl_ms, Some(9000));
    assert_eq!(made.quota.unwrap().objects, Some(3));

    let changed = root
        .change_namespace(v1::ChangeNamespaceRequest {
            name: "models".into(),
            change: Some(v1::NamespaceChange {
                durability: Some(v1::Durability { relaxed_ms: 0 }),
                ttl_ms: bound(None),
                quota: Some(v1::QuotaChange {
                    bytes: bound(None),
                    objects: None,
                }),
                ..Default::default()
            }),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(changed.durability.unwrap().relaxed_ms, 0);
    assert_eq!(changed.versioning(), Versioning::Enabled);
    assert_eq!(changed.ttl_ms, None);
    let quota = changed.quota.unwrap();
    assert_eq!((quota.bytes, quota.objects), (None, Some(3)));

    for change in [
        v1::NamespaceChange {
            versioning: Versioning::Off.into(),
            ..Default::default()
        },
        v1::NamespaceChange {
            versioning: 99,
            ..Default::default()
        },
        v1::NamespaceChange {
            durability: Some(v1::Durability { relaxed_ms: 60_001 }),
            ..Default::default()
        },
    ] {
        let wrong = root.change_namespace(v1::ChangeNamespaceRequest {
            name: "models".into(),
            change: Some(change),
        });
        refused(wrong.await, Code::InvalidArgument, "INVALID");
    }

    let named = v1::GetNamespaceRequest {
        name: "models".into(),
    };
    let shown = root.get_namespace(named.clone()).await.unwrap();
    assert_eq!(shown.into_inner(), changed);
    let listed = root.list_namespaces(v1::ListNamespacesRequest {}).await;
    assert_eq!(listed.unwrap().into_inner().namespaces, [changed]);
    let system = v1::GetNamespaceRequest {
        name: ".forebay".into(),
    };
    refused(
        root.get_namespace(system).await,
        Code::NotFound,
        "NO_SUCH_NAMESPACE",
    );

    let owner = v1::RemoveTenantRequest {
        name: "blue".into(),
    };
    refused(
        root.remove_tenant(owner).await,
        Code::FailedPrecondition,
        "NOT_EMPTY",
    );
    let removed = v1::RemoveNamespaceRequest {
        name: "models".into(),
    };
    root.remove_namespace(removed).await.unwrap();
    refused(
        root.get_namespace(named).await,
        Code::NotFound,
        "NO_SUCH_NAMESPACE",
    );
}

#[tokio::test]
async fn a_namespace_whose_number_cannot_be_had_stays_as_it_is() {
    let door = Door::open().await;
    let mut root = door.root().await.admin;
    let made = |name: &str, nsid| v1::CreateNamespaceRequest {
        name: name.into(),
        config: Some(v1::NamespaceChange {
            nsid: bound(Some(nsid)),
            ..Default::default()
        }),
        ..Default::default()
    };
    root.create_namespace(made("first", 5)).await.unwrap();
    let second = root.create_namespace(made("second", 6)).await.unwrap();
    let second = second.into_inner();
    let named = |name: &str| v1::GetNamespaceRequest { name: name.into() };
    for (nsid, code, reason) in [
        (5, Code::AlreadyExists, "EXISTS"),
        (5000, Code::InvalidArgument, "INVALID"),
    ] {
        let change = v1::NamespaceChange {
            versioning: Versioning::Enabled.into(),
            ttl_ms: bound(Some(9000)),
            nsid: bound(Some(nsid)),
            ..Default::default()
        };
        let changed = root.change_namespace(v1::ChangeNamespaceRequest {
            name: "second".into(),
            change: Some(change),
        });
        refused(changed.await, code, reason);
        let shown = root.get_namespace(named("second")).await.unwrap();
        assert_eq!(shown.into_inner(), second);
        refused(
            root.create_namespace(made("third", nsid)).await,
            code,
            reason,
        );
        refused(
            root.get_namespace(named("third")).await,
            Code::NotFound,
            "NO_SUCH_NAMESPACE",
        );
    }
    // A number that can be had goes with the rest.
    let changed = root.change_namespace(v1::ChangeNamespaceRequest {
        name: "second".into(),
        change: Some(v1::NamespaceChange {
            ttl_ms: bound(Some(9000)),
            nsid: bound(Some(7)),
            ..Default::default()
        }),
    });
    let changed = changed.await.unwrap().into_inner();
    assert_eq!((changed.ttl_ms, changed.nsid), (Some(9000), Some(7)));
}

#[tokio::test]
async fn a_tenant_stays_while_a_namespace_is_made_for_it() {
    let door = Door::open().await;
    door.identities.create_tenant("blue", "").await.unwrap();
    let mut root = door.root().await.admin;
    let (reached, is_reached) = oneshot::channel();
    let (open, gate) = oneshot::channel::<()>();
    door.beside.creating.once(async {
        let _ = reached.send(());
        let _ = gate.await;
    });
    let mut making = root.clone();
    let made = tokio::spawn(async move {
        let request = v1::CreateNamespaceRequest {
            name: "data".into(),
            tenant: "blue".into(),
            config: None,
        };
        making.create_namespace(request).await
    });
    is_reached.await.unwrap();
    let mut removing = root.clone();
    let removed = tokio::spawn(async move {
        let request = v1::RemoveTenantRequest {
            name: "blue".into(),
        };
        removing.remove_tenant(request).await
    });
    // Time enough for a removal that does not wait.
    for _ in 0..20 {
        root.get_limits(v1::GetLimitsRequest {}).await.unwrap();
    }
    open.send(()).unwrap();
    made.await.unwrap().unwrap();
    refused(
        removed.await.unwrap(),
        Code::FailedPrecondition,
        "NOT_EMPTY",
    );
    assert!(door.identities.tenant("blue").is_ok());
}

#[tokio::test]
async fn a_tenant_sees_its_own_and_no_other() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut blue = door.tenant("blue").await;
    red.namespace("red-data").await;
    blue.namespace("blue-data").await;

    let limits = red.admin.get_limits(v1::GetLimitsRequest {}).await;
    assert_eq!(limits.unwrap().into_inner().exist_keys_max, 10_000);
    let tenants = red.admin.list_tenants(v1::ListTenantsRequest {}).await;
    let tenants = tenants.unwrap().into_inner().tenants;
    assert_eq!(tenants.len(), 1);
    assert_eq!(
        (tenants[0].name.as_str(), tenants[0].namespaces),
        ("red", 1)
    );
    let keys = red.admin.list_keys(v1::ListKeysRequest::default()).await;
    let keys = keys.unwrap().into_inner().keys;
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].access_key, red.access_key);
    let shown = red
        .admin
        .list_namespaces(v1::ListNamespacesRequest {})
        .await;
    let shown = shown.unwrap().into_inner().namespaces;
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].name, "red-data");

    // What is another's is refused in the very words of what does not exist.
    async fn both<Q, T: std::fmt::Debug, F>(
        make: impl Fn(&str) -> Q,
        names: [&str; 2],
        mut call: impl FnMut(Q) -> F,
    ) where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let (code, reason, words) = refusal(call(make(names[0])).await);
        let (none_code, none_reason, none_words) = refusal(call(make(names[1])).await);
        assert_eq!(code, Code::NotFound);
        assert_eq!((code, reason), (none_code, none_reason));
        assert_eq!(words, none_words.replace(names[1], names[0]));
    }
    let admin = red.admin.clone();
    let namespaces = ["blue-data", "none-data"];
    both(
        |name| v1::GetNamespaceRequest { name: name.into() },
        namespaces,
        |request| {
            let mut admin = admin.clone();
            async move { admin.get_namespace(request).await }
        },
    )
    .await;
    both(
        |name| v1::RemoveNamespaceRequest { name: name.into() },
        namespaces,
        |request| {
            let mut admin = admin.clone();
            async move { admin.remove_namespace(request).await }
        },
    )
    .await;
    both(
        |name| v1::ChangeNamespaceRequest {
            name: name.into(),
            change: None,
        },
        namespaces,
        |request| {
            let mut admin = admin.clone();
            async move { admin.change_namespace(request).await }
        },
    )
    .await;
    both(
        |name| v1::GetTenantRequest { name: name.into() },
        ["blue", "none"],
        |request| {
            let mut admin = admin.clone();
            async move { admin.get_tenant(request).await }
        },
    )
    .await;
    both(
        |tenant| v1::ListKeysRequest {
            tenant: tenant.into(),
        },
        ["blue", "none"],
        |request| {
            let mut admin = admin.clone();
            async move { admin.list_keys(request).await }
        },
    )
    .await;
    both(
        |tenant| v1::CreateNamespaceRequest {
            name: "stolen".into(),
            tenant: tenant.into(),
            config: None,
        },
        ["blue", "none"],
        |request| {
            let mut admin = admin.clone();
            async move { admin.create_namespace(request).await }
        },
    )
    .await;
    assert!(door.store.namespace("blue-data").is_ok());
}

#[tokio::test]
async fn only_root_may_do_the_rest() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("red-data").await;
    let mut admin = red.admin;
    let denied = (Code::PermissionDenied, "DENIED");
    macro_rules! denied {
        ($($call:ident($request:expr)),* $(,)?) => {$(
            refused(admin.$call($request).await, denied.0, denied.1);
        )*};
    }
    let quota = Some(v1::QuotaChange {
        bytes: bound(None),
        objects: None,
    });
    denied!(
        get_server(v1::GetServerRequest {}),
        create_tenant(v1::CreateTenantRequest::default()),
        remove_tenant(v1::RemoveTenantRequest { name: "red".into() }),
        set_tenant_quota(v1::SetTenantQuotaRequest {
            name: "red".into(),
            quota,
        }),
        create_key(v1::CreateKeyRequest {
            tenant: "red".into(),
            ..Default::default()
        }),
        remove_key(v1::RemoveKeyRequest::default()),
        scrub(v1::ScrubRequest {}),
        run_lifecycle(v1::RunLifecycleRequest {}),
        change_namespace(v1::ChangeNamespaceRequest {
            name: "red-data".into(),
            change: Some(v1::NamespaceChange {
                quota,
                ..Default::default()
            }),
        }),
    );
}

#[tokio::test]
async fn a_change_happens_whole_when_its_call_is_given_up() {
    let door = Door::open().await;
    let mut root = door.root().await.admin;
    let (written, is_written) = oneshot::channel();
    let (open, gate) = oneshot::channel::<()>();
    door.beside.committed.once(async {
        let _ = written.send(());
        let _ = gate.await;
    });
    let blue = v1::CreateTenantRequest {
        name: "blue".into(),
        ..Default::default()
    };
    let mut asking = root.clone();
    let asked = blue.clone();
    let call = tokio::spawn(async move { asking.create_tenant(asked).await });
    is_written.await.unwrap();
    call.abort();
    let _ = call.await;
    // The reset came before what this asks for.
    root.get_limits(v1::GetLimitsRequest {}).await.unwrap();
    open.send(()).unwrap();
    refused(
        root.create_tenant(blue).await,
        Code::AlreadyExists,
        "EXISTS",
    );
    let name = v1::GetTenantRequest {
        name: "blue".into(),
    };
    root.get_tenant(name).await.unwrap();
}

#[tokio::test]
async fn administration_says_why_the_store_refuses() {
    let door = Door::open().await;
    let mut root = door.root().await.admin;
    for (kind, code, reason) in [
        (ErrorKind::OutcomeUnknown, Code::Unknown, "OUTCOME_UNKNOWN"),
        (ErrorKind::ReadOnly, Code::Unavailable, "READ_ONLY"),
        (ErrorKind::QuotaExceeded, Code::ResourceExhausted, "QUOTA"),
        (ErrorKind::NoSpace, Code::ResourceExhausted, "NO_SPACE"),
        (ErrorKind::Busy, Code::ResourceExhausted, "BUSY"),
        (ErrorKind::Io, Code::Internal, "IO"),
    ] {
        *door.beside.making.lock() = Some(kind);
        let made = root
            .create_namespace(v1::CreateNamespaceRequest {
                name: "data".into(),
                ..Default::default()
            })
            .await;
        refused(made, code, reason);
    }
    door.close().await;
}
