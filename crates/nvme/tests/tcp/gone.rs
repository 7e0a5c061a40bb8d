//! Hosts that vanish at each step: nothing is half stored, and every buffer comes back.

use std::io::Write;
use std::net::Shutdown;

use forebay_proto::nvme::fabrics::CNTLID_DYNAMIC;
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::{SglDescriptor, Status};
use forebay_proto::nvme_tcp::ICReq;

use crate::host::{DIGESTS, Host, OTHER, Options, PLAIN, bytes, key, store};
use crate::world::{KV, World};

fn vanish(host: Host, reset: bool) {
    if reset {
        // What it has not read makes the system send a reset.
        forebay_io::socket::abort(&host.stream).unwrap();
    } else {
        host.stream.shutdown(Shutdown::Both).unwrap();
    }
}

#[test]
fn before_and_amid_the_first_pdus() {
    let world = World::new();
    let before = world.held();
    let request = ICReq {
        hpda: 0,
        digests: PLAIN.digests,
        r2ts_max: 1,
    }
    .encode();
    for length in [0, 1, 7, 8, 64, 127] {
        let mut stream = world.connect();
        stream.write_all(&request[..length]).unwrap();
        drop(stream);
    }
    world.wait_for_ends(6);
    for length in [0, 1, 8, 71, 72, 500, 1095] {
        let mut host = Host::initialize(world.connect(), PLAIN);
        let (entry, data) = host.connect_command(0, CNTLID_DYNAMIC);
        let capsule = host.capsule_bytes(&entry, &data);
        host.send(&capsule[..length]);
        vanish(host, length % 2 == 0);
    }
    world.wait_for_ends(7);
    assert_eq!(world.door.controllers(), 0);
    assert_eq!(world.held(), before);
}

/// A value that is being replaced stays what it was until the new one is whole.
fn amid_a_store(options: Options) {
    let world = World::new();
    let (admin, mut writer) = world.host(options);
    let old = bytes(30_000, 1);
    assert_eq!(writer.store("kept", &old), Status::SUCCESS);
    let before = world.held();
    let new = bytes(3 << 20, 2);
    for (number, length) in [0usize, 1, 23, 24, 25, 1000, 1 << 20, (2 << 20) + 99]
        .into_iter()
        .enumerate()
    {
        for reset in [false, true] {
            let mut io = world.io(&admin, 2, options);
            let entry = io.numbered(store("kept", new.len()));
            let sgl = SglDescriptor::transport(new.len() as u32);
            io.capsule(&entry.with_sgl(sgl), &[]);
            let r2t = io.r2t();
            assert_eq!((r2t.offset, r2t.bytes as usize), (0, new.len()));
            let mut sent = Vec::new();
            for (at, part) in new.chunks(1 << 20).enumerate() {
                let last = (at + 1) << 20 == new.len();
                sent.extend(io.h2c_bytes(&r2t, (at << 20) as u32, part, last));
            }
            io.send(&sent[..length]);
            vanish(io, reset);
            world.wait_for_ends(1);
            assert_eq!(world.held(), before, "step {number}");
            let (len, got) = writer.retrieve("kept", 30_000).unwrap();
            assert_eq!(len, 30_000);
            assert!(got == old, "step {number}");
        }
    }
    // And amid a capsule.
    for length in [1, 71, 80, 4000] {
        let mut io = world.io(&admin, 2, options);
        let entry = io.numbered(store("kept", 5000));
        let sgl = SglDescriptor::in_capsule(5000);
        let capsule = io.capsule_bytes(&entry.with_sgl(sgl), &new[..5000]);
        io.send(&capsule[..length]);
        vanish(io, false);
        world.wait_for_ends(1);
    }
    assert_eq!(world.held(), before);
    assert!(writer.retrieve("kept", 30_000).unwrap().1 == old);
}

#[test]
fn amid_a_store_without_digests() {
    amid_a_store(PLAIN);
}

#[test]
fn amid_a_store_with_digests() {
    amid_a_store(DIGESTS);
}

#[test]
fn amid_a_retrieve() {
    let world = World::new();
    let (admin, mut writer) = world.host(PLAIN);
    let value = bytes(20 << 20, 3);
    assert_eq!(writer.store("long", &value), Status::SUCCESS);
    let before = world.held();
    for reset in [false, true] {
        let mut io = world.io(&admin, 2, PLAIN);
        for _ in 0..20 {
            let command = KvCommand::Retrieve {
                key: key("long"),
                buffer_bytes: 20 << 20,
            };
            let entry = io.numbered(command.entry(0, KV));
            io.capsule(&entry.with_sgl(SglDescriptor::transport(20 << 20)), &[]);
        }
        // Some of it is read, so that all of it is on its way.
        let mut some = [0; 100_000];
        std::io::Read::read_exact(&mut io.stream, &mut some).unwrap();
        vanish(io, reset);
        world.wait_for_ends(1);
        assert_eq!(world.held(), before);
    }
    assert!(writer.retrieve("long", 20 << 20).unwrap().1 == value);
}

#[test]
fn promises_of_values_cost_nothing() {
    let world = World::new();
    let options = Options {
        entries: 128,
        ..PLAIN
    };
    let (admin, mut io) = world.host(options);
    let before = world.held();
    for number in 0..127 {
        let entry = io.numbered(store(&format!("promise {number}"), 64 << 20));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(64 << 20)), &[]);
    }
    let asked: Vec<_> = (0..16).map(|_| io.r2t()).collect();
    assert_eq!(world.held(), before);
    // Others are served meanwhile, of the same controller and of other hosts.
    let mut second = world.io(&admin, 2, options);
    assert_eq!(second.store("small", b"value"), Status::SUCCESS);
    let (_other, mut other) = world.host(OTHER);
    assert_eq!(other.store("big", &bytes(1 << 20, 1)), Status::SUCCESS);
    let before = world.held();
    let part = io.h2c_bytes(&asked[15], 0, &bytes(100, 1), false);
    io.send(&part);
    vanish(io, true);
    world.wait_for_ends(1);
    assert_eq!(world.held(), before);
}

#[test]
fn a_host_that_reads_nothing_holds_little() {
    let world = World::new();
    let options = Options {
        entries: 128,
        ..PLAIN
    };
    let (_admin, mut io) = world.host(options);
    let value = bytes(1 << 20, 3);
    assert_eq!(io.store("value", &value), Status::SUCCESS);
    let before = world.held();
    for _ in 0..127 {
        let command = KvCommand::Retrieve {
            key: key("value"),
            buffer_bytes: 1 << 20,
        };
        let entry = io.numbered(command.entry(0, KV));
        io.capsule(&entry.with_sgl(SglDescriptor::transport(1 << 20)), &[]);
    }
    let (_other, mut other) = world.host(OTHER);
    for _ in 0..10 {
        assert!(other.retrieve("value", 1 << 20).unwrap().1 == value);
    }
    let held = world.held() - before;
    assert!(held <= 8 << 20, "{held}");
    // And then it reads after all.
    for _ in 0..127 {
        let (mut bytes, mut done) = (0, false);
        while !done {
            match io.get() {
                crate::host::Got::Data(header, data) => {
                    assert!(header.last || bytes + data.len() < 1 << 20);
                    bytes += data.len();
                }
                crate::host::Got::Completion(completion) => {
                    assert_eq!(completion.result, 1 << 20);
                    done = true;
                }
                other => panic!("{other:?}"),
            }
            if !done && bytes == 1 << 20 {
                bytes = 0;
            }
        }
    }
}
