//! A server's life: doors, configuration, directory, credentials, end.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_client::Credentials;
use forebay_io::ring;
use harness::{Place, Ran, s3};
use rustix::process::{Pid, Signal, getpgid, getpgrp};

/// Lets a server have so many descriptors.
fn with_descriptors(command: &mut Command, most: u32) {
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        .arg(format!("ulimit -n {most} && exec \"$0\" \"$@\""))
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    *command = limited;
}

/// nextest ends a test with a signal to its process group, and so does Ctrl-C: a server of another group would stay.
#[test]
fn who_ends_a_test_ends_its_servers() {
    let place = Place::new();
    let server = place.serve_with(&[], |command| with_descriptors(command, 128));
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    assert_eq!(getpgid(pid).unwrap(), getpgrp());
}

#[test]
fn connections_leave_descriptors_for_administration() {
    let place = Place::new();
    let server = place.serve_with(&[], |command| with_descriptors(command, 128));
    let door = &server.doors["s3"];
    let _idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(door).unwrap())
        .collect();
    // Administration is asked over a socket of its own.
    server.ok(&["admin", "tenant", "list"]);
    assert!(place.log().contains("fewer connections at once"));
}

#[test]
fn the_first_start_leads_to_a_first_object() {
    let place = Place::new();
    let server = place.serve(&[]);
    let command = server
        .welcome
        .lines()
        .find(|line| line.contains(" cp "))
        .unwrap();
    let ran = std::process::Command::new("sh")
        .args(["-c", command])
        .output()
        .map(Ran::new)
        .unwrap()
        .expect(0);
    let last = ran.out.lines().last().unwrap();
    assert!(
        last.contains("1 object") && last.contains("path shm"),
        "{last}"
    );
    let there = server.run(&["cat", "fb://demo/hello"]).expect(0);
    assert_eq!(there.bytes, fs::read("/etc/os-release").unwrap());
    assert!(server.welcome.contains("aws --endpoint-url") && server.welcome.contains("boto3"));
    assert!(server.welcome.contains("disk I/O"));
    assert!(server.ok(&["ls"]).contains("sync"));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn the_ready_file_names_every_door_and_goes_with_the_server() {
    let place = Place::new();
    let server = place.serve(&["--no-uring"]);
    let ready = place.path("ready.json");
    let doors: BTreeMap<String, String> =
        serde_json::from_slice(&fs::read(&ready).unwrap()).unwrap();
    assert_eq!(
        doors.keys().collect::<Vec<_>>(),
        ["admin", "console", "direct", "nvme", "rpc", "s3", "shm"]
    );
    assert!(!doors["s3"].ends_with(":0"));
    TcpStream::connect(&doors["s3"]).unwrap();
    TcpStream::connect(&doors["console"]).unwrap();
    assert!(server.welcome.contains("threads (--no-uring)"));
    assert_eq!(server.terminate(), Some(0));
    assert!(!ready.exists());
    assert!(!place.data().join("run/forebay.sock").exists());
}

#[test]
fn a_configuration_is_the_flags_and_flags_win() {
    let place = Place::new();
    let config = place.path("forebay.toml");
    let with = |text: &str, flags: &[&str]| {
        fs::write(&config, text).unwrap();
        let mut command = harness::forebay();
        command
            .arg("serve")
            .arg(place.data())
            .arg("--config")
            .arg(&config);
        Ran::new(command.args(flags).output().unwrap())
    };
    let ran = with("consol = \"127.0.0.1:0\"\n", &[]).expect(2);
    assert!(
        ran.err
            .contains("unknown key `consol`; the nearest is `console`"),
        "{}",
        ran.err
    );
    let ran = with("shards = [1, {}]\n", &[]).expect(2);
    assert!(ran.err.contains("shards"), "{}", ran.err);
    with("shards = 0\n", &[]).expect(2);
    let ran = with("shards = 2\ns3 = 127.0.0.1:0\n", &[]).expect(2);
    assert!(
        ran.err.contains("line 2") && ran.err.lines().count() == 1,
        "{}",
        ran.err
    );
    with("config = \"other.toml\"\n", &[]).expect(2);
    for wrong in [
        "s3 = false",
        "nvme = true",
        "capacity = false",
        "shards = [true]",
        "no-s3 = [false]",
    ] {
        let ran = with(wrong, &[]).expect(2);
        let (key, _) = wrong.split_once(' ').unwrap();
        assert!(ran.err.contains(&format!("{key} ")), "{wrong}: {}", ran.err);
    }
    let ran = with("s3 = \"0.0.0.0:0\"\n", &[]).expect(2);
    assert!(ran.err.contains("--insecure"), "{}", ran.err);
    let ran = with("console = \"[::]:0\"\ns3 = \"127.0.0.1:0\"\n", &[]).expect(2);
    assert!(ran.err.contains("--console"), "{}", ran.err);

    // The address here would be refused: the harness' flags win over it.
    fs::write(
        &config,
        "s3 = \"0.0.0.0:0\"\nconsole = \"0.0.0.0:0\"\nshards = 3\nno-s3 = true\nno-uring = true\nno-nvme = false\n",
    )
    .unwrap();
    let server = place.serve(&["--config", config.to_str().unwrap()]);
    assert!(server.doors["s3"].starts_with("127.0.0.1:"));
    let described = server.ok(&["doctor"]);
    assert!(described.contains("on 3 shards"), "{described}");
}

#[test]
fn wrong_flags_are_wrong_usage() {
    for arguments in [
        &["serve", "--s3", "nowhere"][..],
        &["serve", "--nvme", "nowhere"],
        &["serve", "--nvme", "0.0.0.0:4420"],
        &["serve", "--nvme-namespace", "data=0"],
        &["serve", "--export", "disk"],
        &["serve", "--s3-tls-cert", "x.pem"],
        &["serve", "--connections", "0"],
        &["serve", "--log-level", "verbose"],
        &["serve", "--log-level", "forebay_s3=debug,verbose"],
        &["serve", "--connections", "4294967296"],
        &["serve", "--memory", "1KiB"],
        &["serve", "--s3-region", ""],
        &["frobnicate"],
        &["cp", "only-one"],
        &["stat", "not-an-address"],
        &[],
    ] {
        Ran::new(harness::forebay().args(arguments).output().unwrap()).expect(2);
    }
    let help = Ran::new(harness::forebay().args(["cp", "--help"]).output().unwrap()).expect(0);
    assert!(help.out.contains("Examples:"));
    let script = Ran::new(
        harness::forebay()
            .args(["completions", "bash"])
            .output()
            .unwrap(),
    );
    assert!(script.expect(0).out.contains("forebay"));
}

#[test]
fn credentials_are_private_and_last() {
    let place = Place::new();
    let server = place.serve(&[]);
    let path = place.data().join("credentials");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(place.data()).unwrap().mode() & 0o777, 0o700);
    let socket = place.data().join("run/forebay.sock");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let first = server.credentials();
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .contains("# endpoint_url = http://127.0.0.1:")
    );
    assert_eq!(server.terminate(), Some(0));

    // Lost: written again, the same.
    fs::remove_file(&path).unwrap();
    let server = place.serve(&[]);
    assert_eq!(server.credentials(), first);
    server.ok(&["ls"]);
    assert_eq!(server.terminate(), Some(0));

    // Given by the environment: these hold, and the old ones still do.
    let server = place.serve_with(&[], |command| {
        command
            .env("FOREBAY_ACCESS_KEY", "ENVKEY")
            .env("FOREBAY_SECRET_KEY", "env-secret-env-secret");
    });
    assert_eq!(server.credentials().access_key, "ENVKEY");
    server.ok(&["ls"]);
    let keys = server.json(&["admin", "key", "list", "root"]);
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.get("secret_key").is_none()));
    drop(server);
    let ran = place
        .serve_command(&[])
        .env("FOREBAY_ACCESS_KEY", "ENVKEY")
        .output()
        .map(Ran::new)
        .unwrap();
    ran.expect(2);
}

