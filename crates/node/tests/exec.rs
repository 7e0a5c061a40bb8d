//! Functions sent to the data of a server: allowed, run, refused, kept over a restart.

mod harness;

use harness::{Place, Ran, Server, forebay};
use sha2::{Digest, Sha256};

/// `run` writes what it is told and then its first input; `fails` logs and fails; `endless` never ends.
const MODULE: &str = r#"(module
    (import "forebay" "arguments" (func $arguments (param i32 i32) (result i32)))
    (import "forebay" "write" (func $write (param i32 i32)))
    (import "forebay" "pass" (func $pass (param i32 i64 i64) (result i64)))
    (import "forebay" "log" (func $log (param i32 i32)))
    (import "forebay" "fail" (func $fail (param i32 i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 1000) "a line\1bfor people")
    (func (export "run") (result i32)
        (call $write (i32.const 0) (call $arguments (i32.const 0) (i32.const 1000)))
        (drop (call $pass (i32.const 0) (i64.const 0) (i64.const -1)))
        (i32.const 0))
    (func (export "fails") (result i32)
        (call $log (i32.const 1000) (i32.const 17))
        (call $fail (i32.const 3) (i32.const 1002) (i32.const 4))
        (i32.const 0))
    (func (export "endless") (result i32) (loop $l (br $l)) (i32.const 0)))"#;

fn module(place: &Place) -> (String, String) {
    let wasm = wat::parse_str(MODULE).unwrap();
    let path = place.path("module.wasm");
    std::fs::write(&path, &wasm).unwrap();
    let digest: String = Sha256::digest(&wasm)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    (path.to_str().unwrap().to_owned(), digest)
}

/// Runs a function over the object and tells it something.
fn told(place: &Place, module: &str, rest: &[&str], words: &[&str]) -> Ran {
    told_of(place, "object", module, rest, words)
}

/// The same over another one.
fn told_of(place: &Place, key: &str, module: &str, rest: &[&str], words: &[&str]) -> Ran {
    let mut command = forebay();
    let (dir, object) = (place.data(), format!("fb://data/{key}"));
    command.args(["exec", "--dir", dir.to_str().unwrap(), module, &object]);
    Ran::new(command.args(rest).arg("--").args(words).output().unwrap())
}

fn prepare(server: &Server, place: &Place) {
    server.ok(&["admin", "namespace", "create", "data"]);
    let file = place.path("file");
    std::fs::write(&file, b"bytes of an object").unwrap();
    server.ok(&["cp", file.to_str().unwrap(), "fb://data/object"]);
}

