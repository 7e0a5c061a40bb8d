//! Commands that nobody should send, and what they get.

use super::support::*;
use crate::nvme::fabrics::{Connect, Property, Refused, nqn};
use crate::nvme::feature::fid;
use crate::nvme::log_page::{GetLogPage, lid};
use crate::nvme::opcode::{FABRICS, admin, fabrics as fctype, kv, nvm};
use crate::nvme::property::{Configuration, offset};
use crate::nvme::*;

#[test]
fn commands_before_their_time_and_on_wrong_queues() {
    let mut fixture = Fixture::disabled(config(TCP));
    let early = Err(Status::COMMAND_SEQUENCE_ERROR);
    let entry = fixture.command(admin::IDENTIFY, 0);
    assert_eq!(fixture.result(entry), early);
    let entry = fixture.command(kv::FLUSH, KV);
    assert_eq!(
        fixture.controller.io(0, 1, &entry).map_err(Status::code),
        Err(Status::COMMAND_SEQUENCE_ERROR)
    );
    fixture.enable(Configuration::ENABLE.0);
    // I/O on the admin queue's number; Property and Connect where they are not allowed.
    assert!(fixture.controller.io(0, 0, &entry).is_err());
    let on_io = |fixture: &mut Fixture, entry: SubmissionQueueEntry| {
        done(fixture.controller.fabrics(0, 1, &entry, &[]))
    };
    assert_eq!(
        on_io(&mut fixture, Property::get(offset::CAP, 1)),
        Err(Status::INVALID_OPCODE)
    );
    assert_eq!(
        on_io(&mut fixture, Property::set(offset::CC, 0, 1)),
        Err(Status::INVALID_OPCODE)
    );
    for qid in [0, 1] {
        let entry = SubmissionQueueEntry::new(FABRICS, 1, u32::from(fctype::CONNECT));
        let reply = fixture.controller.fabrics(0, qid, &entry, &[0; 1024]);
        assert_eq!(done(reply), Err(Status::COMMAND_SEQUENCE_ERROR));
    }
    let reply = fixture
        .controller
        .fabrics(0, 1, &fabrics::disconnect(1), &[]);
    assert_eq!(reply, AdminReply::Disconnect);
    assert_eq!(
        fixture.result(fabrics::disconnect(1)),
        Err(Status::INVALID_OPCODE)
    );
    for command in 0..=255u8 {
        let entry = SubmissionQueueEntry::new(FABRICS, 1, u32::from(command));
        let _ = fixture.admin(entry);
        let _ = fixture.controller.fabrics(0, 1, &entry, &[]);
    }
}

#[test]
fn namespaces_that_are_not_there() {
    let mut fixture = Fixture::new(TCP);
    for nsid in [0, 3, 1024, 1025, u32::MAX - 1, u32::MAX] {
        let gone = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        for opcode in [kv::FLUSH, kv::STORE, kv::RETRIEVE, kv::DELETE] {
            let entry = fixture.command(opcode, nsid);
            assert_eq!(
                fixture.controller.io(0, 1, &entry).map_err(Status::code),
                gone.map(|()| unreachable!())
            );
        }
        assert_eq!(
            fixture.identify(0x03, nsid, 0),
            Err(Status::INVALID_NAMESPACE_OR_FORMAT)
        );
        assert_eq!(
            fixture.identify(0x08, nsid, 0),
            Err(Status::INVALID_NAMESPACE_OR_FORMAT)
        );
        let possible = (1..=1024).contains(&nsid);
        for cns in [0x00, 0x05] {
            let page = fixture.identify(cns, nsid, 0);
            match possible {
                true => assert!(page.unwrap().iter().all(|byte| *byte == 0)),
                false => assert_eq!(page, Err(Status::INVALID_NAMESPACE_OR_FORMAT)),
            }
        }
    }
    assert_eq!(
        fixture.identify(0x02, u32::MAX - 1, 0),
        Err(Status::INVALID_NAMESPACE_OR_FORMAT)
    );
    // Of the other kind.
    assert_eq!(
        fixture.identify(0x05, BLOCK, 1),
        Err(Status::INVALID_NAMESPACE_OR_FORMAT)
    );
    assert_eq!(
        fixture.identify(0x05, KV, 0),
        Err(Status::INVALID_NAMESPACE_OR_FORMAT)
    );
}

