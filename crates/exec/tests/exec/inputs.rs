//! Inputs longer than what is read at once: forward, backward, several, replaced meanwhile, and in rados-nkv's way.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay_exec::Exec;
use forebay_mem::{BLOCK_MAX_BYTES, Buf, Pool};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Execute, Input, Output, Result, Seal, Store, StoreOptions,
};
use proptest::prelude::*;
use tokio::time::timeout;

use crate::support::{SOON, World, assert_kind, bytes, own};

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 31) ^ (at >> 8) ^ seed) as u8)
        .collect()
}

/// Reads as its arguments say: inputs, offsets and lengths of four bytes each; writes all that it read.
const READER: &str = "
    (local.set $a (call $arguments (i32.const 0) (i32.const 4096)))
    (if (i32.eqz (local.get $a)) (then (return (i32.const 0))))
    (loop $l
        (local.set $a (i32.sub (local.get $a) (i32.const 12)))
        (call $write (i32.const 4096) (call $read
            (i32.load (local.get $a))
            (i64.extend_i32_u (i32.load offset=4 (local.get $a)))
            (i32.const 4096)
            (i32.load offset=8 (local.get $a))))
        (br_if $l (local.get $a)))";

/// The arguments of such reads, in their order.
fn reads(reads: &[(usize, usize, usize)]) -> Vec<u8> {
    let last_first = reads.iter().rev();
    let numbers = last_first.flat_map(|(input, offset, len)| [*input, *offset, *len]);
    numbers
        .flat_map(|number| (number as u32).to_le_bytes())
        .collect()
}

fn expected(objects: &[Vec<u8>], reads: &[(usize, usize, usize)]) -> Vec<u8> {
    let each = reads.iter().map(|(input, offset, len)| {
        let object = &objects[*input];
        let start = object.len().min(*offset);
        &object[start..object.len().min(start + len)]
    });
    each.collect::<Vec<_>>().concat()
}

/// Long ones are made once: that takes its time.
fn objects() -> Vec<Vec<u8>> {
    static MADE: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| vec![pattern(3 << 20, 1), pattern(500 << 10, 2), pattern(10, 3)]);
    MADE.clone()
}

async fn long() -> (World, Vec<Vec<u8>>) {
    let world = World::new().await;
    let objects = objects();
    for (key, object) in ["a", "b", "c"].iter().zip(&objects) {
        world.put("hers", key, object).await;
    }
    (world, objects)
}

#[tokio::test]
async fn an_input_is_read_to_its_end() {
    let (world, objects) = long().await;
    let text = own(
        "(loop $l
            (local.set $a (call $read (i32.const 0) (local.get $b) (i32.const 0) (i32.const 50000)))
            (call $write (i32.const 0) (local.get $a))
            (local.set $b (i64.add (local.get $b) (i64.extend_i32_u (local.get $a))))
            (br_if $l (local.get $a)))",
        "",
    );
    let module = world.module(&text).await;
    let inputs = [Input::whole("hers", b"a")];
    let call = Execute::inline("alice", module, &inputs, b"", 8 << 20);
    let executed = world.store.execute(call).await.unwrap();
    assert!(bytes(&executed) == objects[0]);
    assert_eq!(executed.effort.read, 3 << 20);
}

