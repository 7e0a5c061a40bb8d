//! Administration over the socket: tenants, keys, namespaces, quotas, and what other tenants see of them.

mod harness;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use forebay_client::Credentials;
use harness::skipping::skip;
use harness::{Place, Server};
use rustix::process::Signal;

fn key(server: &Server, tenant: &str) -> Credentials {
    let made = server.json(&["admin", "key", "create", tenant]);
    Credentials {
        access_key: made[0]["access_key"].as_str().unwrap().to_owned(),
        secret_key: made[0]["secret_key"].as_str().unwrap().to_owned(),
    }
}

/// Runs a command as a tenant, by the environment.
fn run_as(server: &Server, who: &Credentials, arguments: &[&str]) -> harness::Ran {
    let output = harness::forebay()
        .args(arguments)
        .args(["--endpoint", &server.s3()])
        .env("FOREBAY_ACCESS_KEY", &who.access_key)
        .env("FOREBAY_SECRET_KEY", &who.secret_key)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    harness::Ran::new(output)
}

#[test]
fn two_tenants_do_not_see_each_other() {
    let place = Place::new();
    let server = place.serve(&[]);
    for tenant in ["red", "blue"] {
        server.ok(&[
            "admin",
            "tenant",
            "create",
            tenant,
            "--display-name",
            "A team",
        ]);
    }
    let (red, blue) = (key(&server, "red"), key(&server, "blue"));
    let second_red = key(&server, "red");
    server.ok(&["admin", "namespace", "create", "reds", "--tenant", "red"]);
    server.ok(&["admin", "namespace", "create", "blues", "--tenant", "blue"]);

    let file = place.path("file");
    std::fs::write(&file, b"red's").unwrap();
    let file = file.to_str().unwrap();
    run_as(&server, &red, &["cp", file, "fb://reds/file"]).expect(0);
    // The tenant's other key serves as well.
    assert_eq!(
        run_as(&server, &second_red, &["cat", "fb://reds/file"])
            .expect(0)
            .out,
        "red's"
    );
    assert_eq!(
        run_as(&server, &red, &["ls", "--json"])
            .expect(0)
            .out
            .lines()
            .count(),
        1
    );
    assert_eq!(
        run_as(&server, &blue, &["ls", "--json"])
            .expect(0)
            .out
            .lines()
            .count(),
        1
    );
    for arguments in [
        &["cat", "fb://reds/file"][..],
        &["ls", "fb://reds"],
        &["cp", file, "fb://reds/other"],
        &["rm", "fb://reds/file"],
        &["cp", "fb://reds/file", "fb://blues/stolen"],
    ] {
        let ran = run_as(&server, &blue, arguments);
        assert!(matches!(ran.code, Some(3 | 4)), "{arguments:?} {ran:?}");
    }
    assert_eq!(
        run_as(&server, &red, &["cat", "fb://reds/file"])
            .expect(0)
            .out,
        "red's"
    );

    // A name that is taken is taken for everybody.
    assert_ne!(
        run_as(
            &server,
            &blue,
            &["cp", "--make-namespace", file, "fb://reds/x"]
        )
        .code,
        Some(0)
    );

    server.ok(&["admin", "key", "rm", &red.access_key]);
    run_as(&server, &red, &["ls"]).expect(4);
    run_as(&server, &second_red, &["ls"]).expect(0);
    let wrong = Credentials {
        secret_key: "wrong-secret".to_owned(),
        ..second_red
    };
    run_as(&server, &wrong, &["ls"]).expect(4);
}

#[test]
fn a_tenant_goes_without_its_namespaces_and_with_its_keys() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "tenant", "create", "brief"]);
    let who = key(&server, "brief");
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "briefs",
        "--tenant",
        "brief",
    ]);
    let ran = server.run(&["admin", "tenant", "rm", "brief"]).expect(1);
    assert!(ran.err.contains("owns 1 namespace"), "{}", ran.err);
    run_as(&server, &who, &["ls"]).expect(0);
    server.ok(&["admin", "namespace", "rm", "briefs"]);
    server.ok(&["admin", "tenant", "rm", "brief"]);
    run_as(&server, &who, &["ls"]).expect(4);
    server.run(&["admin", "tenant", "rm", "brief"]).expect(3);
    server.run(&["admin", "tenant", "rm", "root"]).expect(4);
    assert!(
        server
            .json(&["admin", "key", "list"])
            .iter()
            .all(|key| key["tenant"] == "root")
    );
}