#[test]
fn what_others_have_put_into_the_credentials_file_stays() {
    let place = Place::new();
    let server = place.serve(&[]);
    let path = place.data().join("credentials");
    let text = fs::read_to_string(&path).unwrap();
    let others = "# Not ours.\n[profile lab]\naws_access_key_id = LAB\naws_secret_access_key = l\n\n\
                  [ci]\naws_access_key_id = CI\naws_secret_access_key = c\n";
    fs::write(
        &path,
        format!("{text}region = eu-1\naws_session_token = old\n{others}"),
    )
    .unwrap();
    let first = server.credentials();
    assert_eq!(server.terminate(), Some(0));

    let with = |key: &str| {
        place.serve_with(&[], |command| {
            command
                .env("FOREBAY_ACCESS_KEY", key)
                .env("FOREBAY_SECRET_KEY", "env-secret-env-secret");
        })
    };
    assert_eq!(with("ENVKEY").terminate(), Some(0));
    let once = fs::read_to_string(&path).unwrap();
    // However often it is written.
    let server = with("ENVKEY");
    let text = fs::read_to_string(&path).unwrap();
    let but_the_port = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("endpoint_url"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(but_the_port(&once), but_the_port(&text));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(server.credentials().access_key, "ENVKEY");
    for (profile, key) in [("lab", "LAB"), ("ci", "CI")] {
        let (kept, _) = Credentials::from_file(&path, profile).unwrap();
        assert_eq!(kept.access_key, key);
    }
    assert!(text.contains("\nregion = eu-1\n"), "{text}");
    assert!(text.contains("\n# Not ours.\n"), "{text}");
    assert!(
        !text.contains(&first.secret_key) && !text.contains("old"),
        "{text}"
    );
    assert_eq!(text.matches("[default]").count(), 1);
}

#[test]
fn the_credentials_of_a_directory_are_known_to_its_store_or_it_is_said() {
    let place = Place::new();
    let server = place.serve(&["--backend", "memory"]);
    let first = server.credentials();
    assert_eq!(server.terminate(), Some(0));

    // A new store takes the key that is there.
    let server = place.serve(&[]);
    assert_eq!(server.credentials(), first);
    server.ok(&["ls"]);
    let second = &server.json(&["admin", "key", "create", "root"])[0]["access_key"];
    server.ok(&["admin", "key", "rm", &first.access_key]);
    assert_eq!(server.terminate(), Some(0));

    // One that does not know it says so, and what helps.
    assert!(!place.log().contains("does not know"));
    let server = place.serve(&[]);
    server.run(&["ls"]).expect(4);
    let log = place.log();
    let said = log
        .lines()
        .find(|line| line.contains("does not know"))
        .unwrap();
    let file = place.data().join("credentials");
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    server.ok(&["admin", "key", "rm", second.as_str().unwrap()]);
    assert_eq!(server.terminate(), Some(0));

    // A key that was removed stays so; the one that is made then is nowhere else.
    let server = place.serve(&[]);
    assert_ne!(server.credentials().access_key, first.access_key);
    server.ok(&["ls"]);
}

#[test]
fn the_console_tells_health_and_valid_metrics() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "metered"]);
    // Once as a body, once by the best path.
    for path in ["http", "auto"] {
        server
            .run_on(&["cp", "--path", path, "-", "fb://metered/k"], b"hello")
            .expect(0);
    }
    assert_eq!(server.console("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.console("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(server.console("/nothing").0, 404);
    let (status, text) = server.console("/metrics");
    assert_eq!(status, 200);
    let samples = check_metrics(&text);
    for name in [
        "forebay_s3_requests_total",
        "forebay_direct_request_seconds_count",
        "forebay_direct_sent_bytes_total",
        "forebay_copied_bytes_total",
        "forebay_disk_written_bytes_total",
        "forebay_engine_syncs_total",
        "forebay_buffer_in_use_bytes",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ] {
        assert!(samples.iter().any(|sample| sample == name), "{name}");
    }
    assert!(
        text.contains("forebay_namespace_stored_bytes{namespace=\"metered\",tenant=\"root\"} 5"),
        "{text}"
    );
}

#[test]
fn the_metrics_tell_how_the_disk_is_reached() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Whether this machine lets a process have a ring.
    let ring = runtime.block_on(async { ring::install(ring::Config::default()).map(drop) });
    if let Err(why) = &ring {
        println!("no io_uring here ({why}): the server is to say so");
    }
    let server = place.serve(&[]);
    assert_eq!(
        server.metric("forebay_disk_io_uring "),
        u64::from(ring.is_ok())
    );
    assert_eq!(server.terminate(), Some(0));
    let server = place.serve(&["--no-uring"]);
    assert_eq!(server.metric("forebay_disk_io_uring "), 0);
}

