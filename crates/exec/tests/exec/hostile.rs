//! Whatever a module does, it is stopped, and its neighbours go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_exec::{Limits, check};
use forebay_io::Clock;
use forebay_store::{
    Address, DeleteOptions, ErrorKind, Execute, Input, Module, ModuleDigest, Store,
};
use tokio::time::timeout;

use crate::support::{MODULES, SOON, World, assert_kind, bytes, own};

fn small() -> Limits {
    Limits {
        threads: 2,
        threads_per_tenant: 1,
        deadline: Duration::from_secs(3600),
        memory_bytes: 4 << 20,
        stack_bytes: 64 << 10,
        table_elements: 100,
        output_bytes: 1 << 20,
        log_bytes: 1000,
        module_bytes: 1 << 20,
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_loop_is_stopped_by_its_deadline() {
    let world = World::within(small()).await;
    for text in [
        own("(loop $l (br $l))", ""),
        own("(loop $l (drop (call $inputs)) (br $l))", ""),
        own("(loop $l (call $log (i32.const 0) (i32.const 100)) (br $l))", ""),
        // The host's work counts, too.
        own(
            "(drop (memory.grow (i32.const 60)))
             (loop $l (drop (call $find (i32.const 0) (i32.const 3900000) (i32.const 0) (i32.const 3000))) (br $l))",
            "",
        ),
        own(
            "(loop $l (drop (call $pass (i32.const 0) (i64.const 0) (i64.const 0))) (br $l))",
            "",
        ),
        // Much of it for little, each time.
        own(
            "(drop (memory.grow (i32.const 60)))
             (loop $l (drop (call $find (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 3900000))) (br $l))",
            "",
        ),
        own(
            "(drop (memory.grow (i32.const 60)))
             (loop $l (drop (call $arguments (i32.const 0) (i32.const -1))) (br $l))",
            "",
        ),
        own(
            "(memory.fill (i32.const 8192) (i32.const 255) (i32.const 4096))
             (loop $l (drop (call $select (i32.const 1) (i32.const 0) (i32.const 4095) (i32.const 8192) (i32.const 0))) (br $l))",
            "",
        ),
    ] {
        assert_kind(&world.failure_in_time(&text).await, ErrorKind::ProgramStopped);
        world.is_unharmed().await;
    }
}

/// A clock by which a millisecond passes whenever somebody looks.
#[derive(Debug, Default)]
struct Looks(AtomicU64);

impl Clock for Looks {
    fn unix_millis(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Relaxed))
    }
}

#[tokio::test]
async fn an_import_that_works_on_much_looks_at_the_time_meanwhile() {
    // 12 MB are 180 times 64 KiB.
    for call in [
        "(drop (call $crc32c (i32.const 0) (i32.const 0) (i32.const 12000000)))",
        "(drop (call $crc64nvme (i64.const 0) (i32.const 0) (i32.const 12000000)))",
        "(drop (call $count (i32.const 0) (i32.const 12000000) (i32.const 1)))",
        "(drop (call $find (i32.const 0) (i32.const 12000000) (i32.const 12000001) (i32.const 3)))",
        "(drop (call $sum_int (i32.const 6) (i32.const 0) (i32.const 1500000)))",
        "(drop (call $sum_float (i32.const 9) (i32.const 0) (i32.const 1500000)))",
        "(drop (call $compare (i32.const 6) (i32.const 0) (i32.const 0) (i32.const 1500000) (i32.const 0) (i32.const 0)))",
        "(drop (call $select (i32.const 8) (i32.const 0) (i32.const 1500000) (i32.const 12100000) (i32.const 0)))",
    ] {
        let limits = Limits {
            deadline: Duration::from_millis(120),
            ..Limits::default()
        };
        let world = World::by(Arc::new(Looks::default()), limits).await;
        let text = format!(
            "(drop (memory.grow (i32.const 200))) (i32.store8 (i32.const 12000001) (i32.const 1)) {call}"
        );
        let error = world.failure(&own(&text, "")).await;
        assert_kind(&error, ErrorKind::ProgramStopped);
        // Compiled code looks at this clock at every tick of the real one, too: how late a call is depends on the machine.
        if cfg!(not(feature = "wasm-jit")) {
            world.is_unharmed().await;
        }
    }
}

