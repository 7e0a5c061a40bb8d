//! `cp`, `cat`, `doctor` and `top` by the direct path.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forebay_client::direct::{Choice, Options, Path as DirectPath, Region, blocking::Client};
use harness::{Done, Place, Server, bytes, until};
use rustix::process::Signal;
use serde_json::Value;

const NAMESPACE: &str = "files";

fn ready(flags: &[&str]) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(flags);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    (place, server)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_copy_goes_by_as_many_links_as_it_is_told() {
    let contents = bytes(7, 40_000_001);
    for links in [3, 1] {
        let (place, server) = ready(&[]);
        let source = place.path("source");
        fs::write(&source, &contents).unwrap();
        let object = format!("fb://{NAMESPACE}/object");
        let number = links.to_string();
        let by = ["--path", "iwarp", "--links", &number];
        let copy = |from, to| server.json(&[&["cp"], &by[..], &[from, to]].concat());
        let sent = copy(text(&source), &object);
        assert_eq!(
            (&sent[0]["path"], &sent[0]["verified"]),
            (&"iwarp".into(), &true.into())
        );
        until("links end with their copy", || server.links().is_empty());

        let mut command = harness::forebay();
        command.arg("cp").args(by).args([&object, "-"]);
        command.arg("--dir").arg(place.data());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        // It cannot end before the rest is read.
        let mut got = vec![0; 1];
        out.read_exact(&mut got).unwrap();
        until("so many are served", || server.links().len() == links);
        out.read_to_end(&mut got).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(got == contents);
    }
    let (_place, server) = ready(&[]);
    server
        .run(&["cp", "--links", "17", "fb://files/a", "x"])
        .expect(2);
}

#[test]
fn files_are_copied_by_every_path_and_are_the_same_objects() {
    let (place, server) = ready(&[]);
    // Several parts, the last one odd; one part; nothing.
    for (name, size) in [("big", 40_000_001), ("small", 5000), ("empty", 0)] {
        let contents = bytes(size as u64, size);
        let source = place.path(name);
        fs::write(&source, &contents).unwrap();
        for path in ["shm", "iwarp", "http"] {
            let object = format!("fb://{NAMESPACE}/{path}/{name}");
            let sent = server.json(&["cp", "--path", path, text(&source), &object]);
            let told = sent.last().unwrap();
            assert_eq!(told["path"], path, "{told}");
            assert_eq!(
                (&told["bytes"], &told["verified"]),
                (&size.into(), &true.into())
            );
            for back in ["shm", "iwarp", "http"] {
                let target = place.path(&format!("{name}-{path}-{back}"));
                let got = server.json(&["cp", "--path", back, &object, text(&target)]);
                let told = got.last().unwrap();
                let moved = if size == 0 && told["path"].is_null() {
                    "null"
                } else {
                    back
                };
                assert!(told["path"] == moved || size == 0, "{told}");
                assert!(fs::read(&target).unwrap() == contents);
            }
        }
    }
    // What S3 sees of them: the whole's checksum, made of the parts'.
    let stat = server.json(&["stat", &format!("fb://{NAMESPACE}/shm/big")]);
    let crc = forebay_client::Crc64::of(&bytes(40_000_001, 40_000_001)).value();
    assert_eq!(stat[0]["crc64nvme"], format!("{crc:016x}"));
}

#[test]
fn folders_go_there_and_back() {
    let (place, server) = ready(&[]);
    let source = place.path("tree");
    for (index, name) in ["a", "b/c", "b/d/e"].iter().enumerate() {
        let file = source.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes(index as u64, 3000 * index)).unwrap();
    }
    let remote = format!("fb://{NAMESPACE}/tree/");
    let told = server.ok(&["cp", text(&source), &remote]);
    assert!(told.trim_end().ends_with(", path shm"), "{told}");
    let target = place.path("copy");
    let told = server.ok(&["cp", &remote, text(&target)]);
    assert!(told.trim_end().ends_with(", path shm"), "{told}");
    assert_eq!(harness::tree(&source), harness::tree(&target));
}

