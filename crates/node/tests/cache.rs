//! A server with a cache before its backend, as its users see it.

mod harness;

use forebay_client::{Client, Credentials, PutOptions};
use harness::{Place, Server, bytes};

/// Large values: of one piece each.
const PIECE: usize = 1 << 20;

fn put(server: &Server, place: &Place, address: &str, body: &[u8]) {
    let file = place.path("file");
    std::fs::write(&file, body).unwrap();
    server.ok(&["cp", file.to_str().unwrap(), address]);
}

/// More than there is room for.
fn put_more(server: &Server, place: &Place) {
    for number in 0..12 {
        let address = format!("fb://data/{number}");
        put(server, place, &address, &bytes(number, PIECE));
    }
}

#[track_caller]
fn reads(server: &Server, address: &str, body: &[u8]) {
    let read = server.run(&["cat", address]).expect(0).bytes;
    assert!(read == body, "{address}: {} bytes", read.len());
}

/// Reads a value that may be held; whether it was.
fn is_held(server: &Server, address: &str) -> bool {
    let hits = || metric(server, "forebay_tier_memory_hits_total").unwrap();
    let before = hits();
    server.run(&["cat", address]).expect(0);
    hits() > before
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

/// A server with room for eight large values and these flags, and a namespace `data`.
fn with(flags: &[&str]) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(&[&["--cache-memory", "9MiB"][..], flags].concat());
    server.ok(&["admin", "namespace", "create", "data"]);
    (place, server)
}

#[test]
fn what_is_pinned_stays() {
    let (place, server) = with(&["--cache-pin", "data/hot/", "--cache-policy", "lru"]);
    for key in ["cold", "hot/1", "hot/2"] {
        put(
            &server,
            &place,
            &format!("fb://data/{key}"),
            &bytes(1, PIECE),
        );
    }
    let pinned = metric(&server, "forebay_tier_pinned_bytes").unwrap();
    let two = 2 * PIECE as u64;
    assert!((two..two + 100_000).contains(&pinned), "{pinned}");
    put_more(&server, &place);
    assert!(is_held(&server, "fb://data/hot/1") && is_held(&server, "fb://data/hot/2"));
    assert!(!is_held(&server, "fb://data/cold"));
}

#[test]
fn what_leaves_is_as_the_policy_says() {
    // What was used again and then not for long: the one that looks at nothing but the last use gives it up.
    for (flags, stays) in [
        (&["--cache-policy", "lru"][..], false),
        (&["--cache-policy", "w-tinylfu"], true),
        (&[], true),
    ] {
        let (place, server) = with(flags);
        put(&server, &place, "fb://data/used", &bytes(1, PIECE));
        for _ in 0..3 {
            assert!(is_held(&server, "fb://data/used"), "{flags:?}");
        }
        put_more(&server, &place);
        assert_eq!(is_held(&server, "fb://data/used"), stays, "{flags:?}");
    }
}

#[test]
fn nothing_stays_longer_than_it_may() {
    for (flags, stays) in [(&["--cache-ttl", "1"][..], false), (&[], true)] {
        let (place, server) = with(flags);
        put(&server, &place, "fb://data/key", &bytes(1, PIECE));
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(is_held(&server, "fb://data/key"), stays, "{flags:?}");
    }
}

#[test]
fn the_backend_is_asked_as_often_as_was_said() {
    let hour = ["--cache-trust", "3600000"];
    for (flags, asks) in [
        (&["--cache-trust", "0"][..], true),
        (&["--cache-strict"], true),
        (&hour, false),
    ] {
        let (place, server) = with(flags);
        put(&server, &place, "fb://data/key", &bytes(1, PIECE));
        // Longer than what is trusted by default.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(is_held(&server, "fb://data/key"), "{flags:?}");
        let checks = metric(&server, "forebay_tier_checks_total").unwrap();
        assert_eq!(checks > 0, asks, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_holds_what_its_share_is() {
    let mut held = Vec::new();
    for flags in [&["--cache-share", "root=3"][..], &[]] {
        let (_place, server) = with(&[&["--cache-policy", "lru"], flags].concat());
        server.ok(&["admin", "tenant", "create", "guests"]);
        let key = &server.json(&["admin", "key", "create", "guests"])[0];
        let text = |name: &str| key[name].as_str().unwrap().to_owned();
        let guest = server.client_as(Credentials {
            access_key: text("access_key"),
            secret_key: text("secret_key"),
        });
        guest.create_namespace("visits").await.unwrap();
        fill(&server.client(), "data").await;
        fill(&guest, "visits").await;
        // What was stored last is given up last.
        let is_held = |number: &u64| is_held(&server, &format!("fb://data/{number}"));
        held.push((0..8).rev().take_while(is_held).count());
    }
    assert!(held[0] > held[1] && held[1] > 0, "{held:?}");
}

/// Stores as much as the cache has room for.
async fn fill(client: &Client, namespace: &str) {
    for number in 0..8 {
        let (key, options) = (number.to_string(), PutOptions::default());
        let put = client.put(namespace, &key, bytes(number, PIECE).into(), &options);
        put.await.unwrap();
    }
}