#[tokio::test]
async fn a_start_function_that_loops_is_stopped() {
    let world = World::within(small()).await;
    let text = r#"(module (memory (export "memory") 1) (func $start (loop $l (br $l))) (start $start)
        (func (export "run") (result i32) (i32.const 0)))"#;
    assert_kind(
        &world.failure_in_time(text).await,
        ErrorKind::ProgramStopped,
    );
    // Interpreted, it has what it has whatever the time is; compiled, it has all the time there is.
    if cfg!(not(feature = "wasm-jit")) {
        let error = world.failure(text).await;
        assert_kind(&error, ErrorKind::ProgramStopped);
        assert!(error.message().contains("start function"), "{error}");
    }
    let text = r#"(module (memory (export "memory") 1) (func (export "_initialize") (loop $l (br $l)))
        (func (export "run") (result i32) (i32.const 0)))"#;
    assert_kind(
        &world.failure_in_time(text).await,
        ErrorKind::ProgramStopped,
    );
    world.is_unharmed().await;
}

#[tokio::test]
async fn a_table_that_grows_when_the_time_is_looked_at_does_no_harm() {
    // The interpreter looks after 2^20 units of fuel, of which to fill a page takes 1024 and to grow the table 1250.
    let world = World::new().await;
    for fills in 990..1024 {
        let text = own(
            &format!(
                "(i32.store8 (i32.const 0) (i32.add (i32.load8_u (i32.const 0)) (i32.const 1)))
                 (local.set $a (i32.const {fills}))
                 (loop $l (memory.fill (i32.const 1) (i32.const 0) (i32.const 65535))
                     (br_if $l (local.tee $a (i32.sub (local.get $a) (i32.const 1)))))
                 (i32.store8 (i32.const 1) (table.grow (ref.null func) (i32.const 9999)))
                 (call $write (i32.const 0) (i32.const 2))"
            ),
            "(table 1 funcref)",
        );
        let module = world.module(&text).await;
        match world.run(module, &[], b"").await {
            Ok(executed) => assert_eq!(bytes(&executed), [1, 1]),
            Err(error) => assert_kind(&error, ErrorKind::ProgramFailed),
        }
    }
    world.is_unharmed().await;
}

#[tokio::test]
async fn a_start_function_may_ask_the_host() {
    let world = World::within(small()).await;
    let text = own(
        "",
        r#"(data (i32.const 0) "hi") (func $start (call $write (i32.const 0) (i32.const 2))) (start $start)"#,
    );
    assert_eq!(world.output(&text, &[], b"").await, b"hi");
    let text = own(
        "",
        "(func $start (call $write (i32.const 65535) (i32.const 2))) (start $start)",
    );
    assert_kind(&world.failure(&text).await, ErrorKind::ProgramFailed);
}

#[tokio::test]
async fn memory_is_bounded() {
    let world = World::within(small()).await;
    // Growing is refused as WebAssembly has it: -1.
    let text = own(
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
         (i32.store (i32.const 0) (memory.size)) (call $write (i32.const 0) (i32.const 4))",
        "",
    );
    assert_eq!(world.output(&text, &[], b"").await, 64_u32.to_le_bytes());
    // Who cannot do without is told why.
    let text = own(
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable",
        "",
    );
    let error = world.failure(&text).await;
    assert_kind(&error, ErrorKind::ProgramStopped);
    assert!(error.message().contains("memory"), "{error}");
    let text = r#"(module (memory (export "memory") 65) (func (export "run") (result i32) (i32.const 0)))"#;
    assert_kind(&world.failure(text).await, ErrorKind::ProgramStopped);
    world.is_unharmed().await;
}

#[tokio::test]
async fn tables_are_bounded() {
    let world = World::within(small()).await;
    let text = r#"(module (table 101 funcref) (memory (export "memory") 1)
        (func (export "run") (result i32) (i32.const 0)))"#;
    assert_kind(&world.failure(text).await, ErrorKind::ProgramStopped);
    let text = own(
        "(if (i32.ne (table.grow (ref.null func) (i32.const 100)) (i32.const -1)) (then unreachable))",
        "(table 1 funcref)",
    );
    assert_eq!(world.output(&text, &[], b"").await, b"");
    let tables = "(table 1 funcref)".repeat(9);
    assert!(world.failure(&own("", &tables)).await.program().is_some());
    world.is_unharmed().await;
}