#[test]
fn a_module_runs_where_it_is_allowed_and_nowhere_else() {
    let place = Place::new();
    let (path, digest) = module(&place);
    let server = place.serve(&[]);
    prepare(&server, &place);
    let by_file = ["exec", &path, "fb://data/object"];

    let denied = server.run(&by_file).expect(4);
    assert!(denied.err.contains(&digest), "{}", denied.err);
    server.run(&["exec", "none.wasm"]).expect(3);
    server.run(&["exec", "sha256:beef"]).expect(2);

    // A file, and then an object, which may go away.
    server.ok(&["cp", &path, "fb://data/tools/module"]);
    server.ok(&[
        "admin",
        "module",
        "add",
        "fb://data/tools/module",
        "--namespace",
        "data",
        "--name",
        "tool",
        "--id",
        "7",
    ]);
    server.ok(&["rm", "fb://data/tools/module"]);
    let ran = told(&place, &path, &[], &["one", "two"]).expect(0);
    assert_eq!(ran.bytes, b"one\0two\0bytes of an object");
    let ran = server.run(&["exec", "tool", "fb://data/object"]).expect(0);
    assert_eq!(ran.bytes, b"bytes of an object");
    let listed = server.json(&["admin", "module", "list"]);
    assert_eq!(listed[0]["sha256"], digest.as_str());
    assert_eq!(
        (&listed[0]["name"], &listed[0]["number"]),
        (&"tool".into(), &7.into())
    );

    // Allowed there is not allowed elsewhere.
    server.ok(&["admin", "namespace", "create", "other"]);
    server.ok(&["cp", "fb://data/object", "fb://other/object"]);
    server.run(&["exec", "tool", "fb://other/object"]).expect(4);
    server
        .run(&["exec", &path, "fb://data/object", "fb://other/object"])
        .expect(4);
    server.run(&["exec", "tool", "fb://data/none"]).expect(3);
    server
        .run(&[
            "exec",
            "tool",
            "fb://data/object",
            "--into",
            "fb://other/out",
        ])
        .expect(4);

    // A failed function says why, and its logs are seen.
    let failed = server
        .run(&["exec", "tool", "fb://data/object", "--function", "fails"])
        .expect(1);
    let escaped = "a line\\u{1b}for people\n";
    assert!(failed.err.contains(escaped), "{}", failed.err);
    assert!(failed.err.contains("code 3: line"), "{}", failed.err);
    let stopped = [
        "exec",
        "tool",
        "fb://data/object",
        "--function",
        "endless",
        "--deadline",
        "100",
    ];
    server.run(&stopped).expect(5);

    // The output may become an object.
    told(&place, "tool", &["--into", "fb://data/out"], &["x"]).expect(0);
    assert_eq!(
        server.run(&["cat", "fb://data/out"]).expect(0).bytes,
        b"x\0bytes of an object"
    );
    let cut = server
        .run(&["exec", "tool", "fb://data/object", "--output", "5"])
        .expect(5);
    assert_eq!(cut.bytes, b"bytes");
    let refused = server
        .run(&["exec", "tool", "fb://data/object", "--output", "1GiB"])
        .expect(2);
    assert!(refused.err.contains("64MiB; --into"), "{}", refused.err);

    server.ok(&["admin", "module", "rm", "tool", "--namespace", "data"]);
    server.run(&by_file).expect(4);
    server
        .run(&["admin", "module", "rm", "tool", "--namespace", "data"])
        .expect(3);
    let (_, metrics) = server.console("/metrics");
    assert!(
        metrics.contains("forebay_exec_calls_total{outcome=\"stopped\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn what_is_allowed_is_allowed_after_a_restart() {
    let place = Place::new();
    let (path, digest) = module(&place);
    let server = place.serve(&[]);
    prepare(&server, &place);
    server.ok(&["admin", "module", "add", &path]);
    let junk = place.path("junk.wasm");
    std::fs::write(&junk, b"#!/bin/sh").unwrap();
    server
        .run(&["admin", "module", "add", junk.to_str().unwrap()])
        .expect(2);
    drop(server);
    let server = place.serve(&[]);
    let by_digest = ["exec", &format!("sha256:{digest}"), "fb://data/object"];
    assert_eq!(
        server.run(&by_digest).expect(0).bytes,
        b"bytes of an object"
    );
    drop(server);
    let server = place.serve(&["--exec", "off"]);
    assert!(
        server
            .run(&by_digest)
            .expect(1)
            .err
            .contains("runs no functions")
    );
}

#[test]
fn another_tenant_sees_nothing_and_root_decides() {
    let place = Place::new();
    let (path, _) = module(&place);
    let server = place.serve(&[]);
    prepare(&server, &place);
    server.ok(&["admin", "tenant", "create", "vision"]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "frames",
        "--tenant",
        "vision",
    ]);
    server
        .run(&[
            "admin",
            "module",
            "add",
            &path,
            "--tenant",
            "vision",
            "--namespace",
            "data",
        ])
        .expect(3);
    server.ok(&[
        "admin", "module", "add", &path, "--tenant", "vision", "--name", "tool",
    ]);
    // It is vision's, and not root's.
    server.run(&["exec", &path, "fb://data/object"]).expect(4);
    server.run(&["exec", "tool", "fb://data/object"]).expect(4);
    server
        .run(&["exec", "tool", "fb://frames/object"])
        .expect(3);
}

/// `forebay nvme exec` at the server's target, which needs no directory.
fn by_nvme(server: &Server, key: &str, rest: &[&str]) -> Ran {
    let mut command = forebay();
    let device = format!("kv://{}/9", server.doors["nvme"]);
    command.args(["nvme", "exec", &device, key]).args(rest);
    command.stdin(std::process::Stdio::null());
    Ran::new(command.output().unwrap())
}

#[test]
fn a_command_of_nvme_runs_what_a_call_runs() {
    let place = Place::new();
    let (path, _) = module(&place);
    let server = place.serve(&["--nvme-namespace", "data=9"]);
    let add = ["admin", "module", "add", &path, "--id"];
    let in_all = [&add[..], &["3", "--function", "fails"]].concat();
    server.ok(&in_all);
    let here = ["70000", "--name", "tool", "--namespace", "data"];
    server.ok(&[&add[..], &here].concat());
    // More than what one command fetches of a result.
    let long = harness::bytes(9, (2 << 20) + 5);
    for (key, value) in [
        ("empty", &b""[..]),
        ("short", b"some bytes"),
        ("a key longer than sixteen bytes", &long),
    ] {
        let file = place.path("value");
        std::fs::write(&file, value).unwrap();
        server.ok(&["cp", file.to_str().unwrap(), &format!("fb://data/{key}")]);
        for words in [&[][..], &["one", "two words"]] {
            let called = told_of(&place, key, "tool", &[], words).expect(0);
            let command = [&["70000", "--output", "3MiB", "--"], words].concat();
            let ran = by_nvme(&server, key, &command).expect(0);
            assert!(ran.bytes == called.bytes, "{key} {words:?}");
            assert!(ran.bytes.ends_with(value));
        }
    }
    let cut = by_nvme(&server, "short", &["70000", "--output", "4"]).expect(5);
    assert_eq!(cut.bytes, b"some");
    assert!(cut.err.contains("10 bytes"), "{}", cut.err);

    by_nvme(&server, "none", &["70000"]).expect(3);
    // What is not allowed is no command; a function that fails says no more than that.
    let denied = by_nvme(&server, "short", &["70001"]).expect(1);
    assert!(
        denied.err.contains("Invalid Command Opcode"),
        "{}",
        denied.err
    );
    let failed = by_nvme(&server, "short", &["3"]).expect(1);
    assert!(failed.err.contains("Internal Error"), "{}", failed.err);
    let hexadecimal = by_nvme(&server, "73686f7274", &["70000", "--hex"]).expect(0);
    assert_eq!(hexadecimal.bytes, b"some bytes");
}