#[test]
fn what_was_administered_survives_a_kill() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "tenant", "create", "lasting"]);
    let imported = [
        "--access-key",
        "IMPORTED",
        "--secret-key",
        "-a-secret-from-elsewhere",
    ];
    server.ok(&[&["admin", "key", "create", "lasting"][..], &imported].concat());
    server
        .run(&[&["admin", "key", "create", "lasting"][..], &imported].concat())
        .expect(1);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "kept",
        "--tenant",
        "lasting",
        "--durability",
        "relaxed:50ms",
        "--ttl",
        "30d",
        "--quota-bytes",
        "10MiB",
        "--versioning",
        "enabled",
    ]);
    server.ok(&["admin", "quota", "tenant", "lasting", "--objects", "3"]);
    let before = [
        server.json(&["admin", "tenant", "list"]),
        server.json(&["admin", "key", "list"]),
        server.json(&["admin", "namespace", "list"]),
    ];
    server.kill();
    let server = place.serve(&[]);
    let after = [
        server.json(&["admin", "tenant", "list"]),
        server.json(&["admin", "key", "list"]),
        server.json(&["admin", "namespace", "list"]),
    ];
    assert_eq!(before, after);
    let namespace = &after[2][0];
    assert_eq!(namespace["durability"], "relaxed:50ms");
    assert_eq!(namespace["versioning"], "enabled");
    assert_eq!(namespace["ttl_ms"], 30 * 86_400_000_u64);
    assert!(
        server
            .ok(&["admin", "namespace", "list"])
            .contains("relaxed:50ms")
    );
    assert!(server.ok(&["stat", "fb://kept"]).contains("relaxed:50ms"));

    server.ok(&[
        "admin",
        "namespace",
        "set",
        "kept",
        "--durability",
        "sync",
        "--ttl",
        "none",
    ]);
    let changed = &server.json(&["stat", "fb://kept"])[0];
    assert_eq!(changed["durability"], "sync");
    assert!(changed["ttl_ms"].is_null());
    assert_eq!(changed["versioning"], "enabled");
    assert_eq!(changed["quota"]["bytes"], 10 << 20);
}

#[test]
fn quotas_refuse_and_are_lifted() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "small",
        "--quota-bytes",
        "1MiB",
    ]);
    let file = place.path("file");
    std::fs::write(&file, harness::bytes(3, 700 << 10)).unwrap();
    let file = file.to_str().unwrap();
    server.ok(&["cp", file, "fb://small/a"]);
    server.run(&["cp", file, "fb://small/b"]).expect(5);
    server.run(&["stat", "fb://small/b"]).expect(3);
    // Replacing what is there needs no more room; removing it makes room.
    server.ok(&["cp", file, "fb://small/a"]);
    server.ok(&["rm", "fb://small/a"]);
    server.ok(&["cp", file, "fb://small/b"]);
    server.ok(&["admin", "quota", "namespace", "small", "--bytes", "none"]);
    server.ok(&["cp", file, "fb://small/a"]);

    server.ok(&["admin", "quota", "tenant", "root", "--objects", "2"]);
    server.run(&["cp", file, "fb://small/c"]).expect(5);
    let tenant = &server.json(&["admin", "quota", "tenant", "root"])[0];
    assert_eq!(
        (&tenant["quota"]["objects"], &tenant["usage"]["objects"]),
        (&2.into(), &2.into())
    );
    server.ok(&["admin", "quota", "tenant", "root", "--objects", "none"]);
    server.ok(&["cp", file, "fb://small/c"]);
}

