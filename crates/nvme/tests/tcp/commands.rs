//! What a host should do, and what comes of it.

use std::time::Duration;

use forebay_mem::Pool;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::fabrics::{Property, disconnect};
use forebay_proto::nvme::identify::{IdentifyController, cns, list_entries};
use forebay_proto::nvme::kv::{KeyAt, KvCommand, ListReader, ListStart, StoreOptions};
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{
    CompletionQueueEntry, SglDescriptor, Status, SubmissionQueueEntry, feature, log_page, opcode,
};

use crate::host::{DIGESTS, Got, Host, Options, PLAIN, bytes, key, store};
use crate::world::{BLOCK, BLOCK_BYTES, KV, World};

fn identify(host: &mut Host, cns: u8) -> Vec<u8> {
    let entry = SubmissionQueueEntry::new(opcode::admin::IDENTIFY, 0, 0);
    let (completion, data) = host.run(entry.with_cdw(10, u32::from(cns)), &[], 4096);
    assert!(completion.status.is_success());
    assert_eq!(data.len(), 4096);
    data
}

#[test]
fn a_controller_is_identified() {
    let world = World::new();
    for options in [PLAIN, DIGESTS] {
        let mut admin = world.admin(options);
        let controller = IdentifyController::decode(&identify(&mut admin, cns::CONTROLLER));
        assert!(controller.is_some());
        let active = identify(&mut admin, cns::ACTIVE_NAMESPACES);
        assert_eq!(list_entries(&active).collect::<Vec<_>>(), [KV, BLOCK]);
        let vs = admin.ok(Property::get(offset::VS, 0));
        assert_eq!(vs, 0x0002_0000);
    }
}

fn values(world: &World, options: Options, sizes: &[usize]) {
    let (_admin, mut io) = world.host(options);
    for (number, size) in sizes.iter().enumerate() {
        let name = format!("value {number}");
        let value = bytes(*size, number as u32);
        assert_eq!(io.store(&name, &value), Status::SUCCESS, "{size} bytes");
        let (len, got) = io.retrieve(&name, (*size).max(1)).unwrap();
        assert_eq!(len, *size as u64);
        assert!(got == value, "{size} bytes");
        let half = size / 2;
        if half > 0 {
            let (len, got) = io.retrieve(&name, half).unwrap();
            assert_eq!(len, *size as u64);
            assert!(got == value[..half]);
        }
        // Of more room than there is value.
        let (len, got) = io.retrieve(&name, size + 5000).unwrap();
        assert_eq!((len, got.len()), (*size as u64, *size));
    }
    let list = KvCommand::List {
        start: ListStart::First,
        extended: false,
        buffer_bytes: 4096,
    };
    let (completion, page) = io.run(list.entry(0, KV), &[], 4096);
    assert!(completion.status.is_success());
    assert_eq!(ListReader::new(&page).unwrap().count(), sizes.len());
    for number in 0..sizes.len() {
        let name = format!("value {number}");
        let exist = KvCommand::Exist { key: key(&name) }.entry(0, KV);
        let delete = KvCommand::Delete { key: key(&name) }.entry(0, KV);
        io.ok(exist);
        io.ok(delete);
        for entry in [exist, delete] {
            let (completion, _) = io.run(entry, &[], 0);
            assert_eq!(completion.status.code(), Status::KV_KEY_DOES_NOT_EXIST);
        }
    }
    let gone = io.retrieve("value 0", 10);
    assert_eq!(gone, Err(Status::KV_KEY_DOES_NOT_EXIST));
    assert_eq!(io.implied, 0, "results are in completions");
}

const SIZES: [usize; 9] = [
    0,
    1,
    4096,
    8192,
    16 << 10,
    (16 << 10) + 1,
    1 << 20,
    (1 << 20) + 1,
    (5 << 20) + 77,
];

#[test]
fn values_of_all_lengths_come_back_as_they_went() {
    let world = World::new();
    values(&world, PLAIN, &SIZES);
    values(
        &world,
        Options {
            flow_control: false,
            ..PLAIN
        },
        &SIZES,
    );
}

#[test]
fn values_of_all_lengths_come_back_as_they_went_with_digests_and_padding() {
    let world = World::new();
    values(&world, DIGESTS, &SIZES);
    values(
        &world,
        Options {
            hpda: 31,
            flow_control: true,
            ..DIGESTS
        },
        &SIZES,
    );
}

