//! Administration over gRPC, from anywhere: the same commands, words and exit codes as over the socket.

mod harness;

use forebay_client::Credentials;
use harness::{Place, Ran, Server};

/// Runs a command against the gRPC door, by nothing but an address and an access key.
fn from_elsewhere(server: &Server, who: &Credentials, arguments: &[&str]) -> Ran {
    let output = harness::forebay()
        .args(arguments)
        .args(["--endpoint", &server.rpc()])
        .env("FOREBAY_ACCESS_KEY", &who.access_key)
        .env("FOREBAY_SECRET_KEY", &who.secret_key)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    Ran::new(output)
}

/// What a command prints, but for what differs between any two runs of it.
fn lasting(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = match serde_json::from_str::<serde_json::Value>(line) {
            Ok(mut value) => {
                if let Some(object) = value.as_object_mut() {
                    for name in ["created", "access_key", "secret_key", "elapsed_ms"] {
                        object.remove(name);
                    }
                }
                value.to_string()
            }
            // "read in 0.1 s" of a scrub; a fresh key.
            Err(_) => line
                .split(' ')
                .filter(|word| word.parse::<f64>().is_err() && word.len() < 20)
                .collect::<Vec<_>>()
                .join(" "),
        };
        lines.push(line);
    }
    lines.join("\n")
}

/// Every command of `admin`, good and bad, in an order in which they build on each other.
const STORY: &[&str] = &[
    "tenant create vision --display-name Vision",
    "tenant create vision",
    "tenant create Bad.Name",
    "tenant list",
    "key create vision --access-key IMPORTED --secret-key a-secret-from-elsewhere",
    "key create vision --access-key IMPORTED --secret-key a-secret-from-elsewhere",
    "key create vision",
    "key create nobody",
    "key list vision",
    "key list nobody",
    "namespace create frames --tenant vision --durability relaxed:50ms --ttl 30d --quota-bytes 1MiB --versioning enabled",
    "namespace create frames --tenant vision",
    "namespace create x",
    "namespace create plain",
    "namespace set frames --durability sync --ttl none --quota-objects 7 --versioning suspended",
    "namespace set nothing --ttl 1s",
    "namespace list",
    "quota tenant vision --bytes 1GiB --objects 9",
    "quota tenant vision --bytes none",
    "quota tenant vision",
    "quota tenant nobody",
    "quota namespace frames --objects none",
    "quota namespace frames",
    "host add nqn.2026-01.com.example:a --tenant vision",
    "host add nqn.2026-01.com.example:a --tenant vision",
    "host add nqn.2026-01.com.example:b --tenant nobody",
    "host add nonsense --tenant vision",
    "host list",
    "host rm nqn.2026-01.com.example:a",
    "host rm nqn.2026-01.com.example:a",
    "namespace create kv --nvme nsid=7",
    "namespace create kv2 --nvme nsid=7",
    "namespace set frames --nvme auto",
    "namespace list",
    "namespace set frames --nvme none",
    "namespace rm kv",
    "grant list",
    "grant list --tenant vision",
    "grant list --tenant nobody",
    "grant rm 0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e",
    "grant rm 0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e-7 0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e-8",
    "grant rm --tenant vision",
    "grant rm --tenant nobody",
    "scrub",
    "lifecycle-run",
    "namespace rm nothing",
    "namespace rm .forebay",
    "namespace rm plain",
    "tenant rm vision",
    "namespace rm frames",
    "key rm IMPORTED",
    "key rm IMPORTED",
    "tenant rm vision",
    "tenant rm vision",
    "tenant rm root",
];

#[test]
fn every_command_says_the_same_both_ways() {
    let (here, there) = (Place::new(), Place::new());
    let (here, there) = (here.serve(&[]), there.serve(&[]));
    let root = there.credentials();
    let mut codes = Vec::new();
    for line in STORY {
        for json in [false, true] {
            let words = line.split(' ').chain(json.then_some("--json"));
            let arguments: Vec<&str> = std::iter::once("admin").chain(words).collect();
            // What changes something is done once.
            if json
                && !["list", "scrub", "lifecycle-run"]
                    .iter()
                    .any(|word| line.contains(word))
            {
                continue;
            }
            let by_socket = here.run(&arguments);
            let by_rpc = from_elsewhere(&there, &root, &arguments);
            assert_eq!(
                by_rpc.code, by_socket.code,
                "{line}: {by_rpc:?} {by_socket:?}"
            );
            assert_eq!(by_rpc.err, by_socket.err, "{line}");
            assert_eq!(lasting(&by_rpc.out), lasting(&by_socket.out), "{line}");
            assert!(by_rpc.err.lines().count() <= 1, "{line}: {}", by_rpc.err);
            codes.push(by_rpc.code);
        }
    }
    for code in [0, 1, 2, 3, 4] {
        assert!(codes.contains(&Some(code)), "nothing ended with {code}");
    }
}

