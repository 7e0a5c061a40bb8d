//! Old versions of objects: seen, read, brought back, removed; and what `stat` tells of an object.

mod harness;

use std::collections::BTreeSet;
use std::fs;

use harness::{Place, Server, bytes};
use serde_json::{Value, json};

/// A server with a namespace that keeps versions, `docs`.
fn serve(place: &Place, flags: &[&str]) -> Server {
    let server = place.serve(flags);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "docs",
        "--versioning",
        "enabled",
    ]);
    server
}

#[test]
fn old_versions_are_listed_read_brought_back_and_removed() {
    let place = Place::new();
    let server = serve(&place, &[]);
    // The old one comes in several parts, the new one in one.
    let (old, new) = (bytes(1, 20 << 20), bytes(2, 1000));
    let file = place.path("file");
    for body in [&old, &new] {
        fs::write(&file, body).unwrap();
        server.ok(&["cp", file.to_str().unwrap(), "fb://docs/dir/a"]);
    }
    server.ok(&["rm", "fb://docs/dir/a"]);
    server.run(&["stat", "fb://docs/dir/a"]).expect(3);

    let list = || server.json(&["ls", "--versions", "fb://docs/dir/"]);
    let listed = list();
    let told = |version: &Value| {
        let told = ["key", "size", "current", "delete_marker"].map(|name| version[name].clone());
        Value::from(told.to_vec())
    };
    assert_eq!(
        listed.iter().map(told).collect::<Vec<_>>(),
        [
            json!(["dir/a", 0, true, true]),
            json!(["dir/a", new.len(), false, false]),
            json!(["dir/a", old.len(), false, false]),
        ]
    );
    let ids: Vec<&str> = listed
        .iter()
        .map(|version| version["version"].as_str().unwrap())
        .collect();
    let text = server.ok(&["ls", "-r", "--versions", "fb://docs/*/a"]);
    for (line, (id, shown)) in text.lines().zip(ids.iter().zip(["current", "old", "old"])) {
        assert!(line.contains(id) && line.contains(shown), "{text}");
    }
    assert!(text.lines().next().unwrap().contains("deleted"), "{text}");
    let level = server.json(&["ls", "--versions", "fb://docs/"]);
    assert_eq!(level, [json!({"prefix": "dir/"})]);
    server
        .run(&["ls", "--versions", "fb://docs/none"])
        .expect(3);

    let (marker, second, first) = (ids[0], ids[1], ids[2]);
    let stat = |id| server.json(&["stat", "--version-id", id, "fb://docs/dir/a"])[0].clone();
    assert_eq!(stat(first)["size"], old.len());
    assert_eq!(stat(second)["version"], second);
    let cat = |id| server.run(&["cat", "--version-id", id, "fb://docs/dir/a"]);
    assert!(cat(first).expect(0).bytes == old);
    assert!(cat(second).expect(0).bytes == new);
    let target = place.path("target");
    let copied = ["cp", "--version-id", first, "fb://docs/dir/a"];
    server.ok(&[&copied[..], &[target.to_str().unwrap()]].concat());
    assert!(fs::read(&target).unwrap() == old);

    // The object is back without its marker, and then as it was.
    server.ok(&["rm", "--version-id", marker, "fb://docs/dir/a"]);
    assert!(server.run(&["cat", "fb://docs/dir/a"]).expect(0).bytes == new);
    server.ok(&[&copied[..], &["fb://docs/dir/a"]].concat());
    assert!(server.run(&["cat", "fb://docs/dir/a"]).expect(0).bytes == old);
    let out = server.ok(&["rm", "--version-id", second, "fb://docs/dir/a"]);
    assert_eq!(out, "1 version removed\n");
    let left: Vec<Value> = list()
        .iter()
        .map(|version| version["version"].clone())
        .collect();
    assert_eq!(left.len(), 2);
    assert_eq!(left[1], first);
}

#[test]
fn a_version_that_is_not_there_or_not_meant_is_refused() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let file = place.path("file");
    fs::write(&file, "x").unwrap();
    server.ok(&["cp", file.to_str().unwrap(), "fb://docs/a"]);
    server.ok(&["rm", "fb://docs/a"]);
    let marker = &server.json(&["ls", "--versions", "fb://docs/a"])[0]["version"];
    let marker = marker.as_str().unwrap();
    let other = format!("{:032x}", u64::MAX);
    let target = place.path("target");
    let target = target.to_str().unwrap();
    let told = [
        (marker, 3, "is a delete marker"),
        (&other, 3, "there is no version"),
        ("yesterday", 2, "names no version"),
    ];
    for (id, code, words) in told {
        for (command, rest) in [("stat", None), ("cat", None), ("cp", Some(target))] {
            let mut line = vec![command, "--version-id", id, "fb://docs/a"];
            line.extend(rest);
            let ran = server.run(&line).expect(code);
            assert!(
                ran.err.contains(words) && ran.err.lines().count() == 1,
                "{line:?}: {ran:?}"
            );
        }
    }
    server
        .run(&["rm", "--version-id", &other, "fb://docs/a"])
        .expect(3);
    for wrong in [
        &["rm", "--version-id", marker, "fb://docs/a", "fb://docs/b"][..],
        &["rm", "-r", "--version-id", marker, "fb://docs/"],
        &["stat", "--version-id", marker, "fb://docs/"],
        &["cp", "--version-id", marker, "fb://docs/d/", target],
        &["cp", "--version-id", marker, target, "fb://docs/a"],
        &[
            "cat",
            "--version-id",
            marker,
            "--path",
            "shm",
            "fb://docs/a",
        ],
        &["ls", "--versions"],
    ] {
        server.run(wrong).expect(2);
    }
    assert_eq!(server.terminate(), Some(0));

    let server = place.serve(&["--no-s3"]);
    for line in [
        &["ls", "--versions", "fb://docs/"][..],
        &["stat", "--version-id", marker, "fb://docs/a"],
        &["cat", "--version-id", marker, "fb://docs/a"],
        &["rm", "--version-id", marker, "fb://docs/a"],
    ] {
        let ran = server.run(line).expect(1);
        assert!(ran.err.contains("versions need the S3 door"), "{ran:?}");
    }
}