#[tokio::test]
async fn bytes_pass_through_in_order() {
    let (world, objects) = long().await;
    let text = own(
        "(call $write (i32.const 0) (i32.const 3))
         (drop (call $pass (i32.const 0) (i64.const 100) (i64.const 2000000)))
         (call $write (i32.const 0) (i32.const 3))
         (drop (call $pass (i32.const 1) (i64.const 0) (i64.const -1)))",
        r#"(data (i32.const 0) "abc")"#,
    );
    let module = world.module(&text).await;
    let inputs = [Input::whole("hers", b"a"), Input::whole("hers", b"b")];
    let all = [b"abc", &objects[0][100..2_000_100], b"abc", &objects[1]].concat();
    for capacity in [0, 1, 5, 100_000, 8 << 20] {
        let call = Execute::inline("alice", module, &inputs, b"", capacity);
        let executed = world.store.execute(call).await.unwrap();
        assert!(bytes(&executed) == all[..capacity.min(all.len())]);
        assert_eq!(executed.len, all.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_order_of_reads(asked in prop::collection::vec((0..3_usize, 0..3_200_000_usize, 0..60_000_usize), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (world, objects) = long().await;
            let module = world.module(&own(READER, "")).await;
            let inputs = ["a", "b", "c"].map(|key| Input::whole("hers", key.as_bytes()));
            let arguments = reads(&asked);
            let call = Execute::inline("alice", module, &inputs, &arguments, 8 << 20);
            let executed = world.store.execute(call).await.unwrap();
            assert!(bytes(&executed) == expected(&objects, &asked));
        });
    }
}

#[tokio::test]
async fn an_input_that_is_replaced_meanwhile_is_never_mixed() {
    let (world, objects) = long().await;
    let world = Arc::new(world);
    let forward: Vec<_> = (0..60).map(|at| (0, at * 50_000, 50_000)).collect();
    let back: Vec<_> = (0..60).map(|at| (0, (59 - at) * 50_000, 50_000)).collect();
    let module = world.module(&own(READER, "")).await;
    let other = pattern(3 << 20, 77);
    let writer = {
        let (world, one, other) = (world.clone(), objects[0].clone(), other.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                world.put("hers", "a", &other).await;
                tokio::task::yield_now().await;
                world.put("hers", "a", &one).await;
                tokio::task::yield_now().await;
            }
        })
    };
    let mut whole = 0;
    while !writer.is_finished() {
        for order in [&forward, &back] {
            let inputs = [Input::whole("hers", b"a")];
            let arguments = reads(order);
            let call = Execute::inline("alice", module, &inputs, &arguments, 8 << 20);
            match world.store.execute(call).await {
                Ok(executed) => {
                    let found = bytes(&executed);
                    let one = expected(&objects, order);
                    assert!(found == one || found == expected(std::slice::from_ref(&other), order));
                    whole += 1;
                }
                Err(error) => assert_kind(&error, ErrorKind::Busy),
            }
        }
    }
    assert!(whole > 0);
}

/// Reads what is asked for at the beginning of a body, and never what follows.
#[derive(Clone)]
struct Slow;

