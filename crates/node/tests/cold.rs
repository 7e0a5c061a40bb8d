//! A server whose cold tier is another server: bytes go there and come back, and neither's end loses any.

mod harness;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use forebay_api::v1;
use forebay_client::Admin;
use forebay_client::direct::Options;
use harness::{Place, Ran, Server, bytes};
use serde_json::{Value, json};

/// Where the far server's bucket is, as the near one is told.
fn url(far: &Server, place: &Place) -> String {
    format!(
        "s3://freezer/near?endpoint={}&credentials={}",
        far.s3(),
        place.data().join("credentials").display()
    )
}

fn far_side() -> (Place, Server) {
    far_side_at("127.0.0.1:0")
}

fn far_side_at(door: &str) -> (Place, Server) {
    let place = Place::new();
    let far = place.serve(&["--s3", door]);
    far.ok(&["admin", "namespace", "create", "freezer"]);
    (place, far)
}

/// How many copies the far side holds.
fn copies(far: &Server) -> usize {
    far.json(&["ls", "--recursive", "fb://freezer"]).len()
}

fn put(server: &Server, place: &Place, address: &str, body: &[u8]) {
    let file = place.path("file");
    std::fs::write(&file, body).unwrap();
    server.ok(&["cp", file.to_str().unwrap(), address]);
}

#[track_caller]
fn reads(server: &Server, address: &str, body: &[u8]) {
    let read = server.run(&["cat", address]).expect(0).bytes;
    assert!(read == body, "{address}: {} bytes", read.len());
}

