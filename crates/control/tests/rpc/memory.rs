//! A client's registered memory, reached over shared memory, and object calls that name it.

use std::sync::Arc;

use forebay_api::v1::place::Memory;
use forebay_api::v1::{self, Access as Wire};
use forebay_fabric::sessions::proof;
use forebay_fabric::{Accepted, Access, Connection, Fabric, Link, SessionId, iwarp, shm};
use forebay_mem::{Region, RegionSlice};
use forebay_store::{MemoryStore, Store};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tonic::Code;

use crate::harness::{Client, Door, refused};
use crate::objects::{crc, read, stored};

pub const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Iwarp];
/// Longer than a test moves its clock, unless it means to end a session.
const LEASE_MS: u64 = 10 * 60_000;

/// A session with a link and one region that both reads and writes may reach.
pub struct Shared {
    pub session: Vec<u8>,
    pub region: u64,
    pub memory: RegionSlice,
    pub link: Connection,
    pub accepted: Accepted,
}

impl Shared {
    pub async fn open(door: &Door, client: &mut Client, fabric: Fabric, len: usize) -> Shared {
        let request = v1::OpenSessionRequest { lease_ms: LEASE_MS };
        let opened = client.sessions.open(request).await.unwrap().into_inner();
        let id = SessionId(opened.session.as_ref().try_into().unwrap());
        let key: [u8; 32] = opened.key.as_ref().try_into().unwrap();
        let shown = proof(id, &key);
        let (link, accepted) = match fabric {
            Fabric::Shm => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let accepting = shm::accept(theirs, &door.sessions);
                let (accepted, link) = tokio::join!(accepting, shm::connect(ours, &shown));
                let link = Connection::Shm(Arc::new(link.unwrap()));
                (link, accepted.unwrap())
            }
            Fabric::Iwarp => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let address = listener.local_addr().unwrap();
                let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
                let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
                let admit = |data: &[u8]| door.sessions.admit(data.try_into().ok()?);
                let options = iwarp::Options::default();
                let (accepted, link) = tokio::join!(
                    iwarp::accept(theirs, options, admit),
                    iwarp::connect(ours, &shown, options),
                );
                let (theirs, session) = accepted.unwrap();
                let theirs = Connection::Iwarp(Arc::new(theirs));
                let accepted = Accepted {
                    id: session.attach(theirs.clone()).unwrap(),
                    session,
                    link: theirs,
                };
                (Connection::Iwarp(Arc::new(link.unwrap())), accepted)
            }
        };
        let memory = Region::memfd(len).unwrap().slice(0..len).unwrap();
        let exposure = link
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let request = v1::RegisterRegionRequest {
            session: opened.session.clone(),
            stag: exposure.stag.0,
            base: exposure.base,
            length: exposure.len,
            access: Wire::ReadWrite.into(),
            ..Default::default()
        };
        let registered = client.sessions.register_region(request).await.unwrap();
        Shared {
            session: opened.session.to_vec(),
            region: registered.into_inner().region,
            memory,
            link,
            accepted,
        }
    }

    pub fn place(&self, offset: u64, length: u64) -> Option<v1::Place> {
        place(Memory::Region(self.region), offset, length)
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(offset, &mut bytes));
        bytes
    }

    pub fn set(&self, offset: usize, bytes: &[u8]) {
        assert!(self.memory.write(offset, bytes));
    }

    pub async fn grant(
        &self,
        client: &mut Client,
        offset: u64,
        length: u64,
        access: Wire,
    ) -> v1::GrantResponse {
        let request = v1::GrantRequest {
            session: self.session.clone().into(),
            region: self.region,
            offset,
            length,
            access: access.into(),
            lifetime_ms: 60_000,
        };
        client.sessions.grant(request).await.unwrap().into_inner()
    }
}

pub fn place(memory: Memory, offset: u64, length: u64) -> Option<v1::Place> {
    Some(v1::Place {
        memory: Some(memory),
        offset,
        length,
    })
}