#[test]
fn wrong_administration_is_refused_by_kind() {
    let place = Place::new();
    let server = place.serve(&[]);
    for (arguments, code) in [
        (&["admin", "tenant", "create", "Bad Name"][..], 2),
        (&["admin", "tenant", "create", ".forebay"], 2),
        (&["admin", "tenant", "create", "root"], 1),
        (&["admin", "key", "create", "nobody"], 3),
        (&["admin", "key", "rm", "NOSUCHKEY"], 3),
        (
            &[
                "admin",
                "key",
                "create",
                "root",
                "--access-key",
                "A/B",
                "--secret-key",
                "long-enough",
            ],
            2,
        ),
        (
            &["admin", "key", "create", "root", "--access-key", "AAA"],
            2,
        ),
        (&["admin", "namespace", "create", "x"], 2),
        (&["admin", "namespace", "create", "UPPER"], 2),
        (&["admin", "namespace", "create", ".forebay"], 2),
        (
            &["admin", "namespace", "create", "fine", "--tenant", "nobody"],
            3,
        ),
        (
            &[
                "admin",
                "namespace",
                "create",
                "fine",
                "--durability",
                "maybe",
            ],
            2,
        ),
        (
            &["admin", "namespace", "create", "fine", "--ttl", "5 days"],
            2,
        ),
        (&["admin", "namespace", "rm", "nothing"], 3),
        // The system's own is nobody's business.
        (&["admin", "namespace", "rm", ".forebay"], 3),
        (&["admin", "namespace", "set", ".forebay", "--ttl", "1s"], 3),
        (&["stat", "fb://.forebay"], 3),
    ] {
        let ran = server.run(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?} {ran:?}");
    }
    for arguments in [
        &["ls", "fb://.forebay"][..],
        &["cat", "fb://.forebay/tenant/root"],
    ] {
        assert_ne!(server.run(arguments).code, Some(0), "{arguments:?}");
    }
    let nobody = harness::forebay()
        .args(["admin", "tenant", "list", "--dir"])
        .arg(place.path("elsewhere"))
        .output()
        .map(harness::Ran::new)
        .unwrap()
        .expect(1);
    assert!(nobody.err.contains("no server uses"), "{}", nobody.err);
}

#[test]
fn a_refusal_says_what_would_help() {
    let place = Place::new();
    let server = place.serve(&[]);
    // A tenant's namespace is its own, unless it says otherwise.
    server.ok(&["admin", "tenant", "create", "red"]);
    let red = key(&server, "red");
    let by_grpc = |arguments: &[&str]| {
        let command = harness::forebay()
            .args(arguments)
            .args(["--endpoint", &server.rpc()])
            .env("FOREBAY_ACCESS_KEY", &red.access_key)
            .env("FOREBAY_SECRET_KEY", &red.secret_key)
            .output();
        harness::Ran::new(command.unwrap())
    };
    let made = by_grpc(&["admin", "namespace", "create", "reds", "--json"]).expect(0);
    let made: serde_json::Value = serde_json::from_str(&made.out).unwrap();
    assert_eq!(made["tenant"], "red");

    // What keeps a namespace that looks empty.
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "kept",
        "--versioning",
        "enabled",
    ]);
    server
        .run_on(&["cp", "-", "fb://kept/old"], b"value")
        .expect(0);
    server.ok(&["rm", "-r", "fb://kept/"]);
    let kept = server.run(&["admin", "namespace", "rm", "kept"]).expect(1);
    assert!(kept.err.contains("old versions"), "{}", kept.err);

    let file = place.path("hello.wasm");
    std::fs::write(&file, "no module").unwrap();
    let add = server.run(&["admin", "module", "add", file.to_str().unwrap()]);
    let add = add.expect(2);
    assert_eq!(add.err.lines().count(), 1, "{}", add.err);
    server
        .run(&["admin", "module", "add", "/no/such/file"])
        .expect(3);
    let add = server
        .run(&["admin", "module", "add", "fb://kept/none"])
        .expect(3);
    assert!(add.err.contains("fb://kept/none"), "{}", add.err);

    let half = harness::forebay()
        .args(["ls", "--endpoint", &server.rpc()])
        .env("FOREBAY_ACCESS_KEY", &red.access_key)
        .output();
    let half = harness::Ran::new(half.unwrap()).expect(2);
    assert!(half.err.contains("FOREBAY_SECRET_KEY"), "{}", half.err);
}