#[test]
fn streams_go_there_and_back() {
    let (_place, server) = ready(&[]);
    let contents = bytes(8, 20_000_000);
    for path in ["shm", "iwarp", "http"] {
        let object = format!("fb://{NAMESPACE}/{path}");
        server
            .run_on(&["cp", "--path", path, "-", &object], &contents)
            .expect(0);
        let back = server.run(&["cp", "--path", path, &object, "-"]).expect(0);
        assert!(back.bytes == contents);
        assert!(back.err.contains(&format!("path {path}")), "{}", back.err);
        let some = server.run(&[
            "cat",
            "--path",
            path,
            "--range",
            "8388600-17000000",
            &object,
        ]);
        assert!(some.expect(0).bytes == contents[8_388_600..=17_000_000]);
        let none = server.run(&["cat", "--path", path, &format!("{object}-none")]);
        assert_eq!(none.expect(3).bytes, b"");
        server
            .run(&[
                "cat",
                "--path",
                path,
                "--range",
                "20000000-20000001",
                &object,
            ])
            .expect(1);
        let empty = format!("{object}-empty");
        server
            .run_on(&["cp", "--path", path, "-", &empty], b"")
            .expect(0);
        let none = server.run(&["cat", "--path", path, "--range", "5-9", &empty]);
        assert_eq!(none.expect(1).bytes, b"");
        let all = server.run(&["cat", "--path", path, &empty]);
        assert_eq!(all.expect(0).bytes, b"");
    }
}

#[test]
fn an_endpoint_may_speak_grpc_or_s3() {
    let (place, server) = ready(&[]);
    let source = place.path("source");
    fs::write(&source, bytes(1, 100_000)).unwrap();
    let object = format!("fb://{NAMESPACE}/value");
    let rpc = format!("http://{}", server.doors["rpc"]);
    let told = server.ok(&["cp", text(&source), &object, "--endpoint", &rpc]);
    assert!(told.trim_end().ends_with(", path shm"), "{told}");
    let target = place.path("target");
    let told = server.ok(&["cp", &object, text(&target), "--endpoint", &server.s3()]);
    assert!(
        told.contains("path http (") && told.contains("speaks S3 and no gRPC"),
        "{told}"
    );
    assert_eq!(fs::read(&target).unwrap(), bytes(1, 100_000));
    // Parts that S3 does not take are refused before anything is moved by another way.
    for size in ["1", "1MiB", "6GiB"] {
        let copy = [
            "cp",
            "--path",
            "shm",
            "--part-size",
            size,
            text(&source),
            &object,
        ];
        let refused = server.run(&copy).expect(2);
        assert!(refused.err.contains("5 MiB to 5 GiB"), "{}", refused.err);
    }
    // Forced, it fails and says why.
    let refused = server.run(&[
        "cat",
        &object,
        "--path",
        "iwarp",
        "--endpoint",
        &server.s3(),
    ]);
    assert!(refused.expect(1).err.contains("speaks S3"));
    server.ok(&["ls", &format!("fb://{NAMESPACE}/"), "--endpoint", &rpc]);
    server
        .run(&["cp", "--path", "pigeon", text(&source), &object])
        .expect(2);
}

#[test]
fn without_a_direct_door_copies_go_by_http_and_say_why() {
    let (place, server) = ready(&["--no-direct"]);
    let source = place.path("source");
    fs::write(&source, bytes(1, 100_000)).unwrap();
    let object = format!("fb://{NAMESPACE}/value");
    let told = server.json(&["cp", text(&source), &object]);
    assert_eq!(told[0]["path"], "http");
    assert!(
        told[0]["why"]
            .as_str()
            .unwrap()
            .contains("shm: the server does not offer it")
    );
    server
        .run(&["cp", "--path", "shm", text(&source), &object])
        .expect(1);
}

