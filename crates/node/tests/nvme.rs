//! The NVMe doors as their users see them: one namespace through NVMe, S3 and `cp`; who is let in; what is published and exported.

mod harness;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use forebay_client::kv::{KeyValue, Options};
use harness::skipping::skip;
use harness::{Done, Place, Server, bytes};

const HOST: &str = "nqn.2026-01.com.example:host";
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const WRONG: &str = "DHHC-1:00:CzBVep/E6Q4zWH2ix+wRNluApcrvFDleg6jN8hc8YYYVgfSp:";

/// A namespace of a server, as `forebay nvme` names it.
fn device(server: &Server, nsid: u32) -> String {
    format!("kv://{}/{nsid}", server.doors["nvme"])
}

/// Runs `forebay nvme`, which needs no directory.
fn nvme(arguments: &[&str]) -> harness::Ran {
    let mut command = harness::forebay();
    command.arg("nvme").args(arguments);
    command.stdin(std::process::Stdio::null());
    harness::Ran::new(command.output().unwrap())
}

fn json(arguments: &[&str]) -> Vec<serde_json::Value> {
    let ran = nvme(&[arguments, &["--json"]].concat()).expect(0);
    let lines = ran.out.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_value_is_an_object_and_an_object_a_value() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "values=7"]);
    let values = device(&server, 7);
    assert!(
        server
            .welcome
            .contains(&format!("{}  (NVMe/TCP)", server.doors["nvme"]))
    );
    let (file, back) = (place.path("file"), place.path("back"));
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    for (key, len) in [
        ("k", 0),
        ("sixteen-bytes-ky", 70_000),
        ("a key longer than sixteen bytes", 3 << 20),
    ] {
        let value = bytes(len as u64, len);
        fs::write(file, &value).unwrap();
        nvme(&["store", &values, key, file]).expect(0);
        server.ok(&["cp", &format!("fb://values/{key}"), back]);
        assert_eq!(fs::read(back).unwrap(), value, "{key}");

        server.ok(&["cp", file, &format!("fb://values/{key}.cp")]);
        nvme(&["retrieve", &values, &format!("{key}.cp"), back]).expect(0);
        assert_eq!(fs::read(back).unwrap(), value, "{key}");
    }
    let keys: Vec<String> = json(&["keys", &values])
        .iter()
        .map(|line| line["key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 6, "{keys:?}");
    assert!(keys.is_sorted(), "{keys:?}");
    let after = json(&["keys", &values, "--after", "k", "--limit", "1"]);
    assert_eq!(after[0]["key"], "k.cp");

    let again = nvme(&["store", &values, "k", file, "--if-absent"]).expect(1);
    assert!(
        again.err.contains("Key Exists") && again.err.lines().count() == 1,
        "{again:?}"
    );
    nvme(&["store", &values, "new", file, "--if-exists"]).expect(3);
    assert_eq!(
        nvme(&["exist", &values, "k", "new"]).expect(3).out,
        "k there\nnew not there\n"
    );
    nvme(&["delete", &values, "k"]).expect(0);
    nvme(&["delete", &values, "k"]).expect(3);
    nvme(&["retrieve", &values, "k"]).expect(3);
    server.run(&["stat", "fb://values/k"]).expect(3);
    // Any bytes are a key; S3 knows those that are text.
    nvme(&["store", &values, "00ff0a", file, "--hex"]).expect(0);
    assert_eq!(
        nvme(&["exist", &values, "00ff0a", "--hex"]).expect(0).out,
        "00ff0a there\n"
    );

    let metrics = server.console("/metrics").1;
    for line in [
        "forebay_nvme_commands_total{command=\"store\",outcome=\"success\"}",
        "forebay_nvme_commands_total{command=\"retrieve\",outcome=\"error\"} 1",
        "forebay_nvme_namespaces 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_cannot_be_written_takes_no_file_with_it() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "values=7"]);
    let values = device(&server, 7);
    let (file, folder) = (place.path("file"), place.path("folder"));
    let value = bytes(1, 3 << 20);
    fs::write(&file, &value).unwrap();
    nvme(&["store", &values, "k", file.to_str().unwrap()]).expect(0);
    fs::create_dir(&folder).unwrap();

    // A limit on the size of files stands for a full disk.
    let old = folder.join("old");
    fs::write(&old, b"good").unwrap();
    let mut small = std::process::Command::new("sh");
    small.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
    small.args([env!("CARGO_BIN_EXE_forebay"), "nvme", "retrieve"]);
    small.args([&values, "k"]).arg(&old);
    harness::Ran::new(small.output().unwrap()).expect(1);
    assert_eq!(fs::read(&old).unwrap(), b"good");
    assert_eq!(harness::tree(&folder).len(), 1, "nothing is left beside it");

    // A program that runs cannot be written to, but can be replaced.
    let program = folder.join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut running = std::process::Command::new(&program);
    let mut running = running.arg("600").spawn().unwrap();
    let retrieved = nvme(&["retrieve", &values, "k", program.to_str().unwrap()]);
    running.kill().unwrap();
    running.wait().unwrap();
    retrieved.expect(0);
    assert!(fs::read(&program).unwrap() == value);

    // A pipe that is read no more stays.
    let pipe = folder.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    thread::scope(|scope| {
        scope.spawn(|| fs::File::open(&pipe).unwrap().read_exact(&mut [0]).unwrap());
        nvme(&["retrieve", &values, "k", pipe.to_str().unwrap()]).expect(1);
    });
    assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
    // A link stays, and what it leads to changes.
    let link = folder.join("link");
    std::os::unix::fs::symlink("old", &link).unwrap();
    nvme(&["retrieve", &values, "k", link.to_str().unwrap()]).expect(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&old).unwrap() == value);
}

/// By a vfio-user socket, also of a server that was started anew meanwhile.
#[test]
fn a_namespace_is_used_by_its_socket() {
    let place = Place::new();
    let sockets = place.path("vm");
    let flags = ["--nvme-namespace", "values=7"];
    let flags = [&flags[..], &["--vfio-user", sockets.to_str().unwrap()]].concat();
    let server = place.serve(&flags);
    let socket = sockets.join("cntrl");
    let device = socket.to_str().unwrap();
    let (file, back) = (place.path("file"), place.path("back"));
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    for len in [0, 5, 5000, 3 << 20] {
        let value = bytes(len as u64, len);
        fs::write(file, &value).unwrap();
        nvme(&["store", device, "key", file]).expect(0);
        server.ok(&["cp", "fb://values/key", back]);
        assert_eq!(fs::read(back).unwrap(), value, "{len}");
        nvme(&["retrieve", &format!("{device}/7"), "key", back]).expect(0);
        assert_eq!(fs::read(back).unwrap(), value, "{len}");
    }
    assert_eq!(nvme(&["keys", device]).expect(0).out, "key\n");
    nvme(&["store", device, "key", file, "--if-absent"]).expect(1);
    let none = nvme(&["keys", &format!("{device}/8")]).expect(3);
    assert!(none.err.contains("no namespace 8"), "{none:?}");
    let secret = ["keys", device, "--chap-secret", SECRET];
    assert!(nvme(&secret).expect(2).err.contains("no secret"));
    let long = "a key of more bytes than sixteen";
    nvme(&["exist", device, long]).expect(3);
    nvme(&["store", device, long, file]).expect(0);
    nvme(&["retrieve", device, long, back]).expect(0);
    assert!(fs::read(back).unwrap() == fs::read(file).unwrap());
    let told = json(&["list", device]);
    let url = format!("kv://{device}/7");
    assert_eq!(told[0]["url"], url.as_str(), "{told:?}");
    nvme(&["delete", &url, long]).expect(0);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connecting = KeyValue::connect(&url, Options::default());
    let values = runtime.block_on(connecting).unwrap();
    assert_eq!(server.terminate(), Some(0));
    let server = place.serve(&flags);
    let value = runtime.block_on(values.retrieve(b"key")).unwrap();
    assert!(value == fs::read(file).unwrap());
    nvme(&["delete", device, "key"]).expect(0);
    nvme(&["delete", device, "key"]).expect(3);
    assert_eq!(server.terminate(), Some(0));
}

/// Whoever owns the data directory has the socket, whoever runs the server and whatever the modes say.
#[test]
fn a_socket_is_for_the_owner_of_the_data_directory() {
    const OWNER: u32 = 65534;
    const STRANGER: u32 = 65533;
    if !rustix::process::getuid().is_root() {
        return skip("only root can become somebody else");
    }
    let place = Place::new();
    fs::create_dir(place.data()).unwrap();
    std::os::unix::fs::chown(place.data(), Some(OWNER), None).unwrap();
    let sockets = place.path("vm");
    let flags = ["--nvme-namespace", "values=7"];
    let flags = [&flags[..], &["--vfio-user", sockets.to_str().unwrap()]].concat();
    let server = place.serve(&flags);
    let socket = sockets.join("cntrl");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    for (path, mode) in [("", 0o755), ("vm", 0o755), ("vm/cntrl", 0o777)] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (uid, code) in [(0, 0), (OWNER, 0), (STRANGER, 1)] {
        let mut command = harness::forebay();
        command.args(["nvme", "keys", socket.to_str().unwrap()]);
        let Some(ran) = harness::Ran::of_user(command, uid) else {
            break;
        };
        ran.expect(code);
        assert_eq!(place.log().contains("a stranger"), code != 0, "{uid}");
    }
    assert_eq!(server.terminate(), Some(0));
    assert!(!socket.exists());
}

/// A socket that nobody listens on any more is replaced; another server's, and what is no socket, are left alone.
#[test]
fn a_socket_that_is_somebody_s_is_left_alone() {
    let (place, other) = (Place::new(), Place::new());
    let sockets = place.path("vm");
    let flags = ["--vfio-user", sockets.to_str().unwrap()];
    place.serve(&flags).kill();
    assert!(sockets.join("cntrl").exists());
    let server = place.serve(&flags);
    let refused = other.try_serve(&flags).err().unwrap().expect(1);
    let says = format!("--vfio-user {}/cntrl: ", sockets.display());
    assert!(refused.err.contains(&says), "{refused:?}");
    nvme(&["list", sockets.join("cntrl").to_str().unwrap()]).expect(0);
    assert_eq!(server.terminate(), Some(0));

    fs::write(sockets.join("cntrl"), "mine").unwrap();
    let refused = place.try_serve(&flags).err().unwrap().expect(1);
    assert!(
        refused.err.contains("something else is there"),
        "{refused:?}"
    );
    assert_eq!(fs::read(sockets.join("cntrl")).unwrap(), b"mine");
}

#[test]
fn top_shows_who_does_what() {
    let place = Place::new();
    let sockets = place.path("vm");
    let flags = ["--nvme-namespace", "values=7"];
    let server = place.serve(&[&flags[..], &["--vfio-user", sockets.to_str().unwrap()]].concat());
    server.ok(&["admin", "host", "add", HOST, "--tenant", "root"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut host = Options::default();
    host.host.nqn = HOST.to_owned();
    let connect = |url: &str, options| runtime.block_on(KeyValue::connect(url, options)).unwrap();
    let told = json(&["list", &server.doors["nvme"]]);
    let by_tcp = connect(told[0]["url"].as_str().unwrap(), host);
    let by_device = connect(
        &format!("kv://{}/7", sockets.join("cntrl").display()),
        Options::default(),
    );
    runtime
        .block_on(by_tcp.store(b"key", vec![7; 5000]))
        .unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                runtime.block_on(by_tcp.retrieve(b"key")).unwrap();
                runtime.block_on(by_device.retrieve(b"none")).unwrap_err();
            }
        });
        let _done = Done(&done);
        let row = server.top("nvme-tcp", &["requests_per_s", "get_bytes_per_s"]);
        assert_eq!((&row["tenant"], &row["links"]), (&"root".into(), &1.into()));
        assert_eq!(row["failures_per_s"], 0.0);
        // A look may fall between a command's bytes and its end.
        let [values, commands] =
            ["get_bytes_per_s", "requests_per_s"].map(|name| row[name].as_f64());
        let (values, commands) = (values.unwrap() / 5000.0, commands.unwrap());
        assert!((values - commands).abs() < 10.0, "{row}");
        let row = server.top("vfio-user", &["requests_per_s", "failures_per_s"]);
        assert_eq!(row["tenant"], "");
        assert_eq!(row["get_bytes_per_s"], 0.0);
        let text = server.ok(&["top", "--once", "--interval", "0.1"]);
        assert!(
            text.starts_with("0 sessions, 0 links, 2 NVMe controllers\n"),
            "{text}"
        );
        assert!(text.contains("(everybody)"), "{text}");
    });
    let totals = &server.json(&["top", "--once", "--interval", "0.1"])[0];
    assert_eq!(
        (&totals["sessions"], &totals["controllers"]),
        (&0.into(), &2.into()),
        "{totals}"
    );
    drop((by_tcp, by_device));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_is_published_and_exported_keeps_its_number() {
    let place = Place::new();
    let disk = place.path("disk");
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let export = format!("disk={}:3", disk.display());
    let config = place.path("forebay.toml");
    fs::write(
        &config,
        format!("nvme-namespace = [\"one\", \"two=9\"]\nexport = [\"{export}\"]\n"),
    )
    .unwrap();
    let list = |server: &Server| json(&["list", &server.doors["nvme"]]);
    let server = place.serve(&["--config", config.to_str().unwrap()]);
    let first = list(&server);
    let numbers: Vec<_> = first
        .iter()
        .map(|n| (n["nsid"].as_u64(), n["keeps"].as_str()))
        .collect();
    assert_eq!(
        numbers,
        [
            (Some(1), Some("keys")),
            (Some(3), Some("blocks")),
            (Some(9), Some("keys"))
        ]
    );
    assert_eq!(first[1]["bytes"], 1 << 20);
    let units = [1, 0].map(|n| first[n]["unit"].as_str().unwrap());
    assert_eq!(units, ["blocks of 512 B", "values to 64.0 MiB"]);
    let found = json(&["discover", &server.doors["nvme"]]);
    let strings = json(&["connect-string", &server.doors["nvme"]]);
    let name = found[0]["subsystem"].as_str().unwrap();
    assert!(
        strings[0]["nvme_cli"].as_str().unwrap().ends_with(name),
        "{strings:?}"
    );
    server.kill();

    // Without flags the namespaces stay published, and the file is not exported.
    let server = place.serve(&[]);
    let again = list(&server);
    assert_eq!(again.len(), 2);
    assert_eq!(
        (&again[0]["uuid"], &again[1]["uuid"]),
        (&first[0]["uuid"], &first[2]["uuid"])
    );
    assert_eq!(
        json(&["discover", &server.doors["nvme"]])[0]["subsystem"],
        name
    );
    server.ok(&["admin", "namespace", "set", "one", "--nvme", "none"]);
    let create = |name, nvme| ["admin", "namespace", "create", name, "--nvme", nvme];
    let three = server.json(&create("three", "auto"));
    assert_eq!(three[0]["nsid"], 1);
    // The export keeps its number until it is forgotten.
    let taken = server.run(&create("four", "nsid=3")).expect(1);
    assert!(taken.err.contains("the export \"disk\""), "{taken:?}");
    drop(server);
    let server = place.serve(&["--export", "disk=none"]);
    server.ok(&create("four", "nsid=3"));
}