pub fn noise(len: usize) -> Vec<u8> {
    (0..len as u32)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .take(len)
        .collect()
}

pub fn retrieve(session: &[u8], key: &str, place: Option<v1::Place>) -> v1::RetrieveRequest {
    v1::RetrieveRequest {
        namespace: "data".into(),
        key: key.to_owned().into(),
        session: session.to_vec().into(),
        place,
        ..Default::default()
    }
}

pub fn store(session: &[u8], key: &str, place: v1::Place) -> v1::StoreRequest {
    v1::StoreRequest {
        namespace: "data".into(),
        key: key.to_owned().into(),
        session: session.to_vec().into(),
        source: Some(v1::store_request::Source::Place(place)),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_go_straight_into_and_out_of_memory() {
    for fabric in FABRICS {
        values_go_straight_into_and_out_of_memory_over(fabric).await;
    }
}

async fn values_go_straight_into_and_out_of_memory_over(fabric: Fabric) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, fabric, 4 << 20).await;
    let value = noise(3_000_000);
    shared.set(100, &value);
    let mut request = store(
        &shared.session,
        "big",
        shared.place(100, 3_000_000).unwrap(),
    );
    request.crc64nvme = Some(crc(&value));
    let answer = red.objects.store(request).await.unwrap().into_inner();
    assert_eq!(answer.path, fabric.name());
    assert_eq!(answer.object.unwrap().size, 3_000_000);
    assert_eq!(read(&door.store, "data", b"big").await.unwrap(), value);

    shared.set(0, &vec![0xee; 4 << 20]);
    let mut request = retrieve(&shared.session, "big", shared.place(7, 3_000_000));
    request.checksum = true;
    let answer = red.objects.retrieve(request).await.unwrap().into_inner();
    assert_eq!(
        (answer.path.as_str(), answer.length),
        (fabric.name(), 3_000_000)
    );
    assert_eq!(answer.crc64nvme, Some(crc(&value)));
    assert!(answer.data.is_empty());
    assert_eq!(shared.bytes(7, 3_000_000), value);
    assert_eq!(shared.bytes(0, 7), [0xee; 7]);
    assert_eq!(shared.bytes(3_000_007, 9), [0xee; 9]);

    let metrics = door.metrics();
    for line in [
        "forebay_rpc_sent_bytes_total",
        "forebay_rpc_received_bytes_total",
    ] {
        let line = format!("{line}{{path=\"{}\"}} 3000000\n", fabric.name());
        assert!(metrics.contains(&line), "{line}{metrics}");
    }

    // A part, with its own checksum.
    let mut request = retrieve(&shared.session, "big", shared.place(0, 4096));
    request.range = Some(v1::Range {
        offset: 1_000_000,
        length: 4096,
    });
    request.checksum = true;
    let answer = red.objects.retrieve(request).await.unwrap().into_inner();
    let part = &value[1_000_000..1_004_096];
    assert_eq!((answer.offset, answer.length), (1_000_000, 4096));
    assert_eq!(answer.crc64nvme, Some(crc(part)));
    assert_eq!(shared.bytes(0, 4096), part);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_or_does_not_match_changes_nothing() {
    for fabric in FABRICS {
        what_does_not_fit_or_does_not_match_changes_nothing_over(fabric).await;
    }
}

async fn what_does_not_fit_or_does_not_match_changes_nothing_over(fabric: Fabric) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, fabric, 8192).await;
    stored(&door.store, "data", b"value", &noise(5000)).await;
    for checksum in [false, true] {
        let mut request = retrieve(&shared.session, "value", shared.place(0, 4999));
        request.checksum = checksum;
        let answer = red.objects.retrieve(request).await;
        refused(answer, Code::InvalidArgument, "INVALID");
        assert_eq!(shared.bytes(0, 8192), [0; 8192]);
    }
    let mut request = store(&shared.session, "value", shared.place(0, 100).unwrap());
    request.crc64nvme = Some(1);
    let answer = red.objects.store(request).await;
    refused(answer, Code::DataLoss, "CHECKSUM");
    assert_eq!(
        read(&door.store, "data", b"value").await.unwrap(),
        noise(5000)
    );
    let nothing = retrieve(&shared.session, "value", Some(v1::Place::default()));
    refused(
        red.objects.retrieve(nothing).await,
        Code::InvalidArgument,
        "INVALID",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gather_and_scatter_answer_in_the_callers_order() {
    for fabric in FABRICS {
        gather_and_scatter_answer_in_the_callers_order_over(fabric).await;
    }
}

async fn gather_and_scatter_answer_in_the_callers_order_over(fabric: Fabric) {
    const COUNT: usize = 300;
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, fabric, COUNT * 1000).await;
    let value = |i: usize| noise(1000 - i)[i..].to_vec();
    let elements = (0..COUNT).map(|i| {
        let value = value(i);
        shared.set(i * 1000, &value);
        v1::ScatterElement {
            key: format!("layer-{i}").into(),
            place: shared.place(i as u64 * 1000, value.len() as u64),
            // One that cannot be stored, and one that was changed on its way.
            condition: (i == 5).then_some(v1::Condition {
                rule: Some(v1::condition::Rule::IfPresent(true)),
            }),
            crc64nvme: Some(crc(&value) ^ u64::from(i == 6)),
            expires_ms: None,
            attributes: Some(v1::Attributes {
                content_type: format!("x/{i}"),
                ..v1::Attributes::default()
            }),
        }
    });
    let request = v1::ScatterRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: elements.collect(),
    };
    let mut answers = red.objects.scatter(request).await.unwrap().into_inner();
    for i in 0..COUNT {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.index as usize, i);
        let reason = answer.failure.map(|failure| failure.reason());
        match i {
            5 => assert_eq!(reason, Some(v1::Reason::Condition)),
            6 => assert_eq!(reason, Some(v1::Reason::Checksum)),
            _ => {
                assert_eq!(answer.path, fabric.name());
                assert_eq!(answer.object.unwrap().size, value(i).len() as u64);
            }
        }
    }
    assert!(answers.message().await.unwrap().is_none());

    shared.set(0, &vec![0; COUNT * 1000]);
    let elements = (0..COUNT).rev().map(|i| v1::GatherElement {
        key: format!("layer-{i}").into(),
        range: None,
        place: shared.place(i as u64 * 1000, 1000),
    });
    let request = v1::GatherRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: elements.collect(),
        checksum: true,
    };
    let mut answers = red.objects.gather(request).await.unwrap().into_inner();
    for (at, i) in (0..COUNT).rev().enumerate() {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.index as usize, at);
        if i == 5 || i == 6 {
            let failure = answer.failure.unwrap();
            assert_eq!(failure.code, i32::from(Code::NotFound));
            assert_eq!(failure.reason(), v1::Reason::NotFound);
            continue;
        }
        // An element is in its place when it is answered, whatever the others do.
        let value = value(i);
        assert_eq!(answer.length, value.len() as u64);
        assert_eq!(answer.crc64nvme, Some(crc(&value)));
        assert_eq!(answer.path, fabric.name());
        assert_eq!(shared.bytes(i * 1000, value.len()), value);
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_lends_a_part_of_a_region() {
    for fabric in FABRICS {
        a_grant_lends_a_part_of_a_region_over(fabric).await;
    }
}

