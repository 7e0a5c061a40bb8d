//! What hosts do with a controller, in the order in which they do it.

use std::sync::Arc;

use super::support::*;
use crate::nvme::discovery::{self, DiscoveryEntry, DiscoveryLog, SubsystemType, TRANSPORT_TCP};
use crate::nvme::fabrics::{DISCOVERY_NQN, Property, Refused};
use crate::nvme::feature::{EVENT_DISCOVERY, EVENT_NAMESPACES, fid};
use crate::nvme::identify::*;
use crate::nvme::log_page::lid;
use crate::nvme::opcode::{admin, kv, nvm};
use crate::nvme::property::*;
use crate::nvme::*;

#[test]
fn linux_finds_both_kinds_of_namespaces() {
    let mut fixture = Fixture::disabled(config(TCP));
    let get = |fixture: &mut Fixture, offset| {
        let entry = Property::get(offset, 1);
        fixture.result(entry).unwrap()
    };
    let cap = Capabilities(get(&mut fixture, offset::CAP));
    assert!(cap.has_io_command_sets());
    assert_eq!(
        (cap.queue_entries_max(), cap.doorbell_stride_bytes()),
        (128, 4)
    );
    for value in [0x0046_0060, 0x0046_0061] {
        fixture.result(Property::set(offset::CC, value, 2)).unwrap();
    }
    assert_eq!(get(&mut fixture, offset::CSTS), 1);
    assert_eq!(get(&mut fixture, offset::VS), 0x0002_0000);

    let about = fixture.identify(cns::CONTROLLER, 0, 0).unwrap();
    let about = IdentifyController::decode(&about).unwrap();
    assert_eq!(
        (about.cntlid, about.mdts, about.controller_type),
        (5, 14, 1)
    );
    assert!(about.several_controllers);
    assert_eq!(about.subnqn, SUBSYSTEM);
    assert_eq!(
        (about.command_capsule_16b, about.response_capsule_16b),
        (4 + 512, 1)
    );
    assert_eq!(about.keep_alive_granularity, 10);
    assert!(
        about.sgl_support & 3 != 0 && about.commands_max == 128 && about.log_attributes & 2 != 0
    );
    assert_eq!(
        fixture
            .log(lid::COMMANDS_AND_EFFECTS, 4096, 0)
            .unwrap()
            .len(),
        4096
    );
    assert_eq!(
        fixture.set_feature(fid::NUMBER_OF_QUEUES, 0x0007_0007),
        Ok(0x0003_0003)
    );
    for qid in 1..=4 {
        assert_eq!(fixture.controller.connect_io(&connect(qid)), Ok(()));
    }
    let request = fixture.listen();

    let nsids: Vec<u32> =
        list_entries(&fixture.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap()).collect();
    assert_eq!(nsids, [BLOCK, KV, READ_ONLY]);
    let of_csi = |fixture: &mut Fixture, csi| -> Vec<u32> {
        list_entries(&fixture.identify(cns::IO_ACTIVE_NAMESPACES, 0, csi).unwrap()).collect()
    };
    assert_eq!(of_csi(&mut fixture, 0), [BLOCK, READ_ONLY]);
    assert_eq!(of_csi(&mut fixture, 1), [KV]);
    for (nsid, csi) in [(BLOCK, 0), (KV, 1)] {
        let page = fixture
            .identify(cns::NAMESPACE_DESCRIPTORS, nsid, 0)
            .unwrap();
        let found = Descriptors::decode(&page);
        assert_eq!(found.csi, Some(csi));
        assert_eq!(
            (found.uuid, found.nguid),
            (Some([nsid as u8; 16]), Some([nsid as u8; 16]))
        );
        let ready = fixture
            .identify(cns::INDEPENDENT_NAMESPACE, nsid, 0)
            .unwrap()[14];
        assert_eq!(ready, 1);
    }
    let page = fixture.identify(cns::NAMESPACE, BLOCK, 0).unwrap();
    let blocks = IdentifyBlocks::decode(&page).unwrap();
    assert_eq!(
        (blocks.blocks, blocks.lba_shift, blocks.write_protected),
        (1000, 12, false)
    );
    let page = fixture.identify(cns::NAMESPACE, READ_ONLY, 0).unwrap();
    assert!(IdentifyBlocks::decode(&page).unwrap().write_protected);
    let page = fixture.identify(cns::IO_NAMESPACE, KV, 1).unwrap();
    let values = IdentifyKv::decode(&page).unwrap();
    assert_eq!(
        (values.key_bytes_max, values.value_bytes_max),
        (16, VALUE_BYTES_MAX)
    );
    assert_eq!((values.capacity_bytes, values.used_bytes), (1 << 40, 12345));
    assert!(values.vendor.ttl && values.vendor.extended_keys && values.vendor.ranges);
    assert_eq!(values.vendor.result_bytes_max, 1 << 20);
    assert_eq!(fixture.identify(cns::IO_COMMAND_SETS, 0, 0).unwrap()[0], 3);
    let effects = fixture.log(lid::COMMANDS_AND_EFFECTS, 4096, 1).unwrap();
    let of = |opcode: u8| effects[1024 + usize::from(opcode) * 4];
    assert_eq!(
        (
            of(kv::STORE),
            of(kv::RETRIEVE),
            of(kv::DELETE),
            of(nvm::COMPARE)
        ),
        (3, 1, 3, 0)
    );

    let store = fixture
        .command(kv::STORE, KV)
        .with_cdw(11, 3)
        .with_cdw(10, 4);
    assert_eq!(
        fixture
            .controller
            .io(0, 1, &store)
            .unwrap()
            .bytes_to_controller,
        4
    );
    assert_eq!(fixture.controller.next_event(), None);
    assert_ne!(request, 0);

    // Shutting down.
    let shutdown = u64::from(Configuration::ENABLE.with_shutdown().0);
    let reply = fixture.admin(Property::set(offset::CC, shutdown, 2));
    assert!(matches!(
        reply,
        AdminReply::Complete {
            effect: Effect::Shutdown,
            ..
        }
    ));
    assert_eq!(get(&mut fixture, offset::CSTS) >> 2, 1);
    fixture.controller.shutdown_done();
    assert_eq!(get(&mut fixture, offset::CSTS) >> 2, 2);
    let refused = fixture.controller.io(0, 1, &store).unwrap_err();
    assert_eq!(refused.code(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn a_host_of_blocks_alone_sees_blocks_alone() {
    let mut fixture = Fixture::disabled(config(TCP));
    fixture.enable(0x0046_0001);
    let page = fixture.identify(cns::ACTIVE_NAMESPACES, 0, 0).unwrap();
    assert_eq!(list_entries(&page).collect::<Vec<_>>(), [BLOCK, READ_ONLY]);
    let entry = fixture.command(kv::RETRIEVE, KV);
    let refused = fixture.controller.io(0, 1, &entry).unwrap_err();
    assert_eq!(refused.code(), Status::INVALID_NAMESPACE_OR_FORMAT);
    assert!(refused.do_not_retry());
}

#[test]
fn a_reset_forgets_queues_events_and_features() {
    let mut fixture = Fixture::new(TCP);
    fixture.listen();
    fixture.set_feature(fid::ARBITRATION, 7).unwrap();
    assert_eq!(fixture.controller.connect_io(&connect(1)), Ok(()));
    let refused = Err(Refused::from(Status::INVALID_QUEUE_IDENTIFIER));
    assert_eq!(fixture.controller.connect_io(&connect(1)), refused);
    let cc = u64::from(Configuration::ENABLE.0);
    let reply = fixture.admin(Property::set(offset::CC, cc & !1, 2));
    assert!(matches!(
        reply,
        AdminReply::Complete {
            effect: Effect::Reset,
            ..
        }
    ));
    assert!(!fixture.controller.is_ready());
    let refused = Err(Refused::from(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(fixture.controller.connect_io(&connect(1)), refused);
    fixture.enable(Configuration::ENABLE.0);
    assert_eq!(fixture.controller.connect_io(&connect(1)), Ok(()));
    assert_eq!(fixture.get_feature(fid::ARBITRATION), Ok(0));
    fixture.controller.set_subsystem(subsystem(vec![]));
    assert_eq!(fixture.controller.next_event(), None);
    fixture.controller.disconnect_io(1);
    assert_eq!(fixture.controller.connect_io(&connect(1)), Ok(()));
}

#[test]
fn changes_are_told_once_until_the_list_is_read() {
    let mut fixture = Fixture::new(TCP);
    let first = fixture.listen();
    let second = fixture.listen();
    let with_more = subsystem(vec![
        block_namespace(BLOCK, true),
        kv_namespace(KV),
        kv_namespace(9),
    ]);
    fixture.controller.set_subsystem(with_more.clone());
    let told = Event {
        cid: first,
        result: 0x0004_0002,
    };
    assert_eq!(fixture.controller.next_event(), Some(told));
    fixture.controller.set_subsystem(usual());
    assert_eq!(fixture.controller.next_event(), None);
    let page = fixture.log(lid::CHANGED_NAMESPACES, 4096, 0).unwrap();
    assert_eq!(
        list_entries(&page).collect::<Vec<_>>(),
        [BLOCK, READ_ONLY, 9]
    );
    let page = fixture.log(lid::CHANGED_NAMESPACES, 4096, 0).unwrap();
    assert_eq!(list_entries(&page).count(), 0);
    // How full a namespace is is not told.
    let mut fuller = Subsystem::clone(&usual());
    if let NamespaceKind::Kv { used_bytes, .. } = &mut fuller.namespaces[1].kind {
        *used_bytes += 1;
    }
    fixture.controller.set_subsystem(Arc::new(fuller));
    assert_eq!(fixture.controller.next_event(), None);
    fixture.controller.set_subsystem(with_more);
    assert_eq!(
        fixture.controller.next_event().map(|event| event.cid),
        Some(second)
    );
    assert_eq!(
        fixture.get_feature(fid::ASYNC_EVENT_CONFIGURATION),
        Ok(u64::from(EVENT_NAMESPACES))
    );
}

#[test]
fn a_namespace_that_goes_is_gone_for_commands_that_come() {
    let mut fixture = Fixture::new(TCP);
    let entry = fixture.command(kv::EXIST, KV).with_cdw(11, 1);
    fixture.controller.io(0, 1, &entry).unwrap();
    fixture.controller.set_subsystem(subsystem(vec![]));
    let refused = fixture.controller.io(0, 1, &entry).unwrap_err();
    assert_eq!(refused.code(), Status::INVALID_NAMESPACE_OR_FORMAT);
    let page = fixture.identify(cns::IO_NAMESPACE, KV, 1).unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
}

#[test]
fn a_discovery_controller_tells_where_to_go() {
    let mut kind = config(TCP);
    kind.kind = ControllerKind::Discovery;
    kind.kato_ms = 0;
    let mut nothing = Subsystem::clone(&subsystem(vec![]));
    nothing.nqn = DISCOVERY_NQN.to_owned();
    let mut fixture = Fixture::disabled(kind.clone());
    fixture.controller = Controller::new(0, kind, Arc::new(nothing));
    let log = DiscoveryLog {
        generation: 3,
        entries: vec![DiscoveryEntry {
            transport: TRANSPORT_TCP,
            address_family: 1,
            kind: SubsystemType::Nvm,
            port_id: 1,
            service: "4420".to_owned(),
            subnqn: SUBSYSTEM.to_owned(),
            address: "127.0.0.1".to_owned(),
            secure_channel: discovery::SecureChannel::NotRequired,
        }],
    };
    fixture.controller.set_discovery(Arc::new(log.clone()));
    fixture.enable(Configuration::ENABLE.0);
    let about = fixture.identify(cns::CONTROLLER, 0, 0).unwrap();
    let about = IdentifyController::decode(&about).unwrap();
    assert_eq!(
        (about.controller_type, about.subnqn.as_str()),
        (2, DISCOVERY_NQN)
    );
    assert!(!about.several_controllers);
    let header = fixture.log(lid::DISCOVERY, 16, 0).unwrap();
    assert_eq!(DiscoveryLog::header(&header), Some((3, 1)));
    let whole = fixture.log(lid::DISCOVERY, 2048, 0).unwrap();
    assert_eq!(DiscoveryLog::decode(&whole), Some(log.clone()));
    assert_eq!(DiscoveryLog::decode(&whole[..2047]), None);
    // Only what it is for.
    assert_eq!(
        fixture.identify(cns::ACTIVE_NAMESPACES, 0, 0),
        Err(Status::INVALID_FIELD)
    );
    assert_eq!(
        fixture.log(lid::HEALTH, 512, 0),
        Err(Status::INVALID_LOG_PAGE)
    );
    assert!(fixture.controller.connect_io(&connect(1)).is_err());
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(120_000));
    // Changes.
    fixture
        .set_feature(fid::ASYNC_EVENT_CONFIGURATION, EVENT_DISCOVERY)
        .unwrap();
    let entry = fixture.command(admin::ASYNC_EVENT_REQUEST, 0);
    assert_eq!(fixture.admin(entry), AdminReply::Held);
    let mut log = DiscoveryLog {
        generation: 4,
        ..log
    };
    fixture.controller.set_discovery(Arc::new(log.clone()));
    assert_eq!(fixture.controller.next_event(), None);
    let header = fixture.log(lid::DISCOVERY, 16, 0).unwrap();
    assert_eq!(DiscoveryLog::header(&header), Some((3, 1)));
    log.entries.clear();
    fixture.controller.set_discovery(Arc::new(log));
    let event = fixture.controller.next_event().unwrap();
    assert_eq!(event.result, 0x0070_f002);
    let header = fixture.log(lid::DISCOVERY, 16, 0).unwrap();
    assert_eq!(DiscoveryLog::header(&header), Some((4, 0)));
}

#[test]
fn keep_alive_is_rounded_up_and_waited_for_twice_and_commands_count() {
    let mut fixture = Fixture::new(TCP);
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(10_000));
    let entry = fixture.command(admin::KEEP_ALIVE, 0);
    assert_eq!(
        done(fixture.controller.admin(700, &entry, &[])),
        Ok((0, vec![]))
    );
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(10_700));
    let entry = fixture.command(kv::FLUSH, KV);
    fixture.controller.io(900, 1, &entry).unwrap();
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(10_900));
    fixture.set_feature(fid::KEEP_ALIVE_TIMER, 1).unwrap();
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(2900));
    fixture
        .set_feature(fid::KEEP_ALIVE_TIMER, u32::MAX)
        .unwrap();
    assert_eq!(
        fixture.controller.keep_alive_deadline_ms(),
        Some(900 + 2 * 4_294_968_000)
    );
    let refused = fixture.set_feature(fid::KEEP_ALIVE_TIMER, 0);
    assert_eq!(refused, Err(Status::KEEP_ALIVE_TIMEOUT_INVALID));
}

