//! Functions that do not end by themselves, whose hosts give them up or go.

use std::sync::Arc;
use std::time::Duration;

use forebay_exec::{Exec, Executor, Limits as Bounds, Runs};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry, opcode};
use forebay_store::MemoryStore;

use crate::first::write;
use crate::host::{Host, OTHER, PLAIN, bytes, key};
use crate::programs::{self, ECHO, HOSTILE};
use crate::world::{BLOCK_BYTES, KV, World};

/// Longer than a test takes, unless it hangs.
const LONG: Duration = Duration::from_secs(600);

/// With one thread for functions, which may have it for long.
fn world() -> World<Exec<MemoryStore>> {
    let pool = Pool::new(64 << 20);
    let bounds = Bounds {
        threads: 1,
        threads_per_tenant: 1,
        deadline: LONG,
        // None is run elsewhere.
        short: Duration::ZERO,
        ..Bounds::default()
    };
    let clock = Arc::new(SystemClock::default());
    let executor = Executor::start(bounds, Runs::default(), None, pool.clone(), clock).unwrap();
    let store = MemoryStore::new(pool.clone(), || 1_800_000_000_000);
    let store = Exec::new(store, Some(executor.clone()));
    let world = World::of(store, pool, Limits::default(), |_| {});
    let store = &**world.target.store();
    let allowed = programs::allow(store, &executor, "tenant", "others");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(allowed);
    world
}

fn run_of(operation: u32) -> SubmissionQueueEntry {
    let command = KvCommand::ExecuteInline {
        key: key("value"),
        argument: 0,
        operation,
        buffer_bytes: 16,
    };
    command.entry(0, KV)
}

/// Begins what loops for ever; its identifier.
fn begin(io: &mut Host) -> u16 {
    let (endless, ..) = HOSTILE[0];
    let entry = io.numbered(run_of(endless));
    io.capsule(&entry.with_sgl(SglDescriptor::transport(16)), &[]);
    entry.cid()
}

/// Begins what loops for ever, and has it aborted.
fn begin_and_abort(admin: &mut Host, io: &mut Host) {
    let cid = begin(io);
    // What came before it has begun by then.
    assert_eq!(io.store("other", b"1"), Status::SUCCESS);
    let abort = SubmissionQueueEntry::new(opcode::admin::ABORT, 0, 0);
    assert_eq!(admin.ok(abort.with_cdw(10, 1 | u32::from(cid) << 16)), 0);
    let completion = io.completion();
    assert_eq!(completion.cid, cid);
    assert_eq!(completion.status.code(), Status::ABORT_REQUESTED);
}

/// The thread runs what others ask for.
fn is_served(io: &mut Host) {
    let (completion, bytes) = io.run(run_of(ECHO), &[], 16);
    assert!(completion.status.is_success(), "{}", completion.status);
    assert_eq!(bytes, b"\0\0\0\0value");
}

#[test]
fn a_function_that_is_aborted_ends() {
    let world = world();
    let (mut admin, mut io) = world.host(PLAIN);
    assert_eq!(io.store("value", b"value"), Status::SUCCESS);
    begin_and_abort(&mut admin, &mut io);
    is_served(&mut io);
}

/// What its host has begun elsewhere may stay with a device for as long as that likes.
#[test]
fn an_abort_waits_for_no_other_namespace() {
    let world = world();
    let (mut admin, mut io) = world.host(PLAIN);
    assert_eq!(io.store("value", b"value"), Status::SUCCESS);
    world.file.keep(true);
    let written = write(&mut io, &bytes(BLOCK_BYTES, 1));
    begin_and_abort(&mut admin, &mut io);
    world.file.keep(false);
    assert_eq!(io.completion().cid, written.cid());
}

#[test]
fn a_function_ends_when_its_host_goes() {
    let world = world();
    let (_other, mut other) = world.host(OTHER);
    assert_eq!(other.store("value", b"value"), Status::SUCCESS);
    let (admin, mut io) = world.host(PLAIN);
    begin(&mut io);
    assert_eq!(io.store("other", b"1"), Status::SUCCESS);
    drop((admin, io));
    world.wait_for_ends(2);
    is_served(&mut other);
}