#[test]
fn a_copy_that_was_cut_off_goes_on() {
    let (place, server) = ready(&[]);
    let contents = bytes(4, 40_000_000);
    let source = place.path("source");
    fs::write(&source, &contents).unwrap();
    let object = format!("fb://{NAMESPACE}/value");
    // A part of an upload that was cut off, and one of other bytes.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = server.client();
        let upload = harness::cut_off(&client, &source, (NAMESPACE, "value"), 16 << 20).await;
        let part = contents[..16 << 20].to_vec();
        let sent = client.upload_part(NAMESPACE, "value", &upload, 2, part.into());
        sent.await.unwrap();
    });
    let told = server.json(&["cp", text(&source), &object]);
    assert_eq!(
        (&told[0]["path"], &told[0]["resumed_bytes"]),
        (&"shm".into(), &(16 << 20).into())
    );
    let target = place.path("target");
    server.ok(&["cp", &object, text(&target)]);
    assert!(fs::read(&target).unwrap() == contents);
}

#[test]
fn the_doctor_tells_of_every_path() {
    let (_place, server) = ready(&[]);
    let rows = paths(&server);
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["path"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["shm", "iwarp", "http"]);
    for row in &rows {
        assert_eq!(
            (&row["available"], &row["why"]),
            (&true.into(), &Value::Null),
            "{row}"
        );
        assert!(row["get_bytes_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["put_bytes_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(!server.ok(&["ls"]).contains("doctor"));
    let table = server.ok(&["doctor"]);
    let (_, table) = table.split_once("\n\n").unwrap();
    let mut lines = table.lines().map(|line| {
        let cells = line.split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    });
    let heading = ["path", "available", "get", "put", "why not"];
    assert_eq!(lines.next().unwrap(), heading, "{table}");
    for path in names {
        let line = lines.next().unwrap();
        assert_eq!(line[..2], [path, "yes"], "{table}");
        assert!(line.len() == 4 && line[2..].iter().all(|rate| rate.ends_with("iB/s")));
    }
    assert_eq!(lines.next(), None, "{table}");
    let (_place, server) = ready(&["--no-direct"]);
    let table = server.ok(&["doctor"]);
    let line = table.lines().find(|line| line.starts_with("shm")).unwrap();
    let cells: Vec<_> = line.split_whitespace().take(4).collect();
    assert_eq!(cells, ["shm", "no", "-", "-"], "{table}");
    assert!(line.ends_with("the server does not offer it"), "{table}");
    let rows = paths(&server);
    let available: Vec<_> = rows
        .iter()
        .map(|row| row["available"].as_bool().unwrap())
        .collect();
    assert_eq!(available, [false, false, true]);
    assert!(
        rows[0]["why"]
            .as_str()
            .unwrap()
            .contains("does not offer it")
    );
}

#[test]
fn the_doctor_fails_when_no_path_leads_to_the_server() {
    let (_place, server) = ready(&[]);
    let closed = harness::closed();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    let told = server.run(&["doctor", "--json", "--endpoint", &endpoint]);
    let told = told.expect(1);
    assert!(
        told.err.contains("no path to the server works"),
        "{}",
        told.err
    );
    let rows = told.out.lines().map(serde_json::from_str);
    let rows: Vec<Value> = rows.collect::<Result<_, _>>().unwrap();
    assert!(rows.iter().any(|row| row["check"] == "fsync"));
    let available = rows.iter().filter_map(|row| row["available"].as_bool());
    assert_eq!(available.collect::<Vec<_>>(), [false; 3]);
}

#[test]
fn the_doctor_does_not_wait_for_a_server_that_says_nothing() {
    let (_place, server) = ready(&[]);
    server.signal(Signal::STOP);
    let told = thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        let server = &server;
        scope.spawn(move || done.send(server.run(&["doctor", "--json"])));
        let told = ended.recv_timeout(Duration::from_secs(60));
        // A doctor that still waits gets its answer now.
        server.signal(Signal::CONT);
        told
    });
    let told = told.expect("the doctor ends by itself").expect(1);
    let said = "no path to the server works";
    assert!(told.err.contains(said), "{}", told.err);
    let rows = told.out.lines().map(serde_json::from_str);
    let rows: Vec<Value> = rows.collect::<Result<_, _>>().unwrap();
    let silent = |row: &&Value| {
        let why = row["detail"].as_str().or(row["why"].as_str());
        why == Some("no answer within 5 s")
    };
    // The server, its S3 door, and three paths.
    assert_eq!(rows.iter().filter(silent).count(), 5, "{}", told.out);
}

fn paths(server: &Server) -> Vec<Value> {
    let checks = server.json(&["doctor"]);
    checks
        .into_iter()
        .filter(|row| row.get("path").is_some())
        .collect()
}

#[test]
fn top_shows_who_moves_what() {
    let (_place, server) = ready(&[]);
    let endpoint = format!("http://{}", server.doors["rpc"]).parse().unwrap();
    let client = Client::connect(&endpoint, &server.credentials(), Options::default()).unwrap();
    let region = Region::alloc(1 << 20).unwrap();
    client.put_from(NAMESPACE, "value", &region).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let busy = thread::spawn({
        let done = done.clone();
        move || {
            while !done.load(Relaxed) {
                client.get_into(NAMESPACE, "value", .., &region).unwrap();
            }
        }
    });
    let row = server.top("shm", &["requests_per_s", "get_bytes_per_s"]);
    let text = server.ok(&["top", "--once", "--interval", "0.1"]);
    done.store(true, Relaxed);
    busy.join().unwrap();
    assert_eq!(row["tenant"], "root");
    assert!(
        text.starts_with("1 sessions, 1 links, 0 NVMe controllers\n"),
        "{text}"
    );
    server.run(&["top", "--interval", "0"]).expect(2);
}

#[test]
fn top_shows_who_asks_by_http() {
    let (place, server) = ready(&[]);
    let file = place.path("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let file = file.to_str().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // What is there already is not sent again.
            for number in 0.. {
                if done.load(Relaxed) {
                    break;
                }
                let target = format!("fb://{NAMESPACE}/{number}");
                server.ok(&["cp", "--path", "http", file, &target]);
            }
        });
        let _done = Done(&done);
        let row = server.top("http", &["put_bytes_per_s", "requests_per_s"]);
        assert_eq!(row["tenant"], "root");
        // A row is there while somebody asks, or did between the looks.
        let shown = (0..60).any(|_| {
            let text = server.ok(&["top", "--once", "--interval", "0.5"]);
            let line = text.lines().find(|line| line.contains(" http "));
            line.is_some_and(|line| line.contains(" - "))
        });
        assert!(shown);
    });
}

