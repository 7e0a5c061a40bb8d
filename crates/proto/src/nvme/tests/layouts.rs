//! Structures as they travel: every field where the specification puts it.

use super::support::*;
use crate::nvme::discovery::*;
use crate::nvme::feature::fid;
use crate::nvme::identify::*;
use crate::nvme::log_page::lid;
use crate::nvme::opcode::{admin, kv, nvm};
use crate::nvme::property::offset;
use crate::nvme::*;

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

#[test]
fn identify_controller_over_tcp() {
    let page = Fixture::new(TCP).identify(cns::CONTROLLER, 0, 0).unwrap();
    assert_eq!(page[..4], [0; 4]);
    assert_eq!(page[4..24], *b"0123456789          ");
    assert_eq!(page[24..64], *b"Forebay                                 ");
    assert_eq!(page[64..72], *b"1.0     ");
    assert_eq!((page[76], page[77], u16_at(&page, 78)), (0x0a, 14, 5));
    assert_eq!(u32_at(&page, 80), 0x0002_0000);
    assert_eq!((u32_at(&page, 92), u32_at(&page, 96)), (0x900, 0x41));
    assert_eq!(page[111], 1);
    assert_eq!(u16_at(&page, 256), 0);
    assert_eq!(page[258..263], [3, 3, 3, 6, 15]);
    assert_eq!(u16_at(&page, 320), 10);
    // ANATT, ANACAP, ANAGRPMAX, NANAGRPID; MNAN is NN.
    assert_eq!(page[342..352], [1, 0x41, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(u32_at(&page, 540), 1024);
    assert_eq!(page[512..514], [0x66, 0x44]);
    assert_eq!((u16_at(&page, 514), u32_at(&page, 516)), (128, 1024));
    assert_eq!(
        (u16_at(&page, 520), u16_at(&page, 522), page[525]),
        (0x8d, 1, 5)
    );
    assert_eq!(u32_at(&page, 536), 1 | 1 << 20 | 1 << 21);
    assert_eq!(page[768..793], *b"nqn.2026-01.example:pool\0");
    assert_eq!((u32_at(&page, 1792), u32_at(&page, 1796)), (516, 1));
    assert_eq!(
        (u16_at(&page, 1800), page[1803], u16_at(&page, 1804)),
        (0, 1, 1)
    );
}

#[test]
fn identify_controller_of_a_device() {
    let page = Fixture::new(PCIE).identify(cns::CONTROLLER, 0, 0).unwrap();
    assert_eq!(page[..4], [0x58, 0x4e, 0x58, 0x4e]);
    assert_eq!((u16_at(&page, 256), u16_at(&page, 320)), (1 << 8, 0));
    assert_eq!(u32_at(&page, 536), 1);
    assert_eq!((page[76], u32_at(&page, 540)), (0x0a, 1024));
    assert_eq!(page[1792..1806], [0; 14]);
}

#[test]
fn namespaces_of_both_kinds() {
    let mut fixture = Fixture::new(TCP);
    let page = fixture.identify(cns::NAMESPACE, READ_ONLY, 0).unwrap();
    for at in [0, 8, 16] {
        assert_eq!(u64_at(&page, at), 1000);
    }
    assert_eq!(
        (page[25], page[26], page[30], page[33], page[99]),
        (0, 0, 1, 9, 1)
    );
    assert_eq!(u32_at(&page, 92), 1);
    assert_eq!(page[104..120], [READ_ONLY as u8; 16]);
    assert_eq!(u32_at(&page, 128), 12 << 16);
    let page = fixture.identify(cns::IO_NAMESPACE, KV, 1).unwrap();
    assert_eq!((u64_at(&page, 0), u64_at(&page, 16)), (1 << 40, 12345));
    assert_eq!((page[25], page[26], u32_at(&page, 36)), (0, 1, 1));
    assert_eq!(page[48..64], [KV as u8; 16]);
    assert_eq!(
        (u16_at(&page, 72), u32_at(&page, 76), u32_at(&page, 80)),
        (16, VALUE_BYTES_MAX, 0)
    );
    assert_eq!(page[3840..3852], *b"FBKV\x01\0\x0f\0\xff\0\0\0");
    assert_eq!(u32_at(&page, 3852), 1 << 20);
    assert_eq!(page[3856..], [0; 240]);
    let page = fixture.identify(cns::IO_CONTROLLER, 0, 1).unwrap();
    assert_eq!(u32_at(&page, 0), 0x0001_0000);
    let page = fixture
        .identify(cns::INDEPENDENT_NAMESPACE, READ_ONLY, 0)
        .unwrap();
    assert_eq!((page[1], u32_at(&page, 4), page[8], page[14]), (1, 1, 1, 1));
    let page = fixture.identify(cns::NAMESPACE_DESCRIPTORS, KV, 0).unwrap();
    assert_eq!(page[..4], [2, 16, 0, 0]);
    assert_eq!(page[20..24], [3, 16, 0, 0]);
    assert_eq!(page[40..50], [4, 1, 0, 0, 1, 0, 0, 0, 0, 0]);
    let page = fixture.identify(cns::IO_COMMAND_SETS, 0, 0).unwrap();
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8)), (3, 0));
}