#[tokio::test]
async fn one_byte_out_of_bounds_traps() {
    let world = World::within(small()).await;
    for access in [
        "(i32.store8 (i32.const 65536) (i32.const 1))",
        "(i32.store (i32.const 65533) (i32.const 1))",
        "(drop (i32.load8_u (i32.const 65536)))",
        "(drop (i64.load (i32.const 65529)))",
        "(drop (i32.load8_u offset=4294967295 (i32.const 4294967295)))",
        "(memory.fill (i32.const 65535) (i32.const 0) (i32.const 2))",
        "(memory.copy (i32.const 65535) (i32.const 0) (i32.const 2))",
        "(drop (v128.load (i32.const 65521)))",
        // Into what the host may hold beyond the pages that were asked for.
        "(drop (memory.grow (i32.const 1))) (i32.store8 (i32.const 131072) (i32.const 1))",
        "unreachable",
        "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
    ] {
        let error = world.failure(&own(access, "")).await;
        assert_kind(&error, ErrorKind::ProgramFailed);
        assert_eq!(error.program().unwrap().code, None);
    }
    // The last byte is there.
    let last = "(i32.store8 (i32.const 65535) (i32.const 33)) (call $write (i32.const 65535) (i32.const 1))";
    assert_eq!(world.output(&own(last, ""), &[], b"").await, b"!");
    world.is_unharmed().await;
}

#[tokio::test]
async fn recursion_ends_with_the_stack() {
    let world = World::within(small()).await;
    let locals = "(local i64)".repeat(100);
    for text in [
        own("(call $r)", "(func $r (call $r))"),
        own("(call $r)", &format!("(func $r {locals} (call $r))")),
        own("(call $a)", "(func $a (call $b)) (func $b (call $a))"),
    ] {
        assert_kind(&world.failure(&text).await, ErrorKind::ProgramFailed);
    }
    world.is_unharmed().await;
}

#[tokio::test]
async fn output_and_logs_are_bounded() {
    let world = World::within(small()).await;
    let text = own(
        "(loop $l (call $write (i32.const 0) (i32.const 60000)) (br $l))",
        "",
    );
    let error = world.failure(&text).await;
    assert_kind(&error, ErrorKind::ProgramStopped);
    assert!(error.message().contains("wrote"), "{error}");

    let log = "(local.set $a (i32.const 1000))
        (loop $l (call $log (i32.const 0) (i32.const 7))
            (br_if $l (local.tee $a (i32.sub (local.get $a) (i32.const 1)))))";
    let module = world.module(&own(log, "")).await;
    let executed = world.run(module, &[], b"").await.unwrap();
    assert_eq!(executed.logs.len(), 1000);
    world.is_unharmed().await;
}

