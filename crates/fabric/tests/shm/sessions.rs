//! Sessions, leases and grants: against a model, and against everybody who should not get in.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use forebay_fabric::sessions::{
    Grant, Limits, LinkId, PROOF_BYTES, Principal, Refused, Registered, RegisteredId, proof,
};
use forebay_fabric::{
    Access, CloseReason, ErrorKind, Link, Session, SessionId, Sessions, Stag, UnixMillis, shm,
};
use forebay_io::sim::SimClock;
use forebay_mem::Region;
use proptest::prelude::*;

use crate::{ends, run};

const LEASE: Duration = Duration::from_secs(30);
const NOW: UnixMillis = 1_800_000_000_000;

fn world(limits: Limits) -> (Sessions, SimClock) {
    let clock = SimClock::new(NOW);
    (Sessions::new(Arc::new(clock.clone()), limits), clock)
}

fn open(sessions: &Sessions, tenant: &str) -> Arc<Session> {
    sessions
        .open_with_random_key(ends::key_of(tenant), LEASE)
        .unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Open { tenant: usize, lease_s: u64 },
    Renew { which: usize, lease_s: u64 },
    Close { which: usize },
    Advance { ms: u64 },
    Expire,
    Find { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 1u64..100).prop_map(|(tenant, lease_s)| Step::Open { tenant, lease_s }),
        3 => (0usize..20, 1u64..100).prop_map(|(which, lease_s)| Step::Renew { which, lease_s }),
        1 => (0usize..20).prop_map(|which| Step::Close { which }),
        3 => (1u64..30_000).prop_map(|ms| Step::Advance { ms }),
        1 => Just(Step::Expire),
        4 => (0usize..20).prop_map(|which| Step::Find { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn against_a_model(steps in prop::collection::vec(step(), 1..80)) {
        let limits = Limits {
            sessions: 8,
            sessions_per_tenant: 4,
            lease: Duration::from_secs(60),
            ..Limits::default()
        };
        let (sessions, clock) = world(limits);
        let (mut now, mut ids) = (0u64, Vec::new());
        // Those that count against the bounds: tenant and end of the lease. Run out, they count until they are looked at.
        let mut model: HashMap<SessionId, (usize, u64)> = HashMap::new();
        let tenants = ["alpha", "beta", "gamma"];
        for step in steps {
            match step {
                Step::Open { tenant, lease_s } => {
                    let own = model.values().filter(|(of, _)| *of == tenant).count();
                    let expected = if model.len() >= 8 {
                        Err(Refused::Sessions)
                    } else if own >= 4 {
                        Err(Refused::TenantSessions)
                    } else {
                        Ok(())
                    };
                    let lease = Duration::from_secs(lease_s);
                    let opened = sessions.open_with_random_key(ends::key_of(tenants[tenant]), lease);
                    prop_assert_eq!(opened.as_ref().map(drop).map_err(|refused| *refused), expected);
                    if let Ok(session) = opened {
                        ids.push(session.id());
                        model.insert(session.id(), (tenant, now + lease_s.min(60) * 1000));
                    }
                }
                Step::Renew { which, lease_s } => {
                    let Some(id) = ids.get(which) else { continue };
                    let open = model.get(id).is_some_and(|(_, end)| *end > now);
                    prop_assert_eq!(sessions.renew(*id, Duration::from_secs(lease_s)), open);
                    if open {
                        model.get_mut(id).unwrap().1 = now + lease_s.min(60) * 1000;
                    } else {
                        model.remove(id);
                    }
                }
                Step::Close { which } => {
                    let Some(id) = ids.get(which) else { continue };
                    prop_assert_eq!(sessions.close(*id), model.remove(id).is_some());
                }
                Step::Advance { ms } => {
                    clock.advance(Duration::from_millis(ms));
                    now += ms;
                }
                Step::Expire => {
                    let before = model.len();
                    model.retain(|_, (_, end)| *end > now);
                    prop_assert_eq!(sessions.expire(), before - model.len());
                }
                Step::Find { which } => {
                    let Some(id) = ids.get(which) else { continue };
                    let open = model.get(id).is_some_and(|(_, end)| *end > now);
                    let found = sessions.find(*id);
                    prop_assert_eq!(found.is_some(), open);
                    match found {
                        Some(session) => {
                            prop_assert_eq!(session.tenant(), tenants[model[id].0]);
                            let left = session.lease_left().unwrap();
                            prop_assert_eq!(left, Duration::from_millis(model[id].1 - now));
                        }
                        None => drop(model.remove(id)),
                    }
                }
            }
            prop_assert_eq!(sessions.len(), model.len());
        }
    }

    #[test]
    fn no_other_bytes_are_a_proof(at in 0..PROOF_BYTES, flip in 1u8..) {
        let (sessions, _) = world(Limits::default());
        let session = open(&sessions, "alpha");
        let mut proof = session.proof();
        prop_assert_eq!(sessions.admit(&proof).unwrap().id(), session.id());
        proof[at] ^= flip;
        prop_assert!(sessions.admit(&proof).is_none());
    }
}

#[test]
fn a_proof_is_of_one_session_and_lives_as_long() {
    let (sessions, clock) = world(Limits::default());
    let (one, other) = (open(&sessions, "alpha"), open(&sessions, "alpha"));
    assert!(sessions.admit(&proof(one.id(), other.key())).is_none());
    let nobody = SessionId([7; 16]);
    assert!(sessions.admit(&proof(nobody, one.key())).is_none());
    assert!(sessions.admit(&proof(nobody, &[0; 32])).is_none());
    assert!(sessions.admit(&[0; PROOF_BYTES]).is_none());
    clock.advance(LEASE - Duration::from_millis(1));
    assert!(sessions.admit(&one.proof()).is_some());
    clock.advance(Duration::from_millis(1));
    assert!(sessions.admit(&one.proof()).is_none());
}

/// docs/token.md section 7.3 with the key and session of the vector in 7.2.
#[test]
fn the_proof_of_a_known_key() {
    let key: Vec<u8> = (0..32)
        .map(|at| {
            let hex = "3cf3bbcf4804abbe466a9d07bd12461a60ea1fffa37afe3fe587d351a75fa24d";
            u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()
        })
        .collect();
    let id = SessionId::from_hex("000102030405060708090a0b0c0d0e0f").unwrap();
    let made = proof(id, key.as_slice().try_into().unwrap());
    assert_eq!(made[..4], *b"ort1");
    assert_eq!(made[4..20], id.0);
    let tag = u128::from_be_bytes(made[20..].try_into().unwrap());
    assert_eq!(tag, 0x7de9_5bd4_bc03_1356_4538_93b6_236a_7e68);
    assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
    for wrong in [
        "",
        "00",
        "000102030405060708090a0b0c0d0e0",
        "+00102030405060708090a0b0c0d0e0f",
    ] {
        assert_eq!(SessionId::from_hex(wrong), None);
    }
    assert_eq!(
        SessionId::from_hex("00010203040506070809+a+b+c+d+e+f"),
        None
    );
}

#[test]
fn another_tenants_session_is_none() {
    let (sessions, _) = world(Limits::default());
    let session = open(&sessions, "alpha");
    assert!(sessions.find_of(session.id(), "alpha", "key").is_some());
    assert!(sessions.find_of(session.id(), "beta", "key").is_none());
    assert!(sessions.find_of(session.id(), "alpha", "other").is_none());
    assert!(
        sessions
            .find_of(SessionId([0; 16]), "alpha", "key")
            .is_none()
    );
}

#[test]
fn a_session_is_of_the_key_that_opened_it() {
    let (sessions, _) = world(Limits::default());
    let session = open(&sessions, "alpha");
    let key = ends::key_of("alpha");
    assert!(session.is_of(key));
    for other in [
        ends::key_of("beta"),
        Principal { id: "other", ..key },
        Principal {
            secret: "other",
            ..key
        },
    ] {
        assert!(!session.is_of(other), "{other:?}");
    }
    assert!(!format!("{key:?}").contains("secret"));
}

#[test]
fn the_key_may_depend_on_the_id_and_is_never_shown() {
    let (sessions, _) = world(Limits::default());
    let session = sessions
        .open(ends::key_of("alpha"), LEASE, |id| {
            let mut key = [9; 32];
            key[..16].copy_from_slice(&id.0);
            key
        })
        .unwrap();
    assert_eq!(session.key()[..16], session.id().0);
    assert!(!format!("{session:?} {sessions:?}").contains("9, 9"));
}

#[test]
fn ten_thousand_idle_sessions_are_cheap() {
    let resident_kib = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
    };
    let (sessions, _) = world(Limits::default());
    open(&sessions, "alpha");
    let before = resident_kib();
    let kept: Vec<SessionId> = (0..10_000).map(|_| open(&sessions, "alpha").id()).collect();
    let each = (resident_kib() - before) * 1024 / 10_000;
    assert!(each < 1024, "{each} bytes each");
    assert_eq!(sessions.expire(), 0);
    assert!(kept.iter().all(|id| sessions.find(*id).is_some()));
}

/// What has ended is known as long as something of it goes on, and no longer.
#[test]
fn an_ended_session_is_known_until_it_is_quiet() {
    run(async {
        let (sessions, clock) = world(Limits::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut occupied = pin!(sessions.occupied());
        assert!(occupied.as_mut().poll(&mut cx).is_pending());
        let (closed, run_out) = (open(&sessions, "alpha"), open(&sessions, "alpha"));
        let served = [closed.serve(), run_out.serve()];
        let idle = open(&sessions, "alpha");
        occupied.await;
        assert!(sessions.close(closed.id()) && sessions.close(idle.id()));
        clock.advance(LEASE);
        assert_eq!(sessions.expire(), 1);
        assert!(sessions.is_empty());
        for session in [&closed, &run_out] {
            let id = session.id();
            let principal = session.principal();
            assert!(sessions.find(id).is_none());
            assert!(sessions.ending(id).is_some());
            assert!(sessions.ending_of(id, "alpha", principal).is_some());
            assert!(sessions.ending_of(id, "beta", principal).is_none());
            assert!(sessions.ending_of(id, "alpha", "another").is_none());
        }
        assert!(sessions.ending(idle.id()).is_none());
        assert_eq!(sessions.all_ending("alpha").len(), 2);
        assert_eq!(sessions.all_ending("beta").len(), 0);
        sessions.occupied().await;

        drop(served);
        assert!(sessions.ending(closed.id()).is_none());
        assert_eq!(sessions.all_ending("alpha").len(), 0);
        drop((closed, run_out));
        assert_eq!(sessions.expire(), 0);
        assert!(pin!(sessions.occupied()).poll(&mut cx).is_pending());
    });
}

#[test]
fn a_tenant_leaves_links_to_others() {
    run(async {
        let (sessions, _) = world(Limits {
            links_in_all: 4,
            ..Limits::default()
        });
        let (red, blue) = (open(&sessions, "alpha"), open(&sessions, "beta"));
        let (first, _one) = ends::joined(&sessions, &red).await;
        let (second, _two) = ends::joined(&sessions, &red).await;
        // Whichever session of its own it is for.
        for session in [&red, &open(&sessions, "alpha")] {
            let more = session.attach(second.link.clone());
            assert_eq!(more.unwrap_err(), Refused::TenantLinks);
        }
        let (third, _three) = ends::joined(&sessions, &blue).await;
        let more = blue.attach(third.link.clone());
        assert_eq!(more.unwrap_err(), Refused::TenantLinks);
        // Those that end give theirs back, once.
        red.detach(first.id);
        red.detach(first.id);
        sessions.close(red.id());
        sessions.close(blue.id());
        let red = open(&sessions, "alpha");
        let (_, _one) = ends::joined(&sessions, &red).await;
        let (second, _two) = ends::joined(&sessions, &red).await;
        let more = red.attach(second.link.clone());
        assert_eq!(more.unwrap_err(), Refused::TenantLinks);
    });
}

/// A session with one link and one region of 1000 bytes.
struct Lender {
    sessions: Sessions,
    clock: SimClock,
    session: Arc<Session>,
    link: LinkId,
    region: RegisteredId,
    client: forebay_fabric::shm::ShmLink,
}

async fn lender(limits: Limits) -> Lender {
    let (sessions, clock) = world(limits);
    let session = open(&sessions, "alpha");
    let (accepted, client) = ends::joined(&sessions, &session).await;
    let region = Registered {
        link: accepted.id,
        stag: Stag(5),
        base: 100,
        len: 1000,
        access: Access::Write,
    };
    let region = session.register(region).unwrap();
    Lender {
        link: accepted.id,
        sessions,
        clock,
        session,
        region,
        client,
    }
}

impl Lender {
    fn lend(&self) -> Grant {
        let lifetime = Duration::from_secs(10);
        self.session
            .grant(self.region, 10, 20, Access::Write, lifetime)
            .unwrap()
    }

    fn holds(&self, grant: &Grant) -> bool {
        self.sessions
            .verify(grant, "alpha", Access::Write)
            .is_some()
    }
}

#[test]
fn a_grant_reaches_what_it_says_until_it_ends() {
    run(async {
        let lender = lender(Limits::default()).await;
        let grant = lender.lend();
        let granted = lender
            .sessions
            .verify(&grant, "alpha", Access::Write)
            .unwrap();
        assert_eq!(granted.link_id, lender.link);
        let range = granted.range;
        assert_eq!((range.stag, range.offset, range.len), (Stag(5), 110, 20));

        assert!(
            lender
                .sessions
                .verify(&grant, "alpha", Access::Read)
                .is_none()
        );
        assert!(
            lender
                .sessions
                .verify(&grant, "alpha", Access::ReadWrite)
                .is_none()
        );
        assert!(
            lender
                .sessions
                .verify(&grant, "beta", Access::Write)
                .is_none()
        );

        lender.clock.advance(Duration::from_secs(9));
        let renewed = lender
            .session
            .renew_grant(&grant, Duration::from_secs(10))
            .unwrap();
        lender.clock.advance(Duration::from_secs(1));
        assert!(!lender.holds(&grant), "its own moment has come");
        assert!(
            lender
                .session
                .renew_grant(&grant, Duration::from_secs(10))
                .is_none()
        );
        assert!(lender.holds(&renewed));
        lender.clock.advance(Duration::from_secs(9));
        assert!(!lender.holds(&renewed));
    });
}

#[test]
fn a_grant_ends_with_what_it_is_of() {
    run(async {
        let lender = lender(Limits::default()).await;
        let grant = lender.lend();
        assert!(lender.session.revoke(grant.id));
        assert!(!lender.session.revoke(grant.id));
        assert!(!lender.holds(&grant));

        let grant = lender.lend();
        let renewed = lender.session.renew_grant(&grant, LEASE).unwrap();
        assert!(lender.session.revoke(grant.id));
        assert!(!lender.holds(&grant) && !lender.holds(&renewed));

        let grant = lender.lend();
        assert!(lender.session.deregister(lender.region));
        assert!(!lender.session.deregister(lender.region));
        assert!(!lender.holds(&grant));
        assert_eq!(lender.session.counts(), (1, 0, 0));
    });
}

#[test]
fn what_is_lent_is_told_by_name_while_it_holds() {
    run(async {
        let lender = lender(Limits::default()).await;
        let session = &lender.session;
        assert_eq!(
            session.until(),
            Some(session.since() + LEASE.as_millis() as u64)
        );
        let first = lender.lend();
        let region = session.region(lender.region).unwrap();
        let second = session.register(region).unwrap();
        lender.clock.advance(Duration::from_secs(9));
        let last = lender.lend();
        let names = |after, limit| -> Vec<u64> {
            let lent = session.lent(after, limit);
            lent.iter().map(|lent| lent.name).collect()
        };
        let all = [lender.region.0, first.id, second.0, last.id];
        assert_eq!(names(0, 10), all);
        for at in 0..all.len() {
            assert_eq!(names(all[at], 10), all[at + 1..]);
            assert_eq!(names(0, at), all[..at]);
        }
        assert!(names(u64::MAX, 10).is_empty());
        let told = session.lent(second.0, 1);
        assert_eq!(told[0].since, session.since() + 9_000);
        assert_eq!(told[0].until, Some(last.expires));
        assert_eq!((told[0].offset, told[0].len), (last.offset, last.len));
        assert_eq!((told[0].region, told[0].access), (last.region, last.access));
        let renewed = session.renew_grant(&last, Duration::from_secs(30)).unwrap();
        assert_eq!(session.lent(second.0, 1)[0].until, Some(renewed.expires));

        lender.clock.advance(Duration::from_secs(1));
        assert_eq!(names(0, 10), [lender.region.0, second.0, last.id]);
        assert!(session.take_back(last.id) && !session.take_back(last.id));
        assert!(session.take_back(second.0) && !session.take_back(second.0));
        assert!(!session.take_back(lender.link.0), "a link is not lent");
        session.detach(lender.link);
        assert!(names(0, 10).is_empty());
    });
}

#[test]
fn sessions_are_told_by_name_and_tenant() {
    let (sessions, clock) = world(Limits::default());
    let mut own: Vec<SessionId> = (0..5).map(|_| open(&sessions, "alpha").id()).collect();
    let mut all = own.clone();
    all.extend((0..3).map(|_| open(&sessions, "beta").id()));
    own.sort_unstable();
    all.sort_unstable();
    let first = SessionId([0; 16]);
    let listed = |tenant, from, limit| -> Vec<SessionId> {
        let found = sessions.listed(tenant, from, limit);
        found.iter().map(|session| session.id()).collect()
    };
    for (tenant, expected) in [(None, &all), (Some("alpha"), &own)] {
        assert_eq!(listed(tenant, first, 100), *expected);
        for at in 0..expected.len() {
            assert_eq!(listed(tenant, expected[at], 100), expected[at..]);
            assert_eq!(listed(tenant, first, at), expected[..at]);
        }
    }
    assert!(listed(Some("gamma"), first, 100).is_empty());
    sessions.close(own[0]);
    assert_eq!(listed(Some("alpha"), first, 100), own[1..]);
    // Not looked at yet, and ended all the same.
    clock.advance(LEASE);
    assert!(listed(None, first, 100).is_empty() && listed(Some("beta"), first, 100).is_empty());
}

#[test]
fn detaching_takes_regions_and_grants_along() {
    run(async {
        let lender = lender(Limits::default()).await;
        let grant = lender.lend();
        lender.session.detach(lender.link);
        assert!(!lender.holds(&grant));
        assert_eq!(lender.session.counts(), (0, 0, 0));
        assert_eq!(lender.client.closed().await, CloseReason::Done);
        let late = Registered {
            link: lender.link,
            stag: Stag(0),
            base: 0,
            len: 1,
            access: Access::Read,
        };
        assert_eq!(lender.session.register(late), Err(Refused::Ended));
    });
}

#[test]
fn only_what_a_region_has_is_granted() {
    run(async {
        let lender = lender(Limits::default()).await;
        let ask = |offset, len, access| {
            let granted = lender
                .session
                .grant(lender.region, offset, len, access, LEASE);
            granted.map(drop)
        };
        assert_eq!(ask(0, 1000, Access::Write), Ok(()));
        assert_eq!(ask(1000, 0, Access::Write), Ok(()));
        for (offset, len, access) in [
            (0, 1001, Access::Write),
            (1, 1000, Access::Write),
            (u64::MAX, 1, Access::Write),
            (1, u64::MAX, Access::Write),
            (0, 1, Access::Read),
            (0, 1, Access::ReadWrite),
        ] {
            assert_eq!(ask(offset, len, access), Err(Refused::Range));
        }
        let unknown = RegisteredId(999);
        let granted = lender.session.grant(unknown, 0, 1, Access::Write, LEASE);
        assert_eq!(granted.unwrap_err(), Refused::Unknown);
        let around = Registered {
            link: lender.link,
            stag: Stag(0),
            base: u64::MAX,
            len: 1,
            access: Access::Read,
        };
        assert_eq!(lender.session.register(around), Err(Refused::Range));
    });
}

#[test]
fn a_changed_grant_is_none() {
    run(async {
        let lender = lender(Limits::default()).await;
        let other = open(&lender.sessions, "alpha");
        let grant = lender.lend();
        let changed = |change: fn(&mut Grant)| {
            let mut grant = grant;
            change(&mut grant);
            grant
        };
        let mut forged = vec![
            changed(|grant| grant.id += 1),
            changed(|grant| grant.region.0 += 1),
            changed(|grant| grant.offset = 0),
            changed(|grant| grant.len += 1),
            changed(|grant| grant.access = Access::ReadWrite),
            changed(|grant| grant.expires += 1),
            changed(|grant| grant.mac = [0; 16]),
            Grant {
                session: other.id(),
                ..grant
            },
        ];
        for at in 0..16 {
            for bit in 0..8 {
                let mut grant = grant;
                grant.mac[at] ^= 1 << bit;
                forged.push(grant);
            }
        }
        for forged in forged {
            assert!(!lender.holds(&forged), "{forged:?}");
            assert!(other.verify(&forged, Access::Write).is_none());
        }
        assert!(lender.holds(&grant));
    });
}

#[test]
fn bounds_hold_and_what_ended_makes_room() {
    run(async {
        let lender = lender(Limits {
            links: 2,
            regions: 3,
            grants: 4,
            ..Limits::default()
        })
        .await;
        let Lender {
            sessions, session, ..
        } = &lender;
        let (second, _client) = ends::joined(sessions, session).await;
        let (here, there) = tokio::net::UnixStream::pair().unwrap();
        let proof = session.proof();
        let (third, refused) = tokio::join!(
            forebay_fabric::shm::accept(here, sessions),
            forebay_fabric::shm::connect(there, &proof)
        );
        assert_eq!(third.unwrap_err().kind, ErrorKind::Closed);
        let refused = refused.unwrap_err();
        let told = "the peer ended the link: more links than a session may have";
        assert_eq!((refused.kind, &*refused.message), (ErrorKind::Closed, told));
        session.detach(second.id);
        let (_second, _client) = ends::joined(sessions, session).await;

        let region = session.region(lender.region).unwrap();
        session.register(region).unwrap();
        let last = session.register(region).unwrap();
        assert_eq!(session.register(region), Err(Refused::Regions));
        session.deregister(last);
        session.register(region).unwrap();

        let first = lender.lend();
        for _ in 0..3 {
            lender.lend();
        }
        let full = session.grant(lender.region, 0, 1, Access::Write, LEASE);
        assert_eq!(full.unwrap_err(), Refused::Grants);
        session.revoke(first.id);
        lender.lend();
        lender.clock.advance(Duration::from_secs(10));
        lender.lend();
        assert_eq!(session.counts().2, 1, "ended grants made room");
    });
}

#[test]
fn the_end_closes_links_before_it_forgets() {
    run(async {
        let lender = lender(Limits::default()).await;
        let grant = lender.lend();
        let granted = lender
            .sessions
            .verify(&grant, "alpha", Access::Write)
            .unwrap();
        lender.clock.advance(LEASE);
        // Not looked at yet: what names the session finds nothing already.
        assert!(!lender.session.is_open());
        assert!(lender.session.verify(&grant, Access::Write).is_none());
        assert_eq!(lender.sessions.expire(), 1);
        assert_eq!(lender.session.counts(), (0, 0, 0));
        let late = granted.link.write(granted.range, vec![]).await.unwrap_err();
        assert_eq!(late.kind, ErrorKind::Closed);
        assert!(!lender.session.fresh(1));
        assert_eq!(lender.client.closed().await, CloseReason::SessionEnded);
        let unserved = lender.session.attach(granted.link);
        assert_eq!(unserved.unwrap_err(), Refused::Ended);
    });
}

/// Also when somebody else has begun to close them.
#[test]
fn the_end_of_a_session_finds_no_link_open() {
    run(async {
        let sessions = ends::sessions();
        for round in 0..200 {
            let session = open(&sessions, "tenant");
            let (mut links, mut clients) = (Vec::new(), Vec::new());
            for _ in 0..session.limits().links {
                let (accepted, client) = ends::joined(&sessions, &session).await;
                links.push(accepted);
                clients.push(client);
            }
            let begin = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    match round % 2 {
                        0 => _ = sessions.close(session.id()),
                        _ => links.iter().for_each(|link| session.detach(link.id)),
                    }
                });
                begin.wait();
                sessions.close(session.id());
                let open = links.iter().filter(|link| !link.link.has_ended()).count();
                assert_eq!(open, 0, "round {round}");
            });
        }
    });
}

