//! Hosts that ask for more than they take or send: others have what they need all the same.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Config, Engine};
use forebay_io::SystemClock;
use forebay_io::sim::SimDisk;
use forebay_mem::Pool;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::discovery::{
    DiscoveryEntry, DiscoveryLog, SecureChannel, SubsystemType, TRANSPORT_TCP,
};
use forebay_proto::nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN, Property};
use forebay_proto::nvme::kv::{KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::log_page::{GetLogPage, lid};
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::property::{Configuration, offset};
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry, opcode};

use crate::again::all_buffers;
use crate::host::{Got, Host, Options, PLAIN, bytes, key, store};
use crate::world::{BLOCK, BLOCK_BYTES, IN_CAPSULE_BYTES, KV, NQN, World};

/// Hosts of other names than the one that is to have what it needs.
const GREEDY: [&str; 4] = [
    "nqn.2026-01.org.example:greedy-1",
    "nqn.2026-01.org.example:greedy-2",
    "nqn.2026-01.org.example:greedy-3",
    "nqn.2026-01.org.example:greedy-4",
];

const READ_BYTES: usize = 1 << 20;

/// Asks for a mebibyte of blocks.
fn ask_to_read(io: &mut Host) {
    let blocks = Blocks {
        first: 0,
        count: (READ_BYTES / BLOCK_BYTES) as u32,
    };
    let entry = io.numbered(NvmCommand::Read { blocks }.entry(0, BLOCK));
    let sgl = SglDescriptor::transport(READ_BYTES as u32);
    io.capsule(&entry.with_sgl(sgl), &[]);
}

/// Takes so many answers to that.
fn take_all(io: &mut Host, answers: usize) {
    let (mut left, mut completions) = (answers * READ_BYTES, 0);
    while left > 0 || completions < answers {
        match io.get() {
            Got::Data(_, data) => left -= data.len(),
            Got::Completion(completion) if completion.status.is_success() => completions += 1,
            other => panic!("{other:?}"),
        }
    }
}

/// A host that asks so often and takes nothing.
fn reads_without_taking(world: &World, nqn: &'static str, reads: usize) -> (Host, Host) {
    let (admin, mut io) = world.host(Options {
        entries: 128,
        nqn,
        ..PLAIN
    });
    for _ in 0..reads {
        ask_to_read(&mut io);
    }
    (admin, io)
}

/// Looks until hosts hold all that they will, or nearly.
fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    loop {
        let before = look();
        std::thread::sleep(Duration::from_millis(200));
        if look() == before {
            return before;
        }
    }
}

/// Nobody is cut off for what it does not do, unless others wait.
fn patient(wanted: Duration) -> Limits {
    Limits {
        wanted,
        stall: Duration::from_secs(3600),
        ..Limits::default()
    }
}

#[test]
fn memory_that_others_wait_for_is_not_held_by_the_silent() {
    let limits = patient(Duration::from_millis(50));
    // Half of it is lent, and half of that to one host.
    let world = World::over(Pool::new(8 << 20), limits, |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let ask = |nqn| {
        let (admin, mut io) = world.host(Options { nqn, ..PLAIN });
        let entry = io.numbered(store("asked", 2 << 20));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(2 << 20)), &[]);
        io.r2t();
        (admin, io)
    };
    let silent = [ask(GREEDY[0]), ask(GREEDY[1])];
    let stored = witness.store("witness", &bytes(1 << 20, 1));
    assert_eq!(stored, Status::SUCCESS);
    // One of the two may have been enough.
    world.wait_for_ends(1);
    drop(silent);
    assert_eq!(
        witness.retrieve("asked", 1).unwrap_err(),
        Status::KV_KEY_DOES_NOT_EXIST
    );
}

#[test]
fn answers_that_nobody_reads_hold_little() {
    let world = World::over(
        Pool::new(16 << 20),
        patient(Duration::from_secs(3600)),
        |_| {},
    );
    let (_witness, mut witness) = world.host(PLAIN);
    let before = world.held();
    // All that its queue has room for.
    let (_admin, mut io) = reads_without_taking(&world, GREEDY[0], 100);
    for _ in 0..8 {
        assert_eq!(
            witness.store("witness", &bytes(2 << 20, 1)),
            Status::SUCCESS
        );
    }
    assert!(world.held() - before <= 8 << 20, "{}", world.held());
    // They come when they are read.
    take_all(&mut io, 100);
}