#[test]
fn what_a_directory_shows_is_not_what_a_tenant_sees() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "roots"]);
    server.ok(&["admin", "tenant", "create", "red"]);
    let red = key(&server, "red");
    std::os::unix::fs::symlink(place.data(), place.path("forebay-data")).unwrap();
    let stat = || {
        let mut stat = harness::forebay();
        stat.args(["stat", "fb://roots"])
            .current_dir(place.path(""));
        stat
    };
    harness::Ran::new(stat().output().unwrap()).expect(0);
    let stat = stat()
        .env("FOREBAY_ACCESS_KEY", &red.access_key)
        .env("FOREBAY_SECRET_KEY", &red.secret_key)
        .output();
    assert_ne!(harness::Ran::new(stat.unwrap()).code, Some(0));
}

#[test]
fn a_change_that_has_begun_is_made_before_the_end() {
    let place = Place::new();
    let server = place.serve(&[]);
    let body = br#"{"name":"late"}"#;
    let mut stream = UnixStream::connect(&server.doors["admin"]).unwrap();
    write!(
        stream,
        "POST /v1/tenants HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    )
    .unwrap();
    let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut interim).unwrap();
    server.signal(Signal::TERM);
    // The signal may take a moment to reach it.
    while server.console("/readyz").0 == 200 {}
    // It would have ended long before it had answered so often.
    for _ in 0..100 {
        assert_eq!(server.console("/readyz").0, 503);
    }
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.wait(), Some(0));
    let server = place.serve(&[]);
    assert!(server.ok(&["admin", "tenant", "list"]).contains("late"));
}

#[test]
fn a_server_that_ends_has_refused_nobody() {
    let place = Place::new();
    let run = place.path("data/run");
    std::fs::create_dir_all(&run).unwrap();
    let listener = UnixListener::bind(run.join("forebay.sock")).unwrap();
    let ended = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
    });
    let ran = harness::forebay()
        .args(["admin", "tenant", "list", "--dir"])
        .arg(place.data())
        .output()
        .map(harness::Ran::new)
        .unwrap()
        .expect(1);
    assert!(ran.err.contains("the server ended"), "{}", ran.err);
    ended.join().unwrap();
}

/// Says that there is a server of a directory, and answers one request to its admin API.
fn answering(place: &Place, answer: &'static str) -> std::thread::JoinHandle<()> {
    let run = place.path("data/run");
    std::fs::create_dir_all(&run).unwrap();
    let socket = run.join("forebay.sock");
    // Usually there is none.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for (end, answer) in [("\r\n\r\n", "{}"), ("\r\n\r\n{}", answer)] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(end.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
            let len = answer.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n{answer}"
            )
            .unwrap();
        }
    })
}

#[test]
fn what_was_not_done_is_a_failure() {
    let place = Place::new();
    let lifecycle = r#"{"expired":1,"versions":2,"markers":3,"uploads":4,"failed":5}"#;
    let pass =
        r#"{"at":1,"moved":6,"moved_bytes":7,"cold":8,"cold_bytes":9,"failed":5,"gave_up":false}"#;
    for (arguments, answer, told) in [
        (&["lifecycle-run"][..], lifecycle, "5 failed"),
        (&["tier", "run", "frames"], pass, "5 did not go"),
    ] {
        for json in [&[][..], &["--json"]] {
            let answered = answering(&place, answer);
            let ran = harness::forebay()
                .arg("admin")
                .args(arguments)
                .args(json)
                .arg("--dir")
                .arg(place.data())
                .output()
                .map(harness::Ran::new)
                .unwrap()
                .expect(1);
            answered.join().unwrap();
            let told = if json.is_empty() {
                told
            } else {
                "\"failed\":5"
            };
            assert!(ran.out.contains(told), "{ran:?}");
            assert!(
                ran.err.lines().count() == 1 && ran.err.contains('5'),
                "{ran:?}"
            );
        }
    }
}

