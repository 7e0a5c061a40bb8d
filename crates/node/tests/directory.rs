//! What a server makes of its directory: in use, damaged, of another version, not to be written, full.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use forebay_client::Credentials;
use forebay_io::Disk;
use forebay_io::files::Directory;
use harness::skipping::skip;
use harness::{Place, Ran, Server, bytes, s3, tree};
use serde_json::Value;

/// A start that was refused in one line, which says so.
#[track_caller]
fn is_refused(ran: &Ran, says: &[&str]) {
    let is_one_line = ran.err.starts_with("forebay: ") && ran.err.lines().count() == 1;
    let says_it = says.iter().all(|word| ran.err.contains(word));
    assert!(ran.code == Some(1) && is_one_line && says_it, "{ran:?}");
}

/// A store that was closed, and how its files were then.
struct Closed {
    place: Place,
    credentials: Credentials,
    /// By the path of a request.
    values: BTreeMap<&'static str, Vec<u8>>,
    files: BTreeMap<&'static str, Vec<u8>>,
}

impl Closed {
    fn new() -> Closed {
        let place = Place::new();
        let server = place.serve(&[]);
        server.ok(&["admin", "namespace", "create", "rot"]);
        let values = BTreeMap::from([
            ("/rot/empty", Vec::new()),
            ("/rot/short-value", bytes(1, 1000)),
            ("/rot/large", bytes(2, 300_000)),
        ]);
        let credentials = server.credentials();
        for (path, value) in &values {
            let put = s3::ask(&server, &credentials, "PUT", path, value);
            assert_eq!(put.status, 200, "{}", put.text());
        }
        assert_eq!(server.terminate(), Some(0));
        let files = ["index", "credentials", "LOCK"]
            .map(|name| (name, fs::read(place.data().join(name)).unwrap()));
        Closed {
            place,
            credentials,
            values,
            files: BTreeMap::from(files),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.place.data().join(file)
    }

    /// Starts with one bit flipped in a file that is else as it was.
    fn start_with(&self, file: &str, at: usize, bit: u32) -> Result<Server, Ran> {
        let mut bytes = self.files[file].clone();
        bytes[at] ^= 1 << bit;
        fs::write(self.path(file), bytes).unwrap();
        self.place.try_serve(&[])
    }

    /// Everything is there, with the right bytes.
    #[track_caller]
    fn is_served_by(&self, server: &Server, about: &str) {
        for (path, value) in &self.values {
            let got = s3::ask(server, &self.credentials, "GET", path, b"");
            assert!(got.status == 200 && got.body == *value, "{about}: {path}");
        }
    }
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
    for backend in ["engine", "memory"] {
        let place = Place::new();
        let server = place.serve(&[]);
        let flags = ["--backend", backend];
        let second = Ran::new(place.serve_command(&flags).output().unwrap()).expect(1);
        assert!(second.err.contains("in use"), "{}", second.err);
        // Whoever waits for the first finds it.
        assert!(place.path("ready.json").exists());
        server.ok(&["ls"]);
    }
}

/// Who was killed holds its directory for a moment.
#[test]
fn a_server_waits_for_its_directory() {
    for backend in ["engine", "memory"] {
        let place = Place::new();
        fs::create_dir(place.data()).unwrap();
        let lock = Directory::open(place.data()).unwrap().lock().unwrap();
        let flags = ["--backend", backend, "--log-level", "debug"];
        std::thread::scope(|scope| {
            let served = scope.spawn(|| place.try_serve(&flags).map(drop));
            while !place.log().contains("is held") && !served.is_finished() {
                std::thread::yield_now();
            }
            drop(lock);
            served.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_directory_that_is_named_is_the_server_s_or_nobody_s() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["ls"]);
    assert_eq!(server.terminate(), Some(0));
    for arguments in [
        &["ls"][..],
        &["rm", "-r", "fb://data/"],
        &["cp", "fb://data/a", "b"],
    ] {
        let mut command = harness::forebay();
        command.args(arguments).arg("--dir").arg(place.data());
        let ran = Ran::new(command.output().unwrap()).expect(1);
        assert!(ran.err.contains("no server uses"), "{ran:?}");
    }
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
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("another user may not look where the program lies");
        }
        Err(error) => panic!("{error}"),
    };
    assert!(
        ran.err.contains("data") && ran.err.contains("cannot be written"),
        "{}",
        ran.err
    );
}

/// What a server says that may not write to its directory; `None`, with the reason told, where that cannot be had.
fn serve_read_only(place: &Place) -> Option<Ran> {
    let command = place.serve_command(&[]);
    if !rustix::process::getuid().is_root() {
        return Some(serve_without_modes(place, command));
    }
    // Root may write in spite of modes: here the file system forbids it, in the eyes of this one process.
    let apart = |program: &Command| {
        let script =
            r#"mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@""#;
        let mut apart = Command::new("unshare");
        apart
            .args(["-m", "sh", "-c", script, "sh"])
            .arg(place.data())
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => apart.env(name, value),
                None => apart.env_remove(name),
            };
        }
        apart.output().map(Ran::new)
    };
    match apart(&Command::new("true")) {
        Ok(ran) if ran.code == Some(0) => Some(apart(&command).unwrap()),
        refused => {
            skip(&format!("no mounts of its own for a process: {refused:?}"));
            None
        }
    }
}