#[test]
fn logs() {
    let mut fixture = Fixture::new(TCP);
    let effects = fixture.log(lid::COMMANDS_AND_EFFECTS, 4096, 1).unwrap();
    let of_admin = |opcode: u8| u32_at(&effects, usize::from(opcode) * 4);
    assert_eq!(
        (of_admin(admin::IDENTIFY), of_admin(admin::CREATE_IO_CQ)),
        (1, 0)
    );
    for (opcode, bits) in [
        (kv::STORE, 3),
        (kv::LIST, 1),
        (kv::EXIST, 1),
        (kv::DELETE, 3),
        // Functions change nothing; over fabrics none has data both ways.
        (kv::EXECUTE, 0),
        (kv::EXECUTE_SUBMIT, 1),
        (kv::EXECUTE_FETCH, 1),
        (kv::EXECUTE_INLINE, 1),
        (0x84, 0),
    ] {
        assert_eq!(
            u32_at(&effects, 1024 + usize::from(opcode) * 4),
            bits,
            "{opcode:02x}h"
        );
    }
    let read = fixture.command(nvm::READ, BLOCK).with_cdw(12, 249);
    fixture.controller.io(0, 1, &read).unwrap();
    let gone = fixture.command(nvm::READ, 99);
    fixture.controller.io(0, 3, &gone).unwrap_err();
    let health = fixture.log(lid::HEALTH, 512, 0).unwrap();
    assert_eq!((health[0], u16_at(&health, 1), health[3]), (0, 298, 100));
    // 250 blocks of 4096 bytes are two units of 512000.
    assert_eq!((u64_at(&health, 32), u64_at(&health, 64)), (2, 1));
    let errors = fixture.log(lid::ERROR_INFORMATION, 64, 0).unwrap();
    assert_eq!(
        (u64_at(&errors, 0), u16_at(&errors, 8), u16_at(&errors, 10)),
        (1, 3, gone.cid())
    );
    assert_eq!(
        (u16_at(&errors, 12), u32_at(&errors, 24)),
        (0x400b << 1, 99)
    );
    let firmware = fixture.log(lid::FIRMWARE_SLOT, 512, 0).unwrap();
    assert_eq!((firmware[0], &firmware[8..16]), (1, &b"1.0     "[..]));
}

#[test]
fn the_log_of_asymmetric_namespace_access() {
    let mut fixture = Fixture::new(PCIE);
    let log = fixture.log(lid::ANA, 64, 0).unwrap();
    assert_eq!((u64_at(&log, 0), u64_at(&log, 8)), (1, 1));
    // The group, how many namespaces, changes, optimized; the namespaces.
    assert_eq!((u32_at(&log, 16), u32_at(&log, 20)), (1, 3));
    assert_eq!((u64_at(&log, 24), u64_at(&log, 32)), (1, 1));
    assert_eq!(log[40..48], [0; 8]);
    let nsids = [48, 52, 56].map(|at| u32_at(&log, at));
    assert_eq!((nsids, u32_at(&log, 60)), ([BLOCK, KV, READ_ONLY], 0));
    // RGO.
    let entry = fixture.command(admin::GET_LOG_PAGE, NSID_ALL);
    let groups = fixture.data(entry.with_cdw(10, 0x0c | 1 << 8 | 15 << 16));
    let groups = groups.unwrap();
    assert_eq!((u64_at(&groups, 0), u64_at(&groups, 8)), (1, 1));
    assert_eq!((u32_at(&groups, 16), u32_at(&groups, 20)), (1, 0));
    assert_eq!((groups[32], &groups[48..]), (1, &[0; 16][..]));
    // A change is counted; no namespaces, no group.
    fixture.controller.set_subsystem(subsystem(vec![]));
    let log = fixture.log(lid::ANA, 64, 0).unwrap();
    assert_eq!((u64_at(&log, 0), &log[8..]), (2, &[0; 56][..]));
}

#[test]
fn the_discovery_log() {
    let log = DiscoveryLog {
        generation: 0x0102,
        entries: vec![DiscoveryEntry {
            transport: TRANSPORT_TCP,
            address_family: 2,
            kind: SubsystemType::CurrentDiscovery,
            port_id: 7,
            service: "8009".to_owned(),
            subnqn: fabrics::DISCOVERY_NQN.to_owned(),
            address: "::1".to_owned(),
            secure_channel: SecureChannel::Required,
        }],
    };
    let bytes = log.encode();
    assert_eq!(bytes.len(), 2048);
    assert_eq!(
        (u64_at(&bytes, 0), u64_at(&bytes, 8), u16_at(&bytes, 16)),
        (0x0102, 1, 0)
    );
    let entry = &bytes[1024..];
    assert_eq!(entry[..12], [3, 2, 3, 1, 7, 0, 0xff, 0xff, 32, 0, 2, 0]);
    assert_eq!(entry[32..38], *b"8009  ");
    assert_eq!(entry[256..293], *b"nqn.2014-08.org.nvmexpress.discovery\0");
    assert_eq!(entry[512..517], *b"::1  ");
    // TSAS: TLS 1.3.
    assert_eq!(entry[768..770], [2, 0]);
    assert_eq!(DiscoveryLog::decode(&bytes), Some(log));
}

#[test]
fn properties_and_grants() {
    let mut fixture = Fixture::new(TCP);
    let cap = fixture.controller.read_property(offset::CAP, 8);
    assert_eq!(cap, Ok(1 << 43 | 1 << 37 | 20 << 24 | 1 << 16 | 127));
    assert_eq!(
        fixture.set_feature(fid::NUMBER_OF_QUEUES, 1),
        Ok(0x0001_0001)
    );
    assert_eq!(fixture.get_feature(fid::NUMBER_OF_QUEUES), Ok(0x0001_0001));
    let entry = fixture.command(admin::GET_FEATURES, 0).with_cdw(10, 0x81);
    assert_eq!(fixture.data(entry.with_cdw(11, 1)), Ok(vec![9; 16]));
    assert_eq!(
        fixture.data(entry),
        Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT)
    );
}