#[test]
fn memory_keeps_its_number_and_is_another_disk_after_a_restart() {
    let place = Place::new();
    let [first, again] = [(); 2].map(|()| {
        let server = place.serve(&["--export", "scratch=memory:1MiB"]);
        json(&["list", &server.doors["nvme"]]).remove(0)
    });
    assert_eq!(first["nsid"], again["nsid"]);
    assert_ne!(first["uuid"], again["uuid"]);
}

#[test]
fn a_number_that_is_taken_makes_no_namespace() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "one=5"]);
    server
        .run(&["admin", "namespace", "create", "two", "--nvme", "nsid=5"])
        .expect(1);
    server
        .run(&["admin", "namespace", "create", "two", "--nvme", "nsid=0"])
        .expect(2);
    assert_eq!(server.json(&["admin", "namespace", "list"]).len(), 1);
    let two = server.json(&["admin", "namespace", "create", "two", "--nvme", "nsid=6"]);
    assert_eq!(two[0]["nsid"], 6);
    // Removed by another door, it is gone for hosts, too.
    server.ok(&["admin", "namespace", "rm", "two"]);
    assert_eq!(json(&["list", &server.doors["nvme"]]).len(), 1);
    drop(server);
    for flags in [
        ["--nvme-namespace", "two=5"],
        ["--nvme-namespace", "NOT_LEGAL"],
        ["--export", "d=/none"],
        ["--nvme-value", "129MiB"],
    ] {
        let ran = harness::Ran::new(place.serve_command(&flags).output().unwrap());
        assert!(ran.code != Some(0) && ran.err.contains(flags[0]), "{ran:?}");
    }
}

