//! Copies whose ends are no plain files, or have neighbours that a copy must leave alone.

mod harness;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use forebay_client::{Error, PutOptions, transfer};
use harness::{Place, Server, bytes, tree};
use rustix::fs::{CWD, Mode, mkfifoat};

const PART: usize = 5 << 20;

fn ready(namespace: &str) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", namespace]);
    (place, server)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pipe(place: &Place, name: &str) -> std::path::PathBuf {
    let path = place.path(name);
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    path
}

#[test]
fn what_is_no_plain_file_is_read_to_its_end() {
    let (place, server) = ready("ends");
    let fifo = pipe(&place, "fifo");
    for len in [0, 1, 2 * PART + 77] {
        let body = bytes(len as u64, len);
        let copy = [
            "cp",
            "--part-size",
            "5MiB",
            text(&fifo),
            "fb://ends/from-fifo",
        ];
        let ran = thread::scope(|scope| {
            scope.spawn(|| fs::write(&fifo, &body).unwrap());
            let ran = server.run(&copy);
            // Nobody waits for a copy that did not read.
            drop(File::options().read(true).write(true).open(&fifo));
            ran
        });
        ran.expect(0);
        let stored = server.run(&["cat", "fb://ends/from-fifo"]).expect(0);
        assert!(stored.bytes == body, "{len}");
    }
    let ran = server.run_on(&["cp", "/dev/stdin", "fb://ends/in"], b"some words");
    ran.expect(0);
    let stored = server.run(&["cat", "fb://ends/in"]).expect(0);
    assert_eq!(stored.bytes, b"some words");
    // Whoever reads it learns no name.
    let ran = server.run_on(&["cp", "/dev/stdin", "fb://ends/"], b"some words");
    assert!(ran.expect(2).err.contains("needs a key"));

    // Files that say that they have nothing, and do not.
    server.ok(&["cp", "/proc/version", "fb://ends/"]);
    let stored = server.run(&["cat", "fb://ends/version"]).expect(0);
    assert_eq!(stored.bytes, fs::read("/proc/version").unwrap());
    let folder = Path::new("/proc/sys/fs/inotify");
    server.ok(&["cp", text(folder), "fb://ends/inotify"]);
    for (name, contents) in tree(folder) {
        let stored = server.run(&["cat", &format!("fb://ends/inotify/{}", text(&name))]);
        assert_eq!(stored.expect(0).bytes, contents);
    }
    // And one that says more than it has.
    let file = Path::new("/sys/kernel/uevent_seqnum");
    if file.exists() {
        let ran = server.run(&["cp", text(file), "fb://ends/sys"]).expect(1);
        assert!(ran.err.contains("fewer bytes"), "{}", ran.err);
        server.run(&["stat", "fb://ends/sys"]).expect(3);
    }
}

#[test]
fn a_file_that_changes_is_no_object() {
    let (place, server) = ready("changes");
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = place.path("file");
    let change = |name: &str, len: usize, change: fn(&mut File)| {
        fs::write(&file, bytes(3, len)).unwrap();
        let changed = file.clone();
        let options = transfer::Options {
            part_bytes: Some(PART as u64),
            parallel: 1,
            progress: Arc::new(move |_| {
                change(&mut File::options().append(true).open(&changed).unwrap());
            }),
            ..transfer::Options::default()
        };
        let put = PutOptions::default();
        let sent = transfer::upload_file(&client, "changes", name, &file, &put, &options);
        let failed = runtime.block_on(sent).unwrap_err();
        assert!(matches!(&failed, Error::Local { .. }), "{failed}");
        server
            .run(&["stat", &format!("fb://changes/{name}")])
            .expect(3);
        failed.to_string()
    };
    let told = change("longer", 3 * PART, |file| file.write_all(b"more").unwrap());
    assert!(told.contains("changed while it was sent"), "{told}");
    let told = change("shorter", 3 * PART, |file| file.set_len(9).unwrap());
    assert!(told.contains("fewer bytes"), "{told}");
    let left = runtime.block_on(client.uploads("changes", "")).unwrap();
    assert_eq!(left, []);

    let (put, options) = (PutOptions::default(), transfer::Options::default());
    for path in ["/dev/null", "/proc/version"] {
        let sent =
            transfer::upload_file(&client, "changes", "none", Path::new(path), &put, &options);
        let refused = runtime.block_on(sent);
        assert!(matches!(refused, Err(Error::Local { .. })), "{path}");
        server.run(&["stat", "fb://changes/none"]).expect(3);
    }
}

