//! Hosts that break the protocol. The connection ends with the right reason, or the command with the right status; others do not
//! notice.

use std::io::{Read, Write};
use std::time::Duration;

use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::fabrics::CNTLID_DYNAMIC;
use forebay_proto::nvme::kv::{KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::{
    SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry, opcode,
};
use forebay_proto::nvme_tcp::digest::digest;
use forebay_proto::nvme_tcp::fault::{FatalErrorStatus, FatalErrorStatus::*};
use forebay_proto::nvme_tcp::{Data, PduType, R2T};

use crate::host::{DIGESTS, Got, Host, Options, PLAIN, bytes, key, store};
use crate::world::{KV, World};

const ICREQ: [u8; 128] = {
    let mut bytes = [0; 128];
    bytes[2] = 128;
    bytes[4] = 128;
    bytes
};

/// What is said when a connection begins with these bytes.
fn said(world: &World, first: &[u8]) -> Option<(FatalErrorStatus, u32)> {
    let mut stream = world.connect();
    // It may be closed before all is written.
    let _ = stream.write_all(first);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let rest = match all.first() {
        Some(1) => &all[128..],
        _ => &all[..],
    };
    if rest.is_empty() {
        return None;
    }
    assert_eq!((rest[0], rest[1], rest[2]), (3, 0, 24));
    assert_eq!(rest[4] as usize, rest.len());
    let status = match rest[8] {
        1 => InvalidPduHeaderField,
        2 => PduSequenceError,
        3 => HeaderDigestError,
        4 => DataTransferOutOfRange,
        5 => DataTransferLimitExceeded,
        _ => UnsupportedParameter,
    };
    let information = u32::from_le_bytes([rest[10], rest[11], rest[12], rest[13]]);
    Some((status, information))
}

fn changed(pdu: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut pdu = pdu.to_vec();
    pdu[at] = value;
    pdu
}

fn header(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> Vec<u8> {
    let mut pdu = vec![kind, flags, hlen, pdo];
    pdu.extend(plen.to_le_bytes());
    pdu.resize(hlen.max(8).into(), 0);
    pdu
}

#[test]
fn first_pdus_that_are_wrong_are_answered_with_the_reason() {
    let world = World::new();
    let capsule = header(4, 0, 72, 0, 72);
    for (first, expected) in [
        (capsule.clone(), Some((PduSequenceError, 0))),
        (header(6, 4, 24, 24, 32), Some((PduSequenceError, 0))),
        (header(5, 0, 24, 0, 24), Some((PduSequenceError, 0))),
        (
            b"GET / HTTP/1.1\r\n".to_vec(),
            Some((InvalidPduHeaderField, 0)),
        ),
        (changed(&ICREQ, 8, 1), Some((UnsupportedParameter, 8))),
        (changed(&ICREQ, 10, 32), Some((InvalidPduHeaderField, 10))),
        (changed(&ICREQ, 10, 255), Some((InvalidPduHeaderField, 10))),
        (changed(&ICREQ, 11, 4), Some((InvalidPduHeaderField, 11))),
        (changed(&ICREQ, 2, 127), Some((InvalidPduHeaderField, 2))),
        (changed(&ICREQ, 4, 127), Some((InvalidPduHeaderField, 4))),
        (changed(&ICREQ, 1, 1), Some((InvalidPduHeaderField, 1))),
        ([ICREQ, ICREQ].concat(), Some((PduSequenceError, 0))),
    ] {
        assert_eq!(said(&world, &first), expected, "{:x?}", &first[..8]);
    }
    // The most R2Ts there can be are one more than fit.
    let most = [&ICREQ[..12], &[0xff; 4], &ICREQ[16..], &ICREQ].concat();
    assert_eq!(said(&world, &most), Some((PduSequenceError, 0)));
}

#[test]
fn heads_that_are_wrong_are_answered_with_the_reason() {
    let world = World::new();
    for (pdu, expected) in [
        (header(4, 0, 72, 0, 0), (InvalidPduHeaderField, 4)),
        (header(4, 0, 72, 0, 7), (InvalidPduHeaderField, 4)),
        (header(4, 0, 72, 0, 8), (InvalidPduHeaderField, 4)),
        (header(4, 0, 72, 0, 71), (InvalidPduHeaderField, 4)),
        (header(4, 0, 72, 0, u32::MAX), (InvalidPduHeaderField, 3)),
        (
            header(4, 0, 72, 72, u32::MAX),
            (DataTransferLimitExceeded, 0),
        ),
        (
            header(4, 0, 72, 72, 72 + 8193),
            (DataTransferLimitExceeded, 0),
        ),
        (header(4, 0, 0, 0, 72), (InvalidPduHeaderField, 2)),
        (header(4, 0, 255, 0, 72), (InvalidPduHeaderField, 2)),
        (header(4, 0, 72, 68, 80), (InvalidPduHeaderField, 3)),
        (header(4, 0, 72, 84, 80), (InvalidPduHeaderField, 3)),
        (header(4, 0, 72, 74, 80), (InvalidPduHeaderField, 3)),
        (header(4, 1, 72, 0, 76), (InvalidPduHeaderField, 1)),
        (header(4, 2, 72, 72, 84), (InvalidPduHeaderField, 1)),
        (header(4, 4, 72, 0, 72), (InvalidPduHeaderField, 1)),
        (header(4, 0x80, 72, 0, 72), (InvalidPduHeaderField, 1)),
        (header(8, 0, 24, 0, 24), (InvalidPduHeaderField, 0)),
        (header(0x0a, 0, 24, 0, 24), (InvalidPduHeaderField, 0)),
        (header(0xff, 0, 24, 0, 24), (InvalidPduHeaderField, 0)),
        (header(1, 0, 128, 0, 128), (PduSequenceError, 0)),
        (header(3, 0, 24, 0, 24), (PduSequenceError, 0)),
        (header(7, 4, 24, 24, 32), (PduSequenceError, 0)),
        (header(9, 0, 24, 0, 24), (PduSequenceError, 0)),
        // Nobody asked for data.
        (
            [header(6, 4, 24, 24, 32), vec![0; 8]].concat(),
            (InvalidPduHeaderField, 16),
        ),
    ] {
        let first = [&ICREQ[..], &pdu].concat();
        assert_eq!(said(&world, &first), Some(expected), "{:x?}", &pdu[..8]);
    }
    // The end of a connection, announced in any way, is only an end.
    for pdu in [
        header(2, 0, 24, 0, 24),
        [header(2, 0, 24, 0, 24), header(4, 0, 72, 0, 72)].concat(),
    ] {
        assert_eq!(said(&world, &[&ICREQ[..], &pdu].concat()), None);
    }
    for plen in [8, 23, 153, 1 << 31] {
        let first = [&ICREQ[..], &header(2, 0, 24, 0, plen)].concat();
        assert_eq!(said(&world, &first), Some((InvalidPduHeaderField, 4)));
    }
    world.host(PLAIN);
}

/// A queue that has been asked for 5000 bytes.
fn asked(world: &World, options: Options) -> (Host, Host, R2T, Vec<u8>) {
    let (admin, mut io) = world.host(options);
    let value = bytes(40_000, 1);
    let entry = io.numbered(store("asked", value.len()));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(40_000)), &[]);
    let r2t = io.r2t();
    assert_eq!((r2t.cccid, r2t.offset, r2t.bytes), (entry.cid(), 0, 40_000));
    (admin, io, r2t, value)
}

