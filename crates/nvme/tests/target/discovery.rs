//! What discovery tells a host, and that it is told of changes.

use forebay_nvme::target::{Admitted, Change, Host};
use forebay_proto::nvme::AdminReply;
use forebay_proto::nvme::discovery::{
    DiscoveryEntry, DiscoveryLog, SecureChannel, SubsystemType, TRANSPORT_TCP,
};
use forebay_proto::nvme::fabrics::DISCOVERY_NQN;
use forebay_proto::nvme::feature::{EVENT_DISCOVERY, fid};
use forebay_proto::nvme::log_page::{GetLogPage, lid};
use forebay_proto::nvme::opcode::admin;
use forebay_proto::nvme::property::offset;
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry};
use forebay_store::MemoryStore;

use crate::support::*;

const HOST: &str = "nqn.new-host";

/// A discovery controller of [`HOST`], enabled, with one outstanding event request.
fn discover(fixture: &Fixture) -> Admitted<MemoryStore> {
    let mut connect = connect(HOST);
    connect.subnqn = DISCOVERY_NQN.to_owned();
    let mut admitted = fixture.target.connect(0, &connect).unwrap();
    let controller = &mut admitted.controller;
    controller
        .write_property(offset::CC, 4, 0x0046_0001)
        .unwrap();
    let listen = SubmissionQueueEntry::new(admin::SET_FEATURES, 1, 0)
        .with_cdw(10, u32::from(fid::ASYNC_EVENT_CONFIGURATION))
        .with_cdw(11, EVENT_DISCOVERY)
        .with_sgl(SglDescriptor::transport(0));
    let AdminReply::Complete { status, .. } = controller.admin(0, &listen, &[]) else {
        panic!("held");
    };
    assert_eq!(status, Status::SUCCESS);
    let request = SubmissionQueueEntry::new(admin::ASYNC_EVENT_REQUEST, 2, 0);
    assert_eq!(controller.admin(0, &request, &[]), AdminReply::Held);
    admitted
}

fn log(admitted: &mut Admitted<MemoryStore>) -> DiscoveryLog {
    let asked = GetLogPage {
        lid: lid::DISCOVERY,
        retain_event: false,
        bytes: 4096,
        offset: 0,
        csi: 0,
    };
    let entry = asked.entry(3, 0).with_sgl(SglDescriptor::transport(4096));
    match admitted.controller.admin(0, &entry, &[]) {
        AdminReply::Complete { data, .. } => DiscoveryLog::decode(&data).unwrap(),
        reply => panic!("{reply:?}"),
    }
}

#[tokio::test]
async fn a_host_is_told_when_what_it_is_told_changes() {
    let fixture = Fixture::new().await;
    let way = |service: &str| DiscoveryEntry {
        transport: TRANSPORT_TCP,
        address_family: 1,
        kind: SubsystemType::Nvm,
        port_id: 1,
        service: service.to_owned(),
        subnqn: SUBSYSTEM.to_owned(),
        address: "127.0.0.1".to_owned(),
        secure_channel: SecureChannel::NotSpecified,
    };
    fixture.target.set_addresses(vec![way("4420")]);
    let mut admitted = discover(&fixture);
    let stranger = log(&mut admitted);
    assert!(stranger.entries.is_empty());

    // Lets the controller look; the identifier of the request that ended, if one did.
    let update = |admitted: &mut Admitted<MemoryStore>| {
        let Admitted {
            controller,
            session,
            ..
        } = admitted;
        assert_eq!(
            fixture.target.update(session, || &mut *controller),
            Change::Shown
        );
        controller.next_event().map(|event| event.result)
    };
    let told = Some(0x0070_f002);
    let set_hosts = |hosts: &[Host]| fixture.target.set_hosts(hosts.to_vec());
    // Another one is made known: that is none of its business.
    set_hosts(&[host("nqn.other-host", "tenant")]);
    assert_eq!(update(&mut admitted), None);
    assert_eq!(log(&mut admitted), stranger);
    // Itself.
    set_hosts(&[host(HOST, "tenant")]);
    assert_eq!(update(&mut admitted), told);
    let known = log(&mut admitted);
    assert_eq!(known.entries.len(), 1);
    assert!(known.generation > stranger.generation);
    // Neither namespaces nor the same again are a change.
    fixture.target.refresh();
    set_hosts(&[host(HOST, "tenant")]);
    assert_eq!(update(&mut admitted), None);
    assert_eq!(log(&mut admitted), known);
    // Whoever asks anew finds no older one.
    let mut again = discover(&fixture);
    assert!(log(&mut again).generation >= known.generation);
    fixture.target.set_addresses(vec![way("4421")]);
    assert_eq!(update(&mut again), told);
    assert!(log(&mut again).generation > known.generation);
}