/// By HTTP, values whose keys are no text travel in messages of gRPC.
#[test]
fn top_shows_who_calls_by_grpc() {
    let (_place, server) = ready(&[]);
    let options = Options {
        path: Choice::Only(DirectPath::Http),
        ..Options::default()
    };
    let endpoint = server.rpc().parse().unwrap();
    let client = Client::connect(&endpoint, &server.credentials(), options).unwrap();
    let region = Region::alloc(1 << 20).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                client.put_from(NAMESPACE, b"\xff", &region).unwrap();
                client.get_into(NAMESPACE, b"\xff", .., &region).unwrap();
                client
                    .get_into(NAMESPACE, b"none\xff", .., &region)
                    .unwrap_err();
            }
        });
        let _done = Done(&done);
        let moves = ["get_bytes_per_s", "put_bytes_per_s"];
        let calls = ["requests_per_s", "failures_per_s"];
        let row = server.top("grpc", &[moves, calls].concat());
        assert_eq!((&row["tenant"], &row["links"]), (&"root".into(), &0.into()));
        let rate = |name: &str| row[name].as_f64().unwrap();
        assert!(rate("failures_per_s") < rate("requests_per_s"), "{row}");
        // All that is there to move, and nothing of it twice.
        let most = rate("requests_per_s") * region.len() as f64;
        assert!(
            rate("get_bytes_per_s") + rate("put_bytes_per_s") < most,
            "{row}"
        );
    });
}

