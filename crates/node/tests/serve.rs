//! A server's life: doors, configuration, directory, credentials, end.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use forebay_proto::s3::sigv4;
use harness::{Place, Ran, Server};
use rustix::process::Signal;

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
    with("this is not TOML", &[]).expect(2);
    with("config = \"other.toml\"\n", &[]).expect(2);
    let ran = with("s3 = \"0.0.0.0:0\"\n", &[]).expect(2);
    assert!(ran.err.contains("--insecure"), "{}", ran.err);
    let ran = with("console = \"[::]:0\"\ns3 = \"127.0.0.1:0\"\n", &[]).expect(2);
    assert!(ran.err.contains("--console"), "{}", ran.err);

    // The address here would be refused: the harness' flags win over it.
    fs::write(
        &config,
        "s3 = \"0.0.0.0:0\"\nconsole = \"0.0.0.0:0\"\nshards = 3\nno-s3 = true\nno-uring = true\n",
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

/// Of a store with a rotten journal, what came before is to be had.
#[test]
fn what_a_damaged_journal_costs_is_for_people_to_accept() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "store"]);
    let file = place.path("value");
    for key in ["before", "damaged", "after"] {
        fs::write(&file, key).unwrap();
        server.ok(&["cp", file.to_str().unwrap(), &format!("fb://store/{key}")]);
    }
    server.kill();
    let data = place.data().join("data");
    let mut bytes = fs::read(&data).unwrap();
    let needle = b"damaged";
    let at = bytes.windows(needle.len()).position(|at| at == needle);
    bytes[at.unwrap()] ^= 1;
    fs::write(&data, bytes).unwrap();

    let refused = Ran::new(place.serve_command(&[]).output().unwrap()).expect(1);
    let (_, group) = refused.err.split_once("--lose-journal-from ").unwrap();
    let group = group.split(' ').next().unwrap();
    let other = (group.parse::<u64>().unwrap() + 1).to_string();
    let flags = ["--lose-journal-from", &other];
    let again = Ran::new(place.serve_command(&flags).output().unwrap()).expect(1);
    assert!(again.err.contains("--lose-journal-from"), "{}", again.err);
    let server = place.serve(&["--lose-journal-from", group]);
    assert_eq!(server.ok(&["cat", "fb://store/before"]), "before");
    server.run(&["cat", "fb://store/after"]).expect(3);
    assert_eq!(server.terminate(), Some(0));
    assert!(place.log().contains("what came after is lost"));
    let server = place.serve(&[]);
    assert_eq!(server.ok(&["cat", "fb://store/before"]), "before");
}