#[test]
fn links_stay_and_what_is_no_plain_file_is_written_to() {
    let (place, server) = ready("targets");
    for (name, len) in [("small", 1000), ("large", 2 * PART + 5)] {
        let body = bytes(len as u64, len);
        let address = format!("fb://targets/{name}");
        server
            .run_on(&["cp", "--part-size", "5MiB", "-", &address], &body)
            .expect(0);
        let copy = |from: &str, target: &Path| {
            server.ok(&["cp", "--part-size", "5MiB", from, text(target)]);
        };
        let folder = place.path(&format!("folder-{name}"));
        fs::create_dir_all(folder.join("below")).unwrap();
        fs::write(folder.join("below/there"), "old").unwrap();
        symlink("below/there", folder.join(name)).unwrap();
        symlink(name, folder.join("twice")).unwrap();
        symlink("below/none", folder.join("nothing")).unwrap();
        for target in [name, "twice", "nothing"] {
            copy(&address, &folder.join(target));
            assert!(folder.join(target).is_symlink(), "{target}");
            assert!(fs::read(folder.join(target)).unwrap() == body);
        }
        // The same where a list tells the size.
        fs::write(folder.join("below/there"), "old").unwrap();
        copy(&format!("fb://targets/{name}*"), &folder);
        assert!(folder.join(name).is_symlink());
        let written: Vec<_> = tree(&folder.join("below")).into_iter().collect();
        let there = |name: &str| (name.into(), body.clone());
        assert!(written == [there("none"), there("there")]);
        symlink("loop", folder.join("loop")).unwrap();
        let ran = server.run(&["cp", &address, text(&folder.join("loop"))]);
        ran.expect(1);

        let fifo = pipe(&place, &format!("fifo-{name}"));
        let (ran, read) = thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut read = Vec::new();
                File::open(&fifo).unwrap().read_to_end(&mut read).unwrap();
                read
            });
            let ran = server.run(&["cp", &address, text(&fifo)]);
            // Nobody waits for a copy that did not write.
            drop(File::options().read(true).write(true).open(&fifo));
            (ran, reading.join().unwrap())
        });
        ran.expect(0);
        assert!(read == body, "{name}");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        // Standard output by its name: what is told of the copy does not go there.
        let out = server.run(&["cp", &address, "/dev/stdout"]).expect(0);
        assert!(out.bytes == body);
    }
}

#[test]
fn a_file_that_is_replaced_stays_as_private_as_it_was() {
    let (place, server) = ready("modes");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = server.client();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (key, len) in [("small", 1000), ("large", 2 * PART + 5)] {
        let body = bytes(len as u64, len);
        let address = format!("fb://modes/{key}");
        let sent = ["cp", "--part-size", "5MiB", "-", &address];
        server.run_on(&sent, &body).expect(0);
        for kept in [0o600, 0o640, 0o444] {
            let folder = place.path(&format!("{key}-{kept:o}"));
            fs::create_dir(&folder).unwrap();
            let file = folder.join("file");
            fs::write(&file, "old").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(kept)).unwrap();
            // Its bytes are nobody else's meanwhile, either.
            let inside = folder.clone();
            let look = move |_| {
                for entry in fs::read_dir(&inside).unwrap() {
                    let path = entry.unwrap().path();
                    let is_new = path.to_string_lossy().ends_with(".forebay-partial");
                    assert!(
                        !is_new || mode(&path) == 0o600,
                        "{path:?}: {:o}",
                        mode(&path)
                    );
                }
            };
            let options = transfer::Options {
                part_bytes: Some(PART as u64),
                progress: Arc::new(look),
                ..transfer::Options::default()
            };
            let got = transfer::download_file(&client, "modes", key, &file, None, &options);
            runtime.block_on(got).unwrap();
            assert!(fs::read(&file).unwrap() == body);
            assert_eq!(mode(&file), kept, "{key}");
            fs::write(&file, "old").unwrap_or_default();
            server.ok(&[
                "cp",
                "--no-resume",
                "--part-size",
                "5MiB",
                &address,
                text(&file),
            ]);
            assert_eq!(mode(&file), kept, "{key}");
        }
    }
}