#[test]
fn data_that_was_not_asked_for_so_ends_the_connection_alone() {
    let world = World::new();
    let (_witness, mut witness) = world.host(PLAIN);
    let before = world.held();
    let half = 20_000u32;
    type Lie = fn(&mut Data);
    let lies: [(Lie, FatalErrorStatus, u32); 12] = [
        (|data| data.ttag = 0, InvalidPduHeaderField, 10),
        (|data| data.ttag ^= 0x80, InvalidPduHeaderField, 10),
        (|data| data.ttag ^= 1, InvalidPduHeaderField, 10),
        (|data| data.cccid ^= 1, InvalidPduHeaderField, 8),
        (|data| data.offset = 0, DataTransferOutOfRange, 0),
        (|data| data.offset += 4, DataTransferOutOfRange, 0),
        (|data| data.offset -= 4, DataTransferOutOfRange, 0),
        (|data| data.offset = u32::MAX - 3, DataTransferOutOfRange, 0),
        (|data| data.bytes += 4, DataTransferOutOfRange, 0),
        (
            |data| data.bytes = (1 << 20) + 4,
            DataTransferLimitExceeded,
            0,
        ),
        (|data| data.last = false, InvalidPduHeaderField, 1),
        (|data| data.bytes -= 4, InvalidPduHeaderField, 1),
    ];
    for options in [PLAIN, DIGESTS] {
        for (number, (lie, status, information)) in lies.into_iter().enumerate() {
            let (_admin, mut io, r2t, value) = asked(&world, options);
            let first = io.h2c_bytes(&r2t, 0, &value[..half as usize], false);
            io.send(&first);
            let mut header = Data {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                offset: half,
                bytes: half,
                last: true,
                success: false,
            };
            lie(&mut header);
            let mut out = Vec::new();
            header.encode(PduType::H2CData, io.framing(), &mut out);
            io.send(&out);
            let said = io.end().expect("a reason");
            assert_eq!(said.known(), Some(status), "lie {number}");
            assert_eq!(said.information, information, "lie {number}");
            drop((_admin, io));
            world.wait_for_ends(2);
        }
        assert_eq!(world.held(), before);
    }
    assert_eq!(
        witness.retrieve("asked", 10),
        Err(Status::KV_KEY_DOES_NOT_EXIST)
    );
}

