//! Sessions, regions and grants as their owner and others see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1::{self, Access};
use forebay_control::Identities;
use forebay_fabric::sessions::Limits;
use forebay_fabric::{Fabric, Link};
use forebay_store::Store;
use futures_util::stream;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::bounds::Raw;
use crate::harness::{Choice, Client, Door, START, principal, refusal, refused};
use crate::memory::Shared;

async fn open(client: &mut Client, lease_ms: u64) -> v1::OpenSessionResponse {
    let request = v1::OpenSessionRequest { lease_ms };
    client.sessions.open(request).await.unwrap().into_inner()
}

fn keep(session: &[u8]) -> v1::KeepAliveRequest {
    v1::KeepAliveRequest {
        session: session.to_vec().into(),
        lease_ms: 0,
    }
}

#[tokio::test]
async fn a_session_lives_by_its_lease() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let first = open(&mut red, 0).await;
    assert_eq!((first.session.len(), first.key.len()), (16, 32));
    assert_eq!(first.paths[0].fabric, "shm");
    let second = open(&mut red, 5_000).await;
    assert_eq!(second.lease_ms, 5_000);
    assert_ne!(first.session, second.session);
    assert_ne!(first.key, second.key);
    assert_eq!(open(&mut red, 1).await.lease_ms, 1_000);
    assert_eq!(open(&mut red, u64::MAX).await.lease_ms, 15 * 60_000);

    door.hands.forward(Duration::from_millis(4_999));
    red.sessions.keep_alive(keep(&first.session)).await.unwrap();
    door.hands.forward(Duration::from_millis(1));
    refused(
        red.sessions.keep_alive(keep(&second.session)).await,
        Code::NotFound,
        "NO_SUCH_SESSION",
    );
    door.hands
        .forward(Duration::from_millis(first.lease_ms - 2));
    red.sessions.keep_alive(keep(&first.session)).await.unwrap();
    let close = v1::CloseSessionRequest {
        session: first.session.clone(),
    };
    red.sessions.close(close.clone()).await.unwrap();
    refused(
        red.sessions.close(close).await,
        Code::NotFound,
        "NO_SUCH_SESSION",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anothers_session_is_one_that_is_not_there() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    let granted = shared.grant(&mut red, 0, 4096, Access::Write).await;
    // Another tenant, and another identity of the same one.
    for mut other in [door.tenant("blue").await, door.tenant("red").await] {
        for session in [&shared.session[..], &[7; 16], &[], &[0; 17]] {
            let session: bytes::Bytes = session.to_vec().into();
            let sessions = &mut other.sessions;
            let mut refusals = vec![
                refusal(sessions.keep_alive(keep(&session)).await),
                refusal(
                    sessions
                        .close(v1::CloseSessionRequest {
                            session: session.clone(),
                        })
                        .await,
                ),
            ];
            macro_rules! foreign {
                ($($call:ident($($request:tt)*)),* $(,)?) => {$(
                    let request = $($request)* {
                        session: session.clone(),
                        ..Default::default()
                    };
                    refusals.push(refusal(sessions.$call(request).await));
                )*};
            }
            foreign!(
                register_region(v1::RegisterRegionRequest),
                deregister_region(v1::DeregisterRegionRequest),
                grant(v1::GrantRequest),
                revoke(v1::RevokeRequest),
            );
            for (code, reason, words) in refusals {
                assert_eq!((code, reason.as_str()), (Code::NotFound, "NO_SUCH_SESSION"));
                assert_eq!(words, "there is no such session");
            }
        }
        let renew = v1::RenewRequest {
            grant: granted.grant.clone(),
            lifetime_ms: 1,
        };
        refused(
            other.sessions.renew(renew).await,
            Code::NotFound,
            "NO_SUCH_GRANT",
        );
        let namespace = format!("n-{}", door.store.namespaces().len());
        other.namespace(&namespace).await;
        let request = v1::GatherRequest {
            namespace,
            session: shared.session.clone().into(),
            ..Default::default()
        };
        refused(
            other.objects.gather(request).await,
            Code::NotFound,
            "NO_SUCH_SESSION",
        );
    }
    red.sessions
        .keep_alive(keep(&shared.session))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_and_grants_stay_within_what_was_exposed() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    let session: bytes::Bytes = shared.session.clone().into();
    let region = |request: v1::RegisterRegionRequest| v1::RegisterRegionRequest {
        session: session.clone(),
        length: 10,
        access: Access::Read.into(),
        ..request
    };
    let link = shared.accepted.id.0;
    for named in [
        v1::RegisterRegionRequest::default(),
        v1::RegisterRegionRequest {
            fabric: "shm".into(),
            ..Default::default()
        },
        v1::RegisterRegionRequest {
            link,
            ..Default::default()
        },
    ] {
        let request = region(named);
        red.sessions.register_region(request).await.unwrap();
    }
    for (named, code, reason) in [
        ("iwarp", Code::NotFound, "NO_SUCH_REGION"),
        ("ether", Code::InvalidArgument, "INVALID"),
    ] {
        let request = region(v1::RegisterRegionRequest {
            fabric: named.into(),
            ..Default::default()
        });
        refused(red.sessions.register_region(request).await, code, reason);
    }
    for wrong in [
        v1::RegisterRegionRequest {
            link: link + 1000,
            ..Default::default()
        },
        v1::RegisterRegionRequest {
            fabric: "shm".into(),
            rail: 1,
            ..Default::default()
        },
        v1::RegisterRegionRequest {
            base: u64::MAX,
            ..Default::default()
        },
    ] {
        let request = region(wrong);
        refused(
            red.sessions.register_region(request).await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
    }
    let no_access = v1::RegisterRegionRequest {
        access: 0,
        ..region(Default::default())
    };
    refused(
        red.sessions.register_region(no_access).await,
        Code::InvalidArgument,
        "INVALID",
    );

    let reads_only = red
        .sessions
        .register_region(region(Default::default()))
        .await;
    let reads_only = reads_only.unwrap().into_inner().region;
    for (region, offset, length, access) in [
        (reads_only, 0, 10, Access::Write),
        (reads_only, 0, 11, Access::Read),
        (reads_only, u64::MAX, 2, Access::Read),
        (reads_only + 1000, 0, 1, Access::Read),
    ] {
        let request = v1::GrantRequest {
            session: session.clone(),
            region,
            offset,
            length,
            access: access.into(),
            lifetime_ms: 0,
        };
        refused(
            red.sessions.grant(request).await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
    }
}

/// Whoever is told that there is no session takes that for quiet: so does a client whose first call was cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_waits_for_what_goes_on_whoever_ended_the_session() {
    #[derive(Debug)]
    enum By {
        Another,
        Lease,
        LeaseLookedAt,
    }
    for by in [By::Another, By::Lease, By::LeaseLookedAt] {
        let door = Door::open().await;
        let mut red = door.tenant("red").await;
        let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
        let Shared { session, link, .. } = &shared;
        let serving = shared.accepted.session.serve();
        let close = v1::CloseSessionRequest {
            session: session.clone().into(),
        };
        let happened = Arc::new(AtomicBool::new(false));
        let closing = || {
            let (mut sessions, close) = (red.sessions.clone(), close.clone());
            let has_happened = happened.clone();
            tokio::spawn(async move {
                sessions.close(close).await.unwrap();
                has_happened.load(SeqCst)
            })
        };
        let mut closed = Vec::new();
        match by {
            By::Another => closed.push(closing()),
            By::Lease => door.hands.forward(Duration::from_secs(15 * 60)),
            By::LeaseLookedAt => {
                door.hands.forward(Duration::from_secs(15 * 60));
                assert_eq!(door.sessions.expire(), 1);
                // It looks every second.
                assert_eq!(door.sessions.expire(), 0);
            }
        }
        if !matches!(by, By::Lease) {
            let ended = timeout(Duration::from_secs(20), link.closed()).await;
            assert_eq!(ended, Ok(forebay_fabric::CloseReason::SessionEnded));
        }
        closed.push(closing());
        // Time enough for an answer that does not wait.
        for _ in 0..20 {
            refused(
                red.sessions.keep_alive(keep(session)).await,
                Code::NotFound,
                "NO_SUCH_SESSION",
            );
        }
        // Another's is as none.
        for mut other in [door.tenant("blue").await, door.tenant("red").await] {
            refused(
                other.sessions.close(close.clone()).await,
                Code::NotFound,
                "NO_SUCH_SESSION",
            );
        }
        happened.store(true, SeqCst);
        drop(serving);
        for closed in closed {
            assert!(closed.await.unwrap(), "{by:?}");
        }
        refused(
            red.sessions.close(close).await,
            Code::NotFound,
            "NO_SUCH_SESSION",
        );
    }
}

#[tokio::test]
async fn a_session_without_a_link_registers_nothing() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let opened = open(&mut red, 0).await;
    let request = v1::RegisterRegionRequest {
        session: opened.session,
        length: 10,
        access: Access::Read.into(),
        ..Default::default()
    };
    refused(
        red.sessions.register_region(request).await,
        Code::NotFound,
        "NO_SUCH_REGION",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_takes_its_sessions_with_it() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut other = door.tenant("red").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    let stays = open(&mut other, 0).await;
    door.identities.remove_key(&red.access_key).await.unwrap();
    let reason = shared.link.closed().await;
    assert_eq!(reason, forebay_fabric::CloseReason::SessionEnded);
    assert_eq!(door.sessions.len(), 1);
    other
        .sessions
        .keep_alive(keep(&stays.session))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tenant_that_is_not_removed_keeps_its_sessions() {
    let door = Door::open().await;
    let (mut root, mut red) = (door.root().await, door.tenant("red").await);
    red.namespace("data").await;
    let opened = open(&mut red, 0).await;
    let removal = v1::RemoveTenantRequest { name: "red".into() };
    refused(
        root.admin.remove_tenant(removal).await,
        Code::FailedPrecondition,
        "NOT_EMPTY",
    );
    let kept = red.sessions.keep_alive(keep(&opened.session)).await;
    kept.unwrap();
}

/// Another gateway removes a key and makes one of the same name, which is another key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_key_takes_its_sessions_with_it() {
    for (tenant, secret) in [("red", "another-secret"), ("blue", "a-secret")] {
        let door = Door::open().await;
        for name in ["red", "blue"] {
            door.identities.create_tenant(name, "").await.unwrap();
        }
        let key = door.identities.create_key("red", Some(("KEY", "a-secret")));
        let mut red = door.client(&key.await.unwrap()).await;
        let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
        let mut other = door.tenant("red").await;
        let stays = open(&mut other, 0).await;

        let elsewhere = Identities::open(door.store.clone(), Arc::new(|| START)).await;
        let elsewhere = elsewhere.unwrap();
        elsewhere.remove_key("KEY").await.unwrap();
        let made = elsewhere.create_key(tenant, Some(("KEY", secret)));
        let key = made.await.unwrap();
        door.identities.catch_up().await.unwrap();
        let ended = timeout(Duration::from_secs(20), shared.link.closed()).await;
        assert_eq!(ended, Ok(forebay_fabric::CloseReason::SessionEnded));
        assert_eq!(door.sessions.len(), 1);
        other
            .sessions
            .keep_alive(keep(&stays.session))
            .await
            .unwrap();
        open(&mut door.client(&key).await, 0).await;
    }
}

/// Opens a session by a call whose message comes when it is told.
async fn open_later(
    channel: Channel,
    token: String,
    message: oneshot::Receiver<()>,
) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let nothing_asked = stream::once(async move {
        message.await.unwrap();
        Bytes::new()
    });
    let mut request = tonic::Request::new(nothing_asked);
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let path = PathAndQuery::from_static("/forebay.v1.Sessions/Open");
    grpc.client_streaming(request, path, Raw).await.map(drop)
}

