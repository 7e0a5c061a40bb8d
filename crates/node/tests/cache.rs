//! A server with a cache before its backend, as its users see it.

mod harness;

use harness::{Place, Server, bytes};

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

/// One number of the metrics page; `None` when it is not there.
fn metric(server: &Server, name: &str) -> Option<u64> {
    let (_, page) = server.console("/metrics");
    let line = page.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next().unwrap().parse().ok()
}

#[test]
fn values_come_from_memory_then_from_the_disk_also_after_a_restart() {
    let place = Place::new();
    let disk = format!("{}:64MiB", place.path("cache").display());
    let flags = ["--cache-memory", "8MiB", "--cache-disk", &disk];
    let server = place.serve(&flags);
    server.ok(&["admin", "namespace", "create", "data"]);
    let values: Vec<Vec<u8>> = (0..5).map(|seed| bytes(seed, 3_000_000)).collect();
    for (at, value) in values.iter().enumerate() {
        put(&server, &place, &format!("fb://data/{at}"), value);
    }
    for _ in 0..2 {
        for (at, value) in values.iter().enumerate() {
            reads(&server, &format!("fb://data/{at}"), value);
        }
        reads(&server, "fb://data/4", &values[4]);
    }
    assert!(metric(&server, "forebay_tier_memory_hits_total") > Some(0));
    assert!(metric(&server, "forebay_tier_spills_total") > Some(0));
    assert!(metric(&server, "forebay_tier_memory_bytes") <= Some(8 << 20));
    assert_eq!(server.terminate(), Some(0));

    let server = place.serve(&flags);
    for (at, value) in values.iter().enumerate() {
        reads(&server, &format!("fb://data/{at}"), value);
    }
    assert!(metric(&server, "forebay_tier_disk_hits_total") > Some(0));
    assert_eq!(metric(&server, "forebay_tier_corrupt_total"), Some(0));
    put(&server, &place, "fb://data/0", &values[1]);
    reads(&server, "fb://data/0", &values[1]);
    server.ok(&["rm", "fb://data/0"]);
    server.run(&["cat", "fb://data/0"]).expect(3);
}

#[test]
fn a_damaged_disk_of_the_cache_keeps_no_server_from_starting() {
    let place = Place::new();
    let dir = place.path("cache");
    let disk = format!("{}:64MiB", dir.display());
    let flags = ["--cache-memory", "8MiB", "--cache-disk", &disk];
    let server = place.serve(&flags);
    server.ok(&["admin", "namespace", "create", "data"]);
    let value = bytes(1, 3_000_000);
    put(&server, &place, "fb://data/key", &value);
    assert_eq!(server.terminate(), Some(0));
    let files = || {
        let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    // As on a file system of its own: not ours to move.
    let foreign = dir.join("lost+found");
    std::fs::create_dir(&foreign).unwrap();
    let before = files();
    for file in &before {
        let len = std::fs::metadata(file).unwrap().len();
        let damaged = vec![7; len.min(1 << 20) as usize];
        let opened = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&opened, &damaged, 0).unwrap();
    }
    let server = place.serve(&flags);
    reads(&server, "fb://data/key", &value);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(files().len(), before.len(), "it began anew");
    let entries = std::fs::read_dir(&dir).unwrap();
    let aside = entries.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("damaged-")
    });
    assert_eq!(aside.count(), 1, "nothing was deleted");
    assert!(foreign.exists());
}

#[test]
fn a_server_without_the_flags_has_no_cache_before_its_backend() {
    let place = Place::new();
    let server = place.serve(&[]);
    assert_eq!(metric(&server, "forebay_tier_"), None);
}
