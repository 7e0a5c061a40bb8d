//! Who may come, and what they see.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use forebay_nvme::target::{Arrival, Change, Host, Proven, Viewer};
use forebay_proto::nvme::auth::Secret;
use forebay_proto::nvme::discovery::{DiscoveryEntry, SecureChannel, SubsystemType};
use forebay_proto::nvme::fabrics::{DISCOVERY_NQN, Refused};
use forebay_proto::nvme::kv::{Key, KvCommand};
use forebay_proto::nvme::property::offset;
use forebay_proto::nvme::psk::TlsKey;
use forebay_proto::nvme::{Controller, ControllerKind, NamespaceKind, Status};
use forebay_store::{NamespaceConfig, Store};

use crate::support::*;

const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fn nsids(controller: &Controller) -> Vec<u32> {
    let namespaces = controller.subsystem().namespaces.iter();
    namespaces.map(|namespace| namespace.nsid).collect()
}

#[tokio::test]
async fn a_host_sees_the_namespaces_of_its_tenant() {
    let mut fixture = Fixture::new().await;
    assert_eq!(nsids(&fixture.controller), [KV, BLOCK, READ_ONLY]);
    let exist = KvCommand::Exist {
        key: Key::new(b"key").unwrap(),
    };
    let foreign = fixture
        .execute(&exist.entry(1, OTHERS), &mut Data::none())
        .await;
    assert_eq!(foreign, Err(Status::INVALID_NAMESPACE_OR_FORMAT));
    let theirs = fixture
        .target
        .connect(0, &connect("nqn.their-host"))
        .unwrap();
    assert_eq!(nsids(&theirs.controller), [BLOCK, OTHERS, READ_ONLY]);
    let stranger = fixture.target.connect(0, &connect("nqn.stranger"));
    assert_eq!(
        stranger.unwrap_err(),
        Refused::from(Status::CONNECT_INVALID_HOST)
    );
    let mut elsewhere = connect("nqn.our-host");
    elsewhere.subnqn = "nqn.elsewhere".to_owned();
    let refused = fixture.target.connect(0, &elsewhere).unwrap_err();
    assert_eq!(refused, Refused::in_data(256));
    let device = fixture.target.attach(Viewer::Everything).unwrap();
    let device = fixture.target.device(0, &device, 4);
    assert_eq!(nsids(&device), [KV, BLOCK, OTHERS, READ_ONLY]);
    let namespace = device.subsystem().namespace(BLOCK).unwrap();
    let kind = NamespaceKind::Block {
        lba_shift: 9,
        blocks: BLOCKS,
        read_only: false,
    };
    assert_eq!(namespace.kind, kind);
}

#[tokio::test]
async fn targets_of_one_subsystem_begin_with_other_numbers() {
    let mut first = BTreeSet::new();
    for _ in 0..4 {
        first.insert(Fixture::new().await.session.cntlid());
    }
    assert!(first.len() > 1, "{first:?}");
}