/// A key that is replaced while its call is on the way opens nothing.
#[tokio::test]
async fn a_session_is_opened_by_a_key_that_stands() {
    for (tenant, secret) in [("red", "another-secret"), ("blue", "a-secret")] {
        let door = Door::open().await;
        for name in ["red", "blue"] {
            door.identities.create_tenant(name, "").await.unwrap();
        }
        let key = door.identities.create_key("red", Some(("KEY", "a-secret")));
        let token = door.token(&key.await.unwrap());
        let (go_on, message) = oneshot::channel();
        let opening = tokio::spawn(open_later(door.channel().await, token, message));
        while !door.metrics().contains("in_flight{kind=\"call\"} 1\n") {
            yield_now().await;
        }
        door.identities.remove_key("KEY").await.unwrap();
        let made = door.identities.create_key(tenant, Some(("KEY", secret)));
        made.await.unwrap();
        go_on.send(()).unwrap();
        let opened = opening.await.unwrap();
        refused(opened, Code::Unauthenticated, "UNAUTHENTICATED");
        assert!(door.sessions.is_empty());
    }
}

#[tokio::test]
async fn a_tenant_cannot_take_every_session() {
    let limits = Limits {
        sessions: 5,
        sessions_per_tenant: 3,
        ..Limits::default()
    };
    let door = Door::choose(Choice {
        limits,
        ..Choice::default()
    })
    .await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    let mut last = None;
    for _ in 0..3 {
        last = Some(open(&mut red, 0).await.session);
    }
    let request = v1::OpenSessionRequest::default();
    let busy = (Code::ResourceExhausted, "BUSY");
    refused(red.sessions.open(request).await, busy.0, busy.1);
    open(&mut blue, 0).await;
    open(&mut blue, 0).await;
    refused(blue.sessions.open(request).await, busy.0, busy.1);
    let close = v1::CloseSessionRequest {
        session: last.unwrap(),
    };
    red.sessions.close(close).await.unwrap();
    open(&mut blue, 0).await;
}

#[tokio::test]
async fn ten_thousand_idle_sessions() {
    const SESSIONS: usize = 10_000;
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let lease = Duration::from_secs(60);
    let key = door.identities.find(&red.access_key).unwrap();
    let principal = principal(&key);
    let opened = (0..SESSIONS).map(|_| {
        let session = door.sessions.open_with_random_key(principal, lease);
        session.unwrap().id().0
    });
    let opened: Vec<_> = opened.collect();
    assert_eq!(door.sessions.len(), SESSIONS);

    door.hands.forward(Duration::from_secs(40));
    let kept: Vec<_> = opened.iter().step_by(997).collect();
    for session in &kept {
        red.sessions.keep_alive(keep(&session[..])).await.unwrap();
    }
    door.hands.forward(Duration::from_secs(20));
    assert_eq!(door.sessions.expire(), SESSIONS - kept.len());
    for session in &kept {
        red.sessions.keep_alive(keep(&session[..])).await.unwrap();
    }
    door.hands.forward(Duration::from_secs(30));
    assert_eq!(door.sessions.expire(), kept.len());
    assert!(door.sessions.is_empty());
}