#[test]
fn top_draws_anew_on_a_terminal() {
    let (place, server) = ready(&[]);
    let program = harness::forebay();
    let program = program.get_program().to_str().unwrap();
    let dir = place.data();
    let top = format!("exec {program} top --interval 0.05 --dir {}", text(&dir));
    // It gives what it runs a terminal.
    let mut shown = Command::new("script")
        .args(["--quiet", "--command", &top, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(shown.stdout.take().unwrap());
    for _ in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let (redraw, line) = line.split_at(line.len().min(6));
        assert_eq!(redraw, "\x1b[H\x1b[J", "{line}");
        assert!(line.starts_with("0 sessions, 0 links"), "{line}");
        // A table of nobody.
        output.read_line(&mut String::new()).unwrap();
    }
    drop(server);
    // Nobody answers any more, so it ends by itself.
    assert!(shown.wait().unwrap().success());
}

/// Each of them wants more buffers than there are for all.
#[test]
fn many_large_values_at_once_leave_buffers_for_everybody() {
    let (place, server) = ready(&[]);
    let credentials = server.credentials();
    let endpoint = format!("http://{}", server.doors["rpc"]);
    let points = harness::measured(|seconds| {
        let command = harness::forebay()
            .args(["bench", "direct", "--op", "put", "--path", "iwarp"])
            .args(["--endpoint", &endpoint, "--size", "3MiB"])
            .args(["--concurrency", "128", "--objects", "128"])
            .args(["--seconds", seconds, "--warm-up", "0", "--json"])
            .args(["--access-key", &credentials.access_key])
            .args(["--secret-key", &credentials.secret_key])
            .output();
        harness::Ran::new(command.unwrap())
    });
    assert_eq!(points[0]["errors"], 0, "{points:?}");
    let source = place.path("source");
    fs::write(&source, bytes(7, 5_000_000)).unwrap();
    for path in ["http", "iwarp"] {
        let object = format!("fb://{NAMESPACE}/{path}");
        server.json(&["cp", "--path", path, text(&source), &object]);
    }
}

#[test]
fn the_bench_measures_every_operation() {
    let (_place, server) = ready(&[]);
    let credentials = server.credentials();
    let endpoint = format!("http://{}", server.doors["rpc"]);
    let about = [
        "--op",
        "get,put,gather,scatter,exist",
        "--size",
        "3000",
        "--concurrency",
        "3",
        "--batch",
        "7",
        "--objects",
        "50",
        "--warm-up",
        "0.05",
        "--json",
    ];
    for (kind, path) in [("direct", "shm"), ("kv", "iwarp"), ("kv", "http")] {
        let points = harness::measured(|seconds| {
            let command = harness::forebay()
                .args(["bench", kind, "--path", path, "--endpoint", &endpoint])
                .args(about)
                .args(["--seconds", seconds])
                .args(["--access-key", &credentials.access_key])
                .args(["--secret-key", &credentials.secret_key])
                .output();
            harness::Ran::new(command.unwrap())
        });
        assert_eq!(points.len(), 5);
        for (point, op) in points
            .iter()
            .zip(["get", "put", "gather", "scatter", "exist"])
        {
            assert_eq!((&point["bench"], &point["op"]), (&kind.into(), &op.into()));
            assert_eq!(
                (&point["path"], &point["errors"]),
                (&path.into(), &0.into()),
                "{point}"
            );
        }
    }
    // Without an endpoint it has a server of its own.
    let own = harness::measured(|seconds| {
        let command = harness::forebay()
            .args(["bench", "direct", "--seconds", seconds])
            .args(["--warm-up", "0", "--objects", "10", "--json"])
            .output();
        harness::Ran::new(command.unwrap())
    });
    let [point] = own.as_slice() else {
        panic!("not one point: {own:?}");
    };
    assert_eq!(
        (&point["path"], &point["errors"]),
        (&"shm".into(), &0.into())
    );
    assert!(point["server_cpu_s_per_gb"].is_number());
}

#[test]
fn keys_that_are_not_text_are_listed_and_removed() {
    let (place, server) = ready(&["--no-s3"]);
    let endpoint = server.rpc().parse().unwrap();
    let client = Client::connect(&endpoint, &server.credentials(), Options::default()).unwrap();
    let region = Region::alloc(4096).unwrap();
    // The second is how others show the first.
    let keys: [&[u8]; 3] = [b"odd/\xff", "odd/\u{fffd}".as_bytes(), b"even/\xff"];
    for key in keys {
        client.put_from(NAMESPACE, key, &region).unwrap();
    }
    let odd = format!("fb://{NAMESPACE}/odd/");
    let listed = server.json(&["ls", &odd]);
    let listed: Vec<_> = listed.iter().map(|row| row["key"].clone()).collect();
    assert_eq!(listed, ["odd/\u{fffd}", "odd/\\xff"]);
    // A copy names keys as text, and says which it cannot.
    let out = place.path("out");
    let copied = server.run(&["cp", &odd, text(&out)]).expect(1);
    let said = "key odd/\\xff: it is not UTF-8";
    assert!(copied.err.contains(said), "{}", copied.err);
    assert!(
        harness::tree(&out)
            .into_keys()
            .eq([PathBuf::from("\u{fffd}")])
    );
    let told = &server.json(&["rm", "-r", &odd])[0];
    assert_eq!((&told["removed"], &told["failed"]), (&2.into(), &0.into()));
    let left = client.exist(NAMESPACE, &keys).unwrap();
    assert_eq!(left, [None, None, Some(4096)]);
}

#[test]
fn a_key_that_is_no_text_keeps_no_others_from_s3() {
    let (place, server) = ready(&[]);
    let endpoint = server.rpc().parse().unwrap();
    let client = Client::connect(&endpoint, &server.credentials(), Options::default()).unwrap();
    let region = Region::alloc(4096).unwrap();
    let keys: [&[u8]; 3] = [b"in/\xff\0", b"in/clear\x1b[2J", b"in/plain"];
    for key in keys {
        client.put_from(NAMESPACE, key, &region).unwrap();
    }
    let all = format!("fb://{NAMESPACE}/in/");
    for arguments in [
        &["ls", &all][..],
        &["ls", "-r", &all],
        &["ls", &format!("{all}*")],
    ] {
        let listed = server.ok(arguments);
        for shown in ["in/\\xff\\x00", "in/clear\\u{1b}[2J", "in/plain"] {
            assert!(listed.contains(shown), "{listed}");
        }
        // It would clear the screen.
        assert!(!listed.contains('\x1b'), "{listed:?}");
    }
    let said = "it is not UTF-8";
    let out = place.path("out");
    let copied = server.run(&["cp", &all, text(&out)]).expect(1);
    assert!(copied.err.contains(said), "{}", copied.err);
    assert_eq!(harness::tree(&out).len(), 2);
    let inside = server.run(&["cp", &all, &format!("fb://{NAMESPACE}/copy")]);
    assert!(inside.expect(1).err.contains(said));
    let removed = server.run(&["rm", "-r", &all, "--json"]).expect(1);
    assert!(removed.err.contains(said), "{}", removed.err);
    let told: Value = serde_json::from_str(&removed.out).unwrap();
    assert_eq!((&told["removed"], &told["failed"]), (&2.into(), &1.into()));
    let left = client.exist(NAMESPACE, &keys).unwrap();
    assert_eq!(left, [Some(4096), None, None]);
}

#[test]
fn a_door_that_speaks_something_else_is_named() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (place.path("cert.pem"), place.path("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = [
        "--s3-tls-cert",
        text(&certificate),
        "--s3-tls-key",
        text(&key),
    ];
    let server = place.serve(&tls);
    let [s3, rpc, console] = ["s3", "rpc", "console"].map(|door| server.doors[door].clone());
    for (door, says) in [
        (format!("http://{s3}"), format!("speaks TLS: https://{s3}")),
        (
            format!("https://{rpc}"),
            format!("speaks no TLS: http://{rpc}"),
        ),
        (format!("http://{console}"), "is the console".to_owned()),
    ] {
        for command in [&["ls"][..], &["admin", "tenant", "list"]] {
            let arguments = [command, &["--endpoint", &door]].concat();
            let trusting = ["--ca", text(&certificate)];
            let ran = server.run(&[&arguments[..], &trusting].concat()).expect(2);
            assert!(ran.err.contains(&says), "{}", ran.err);
        }
    }
    // Nobody there: why, and once.
    let closed = harness::closed();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    let ran = server.run(&["ls", "--endpoint", &endpoint]).expect(1);
    assert_eq!(ran.err.matches("onnect").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("Connection refused"), "{}", ran.err);
}

#[test]
fn the_doctor_knows_http_without_grpc_and_a_server_that_has_gone() {
    let (_place, server) = ready(&["--no-rpc"]);
    for elsewhere in [&[][..], &["--endpoint", &server.s3()]] {
        let told = server.json(&[&["doctor"], elsewhere].concat());
        let paths = told.iter().filter(|row| row["path"].is_string());
        let available: Vec<_> = paths.map(|row| row["available"].as_bool()).collect();
        assert_eq!(
            available,
            [Some(false), Some(false), Some(true)],
            "{told:?}"
        );
    }
    let (place, server) = ready(&[]);
    server.terminate();
    let doctor = |dir: &Path| {
        let doctor = harness::forebay()
            .args(["doctor", "--dir"])
            .arg(dir)
            .output();
        harness::Ran::new(doctor.unwrap())
    };
    doctor(&place.data()).expect(1);
    // Where none has been it is a look at the machine.
    doctor(&place.path("new")).expect(0);
}

#[test]
fn the_direct_path_needs_no_s3_door() {
    let (place, server) = ready(&["--no-s3"]);
    let contents = bytes(3, 9_000_000);
    let source = place.path("source");
    fs::write(&source, &contents).unwrap();
    for path in ["shm", "iwarp"] {
        let object = format!("fb://made-{path}/key");
        let send = ["cp", "--path", path, text(&source), &object];
        let missing = server.run(&send).expect(3);
        assert!(missing.err.contains("--make-namespace"), "{}", missing.err);
        server.ok(&[&send[..], &["--make-namespace"]].concat());
        // Again, when all is there.
        server.ok(&send);
        let target = place.path(path);
        server.ok(&["cp", "--path", path, &object, text(&target)]);
        assert!(fs::read(&target).unwrap() == contents);
        let none = server.run(&["cp", "--path", path, "fb://made-shm/none", text(&target)]);
        none.expect(3);
        let range = ["--range", "5-9", "--json"];
        let seen = server.run(&[&["cat", "--path", path, &object], &range[..]].concat());
        let seen = seen.expect(0);
        assert_eq!(seen.bytes, contents[5..10]);
        let told: Value = serde_json::from_str(&seen.err).unwrap();
        assert_eq!((&told["path"], &told["bytes"]), (&path.into(), &5.into()));
        let outside = ["--range", "9000000-9000001"];
        let outside = server.run(&[&["cat", "--path", path, &object], &outside[..]].concat());
        outside.expect(1);
        let all = server.json(&["ls"]);
        let name = format!("made-{path}");
        assert!(all.iter().any(|row| row["namespace"] == name.as_str()));
        let kept = ["--metadata", "owner=me", "--path", path];
        let other = format!("fb://made-{path}/a/b");
        server.ok(&[&["cp", text(&source), &other], &kept[..]].concat());
        let stat = &server.json(&["stat", &other])[0];
        assert_eq!(
            (&stat["size"], &stat["metadata"]["owner"]),
            (&9_000_000.into(), &"me".into())
        );
        let listed = server.json(&["ls", &format!("fb://made-{path}/")]);
        assert_eq!(
            (&listed[0]["prefix"], &listed[1]["key"]),
            (&"a/".into(), &"key".into())
        );
        for (from, names) in [("", &["a/b", "key"][..]), ("k*", &["key"][..])] {
            let from = format!("fb://made-{path}/{from}");
            let folder = place.path(&format!("{path}-{}", names.len()));
            server.ok(&["cp", "--path", path, &from, text(&folder)]);
            let copied = harness::tree(&folder);
            assert!(copied.keys().eq(names.iter().map(Path::new)));
            assert!(copied.values().all(|copy| *copy == contents));
        }
        let below = ["cp", "--path", path, &format!("fb://made-{path}/a"), "-"];
        let below = server.run(&below).expect(3);
        assert!(below.err.contains("write a / at the end"), "{}", below.err);
        server.ok(&["rm", &other]);
        server.run(&["rm", &other]).expect(3);
        server.run(&["stat", &other]).expect(3);
        let inside = server.run(&["cp", "--path", path, &object, "fb://made-shm/copy"]);
        let inside = inside.expect(1);
        assert!(inside.err.contains("no S3 door"), "{}", inside.err);
        server.ok(&["rm", "-r", &format!("fb://made-{path}/")]);
        assert!(
            server
                .json(&["ls", &format!("fb://made-{path}")])
                .is_empty()
        );
    }
}
