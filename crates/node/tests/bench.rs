//! `forebay bench` of what needs no server beside it: the engine, functions over it, and the doors of a private server.

mod harness;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use harness::{Place, Ran, forebay};
use serde_json::Value;

fn measured(what: &[&str]) -> Vec<Value> {
    let place = Place::new();
    let points = harness::measured(|seconds| {
        let mut command = forebay();
        command.arg("bench").args(what).arg("--dir");
        command.arg(place.path(""));
        command.args(["--json", "--seconds", seconds]);
        // Whatever is not put into the directory given finds no other.
        command.env("TMPDIR", place.path("none"));
        Ran::new(command.output().unwrap())
    });
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 0, "a measurement leaves nothing");
    points
}

#[test]
fn the_engine_and_the_s3_door_are_measured_by_themselves() {
    let about = ["--op", "put,get", "--size", "3000,70000", "--objects", "20"];
    let engine = measured(&[&["engine", "--cold"], &about[..]].concat());
    let s3 = measured(&[&["s3", "--warm-up", "0.05"], &about[..]].concat());
    for (bench, points) in [("engine", engine), ("s3", s3)] {
        let told: Vec<_> = points
            .iter()
            .map(|point| {
                assert_eq!(point["bench"], bench);
                assert_eq!(point["errors"], 0);
                assert!(point["p50_us"].as_f64().unwrap() > 0.0, "{point}");
                (
                    point["op"].as_str().unwrap(),
                    point["size"].as_u64().unwrap(),
                )
            })
            .collect();
        let every = ["put", "get"].map(|op| [3000, 70_000].map(|size| (op, size)));
        let mut sorted = told.clone();
        sorted.sort_by_key(|(op, size)| (*op == "get", *size));
        assert_eq!(sorted, every.concat(), "{told:?}");
    }
}

#[test]
fn an_engine_on_a_namespace_is_measured_at_every_size_and_depth() {
    let about = ["--size", "3000,70000", "--concurrency", "1,2"];
    let few = ["--objects", "20", "--threads", "1", "--warm-up", "0.05"];
    let points = measured(&[&["nvme", "--op", "get"], &about[..], &few].concat());
    let told: Vec<_> = points
        .iter()
        .map(|point| {
            assert_eq!(point["errors"], 0, "{point}");
            // The engine is here; the target is a process of its own, whose time is told in ticks of 10 ms.
            assert!(point["client_cpu_s_per_gb"].as_f64() > Some(0.0), "{point}");
            assert!(point["server_cpu_s_per_gb"].is_f64(), "{point}");
            ["size", "concurrency"].map(|field| point[field].as_u64().unwrap())
        })
        .collect();
    assert_eq!(told, [[3000, 1], [3000, 2], [70_000, 1], [70_000, 2]]);
}