#[test]
fn queues_of_a_device() {
    let mut fixture = Fixture::disabled(config(PCIE));
    for (at, value) in [
        (offset::AQA, 0x001f_000f),
        (offset::ASQ, 0x1000),
        (offset::ACQ, 0x2000),
    ] {
        fixture.controller.write_property(at, 4, value).unwrap();
    }
    fixture
        .controller
        .write_property(offset::ACQ + 4, 4, 1)
        .unwrap();
    fixture.enable(Configuration::ENABLE.0);
    // Not under the controller's feet.
    fixture
        .controller
        .write_property(offset::ASQ, 4, 0x9000)
        .unwrap();
    let queues = fixture.controller.admin_queues();
    assert_eq!(
        (queues.submission_entries, queues.submission_base),
        (16, 0x1000)
    );
    assert_eq!(
        (queues.completion_entries, queues.completion_base),
        (32, 0x1_0000_2000)
    );
    let make = |fixture: &mut Fixture, opcode, qid: u32, entries: u32, cdw11: u32| {
        let entry = fixture.command(opcode, 0);
        let entry = entry
            .with_cdw(10, qid | (entries - 1) << 16)
            .with_cdw(11, cdw11);
        fixture.admin(entry)
    };
    let status = |reply: AdminReply| done(reply).unwrap_err();
    let early = make(&mut fixture, admin::CREATE_IO_SQ, 1, 64, 1 << 16 | 1);
    assert_eq!(status(early), Status::COMPLETION_QUEUE_INVALID);
    let made = make(&mut fixture, admin::CREATE_IO_CQ, 1, 64, 3 << 16 | 3);
    assert_eq!(
        made,
        AdminReply::CreateQueue(QueueRequest::Completion {
            qid: 1,
            entries: 64,
            base: 0x10000,
            vector: Some(3)
        })
    );
    for (qid, entries, cdw11, why) in [
        (1, 64, 3, Status::INVALID_QUEUE_IDENTIFIER),
        (0, 64, 3, Status::INVALID_QUEUE_IDENTIFIER),
        (5, 64, 3, Status::INVALID_QUEUE_IDENTIFIER),
        (2, 1, 3, Status::INVALID_QUEUE_SIZE),
        (2, 129, 3, Status::INVALID_QUEUE_SIZE),
        (2, 64, 2, Status::INVALID_FIELD),
        (2, 64, 8 << 16 | 3, Status::INVALID_INTERRUPT_VECTOR),
    ] {
        assert_eq!(
            status(make(&mut fixture, admin::CREATE_IO_CQ, qid, entries, cdw11)),
            why
        );
    }
    let made = make(&mut fixture, admin::CREATE_IO_SQ, 1, 64, 1 << 16 | 1);
    assert!(matches!(
        made,
        AdminReply::CreateQueue(QueueRequest::Submission {
            qid: 1,
            cqid: 1,
            ..
        })
    ));
    let delete = |fixture: &mut Fixture, opcode, qid: u32| {
        let entry = fixture.command(opcode, 0).with_cdw(10, qid);
        fixture.admin(entry)
    };
    let used = delete(&mut fixture, admin::DELETE_IO_CQ, 1);
    assert_eq!(status(used), Status::INVALID_QUEUE_DELETION);
    let entry = fixture.command(admin::ABORT, 0).with_cdw(10, 1 | 77 << 16);
    assert_eq!(fixture.admin(entry), AdminReply::Abort { sqid: 1, cid: 77 });
    let gone = delete(&mut fixture, admin::DELETE_IO_SQ, 1);
    assert_eq!(gone, AdminReply::DeleteQueue(QueueName::Submission(1)));
    assert_eq!(fixture.result(entry), Ok(1));
    // Its commands have still to end, and their completions to be put: neither number is free, nor is there anything more to delete.
    let again = delete(&mut fixture, admin::DELETE_IO_SQ, 1);
    assert_eq!(status(again), Status::INVALID_QUEUE_IDENTIFIER);
    let made = make(&mut fixture, admin::CREATE_IO_SQ, 1, 64, 1 << 16 | 1);
    assert_eq!(status(made), Status::INVALID_QUEUE_IDENTIFIER);
    let used = delete(&mut fixture, admin::DELETE_IO_CQ, 1);
    assert_eq!(status(used), Status::INVALID_QUEUE_DELETION);
    fixture.controller.deleted(QueueName::Submission(1));
    let gone = delete(&mut fixture, admin::DELETE_IO_CQ, 1);
    assert_eq!(gone, AdminReply::DeleteQueue(QueueName::Completion(1)));
    let made = make(&mut fixture, admin::CREATE_IO_CQ, 1, 64, 3);
    assert_eq!(status(made), Status::INVALID_QUEUE_IDENTIFIER);
    let late = make(&mut fixture, admin::CREATE_IO_SQ, 1, 64, 1 << 16 | 1);
    assert_eq!(status(late), Status::COMPLETION_QUEUE_INVALID);
    fixture.controller.deleted(QueueName::Completion(1));
    let made = make(&mut fixture, admin::CREATE_IO_CQ, 1, 64, 3);
    assert!(matches!(made, AdminReply::CreateQueue(_)));
    let doorbells = fixture.command(admin::DOORBELL_BUFFER_CONFIG, 0);
    assert!(matches!(
        fixture.admin(doorbells),
        AdminReply::ShadowDoorbells { .. }
    ));
    for (prp1, prp2) in [(0x10000, 0x10000), (0x10001, 0x20000), (0, 0x20000)] {
        assert_eq!(
            fixture.result(doorbells.with_prps(prp1, prp2)),
            Err(Status::INVALID_FIELD)
        );
    }
    // Reset: ready until everything has stopped.
    let effect = fixture
        .controller
        .write_property(offset::CC, 4, 0x0046_0060);
    assert_eq!(effect, Ok(Effect::Reset));
    assert_eq!(fixture.controller.read_property(offset::CSTS, 4), Ok(1));
    fixture.controller.reset_done();
    assert_eq!(fixture.controller.read_property(offset::CSTS, 4), Ok(0));
    assert_eq!(fixture.controller.admin_queues(), queues);
}