#[test]
fn data_that_comes_again_ends_the_connection() {
    let world = World::new();
    let (_admin, mut io, r2t, value) = asked(&world, PLAIN);
    io.answer(&r2t, &value, 10_000);
    assert!(io.completion().status.is_success());
    let again = io.h2c_bytes(&r2t, 30_000, &value[30_000..], true);
    io.send(&again);
    let said = io.end().expect("a reason");
    assert_eq!(
        (said.known(), said.information),
        (Some(InvalidPduHeaderField), 10)
    );
    let (_admin, mut io) = world.host(PLAIN);
    assert!(io.retrieve("asked", 40_000).unwrap().1 == value);
}

#[test]
fn digests_that_are_wrong() {
    let world = World::new();
    // Of data: the command fails, and no more than that.
    let (_admin, mut io, r2t, value) = asked(&world, DIGESTS);
    let mut first = io.h2c_bytes(&r2t, 0, &value[..20_000], false);
    let end = first.len();
    first[end - 1] ^= 1;
    io.send(&first);
    let second = io.h2c_bytes(&r2t, 20_000, &value[20_000..], true);
    io.send(&second);
    let completion = io.completion();
    assert_eq!(completion.status.code(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(!completion.status.do_not_retry());
    let entry = io.numbered(store("asked", 5000));
    let entry = entry.with_sgl(SglDescriptor::in_capsule(5000));
    let mut capsule = io.capsule_bytes(&entry, &value[..5000]);
    capsule[3000] ^= 1;
    io.send(&capsule);
    let completion = io.completion();
    assert_eq!(completion.cid, entry.cid());
    assert_eq!(completion.status.code(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(io.retrieve("asked", 10), Err(Status::KV_KEY_DOES_NOT_EXIST));
    assert_eq!(io.store("asked", &value), Status::SUCCESS);
    // Of data behind a value whose key comes before it.
    let command = KvCommand::Store {
        key: KeyAt::Head,
        value_bytes: 100,
        options: StoreOptions::default(),
    };
    let entry = io.numbered(command.entry(0, KV));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(20_000)), &[]);
    let r2t = io.r2t();
    let mut data = vec![0; r2t.bytes as usize];
    data[..6].copy_from_slice(b"\x04\x00head");
    let mut all = io.h2c_bytes(&r2t, 0, &data, true);
    let end = all.len();
    all[end - 1] ^= 1;
    io.send(&all);
    let completion = io.completion();
    assert_eq!(completion.status.code(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(io.retrieve("head", 10), Err(Status::KV_KEY_DOES_NOT_EXIST));
    // Of a head: nothing can be trusted any more.
    let mut capsule = io.capsule_bytes(&entry, &value[..5000]);
    capsule[20] ^= 1;
    io.send(&capsule);
    let said = io.end().expect("a reason");
    assert_eq!(said.known(), Some(HeaderDigestError));
    // Without the digest that was agreed on.
    let (_admin, mut io) = world.host(DIGESTS);
    io.send(&header(4, 0, 72, 0, 72));
    let said = io.end().expect("a reason");
    assert_eq!(
        (said.known(), said.information),
        (Some(InvalidPduHeaderField), 1)
    );
    assert_eq!(digest(b"123456789"), [0x83, 0x92, 0x06, 0xe3]);
}

#[test]
fn data_pointers_that_lie_end_the_command() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let lie = |kind, subtype, address, length| SglDescriptor {
        kind,
        subtype,
        address,
        length,
    };
    let block = SglKind::DataBlock;
    for (sgl, carried, expected) in [
        (
            lie(block, SglSubtype::Offset, 0, 99),
            100,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            lie(block, SglSubtype::Offset, 0, 101),
            100,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            lie(block, SglSubtype::Offset, 0, 0),
            100,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            lie(block, SglSubtype::Offset, 0, 100),
            0,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            lie(block, SglSubtype::Offset, 4, 100),
            100,
            Status::SGL_OFFSET_INVALID,
        ),
        (
            lie(block, SglSubtype::Offset, u64::MAX - 3, 100),
            100,
            Status::SGL_OFFSET_INVALID,
        ),
        (
            lie(block, SglSubtype::Address, 0, 100),
            100,
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        (
            SglDescriptor::transport(100),
            100,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            SglDescriptor::transport(99),
            0,
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            lie(SglKind::Other(15), SglSubtype::Address, 0, 100),
            0,
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        (
            lie(SglKind::LastSegment, SglSubtype::Offset, 0, 16),
            16,
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
    ] {
        let entry = io.numbered(store("lie", 100)).with_sgl(sgl);
        io.capsule(&entry, &vec![1; carried]);
        let completion = io.completion();
        assert_eq!(completion.cid, entry.cid());
        assert_eq!(completion.status.code(), expected, "{sgl:?}");
    }
    // PRPs are not for fabrics.
    let entry = io.numbered(store("lie", 100)).with_prps(4096, 0);
    io.capsule(&entry, &[]);
    assert_eq!(io.completion().status.code(), Status::INVALID_FIELD);
    // Data that no command of this kind has is thrown away.
    for opcode in [
        opcode::kv::DELETE,
        opcode::kv::RETRIEVE,
        0x83,
        0xff,
        opcode::kv::FLUSH,
    ] {
        let entry = SubmissionQueueEntry::new(opcode, 0, KV);
        let entry = io.numbered(entry).with_sgl(SglDescriptor::in_capsule(5000));
        io.capsule(&entry, &[9; 5000]);
        assert_eq!(io.completion().cid, entry.cid());
    }
    let keep_alive = SubmissionQueueEntry::new(opcode::admin::KEEP_ALIVE, 0, 0);
    let entry = admin.numbered(keep_alive);
    let entry = entry.with_sgl(SglDescriptor::in_capsule(8192));
    admin.capsule(&entry, &[9; 8192]);
    assert!(admin.completion().status.is_success());
    // A value that is shorter than its buffer.
    let entry = io.numbered(store("short", 10));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(1 << 30)), &[]);
    let r2t = io.r2t();
    assert_eq!(r2t.bytes, 10);
    io.answer(&r2t, b"0123456789", 3);
    assert!(io.completion().status.is_success());
    assert_eq!(io.retrieve("short", 20).unwrap().1, b"0123456789");
    assert_eq!(io.store("lie", b"value"), Status::SUCCESS);
}

#[test]
fn identifiers_in_use_are_refused_and_not_mixed_up() {
    let world = World::new();
    let (_admin, mut io, r2t, value) = asked(&world, PLAIN);
    let mut bytes = *store("other", 0).as_bytes();
    bytes[2..4].copy_from_slice(&r2t.cccid.to_le_bytes());
    let twin = SubmissionQueueEntry::from_bytes(&bytes);
    io.capsule(&twin.with_sgl(SglDescriptor::transport(0)), &[]);
    let completion = io.completion();
    assert_eq!(completion.cid, r2t.cccid);
    assert_eq!(completion.status.code(), Status::CID_CONFLICT);
    io.answer(&r2t, &value, 50_000);
    assert!(io.completion().status.is_success());
    assert!(io.retrieve("asked", 40_000).unwrap().1 == value);
    assert!(io.retrieve("other", 1).is_err());
}

#[test]
fn more_commands_than_entries_end_the_connection() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    for _ in 0..33 {
        let entry = io.numbered(store("many", 40_000));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(40_000)), &[]);
    }
    let said = io.end().expect("a reason");
    assert_eq!(said.known(), Some(PduSequenceError));
}

#[test]
fn queues_are_joined_by_their_own_host_alone_and_once() {
    let world = World::new();
    let (admin, mut io) = world.host(PLAIN);
    let refused = |qid: u16, cntlid: u16| {
        let mut host = Host::initialize(world.connect(), PLAIN);
        host.join(qid, cntlid).unwrap_err()
    };
    assert_eq!(refused(1, admin.cntlid), Status::INVALID_QUEUE_IDENTIFIER);
    assert_eq!(refused(5, admin.cntlid), Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(
        refused(2, admin.cntlid + 1),
        Status::CONNECT_INVALID_PARAMETERS
    );
    // Commands before Connect, then a Connect of another, then one that is right, then one too many.
    let mut host = Host::initialize(world.connect(), PLAIN);
    let (completion, _) = host.run(KvCommand::Flush.entry(0, KV), &[], 0);
    assert_eq!(completion.status.code(), Status::COMMAND_SEQUENCE_ERROR);
    let (entry, mut data) = host.connect_command(2, admin.cntlid);
    data[0] ^= 1;
    host.capsule(&entry, &data);
    assert_eq!(
        host.completion().status.code(),
        Status::CONNECT_INVALID_HOST
    );
    host.capsule(&entry, &data[..1000]);
    assert_eq!(
        host.completion().status.code(),
        Status::DATA_SGL_LENGTH_INVALID
    );
    let transport = entry.with_sgl(SglDescriptor::transport(1024));
    host.capsule(&transport, &[]);
    assert_eq!(
        host.completion().status.code(),
        Status::DATA_SGL_LENGTH_INVALID
    );
    assert!(host.join(2, admin.cntlid).is_ok());
    assert_eq!(host.store("joined", b"1"), Status::SUCCESS);
    let again = host.join(3, admin.cntlid);
    assert_eq!(again, Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(io.store("joined", b"2"), Status::SUCCESS);
}

/// Whoever knows the owner's name, and the number of its controller, is not the owner.
#[test]
fn a_queue_of_the_owners_controller_is_joined_by_the_owner_alone() {
    let world = World::with(Limits::default(), |config| config.allow_any_host = false);
    world.trust(true);
    let admin = world.admin(PLAIN);
    world.trust(false);
    for (qid, cntlid) in [(0, CNTLID_DYNAMIC), (1, admin.cntlid)] {
        let mut stranger = Host::initialize(world.connect(), PLAIN);
        let refused = stranger.join(qid, cntlid);
        assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST), "queue {qid}");
    }
    world.trust(true);
    let mut io = world.io(&admin, 1, PLAIN);
    assert_eq!(io.store("own", b"1"), Status::SUCCESS);
}

#[test]
fn a_flood_of_connections_leaves_others_alone() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    let idle: Vec<_> = (0..300).map(|_| world.connect()).collect();
    let mut half: Vec<_> = (0..100)
        .map(|_| Host::initialize(world.connect(), PLAIN))
        .collect();
    for host in &mut half {
        let (entry, data) = host.connect_command(0, CNTLID_DYNAMIC);
        let capsule = host.capsule_bytes(&entry, &data);
        host.send(&capsule[..200]);
    }
    assert_eq!(io.store("flood", &bytes(1 << 20, 1)), Status::SUCCESS);
    drop((idle, half));
    world.wait_for_ends(400);
    for _ in 0..100 {
        world.admin(PLAIN);
        world.wait_for_ends(1);
    }
    assert_eq!(world.door.controllers(), 1);
}