#[test]
fn a_name_means_nothing_but_itself() {
    let place = Place::new();
    let server = place.serve(&[]);
    let root = server.credentials();
    server.ok(&["admin", "tenant", "create", "vision"]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "frames",
        "--tenant",
        "vision",
    ]);
    for line in [
        "admin namespace rm frames?old",
        "admin namespace rm frames#old",
        "admin namespace set frames? --ttl 1s",
        "admin quota namespace frames?",
        "admin quota tenant vision?",
        "admin tenant rm vision/grants",
        "admin tenant rm vision%2Fgrants",
        "admin key list vision?",
        "admin key rm vision/",
        "admin host rm nqn.2026-01.com.example:a?b",
        "admin module rm name?",
        "stat fb://frames?old/",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let by_socket = server.run(&arguments).expect(3);
        let by_rpc = from_elsewhere(&server, &root, &arguments).expect(3);
        assert_eq!(by_rpc.err, by_socket.err, "{line}");
    }
    let left = server.json(&["admin", "namespace", "list"]);
    assert!(left.iter().any(|left| left["name"] == "frames"), "{left:?}");
}

#[test]
fn answers_as_json_are_the_same_bytes() {
    let place = Place::new();
    let server = place.serve(&[]);
    let root = server.credentials();
    let made = from_elsewhere(
        &server,
        &root,
        &["admin", "key", "create", "root", "--json"],
    );
    let made: serde_json::Value = serde_json::from_str(&made.expect(0).out).unwrap();
    assert!(made["secret_key"].as_str().unwrap().len() >= 16);
    for command in ["tenant", "key", "namespace"] {
        let arguments = ["admin", command, "list", "--json"];
        let by_rpc = from_elsewhere(&server, &root, &arguments).expect(0);
        assert_eq!(by_rpc.out, server.ok(&arguments), "{command}");
    }
    let fresh = Credentials {
        access_key: made["access_key"].as_str().unwrap().to_owned(),
        secret_key: made["secret_key"].as_str().unwrap().to_owned(),
    };
    from_elsewhere(&server, &fresh, &["admin", "tenant", "list"]).expect(0);
}

#[test]
fn a_tenant_administers_what_is_its_own() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "tenant", "create", "red"]);
    server.ok(&["admin", "namespace", "create", "secret"]);
    let key = &server.json(&["admin", "key", "create", "red"])[0];
    let red = Credentials {
        access_key: key["access_key"].as_str().unwrap().to_owned(),
        secret_key: key["secret_key"].as_str().unwrap().to_owned(),
    };
    let run = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        from_elsewhere(&server, &red, &arguments)
    };
    run("admin namespace create reds --tenant red").expect(0);
    let shown = run("stat fb://reds --json").expect(0).out;
    assert!(shown.contains("\"tenant\":\"red\""), "{shown}");
    let listed = run("admin namespace list").expect(0).out;
    assert!(
        listed.contains("reds") && !listed.contains("secret"),
        "{listed}"
    );
    for (line, code) in [
        ("admin tenant create blue", 4),
        ("admin key create red", 4),
        ("admin quota tenant red --bytes none", 4),
        ("admin scrub", 4),
        ("admin host add nqn.2026-01.com.example:a --tenant red", 4),
        (
            "admin namespace create red-keys --tenant red --nvme auto",
            4,
        ),
        ("admin namespace set reds --nvme auto", 4),
        ("admin namespace rm secret", 3),
        ("admin namespace rm nothing", 3),
        ("stat fb://secret", 3),
        ("admin key list root", 3),
    ] {
        assert_eq!(run(line).code, Some(code), "{line}");
    }
    let words = |line| run(line).err.replace("secret", "nothing");
    assert_eq!(
        words("admin namespace rm secret"),
        words("admin namespace rm nothing")
    );

    let wrong = Credentials {
        secret_key: "not-the-secret".to_owned(),
        ..red.clone()
    };
    let refused = from_elsewhere(&server, &wrong, &["admin", "tenant", "list"]).expect(4);
    assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
}

#[test]
fn what_is_no_grpc_endpoint_is_said() {
    let place = Place::new();
    let server = place.serve(&[]);
    let run = |endpoint: &str| {
        let ran = harness::forebay()
            .args(["admin", "tenant", "list", "--endpoint", endpoint])
            .env("FOREBAY_ACCESS_KEY", "A")
            .env("FOREBAY_SECRET_KEY", "B")
            .output();
        let ran = Ran::new(ran.unwrap()).expect(1);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        ran.err
    };
    let said = run(&server.s3());
    assert!(said.contains("speaks S3 and no gRPC"), "{said}");
    // Beside a directory an S3 endpoint is no obstacle: its socket is there.
    server.ok(&["admin", "tenant", "list", "--endpoint", &server.s3()]);
    let closed = server.rpc();
    server.kill();
    // Nobody listens there; no way leads there.
    for nowhere in [&closed, "http://255.255.255.255:9001"] {
        let said = run(nowhere);
        assert!(said.contains(nowhere) && !said.contains("S3"), "{said}");
    }
}
