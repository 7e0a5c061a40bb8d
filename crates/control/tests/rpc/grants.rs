//! What clients lend, as administrators see it and take it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use forebay_api::v1::place::Memory;
use forebay_api::v1::{self, Access, GrantKind};
use forebay_fabric::{CloseReason, Connection, Fabric, Link};
use tokio::time::timeout;
use tonic::Code;

use crate::harness::{Client, Door, START, principal, refusal, refused};
use crate::memory::{FABRICS, Shared, noise, place, retrieve};
use crate::objects::stored;

async fn listed(client: &mut Client, tenant: &str) -> Vec<v1::StandingGrant> {
    let request = v1::ListGrantsRequest {
        tenant: tenant.into(),
        ..Default::default()
    };
    let page = client.admin.list_grants(request).await.unwrap();
    let page = page.into_inner();
    assert_eq!(page.next_page_token, "");
    page.grants
}

fn removed(id: impl Into<String>) -> v1::RemoveGrantRequest {
    v1::RemoveGrantRequest { id: id.into() }
}

/// Why a link has ended, which it does soon.
async fn ended(link: &Connection) -> CloseReason {
    let closed = timeout(Duration::from_secs(30), link.closed()).await;
    closed.expect("the link ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lent_is_listed() {
    for fabric in FABRICS {
        let door = Door::open().await;
        let (mut root, mut red) = (door.root().await, door.tenant("red").await);
        let shared = Shared::open(&door, &mut red, fabric, 4096).await;
        door.hands.forward(Duration::from_secs(5));
        let granted = shared.grant(&mut red, 96, 2000, Access::Write).await;
        let [session, region, grant] = listed(&mut root, "").await.try_into().unwrap();
        let id: String = shared
            .session
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(session.id, id);
        assert_eq!(region.id, format!("{id}-{}", shared.region));
        assert_eq!(grant.id, format!("{id}-{}", granted.id));
        for (line, kind) in [
            (&session, GrantKind::Session),
            (&region, GrantKind::Region),
            (&grant, GrantKind::Grant),
        ] {
            assert_eq!(line.kind(), kind);
            assert_eq!((&*line.tenant, &line.access_key), ("red", &red.access_key));
            assert_eq!(line.fabrics, [fabric.name()]);
        }
        let memory = |offset, length, access: Access| {
            Some(v1::GrantedMemory {
                region: shared.region,
                offset,
                length,
                access: access.into(),
            })
        };
        assert_eq!(session.memory, None);
        assert_eq!(region.memory, memory(0, 4096, Access::ReadWrite));
        assert_eq!(grant.memory, memory(96, 2000, Access::Write));
        let times = |line: &v1::StandingGrant| (line.since_ms, line.until_ms);
        assert_eq!(times(&session), (START, Some(START + 600_000)));
        assert_eq!(times(&region), (START, None));
        assert_eq!(times(&grant), (START + 5_000, Some(granted.expires_ms)));

        // Another identity of the tenant sees the same, and another tenant nothing.
        let mut colleague = door.tenant("red").await;
        assert_eq!(listed(&mut colleague, "").await, [session, region, grant]);
        let mut blue = door.tenant("blue").await;
        assert_eq!(listed(&mut blue, "").await, []);
        assert_eq!(listed(&mut root, "blue").await, []);
        assert_eq!(listed(&mut root, "red").await.len(), 3);

        // What has expired is not lent any more.
        door.hands.forward(Duration::from_secs(60));
        assert_eq!(listed(&mut red, "").await.len(), 2);
        door.hands.forward(Duration::from_secs(600));
        assert_eq!(listed(&mut red, "").await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_back_reaches_nothing() {
    for fabric in FABRICS {
        let door = Door::open().await;
        let mut red = door.tenant("red").await;
        red.namespace("data").await;
        stored(&door.store, "data", b"value", &noise(1000)).await;
        let shared = Shared::open(&door, &mut red, fabric, 4096).await;
        let granted = shared.grant(&mut red, 0, 4096, Access::Write).await;
        let [session, region, grant] = listed(&mut red, "").await.try_into().unwrap();
        // Another key of the tenant administers it, and has no session of its own.
        let mut colleague = door.tenant("red").await;
        let by_grant = |grant: &[u8]| {
            let memory = Memory::Grant(grant.to_vec().into());
            retrieve(&[], "value", place(memory, 0, 1000))
        };
        colleague
            .objects
            .retrieve(by_grant(&granted.grant))
            .await
            .unwrap();
        let renew = v1::RenewRequest {
            grant: granted.grant.clone(),
            lifetime_ms: 0,
        };
        let renewed = red
            .sessions
            .renew(renew.clone())
            .await
            .unwrap()
            .into_inner();
        colleague
            .admin
            .remove_grant(removed(&grant.id))
            .await
            .unwrap();
        let gone = (Code::NotFound, "NO_SUCH_GRANT");
        for text in [&granted.grant, &renewed.grant, &grant.id.clone().into()] {
            let answer = colleague.objects.retrieve(by_grant(text)).await;
            refused(answer, gone.0, gone.1);
        }
        refused(red.sessions.renew(renew).await, gone.0, gone.1);

        let by_region = retrieve(&shared.session, "value", shared.place(0, 1000));
        red.objects.retrieve(by_region.clone()).await.unwrap();
        let granted = shared.grant(&mut red, 0, 4096, Access::Write).await;
        colleague
            .admin
            .remove_grant(removed(&region.id))
            .await
            .unwrap();
        refused(
            red.objects.retrieve(by_region).await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
        let answer = colleague.objects.retrieve(by_grant(&granted.grant)).await;
        refused(answer, gone.0, gone.1);

        colleague
            .admin
            .remove_grant(removed(&session.id))
            .await
            .unwrap();
        assert_eq!(ended(&shared.link).await, CloseReason::SessionEnded);
        let request = v1::KeepAliveRequest {
            session: shared.session.clone().into(),
            lease_ms: 0,
        };
        refused(
            red.sessions.keep_alive(request).await,
            Code::NotFound,
            "NO_SUCH_SESSION",
        );
        for id in [&session.id, &region.id, &grant.id] {
            let again = colleague.admin.remove_grant(removed(id)).await;
            refused(again, Code::NotFound, "NOT_FOUND");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anothers_is_one_that_is_not_there() {
    let door = Door::open().await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    shared.grant(&mut red, 0, 4096, Access::Write).await;
    let mine = listed(&mut red, "").await;
    let ids = mine.iter().map(|line| line.id.clone());
    let session = mine[0].id.clone();
    let others = [
        "0".repeat(32),
        format!("{session}-99"),
        format!("{session}-+2"),
        format!("{session}-02"),
        format!("{session}-0"),
        format!("{session}-{}", u64::MAX),
        format!("{session}-18446744073709551616"),
        format!("{session}--1"),
        format!("{session}-"),
        session.to_uppercase(),
        format!("{session}0"),
        String::new(),
        "-".to_owned(),
        "\u{e4}\u{0}".to_owned(),
        "f".repeat(60_000),
    ];
    // One's own in another spelling is not there, either.
    for (asking, ids) in [
        (&mut blue, ids.chain(others.clone()).collect::<Vec<_>>()),
        (&mut red, others.to_vec()),
    ] {
        for id in ids {
            let (code, reason, words) = refusal(asking.admin.remove_grant(removed(&id)).await);
            assert_eq!((code, &*reason), (Code::NotFound, "NOT_FOUND"), "{id}");
            let expected = "there is no such session, region or grant on this server";
            assert_eq!(words, expected);
        }
    }
    for tenant in ["red", "nobody"] {
        let listing = v1::ListGrantsRequest {
            tenant: tenant.into(),
            ..Default::default()
        };
        let removal = v1::RemoveGrantsRequest {
            tenant: tenant.into(),
        };
        for (code, reason, words) in [
            refusal(blue.admin.list_grants(listing).await),
            refusal(blue.admin.remove_grants(removal).await),
        ] {
            assert_eq!((code, &*reason), (Code::NotFound, "NOT_FOUND"));
            assert_eq!(words, format!("there is no tenant {tenant:?}"));
        }
    }
    let nobodys = v1::RemoveGrantsRequest::default();
    let refusal = blue.admin.remove_grants(nobodys).await;
    refused(refusal, Code::NotFound, "NOT_FOUND");
    assert_eq!(listed(&mut red, "").await, mine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_sessions_end_together() {
    let door = Door::open().await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    let mut colleague = door.tenant("red").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    let second = Shared::open(&door, &mut colleague, Fabric::Iwarp, 4096).await;
    Shared::open(&door, &mut blue, Fabric::Shm, 4096).await;
    let request = v1::RemoveGrantsRequest {
        tenant: "red".into(),
    };
    let removed = red.admin.remove_grants(request.clone()).await.unwrap();
    assert_eq!(removed.into_inner().sessions, 2);
    for link in [&shared.link, &second.link] {
        assert_eq!(ended(link).await, CloseReason::SessionEnded);
    }
    assert_eq!(listed(&mut red, "").await, []);
    assert_eq!(listed(&mut blue, "").await.len(), 2);
    let removed = red.admin.remove_grants(request).await.unwrap();
    assert_eq!(removed.into_inner().sessions, 0);
}

/// As `Sessions.Close` answers, also when somebody else has ended it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_taken_back_has_ended_when_that_is_answered() {
    for (all, ended_before) in [(false, false), (false, true), (true, false), (true, true)] {
        let door = Door::open().await;
        let (root, mut red) = (door.root().await, door.tenant("red").await);
        let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
        let session = shared.accepted.session.clone();
        let serving = session.serve();
        let id = session.id().to_string();
        if ended_before {
            assert!(door.sessions.close(session.id()));
        }
        let happened = Arc::new(AtomicBool::new(false));
        let (mut admin, has_happened) = (root.admin.clone(), happened.clone());
        let removal = tokio::spawn(async move {
            match all {
                false => drop(admin.remove_grant(removed(id)).await.unwrap()),
                true => {
                    let tenant = "red".into();
                    let request = v1::RemoveGrantsRequest { tenant };
                    drop(admin.remove_grants(request).await.unwrap());
                }
            }
            has_happened.load(SeqCst)
        });
        assert_eq!(ended(&shared.link).await, CloseReason::SessionEnded);
        // Time enough for an answer that does not wait.
        for _ in 0..20 {
            assert_eq!(listed(&mut red, "").await, []);
        }
        happened.store(true, SeqCst);
        drop(serving);
        assert!(removal.await.unwrap(), "{all} {ended_before}");
    }
}

/// A session that ends while a page is made takes no others from the list, whenever that is.
#[tokio::test]
async fn a_session_that_ends_meanwhile_ends_no_list() {
    const LEASE: Duration = Duration::from_secs(60);
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let key = door.identities.find(&red.access_key).unwrap();
    let principal = principal(&key);
    for looks in 0..10 {
        let opened = (0..3).map(|_| {
            let opened = door.sessions.open_with_random_key(principal, LEASE);
            opened.unwrap().id()
        });
        let mut opened: Vec<_> = opened.collect();
        opened.sort_unstable();
        let [first, second, third] = opened.try_into().unwrap();
        door.sessions.renew(second, LEASE / 2);
        door.hands.forward_after(looks, LEASE / 2);
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListGrantsRequest {
                page_token: token,
                limit: 1,
                ..Default::default()
            };
            let page = red.admin.list_grants(request).await.unwrap();
            let page = page.into_inner();
            found.extend(page.grants.into_iter().map(|line| line.id));
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        for id in [first, third] {
            assert!(found.contains(&id.to_string()), "{looks}");
        }
        for id in [first, second, third] {
            door.sessions.close(id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_comes_in_pages() {
    let door = Door::open().await;
    let (mut root, mut red) = (door.root().await, door.tenant("red").await);
    for fabric in FABRICS {
        let shared = Shared::open(&door, &mut red, fabric, 4096).await;
        for _ in 0..3 {
            shared.grant(&mut red, 0, 4096, Access::Write).await;
        }
    }
    let all = listed(&mut red, "").await;
    assert_eq!(all.len(), 2 * (1 + 1 + 3));
    let next = |page_token: &str, limit| v1::ListGrantsRequest {
        page_token: page_token.into(),
        limit,
        ..Default::default()
    };
    for limit in 1..12 {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = red.admin.list_grants(next(&token, limit)).await;
            let page = page.unwrap().into_inner();
            assert!(page.grants.len() <= limit as usize);
            found.extend(page.grants);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, all, "{limit} a page");
    }
    for token in ["x", "0", &format!("{}-x", all[0].id), &"0".repeat(33)] {
        let answer = red.admin.list_grants(next(token, 0)).await;
        refused(answer, Code::InvalidArgument, "INVALID");
    }
    // Anybody's id is a place to go on from, and shows nothing that is not one's own.
    let mut blue = door.tenant("blue").await;
    let page = blue.admin.list_grants(next(&all[1].id, 0)).await;
    assert_eq!(page.unwrap().into_inner(), Default::default());

    // No page is longer than the bound, whatever is asked.
    let key = door.identities.find(&blue.access_key).unwrap();
    let principal = principal(&key);
    for _ in 0..1100 {
        let opened = door
            .sessions
            .open_with_random_key(principal, Duration::from_secs(60));
        opened.unwrap();
    }
    for limit in [0, u32::MAX] {
        let page = blue.admin.list_grants(next("", limit)).await.unwrap();
        let page = page.into_inner();
        assert_eq!(page.grants.len(), 1000);
        let rest = blue
            .admin
            .list_grants(next(&page.next_page_token, limit))
            .await;
        assert_eq!(rest.unwrap().into_inner().grants.len(), 100);
    }
    let page = root.admin.list_grants(next("", 0)).await.unwrap();
    assert_eq!(page.into_inner().grants.len(), 1000);
}