#[test]
fn whoever_is_silent_is_not_waited_for() {
    // Whoever is not silent is bound by it, too, on a machine that does much else.
    const PATIENCE: Duration = Duration::from_secs(1);
    let world = World::with_limits(Limits {
        begin: PATIENCE,
        stall: PATIENCE,
        ..Limits::default()
    });
    let (_witness, mut witness) = world.host(PLAIN);
    assert_eq!(witness.store("value", &bytes(8 << 20, 1)), Status::SUCCESS);
    let before = world.held();
    // No ICReq, no Connect.
    let mut silent = world.connect();
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
    let mut host = Host::initialize(world.connect(), PLAIN);
    assert_eq!(host.end(), None);
    // Half of a capsule, half of a value.
    let (_admin, mut io) = world.host(PLAIN);
    io.send(&header(4, 0, 72, 0, 72)[..50]);
    assert_eq!(io.end(), None);
    let (_admin, mut io, r2t, value) = asked(&world, PLAIN);
    let part = io.h2c_bytes(&r2t, 0, &value[..20_000], false);
    io.send(&part);
    assert_eq!(io.end(), None);
    // A value that it does not read.
    let (_admin, mut io) = world.host(PLAIN);
    let command = KvCommand::Retrieve {
        key: key("value"),
        buffer_bytes: 8 << 20,
    };
    for _ in 0..8 {
        let entry = io.numbered(command.entry(0, KV));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(8 << 20)), &[]);
    }
    world.wait_for_ends(5);
    assert_eq!(world.held(), before);
    // Whoever owes nothing may be as silent as it likes.
    assert_eq!(witness.store("value", b"other"), Status::SUCCESS);
}

