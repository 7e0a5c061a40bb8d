//! Where output goes: memory of the caller's, and values.

use std::sync::Arc;
use std::time::Duration;

use forebay_exec::{Exec, Executor};
use forebay_mem::{Buf, Region, RegionSlice};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body, ByteRange, Condition, ErrorKind, Execute, Input, Module, Output, Quota, Result,
    Scope, Seal, Store, StoreError, StoreOptions, Upload,
};

use crate::support::{World, assert_kind, metrics, own};

const HELLO: &str = r#"(data (i32.const 0) "hello")"#;

async fn hello(world: &World) -> Module<'static> {
    world
        .module(&own("(call $write (i32.const 0) (i32.const 5))", HELLO))
        .await
}

fn to<'a>(module: Module<'a>, inputs: &'a [Input<'a>], output: Output<'a>) -> Execute<'a> {
    Execute {
        output,
        ..Execute::inline("alice", module, inputs, b"", 0)
    }
}

fn value<'a>(namespace: &'a str, options: StoreOptions) -> Output<'a> {
    Output::Store {
        address: Address::object(namespace, b"out"),
        options,
        seal: Seal::default(),
    }
}

async fn read(world: &World, key: &[u8]) -> Vec<u8> {
    let address = Address::object("hers", key);
    let mut object = world
        .store
        .retrieve(address, None, ByteRange::Full)
        .await
        .unwrap();
    let mut bytes = Vec::new();
    while let Some(buf) = object.body.next().await.unwrap() {
        bytes.extend_from_slice(&buf);
    }
    bytes
}

#[tokio::test]
async fn into_memory_cut_at_its_end() {
    let world = World::new().await;
    let module = hello(&world).await;
    let region = Region::anonymous(4096).unwrap();
    for (len, expected) in [(4096, &b"hello\0"[..]), (3, b"hel"), (0, b"")] {
        let target = region.slice(0..len).unwrap();
        assert!(target.write(0, &vec![0; len]));
        let call = to(module, &[], Output::Into(target.clone()));
        let executed = world.store.execute(call).await.unwrap();
        assert_eq!((executed.len, executed.bytes.len()), (5, 0));
        let mut found = vec![0; expected.len()];
        assert!(target.read(0, &mut found));
        assert_eq!(found, expected);
    }
}

/// Fails what is read ahead of the function, when that has begun to write.
#[derive(Clone)]
struct FailsMeanwhile(RegionSlice);

/// Of buffers of 256 KiB each, the first that the function does not wait for.
const AHEAD: usize = 8;

impl<S: Store> Detour<S> for FailsMeanwhile {
    async fn next(&self, body: &mut S::Body, given: usize) -> Result<Option<Buf>> {
        if given < AHEAD {
            return body.next().await;
        }
        while written(&self.0) == 0 {
            tokio::task::yield_now().await;
        }
        Err(StoreError::new(ErrorKind::Io, "on purpose"))
    }
}

/// How many pages of a region begin with something else than 0. They are written in an order that nobody promises.
fn written(memory: &RegionSlice) -> usize {
    let begins_with = |page: usize| {
        let mut found = [0];
        assert!(memory.read(page * 4096, &mut found));
        found[0]
    };
    let pages = 0..memory.len() / 4096;
    pages.filter(|page| begins_with(*page) != 0).count()
}