#[test]
fn neighbours_of_a_target_are_left_alone() {
    let (place, server) = ready("neighbours");
    let body = bytes(1, 2 * PART + 1);
    let put = |key: &str, body: &[u8]| {
        let address = format!("fb://neighbours/{key}");
        server
            .run_on(&["cp", "--part-size", "5MiB", "-", &address], body)
            .expect(0);
    };
    put("t/large", &body);
    put("t/small", b"small");
    put("t/large.forebay-partial", b"another object");
    put("t/small.forebay-partial", b"another object");
    put("t/large.forebay-progress", b"another object");
    let whole: Vec<_> = [("large", &body[..]), ("small", b"small")]
        .map(|(name, body)| (name.into(), body.to_vec()))
        .into();
    let out = place.path("out");
    let copy = ["cp", "--part-size", "5MiB"];
    for from in ["fb://neighbours/t/", "fb://neighbours/t/*"] {
        let ran = server.run(&[&copy[..], &[from, text(&out)]].concat());
        let ran = ran.expect(1);
        assert!(ran.err.contains("3 copies failed"), "{}", ran.err);
        assert!(ran.err.contains(".forebay-p"), "{}", ran.err);
        assert!(tree(&out).into_iter().collect::<Vec<_>>() == whole);
    }

    // Files that only look like those of a copy.
    let out = place.path("theirs");
    fs::create_dir(&out).unwrap();
    for name in ["large", "small"] {
        fs::write(out.join(format!("{name}.forebay-partial")), "theirs").unwrap();
    }
    let address = |name: &str| format!("fb://neighbours/t/{name}");
    for name in ["large", "small", "large"] {
        server.ok(&[&copy[..], &[&address(name), text(&out)]].concat());
    }
    server.ok(&["cp", "fb://neighbours/t/smal?", text(&out)]);
    let found = tree(&out);
    assert_eq!(found.len(), 4, "{:?}", found.keys());
    assert_eq!(found[Path::new("large.forebay-partial")], b"theirs");
    assert_eq!(found[Path::new("small.forebay-partial")], b"theirs");
    assert!(found[Path::new("large")] == body);

    // Nothing stays of a copy that fails.
    let out = place.path("failed");
    fs::create_dir_all(out.join("small")).unwrap();
    server
        .run(&["cp", "fb://neighbours/t/smal?", text(&out)])
        .expect(1);
    assert_eq!(tree(&out).len(), 0);

    // What was left by copies that were cut off does not go to the server.
    let source = place.path("source");
    fs::create_dir(&source).unwrap();
    for name in [
        "file",
        "file.forebay-partial",
        "file.forebay-progress",
        ".7-0.forebay-partial",
    ] {
        fs::write(source.join(name), name).unwrap();
    }
    let told = &server.json(&["cp", text(&source), "fb://neighbours/sent"])[0];
    assert_eq!(
        (&told["copies"], &told["leftovers"]),
        (&1.into(), &3.into())
    );
    assert_eq!(server.json(&["ls", "-r", "fb://neighbours/sent/"]).len(), 1);
    let told = server.ok(&["cp", text(&source), "fb://neighbours/sent"]);
    assert!(told.contains("3 not copied (left by copies that were cut off)"));
}

#[test]
fn two_copies_do_not_fill_one_file() {
    let (place, server) = ready("both");
    let body = bytes(1, 3 * PART);
    let file = place.path("file");
    fs::write(&file, &body).unwrap();
    server.ok(&["cp", "--part-size", "5MiB", text(&file), "fb://both/value"]);
    let target = place.path("back");
    let copy = [
        "cp",
        "--part-size",
        "5MiB",
        "fb://both/value",
        text(&target),
    ];
    // One that is under way and has written nothing yet.
    let other = File::create(place.path("back.forebay-partial")).unwrap();
    other.lock().unwrap();
    let ran = server.run(&copy).expect(1);
    assert!(ran.err.contains("another copy"), "{}", ran.err);
    assert!(!target.exists());
    // One that does not want to be gone on with has a file of its own.
    server.ok(&[&copy[..], &["--no-resume"]].concat());
    assert!(fs::read(&target).unwrap() == body);
    assert_eq!(other.metadata().unwrap().len(), 0);
    fs::remove_file(&target).unwrap();
    drop(other);
    server.ok(&copy);
    assert!(fs::read(&target).unwrap() == body);
    assert!(!place.path("back.forebay-partial").exists());
}