#[tokio::test]
async fn what_is_no_module_is_none() {
    let world = World::within(small()).await;
    let section = |id: u8, bytes: &[u8]| {
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        wasm.push(id);
        wasm.extend(bytes);
        wasm
    };
    for wasm in [
        b"".to_vec(),
        b"\0asm".to_vec(),
        b"#!/bin/sh".to_vec(),
        // Sections that say they are longer than everything.
        section(0, b"\xff\xff\xff\xff\x0f"),
        section(1, b"\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f"),
        section(10, b"\x05\xff\xff\xff\xff\x0f"),
        section(11, b"\x05\xff\xff\xff\xff\x0f"),
        wat::parse_str(r#"(module (memory (export "memory") 1 1 shared))"#).unwrap(),
        wat::parse_str(r#"(module (memory 1) (memory 1))"#).unwrap(),
        wat::parse_str(r#"(module (memory i64 1))"#).unwrap(),
        wat::parse_str(format!(
            "(module {})",
            "(global i32 (i32.const 0))".repeat(2000)
        ))
        .unwrap(),
        wat::parse_str(format!(
            "(module (memory 1) {})",
            r#"(data (i32.const 0) "x")"#.repeat(2000)
        ))
        .unwrap(),
        wat::parse_str(format!("(module {})", "(table 0 funcref)".repeat(200))).unwrap(),
        vec![0; (1 << 20) + 1],
    ] {
        let module = world.wasm(&wasm).await;
        let error = world.run(module, &[], b"").await.unwrap_err();
        let known = matches!(error.kind(), ErrorKind::ProgramFailed | ErrorKind::TooLarge);
        assert!(known, "{error:?}");
    }
    world.is_unharmed().await;
}

#[tokio::test]
async fn what_is_no_module_is_not_compiled_again() {
    let world = World::within(small()).await;
    let module = world.wasm(b"#!/bin/sh").await;
    let first = world.run(module, &[], b"").await.unwrap_err();
    assert_kind(&first, ErrorKind::ProgramFailed);
    // Its bytes are not read again.
    let Module::Digest(digest) = module else {
        unreachable!()
    };
    let key = digest.to_string();
    let address = Address::object(MODULES, key.as_bytes());
    let gone = world.store.delete(address, DeleteOptions::default());
    gone.await.unwrap();
    let second = world.run(module, &[], b"").await.unwrap_err();
    assert_eq!(second.message(), first.message());
    assert!(world.metrics().contains("forebay_exec_modules 0\n"));
}

#[tokio::test]
async fn names_and_words_are_bounded() {
    let world = World::within(small()).await;
    let module = world.module(&own("", "")).await;
    let long = "x".repeat(256);
    for (module, function) in [(module, &long[..]), (Module::Name(&long), "run")] {
        let call = Execute {
            function: Some(function),
            ..Execute::inline("alice", module, &[], b"", 0)
        };
        let error = world.store.execute(call).await.unwrap_err();
        assert_kind(&error, ErrorKind::Invalid);
    }
    // What is quoted of a module.
    let import = format!(
        r#"(module (import "forebay" "{}" (func)))"#,
        "y".repeat(5000)
    );
    let error = world.failure(&import).await;
    assert_kind(&error, ErrorKind::ProgramFailed);
    assert!((1..=1024).contains(&error.message().len()));
}

#[tokio::test]
async fn a_long_function_is_as_good_as_a_short_one() {
    // A compiler that is not optimised itself takes its time.
    let world = World::within(small()).await;
    let steps = "(local.set $b (i64.add (i64.mul (local.get $b) (i64.const 3)) (i64.const 1)))"
        .repeat(60_000);
    let text = own(
        &format!(
            "{steps} (i64.store (i32.const 0) (local.get $b)) (call $write (i32.const 0) (i32.const 8))"
        ),
        "",
    );
    let expected = (0..60_000).fold(0_i64, |sum, _| sum.wrapping_mul(3).wrapping_add(1));
    assert_eq!(world.output(&text, &[], b"").await, expected.to_le_bytes());
}

#[tokio::test]
async fn what_is_not_to_be_had_is_not_imported() {
    let world = World::within(small()).await;
    for text in [
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))"#,
        r#"(module (import "forebay" "open" (func)) (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))"#,
        r#"(module (import "forebay" "write" (func (param i64))) (func (export "run") (result i32) (i32.const 0)))"#,
        r#"(module (import "forebay" "memory" (memory 1)) (func (export "run") (result i32) (i32.const 0)))"#,
        r#"(module (memory (export "memory") 1))"#,
        r#"(module (func (export "run")))"#,
        r#"(module (func (export "run") (param i64) (result i32) (i32.const 0)))"#,
        r#"(module (global (export "run") i32 (i32.const 0)))"#,
    ] {
        assert_kind(&world.failure(text).await, ErrorKind::ProgramFailed);
    }
    // Without a memory there is nothing to name in it.
    let text = r#"(module (import "forebay" "write" (func $w (param i32 i32)))
        (func (export "run") (result i32) (call $w (i32.const 0) (i32.const 0)) (i32.const 0)))"#;
    assert_eq!(world.output(text, &[], b"").await, b"");
    let text = r#"(module (import "forebay" "write" (func $w (param i32 i32)))
        (func (export "run") (result i32) (call $w (i32.const 0) (i32.const 1)) (i32.const 0)))"#;
    assert_kind(&world.failure(text).await, ErrorKind::ProgramFailed);
}

#[tokio::test]
async fn another_tenants_objects_are_not_there() {
    let world = World::within(small()).await;
    world.put("his", "secret", b"secret").await;
    let module = world
        .module(&own(
            "(drop (call $pass (i32.const 0) (i64.const 0) (i64.const 100)))",
            "",
        ))
        .await;
    let inputs = [Input::whole("his", b"secret")];
    let error = world
        .store
        .execute(Execute::inline("alice", module, &inputs, b"", 100))
        .await;
    let none = [Input::whole("none", b"secret")];
    let missing = world
        .store
        .execute(Execute::inline("alice", module, &none, b"", 100))
        .await;
    let (error, missing) = (error.unwrap_err(), missing.unwrap_err());
    assert_kind(&error, ErrorKind::NoSuchNamespace);
    assert_kind(&missing, ErrorKind::NoSuchNamespace);
    // A module of alice's is none of bob's.
    let error = world
        .store
        .execute(Execute::inline("bob", module, &inputs, b"", 100))
        .await;
    assert_kind(&error.unwrap_err(), ErrorKind::Denied);
    let unknown = Module::Digest(ModuleDigest([7; 32]));
    let error = world
        .store
        .execute(Execute::inline("bob", unknown, &inputs, b"", 100))
        .await;
    assert_kind(&error.unwrap_err(), ErrorKind::Denied);
}