#[test]
fn structures_asked_for_in_impossible_ways() {
    let mut fixture = Fixture::new(TCP);
    let entry = fixture
        .command(admin::IDENTIFY, 0)
        .with_cdw(10, 0x1c | 6 << 16);
    assert_eq!(
        fixture.data(entry),
        Err(Status::INVALID_CONTROLLER_IDENTIFIER)
    );
    let entry = fixture
        .command(admin::IDENTIFY, 0)
        .with_cdw(10, 1)
        .with_fuse(1);
    assert_eq!(fixture.data(entry), Err(Status::INVALID_FIELD));
    let entry = fixture.command(admin::IDENTIFY, 0).with_cdw(10, 1);
    assert_eq!(
        fixture.data(entry.with_prps(0, 0)),
        Err(Status::INVALID_FIELD)
    );
    let short = SglDescriptor::transport(4095);
    assert_eq!(
        fixture.data(entry.with_sgl(short)),
        Err(Status::DATA_SGL_LENGTH_INVALID)
    );
}

#[test]
fn logs_asked_for_in_impossible_ways() {
    let mut fixture = Fixture::new(TCP);
    let ask = |fixture: &mut Fixture, bytes: u64, offset: u64, room: u32| {
        let asked = GetLogPage {
            lid: lid::ERROR_INFORMATION,
            retain_event: false,
            bytes,
            offset,
            csi: 0,
        };
        fixture.data(
            asked
                .entry(1, NSID_ALL)
                .with_sgl(SglDescriptor::transport(room)),
        )
    };
    assert_eq!(ask(&mut fixture, 64, 0, 64).unwrap().len(), 64);
    // More than there is: zeroes, but not without end.
    assert_eq!(ask(&mut fixture, 4096, 0, 4096).unwrap().len(), 4096);
    assert_eq!(
        ask(&mut fixture, 16 << 30, 0, u32::MAX),
        Err(Status::DATA_SGL_LENGTH_INVALID)
    );
    assert_eq!(
        ask(&mut fixture, 1 << 30, 0, u32::MAX).unwrap().len(),
        64 << 10
    );
    assert_eq!(ask(&mut fixture, 64, 960, 64).unwrap().len(), 64);
    for offset in [1024, 1 << 40, u64::MAX - 3] {
        assert_eq!(
            ask(&mut fixture, 64, offset, 64),
            Err(Status::INVALID_FIELD)
        );
    }
    assert_eq!(ask(&mut fixture, 64, 2, 64), Err(Status::INVALID_FIELD));
    assert_eq!(
        ask(&mut fixture, 64, 0, 60),
        Err(Status::DATA_SGL_LENGTH_INVALID)
    );
    for bit in [1, 1 << 23] {
        let entry = fixture
            .command(admin::GET_LOG_PAGE, NSID_ALL)
            .with_cdw(10, 1)
            .with_cdw(14, bit);
        assert_eq!(fixture.data(entry), Err(Status::INVALID_FIELD));
    }
    // The newest failure is first.
    let errors = ask(&mut fixture, 1024, 0, 1024).unwrap();
    assert_eq!(u16::from_le_bytes([errors[12], errors[13]]) >> 1, 0x4002);
}

#[test]
fn events_and_features_in_excess() {
    let mut fixture = Fixture::new(TCP);
    for _ in 0..4 {
        fixture.listen();
    }
    let entry = fixture.command(admin::ASYNC_EVENT_REQUEST, 0);
    assert_eq!(
        fixture.result(entry),
        Err(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED)
    );
    for value in [0xffff, 0xffff_0000, u32::MAX] {
        assert_eq!(
            fixture.set_feature(fid::NUMBER_OF_QUEUES, value),
            Err(Status::INVALID_FIELD)
        );
    }
    let entry = fixture
        .command(admin::SET_FEATURES, 0)
        .with_cdw(10, 1 << 31 | 7);
    assert_eq!(
        fixture.result(entry),
        Err(Status::FEATURE_IDENTIFIER_NOT_SAVEABLE)
    );
    let entry = fixture.command(admin::SET_FEATURES, BLOCK).with_cdw(10, 1);
    assert_eq!(
        fixture.result(entry),
        Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC)
    );
    assert_eq!(
        fixture.set_feature(fid::IO_COMMAND_SET_PROFILE, 511),
        Err(Status::IO_COMMAND_SET_COMBINATION_REJECTED)
    );
    assert_eq!(
        fixture.set_feature(fid::VOLATILE_WRITE_CACHE, 0),
        Err(Status::FEATURE_NOT_CHANGEABLE)
    );
    let entry = fixture.command(admin::SET_FEATURES, KV).with_cdw(10, 0x20);
    assert_eq!(fixture.result(entry), Err(Status::FEATURE_NOT_CHANGEABLE));
    assert_eq!(fixture.result(entry.with_cdw(11, 1)), Ok(0));
    let entry = fixture
        .command(admin::GET_FEATURES, 0)
        .with_cdw(10, 7 | 3 << 8);
    assert_eq!(fixture.result(entry), Err(Status::INVALID_FIELD));
    assert_eq!(
        fixture.set_feature(fid::HOST_IDENTIFIER, 1),
        Err(Status::COMMAND_SEQUENCE_ERROR)
    );
    // Abort of itself, of an event request, of what never was.
    for cdw10 in [0, 0x0001_0000, 0xffff_ffff, 3] {
        let entry = fixture.command(admin::ABORT, 0).with_cdw(10, cdw10);
        assert_eq!(fixture.result(entry), Ok(1));
    }
}