#[test]
fn blocks_that_are_compared_were_read() {
    let mut fixture = Fixture::new(TCP);
    for (opcode, reads, writes) in [
        (nvm::COMPARE, 1, 0),
        (nvm::READ, 2, 0),
        (nvm::WRITE, 2, 1),
        (nvm::COMPARE, 3, 1),
    ] {
        let entry = fixture.command(opcode, BLOCK);
        fixture.controller.io(0, 1, &entry).unwrap();
        let health = fixture.log(lid::HEALTH, 512, 0).unwrap();
        assert_eq!((health[64], health[80]), (reads, writes));
    }
}

#[test]
fn a_command_moves_no_more_blocks_than_was_announced() {
    for transport in [TCP, PCIE] {
        let mut config = config(transport);
        config.transfer_bytes_max = 100 << 10;
        let mut fixture = Fixture::disabled(config);
        fixture.enable(Configuration::ENABLE.0);
        let about = fixture.identify(cns::CONTROLLER, 0, 0).unwrap();
        let pages = 1 << IdentifyController::decode(&about).unwrap().mdts;
        assert_eq!(pages, 32);
        for opcode in [nvm::READ, nvm::WRITE, nvm::COMPARE] {
            let entry = fixture.command(opcode, BLOCK).with_cdw(12, pages - 1);
            fixture.controller.io(0, 1, &entry).unwrap();
            let entry = entry.with_cdw(12, pages);
            let refused = fixture.controller.io(0, 1, &entry).unwrap_err();
            assert_eq!(refused.code(), Status::INVALID_FIELD);
        }
        // These move no data.
        let entry = fixture.command(nvm::WRITE_ZEROES, BLOCK);
        let entry = entry.with_cdw(12, pages);
        fixture.controller.io(0, 1, &entry).unwrap();
    }
}

#[test]
fn who_only_asks_where_to_go_does_not_stay() {
    for kato_ms in [1, 59_000, 61_000, u32::MAX] {
        let mut config = config(TCP);
        config.kind = ControllerKind::Discovery;
        config.kato_ms = kato_ms;
        let fixture = Fixture::disabled(config);
        let whole = u64::from(kato_ms).next_multiple_of(1000);
        let deadline = fixture.controller.keep_alive_deadline_ms();
        assert_eq!(deadline, Some((2 * whole).min(120_000)));
    }
}