fn serve_without_modes(place: &Place, mut command: Command) -> Ran {
    let files = ["data", "index", "credentials", "LOCK"].map(|file| place.data().join(file));
    let set = |of_files, of_directory| {
        let modes = files.iter().map(|file| (file, of_files));
        for (path, mode) in modes.chain([(&place.data(), of_directory)]) {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o400, 0o500);
    let output = command.output();
    set(0o600, 0o700);
    Ran::new(output.unwrap())
}

#[test]
fn a_store_that_cannot_be_written_is_refused_and_loses_nothing() {
    let store = Closed::new();
    let Some(ran) = serve_read_only(&store.place) else {
        return;
    };
    is_refused(&ran, &["data", "cannot be written"]);
    let server = store.place.serve(&[]);
    store.is_served_by(&server, "written again");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
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

/// Castagnoli's, as docs/engine-format.md wants it.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn a_store_of_another_version_is_named_and_left_alone() {
    let place = Place::new();
    assert_eq!(place.serve(&[]).terminate(), Some(0));
    let data = place.data().join("data");
    let mut file = fs::read(&data).unwrap();
    // Magic, version, zero, store, segment bytes, and what they sum up to.
    let mut superblock = file[..44].to_vec();
    assert_eq!(superblock[..12], *b"FOREBAY1\x01\0\0\0");
    assert_eq!(superblock[40..], crc32c(&superblock[..40]).to_le_bytes());
    superblock[8..12].copy_from_slice(&7u32.to_le_bytes());
    let crc = crc32c(&superblock[..40]);
    superblock[40..].copy_from_slice(&crc.to_le_bytes());
    for copy in [0, 4096] {
        file[copy..copy + 44].copy_from_slice(&superblock);
    }
    fs::write(&data, &file).unwrap();
    let index = fs::read(place.data().join("index")).unwrap();
    let ran = Ran::new(place.serve_command(&[]).output().unwrap());
    is_refused(&ran, &["data", "has format 7", "reads format 1"]);
    assert!(fs::read(&data).unwrap() == file);
    assert!(fs::read(place.data().join("index")).unwrap() == index);
}

#[test]
fn a_flipped_bit_is_found_and_never_served() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "rot"]);
    let body = bytes(77, 300_000);
    // What steers a terminal may be in a key.
    let damaged = "fb://rot/\u{1b}damaged";
    server.run_on(&["cp", "-", damaged], &body).expect(0);
    server
        .run_on(&["cp", "-", "fb://rot/sound"], &bytes(78, 300_000))
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
    let ran = server.run(&["cat", damaged]);
    assert!(
        ran.code == Some(1) && body.starts_with(&ran.bytes),
        "{:?}",
        ran.err
    );
    server.run(&["cat", "fb://rot/sound"]).expect(0);
    let out = place.path("out");
    server.ok(&["admin", "namespace", "create", "copies"]);
    for target in [out.to_str().unwrap(), "fb://copies/"] {
        let copy = ["cp", "--json", "--path", "http", "--parallel", "1"];
        let ran = server.run(&[&copy[..], &["fb://rot/", target]].concat());
        let told: Value = serde_json::from_str(&ran.expect(1).out).unwrap();
        assert_eq!((&told["copies"], &told["failed"]), (&1.into(), &1.into()));
        assert_eq!(told["not_tried"], 0, "{told}");
    }
    let sound = bytes(78, 300_000);
    assert!(tree(&out) == BTreeMap::from([("sound".into(), sound.clone())]));
    let copied = server.run(&["cat", "fb://copies/sound"]).expect(0);
    assert!(copied.bytes == sound);
    let scrub = server.run(&["admin", "scrub"]).expect(1);
    assert!(
        scrub.out.contains("fb://rot/\\u{1b}damaged: block "),
        "{}",
        scrub.out
    );
    assert_ne!(server.metric("forebay_engine_corrupt_blocks_total "), 0);
    server.run_on(&["cp", "-", damaged], &body).expect(0);
    assert_eq!(server.run(&["cat", damaged]).expect(0).bytes, body);
    let scrub = server.run(&["admin", "scrub"]).expect(0);
    assert!(!scrub.out.contains("damaged:"), "{}", scrub.out);
}