/// What `promtool check metrics` looks for, and OpenMetrics' grammar of names. Returns the names of all samples.
fn check_metrics(text: &str) -> Vec<String> {
    let legal = |name: &str| {
        let mut characters = name.chars();
        characters.next().is_some_and(|c| c.is_ascii_lowercase())
            && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut kinds = BTreeMap::new();
    let mut helped = Vec::new();
    let mut names = Vec::new();
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(legal(name), "{name}");
            assert!(!name.ends_with("_total"), "{name}");
            assert!(
                kinds.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} twice"
            );
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty());
            helped.push(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').unwrap();
            assert!(
                name.ends_with(&format!("_{unit}")),
                "{name} lacks its unit {unit}"
            );
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).unwrap();
            let name = &line[..end];
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let family = |suffix: &str| name.strip_suffix(suffix).and_then(|name| kinds.get(name));
            let fits = match kinds.get(name).map(String::as_str) {
                Some("gauge") => true,
                Some(_) => false,
                None => {
                    family("_total").is_some_and(|kind| kind == "counter")
                        || ["_sum", "_count", "_bucket"]
                            .iter()
                            .any(|suffix| family(suffix).is_some_and(|kind| kind == "histogram"))
                }
            };
            assert!(fits, "{line}");
            for milli in ["_ms", "_us", "_milliseconds", "_kib", "_mb"] {
                assert!(
                    !name.contains(&format!("{milli}_")) && !name.ends_with(milli),
                    "{name} has no base unit"
                );
            }
            names.push(name.to_owned());
        }
    }
    for name in kinds.keys() {
        assert!(helped.contains(name), "{name} has no help");
    }
    names
}