#[test]
fn properties_that_cannot_be() {
    let mut fixture = Fixture::disabled(config(TCP));
    for at in 0..0x1010 {
        let four = fixture.controller.read_property(at, 4);
        let eight = fixture.controller.read_property(at, 8);
        assert_eq!(four.is_ok(), matches!(at, 0x08 | 0x14 | 0x1c), "{at:x}h");
        assert_eq!(eight.is_ok(), at == 0, "{at:x}h");
        if at != 0x14 {
            assert_eq!(
                fixture.controller.write_property(at, 4, 0),
                Err(Status::INVALID_FIELD)
            );
        }
        assert_eq!(
            fixture.controller.write_property(at, 8, 0),
            Err(Status::INVALID_FIELD)
        );
    }
    let good = Configuration::ENABLE.0;
    for bad in [
        good | 15 << 7,
        good | 5 << 4 & 0x70 | 1 << 4,
        good | 7 << 11,
        good | 3 << 14,
        good | 1 << 31,
        good | 2,
    ] {
        let written = fixture
            .controller
            .write_property(offset::CC, 4, u64::from(bad));
        assert_eq!(written, Err(Status::INVALID_FIELD), "{bad:08x}h");
    }
    assert!(!fixture.controller.is_ready());
    let size =
        SubmissionQueueEntry::new(FABRICS, 1, u32::from(fctype::PROPERTY_GET)).with_cdw(10, 3);
    assert_eq!(fixture.result(size), Err(Status::INVALID_FIELD));
    for _ in 0..1000 {
        fixture.enable(good);
        let reset = fixture.controller.write_property(offset::CC, 4, 0);
        assert_eq!(reset, Ok(Effect::Reset));
    }
    // A device that is set up wrongly says so, and can be reset.
    let mut device = Fixture::disabled(config(PCIE));
    let bad = u64::from(good | 15 << 7);
    assert_eq!(
        device.controller.write_property(offset::CC, 4, bad),
        Ok(Effect::None)
    );
    assert_eq!(device.controller.read_property(offset::CSTS, 4), Ok(2));
    assert_eq!(
        device.controller.write_property(offset::CC, 4, 0),
        Ok(Effect::Reset)
    );
    device.controller.reset_done();
    device.enable(good);
    for (at, size) in [(1, 4), (2, 8), (4, 8), (0, 1), (0, 2), (0, 16)] {
        assert_eq!(
            device.controller.read_property(at, size),
            Err(Status::INVALID_FIELD)
        );
    }
    assert_eq!(device.controller.read_property(0xffff_fff8, 8), Ok(0));
    assert_eq!(
        device.controller.write_property(0xffff_fff8, 8, u64::MAX),
        Ok(Effect::None)
    );
}

fn connect() -> Connect {
    Connect {
        qid: 0,
        entries: 32,
        no_sq_flow_control: false,
        kato_ms: 0,
        host_id: [9; 16],
        cntlid: 0xffff,
        subnqn: SUBSYSTEM.to_owned(),
        hostnqn: HOST.to_owned(),
    }
}