#[test]
fn an_index_with_a_flipped_bit_is_refused_or_serves_the_right_bytes() {
    let store = Closed::new();
    let index = &store.files["index"];
    // Some of these may be left over on pages that are no longer used.
    let every = |needle: &[u8]| -> Vec<usize> {
        let windows = index.windows(needle.len()).enumerate();
        let found = windows.filter(|(_, window)| *window == needle);
        found.map(|(at, _)| at).collect()
    };
    let keys = every(b"short-value");
    let values = every(&store.values["/rot/short-value"][500..600]);
    // The magic, the flags, both commit slots, keys, values.
    let mut places = vec![(0, 0), (9, 0), (9, 1), (9, 2), (80, 3), (208, 3)];
    places.extend(keys.iter().map(|at| (*at, 1)));
    places.extend(values.iter().map(|at| (*at, 6)));
    // And here and there among what is not zero.
    let used: Vec<_> = (0..index.len()).filter(|at| index[*at] != 0).collect();
    places.extend((0..12).map(|part| (used[used.len() * part / 12 + 7], part as u32 % 8)));
    let mut refused = Vec::new();
    for (at, bit) in places {
        match store.start_with("index", at, bit) {
            Ok(server) => {
                store.is_served_by(&server, &format!("bit {bit} at {at}"));
                server.kill();
            }
            Err(ran) => {
                is_refused(&ran, &["index"]);
                refused.push(at);
            }
        }
    }
    for used in [&[0][..], &keys, &values] {
        assert!(used.iter().any(|at| refused.contains(at)), "{used:?}");
    }
    fs::write(store.path("index"), index).unwrap();
    let server = store.place.serve(&[]);
    store.is_served_by(&server, "the sound index");
}

#[test]
fn credentials_with_a_flipped_bit_open_nothing_and_make_no_other_keys() {
    let store = Closed::new();
    let text = String::from_utf8(store.files["credentials"].clone()).unwrap();
    let find = |what: &str| text.find(what).unwrap();
    let Credentials {
        access_key,
        secret_key,
    } = &store.credentials;
    let (mut wrong, mut unreadable) = (0, 0);
    for (at, bit) in [
        (find("[default]") + 1, 0),
        (find("aws_access_key_id"), 0),
        (find(access_key), 0),
        (find(access_key), 7),
        (find(secret_key), 1),
        (find(secret_key) + secret_key.len() - 1, 0),
        // A comment.
        (find("Root"), 5),
    ] {
        let server = match store.start_with("credentials", at, bit) {
            Ok(server) => server,
            Err(ran) => {
                is_refused(&ran, &["credentials"]);
                continue;
            }
        };
        let about = format!("bit {bit} at {at}");
        let damaged = fs::read(store.path("credentials")).unwrap();
        store.is_served_by(&server, &about);
        let ran = server.run(&["ls"]);
        match Credentials::from_file(&store.path("credentials"), "default") {
            Ok((same, _)) if same == store.credentials => assert_eq!(ran.code, Some(0), "{about}"),
            Ok((other, _)) => {
                let got = s3::ask(&server, &other, "GET", "/rot/short-value", b"");
                assert_eq!(got.status, 403, "{about}");
                assert_eq!(ran.code, Some(4), "{about}: {ran:?}");
                wrong += 1;
            }
            Err(_) => {
                let names_it = ran.err.lines().count() == 1 && ran.err.contains("credentials");
                assert!(ran.code != Some(0) && names_it, "{about}: {ran:?}");
                unreadable += 1;
            }
        }
        let keys = server.json(&["admin", "key", "list", "root"]);
        assert_eq!(keys.len(), 1, "{about}: {keys:?}");
        assert_eq!(keys[0]["access_key"], *access_key.as_str());
        // What is left of them is for people to look at.
        assert!(fs::read(store.path("credentials")).unwrap() == damaged);
        assert_eq!(server.terminate(), Some(0));
    }
    assert!(wrong >= 2 && unreadable >= 2, "{wrong} {unreadable}");
    // Whoever takes the damaged file away has the same pair again.
    fs::remove_file(store.path("credentials")).unwrap();
    assert_eq!(store.place.serve(&[]).credentials(), store.credentials);
}