#[test]
fn a_quota_is_shown_without_a_change_and_changed_in_part() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "tenant", "create", "red"]);
    server.ok(&["admin", "namespace", "create", "reds", "--tenant", "red"]);
    let before = server.metric("forebay_engine_changes_total");
    server.ok(&["admin", "quota", "tenant", "red"]);
    server.ok(&["admin", "quota", "namespace", "reds"]);
    assert_eq!(server.metric("forebay_engine_changes_total"), before);

    let change = |what: &str, to: u64| {
        let body = format!("{{\"{what}\":{to}}}");
        let mut stream = UnixStream::connect(&server.doors["admin"]).unwrap();
        let len = body.len();
        write!(
            stream,
            "PUT /v1/tenants/red/quota HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    };
    for to in 1..=50 {
        std::thread::scope(|scope| {
            scope.spawn(|| change("bytes", to));
            change("objects", to);
        });
        let shown = &server.json(&["admin", "quota", "tenant", "red"])[0]["quota"];
        assert_eq!(*shown, serde_json::json!({"bytes": to, "objects": to}));
    }
}

#[test]
fn a_secret_need_not_be_an_argument() {
    let place = Place::new();
    let server = place.serve(&[]);
    let secret = "a-secret-from-elsewhere";
    let import = ["admin", "key", "create", "root", "--access-key", "IMPORTED"];
    let imported = server.run_with(&import, |command| {
        command.env("FOREBAY_IMPORT_SECRET_KEY", secret);
    });
    assert!(imported.expect(0).out.contains(secret));
    let imported = Credentials {
        access_key: "IMPORTED".to_owned(),
        secret_key: secret.to_owned(),
    };
    run_as(&server, &imported, &["ls"]).expect(0);
    let chap = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let add = [
        "admin",
        "host",
        "add",
        "nqn.2026-01.com.example:a",
        "--json",
    ];
    let added = server.run_with(&add, |command| {
        command.env("FOREBAY_HOST_CHAP_SECRET", chap);
        command.env("FOREBAY_HOST_TLS_KEY", "new");
    });
    let added: serde_json::Value = serde_json::from_str(&added.expect(0).out).unwrap();
    assert_eq!(
        (&added["chap"], &added["tls"]),
        (&true.into(), &true.into())
    );
    for help in [&import[..3], &add[..3], &["nvme", "list"]] {
        let help = server.run_with(&[help, &["--help"]].concat(), |command| {
            for name in ["IMPORT_SECRET_KEY", "HOST_CHAP_SECRET", "HOST_TLS_KEY"] {
                command.env(format!("FOREBAY_{name}"), "shown-to-nobody");
            }
            for name in ["CHAP_SECRET", "CONTROLLER_SECRET", "TLS_KEY"] {
                command.env(format!("FOREBAY_NVME_{name}"), "shown-to-nobody");
            }
        });
        assert!(!help.expect(0).out.contains("shown-to-nobody"));
    }
}

#[test]
fn a_stranger_at_the_socket_is_sent_away() {
    use std::os::unix::fs::PermissionsExt;

    if !rustix::process::getuid().is_root() {
        return skip("only root can become somebody else");
    }
    let place = Place::new();
    let server = place.serve(&[]);
    // Even where the modes would let anybody in, the kernel's word on who asks decides.
    for (path, mode) in [
        ("", 0o755),
        ("data", 0o755),
        ("data/run", 0o777),
        ("data/run/forebay.sock", 0o777),
    ] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.path(path), mode).unwrap();
    }
    let mut command = harness::forebay();
    command.args(["admin", "tenant", "list", "--dir"]);
    command.arg(place.data());
    if let Some(ran) = harness::Ran::of_user(command, 65534) {
        ran.expect(4);
    }
    server.ok(&["admin", "tenant", "list"]);
}
