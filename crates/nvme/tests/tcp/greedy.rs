//! Hosts that ask for more than they take or send: others have what they need all the same.

use std::io::Write;
use std::time::Duration;

use forebay_mem::Pool;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::{SglDescriptor, Status};

use crate::host::{Got, Options, PLAIN, bytes, key, store};
use crate::world::{BLOCK, BLOCK_BYTES, KV, World};

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
    // Half of it is lent, and half of that to one association.
    let world = World::over(Pool::new(8 << 20), limits, |_| {});
    let (_witness, mut witness) = world.host(PLAIN);
    let ask = || {
        let (admin, mut io) = world.host(PLAIN);
        let entry = io.numbered(store("asked", 2 << 20));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(2 << 20)), &[]);
        io.r2t();
        (admin, io)
    };
    let silent = [ask(), ask()];
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
    const READ_BYTES: usize = 1 << 20;
    let world = World::over(
        Pool::new(16 << 20),
        patient(Duration::from_secs(3600)),
        |_| {},
    );
    let (_witness, mut witness) = world.host(PLAIN);
    let before = world.held();
    let (_admin, mut io) = world.host(Options {
        entries: 128,
        ..PLAIN
    });
    // All that its queue has room for.
    for _ in 0..100 {
        let blocks = Blocks {
            first: 0,
            count: (READ_BYTES / BLOCK_BYTES) as u32,
        };
        let read = NvmCommand::Read { blocks };
        let entry = io.numbered(read.entry(0, BLOCK));
        io.capsule(
            &entry.with_sgl(SglDescriptor::transport(READ_BYTES as u32)),
            &[],
        );
    }
    for _ in 0..8 {
        assert_eq!(
            witness.store("witness", &bytes(2 << 20, 1)),
            Status::SUCCESS
        );
    }
    assert!(world.held() - before <= 8 << 20, "{}", world.held());
    // They come when they are read.
    let (mut left, mut completions) = (100 * READ_BYTES, 0);
    while left > 0 || completions < 100 {
        match io.get() {
            Got::Data(_, data) => left -= data.len(),
            Got::Completion(completion) if completion.status.is_success() => completions += 1,
            other => panic!("{other:?}"),
        }
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