impl<S: Store> Detour<S> for Slow {
    async fn next(&self, body: &mut S::Body, given: usize) -> Result<Option<Buf>> {
        match given {
            0 => body.next().await,
            _ => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn what_is_read_ahead_is_not_waited_for() {
    let (world, objects) = long().await;
    // The first piece is read; the second is on its way when the function ends, with output that goes to the store.
    let text = own(
        "(call $write (i32.const 0) (call $read (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 1000)))",
        "",
    );
    let module = world.module(&text).await;
    // It is ready then.
    world.run(module, &["a"], b"").await.unwrap();
    let store = Around {
        store: world.store.below().clone(),
        detour: Slow,
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs = [Input::whole("hers", b"a")];
    let call = Execute::inline("alice", module, &inputs, b"", 2000);
    let executed = store.execute(call).await.unwrap();
    assert!(bytes(&executed) == objects[0][..1000]);
    let call = Execute {
        output: Output::Store {
            address: Address::object("hers", b"out"),
            options: StoreOptions::default(),
            seal: Seal::default(),
        },
        ..Execute::inline("alice", module, &inputs, b"", 0)
    };
    let stored = store.execute(call).await.unwrap().stored.unwrap();
    assert_eq!(stored.meta.size, 1000);
}

/// Counts the bytes that a store gives.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl<S: Store> Detour<S> for Counted {
    async fn next(&self, body: &mut S::Body, _: usize) -> Result<Option<Buf>> {
        let buf = body.next().await?;
        self.0
            .fetch_add(buf.as_ref().map_or(0, |buf| buf.len()), Relaxed);
        Ok(buf)
    }
}

#[tokio::test]
async fn little_is_read_in_vain() {
    let (world, objects) = long().await;
    let module = world.module(&own(READER, "")).await;
    world.run(module, &["c"], b"").await.unwrap();
    // Columns of a table, as it were: 200 000 bytes here and there. Then all of it.
    let columns = [2_500_000, 300_000, 1_400_000];
    let columns = columns.map(|start| (start..start + 200_000).step_by(50_000));
    let columns: Vec<_> = columns.into_iter().flatten().collect();
    let whole = (0..objects[0].len()).step_by(50_000).collect();
    for (offsets, least, most) in [
        (columns, 600_000, 1_200_000),
        (whole, objects[0].len(), objects[0].len()),
    ] {
        let offsets: Vec<_> = offsets.into_iter().map(|at| (0, at, 50_000)).collect();
        let counted = Counted::default();
        let store = Around {
            store: world.store.below().clone(),
            detour: counted.clone(),
        };
        let store = Exec::new(store, world.store.executor().cloned());
        let inputs = [Input::whole("hers", b"a")];
        let arguments = reads(&offsets);
        let call = Execute::inline("alice", module, &inputs, &arguments, 4 << 20);
        let executed = store.execute(call).await.unwrap();
        assert!(bytes(&executed) == expected(&objects, &offsets));
        let given = counted.0.load(Relaxed);
        assert!((least..=most).contains(&given), "{given} bytes were read");
    }
}

/// Gives every piece as the beginning of a block of its own.
#[derive(Clone)]
struct InBlocks(Arc<Pool>);

impl<S: Store> Detour<S> for InBlocks {
    async fn next(&self, body: &mut S::Body, _: usize) -> Result<Option<Buf>> {
        let Some(buf) = body.next().await? else {
            return Ok(None);
        };
        let mut block = self.0.try_take(BLOCK_MAX_BYTES).unwrap();
        block.set_len(BLOCK_MAX_BYTES);
        block[..buf.len()].copy_from_slice(&buf);
        Ok(Some(block.freeze().slice(0..buf.len())))
    }
}

#[tokio::test]
async fn a_call_that_waits_keeps_no_more_of_blocks_than_it_asked_for() {
    let (world, objects) = long().await;
    let text = own(
        "(drop (call $pass (i32.const 63) (i64.const 0) (i64.const -1)))",
        r#"(func (export "endless") (result i32) (loop $l (br $l)) (i32.const 0))"#,
    );
    let module = world.module(&text).await;
    let blocks = InBlocks(Arc::new(Pool::new(128 << 20)));
    let store = Around {
        store: world.store.below().clone(),
        detour: blocks.clone(),
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs: Vec<_> = (0..64)
        .map(|at| Input {
            range: ByteRange::Inclusive(at * 7000, at * 7000),
            ..Input::whole("hers", b"b")
        })
        .collect();
    let call = Execute::inline("alice", module, &inputs, b"", 1);
    let executed = store.execute(call.clone()).await.unwrap();
    assert_eq!(bytes(&executed), [objects[1][63 * 7000]]);
    let endless = store.execute(Execute {
        function: Some("endless"),
        ..call
    });
    let running = async {
        while world.store.executor().unwrap().load() != (0, 1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(blocks.0.usage().in_use, 0);
        // Ours and the store's: the bodies are gone.
        assert_eq!(Arc::strong_count(&blocks.0), 2);
    };
    tokio::select! {
        biased;
        executed = endless => panic!("{executed:?}"),
        () = running => {}
    }
}

#[tokio::test]
async fn a_store_that_never_answers_does_not_outlive_the_deadline() {
    let (world, _) = long().await;
    let module = world.module(&own(READER, "")).await;
    world.run(module, &["a"], b"").await.unwrap();
    let store = Around {
        store: world.store.below().clone(),
        detour: Slow,
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs = [Input::whole("hers", b"a")];
    let arguments = reads(&[(0, 0, 50_000), (0, 250_000, 60_000)]);
    let call = Execute {
        deadline: Some(Duration::from_millis(200)),
        ..Execute::inline("alice", module, &inputs, &arguments, 1 << 20)
    };
    let executed = timeout(SOON, store.execute(call)).await;
    let error = executed.expect("an end in time").unwrap_err();
    assert_kind(&error, ErrorKind::ProgramStopped);
}

#[tokio::test]
async fn missing_inputs_are_told_as_when_they_are_read() {
    let world = World::new().await;
    let module = world.module(&own("", "")).await;
    let error = world.run(module, &["none"], b"").await.unwrap_err();
    assert_kind(&error, ErrorKind::NotFound);
    let inputs = vec![Input::whole("hers", b"x"); 65];
    let error = world
        .store
        .execute(Execute::inline("alice", module, &inputs, b"", 0))
        .await;
    assert_kind(&error.unwrap_err(), ErrorKind::Invalid);
    let long = vec![0; (1 << 20) + 1];
    let error = world
        .store
        .execute(Execute::inline("alice", module, &[], &long, 0))
        .await;
    assert_kind(&error.unwrap_err(), ErrorKind::Invalid);
}

/// `bytecount` writes its object's length, `upper` its object in upper case over itself, `state` counts its calls in a global.
const NKV: &str = r#"(module (memory (export "memory") 2) (global $g (mut i32) (i32.const 0))
    (func (export "bytecount") (param i32 i32) (result i32)
        (i64.store (i32.const 8) (i64.extend_i32_u (local.get 1))) (i32.const 8))
    (func (export "first") (param i32 i32) (result i32)
        (memory.copy (i32.const 8) (local.get 0) (local.get 1)) (local.get 1))
    (func (export "state") (param i32 i32) (result i32)
        (global.set $g (i32.add (global.get $g) (i32.const 1)))
        (i32.store (i32.const 8) (global.get $g)) (i32.const 4))
    (func (export "fails") (param i32 i32) (result i32) (i32.const -3))
    (func (export "lies") (param i32 i32) (result i32) (i32.const 0x7fffffff)))"#;

#[tokio::test]
async fn modules_of_rados_nkv_run() {
    let (world, objects) = long().await;
    let module = world.module(NKV).await;
    let run = async |function: &str, key: &str| {
        let inputs = [Input::whole("hers", key.as_bytes())];
        let call = Execute {
            function: Some(function),
            ..Execute::inline("alice", module, &inputs, b"", 4 << 20)
        };
        world
            .store
            .execute(call)
            .await
            .map(|executed| bytes(&executed))
    };
    assert_eq!(
        run("bytecount", "a").await.unwrap(),
        (3_u64 << 20).to_le_bytes()
    );
    assert_eq!(run("bytecount", "c").await.unwrap(), 10_u64.to_le_bytes());
    assert!(run("first", "b").await.unwrap() == objects[1]);
    for _ in 0..3 {
        assert_eq!(run("state", "c").await.unwrap(), [1, 0, 0, 0]);
    }
    let error = run("fails", "c").await.unwrap_err();
    assert_eq!(error.program().unwrap().code, Some(-3));
    assert_kind(
        &run("lies", "c").await.unwrap_err(),
        ErrorKind::ProgramFailed,
    );
    assert_kind(
        &run("run", "c").await.unwrap_err(),
        ErrorKind::ProgramFailed,
    );
    world.put("hers", "huge", &vec![0; 64 << 20]).await;
    assert_kind(
        &run("bytecount", "huge").await.unwrap_err(),
        ErrorKind::ProgramStopped,
    );
}