#[test]
fn the_largest_value_goes_by_one_command() {
    let world = World::new();
    let before = world.held();
    values(&world, PLAIN, &[64 << 20]);
    let (_admin, mut io) = world.host(PLAIN);
    let (completion, _) = io.run(store("too long", (64 << 20) + 1), &[], (64 << 20) + 1);
    assert_eq!(completion.status.code(), Status::INVALID_VALUE_SIZE);
    drop((_admin, io));
    world.wait_for_ends(4);
    assert_eq!(world.held(), before);
}

#[test]
fn blocks_come_back_as_they_went() {
    let world = World::new();
    for options in [
        PLAIN,
        DIGESTS,
        Options {
            flow_control: false,
            ..PLAIN
        },
    ] {
        let (_admin, mut io) = world.host(options);
        let mut reads = 0;
        for count in [1u32, 3, 4, 5, 256, 700] {
            let blocks = Blocks {
                first: u64::from(count),
                count,
            };
            let data = bytes(count as usize * BLOCK_BYTES, count);
            let write = NvmCommand::Write { blocks, fua: false };
            let (completion, _) = io.run(write.entry(0, BLOCK), &data, 0);
            assert!(completion.status.is_success());
            let read = NvmCommand::Read { blocks }.entry(0, BLOCK);
            let (completion, got) = io.run(read, &[], data.len());
            assert!(completion.status.is_success());
            assert!(got == data, "{count} blocks");
            reads += 1;
        }
        let implied = if options.flow_control { 0 } else { reads };
        assert_eq!(io.implied, implied);
        let first = Blocks {
            first: 1 << 40,
            count: 1,
        };
        let read = NvmCommand::Read { blocks: first }.entry(0, BLOCK);
        let (completion, got) = io.run(read, &[], BLOCK_BYTES);
        assert_eq!(completion.status.code(), Status::LBA_OUT_OF_RANGE);
        assert!(got.is_empty());
    }
}