#[test]
fn hosts_that_are_known_see_their_tenants_namespaces() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "roots=1"]);
    server.ok(&["admin", "tenant", "create", "red"]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "reds",
        "--tenant",
        "red",
        "--nvme",
        "nsid=2",
    ]);
    let door = server.doors["nvme"].clone();
    let seen = |more: &[&str]| {
        let lines = json(&[&["list", &door, "--host-nqn", HOST], more].concat());
        lines
            .iter()
            .map(|line| line["nsid"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    // On loopback the owner of the directory is nobody's tenant.
    assert_eq!(seen(&[]), [1, 2]);
    server.ok(&[
        "admin",
        "host",
        "add",
        HOST,
        "--tenant",
        "red",
        "--chap-secret",
        SECRET,
    ]);
    let listed = server.json(&["admin", "host", "list"]);
    assert_eq!(
        (&listed[0]["nqn"], &listed[0]["chap"]),
        (&HOST.into(), &true.into())
    );
    assert!(!listed[0].to_string().contains("DHHC"));
    assert_eq!(seen(&["--chap-secret", SECRET]), [2]);
    for wrong in [&["--chap-secret", WRONG][..], &[]] {
        let arguments = [&["list", &door, "--host-nqn", HOST], wrong].concat();
        let ran = nvme(&arguments).expect(4);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    server.ok(&["admin", "host", "rm", HOST]);
    assert_eq!(seen(&[]), [1, 2]);
    for secret in ["DHHC-1:00:short:", "not a secret"] {
        server
            .run(&["admin", "host", "add", HOST, "--chap-secret", secret])
            .expect(2);
    }
}

#[test]
fn a_host_with_a_key_comes_by_tls() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "values=1", "--nvme-tls", "required"]);
    let door = server.doors["nvme"].clone();
    let list =
        |more: &[&str]| nvme(&[&["list", &door, "--host-nqn", HOST, "--json"], more].concat());
    // Also for the owner, on loopback.
    list(&[]).expect(4);
    let made = server.json(&["admin", "host", "add", HOST, "--tls-key", "new"]);
    let key = made[0]["tls_key"].as_str().unwrap().to_owned();
    let listed = server.json(&["admin", "host", "list"]);
    assert_eq!(
        (&listed[0]["tls"], &listed[0]["chap"]),
        (&true.into(), &false.into())
    );
    assert!(!listed[0].to_string().contains("NVMeTLSkey"));
    list(&[]).expect(4);
    assert_eq!(list(&["--tls-key", &key]).expect(0).out.lines().count(), 1);
    let wrong = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    list(&["--tls-key", wrong]).expect(4);
    let ran = list(&["--tls-key", &key[..20]]).expect(2);
    assert!(!ran.err.contains(&key[..20]), "{ran:?}");
    // What to type tells it, and so does discovery.
    let told = json(&[
        "connect-string",
        &door,
        "--host-nqn",
        HOST,
        "--tls-key",
        &key,
    ]);
    assert!(told[0]["nvme_cli"].as_str().unwrap().ends_with(" --tls"));
    let found = json(&["discover", &door, "--host-nqn", HOST]);
    assert!(
        found.iter().any(|one| one["tls"] == "required"),
        "{found:?}"
    );
    server.ok(&["admin", "host", "rm", HOST]);
    for (key, code) in [("NVMeTLSkey-1:00:short:", 2), (wrong, 0)] {
        let add = ["admin", "host", "add", HOST, "--tls-key", key];
        server.run(&add).expect(code);
    }
}

