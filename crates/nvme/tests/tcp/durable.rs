//! Values that their store takes long to make durable, while their hosts give them up or go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use forebay_mem::Pool;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry, opcode};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, DeleteOptions, Deleted, ErrorKind, MemoryStore, Result, Seal, Store, StoreError,
    Stored, Upload,
};
use tokio::sync::watch;

use crate::host::{Host, PLAIN, bytes, key, store};
use crate::landing::{SHORT, kept};
use crate::world::{KV, World};

/// Keeps changes for as long as it is told, and then does not know what became of them if it is told so.
#[derive(Clone)]
struct Keeping {
    keeps: watch::Sender<bool>,
    forgets: Arc<AtomicBool>,
    /// Changes that have begun.
    begun: Arc<AtomicUsize>,
}

impl Keeping {
    async fn make<T>(&self, change: impl Future<Output = Result<T>>) -> Result<T> {
        self.begun.fetch_add(1, SeqCst);
        kept(&self.keeps).await.unwrap();
        match self.forgets.load(SeqCst) {
            true => Err(StoreError::new(ErrorKind::OutcomeUnknown, "who knows")),
            false => change.await,
        }
    }

    /// From now on; those that have begun are those that begin now.
    fn keep(&self, keeps: bool) {
        self.begun.store(0, SeqCst);
        self.keeps.send_replace(keeps);
    }

    fn wait_for_one(&self) {
        while self.begun.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

impl Detour<MemoryStore> for Keeping {
    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        self.make(upload.commit(seal)).await
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        self.make(store.delete(address, options)).await
    }
}

fn world() -> (World<Around<MemoryStore, Keeping>>, Keeping) {
    let pool = Pool::new(64 << 20);
    let detour = Keeping {
        keeps: watch::Sender::new(false),
        forgets: Arc::default(),
        begun: Arc::default(),
    };
    let store = Around {
        store: MemoryStore::new(pool.clone(), || 1_800_000_000_000),
        detour: detour.clone(),
    };
    let world = World::of(store, pool, Limits::default(), |_| {});
    (world, detour)
}

const NAME: &str = "value";

fn begin_to_store(io: &mut Host, value: &[u8]) -> u16 {
    let entry = io.numbered(store(NAME, value.len()));
    let sgl = SglDescriptor::in_capsule(value.len() as u32);
    io.capsule(&entry.with_sgl(sgl), value);
    entry.cid()
}

fn begin_to_delete(io: &mut Host) -> u16 {
    let entry = io.numbered(KvCommand::Delete { key: key(NAME) }.entry(0, KV));
    io.capsule(&entry, &[]);
    entry.cid()
}

#[test]
fn an_abort_is_too_late_for_what_is_made_durable() {
    let (world, store) = world();
    let (mut admin, mut io) = world.host(PLAIN);
    let value = bytes(1000, 1);
    for deletes in [false, true] {
        store.keep(true);
        let cid = match deletes {
            false => begin_to_store(&mut io, &value),
            true => begin_to_delete(&mut io),
        };
        store.wait_for_one();
        let abort = SubmissionQueueEntry::new(opcode::admin::ABORT, 0, 0)
            .with_cdw(10, 1 | u32::from(cid) << 16);
        assert_eq!(admin.ok(abort), 1, "it goes on");
        assert!(!io.has_more(SHORT), "it has not ended");
        store.keep(false);
        let completion = io.completion();
        assert_eq!(completion.cid, cid);
        assert!(completion.status.is_success(), "{}", completion.status);
        let found = io.retrieve(NAME, value.len());
        match deletes {
            false => assert!(found == Ok((1000, value.clone()))),
            true => assert_eq!(found, Err(Status::KV_KEY_DOES_NOT_EXIST)),
        }
    }
}

#[test]
fn a_host_that_comes_again_waits_for_what_it_stored_before() {
    let (world, store) = world();
    let (admin, mut io) = world.host(PLAIN);
    let value = bytes(1000, 1);
    store.keep(true);
    begin_to_store(&mut io, &value);
    store.wait_for_one();
    drop((admin, io));
    world.wait_for_ends(2);
    let admin = world.admin(PLAIN);
    let mut io = Host::initialize(world.connect(), PLAIN);
    let (entry, data) = io.connect_command(1, admin.cntlid);
    io.capsule(&entry, &data);
    assert!(!io.has_more(SHORT), "the value is still on its way");
    store.keep(false);
    assert!(io.completion().status.is_success());
    assert!(io.retrieve(NAME, value.len()) == Ok((1000, value)));
}

#[test]
fn a_host_is_told_that_nobody_knows() {
    let (world, store) = world();
    let (_admin, mut io) = world.host(PLAIN);
    store.forgets.store(true, SeqCst);
    assert_eq!(io.store(NAME, b"1"), Status::OUTCOME_UNKNOWN);
    let delete = KvCommand::Delete { key: key(NAME) }.entry(0, KV);
    let (completion, _) = io.run(delete, &[], 0);
    assert_eq!(completion.status.code(), Status::OUTCOME_UNKNOWN);
}