#[tokio::test]
async fn what_refers_to_the_hosts_objects_is_no_module() {
    let world = World::new().await;
    for more in [
        "(func (param externref))",
        "(func (local externref))",
        "(func (drop (ref.null extern)))",
        "(table 1 externref)",
        "(global externref (ref.null extern))",
    ] {
        let text = own("", more);
        let words = "that is no module: there is no externref here";
        let refused = check(&Limits::default(), &wat::parse_str(&text).unwrap());
        assert_eq!(refused.unwrap_err().to_string(), words, "{more}");
        let error = world.failure(&text).await;
        assert_kind(&error, ErrorKind::ProgramFailed);
        assert_eq!(error.message(), words, "{more}");
    }
    // References to its own functions are something else.
    let more = "(table $t 2 funcref) (elem declare func $f)
        (func $f (param funcref) (result i32) (ref.is_null (local.get 0)))";
    let body = "(table.set $t (i32.const 1) (ref.func $f))
        (if (call $f (table.get $t (i32.const 1))) (then unreachable))";
    let text = own(body, more);
    check(&Limits::default(), &wat::parse_str(&text).unwrap()).unwrap();
    assert!(world.output(&text, &[], b"").await.is_empty());
}

#[tokio::test]
async fn nothing_of_one_call_is_seen_by_another() {
    let world = World::new().await;
    let text = own(
        "(global.set $g (i32.add (global.get $g) (i32.const 1)))
         (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
         (i32.store (i32.const 4) (global.get $g))
         (i32.store (i32.const 8) (table.size))
         (drop (table.grow (ref.null func) (i32.const 1)))
         (i32.store (i32.const 12) (memory.size))
         (drop (memory.grow (i32.const 1)))
         (i32.store (i32.const 100000) (i32.const 1))
         (call $write (i32.const 0) (i32.const 16))",
        "(global $g (mut i32) (i32.const 0)) (table 1 funcref)",
    );
    let module = world.module(&text).await;
    for _ in 0..20 {
        let output = bytes(&world.run(module, &[], b"").await.unwrap());
        assert_eq!(output, [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_its_thread_back() {
    let world = Arc::new(World::within(small()).await);
    let module = world.module(&own("(loop $l (br $l))", "")).await;
    for _ in 0..3 {
        let (one, other) = (world.clone(), world.clone());
        let endless = tokio::spawn(async move { one.run(module, &[], b"").await });
        while other.store.executor().unwrap().load().1 == 0 {
            tokio::task::yield_now().await;
        }
        endless.abort();
        assert!(endless.await.unwrap_err().is_cancelled());
    }
    world.is_unharmed().await;
}

#[tokio::test]
async fn a_neighbour_has_a_thread_while_another_loops() {
    let world = Arc::new(World::within(small()).await);
    let endless = world.module(&own("(loop $l (br $l))", "")).await;
    let Module::Digest(digest) = endless else {
        unreachable!()
    };
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.run(Module::Digest(digest), &[], b"").await })
        })
        .collect();
    while world.store.executor().unwrap().load() != (3, 1) {
        tokio::task::yield_now().await;
    }
    let text = own("(call $write (i32.const 0) (i32.const 1))", "");
    let module = world.module_for("bob", &text).await;
    let executed = world
        .store
        .execute(Execute::inline("bob", module, &[], b"", 100))
        .await;
    assert_eq!(executed.unwrap().len, 1);
    // Nor does a neighbour wait for a module because the greedy one asked for it first.
    let shared = own("(call $write (i32.const 0) (i32.const 2))", "");
    let module = world.module(&shared).await;
    let Module::Digest(digest) = module else {
        unreachable!()
    };
    let greedy = world.clone();
    let first =
        tokio::spawn(async move { greedy.run(Module::Digest(digest), &[], b"").await.is_ok() });
    while world.store.executor().unwrap().load() != (4, 1) {
        tokio::task::yield_now().await;
    }
    let module = world.module_for("bob", &shared).await;
    let call = Execute::inline("bob", module, &[], b"", 100);
    let executed = timeout(SOON, world.store.execute(call)).await;
    assert_eq!(executed.expect("a turn").unwrap().len, 2);
    first.abort();
    calls.iter().for_each(|call| call.abort());
}