#[test]
fn whoever_trickles_is_heard() {
    let world = World::new();
    let mut trickle = world.connect();
    for byte in ICREQ {
        trickle.write_all(&[byte]).unwrap();
    }
    let mut response = [0; 128];
    trickle.read_exact(&mut response).unwrap();
    let (_admin, mut io) = world.host(DIGESTS);
    let entry = io.numbered(store("trickle", 100));
    let entry = entry.with_sgl(SglDescriptor::in_capsule(100));
    let capsule = io.capsule_bytes(&entry, &bytes(100, 1));
    for byte in capsule {
        io.send(&[byte]);
    }
    assert!(io.completion().status.is_success());
    let entry = io.numbered(store("trickle", 300));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(300)), &[]);
    let r2t = io.r2t();
    for at in 0..300u32 {
        let pdu = io.h2c_bytes(&r2t, at, &[at as u8], at == 299);
        for byte in pdu {
            io.send(&[byte]);
        }
    }
    assert!(io.completion().status.is_success());
    let value = io.retrieve("trickle", 300).unwrap().1;
    assert!(value == (0..300u32).map(|at| at as u8).collect::<Vec<_>>());
}

#[test]
fn a_namespace_that_goes_under_a_command_ends_it() {
    let world = World::new();
    let (_admin, mut io, r2t, value) = asked(&world, PLAIN);
    world.target.publish(Vec::new());
    io.answer(&r2t, &value, 1 << 20);
    // As it began, or not at all; the queue goes on either way.
    io.completion();
    loop {
        let exist = KvCommand::Exist { key: key("asked") }.entry(0, KV);
        let (completion, _) = io.run(exist, &[], 0);
        if completion.status.code() == Status::INVALID_NAMESPACE_OR_FORMAT {
            break;
        }
    }
    world.publish(None);
    loop {
        if io.store("again", b"1").is_success() {
            break;
        }
    }
    let Got::Closed = ({
        let Host { stream, .. } = &io;
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        io.get()
    }) else {
        panic!("a connection that goes on");
    };
}