#[test]
fn sigterm_lets_the_request_in_progress_finish() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "slow"]);
    let body = harness::bytes(1, 100_000);
    // A second connection that asks for nothing must not delay the end.
    let _idle = TcpStream::connect(&server.doors["s3"]).unwrap();
    let mut stream = s3::begin_put(&server, "/slow/object", body.len());
    server.signal(Signal::TERM);
    stream.write_all(&body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.wait(), Some(0));

    let server = place.serve(&[]);
    assert_eq!(
        server.run(&["cat", "fb://slow/object"]).expect(0).bytes,
        body
    );
}

#[test]
fn a_server_that_drains_says_that_it_is_not_ready() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "slow"]);
    let body = harness::bytes(1, 100_000);
    let mut stream = s3::begin_put(&server, "/slow/object", body.len());
    assert_eq!(server.console("/readyz"), (200, "ready\n".to_owned()));
    server.signal(Signal::TERM);
    // As long as the request is held the server drains; the signal may take a moment to reach it.
    let told = loop {
        match server.console("/readyz") {
            (200, _) => {}
            told => break told,
        }
    };
    assert_eq!(told, (503, "draining\n".to_owned()));
    assert_eq!(server.console("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.console("/metrics").0, 200);
    stream.write_all(&body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_request_that_never_finishes_is_cut_off() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "never"]);
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    let head = s3::head(&server, &server.credentials(), "PUT", "/never/object", 100);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"half").unwrap();
    assert_eq!(server.terminate(), Some(0));
    let server = place.serve(&[]);
    server.run(&["stat", "fb://never/object"]).expect(3);
}