#[test]
fn a_long_list_of_versions_has_each_once() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    for number in 0..420 {
        fs::write(folder.join(format!("{number}+")), "x").unwrap();
    }
    // More than S3 lists at once.
    for _ in 0..3 {
        server.ok(&["cp", folder.to_str().unwrap(), "fb://docs/many"]);
    }
    let listed = server.json(&["ls", "-r", "--versions", "fb://docs/"]);
    let distinct: BTreeSet<_> = listed
        .iter()
        .map(|version| (version["key"].to_string(), version["version"].to_string()))
        .collect();
    assert_eq!((listed.len(), distinct.len()), (1260, 1260));
    let current = listed.iter().filter(|version| version["current"] == true);
    assert_eq!(current.count(), 420);
}

#[test]
fn what_is_kept_with_an_object_is_shown_by_every_door() {
    for flags in [&[][..], &["--no-s3"]] {
        let place = Place::new();
        let server = place.serve(flags);
        let file = place.path("file");
        fs::write(&file, "x").unwrap();
        let file = file.to_str().unwrap();
        server.ok(&["cp", "--make-namespace", file, "fb://data/plain"]);
        server.ok(&[
            "cp",
            "--content-type=text/plain",
            "--cache-control=max-age=60",
            "--metadata=who=me",
            "--tag=a=b",
            "--tag=c=d e",
            file,
            "fb://data/described",
        ]);
        let stat = &server.json(&["stat", "fb://data/described"])[0];
        assert_eq!(stat["content_type"], "text/plain");
        assert_eq!(stat["cache_control"], "max-age=60");
        assert_eq!(stat["metadata"], json!({"who": "me"}));
        assert_eq!(stat["tags"], json!({"a": "b", "c": "d e"}));
        let text = server.ok(&["stat", "fb://data/described"]);
        for line in [
            "cache      max-age=60",
            "tag        a=b",
            "tag        c=d e",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let plain = &server.json(&["stat", "fb://data/plain"])[0];
        assert_eq!(
            (&plain["cache_control"], &plain["tags"]),
            (&Value::Null, &json!({}))
        );

        // One form of an instant, whoever tells it.
        let listed = &server.json(&["ls"])[0]["created"];
        let shown = &server.json(&["stat", "fb://data"])[0]["created"];
        assert!(listed.is_u64(), "{listed}");
        assert_eq!(listed, shown);
    }
}

/// By whichever command, door and form.
#[test]
fn a_version_is_written_in_one_way() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let body = bytes(3, 300_000);
    let put = ["cp", "-", "fb://docs/a"];
    server.run_on(&put, &body).expect(0);
    let listed = &server.json(&["ls", "--versions", "fb://docs/a"])[0];
    let id = listed["version"].as_str().unwrap();
    assert_eq!(server.json(&["stat", "fb://docs/a"])[0]["version"], id);
    // Digits alone are no number in ten's.
    for wrong in ["12", "yesterday", &id[1..]] {
        let recall = ["admin", "tier", "recall", "fb://docs/a", "--version", wrong];
        let ran = server.run(&recall).expect(2);
        let words = ["32 hexadecimal digits", "forebay ls --versions"];
        assert!(words.iter().all(|word| ran.err.contains(word)), "{ran:?}");
    }
    assert_eq!(server.terminate(), Some(0));

    let path = place.data().join("data");
    let mut data = fs::read(&path).unwrap();
    let mut windows = data.windows(64);
    let at = windows.position(|window| *window == body[200_000..200_064]);
    data[at.unwrap()] ^= 4;
    fs::write(&path, &data).unwrap();
    let server = place.serve(&["--no-s3"]);
    assert_eq!(server.json(&["stat", "fb://docs/a"])[0]["version"], id);
    let shown = server.ok(&["stat", "fb://docs/a"]);
    assert!(shown.contains(&format!("version    {id}")), "{shown}");
    let scrub = server.run(&["admin", "scrub"]).expect(1).out;
    let shown = format!("fb://docs/a (version {id}): ");
    assert!(scrub.contains(&shown), "{scrub}");
    let scrub = server.run(&["admin", "scrub", "--json"]).expect(1).out;
    let report: Value = serde_json::from_str(&scrub).unwrap();
    assert_eq!(report["damaged"], 1, "{report}");
    assert_eq!(report["findings"][0]["version"], id, "{report}");
}