#[test]
fn connects_that_cannot_be() {
    let good = connect();
    assert_eq!(
        Connect::parse(&good.entry(1), &good.data()),
        Ok(good.clone())
    );
    let parse = |change: fn(&mut [u8; 1024])| {
        let mut data = connect().data();
        change(&mut data);
        Connect::parse(&connect().entry(1), &data)
    };
    let in_data = |at| Err(Refused::in_data(at));
    assert_eq!(parse(|data| data[256..512].fill(b'n')), in_data(256));
    assert_eq!(parse(|data| data[256..512].fill(0)), in_data(256));
    assert_eq!(parse(|data| data[520] = 0xff), in_data(512));
    assert_eq!(parse(|data| data[520] = b'/'), in_data(512));
    assert_eq!(parse(|data| data[512..768].fill(b'a')), in_data(512));
    let wrong_length = Err(Refused::from(Status::DATA_SGL_LENGTH_INVALID));
    for len in [0, 1023, 1025] {
        assert_eq!(Connect::parse(&good.entry(1), &vec![0; len]), wrong_length);
    }
    let format = good.entry(1).with_cdw(10, 1);
    let refused = Err(Refused::from(Status::CONNECT_INCOMPATIBLE_FORMAT));
    assert_eq!(Connect::parse(&format, &good.data()), refused);
    assert_eq!(nqn(b"nqn.\0"), None);
    assert_eq!(nqn(b"nqn.a\0rest"), Some("nqn.a"));

    for entries in [1, 2, 31, 129, 65536] {
        let refused = Err(Refused::in_command(44));
        let mut connect = connect();
        connect.entries = entries;
        assert_eq!(Controller::check_admin_connect(&connect, 128), refused);
    }
    let mut static_id = connect();
    static_id.cntlid = 5;
    assert_eq!(
        Controller::check_admin_connect(&static_id, 128),
        Err(Refused::in_data(16))
    );

    let mut fixture = Fixture::new(TCP);
    let io = |change: fn(&mut Connect)| {
        let mut connect = Connect {
            qid: 1,
            cntlid: 5,
            ..connect()
        };
        change(&mut connect);
        connect
    };
    let mut join = |change: fn(&mut Connect)| fixture.controller.connect_io(&io(change));
    assert_eq!(
        join(|connect| connect.qid = 5),
        Err(Refused::in_command(42))
    );
    assert_eq!(
        join(|connect| connect.qid = 0xffff),
        Err(Refused::in_command(42))
    );
    assert_eq!(
        join(|connect| connect.entries = 1),
        Err(Refused::in_command(44))
    );
    assert_eq!(
        join(|connect| connect.entries = 65536),
        Err(Refused::in_command(44))
    );
    let stranger = Err(Refused::from(Status::CONNECT_INVALID_HOST));
    assert_eq!(join(|connect| connect.host_id[0] = 8), stranger);
    assert_eq!(join(|connect| connect.hostnqn.push('x')), stranger);
    assert_eq!(
        join(|connect| connect.subnqn.push('x')),
        Err(Refused::in_data(256))
    );
    assert_eq!(join(|_| {}), Ok(()));
    assert_eq!(
        join(|_| {}),
        Err(Refused::from(Status::INVALID_QUEUE_IDENTIFIER))
    );
}