#[test]
fn rails_are_links_in_the_order_they_came() {
    run(async {
        let lender = lender(Limits::default()).await;
        let fabric = forebay_fabric::Fabric::Shm;
        let (second, _client) = ends::joined(&lender.sessions, &lender.session).await;
        let rail = |at| lender.session.rail(fabric, at).map(|(id, _)| id);
        assert_eq!(rail(0), Some(lender.link));
        assert_eq!(rail(1), Some(second.id));
        assert_eq!(rail(2), None);
        assert_eq!(rail(usize::MAX), None);
        lender.session.detach(lender.link);
        assert_eq!(rail(0), Some(second.id));
    });
}

/// What a process may map is bounded, and nobody gets it all, however many sessions and links that takes.
#[test]
fn a_tenant_leaves_room_for_the_memory_of_others() {
    run(async {
        let sessions = ends::sessions();
        let memory = Region::memfd(4096).unwrap().slice(0..4096).unwrap();
        let expose = async |link: &shm::ShmLink| {
            let exposed = link.expose(memory.clone(), Access::Read).await;
            exposed.map_err(|error| error.kind)
        };
        let greedy = async || {
            let session = open(&sessions, "greedy");
            let (server, client) = ends::joined(&sessions, &session).await;
            (session, server, client)
        };
        let mut links = Vec::new();
        for _ in 0..8192 / shm::REGIONS {
            let (session, server, client) = greedy().await;
            for _ in 0..shm::REGIONS {
                expose(&client).await.unwrap();
            }
            links.push((session, server, client));
        }
        let (_session, _server, late) = greedy().await;
        assert_eq!(expose(&late).await.unwrap_err(), ErrorKind::Busy);
        let session = open(&sessions, "other");
        let (_server, client) = ends::joined(&sessions, &session).await;
        expose(&client).await.unwrap();
        // What is given back is there for the next.
        let (_, server, client) = links.pop().unwrap();
        client.close(CloseReason::Done);
        server.link.closed().await;
        drop(client);
        while expose(&late).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
}