#[tokio::test]
async fn controllers_are_numbered_and_bounded() {
    let fixture = Fixture::new().await;
    let connects = |nqn| fixture.target.connect(0, &connect(nqn));
    let mut sessions = vec![fixture.session.clone()];
    // A host has a quarter of them at most.
    for _ in 1..4 {
        let admitted = connects("nqn.our-host").unwrap();
        assert_eq!(admitted.result, u64::from(admitted.session.cntlid()));
        sessions.push(admitted.session);
    }
    let busy = Refused::from(Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(connects("nqn.our-host").unwrap_err(), busy);
    for _ in 4..16 {
        sessions.push(fixture.target.attach(Viewer::Everything).unwrap());
    }
    let numbers: BTreeSet<_> = sessions.iter().map(|session| session.cntlid()).collect();
    assert_eq!(numbers.len(), 16);
    assert_eq!(connects("nqn.their-host").unwrap_err(), busy);
    drop(sessions.pop());
    let admitted = connects("nqn.their-host").unwrap();
    assert!(!numbers.contains(&admitted.session.cntlid()));
}

/// Of sixteen.
#[tokio::test]
async fn whoever_has_proven_nothing_leaves_room_to_hosts_that_do() {
    let fixture = Fixture::new().await;
    let (proves, by_tls) = ("nqn.proves-itself", "nqn.comes-by-tls");
    let (secret, key) = (Secret::parse(SECRET), TlsKey::parse(TLS_KEY).unwrap());
    fixture.target.set_hosts(vec![
        Host {
            secret: secret.clone(),
            ..host(proves, "ours")
        },
        Host {
            secret,
            tls_key: Some(key.clone()),
            ..host(by_tls, "ours")
        },
    ]);
    let from = |last: u8| Arrival {
        peer: Some(IpAddr::from([10, 0, 0, last])),
        ..Arrival::default()
    };
    let connects = |nqn: &str, subnqn: &str, arrival: Arrival| {
        let mut connect = connect(nqn);
        connect.subnqn = subnqn.to_owned();
        let admitted = fixture.target.connect_by(0, &connect, arrival);
        admitted.map(|admitted| admitted.session)
    };
    let busy = Refused::from(Status::CONNECT_CONTROLLER_BUSY);
    let mut strangers = Vec::new();
    for (nqn, subnqn) in [("nqn.stranger", DISCOVERY_NQN), (proves, SUBSYSTEM)] {
        let before = strangers.len();
        for last in 1..10 {
            let had = strangers.len();
            let refused = loop {
                match connects(nqn, subnqn, from(last)) {
                    Ok(session) => strangers.push(session),
                    Err(refused) => break refused,
                }
            };
            assert_eq!(refused, busy);
            assert!(strangers.len() - had <= 2, "one address has not all");
        }
        assert_eq!(strangers.len() - before, 4, "{subnqn}");
    }
    let proven = |subsystem: &str| Arrival {
        proven: Some(Arc::new(Proven {
            host: by_tls.to_owned(),
            subsystem: subsystem.to_owned(),
            key: key.clone(),
        })),
        ..from(1)
    };
    for subnqn in [SUBSYSTEM, DISCOVERY_NQN] {
        strangers.push(connects(by_tls, subnqn, proven(subnqn)).unwrap());
    }
    // Room for one who proves itself now.
    strangers.remove(4);
    connects(proves, SUBSYSTEM, from(1)).unwrap();
}

#[tokio::test]
async fn what_changes_is_shown_and_told() {
    let mut fixture = Fixture::new().await;
    let mut since = 0;
    fixture.target.changed(&fixture.session, &mut since).await;
    fixture
        .target
        .publish(vec![key_value(9, "values"), key_value(OTHERS, "theirs")]);
    fixture.target.changed(&fixture.session, &mut since).await;
    let Fixture {
        target,
        session,
        controller,
        ..
    } = &mut fixture;
    assert_eq!(target.update(session, || &mut *controller), Change::Shown);
    assert_eq!(nsids(controller), [9]);
    // A namespace that was removed and made again for somebody else is not the one that was published.
    fixture.store.delete_namespace("values").await.unwrap();
    let config = NamespaceConfig {
        tenant: "others".to_owned(),
        ..NamespaceConfig::default()
    };
    let exist = KvCommand::Exist {
        key: Key::new(b"key").unwrap(),
    };
    let gone = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
    let entry = exist.entry(1, 9);
    assert_eq!(fixture.execute(&entry, &mut Data::none()).await, gone);
    fixture
        .store
        .create_namespace("values", config)
        .await
        .unwrap();
    assert_eq!(fixture.execute(&entry, &mut Data::none()).await, gone);
    // A host that may not come any more has to go.
    fixture
        .target
        .set_hosts(vec![host("nqn.our-host", "others")]);
    let Fixture {
        target,
        session,
        controller,
        ..
    } = &mut fixture;
    assert_eq!(target.update(session, || controller), Change::Over);
}

#[tokio::test]
async fn a_host_whose_secret_is_another_has_to_go() {
    let fixture = Fixture::new().await;
    let secret = |hash: u8| {
        let text = format!("DHHC-1:0{hash}:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
        Secret::parse(&text)
    };
    let set = |secret, subsystem_secret| {
        fixture.target.set_hosts(vec![Host {
            secret,
            subsystem_secret,
            ..host("nqn.our-host", "ours")
        }]);
    };
    let known = [
        (None, None),
        (secret(1), None),
        (secret(2), None),
        (secret(2), secret(1)),
        (None, secret(1)),
    ];
    for (before, after) in known.iter().zip(&known[1..]) {
        set(before.0.clone(), before.1.clone());
        let mut admitted = fixture.target.connect(0, &connect("nqn.our-host")).unwrap();
        let mut discovery = connect("nqn.our-host");
        discovery.subnqn = DISCOVERY_NQN.to_owned();
        let mut told = fixture.target.connect(0, &discovery).unwrap();
        let mut changed = || {
            let target = &fixture.target;
            (
                target.update(&admitted.session, || &mut admitted.controller),
                target.update(&told.session, || &mut told.controller),
            )
        };
        // The same again.
        set(before.0.clone(), before.1.clone());
        assert_eq!(changed(), (Change::Shown, Change::Shown));
        set(after.0.clone(), after.1.clone());
        assert_eq!(changed(), (Change::Over, Change::Shown), "{before:?}");
    }
}

#[tokio::test]
async fn discovery_tells_strangers_nothing() {
    let fixture = Fixture::new().await;
    let way = |kind, subnqn: &str| DiscoveryEntry {
        transport: 3,
        address_family: 1,
        kind,
        port_id: 1,
        service: "4420".to_owned(),
        subnqn: subnqn.to_owned(),
        address: "127.0.0.1".to_owned(),
        secure_channel: SecureChannel::NotSpecified,
    };
    fixture.target.set_addresses(vec![
        way(SubsystemType::CurrentDiscovery, DISCOVERY_NQN),
        way(SubsystemType::Nvm, SUBSYSTEM),
    ]);
    for (nqn, entries) in [("nqn.our-host", 2), ("nqn.stranger", 1)] {
        let mut connect = connect(nqn);
        connect.subnqn = DISCOVERY_NQN.to_owned();
        let admitted = fixture.target.connect(0, &connect).unwrap();
        let mut controller = admitted.controller;
        assert_eq!(controller.config().kind, ControllerKind::Discovery);
        assert!(nsids(&controller).is_empty());
        controller
            .write_property(offset::CC, 4, 0x0046_0001)
            .unwrap();
        let asked = forebay_proto::nvme::log_page::GetLogPage {
            lid: 0x70,
            retain_event: false,
            bytes: 1024 * 4,
            offset: 0,
            csi: 0,
        };
        let sgl = forebay_proto::nvme::SglDescriptor::transport(4096);
        let reply = controller.admin(0, &asked.entry(1, 0).with_sgl(sgl), &[]);
        let forebay_proto::nvme::AdminReply::Complete { data, .. } = reply else {
            panic!("{reply:?}");
        };
        let log = forebay_proto::nvme::discovery::DiscoveryLog::decode(&data).unwrap();
        assert_eq!(log.entries.len(), entries);
    }
}