#[test]
fn tls_at_the_s3_door() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (place.path("cert.pem"), place.path("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let certificate = certificate.to_str().unwrap();
    let server = place.serve(&[
        "--s3-tls-cert",
        certificate,
        "--s3-tls-key",
        key.to_str().unwrap(),
    ]);
    assert!(server.welcome.contains("https://127.0.0.1:"));
    server.ok(&["admin", "namespace", "create", "secret"]);
    let body = harness::bytes(2, 3 << 20);
    fs::write(place.path("file"), &body).unwrap();
    let file = place.path("file");
    server.ok(&[
        "cp",
        file.to_str().unwrap(),
        "fb://secret/",
        "--ca",
        certificate,
    ]);
    let read = server
        .run(&["cat", "fb://secret/file", "--ca", certificate])
        .expect(0);
    assert_eq!(read.bytes, body);
    // On this host those payloads took shared memory; these go through the door.
    let over_tls = |arguments: &[&str]| {
        let how = ["--path", "http", "--ca", certificate];
        server.run(&[arguments, &how].concat()).expect(0)
    };
    let through = || {
        ["received", "sent"]
            .map(|way| server.metric(&format!("forebay_s3_{way}_bytes_total{{path=\"http\"}}")))
    };
    let before = through();
    over_tls(&["cp", file.to_str().unwrap(), "fb://secret/over-tls"]);
    assert_eq!(over_tls(&["cat", "fb://secret/over-tls"]).bytes, body);
    let back = place.path("back");
    over_tls(&["cp", "fb://secret/over-tls", back.to_str().unwrap()]);
    assert_eq!(fs::read(back).unwrap(), body);
    let after = through();
    let len = body.len() as u64;
    assert_eq!([after[0] - before[0], after[1] - before[1]], [len, 2 * len]);
    // Named by its URL, from elsewhere.
    let url = format!("https://{}", server.doors["s3"]);
    let named = ["cat", "fb://secret/file", "--endpoint", &url];
    let elsewhere = server.run(&[&named[..], &["--ca", certificate]].concat());
    assert_eq!(elsewhere.expect(0).bytes, body);
    // The door speaks nothing but TLS.
    let mut plain = TcpStream::connect(&server.doors["s3"]).unwrap();
    let head = s3::head(&server, &server.credentials(), "GET", "/secret/file", 0);
    plain.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // It may end the connection in any way.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    // Nobody else is trusted.
    let untrusted = ["cat", "--path", "http", "fb://secret/file"];
    assert_ne!(server.run(&untrusted).code, Some(0));
}

#[test]
fn a_long_directory_has_a_socket_too() {
    let place = Place::new();
    let server = place.serve_with(&[], |command| {
        let long = place.path(&"d".repeat(120));
        command.arg("--log-level=debug").arg("--log-format=json");
        // The directory is the first argument: another would be wrong usage.
        *command = place.serve_command(&[]);
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = harness::forebay();
        for argument in arguments {
            match argument == place.data() {
                true => command.arg(&long),
                false => command.arg(argument),
            };
        }
    });
    let long = place.path(&"d".repeat(120));
    let ran = harness::forebay()
        .args(["admin", "tenant", "list", "--dir"])
        .arg(&long)
        .output()
        .map(Ran::new)
        .unwrap();
    assert!(ran.expect(0).out.contains("root"));
    let cp = |source: &Path, target: &Path| {
        let copied = harness::forebay()
            .args(["cp", "--path", "shm"])
            .args([source, target])
            .arg("--dir")
            .arg(&long)
            .output()
            .map(Ran::new);
        copied.unwrap().expect(0);
    };
    let created = harness::forebay()
        .args(["admin", "namespace", "create", "made", "--dir"])
        .arg(&long)
        .output()
        .map(Ran::new);
    created.unwrap().expect(0);
    let (here, there) = (place.path("here"), Path::new("fb://made/there"));
    std::fs::write(&here, b"by shared memory").unwrap();
    cp(&here, there);
    cp(there, &place.path("back"));
    let back = std::fs::read(place.path("back")).unwrap();
    assert_eq!(back, b"by shared memory");
    drop(server);
}

#[test]
fn logs_can_be_json() {
    let place = Place::new();
    let server = place.serve(&["--log-format", "json", "--log-level", "debug"]);
    server.ok(&["admin", "namespace", "create", "logged"]);
    server.run(&["stat", "fb://logged/none"]).expect(3);
    assert_eq!(server.terminate(), Some(0));
    let log = place.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().any(|line| line["message"] == "serving"));
    let answered = lines
        .iter()
        .find(|line| line["message"] == "answered")
        .unwrap();
    assert_eq!(answered["span"]["request_id"].as_str().unwrap().len(), 16);
}

#[test]
fn traces_leave_before_the_end() {
    let place = Place::new();
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let server = place.serve(&["--otlp", &url]);
    let collected = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        preface
    });
    server.ok(&["ls"]);
    // The collector never answers: that must not keep the server.
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(
        &collected.join().unwrap(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    );
}

#[test]
fn memory_forgets() {
    let place = Place::new();
    let server = place.serve(&["--backend", "memory"]);
    server.ok(&["admin", "namespace", "create", "gone"]);
    server.run_on(&["cp", "-", "fb://gone/k"], b"x").expect(0);
    assert_eq!(server.json(&["admin", "scrub"])[0]["damaged"], 0);
    let first = server.credentials();
    assert_eq!(server.terminate(), Some(0));
    let server = place.serve(&["--backend", "memory"]);
    assert_eq!(server.credentials(), first);
    assert_eq!(server.ok(&["ls", "--json"]), "");
}

/// Of a leaf that knows no blocks of its own, too.
#[test]
fn a_scrub_reads_every_version() {
    let place = Place::new();
    let server = place.serve(&["--backend", "memory"]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "old",
        "--versioning=enabled",
    ]);
    server.ok(&["admin", "namespace", "create", "plain"]);
    let scrub = || {
        let report = &server.json(&["admin", "scrub"])[0];
        ["objects", "bytes", "damaged"].map(|name| report[name].as_u64().unwrap())
    };
    // The server keeps some of its own.
    let before = scrub();
    for (value, to) in [
        (&b"1"[..], "fb://old/a"),
        (b"22", "fb://old/a"),
        (b"333", "fb://old/b"),
        (b"4444", "fb://plain/c"),
    ] {
        server.run_on(&["cp", "-", to], value).expect(0);
    }
    server.ok(&["rm", "fb://old/a"]);
    let after = scrub();
    let more = [0, 1].map(|one| after[one] - before[one]);
    assert_eq!((more, after[2]), ([4, 10], 0), "{before:?} {after:?}");
}