#[test]
fn a_host_that_is_not_known_is_told_so() {
    if !rustix::process::getuid().is_root() {
        return skip("only root can become somebody else");
    }
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "values=1"]);
    let door = server.doors["nvme"].clone();
    for command in ["discover", "connect-string", "list"] {
        let mut asked = harness::forebay();
        asked.args(["nvme", command, &door, "--host-nqn", HOST]);
        let Some(ran) = harness::Ran::of_user(asked, 65534) else {
            break;
        };
        let ran = ran.expect(4);
        let says = format!("admin host add {HOST}");
        assert!(ran.err.contains(&says), "{}", ran.err);
    }
    nvme(&["retrieve", &device(&server, 7), "key"]).expect(3);
    nvme(&["store", &device(&server, 1), "key", "/no/such/file"]).expect(3);
    nvme(&["list", &door, "--host-nqn", "foo"]).expect(2);
    let odd = place.path("odd");
    fs::write(&odd, b"value").unwrap();
    for (key, hex) in [("f\u{fc}r", false), ("ff00", true)] {
        let values = device(&server, 1);
        let store = ["store", &values, key, odd.to_str().unwrap()];
        let hex = hex.then_some("--hex");
        nvme(&store.into_iter().chain(hex).collect::<Vec<_>>()).expect(0);
    }
    let keys = json(&["keys", &device(&server, 1)]);
    let keys: Vec<_> = keys.iter().map(|line| line["key"].clone()).collect();
    assert_eq!(keys, ["f\u{fc}r", "\\xff\\x00"]);
    let ran = nvme(&["retrieve", &device(&server, 1), "f\u{fc}r", "-", "--json"]).expect(0);
    assert_eq!(ran.out, "value");
    let told: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(told["bytes"], 5);
}