/// One number of the metrics page.
fn metric(server: &Server, name: &str) -> u64 {
    let (_, page) = server.console("/metrics");
    let line = page.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn bytes_go_to_another_server_and_come_back() {
    let (far_place, far) = far_side();
    let place = Place::new();
    let cold = url(&far, &far_place);
    let server = place.serve(&["--cold", &cold]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let (large, small) = (bytes(1, 9_000_001), bytes(2, 1000));
    put(&server, &place, "fb://data/logs/large", &large);
    put(&server, &place, "fb://data/logs/small", &small);
    put(&server, &place, "fb://data/other", &large);
    let before = (
        server.json(&["stat", "fb://data/logs/large"]),
        server.json(&["admin", "namespace", "list"]),
        server.json(&["ls", "fb://data/logs/"]),
    );

    // What goes is said, shown, and done.
    server.run(&["admin", "tier", "set", "data"]).expect(2);
    server
        .run(&["admin", "tier", "set", "none", "--after", "1d"])
        .expect(3);
    server.ok(&[
        "admin",
        "tier",
        "set",
        "data",
        "--prefix",
        "logs/",
        "--larger-than",
        "64KiB",
    ]);
    let shown = &server.json(&["admin", "tier", "show", "data"])[0];
    assert_eq!(shown["rules"]["default"]["prefix"], "logs/");
    let passed = &server.json(&["admin", "tier", "run", "data"])[0];
    assert_eq!(
        (&passed["moved"], &passed["moved_bytes"]),
        (&1.into(), &9_000_001.into())
    );
    assert_eq!(copies(&far), 1);

    // To everybody it is the same value.
    let after = (
        server.json(&["stat", "fb://data/logs/large"]),
        server.json(&["admin", "namespace", "list"]),
        server.json(&["ls", "fb://data/logs/"]),
    );
    assert_eq!(after, before);
    let range = server.run(&["cat", "--range", "5000000-5000009", "fb://data/logs/large"]);
    assert_eq!(range.expect(0).bytes, large[5_000_000..5_000_010]);
    assert_eq!(copies(&far), 1, "a range brings nothing back");
    reads(&server, "fb://data/logs/large", &large);
    // It may be read in pieces side by side: then it comes back beside that.
    wait_until(|| metric(&server, "forebay_cold_recalled_values_total") == 1);
    assert_eq!(metric(&server, "forebay_cold_moved_bytes_total"), 9_000_001);
    let again = &server.json(&["admin", "tier", "run", "data"])[0];
    assert_eq!(again["moved"], 0, "what came back rests");
    reads(&server, "fb://data/other", &large);
    reads(&server, "fb://data/logs/small", &small);

    // From elsewhere too, and by name.
    let endpoint = server.rpc();
    let elsewhere = ["--endpoint", endpoint.as_str()];
    let ask = |arguments: &[&str]| server.run(&[arguments, &elsewhere[..]].concat());
    ask(&[
        "admin",
        "tier",
        "set",
        "data",
        "--larger-than",
        "500",
        "--recall",
        "never",
    ])
    .expect(0);
    let passed = ask(&["admin", "tier", "run", "data", "--json"])
        .expect(0)
        .out;
    let passed: Value = serde_json::from_str(&passed).unwrap();
    assert_eq!(passed["moved"], 2, "all but what rests");
    reads(&server, "fb://data/other", &large);
    assert_eq!(metric(&server, "forebay_cold_recalled_values_total"), 1);
    ask(&["admin", "tier", "recall", "fb://data/other"]).expect(0);
    assert_eq!(metric(&server, "forebay_cold_recalled_values_total"), 2);
    ask(&["admin", "tier", "rm", "data"]).expect(0);
    let shown = &server.json(&["admin", "tier", "show", "data"])[0];
    assert_eq!(shown["rules"], json!({}));
    let swept = ask(&["admin", "tier", "sweep"]).expect(0).out;
    assert!(swept.starts_with("0 copies deleted; "), "{swept}");

    // What came back leaves no copy behind, however soon the server ends.
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(copies(&far), 1);

    // It outlives a restart, and what ends takes its copy along.
    let server = place.serve(&["--cold", &cold]);
    reads(&server, "fb://data/logs/small", &small);
    for key in ["logs/large", "logs/small", "other"] {
        server.ok(&["rm", &format!("fb://data/{key}")]);
    }
    wait_until(|| copies(&far) == 0);
}

/// The names of the rules that an answer shows.
fn rules(tier: &Value) -> Vec<&str> {
    let rules = tier["rules"].as_object().unwrap();
    rules.keys().map(String::as_str).collect()
}

#[test]
fn rules_stand_beside_each_other() {
    let (far_place, far) = far_side();
    let place = Place::new();
    let server = place.serve(&["--cold", &url(&far, &far_place)]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let endpoint = server.rpc();
    let here = ["--json"];
    let elsewhere = ["--json", "--endpoint", endpoint.as_str()];
    let tier = |from: &[&str], arguments: &[&str]| {
        server.run(&[&["admin", "tier"][..], arguments, from].concat())
    };
    let told = |ran: Ran| -> Value { serde_json::from_str(&ran.expect(0).out).unwrap() };
    let large = bytes(1, 2_000_000);
    put(&server, &place, "fb://data/checkpoints/1", b"a checkpoint");
    put(&server, &place, "fb://data/large", &large);
    put(&server, &place, "fb://data/small", b"small");
    for from in [&here[..], &elsewhere] {
        for refused in [
            &["add", "data", "no name", "--after", "1d"][..],
            &["add", "data", "says-nothing"],
            &["add", "data", "long", "--prefix", &"a".repeat(1025)],
        ] {
            tier(from, refused).expect(2);
        }
        tier(from, &["add", "none", "rule", "--after", "1d"]).expect(3);
        tier(from, &["rm", "data", "rule"]).expect(3);
    }

    // Each moves its own.
    let added = ["--prefix", "checkpoints/", "--larger-than", "0"];
    let added = [&["add", "data", "checkpoints"][..], &added].concat();
    assert_eq!(rules(&told(tier(&here, &added))), ["checkpoints"]);
    let passed = told(tier(&here, &["run", "data"]));
    assert_eq!((&passed["moved"], copies(&far)), (&json!(1), 1));
    let added = ["add", "data", "large", "--larger-than", "1MiB"];
    let shown = told(tier(&elsewhere, &added));
    assert_eq!(rules(&shown), ["checkpoints", "large"]);
    assert_eq!(shown["rules"]["large"]["larger_than"], 1 << 20);
    let passed = told(tier(&elsewhere, &["run", "data"]));
    assert_eq!((&passed["moved"], copies(&far)), (&json!(1), 2));
    assert_eq!(passed["cold"], 2);
    let table = server.ok(&["admin", "tier", "show", "data"]);
    assert_eq!(table.lines().count(), 4, "{table}");

    // One that is removed moves nothing more, and the other goes on.
    tier(&elsewhere, &["rm", "data", "large"]).expect(0);
    put(&server, &place, "fb://data/later", &large);
    put(&server, &place, "fb://data/checkpoints/2", b"another");
    let passed = told(tier(&here, &["run", "data"]));
    assert_eq!((&passed["moved"], copies(&far)), (&json!(1), 3));
    let replaced = ["add", "data", "checkpoints", "--prefix", "none/"];
    let shown = told(tier(&here, &replaced));
    assert_eq!(shown["rules"]["checkpoints"]["prefix"], "none/");

    // One is set in the place of all.
    let shown = told(tier(&here, &["set", "data", "--after", "30d"]));
    assert_eq!(rules(&shown), ["default"]);
    tier(&here, &["rm", "data", "default"]).expect(0);
    let shown = told(tier(&elsewhere, &["show", "data"]));
    assert_eq!(shown["rules"], json!({}));
    // Without any, a pass counts what is still cold.
    let passed = told(tier(&here, &["run", "data"]));
    assert_eq!((&passed["moved"], &passed["cold"]), (&json!(0), &json!(3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_rules_that_are_added_at_the_same_time_none_is_lost() {
    let (far_place, far) = far_side();
    let place = Place::new();
    let server = place.serve(&["--cold", &url(&far, &far_place)]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let endpoint = server.rpc().parse().unwrap();
    let admin = Admin::new(&endpoint, &server.credentials(), &Options::default()).unwrap();
    let add = |name: String| {
        admin.add_tier_rule(v1::AddTierRuleRequest {
            namespace: "data".to_owned(),
            name,
            policy: Some(v1::TierPolicy {
                after_ms: Some(1),
                ..v1::TierPolicy::default()
            }),
        })
    };
    let some = |adder: u32| async move {
        for number in 0..25 {
            add(format!("{adder}-{number}")).await.unwrap();
        }
    };
    tokio::join!(some(1), some(2), some(3), some(4));
    let again = add("1-1".to_owned()).await.unwrap();
    assert_eq!(again.rules.len(), 100);
    let refused = add("one-more".to_owned()).await.unwrap_err();
    assert_eq!(refused.kind(), forebay_client::Kind::Limit, "{refused}");
}

#[test]
fn an_old_version_is_recalled_by_its_id() {
    let (far_place, far) = far_side();
    let place = Place::new();
    let server = place.serve(&["--cold", &url(&far, &far_place)]);
    let create = ["admin", "namespace", "create", "data", "--versioning"];
    server.ok(&[&create[..], &["enabled"]].concat());
    for seed in [1, 2] {
        put(&server, &place, "fb://data/key", &bytes(seed, 300_000));
    }
    let set = ["admin", "tier", "set", "data", "--larger-than", "1KiB"];
    server.ok(&[&set[..], &["--recall", "never"]].concat());
    let passed = &server.json(&["admin", "tier", "run", "data"])[0];
    assert_eq!(passed["moved"], 2, "{passed}");
    let listed = server.json(&["ls", "--versions", "fb://data/key"]);
    let old = listed[1]["version"].as_str().unwrap();
    let recall = ["admin", "tier", "recall", "fb://data/key", "--version"];
    let recall = |id| server.run(&[&recall[..], &[id, "--json"]].concat());
    for was_cold in [true, false] {
        let told: serde_json::Value = serde_json::from_str(&recall(old).expect(0).out).unwrap();
        assert_eq!(told["recalled"], was_cold, "{told}");
    }
    recall("null").expect(3);
}

/// Tries again until it holds.
#[track_caller]
fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..300 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it does not come to hold");
}

fn refused_for_now(ran: Ran) {
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.bytes.is_empty());
}

#[test]
fn without_the_far_side_all_else_goes_on() {
    let [s3] = harness::returning();
    let (far_place, far) = far_side_at(&s3);
    let place = Place::new();
    let cold = url(&far, &far_place);
    let server = place.serve(&["--cold", &cold]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let body = bytes(3, 300_000);
    put(&server, &place, "fb://data/cold", &body);
    server.ok(&["admin", "tier", "set", "data", "--larger-than", "1KiB"]);
    server.ok(&["admin", "tier", "run", "data"]);
    far.kill();

    refused_for_now(server.run(&["cat", "fb://data/cold"]));
    refused_for_now(server.run(&["admin", "tier", "recall", "fb://data/cold"]));
    put(&server, &place, "fb://data/hot", &body);
    reads(&server, "fb://data/hot", &body);
    assert_eq!(server.json(&["stat", "fb://data/cold"])[0]["size"], 300_000);
    let passed = server.run(&["admin", "tier", "run", "data"]);
    assert_eq!(passed.code, Some(1), "{passed:?}");
    reads(&server, "fb://data/hot", &body);
    server.terminate();
    // A server starts without it.
    let server = place.serve(&["--cold", &cold]);
    reads(&server, "fb://data/hot", &body);
    refused_for_now(server.run(&["cat", "fb://data/cold"]));

    let far = far_place.serve(&["--s3", &s3]);
    reads(&server, "fb://data/cold", &body);
    drop(far);
}

#[test]
fn a_server_that_is_killed_loses_nothing_on_the_way() {
    let (far_place, far) = far_side();
    let place = Place::new();
    let cold = url(&far, &far_place);
    let mut server = place.serve(&["--cold", &cold]);
    server.ok(&["admin", "namespace", "create", "data"]);
    server.ok(&["admin", "tier", "set", "data", "--larger-than", "1KiB"]);
    let bodies: Vec<_> = (0..12).map(|seed| bytes(seed, 400_000)).collect();
    for (number, body) in bodies.iter().enumerate() {
        put(&server, &place, &format!("fb://data/{number}"), body);
    }
    for round in 0..4_u64 {
        std::thread::scope(|scope| {
            let running = &server;
            scope.spawn(move || running.run(&["admin", "tier", "run", "data"]));
            // Some moves are done by then, some are not.
            std::thread::sleep(Duration::from_millis(30 + 60 * round));
            server.signal(rustix::process::Signal::KILL);
        });
        server.wait();
        server = place.serve(&["--cold", &cold]);
        for (number, body) in bodies.iter().enumerate() {
            let address = format!("fb://data/{number}");
            let range = server.run(&["cat", "--range", "399990-399999", &address]);
            assert_eq!(range.expect(0).bytes, body[399_990..], "{address}");
        }
    }
    server.ok(&["admin", "tier", "run", "data"]);
    for (number, body) in bodies.iter().enumerate() {
        reads(&server, &format!("fb://data/{number}"), body);
    }
}

#[test]
fn what_cannot_be_is_said_at_the_start() {
    let place = Place::new();
    for (cold, word) in [
        ("gs://bucket", "s3://"),
        ("s3://b?endpoint=host", "endpoint"),
        ("s3://b?credentials=/nowhere/at/all", "/nowhere/at/all"),
    ] {
        let output = place.serve_command(&["--cold", cold]).output().unwrap();
        let ran = Ran::new(output).expect(2);
        assert!(ran.err.contains(word), "{cold}: {}", ran.err);
    }
    let mut command = harness::forebay();
    command.arg("serve").arg(place.data());
    command.args(["--memory", "8MiB", "--cold", "s3://bucket"]);
    let ran = Ran::new(command.output().unwrap()).expect(2);
    assert!(ran.err.contains("64MiB"), "{}", ran.err);
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let ran = server.run(&["admin", "tier", "show", "data"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("--cold"), "{}", ran.err);
}

#[test]
fn a_profile_that_is_named_is_there() {
    let place = Place::new();
    let home = place.path("home");
    std::fs::create_dir_all(home.join(".aws")).unwrap();
    let file = home.join(".aws/credentials");
    let start = |variable: Option<(&str, &str)>| {
        place.try_serve_with(&["--cold", "s3://freezer"], |command| {
            command.env("HOME", &home).envs(variable);
        })
    };
    let pair = "aws_access_key_id = A\naws_secret_access_key = B\n";
    let half = "[default]\naws_access_key_id = A\n".to_owned();
    for (text, variable, words) in [
        (
            format!("[default]\n{pair}"),
            ("AWS_PROFILE", "none"),
            "[none]",
        ),
        (
            format!("[default]\n{pair}"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/none/credentials"),
            "/none/credentials: ",
        ),
        (half, ("LANG", "C"), "[default]"),
    ] {
        std::fs::write(&file, text).unwrap();
        match start(Some(variable)) {
            Ok(_) => panic!("{variable:?}: somebody else is meant"),
            Err(ran) => {
                let ran = ran.expect(2);
                assert!(ran.err.contains(words), "{ran:?}");
                assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
            }
        }
    }
    // Where nobody is named it is the machine's role.
    std::fs::write(&file, format!("[other]\n{pair}")).unwrap();
    assert_eq!(start(None).unwrap().terminate(), Some(0));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(start(None).unwrap().terminate(), Some(0));
}

#[test]
fn the_token_of_a_session_goes_along() {
    let place = Place::new();
    let file = place.path("credentials");
    let text = "[default]\naws_access_key_id = A\naws_secret_access_key = B\naws_session_token = of-a-day\n";
    std::fs::write(&file, text).unwrap();
    // A far side that refuses whatever comes.
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "s3://freezer?endpoint=http://{}&credentials={}",
        far.local_addr().unwrap(),
        file.display()
    );
    let (heads, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in far.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
                head.push(byte[0]);
            }
            let answer =
                b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
            // The test may have ended.
            let _ = heads.send(String::from_utf8(head).unwrap());
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let server = place.serve(&["--cold", &url]);
    server.ok(&["admin", "namespace", "create", "data"]);
    put(&server, &place, "fb://data/key", &bytes(1, 100_000));
    server.ok(&["admin", "tier", "set", "data", "--larger-than", "1KiB"]);
    server.run(&["admin", "tier", "run", "data"]).expect(1);
    let head = asked.recv().unwrap();
    assert!(
        head.contains("x-amz-security-token: of-a-day\r\n"),
        "{head}"
    );
}
