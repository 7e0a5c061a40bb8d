//! Inputs that are opened again, in the middle: out of a cache, and replaced meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use forebay_exec::Exec;
use forebay_mem::Buf;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Execute, Executed, Input, MemoryStore, Module, Object,
    Result, Seal, Store, StoreOptions, Upload, VersionId, Versioning,
};
use forebay_tier::{Config, Tier};

use crate::support::{World, assert_kind, bytes, own};

const LEN: usize = 4 << 20;

/// Passes on some bytes of each half MiB of its input, from the last to the first.
async fn backwards(world: &World) -> Module<'static> {
    let text = own(
        "(local.set $b (call $size (i32.const 0)))
         (loop $l
            (local.set $b (i64.sub (local.get $b) (i64.const 0x80000)))
            (drop (call $pass (i32.const 0) (local.get $b) (i64.const 1000)))
            (br_if $l (i64.gt_s (local.get $b) (i64.const 0))))",
        "",
    );
    world.module(&text).await
}

fn value(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at >> 11) as u8 ^ seed).collect()
}

fn expected(value: &[u8]) -> Vec<u8> {
    let halves = value.chunks(0x80000).rev();
    halves.flat_map(|half| half[..1000].to_vec()).collect()
}

async fn run<S: Store>(store: &Exec<S>, module: Module<'_>) -> Result<Executed> {
    let inputs = [Input::whole("hers", b"a")];
    let call = Execute::inline("alice", module, &inputs, b"", 1 << 20);
    store.execute(call).await
}

/// Counts the bytes that a store gives.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl<S: Store> Detour<S> for Counted {
    async fn next(&self, body: &mut S::Body, _: usize) -> Result<Option<Buf>> {
        let buf = body.next().await?;
        let len = buf.as_ref().map_or(0, |buf| buf.len());
        self.0.fetch_add(len, Relaxed);
        Ok(buf)
    }
}

#[tokio::test]
async fn a_second_call_reads_the_cache_however_it_seeks() {
    let world = World::new().await;
    world.put("hers", "a", &value(1)).await;
    let module = backwards(&world).await;
    let counted = Counted::default();
    let below = Around {
        store: world.store.below().clone(),
        detour: counted.clone(),
    };
    let config = Config::new(64 << 20, Arc::new(|| 1));
    let tier = Tier::new(Arc::new(below), config, None);
    let store = Exec::new(tier, world.store.executor().cloned());
    for _ in 0..2 {
        let executed = run(&store, module).await.unwrap();
        assert!(bytes(&executed) == expected(&value(1)));
    }
    let first = counted.0.swap(0, Relaxed);
    assert!(first >= LEN, "the first call read {first} bytes");
    let executed = run(&store, module).await.unwrap();
    assert!(bytes(&executed) == expected(&value(1)));
    assert_eq!(counted.0.load(Relaxed), 0);
}

/// Replaces the input when it is opened for the second time.
#[derive(Clone)]
struct Replaces {
    by: Vec<u8>,
    opened: Arc<AtomicBool>,
}

impl Detour<MemoryStore> for Replaces {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<<MemoryStore as Store>::Body>> {
        if self.opened.swap(true, Relaxed) && version.is_none() {
            let mut upload = store.store(address, StoreOptions::default()).await?;
            upload.write(self.by.clone().into()).await?;
            upload.commit(Seal::default()).await?;
        }
        store.retrieve(address, version, range).await
    }
}

/// What comes of a call whose input is replaced by a longer or shorter one while it is read.
async fn replaced(versioning: Versioning, by: Vec<u8>) -> Result<Executed> {
    let world = World::new().await;
    let mut config = world.store.namespace("hers").unwrap().config.clone();
    config.versioning = versioning;
    let update = world.store.update_namespace("hers", None, config);
    update.await.unwrap();
    world.put("hers", "a", &value(1)).await;
    let module = backwards(&world).await;
    // It is ready then.
    run(&world.store, module).await.unwrap();
    let store = Around {
        store: world.store.below().clone(),
        detour: Replaces {
            by,
            opened: Arc::default(),
        },
    };
    let store = Exec::new(store, world.store.executor().cloned());
    run(&store, module).await
}

#[tokio::test]
async fn a_version_is_read_to_its_end_though_it_is_replaced() {
    for by in [value(2), vec![0; 10]] {
        let executed = replaced(Versioning::Enabled, by).await.unwrap();
        assert!(bytes(&executed) == expected(&value(1)));
    }
}

#[tokio::test]
async fn what_has_no_versions_is_refused_when_it_is_replaced() {
    for by in [value(2), vec![0; 10]] {
        let error = replaced(Versioning::Off, by).await.unwrap_err();
        assert_kind(&error, ErrorKind::Busy);
    }
}