#[tokio::test]
async fn nothing_lands_in_memory_after_a_refusal() {
    const LEN: usize = 60 << 20;
    let world = World::new().await;
    world.put("hers", "in", &vec![0; 5 << 20]).await;
    // Whoever reads forward gets more and more ahead. Then it writes for some milliseconds, and looks at nothing else.
    let text = own(
        &format!(
            "(drop (memory.grow (i32.const {pages})))
             (loop $l
                (drop (call $read (i32.const 0) (local.get $b) (i32.const 0) (i32.const 1)))
                (local.set $b (i64.add (local.get $b) (i64.const 0x10000)))
                (br_if $l (i64.lt_u (local.get $b) (i64.const {waited}))))
             (memory.fill (i32.const 0) (i32.const 1) (i32.const {LEN}))
             (call $write (i32.const 0) (i32.const {LEN}))",
            pages = LEN / (64 << 10),
            waited = AHEAD * (256 << 10),
        ),
        "",
    );
    let module = world.module(&text).await;
    let region = Region::anonymous(LEN).unwrap();
    let target = region.slice(0..LEN).unwrap();
    let store = Around {
        store: world.store.below().clone(),
        detour: FailsMeanwhile(target.clone()),
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs = [Input::whole("hers", b"in")];
    let call = to(module, &inputs, Output::Into(target.clone()));
    assert_kind(&store.execute(call).await.unwrap_err(), ErrorKind::Io);
    let refused = written(&target);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(written(&target), refused);
}

#[tokio::test]
async fn into_a_value_whole_or_not_at_all() {
    let world = World::new().await;
    let module = hello(&world).await;
    let absent = StoreOptions {
        condition: Condition::IfAbsent,
        ..StoreOptions::default()
    };
    let call = to(module, &[], value("hers", absent));
    let executed = world.store.execute(call).await.unwrap();
    let stored = executed.stored.unwrap();
    assert_eq!(
        (stored.meta.size, stored.replaced, executed.len),
        (5, false, 5)
    );
    assert_eq!(read(&world, b"out").await, b"hello");

    let call = to(module, &[], value("hers", absent));
    let error = world.store.execute(call).await.unwrap_err();
    assert_kind(&error, ErrorKind::PreconditionFailed);

    let fails = "(call $write (i32.const 0) (i32.const 2)) (call $fail (i32.const 1) (i32.const 0) (i32.const 0))";
    let module = world.module(&own(fails, HELLO)).await;
    let call = to(module, &[], value("hers", StoreOptions::default()));
    assert_kind(
        &world.store.execute(call).await.unwrap_err(),
        ErrorKind::ProgramFailed,
    );
    assert_eq!(read(&world, b"out").await, b"hello");
    assert_eq!(
        world.store.usage(Scope::Namespace("hers")).unwrap().bytes,
        5
    );
}

#[tokio::test]
async fn a_long_output_becomes_a_value() {
    let world = World::new().await;
    let object: Vec<u8> = (0..3 << 20).map(|at| (at >> 3) as u8).collect();
    world.put("hers", "in", &object).await;
    let text = own(
        "(loop $l
            (local.set $a (call $read (i32.const 0) (local.get $b) (i32.const 0) (i32.const 40000)))
            (call $write (i32.const 0) (local.get $a))
            (local.set $b (i64.add (local.get $b) (i64.extend_i32_u (local.get $a))))
            (br_if $l (local.get $a)))
         (drop (call $pass (i32.const 0) (i64.const 0) (i64.const -1)))",
        "",
    );
    let module = world.module(&text).await;
    let inputs = [Input::whole("hers", b"in")];
    let call = to(module, &inputs, value("hers", StoreOptions::default()));
    let executed = world.store.execute(call).await.unwrap();
    assert_eq!(executed.len, 6 << 20);
    assert!(read(&world, b"out").await == [&object[..], &object].concat());
    // Onto itself: what is read is what was there before.
    let call = Execute {
        output: Output::Store {
            address: Address::object("hers", b"in"),
            options: StoreOptions::default(),
            seal: Seal::default(),
        },
        ..Execute::inline("alice", module, &inputs, b"", 0)
    };
    world.store.execute(call).await.unwrap();
    assert!(read(&world, b"in").await == [&object[..], &object].concat());
}

/// Takes a buffer some turns after the function has ended.
#[derive(Clone)]
struct Outrun(Arc<Executor>);

impl<S: Store> Detour<S> for Outrun {
    async fn write(&self, upload: &mut S::Upload, buf: Buf) -> Result<()> {
        while !metrics(&self.0).contains("forebay_exec_running 0") {
            tokio::task::yield_now().await;
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        upload.write(buf).await
    }
}

#[tokio::test]
async fn a_function_may_end_while_several_buffers_of_its_are_on_their_way() {
    let world = World::new().await;
    let text = own(
        "(drop (memory.grow (i32.const 32)))
         (memory.fill (i32.const 0) (i32.const 7) (i32.const 0x200000))
         (call $write (i32.const 0) (i32.const 0x200000))",
        "",
    );
    let module = world.module(&text).await;
    let store = Around {
        store: world.store.below().clone(),
        detour: Outrun(world.store.executor().unwrap().clone()),
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let call = to(module, &[], value("hers", StoreOptions::default()));
    assert_eq!(store.execute(call).await.unwrap().len, 2 << 20);
    assert!(read(&world, b"out").await == vec![7; 2 << 20]);
}

#[tokio::test]
async fn into_nobody_elses_namespace_and_within_the_quota() {
    let world = World::new().await;
    let module = hello(&world).await;
    for namespace in ["his", "none", "modules"] {
        let call = to(module, &[], value(namespace, StoreOptions::default()));
        let error = world.store.execute(call).await.unwrap_err();
        assert_kind(&error, ErrorKind::NoSuchNamespace);
    }
    let quota = Quota {
        bytes: Some(4),
        objects: None,
    };
    world.store.set_tenant_quota("alice", quota).await.unwrap();
    let call = to(module, &[], value("hers", StoreOptions::default()));
    let error = world.store.execute(call).await.unwrap_err();
    assert_kind(&error, ErrorKind::QuotaExceeded);
    let sized = StoreOptions {
        size: Some(4),
        ..StoreOptions::default()
    };
    let call = to(module, &[], value("hers", sized));
    assert!(world.store.execute(call).await.is_err());
}
