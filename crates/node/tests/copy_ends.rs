//! Copies whose ends are no plain files.

mod harness;

use std::fs::{self, File};
use std::io::Write;
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