#[test]
fn compare_and_write_happen_as_one_and_only_together() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    const LONG: u32 = (64 << 10) / BLOCK_BYTES as u32;
    for count in [1u32, LONG] {
        let blocks = Blocks { first: 0, count };
        let zeroes = vec![0; count as usize * BLOCK_BYTES];
        let data = bytes(zeroes.len(), count);
        let write = NvmCommand::Write { blocks, fua: false };
        io.run(write.entry(0, BLOCK), &zeroes, 0);
        let pair = |io: &mut Host, expected: &[u8]| {
            let compare = NvmCommand::Compare { blocks }.entry(0, BLOCK).with_fuse(1);
            let write = write.entry(0, BLOCK).with_fuse(2);
            let mut sent = Vec::new();
            for (entry, data) in [(compare, expected), (write, &data[..])] {
                let entry = io.numbered(entry);
                if data.len() <= 16 << 10 {
                    let sgl = SglDescriptor::in_capsule(data.len() as u32);
                    io.capsule(&entry.with_sgl(sgl), data);
                } else {
                    let sgl = SglDescriptor::transport(data.len() as u32);
                    io.capsule(&entry.with_sgl(sgl), &[]);
                }
                sent.push((entry.cid(), data.to_vec()));
            }
            let mut ends: Vec<CompletionQueueEntry> = Vec::new();
            while ends.len() < 2 {
                match io.get() {
                    Got::Completion(entry) => ends.push(entry),
                    Got::R2T(r2t) => {
                        let of = sent.iter().find(|(cid, _)| *cid == r2t.cccid);
                        io.answer(&r2t, &of.unwrap().1, 10_000);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!([ends[0].cid, ends[1].cid], [sent[0].0, sent[1].0]);
            (ends[0].status.code(), ends[1].status.code())
        };
        assert_eq!(pair(&mut io, &zeroes), (Status::SUCCESS, Status::SUCCESS));
        let other = (Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED);
        assert_eq!(pair(&mut io, &zeroes), other);
        // A first half alone is completed as soon as something else comes.
        let compare = NvmCommand::Compare { blocks }.entry(0, BLOCK).with_fuse(1);
        let first = io.numbered(compare);
        io.capsule(
            &first.with_sgl(SglDescriptor::transport(zeroes.len() as u32)),
            &[],
        );
        let flush = io.numbered(NvmCommand::Flush.entry(0, BLOCK));
        io.capsule(&flush.with_sgl(SglDescriptor::transport(0)), &[]);
        let missing = io.completion();
        assert_eq!(missing.cid, first.cid());
        assert_eq!(missing.status.code(), Status::ABORTED_MISSING_FUSED);
        assert_eq!(io.completion().cid, flush.cid());
    }
}

#[test]
fn many_commands_run_side_by_side_and_their_completions_may_overtake() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    let values: Vec<Vec<u8>> = (0..31).map(|seed| bytes(20_000, seed)).collect();
    let mut sent = Vec::new();
    let mut burst = Vec::new();
    for (number, value) in values.iter().enumerate() {
        let entry = io.numbered(store(&format!("{number}"), value.len()));
        let sgl = SglDescriptor::transport(value.len() as u32);
        burst.extend(io.capsule_bytes(&entry.with_sgl(sgl), &[]));
        sent.push(entry.cid());
    }
    io.send(&burst);
    let mut asked = Vec::new();
    for _ in &values {
        asked.push(io.r2t());
    }
    // The last first, and each in two pieces that others come between.
    for r2t in asked.iter().rev() {
        let at = sent.iter().position(|cid| *cid == r2t.cccid).unwrap();
        let pdu = io.h2c_bytes(r2t, 0, &values[at][..7000], false);
        io.send(&pdu);
    }
    for r2t in &asked {
        let at = sent.iter().position(|cid| *cid == r2t.cccid).unwrap();
        let pdu = io.h2c_bytes(r2t, 7000, &values[at][7000..], true);
        io.send(&pdu);
    }
    for _ in &values {
        assert!(io.completion().status.is_success());
    }
    for (number, value) in values.iter().enumerate() {
        let (_, got) = io.retrieve(&format!("{number}"), 20_000).unwrap();
        assert!(got == *value);
    }
}

#[test]
fn the_submission_queues_head_is_told_where_there_is_flow_control() {
    let world = World::new();
    let (_admin, mut io) = world.host(PLAIN);
    for head in (2..32).chain(0..10) {
        let flush = KvCommand::Flush.entry(0, KV);
        let (completion, _) = io.run(flush, &[], 0);
        assert_eq!(completion.sq_head, head);
    }
}

#[test]
fn a_change_of_namespaces_is_an_event() {
    let world = World::new();
    let mut admin = world.admin(PLAIN);
    let configure = SubmissionQueueEntry::new(opcode::admin::SET_FEATURES, 0, 0)
        .with_cdw(10, 0x0b)
        .with_cdw(11, feature::EVENT_NAMESPACES);
    admin.ok(configure);
    let request = SubmissionQueueEntry::new(opcode::admin::ASYNC_EVENT_REQUEST, 0, 0);
    let request = admin.numbered(request);
    admin.capsule(&request.with_sgl(SglDescriptor::transport(0)), &[]);
    admin.ok(SubmissionQueueEntry::new(opcode::admin::KEEP_ALIVE, 0, 0));
    world.publish(None);
    let event = admin.completion();
    assert_eq!(event.cid, request.cid());
    assert_eq!(
        event.result >> 16,
        u64::from(log_page::lid::CHANGED_NAMESPACES)
    );
    assert_eq!(
        list_entries(&identify(&mut admin, cns::ACTIVE_NAMESPACES)).collect::<Vec<_>>(),
        [KV]
    );
}

#[test]
fn a_command_that_waits_for_data_is_aborted() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let before = world.held();
    let value = bytes(100_000, 1);
    let entry = io.numbered(store("aborted", value.len()));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(100_000)), &[]);
    let r2t = io.r2t();
    let part = io.h2c_bytes(&r2t, 0, &value[..50_000], false);
    io.send(&part);
    let abort = |cid: u16| {
        SubmissionQueueEntry::new(opcode::admin::ABORT, 0, 0).with_cdw(10, 1 | u32::from(cid) << 16)
    };
    let aborting = admin.numbered(abort(entry.cid()));
    admin.capsule(&aborting, &[]);
    while world.held() != before {
        std::thread::yield_now();
    }
    // What was asked for comes before the completion.
    let other = io.numbered(KvCommand::Exist { key: key("other") }.entry(0, KV));
    io.capsule(&other, &[]);
    assert_eq!(io.completion().cid, other.cid());
    let rest = io.h2c_bytes(&r2t, 50_000, &value[50_000..], true);
    io.send(&rest);
    let completion = io.completion();
    assert_eq!(completion.cid, entry.cid());
    assert_eq!(completion.status.code(), Status::ABORT_REQUESTED);
    let aborted = admin.completion();
    assert_eq!((aborted.cid, aborted.result), (aborting.cid(), 0));
    assert_eq!(admin.ok(abort(entry.cid())), 1);
    assert_eq!(
        io.retrieve("aborted", 10),
        Err(Status::KV_KEY_DOES_NOT_EXIST)
    );
    assert_eq!(io.store("aborted", &value), Status::SUCCESS);
}