#[test]
fn what_could_not_be_measured_ends_as_the_other_commands_do() {
    let place = Place::new();
    let server = place.serve(&[]);
    let bench = |endpoint: &str, keys: [&str; 2], more: &[&str]| {
        let mut command = forebay();
        command
            .args(["bench", "direct", "--seconds", "0.1"])
            .args(more);
        command.env("FOREBAY_ENDPOINT", endpoint);
        command.args(["--access-key", keys[0], "--secret-key", keys[1]]);
        Ran::new(command.output().unwrap())
    };
    let known = server.credentials();
    let known = [known.access_key.as_str(), known.secret_key.as_str()];
    bench(&server.rpc(), [known[0], "another"], &[]).expect(4);
    bench(&server.rpc(), known, &["--size", "0"]).expect(2);
    let missing = place.path("none");
    let missing = missing.to_str().unwrap();
    bench(&server.rpc(), known, &["--ca", missing]).expect(1);
    // A quota that no value fits.
    server.ok(&["admin", "namespace", "create", "bench-direct"]);
    server.ok(&[
        "admin",
        "quota",
        "namespace",
        "bench-direct",
        "--bytes",
        "1",
    ]);
    let full = bench(&server.rpc(), known, &["--op", "put", "--path", "iwarp"]);
    let full = full.expect(1);
    assert!(full.err.contains("every operation failed"), "{}", full.err);
    // What was measured is told all the same, also when something else cannot be.
    assert!(full.out.starts_with("direct put"), "{}", full.out);
    let later = bench(&server.rpc(), known, &["--op", "put,get"]).expect(5);
    assert!(later.out.starts_with("direct put"), "{}", later.out);
    assert_eq!(later.out.lines().count(), 1, "{}", later.out);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is() {
    let nobody = "127.0.0.1:1/nqn.2026-01.org.example:pool/1";
    for (scheme, op, why) in [
        ("nvme+tcp", "read,write", "--overwrite"),
        ("nvme+tcp", "read,retrieve", "kv://"),
        ("kv", "store,read", "nvme+tcp://"),
    ] {
        let mut command = forebay();
        command.args(["bench", "nvme", "--op", op, "--endpoint"]);
        command.arg(format!("{scheme}://{nobody}"));
        let ran = Ran::new(command.output().unwrap()).expect(2);
        assert!(ran.err.contains(why), "{op}: {}", ran.err);
    }
    for (line, why) in [
        ("memory --size 4KiB,1GiB", "values have 1 to 256MiB bytes"),
        ("memory --concurrency 17592186044416", "from 1 to 1048576"),
        ("files --size 100000GiB", "values have 0 to 1GiB bytes"),
        ("engine --size 100000GiB", "values have 0 to 1GiB bytes"),
        ("engine --seconds 1e19", "number of seconds"),
        ("kv --batch 18446744073709551615", "from 1 to 1048576"),
        ("nvme --op read --path vfio-user --data-digest", "digests"),
    ] {
        let mut command = forebay();
        command.arg("bench").args(line.split(' '));
        let ran = Ran::new(command.output().unwrap()).expect(2);
        assert_eq!(ran.out, "", "{line}");
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
    }
}

/// What `bench cache` says of a trace with these lines.
fn replayed(place: &Place, lines: &[&str]) -> Ran {
    let trace = place.path("two_prompts.jsonl");
    std::fs::write(&trace, lines.join("\n")).unwrap();
    let mut command = forebay();
    command.args(["bench", "cache", "--json", "--cache", "1MiB,2MiB"]);
    Ran::new(command.arg("--trace").arg(trace).output().unwrap())
}

#[test]
fn a_trace_is_replayed_as_it_is_published() {
    let first =
        r#"{"timestamp": 0, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]}"#;
    let second = r#"{"timestamp": 3052, "input_length": 1400, "output_length": 26, "hash_ids": [46, 47, 2353]}"#;
    let place = Place::new();
    let ran = replayed(&place, &[first, "", second, r#"{"hash_ids": []}"#]).expect(0);
    let points: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(points.len(), 2, "{}", ran.out);
    for (point, mib) in points.iter().zip(1..) {
        assert_eq!(point["trace"], "two_prompts");
        let numbers = ["asked", "distinct", "fills", "cache"].map(|name| point[name].as_u64());
        assert_eq!(numbers, [5, 3, 3, mib << 20].map(Some), "{point}");
        // Everything has room, so nobody misses what was asked for before.
        for ratio in ["tier", "s3_fifo", "w_tinylfu", "lru", "optimum", "ceiling"] {
            assert_eq!(point[ratio], 0.4, "{ratio}: {point}");
        }
    }
    for (damaged, why) in [
        (&second[..40], "EOF while parsing"),
        (r#"{"timestamp": 1}"#, "missing field `hash_ids`"),
        (r#"{"hash_ids": [1, -2]}"#, "invalid value"),
        ("hash_ids,1,2", "expected value"),
    ] {
        let ran = replayed(&place, &[first, "", damaged, second]).expect(2);
        let told = format!("two_prompts.jsonl, line 3: {why}");
        assert!(ran.err.contains(&told), "{}", ran.err);
        assert_eq!(ran.out, "", "nothing of half a trace is told");
    }
    std::fs::remove_file(place.path("two_prompts.jsonl")).unwrap();
    let mut command = forebay();
    command.args(["bench", "cache", "--trace"]);
    let missing = command.arg(place.path("two_prompts.jsonl")).output();
    let ran = Ran::new(missing.unwrap()).expect(1);
    assert!(ran.err.contains("two_prompts.jsonl"), "{}", ran.err);
}

/// The processes whose command line names this place.
fn processes(place: &Path) -> Vec<Pid> {
    let name = place.to_str().unwrap();
    let known = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let folder = entry.unwrap().path();
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        // Others end meanwhile.
        let line = std::fs::read(folder.join("cmdline")).ok()?;
        let names = String::from_utf8_lossy(&line).contains(name);
        names.then(|| Pid::from_raw(pid))?
    });
    known.collect()
}

#[test]
fn a_measurement_that_is_cut_short_leaves_nothing() {
    // Points enough for any machine to be told to end between them.
    let depths = vec!["1"; 10_000].join(",");
    for (what, signal, running) in [
        (["s3", "--op", "put"].as_slice(), Signal::INT, 2),
        (&["s3", "--op", "put"], Signal::TERM, 2),
        (&["nvme", "--op", "store"], Signal::TERM, 2),
        (&["engine", "--op", "put"], Signal::INT, 1),
        (&["files"], Signal::TERM, 1),
        (&["files"], Signal::HUP, 1),
    ] {
        let place = Place::new();
        let mut command = forebay();
        command.arg("bench").args(what).arg("--dir");
        command.arg(place.path("")).args(["--seconds", "0.05"]);
        command.args(["--concurrency", &depths]);
        if running > 1 {
            command.args(["--warm-up", "0"]);
        }
        let mut bench = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut told = BufReader::new(bench.stdout.take().unwrap());
        told.read_line(&mut first).unwrap();
        assert!(first.starts_with(what[0]), "{what:?}: {first:?}");
        assert!(std::fs::read_dir(place.path("")).unwrap().count() > 0);
        assert_eq!(processes(&place.path("")).len(), running, "{what:?}");

        kill_process(Pid::from_child(&bench), signal).unwrap();
        let ended = bench.wait().unwrap();
        let left = processes(&place.path(""));
        for process in &left {
            // It may end by itself.
            let _ = kill_process(*process, Signal::KILL);
        }
        assert_eq!(left, [], "{what:?}: {ended:?}");
        let folders = std::fs::read_dir(place.path("")).unwrap().count();
        assert_eq!(folders, 0, "{what:?}: {ended:?}");
        assert_eq!(ended.code(), Some(1), "{what:?}: {ended:?}");
    }
}

#[test]
fn a_window_in_which_nothing_ends_is_no_measurement() {
    let mut command = forebay();
    let short = ["--seconds", "0.000001", "--warm-up", "0", "--json"];
    command
        .args(["bench", "s3", "--op", "put", "--size", "8MiB"])
        .args(short);
    let ran = Ran::new(command.output().unwrap()).expect(1);
    assert!(ran.err.contains("give more --seconds"), "{}", ran.err);
    let point: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&point["ops_per_s"], &point["errors"]),
        (&0.0.into(), &0.into())
    );
    assert_eq!(point["p50_us"], Value::Null);
}

#[test]
fn more_commands_than_a_queue_takes_are_not_said_to_be_in_flight() {
    let bench = |threads: &str, seconds: &str| {
        let mut command = forebay();
        command.args([
            "bench",
            "nvme",
            "--blocks-in-memory",
            "--concurrency",
            "254",
        ]);
        command.args(["--threads", threads, "--seconds", seconds, "--json"]);
        Ran::new(command.output().unwrap())
    };
    let refused = bench("1", "0.2").expect(2);
    let said = "give more --threads";
    assert!(refused.err.contains(said), "{}", refused.err);
    let points = harness::measured(|seconds| bench("2", seconds));
    assert_eq!(points[0]["concurrency"], 254);
}

#[test]
fn functions_are_measured_with_what_they_move() {
    let points = measured(&["exec", "--op", "fetch,native,warm", "--size", "4KiB"]);
    for (op, moved) in [("fetch", 4096), ("native", 4096), ("warm", 8)] {
        let point = points.iter().find(|point| point["op"] == op);
        let point = point.unwrap_or_else(|| panic!("{op} was not measured"));
        assert_eq!(point["errors"], 0);
        let share = point["moved_share"].as_f64().unwrap();
        assert_eq!((share * 4096.0).round() as u64, moved, "{point}");
        // It works all the time, also where it waits for nothing.
        let rate = |name: &str| point[name].as_f64().unwrap();
        let cores = rate("ops_per_s") / rate("calls_per_cpu_s");
        assert!(cores > 0.001, "{point}");
    }
}