#[test]
fn answers_that_several_hosts_do_not_read_are_not_in_the_way_of_another() {
    let limits = patient(Duration::from_millis(50));
    let world = World::over(Pool::new(16 << 20), limits, |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let _greedy = GREEDY.map(|nqn| reads_without_taking(&world, nqn, 100));
    settled(|| world.held());
    for _ in 0..8 {
        ask_to_read(&mut witness);
        take_all(&mut witness, 1);
    }
}

#[test]
fn a_host_has_no_more_by_coming_several_times() {
    let limits = patient(Duration::from_secs(3600));
    let world = World::over(Pool::new(16 << 20), limits, |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let before = world.held();
    let _greedy = [GREEDY[0]; 4].map(|nqn| reads_without_taking(&world, nqn, 100));
    settled(|| world.held());
    for _ in 0..8 {
        let stored = witness.store("witness", &bytes(2 << 20, 1));
        assert_eq!(stored, Status::SUCCESS);
    }
    assert!(world.held() - before <= 4 << 20, "{}", world.held());
}

#[test]
fn commands_without_data_leave_buffers_to_others() {
    const ASKED: usize = 100;
    /// It fills its buffer so little that the store keeps it elsewhere: it has to take one of those that all have.
    const VALUE_BYTES: usize = 600_000;
    let world = World::over(Pool::new(8 << 20), Limits::default(), |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let (_admin, mut io) = world.host(Options {
        entries: 128,
        nqn: GREEDY[0],
        ..PLAIN
    });
    let blocks = Blocks {
        first: 0,
        count: (2 * READ_BYTES / BLOCK_BYTES) as u32,
    };
    let zeroes = NvmCommand::WriteZeroes {
        blocks,
        deallocate: false,
        fua: false,
    };
    for command in [NvmCommand::Verify { blocks }, zeroes] {
        world.file.keep_reads(true);
        world.file.keep(true);
        for _ in 0..ASKED {
            let entry = io.numbered(command.entry(0, BLOCK));
            io.capsule(&entry, &[]);
        }
        settled(|| world.held());
        let stored = witness.store("witness", &bytes(VALUE_BYTES, 1));
        assert_eq!(stored, Status::SUCCESS);
        world.file.keep_reads(false);
        world.file.keep(false);
        for _ in 0..ASKED {
            assert!(io.completion().status.is_success());
        }
    }
}

/// A part of a value that does not end with it.
fn part(name: &str, offset: usize, len: usize) -> KvCommand {
    KvCommand::StorePart {
        key: KeyAt::Inline(key(name)),
        offset: offset as u64,
        value_bytes: len as u32,
        options: StoreOptions::default(),
        last: false,
    }
}

#[test]
fn values_that_do_not_end_leave_buffers_to_others() {
    const PART_BYTES: usize = (1 << 20) - (4 << 10);
    const VALUES: usize = 32;
    let pool = Pool::new(16 << 20);
    let config = Config {
        segment_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 0,
        index_cache_bytes: 1 << 20,
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::open(SimDisk::new(1), clock, pool.clone(), config).unwrap();
    let world = World::of(engine, pool, Limits::default(), |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let data = bytes(PART_BYTES, 1);
    let mut taken = 0;
    let greedy = [GREEDY[0]; 2].map(|nqn| {
        let (admin, mut io) = world.host(Options { nqn, ..PLAIN });
        for number in 0..VALUES {
            let part = part(&format!("part {number}"), 0, PART_BYTES);
            let (completion, _) = io.run(part.entry(0, KV), &data, 0);
            match completion.status.code() {
                Status::SUCCESS => taken += 1,
                Status::CAPACITY_EXCEEDED => {}
                other => panic!("{other}"),
            }
        }
        (admin, io)
    });
    assert!(taken > 0, "one is not many");
    let stored = witness.store("witness", &bytes(2 << 20, 1));
    assert_eq!(stored, Status::SUCCESS);
    // What ends makes room.
    drop(greedy);
    world.wait_for_ends(4);
    let (completion, _) = witness.run(part("part", 0, PART_BYTES).entry(0, KV), &data, 0);
    assert_eq!(completion.status.code(), Status::SUCCESS);
}

fn way(service: &str) -> DiscoveryEntry {
    DiscoveryEntry {
        transport: TRANSPORT_TCP,
        address_family: 1,
        kind: SubsystemType::Nvm,
        port_id: 1,
        service: service.to_owned(),
        subnqn: NQN.to_owned(),
        address: "127.0.0.1".to_owned(),
        secure_channel: SecureChannel::NotSpecified,
    }
}

#[test]
fn answers_of_admin_queues_are_made_when_there_is_room_for_them() {
    const ASKED: usize = 128;
    const LOG_BYTES: usize = 64 << 10;
    let world = World::new();
    world.target.set_addresses(vec![way("4420")]);
    let (mut one_shard, mut other_shard) = world.host(PLAIN);
    world.narrow();
    let options = Options {
        entries: ASKED as u32,
        nqn: GREEDY[0],
        subnqn: DISCOVERY_NQN,
        ..PLAIN
    };
    let mut host = Host::initialize(world.connect(), options);
    host.join(0, CNTLID_DYNAMIC).expect("a controller");
    let enable = Property::set(offset::CC, u64::from(Configuration::ENABLE.0), 0);
    host.ok(enable);
    let asked = GetLogPage {
        lid: lid::DISCOVERY,
        retain_event: false,
        bytes: LOG_BYTES as u64,
        offset: 0,
        csi: 0,
    };
    let mut many = Vec::new();
    for _ in 0..ASKED {
        let entry = host.numbered(asked.entry(0, 0));
        let sgl = SglDescriptor::transport(LOG_BYTES as u32);
        many.extend(host.capsule_bytes(&entry.with_sgl(sgl), &[]));
    }
    host.send(&many);
    // Whatever is made of them before they are read has been made when both shards have had several turns.
    for _ in 0..8 {
        one_shard.ok(SubmissionQueueEntry::new(opcode::admin::KEEP_ALIVE, 0, 0));
        assert_eq!(other_shard.store("turn", b""), Status::SUCCESS);
    }
    world.target.set_addresses(vec![way("4421")]);
    let (mut made, mut answers) = (0, 0);
    while answers < ASKED {
        match host.get() {
            Got::Data(_, data) => {
                let log = DiscoveryLog::decode(&data).unwrap();
                made += usize::from(log.entries[0].service == "4420");
            }
            Got::Completion(completion) if completion.status.is_success() => answers += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        made * LOG_BYTES <= 512 << 10,
        "{made} before they were read"
    );
}

#[test]
fn capsules_whose_commands_wait_are_left_to_their_host() {
    const WRITES: usize = 100;
    let world = World::over(Pool::new(8 << 20), Limits::default(), |_| {});
    let (_admin, mut io) = world.host(Options {
        entries: 128,
        ..PLAIN
    });
    let taken = all_buffers(&world);
    let data = bytes(IN_CAPSULE_BYTES, 1);
    let blocks = Blocks {
        first: 0,
        count: (IN_CAPSULE_BYTES / BLOCK_BYTES) as u32,
    };
    let write = NvmCommand::Write { blocks, fua: false };
    let mut many = Vec::new();
    for _ in 0..WRITES {
        let entry = io.numbered(write.entry(0, BLOCK));
        let sgl = SglDescriptor::in_capsule(IN_CAPSULE_BYTES as u32);
        many.extend(io.capsule_bytes(&entry.with_sgl(sgl), &data));
    }
    // Sockets take less than that.
    let mut stream = io.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || stream.write_all(&many).unwrap());
    let begun = settled(|| world.in_flight()) as usize;
    assert!(begun * IN_CAPSULE_BYTES <= 256 << 10, "{begun} were taken");
    drop(taken);
    for _ in 0..WRITES {
        assert!(io.completion().status.is_success());
    }
    sending.join().unwrap();
}

#[test]
fn fused_operations_that_wait_for_data_behind_them_hold_nothing_for_ever() {
    let limits = Limits {
        stall: Duration::from_millis(200),
        ..Limits::default()
    };
    // A quarter is lent to one host: all of it to its first command.
    let world = World::over(Pool::new(8 << 20), limits, |_| {});
    let (_admin, mut io) = world.host(Options {
        entries: 128,
        ..PLAIN
    });
    let first = io.numbered(store("first", 2 << 20));
    io.capsule(&first.with_sgl(SglDescriptor::transport(2 << 20)), &[]);
    io.r2t();
    let data = bytes(IN_CAPSULE_BYTES, 1);
    let blocks = Blocks {
        first: 0,
        count: (IN_CAPSULE_BYTES / BLOCK_BYTES) as u32,
    };
    let compare = NvmCommand::Compare { blocks }.entry(0, BLOCK).with_fuse(1);
    let write = NvmCommand::Write { blocks, fua: false };
    let write = write.entry(0, BLOCK).with_fuse(2);
    let sgl = SglDescriptor::in_capsule(IN_CAPSULE_BYTES as u32);
    let mut many = Vec::new();
    for _ in 0..16 {
        for half in [compare, write] {
            let entry = io.numbered(half).with_sgl(sgl);
            many.extend(io.capsule_bytes(&entry, &data));
        }
    }
    // The connection ends amid that.
    let _ = io.stream.write_all(&many);
    io.end();
    let (_admin, mut io) = world.host(PLAIN);
    assert_eq!(io.store("second", &bytes(2 << 20, 1)), Status::SUCCESS);
}

#[test]
fn arguments_that_came_with_their_commands_wait_for_no_data_behind_them() {
    // A quarter is lent to one host: all of it to its first command.
    let world = World::over(Pool::new(8 << 20), Limits::default(), |_| {});
    let (_admin, mut io) = world.host(Options {
        entries: 128,
        ..PLAIN
    });
    let value = bytes(2 << 20, 1);
    let first = io.numbered(store("first", value.len()));
    let sgl = SglDescriptor::transport(value.len() as u32);
    io.capsule(&first.with_sgl(sgl), &[]);
    let wanted = io.r2t();
    let submit = KvCommand::ExecuteSubmit {
        payload_bytes: IN_CAPSULE_BYTES as u32,
        capacity: 16,
        operation: 1,
    };
    let arguments = [
        &4_u16.to_le_bytes()[..],
        b"none",
        &[7; IN_CAPSULE_BYTES - 6],
    ]
    .concat();
    let sgl = SglDescriptor::in_capsule(IN_CAPSULE_BYTES as u32);
    const CALLS: usize = 64;
    for _ in 0..CALLS {
        let entry = io.numbered(submit.entry(0, KV)).with_sgl(sgl);
        io.capsule(&entry, &arguments);
    }
    io.answer(&wanted, &value, 1 << 20);
    let mut called = 0;
    loop {
        match io.get() {
            Got::R2T(wanted) => io.answer(&wanted, &value, 1 << 20),
            Got::Completion(completion) if completion.cid == first.cid() => {
                assert_eq!(completion.status, Status::SUCCESS);
                break;
            }
            Got::Completion(_) => called += 1,
            other => panic!("{other:?}"),
        }
    }
    for _ in called..CALLS {
        io.completion();
    }
}

#[test]
fn whoever_sends_on_and_reads_nothing_is_cut_off() {
    const SENT_BYTES_MAX: usize = 256 << 20;
    let world = World::with_limits(Limits {
        stall: Duration::from_millis(100),
        ..Limits::default()
    });
    let (_admin, mut io) = world.host(PLAIN);
    let exist = KvCommand::Exist { key: key("none") };
    let mut many = Vec::new();
    for _ in 0..1000 {
        let entry = io.numbered(exist.entry(0, KV));
        many.extend(io.capsule_bytes(&entry, &[]));
    }
    let rounds = SENT_BYTES_MAX / many.len();
    let cut_off = (0..rounds).any(|_| io.stream.write_all(&many).is_err());
    assert!(cut_off, "all of {SENT_BYTES_MAX} bytes was taken");
}