/// A host may free what it sends from as soon as its command is complete.
fn refusal_comes_behind_the_data(options: Options) {
    let world = World::new();
    let (_admin, mut io) = world.host(options);
    let before = world.held();
    let value = bytes(300_000, 1);
    assert_eq!(io.store("there", &value), Status::SUCCESS);
    let exist = KvCommand::Exist { key: key("there") }.entry(0, KV);
    let if_absent = KvCommand::Store {
        key: KeyAt::Inline(key("there")),
        value_bytes: value.len() as u32,
        options: StoreOptions {
            if_absent: true,
            ..StoreOptions::default()
        },
    };
    // The data in many PDUs, and in one.
    for piece in [7000, value.len()] {
        let entry = io.numbered(if_absent.entry(0, KV));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(300_000)), &[]);
        let r2t = io.r2t();
        let mut at = 0;
        for part in value.chunks(piece) {
            // What is sent meanwhile is answered meanwhile.
            let other = io.numbered(exist);
            io.capsule(&other, &[]);
            assert_eq!(io.completion().cid, other.cid());
            let last = at + part.len() == value.len();
            let mut pdu = io.h2c_bytes(&r2t, at as u32, part, last);
            let rest = pdu.split_off(pdu.len() / 2);
            io.send(&pdu);
            if last {
                assert!(!io.has_more(Duration::from_millis(100)));
            }
            io.send(&rest);
            at += part.len();
        }
        let completion = io.completion();
        assert_eq!(completion.cid, entry.cid());
        assert_eq!(completion.status.code(), Status::KEY_EXISTS);
        io.ok(exist);
        assert_eq!(world.held(), before);
    }
    assert_eq!(
        io.retrieve("there", value.len()).map(|got| got.1),
        Ok(value)
    );
}

#[test]
fn a_refusal_comes_behind_the_data_that_was_asked_for() {
    refusal_comes_behind_the_data(PLAIN);
}

#[test]
fn a_refusal_comes_behind_the_data_that_was_asked_for_with_digests() {
    refusal_comes_behind_the_data(DIGESTS);
}

#[test]
fn a_reset_ends_the_io_queues_and_others_may_come_in_their_place() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    for _ in 0..3 {
        let entry = io.numbered(store("unfinished", 50_000));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(50_000)), &[]);
        io.r2t();
        admin.ok(Property::set(offset::CC, 0x0046_0060, 0));
        assert_eq!(io.end(), None);
        let mut early = Host::initialize(world.connect(), PLAIN);
        assert!(early.join(1, admin.cntlid).is_err());
        let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
        admin.ok(enable);
        let queues = SubmissionQueueEntry::new(opcode::admin::SET_FEATURES, 0, 0)
            .with_cdw(10, 7)
            .with_cdw(11, feature::queues(4, 4));
        admin.ok(queues);
        io = world.io(&admin, 1, PLAIN);
    }
    assert_eq!(
        io.retrieve("unfinished", 10),
        Err(Status::KV_KEY_DOES_NOT_EXIST)
    );
}

#[test]
fn requests_for_events_are_forgotten_by_a_reset() {
    let world = World::new();
    let mut admin = world.admin(PLAIN);
    let request = SubmissionQueueEntry::new(opcode::admin::ASYNC_EVENT_REQUEST, 77, 0);
    let request = request.with_sgl(SglDescriptor::transport(0));
    for _ in 0..3 {
        admin.capsule(&request, &[]);
        admin.ok(SubmissionQueueEntry::new(opcode::admin::KEEP_ALIVE, 0, 0));
        admin.ok(Property::set(offset::CC, 0x0046_0060, 0));
        let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
        admin.ok(enable);
    }
    // One more than there may be.
    for cid in 100..103 {
        let request = SubmissionQueueEntry::new(opcode::admin::ASYNC_EVENT_REQUEST, cid, 0);
        admin.capsule(&request.with_sgl(SglDescriptor::transport(0)), &[]);
    }
    admin.capsule(&request, &[]);
    let request = SubmissionQueueEntry::new(opcode::admin::ASYNC_EVENT_REQUEST, 0, 0);
    let (completion, _) = admin.run(request, &[], 0);
    let limit = Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED;
    assert_eq!(completion.status.code(), limit);
}