#[test]
fn keys_sizes_and_options_that_cannot_be() {
    let mut fixture = Fixture::new(TCP);
    let mut ask = |opcode: u8, cdw10: u32, cdw11: u32, cdw12: u32| {
        let entry = fixture
            .command(opcode, KV)
            .with_cdw(10, cdw10)
            .with_cdw(11, cdw11)
            .with_cdw(12, cdw12);
        fixture
            .controller
            .io(0, 1, &entry)
            .map(|_| ())
            .map_err(Status::code)
    };
    for opcode in [kv::RETRIEVE, kv::DELETE, kv::EXIST] {
        for len in [0, 17, 255] {
            assert_eq!(ask(opcode, 0, len, 0), Err(Status::INVALID_KEY_SIZE));
        }
        assert_eq!(ask(opcode, 0, 16, 0), Ok(()));
    }
    for len in [17, 255] {
        assert_eq!(ask(kv::STORE, 0, len, 0), Err(Status::INVALID_KEY_SIZE));
        assert_eq!(ask(kv::LIST, 4, len, 0), Err(Status::INVALID_KEY_SIZE));
        assert_eq!(
            ask(kv::STORE_PART, 4, len, 0),
            Err(Status::INVALID_KEY_SIZE)
        );
    }
    for size in [VALUE_BYTES_MAX + 1, u32::MAX] {
        assert_eq!(ask(kv::STORE, size, 4, 0), Err(Status::INVALID_VALUE_SIZE));
        assert_eq!(
            ask(kv::STORE_PART, size, 4, 0),
            Err(Status::INVALID_VALUE_SIZE)
        );
    }
    assert_eq!(ask(kv::STORE, VALUE_BYTES_MAX, 4, 0), Ok(()));
    for options in 0..=255 {
        let reserved = options & 0xf0 != 0;
        let both = options & 3 == 3;
        let stored = ask(kv::STORE, 4, 4 | options << 8, 60);
        assert_eq!(
            stored == Err(Status::INVALID_FIELD),
            reserved || both,
            "{options:02x}h"
        );
        let part = ask(kv::STORE_PART, 4, 4 | options << 8, 0);
        assert_eq!(
            part == Err(Status::INVALID_FIELD),
            options & 0xf8 != 0 || both,
            "{options:02x}h"
        );
    }
    for verb in 4..=255 {
        assert_eq!(
            ask(kv::EXTENDED_KEY, 4, 0, verb),
            Err(Status::INVALID_FIELD)
        );
    }
    // Bytes behind the key are not part of it.
    let entry = fixture
        .command(kv::EXIST, KV)
        .with_cdw(2, 0x6261)
        .with_cdw(11, 1);
    let command = fixture.controller.io(0, 1, &entry).unwrap();
    let key = crate::nvme::kv::Key::new(b"a").unwrap();
    assert_eq!(
        command.verb,
        IoVerb::Kv(crate::nvme::kv::KvCommand::Exist { key })
    );
}

#[test]
fn a_key_at_the_head_of_a_retrieve_takes_data_both_ways() {
    for (transport, ended) in [(TCP, Err(Status::INVALID_KEY_SIZE)), (PCIE, Ok(4096))] {
        let mut fixture = Fixture::new(transport);
        let entry = fixture.command(kv::RETRIEVE, KV).with_cdw(10, 4096);
        let command = fixture.controller.io(0, 1, &entry);
        let bytes = command.map(|command| command.bytes_to_host);
        assert_eq!(bytes.map_err(Status::code), ended);
    }
}

#[test]
fn blocks_that_are_not_there() {
    let mut fixture = Fixture::new(TCP);
    for (first, nlb_z, inside) in [
        (0u64, 0u32, true),
        (0, 999, true),
        (999, 0, true),
        (0, 1000, false),
        (1000, 0, false),
        (u64::MAX, 0, false),
        (u64::MAX, 0xffff, false),
    ] {
        for opcode in [
            nvm::READ,
            nvm::WRITE,
            nvm::COMPARE,
            nvm::VERIFY,
            nvm::WRITE_ZEROES,
        ] {
            let entry = fixture
                .command(opcode, BLOCK)
                .with_cdw(10, first as u32)
                .with_cdw(11, (first >> 32) as u32)
                .with_cdw(12, nlb_z);
            let command = fixture.controller.io(0, 1, &entry).map_err(Status::code);
            match inside {
                true => assert!(command.is_ok()),
                false => assert_eq!(command, Err(Status::LBA_OUT_OF_RANGE)),
            }
        }
    }
    for opcode in [nvm::WRITE, nvm::WRITE_ZEROES] {
        let entry = fixture.command(opcode, READ_ONLY);
        let refused = fixture.controller.io(0, 1, &entry).unwrap_err();
        assert_eq!(refused.code(), Status::NAMESPACE_WRITE_PROTECTED);
    }
    // Halves of what cannot be fused.
    for (opcode, fuse, possible) in [
        (nvm::COMPARE, 1, true),
        (nvm::WRITE, 2, true),
        (nvm::COMPARE, 2, false),
        (nvm::WRITE, 1, false),
        (nvm::READ, 1, false),
        (nvm::WRITE, 3, false),
    ] {
        let entry = fixture.command(opcode, BLOCK).with_fuse(fuse);
        assert_eq!(fixture.controller.io(0, 1, &entry).is_ok(), possible);
    }
    let entry = fixture.command(kv::STORE, KV).with_cdw(11, 1).with_fuse(1);
    assert!(fixture.controller.io(0, 1, &entry).is_err());
}
