//! What a call keeps of the memory for payload, which all calls share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_engine::{Config, Engine};
use forebay_exec::{Exec, Limits};
use forebay_io::SystemClock;
use forebay_io::sim::SimDisk;
use forebay_mem::Pool;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, ErrorKind, Execute, Input, Object, Output, Result, Seal, Store,
    StoreOptions, VersionId,
};
use tokio::task::JoinSet;

use crate::support::{World, assert_kind, bytes, executor, own};

/// Writes the first four bytes of each half mebibyte of the inputs, of all inputs one before the next.
const MERGE: &str = "
    (loop $offsets
        (local.set $a (i32.const 0))
        (loop $inputs
            (call $write (i32.const 0) (call $read (local.get $a) (local.get $b) (i32.const 0) (i32.const 4)))
            (local.set $a (i32.add (local.get $a) (i32.const 1)))
            (br_if $inputs (i32.lt_u (local.get $a) (call $inputs))))
        (local.set $b (i64.add (local.get $b) (i64.const 524288)))
        (br_if $offsets (i64.lt_u (local.get $b) (call $size (i32.const 0)))))";

/// A world whose values keep nothing of the pool.
async fn on_a_disk(pool: &Pool, limits: Limits) -> World<Engine<SimDisk>> {
    let config = Config {
        segment_bytes: 1 << 20,
        growth_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 0,
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::open(SimDisk::new(1), clock, pool.clone(), config).unwrap();
    World::over(engine, executor(limits, pool.clone())).await
}

#[tokio::test]
async fn many_long_inputs_take_little_memory() {
    const INPUTS: u32 = 24;
    const BYTES: usize = 3 << 20;
    let pool = Pool::new(16 << 20);
    let world = on_a_disk(&pool, Limits::default()).await;
    let module = world.module(&own(MERGE, "")).await;
    let mut expected = Vec::new();
    for input in 0..INPUTS {
        let value = input.to_le_bytes().repeat(BYTES / 4);
        world.put("hers", &input.to_string(), &value).await;
        expected.extend(input.to_le_bytes());
    }
    let keys: Vec<String> = (0..INPUTS).map(|input| input.to_string()).collect();
    let inputs: Vec<_> = keys
        .iter()
        .map(|key| Input::whole("hers", key.as_bytes()))
        .collect();
    let call = Execute::inline("alice", module, &inputs, b"", 1 << 20);
    let executed = world.store.execute(call).await.unwrap();
    assert!(bytes(&executed) == expected.repeat(BYTES / (512 << 10)));
    drop(executed);
    assert_eq!(pool.usage().in_use, 0);
}

/// Notes how many bodies there are when another one is opened.
#[derive(Clone, Default)]
struct Open {
    /// Each body has a clone.
    one: Arc<()>,
    most: Arc<AtomicUsize>,
}

impl Open {
    /// Bodies, besides what the test and its store have.
    fn now(&self) -> usize {
        Arc::strong_count(&self.one) - 2
    }
}

impl<S: Store> Detour<S> for Open {
    async fn retrieve(
        &self,
        store: &S,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<S::Body>> {
        self.most.fetch_max(self.now(), Relaxed);
        store.retrieve(address, version, range).await
    }
}

#[tokio::test]
async fn a_call_has_one_body_open_and_none_while_it_waits() {
    let limits = Limits {
        threads: 1,
        threads_per_tenant: 1,
        ..Limits::default()
    };
    let world = World::within(limits).await;
    for key in ["a", "b", "c"] {
        world.put("hers", key, &vec![7; 1 << 20]).await;
    }
    let endless = r#"(func (export "endless") (result i32) (loop $l (br $l)) (i32.const 0))"#;
    let module = world.module(&own(MERGE, endless)).await;
    let open = Open::default();
    let store = Around {
        store: world.store.below().clone(),
        detour: open.clone(),
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs = ["a", "b", "c"].map(|key| Input::whole("hers", key.as_bytes()));
    let call = Execute::inline("alice", module, &inputs, b"", 1 << 20);
    let executed = store.execute(call.clone()).await.unwrap();
    assert_eq!(bytes(&executed), [7; 4 * 6]);
    assert_eq!(open.most.load(Relaxed), 0);
    // One input alone keeps its body, unless others are to end first.
    let alone = Execute {
        inputs: &inputs[..1],
        ..call
    };
    let load = async |load: (usize, usize)| {
        while world.store.executor().unwrap().load() != load {
            tokio::task::yield_now().await;
        }
    };
    load((0, 0)).await;
    let busy = world.store.execute(Execute {
        function: Some("endless"),
        inputs: &[],
        ..alone.clone()
    });
    tokio::select! {
        executed = busy => panic!("{executed:?}"),
        executed = async {
            load((0, 1)).await;
            store.execute(alone).await
        } => panic!("{executed:?}"),
        () = async {
            load((1, 1)).await;
            assert_eq!(open.now(), 0);
        } => {}
    }
}

#[tokio::test]
async fn calls_that_wait_keep_nothing_of_short_inputs_either() {
    const CALLS: usize = 100;
    const BYTES: usize = 128 << 10;
    let pool = Pool::new(16 << 20);
    let limits = Limits {
        threads: 1,
        threads_per_tenant: 1,
        ..Limits::default()
    };
    let world = on_a_disk(&pool, limits).await;
    let endless = r#"(func (export "endless") (result i32) (loop $l (br $l)) (i32.const 0))"#;
    let module = world.module(&own(MERGE, endless)).await;
    for number in 0..CALLS {
        let value = (number as u32).to_le_bytes().repeat(BYTES / 4);
        world.put("hers", &number.to_string(), &value).await;
    }
    let load = async |load: (usize, usize)| {
        while world.store.executor().unwrap().load() != load {
            tokio::task::yield_now().await;
        }
    };
    let store = world.store.clone();
    let busy = tokio::spawn(async move {
        let call = Execute {
            function: Some("endless"),
            ..Execute::inline("alice", module, &[], b"", 0)
        };
        store.execute(call).await
    });
    load((0, 1)).await;
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let store = world.store.clone();
        calls.spawn(async move {
            let key = number.to_string();
            let inputs = [Input::whole("hers", key.as_bytes())];
            let call = Execute::inline("alice", module, &inputs, b"", 4);
            let executed = store.execute(call).await.unwrap();
            assert_eq!(bytes(&executed), (number as u32).to_le_bytes());
        });
    }
    load((CALLS, 1)).await;
    assert_eq!(pool.usage().in_use, 0);
    // Each reads its own when its turn comes.
    busy.abort();
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
}

/// Writes as many pieces of 64 KiB as the arguments say in four bytes.
const PIECES: &str = "
    (drop (call $arguments (i32.const 0) (i32.const 4)))
    (local.set $a (i32.load (i32.const 0)))
    (loop $l
        (call $write (i32.const 0) (i32.const 65536))
        (local.set $a (i32.sub (local.get $a) (i32.const 1)))
        (br_if $l (local.get $a)))";

#[tokio::test]
async fn output_that_waits_leaves_room_to_others() {
    let limits = Limits {
        waiting_output_bytes: 8 << 20,
        ..Limits::default()
    };
    let world = World::within(limits).await;
    let module = world.module(&own(PIECES, "")).await;
    world.module_for("bob", &own(PIECES, "")).await;
    let run = async |tenant: &str, pieces: u32| {
        let arguments = pieces.to_le_bytes();
        let call = Execute::inline(tenant, module, &[], &arguments, 64 << 20);
        world.store.execute(call).await
    };
    // As much as is free beside it is more than a tenant may have, also of one output: to wait does not help.
    let error = run("alice", 65).await.unwrap_err();
    assert_kind(&error, ErrorKind::ProgramStopped);
    let waits = run("alice", 60).await.unwrap();
    assert_eq!(waits.len, 60 << 16);
    let error = run("alice", 5).await.unwrap_err();
    assert_kind(&error, ErrorKind::Busy);
    // Others find their room, and so does what waits for nobody.
    let other = run("bob", 30).await.unwrap();
    let into = Execute {
        output: Output::Store {
            address: Address::object("hers", b"out"),
            options: StoreOptions::default(),
            seal: Seal::default(),
        },
        ..Execute::inline("alice", module, &[], &[200, 0, 0, 0], 0)
    };
    let stored = world.store.execute(into).await.unwrap().stored.unwrap();
    assert_eq!(stored.meta.size, 200 << 16);
    // What was taken leaves room, part by part.
    drop(other);
    let mut parts = waits.bytes;
    parts.truncate(parts.len() / 2);
    let waits = run("alice", 20).await.unwrap();
    drop((parts, waits));
    run("alice", 60).await.unwrap();
}
