//! What the tests of every door run: functions that do what they should, and every way to do harm.

use std::sync::Arc;
use std::time::Duration;

use forebay_exec::{Allowed, Executor, Limits, Runs};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_store::{Address, ModuleDigest, NamespaceConfig, Seal, Store, StoreOptions, Upload};
use sha2::{Digest, Sha256};

/// Writes the arguments, then all of the first input.
pub const ECHO: u32 = 10;
/// Writes how long the first input is, in eight bytes.
pub const LENGTH: u32 = 11;
/// The same for rados-nkv's kind of modules.
pub const BYTECOUNT: u32 = 12;
/// Logs its arguments and a line, then fails with code 42.
pub const FAILS: u32 = 13;
/// Writes 1 the first time that it is called in one memory, 2 the second time.
pub const STATEFUL: u32 = 14;

/// How a function ends that does what it must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// At a bound.
    Stopped,
    /// By a trap, or because it is none.
    Failed,
}

/// Functions that do harm: a number, what they do, and how they end. The first ends when its time is over, the others by themselves.
pub const HOSTILE: [(u32, &str, &str, Ends); 9] = [
    (
        20,
        "loops for ever",
        r#"(func (export "run") (result i32) (loop (br 0)) (i32.const 0))"#,
        Ends::Stopped,
    ),
    (
        21,
        "takes all memory",
        r#"(func (export "run") (result i32)
            (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable)"#,
        Ends::Stopped,
    ),
    (
        22,
        "writes without an end",
        r#"(func (export "run") (result i32) (loop (call $write (i32.const 0) (i32.const 65536)) (br 0)) (i32.const 0))"#,
        Ends::Stopped,
    ),
    (
        23,
        "writes one byte behind its memory",
        r#"(func (export "run") (result i32) (i32.store8 (i32.const 65536) (i32.const 1)) (i32.const 0))"#,
        Ends::Failed,
    ),
    (
        24,
        "gives the host an address behind its memory",
        r#"(func (export "run") (result i32) (call $write (i32.const 65535) (i32.const 2)) (i32.const 0))"#,
        Ends::Failed,
    ),
    (
        25,
        "calls itself for ever",
        r#"(func $run (export "run") (result i32) (i32.add (call $run) (i32.const 1)))"#,
        Ends::Failed,
    ),
    (
        26,
        "gives up",
        r#"(func (export "run") (result i32) unreachable)"#,
        Ends::Failed,
    ),
    (
        27,
        "returns a code",
        r#"(func (export "run") (result i32) (i32.const -7))"#,
        Ends::Failed,
    ),
    (
        28,
        "has no such function",
        r#"(func (export "walk") (result i32) (i32.const 0))"#,
        Ends::Failed,
    ),
];

const HEAD: &str = r#"(module
    (import "forebay" "size" (func $size (param i32) (result i64)))
    (import "forebay" "arguments" (func $arguments (param i32 i32) (result i32)))
    (import "forebay" "write" (func $write (param i32 i32)))
    (import "forebay" "pass" (func $pass (param i32 i64 i64) (result i64)))
    (import "forebay" "log" (func $log (param i32 i32)))
    (import "forebay" "fail" (func $fail (param i32 i32 i32)))
    (memory (export "memory") 1)"#;

const WELL: [(u32, &str); 4] = [
    (
        ECHO,
        r#"(func (export "run") (result i32)
            (call $write (i32.const 0) (call $arguments (i32.const 0) (i32.const 65536)))
            (drop (call $pass (i32.const 0) (i64.const 0) (call $size (i32.const 0))))
            (i32.const 0))"#,
    ),
    (
        LENGTH,
        r#"(func (export "run") (result i32)
            (i64.store (i32.const 0) (call $size (i32.const 0)))
            (call $write (i32.const 0) (i32.const 8))
            (i32.const 0))"#,
    ),
    (
        FAILS,
        r#"(data (i32.const 0) "a line\nnot today")
        (func (export "run") (result i32)
            (call $log (i32.const 4096) (call $arguments (i32.const 4096) (i32.const 61440)))
            (call $log (i32.const 0) (i32.const 6))
            (call $fail (i32.const 42) (i32.const 7) (i32.const 9))
            (i32.const 0))"#,
    ),
    (
        STATEFUL,
        r#"(global $count (mut i32) (i32.const 0))
        (func (export "run") (result i32)
            (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 1)))
            (global.set $count (i32.add (global.get $count) (i32.load (i32.const 64))))
            (i32.store8 (i32.const 0) (i32.add (global.get $count) (i32.const 48)))
            (call $write (i32.const 0) (i32.const 1))
            (i32.const 0))"#,
    ),
];

const RADOS_NKV: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i64.store (i32.const 8) (i64.extend_i32_u (local.get 1)))
        (i32.const 8)))"#;

/// Bounds that a hostile function meets soon, but for an hour to run: how long a function waits for a processor says nothing of it.
pub fn executor(pool: Pool) -> Arc<Executor> {
    executor_within(Duration::from_secs(3600), pool)
}

/// The same with so much time to run, for the one that ends by that alone.
pub fn executor_within(deadline: Duration, pool: Pool) -> Arc<Executor> {
    let limits = Limits {
        deadline,
        memory_bytes: 4 << 20,
        output_bytes: 24 << 20,
        ..Limits::default()
    };
    let clock = Arc::new(SystemClock::default());
    Executor::start(limits, Runs::default(), None, pool, clock).unwrap()
}

/// Allows all of them to a tenant by their numbers, and by the name `op` with the number behind it. `others` may run [`ECHO`] alone,
/// and that only in its namespace `elsewhere`.
pub async fn allow(store: &impl Store, executor: &Executor, tenant: &str, others: &str) {
    const MODULES: &str = "modules";
    let config = NamespaceConfig {
        tenant: "system".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace(MODULES, config).await.unwrap();
    let mut all = Vec::new();
    let hostile = HOSTILE.iter().map(|(number, _, text, _)| (*number, *text));
    let own = WELL.into_iter().chain(hostile);
    let own = own.map(|(number, text)| (number, format!("{HEAD} {text})")));
    let theirs = [
        (BYTECOUNT, RADOS_NKV.to_owned()),
        (29, r#"(module (import "wasi" "exit" (func)) (func (export "run") (result i32) (i32.const 0)) (memory (export "memory") 1))"#.to_owned()),
    ];
    for (number, text) in own.chain(theirs) {
        let wasm = wat::parse_str(text).unwrap();
        let digest = ModuleDigest(Sha256::digest(&wasm).into());
        let key = digest.to_string();
        let address = Address::object(MODULES, key.as_bytes());
        let mut upload = store.store(address, StoreOptions::default()).await.unwrap();
        let mut buf = upload.buffer(wasm.len()).await.unwrap();
        buf.set_len(wasm.len());
        buf.copy_from_slice(&wasm);
        upload.write(buf.freeze()).await.unwrap();
        upload.commit(Seal::default()).await.unwrap();
        let allowed = Allowed {
            digest,
            tenant: tenant.to_owned(),
            namespace: None,
            namespace_id: None,
            name: Some(format!("op{number}")),
            number: Some(number),
            function: None,
            place: (MODULES.to_owned(), key.into_bytes()),
        };
        if number == ECHO {
            all.push(Allowed {
                tenant: others.to_owned(),
                namespace: Some("elsewhere".to_owned()),
                ..allowed.clone()
            });
        }
        all.push(allowed);
    }
    executor.allow(all);
}