#[test]
fn wrong_devices_are_told_in_one_line() {
    let place = Place::new();
    let server = place.serve(&["--no-nvme", "--nvme-namespace", "values"]);
    assert!(!server.doors.contains_key("nvme"));
    for (arguments, code) in [
        (&["keys", "/dev/null"][..], 1),
        (&["keys", "/dev/ng-none"], 3),
        (&["keys", "kv://127.0.0.1:1/1"], 1),
        (&["keys", "kv://127.0.0.1:1"], 2),
        (&["list", "/dev/null"], 2),
    ] {
        let ran = nvme(arguments).expect(code);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    nvme(&["keys", "s3://x/1"]).expect(2);
}

#[test]
fn what_names_a_number_gets_it_whatever_else_is_shown() {
    let place = Place::new();
    let other = ["--export", "disk=memory:1MiB"];
    // One number twice, of either kind: nothing has one after that.
    for second in ["--nvme-namespace=more=1", "--export=more=memory:1MiB:1"] {
        let flags = [&other[..], &["--nvme-namespace", "cache=1", second]].concat();
        let ran = place.try_serve(&flags).err().unwrap().expect(1);
        let words = "namespace identifier 1 belongs to ";
        assert!(ran.err.contains(words), "{ran:?}");
    }
    let server = place.serve(&other);
    assert!(
        server
            .ok(&["admin", "namespace", "list", "--json"])
            .is_empty()
    );
    assert_eq!(json(&["list", &server.doors["nvme"]])[0]["nsid"], 1);
    drop(server);

    let place = Place::new();
    let server = place.serve(&[&other[..], &["--nvme-namespace", "cache=1"]].concat());
    let told = json(&["list", &server.doors["nvme"]]);
    let told = told.iter().map(|one| (&one["nsid"], &one["keeps"]));
    let keys = (&1.into(), &"keys".into());
    assert_eq!(
        told.collect::<Vec<_>>(),
        [keys, (&2.into(), &"blocks".into())]
    );
}

#[test]
fn doors_that_are_closed_show_nothing() {
    let place = Place::new();
    let shown = [
        "--no-nvme",
        "--nvme-value",
        "1GiB",
        "--export",
        "disk=/none",
    ];
    let server = place.serve(&[&shown[..], &["--nvme-namespace", "values=1"]].concat());
    assert!(
        server
            .ok(&["admin", "namespace", "list", "--json"])
            .is_empty()
    );
    assert_eq!(server.terminate(), Some(0));
    // One of them is open.
    let sockets = place.path("vm");
    let open = ["--vfio-user", sockets.to_str().unwrap()];
    let refused = place.try_serve(&[&shown[..], &open].concat());
    assert!(
        refused
            .err()
            .unwrap()
            .expect(2)
            .err
            .contains("--nvme-value")
    );
}

#[test]
fn what_has_no_end_is_refused_when_it_is_longer_than_a_value() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "values=7", "--nvme-value", "1MiB"]);
    let values = device(&server, 7);
    for (file, stdin) in [("/dev/zero", "/dev/null"), ("-", "/dev/zero")] {
        // As much as all of it would take nobody has.
        let mut store = std::process::Command::new("sh");
        store.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"]);
        store.args([env!("CARGO_BIN_EXE_forebay"), "nvme", "store", &values]);
        store
            .args(["key", file])
            .stdin(fs::File::open(stdin).unwrap());
        let ran = harness::Ran::new(store.output().unwrap()).expect(5);
        assert!(ran.err.contains("Invalid Value Size"), "{ran:?}");
    }
    nvme(&["exist", &values, "key"]).expect(3);
    let file = place.path("file");
    fs::write(&file, bytes(1, 1 << 20)).unwrap();
    nvme(&["store", &values, "key", file.to_str().unwrap()]).expect(0);
}