#[test]
fn a_shutdown_ends_the_io_queues() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let shutdown = Configuration::ENABLE.with_shutdown();
    admin.ok(Property::set(offset::CC, u64::from(shutdown.0), 0));
    assert_eq!(io.end(), None);
    let csts = admin.ok(Property::get(offset::CSTS, 0));
    assert_eq!(csts >> 2 & 3, 2);
}

#[test]
fn a_queue_disconnects_and_may_come_again() {
    let world = World::new();
    let (admin, mut io) = world.host(PLAIN);
    for _ in 0..3 {
        io.ok(disconnect(0));
        assert_eq!(io.end(), None);
        drop(io);
        world.wait_for_ends(1);
        io = world.io(&admin, 1, PLAIN);
    }
}

#[test]
fn the_end_of_an_admin_queue_is_that_of_its_controller() {
    let world = World::new();
    let (admin, mut io) = world.host(PLAIN);
    assert_eq!(world.door.controllers(), 1);
    let cntlid = admin.cntlid;
    drop(admin);
    assert_eq!(io.end(), None);
    drop(io);
    world.wait_for_ends(2);
    assert_eq!(world.door.controllers(), 0);
    let mut late = Host::initialize(world.connect(), PLAIN);
    assert_eq!(
        late.join(2, cntlid),
        Err(Status::CONNECT_INVALID_PARAMETERS)
    );
}

#[test]
fn a_host_without_a_sign_of_life_is_given_up() {
    let world = World::new();
    let options = Options {
        kato_ms: 1,
        ..PLAIN
    };
    let (mut admin, mut io) = world.host(options);
    assert_eq!(admin.end(), None);
    assert_eq!(io.end(), None);
    world.wait_for_ends(2);
    assert_eq!(world.door.controllers(), 0);
}

#[test]
fn a_server_that_stops_ends_its_connections() {
    let world = World::new();
    let (mut admin, mut io) = world.host(PLAIN);
    let entry = io.numbered(store("unfinished", 50_000));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(50_000)), &[]);
    io.r2t();
    let mut early = Host::initialize(world.connect(), PLAIN);
    world.go();
    assert_eq!(admin.end(), None);
    assert_eq!(io.end(), None);
    assert_eq!(early.end(), None);
}

/// Several hosts write more at once than there are buffers, and each sends a part of everything before it ends anything: nobody waits for a
/// buffer behind whom lies what would free one.
#[test]
fn writes_whose_data_is_mixed_come_to_their_ends_with_few_buffers() {
    const BYTES: usize = 1 << 20;
    const WRITES: usize = 24;
    let world = World::over(Pool::new(16 << 20), Limits::default(), |_| {});
    let mut hosts: Vec<_> = (0..4).map(|_| world.host(PLAIN)).collect();
    std::thread::scope(|scope| {
        for (_, io) in &mut hosts {
            scope.spawn(|| {
                let data = bytes(BYTES, 9);
                for _ in 0..WRITES {
                    let blocks = Blocks {
                        first: 0,
                        count: (BYTES / BLOCK_BYTES) as u32,
                    };
                    let command = NvmCommand::Write { blocks, fua: false };
                    let entry = io.numbered(command.entry(0, BLOCK));
                    let sgl = SglDescriptor::transport(BYTES as u32);
                    io.capsule(&entry.with_sgl(sgl), &[]);
                }
                let (mut asked, mut done) = (Vec::new(), 0);
                while done < WRITES {
                    if io.has_more(Duration::from_millis(200)) {
                        match io.get() {
                            Got::Completion(completion) => {
                                assert_eq!(completion.status, Status::SUCCESS);
                                done += 1;
                            }
                            Got::R2T(r2t) => asked.push(r2t),
                            other => panic!("{other:?}"),
                        }
                        continue;
                    }
                    for half in 0..2 {
                        let from = half * BYTES / 2;
                        for r2t in &asked {
                            let part = &data[from..from + BYTES / 2];
                            let pdu = io.h2c_bytes(r2t, from as u32, part, half == 1);
                            io.send(&pdu);
                        }
                    }
                    asked.clear();
                }
            });
        }
    });
    assert_eq!(world.held(), 0);
}