#[test]
fn one_process_a_directory() {
    let place = Place::new();
    let server = place.serve(&[]);
    let second = Ran::new(place.serve_command(&[]).output().unwrap()).expect(1);
    assert!(second.err.contains("in use"), "{}", second.err);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(place.serve(&[]).terminate(), Some(0));
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.data()).unwrap();
    fs::set_permissions(place.data(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = place.serve_command(&[]);
    if rustix::process::getuid().is_root() {
        // Root may write anywhere.
        command.uid(65534).gid(65534);
    }
    let ran = match command.output() {
        Ok(output) => Ran::new(output).expect(1),
        // The program itself lies where that user may not look.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
        Err(error) => panic!("{error}"),
    };
    assert!(
        ran.err.contains("data") && ran.err.contains("cannot be written"),
        "{}",
        ran.err
    );
}

#[test]
fn a_directory_of_another_version_or_with_other_files_is_left_alone() {
    let place = Place::new();
    assert_eq!(place.serve(&[]).terminate(), Some(0));
    let data = place.data().join("data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[..8192].fill(0x5a);
    fs::write(&data, &bytes).unwrap();
    let ran = Ran::new(place.serve_command(&[]).output().unwrap()).expect(1);
    assert!(ran.err.contains("not a store"), "{}", ran.err);
    assert_eq!(fs::read(&data).unwrap(), bytes);
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

/// The head of a signed PUT whose body is sent apart.
fn put_head(server: &Server, key: &str, len: usize) -> String {
    let credentials = server.credentials();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let date = sigv4::AmzDate::from_unix_s(now.as_secs() as i64);
    let host = &server.doors["s3"];
    let headers: &[(&str, &str)] = &[
        ("host", host),
        ("x-amz-content-sha256", sigv4::UNSIGNED_PAYLOAD),
        ("x-amz-date", date.as_str()),
    ];
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let scope = sigv4::CredentialScope::new(&credentials.access_key, &date, "us-east-1");
    let request = sigv4::Request {
        method: "PUT",
        path: key,
        query: "",
        headers,
    };
    let signing = sigv4::SigningKey::for_scope(&credentials.secret_key, &scope);
    let signature = sigv4::sign(
        &request,
        signed,
        sigv4::UNSIGNED_PAYLOAD,
        &date,
        &scope,
        &signing,
    );
    let authorization = sigv4::authorization_header(&scope, signed, &signature);
    let mut head = format!(
        "PUT {key} HTTP/1.1\r\ncontent-length: {len}\r\nauthorization: {authorization}\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

#[test]
fn sigterm_lets_the_request_in_progress_finish() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "slow"]);
    let body = harness::bytes(1, 100_000);
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    // A second connection that asks for nothing must not delay the end.
    let _idle = TcpStream::connect(&server.doors["s3"]).unwrap();
    let head = put_head(&server, "/slow/object", body.len());
    stream
        .write_all(
            head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    // The request is now in the server's hands.
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
fn a_request_that_never_finishes_is_cut_off() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "never"]);
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    let head = put_head(&server, "/never/object", 100);
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
fn a_flipped_bit_is_found_and_never_served() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "rot"]);
    let body = harness::bytes(77, 300_000);
    server
        .run_on(&["cp", "-", "fb://rot/damaged"], &body)
        .expect(0);
    server
        .run_on(&["cp", "-", "fb://rot/sound"], &harness::bytes(78, 300_000))
        .expect(0);
    assert_eq!(server.terminate(), Some(0));

    let path = place.data().join("data");
    let mut data = fs::read(&path).unwrap();
    let needle = &body[200_000..200_064];
    let at = data
        .windows(64)
        .position(|window| window == needle)
        .unwrap();
    data[at] ^= 4;
    fs::write(&path, &data).unwrap();

    let server = place.serve(&[]);
    let ran = server.run(&["cat", "fb://rot/damaged"]);
    assert!(
        ran.code == Some(1) && body.starts_with(&ran.bytes),
        "{:?}",
        ran.err
    );
    server.run(&["cat", "fb://rot/sound"]).expect(0);
    let scrub = server.run(&["admin", "scrub"]).expect(1);
    assert!(
        scrub.out.contains("fb://rot/damaged: block "),
        "{}",
        scrub.out
    );
    let (_, metrics) = server.console("/metrics");
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("forebay_engine_corrupt_blocks_total "))
        .unwrap();
    assert_ne!(counted, "0");
    server
        .run_on(&["cp", "-", "fb://rot/damaged"], &body)
        .expect(0);
    assert_eq!(
        server.run(&["cat", "fb://rot/damaged"]).expect(0).bytes,
        body
    );
}

#[test]
fn a_full_disk_refuses_writes_only() {
    let place = Place::new();
    let server = place.serve(&["--capacity", "8MiB"]);
    server.ok(&["admin", "namespace", "create", "full"]);
    let body = harness::bytes(5, 3 << 20);
    let mut stored = 0;
    let refused = loop {
        let key = format!("fb://full/{stored}");
        let ran = server.run_on(&["cp", "-", &key], &body);
        match ran.code {
            Some(0) => stored += 1,
            _ => break ran,
        }
        assert!(stored < 10, "the bound does not hold");
    };
    assert!(stored > 0);
    refused.expect(5);
    assert_eq!(server.run(&["cat", "fb://full/0"]).expect(0).bytes, body);
    server.ok(&["rm", "fb://full/0"]);
    server
        .run_on(&["cp", "-", "fb://full/again"], &body)
        .expect(0);
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