/// Values in memory have no other place for keys than that file.
#[test]
fn credentials_that_cannot_be_read_stop_a_server_that_has_them_nowhere_else() {
    let place = Place::new();
    let memory = ["--backend", "memory"];
    let server = place.serve(&memory);
    let first = server.credentials();
    assert_eq!(server.terminate(), Some(0));
    let path = place.data().join("credentials");
    let sound = fs::read_to_string(&path).unwrap();
    let damaged = sound.replace("aws_secret", "aws_recret");
    fs::write(&path, &damaged).unwrap();
    match place.try_serve(&memory) {
        Ok(_) => panic!("it made keys that nobody has"),
        Err(ran) => is_refused(&ran, &["credentials", "secret key"]),
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    fs::write(&path, sound).unwrap();
    let server = place.serve(&memory);
    assert_eq!(server.credentials(), first);
    server.ok(&["ls"]);
}

#[test]
fn a_flipped_bit_in_the_lock_costs_nothing_and_keeps_others_out() {
    let store = Closed::new();
    let last = store.files["LOCK"].len() - 1;
    for (at, bit) in [(0, 0), (0, 7), (last, 2)] {
        let about = format!("bit {bit} at {at}");
        let server = store.start_with("LOCK", at, bit).unwrap();
        store.is_served_by(&server, &about);
        let lock = fs::read_to_string(store.path("LOCK")).unwrap();
        assert_eq!(lock, format!("{}\n", server.pid()), "{about}");
        assert_eq!(server.terminate(), Some(0));
    }
    // And while it is held.
    let server = store.place.serve(&[]);
    let lock = fs::File::options()
        .write(true)
        .open(store.path("LOCK"))
        .unwrap();
    lock.write_all_at(&[0xff], 0).unwrap();
    let second = store.place.serve_command(&[]).output().map(Ran::new);
    is_refused(&second.unwrap(), &["in use"]);
    store.is_served_by(&server, "a second start");
}

#[test]
fn a_full_disk_refuses_writes_only() {
    let place = Place::new();
    let server = place.serve(&["--capacity", "8MiB"]);
    server.ok(&["admin", "namespace", "create", "full"]);
    let body = bytes(5, 3 << 20);
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

    // The same as S3 tells it.
    let credentials = server.credentials();
    let ask = |method, path, body: &[u8]| s3::ask(&server, &credentials, method, path, body);
    let put = ask("PUT", "/full/more", &body);
    let code = "<Code>InsufficientStorage</Code>";
    assert!(
        put.status == 507 && put.text().contains(code),
        "{}",
        put.text()
    );
    assert_eq!(ask("GET", "/full/more", b"").status, 404);
    let got = ask("GET", "/full/0", b"");
    assert!(got.status == 200 && got.body == body);
    assert_eq!(ask("DELETE", "/full/0", b"").status, 204);
    let put = ask("PUT", "/full/more", &body);
    assert_eq!(put.status, 200, "{}", put.text());
    let got = ask("GET", "/full/more", b"");
    assert!(got.status == 200 && got.body == body);

    server.ok(&["rm", "fb://full/more"]);
    server
        .run_on(&["cp", "-", "fb://full/again"], &body)
        .expect(0);
}