async fn a_grant_lends_a_part_of_a_region_over(fabric: Fabric) {
    let door = Door::open().await;
    let mut owner = door.tenant("red").await;
    let mut other = door.tenant("red").await;
    owner.namespace("data").await;
    let shared = Shared::open(&door, &mut owner, fabric, 8192).await;
    stored(&door.store, "data", b"value", &noise(1000)).await;
    let granted = shared.grant(&mut owner, 4096, 2000, Wire::Write).await;
    let into = |grant: &[u8], offset, length| {
        let memory = Memory::Grant(grant.to_vec().into());
        retrieve(&[], "value", place(memory, offset, length))
    };
    // Another identity of the tenant fills the owner's memory.
    let request = into(&granted.grant, 500, 1000);
    let answer = other.objects.retrieve(request).await.unwrap();
    assert_eq!(answer.into_inner().length, 1000);
    assert_eq!(shared.bytes(4596, 1000), noise(1000));
    assert_eq!(shared.bytes(0, 4596), [0; 4596]);

    let mut refusals = vec![
        // Past its end, around the end of all numbers, not what it allows.
        into(&granted.grant, 1001, 1000),
        into(&granted.grant, u64::MAX, 2),
        into(&granted.grant, 0, u64::MAX),
        into(&granted.grant[..73], 0, 1000),
        into(&[], 0, 1000),
        into(&[0; 300], 0, 1000),
    ];
    for at in 0..granted.grant.len() {
        let mut forged = granted.grant.to_vec();
        forged[at] ^= 1;
        refusals.push(into(&forged, 0, 1000));
    }
    for request in refusals {
        let answer = other.objects.retrieve(request).await;
        refused(answer, Code::NotFound, "NO_SUCH_GRANT");
    }
    let memory = Memory::Grant(granted.grant.clone());
    let request = store(&[], "stolen", place(memory, 0, 1000).unwrap());
    let answer = other.objects.store(request).await;
    refused(answer, Code::NotFound, "NO_SUCH_GRANT");

    // Another tenant has nothing of it.
    let mut blue = door.tenant("blue").await;
    blue.namespace("blue").await;
    stored(&door.store, "blue", b"value", &noise(10)).await;
    let mut request = into(&granted.grant, 0, 1000);
    request.namespace = "blue".into();
    let answer = blue.objects.retrieve(request).await;
    refused(answer, Code::NotFound, "NO_SUCH_GRANT");

    // It expires, unless it is renewed; revoked, no renewal holds.
    let renewed = owner
        .sessions
        .renew(v1::RenewRequest {
            grant: granted.grant.clone(),
            lifetime_ms: 120_000,
        })
        .await
        .unwrap()
        .into_inner();
    door.hands.forward(std::time::Duration::from_secs(60));
    let late = other.objects.retrieve(into(&granted.grant, 0, 1000)).await;
    refused(late, Code::NotFound, "NO_SUCH_GRANT");
    let request = into(&renewed.grant, 0, 1000);
    other.objects.retrieve(request.clone()).await.unwrap();
    let revoked = v1::RevokeRequest {
        session: shared.session.clone().into(),
        id: granted.id,
    };
    owner.sessions.revoke(revoked.clone()).await.unwrap();
    refused(
        other.objects.retrieve(request).await,
        Code::NotFound,
        "NO_SUCH_GRANT",
    );
    refused(
        owner.sessions.revoke(revoked).await,
        Code::NotFound,
        "NO_SUCH_GRANT",
    );
    let again = v1::RenewRequest {
        grant: renewed.grant,
        lifetime_ms: 0,
    };
    refused(
        owner.sessions.renew(again).await,
        Code::NotFound,
        "NO_SUCH_GRANT",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_takes_its_memory_out_of_reach() {
    for fabric in FABRICS {
        a_session_that_ends_takes_its_memory_out_of_reach_over(fabric).await;
    }
}

async fn a_session_that_ends_takes_its_memory_out_of_reach_over(fabric: Fabric) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    stored(&door.store, "data", b"value", &noise(1000)).await;
    for by_lease in [false, true] {
        let shared = Shared::open(&door, &mut red, fabric, 8192).await;
        let granted = shared.grant(&mut red, 0, 8192, Wire::ReadWrite).await;
        let by_region = retrieve(&shared.session, "value", shared.place(0, 1000));
        red.objects.retrieve(by_region.clone()).await.unwrap();
        if by_lease {
            door.hands
                .forward(std::time::Duration::from_millis(LEASE_MS));
            door.sessions.expire();
        } else {
            let request = v1::CloseSessionRequest {
                session: shared.session.clone().into(),
            };
            red.sessions.close(request).await.unwrap();
        }
        let reason = shared.link.closed().await;
        if fabric == Fabric::Shm {
            assert_eq!(reason, forebay_fabric::CloseReason::SessionEnded);
        }
        drop(shared.accepted);
        refused(
            red.objects.retrieve(by_region).await,
            Code::NotFound,
            "NO_SUCH_SESSION",
        );
        let memory = Memory::Grant(granted.grant);
        let request = retrieve(&[], "value", place(memory, 0, 1000));
        refused(
            red.objects.retrieve(request).await,
            Code::NotFound,
            "NO_SUCH_GRANT",
        );
    }
    assert!(door.sessions.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_outside_a_region_reach_nothing() {
    for fabric in FABRICS {
        ranges_outside_a_region_reach_nothing_over(fabric).await;
    }
}

async fn ranges_outside_a_region_reach_nothing_over(fabric: Fabric) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    stored(&door.store, "data", b"value", &noise(100)).await;
    let shared = Shared::open(&door, &mut red, fabric, 4096).await;
    for (offset, length) in [
        (4000, 97),
        (4097, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        let request = retrieve(&shared.session, "value", shared.place(offset, length));
        refused(
            red.objects.retrieve(request).await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
        let place = shared.place(offset, length).unwrap();
        let request = store(&shared.session, "other", place);
        refused(
            red.objects.store(request).await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
    }
    for region in [0, shared.region + 1, u64::MAX] {
        let place = place(Memory::Region(region), 0, 100);
        refused(
            red.objects
                .retrieve(retrieve(&shared.session, "value", place))
                .await,
            Code::NotFound,
            "NO_SUCH_REGION",
        );
    }
    let forgotten = v1::DeregisterRegionRequest {
        session: shared.session.clone().into(),
        region: shared.region,
    };
    red.sessions.deregister_region(forgotten).await.unwrap();
    let request = retrieve(&shared.session, "value", shared.place(0, 100));
    refused(
        red.objects.retrieve(request).await,
        Code::NotFound,
        "NO_SUCH_REGION",
    );
    assert_eq!(shared.bytes(0, 4096), [0; 4096]);
    assert!(
        MemoryStore::stat(
            &door.store,
            forebay_store::Address::object("data", b"other"),
            None
        )
        .await
        .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_killed_in_the_middle_of_its_transfers() {
    for fabric in FABRICS {
        a_session_killed_over(fabric).await;
    }
}

async fn a_session_killed_over(fabric: Fabric) {
    const COUNT: usize = 3000;
    const LEN: usize = 20_000;
    let door = Door::open().await;
    let mut red = door.slow_tenant("red").await;
    red.namespace("data").await;
    let value = noise(LEN);
    stored(&door.store, "data", b"value", &value).await;
    let shared = Shared::open(&door, &mut red, fabric, 8 * LEN).await;
    let elements = (0..COUNT).map(|i| v1::GatherElement {
        key: "value".into(),
        range: None,
        place: shared.place((i % 8 * LEN) as u64, LEN as u64),
    });
    let request = v1::GatherRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: elements.collect(),
        checksum: false,
    };
    let mut answers = red.objects.gather(request).await.unwrap().into_inner();
    let (mut answered, mut failed) = (0, 0);
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.index, answered);
        answered += 1;
        if answered == 100 {
            let request = v1::CloseSessionRequest {
                session: shared.session.clone().into(),
            };
            red.sessions.close(request).await.unwrap();
            shared.link.closed().await;
            // From here on the memory is the client's alone.
            shared.set(0, &[0xaa; 8 * LEN]);
        }
        if let Some(failure) = answer.failure {
            failed += 1;
            let expected = [
                v1::Reason::LinkLost,
                v1::Reason::NoSuchSession,
                v1::Reason::NoSuchRegion,
            ];
            assert!(expected.contains(&failure.reason()), "{failure:?}");
        }
    }
    assert_eq!(answered as usize, COUNT);
    assert!(failed > 0);
    assert_eq!(shared.bytes(0, 8 * LEN), vec![0xaa; 8 * LEN]);
}
