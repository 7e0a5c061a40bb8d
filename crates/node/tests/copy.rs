//! Copies: every pair of ends, whole trees, cut off and resumed.

mod harness;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;
use std::sync::Arc;

use forebay_client::direct::{Client as Direct, Condition, Options as Links};
use forebay_client::transfer::{self, Options};
use forebay_client::{Attributes, PutOptions};
use harness::{Place, bytes, tree};

#[test]
fn a_file_there_and_back_in_every_way() {
    let place = Place::new();
    let server = place.serve(&[]);
    let body = bytes(1, 1_234_567);
    let file = place.path("some file");
    fs::write(&file, &body).unwrap();
    let file = file.to_str().unwrap();
    server.run(&["cp", file, "fb://none/"]).expect(3);
    server.ok(&["cp", "--make-namespace", file, "fb://data/"]);
    server.ok(&["cp", file, "fb://data/dir/named"]);
    server.ok(&["cp", "fb://data/dir/named", "fb://data/copies/"]);
    for key in ["some file", "dir/named", "copies/named"] {
        let address = format!("fb://data/{key}");
        assert_eq!(server.run(&["cat", &address]).expect(0).bytes, body);
        let target = place.path("back");
        server.ok(&["cp", &address, target.to_str().unwrap()]);
        assert_eq!(fs::read(&target).unwrap(), body);
        fs::remove_file(target).unwrap();
    }
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    server.ok(&[
        "cp",
        "fb://data/dir/named",
        "fb://data/some file",
        folder.to_str().unwrap(),
    ]);
    assert_eq!(
        tree(&folder).into_values().collect::<Vec<_>>(),
        [body.clone(), body.clone()]
    );
    let out = server.run(&["cp", "fb://data/dir/named", "-"]).expect(0);
    assert_eq!(out.bytes, body);
    assert!(out.err.contains("path shm"));
    let range = server
        .run(&["cat", "--range", "1000-1999", "fb://data/dir/named"])
        .expect(0);
    assert_eq!(range.bytes, body[1000..2000]);
    assert_eq!(
        server.json(&["stat", "fb://data/dir/named"])[0]["size"],
        body.len()
    );
    let told = &server.json(&["cp", file, "fb://data/again"])[0];
    assert_eq!(
        (&told["bytes"], &told["path"], &told["verified"]),
        (&body.len().into(), &"shm".into(), &true.into())
    );
    // It is there: compared, not moved.
    let told = &server.json(&["cp", file, "fb://data/again"])[0];
    assert_eq!(told["unchanged"], 1);
    let told = &server.json(&["cp", "--no-resume", file, "fb://data/again"])[0];
    assert_eq!(told["unchanged"], 0);
}

#[test]
fn standard_input_of_any_length() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "pipes"]);
    let part = 5 << 20;
    for len in [0, 1, part - 1, part, part + 1, 3 * part] {
        let body = bytes(len as u64, len);
        let ran = server.run_on(&["cp", "--part-size", "5MiB", "-", "fb://pipes/in"], &body);
        ran.expect(0);
        assert_eq!(
            server.run(&["cat", "fb://pipes/in"]).expect(0).bytes,
            body,
            "{len}"
        );
    }
    server
        .run_on(&["cp", "-", "fb://pipes/dir/"], b"")
        .expect(2);
}

#[test]
fn a_tree_goes_in_and_comes_out_through_a_kill() {
    let place = Place::new();
    let source = place.path("source");
    for index in 0..1000_usize {
        let folder = source.join(format!("d{}/e{}", index % 7, index % 13));
        fs::create_dir_all(&folder).unwrap();
        let len = if index % 100 == 0 { 100_000 } else { index * 3 };
        fs::write(
            folder.join(format!("f {index}+%&.bin")),
            bytes(index as u64, len),
        )
        .unwrap();
    }
    let original = tree(&source);
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "trees"]);
    let told = &server.json(&["cp", source.to_str().unwrap(), "fb://trees/one"])[0];
    assert_eq!(told["copies"], 1000);
    server.kill();

    let server = place.serve(&[]);
    let back = place.path("back");
    server.ok(&["cp", "fb://trees/one/", back.to_str().unwrap()]);
    assert_eq!(tree(&back), original);
    assert_eq!(server.json(&["admin", "scrub"])[0]["damaged"], 0);
    server.ok(&["cp", "fb://trees/one/", "fb://trees/two"]);
    let listed = server.json(&["ls", "-r", "fb://trees/two/"]);
    assert_eq!(listed.len(), 1000);
    assert_eq!(server.json(&["ls", "fb://trees/two/"]).len(), 7);
    server.ok(&["rm", "-r", "fb://trees/one/"]);
    assert_eq!(server.json(&["ls", "-r", "fb://trees"]).len(), 1000);
}

#[test]
fn a_server_killed_under_a_copy_costs_only_a_repetition() {
    let place = Place::new();
    let source = place.path("source");
    fs::create_dir(&source).unwrap();
    for index in 0..400 {
        fs::write(source.join(format!("{index:03}")), bytes(index, 20_000)).unwrap();
    }
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "cut"]);
    let mut copy = harness::forebay()
        .args(["cp", "--parallel", "4"])
        .arg(&source)
        .args(["fb://cut/", "--dir"])
        .arg(place.data())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The engine acknowledges the first object: the copy is under way.
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    while runtime
        .block_on(client.list("cut", "", None, None))
        .unwrap()
        .objects
        .is_empty()
    {}
    server.kill();
    copy.kill().unwrap();
    copy.wait().unwrap();

    let server = place.serve(&[]);
    // What was acknowledged is there and whole; what was not is whole or absent.
    for object in server.json(&["ls", "-r", "fb://cut"]) {
        let key = object["key"].as_str().unwrap();
        let read = server.run(&["cat", &format!("fb://cut/{key}")]).expect(0);
        assert_eq!(read.bytes, fs::read(source.join(key)).unwrap(), "{key}");
    }
    server.ok(&["cp", source.to_str().unwrap(), "fb://cut/"]);
    let back = place.path("back");
    server.ok(&["cp", "fb://cut/", back.to_str().unwrap()]);
    assert_eq!(tree(&back), tree(&source));
}

#[test]
fn parts_that_are_there_are_not_sent_again() {
    const PART: usize = 5 << 20;
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "parts"]);
    let body = bytes(9, 4 * PART + 12_345);
    let file = place.path("large");
    fs::write(&file, &body).unwrap();
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // An earlier attempt: a part arrived, and two more of an older file, one of them with bytes that are still right.
    let upload = runtime.block_on(async {
        let upload = harness::cut_off(&client, &file, ("parts", "large"), PART).await;
        let part = |number: u32, bytes: &[u8]| {
            client.upload_part("parts", "large", &upload, number, bytes.to_vec().into())
        };
        part(3, &vec![7; PART]).await.unwrap();
        part(5, &body[4 * PART..]).await.unwrap();
        upload.clone()
    });
    let copy = [
        "cp",
        "--part-size",
        "5MiB",
        file.to_str().unwrap(),
        "fb://parts/",
    ];
    let told = &server.json(&copy)[0];
    assert_eq!(told["resumed_bytes"], PART + 12_345, "{told}");
    assert_eq!(
        server.run(&["cat", "fb://parts/large"]).expect(0).bytes,
        body
    );
    let left = runtime.block_on(client.uploads("parts", "")).unwrap();
    assert!(left.iter().all(|left| left.id != upload) && left.is_empty());

    // Downloads resume as well: two parts are there, one of them damaged since.
    let back = place.path("back");
    let info = runtime.block_on(client.head("parts", "large")).unwrap();
    let mut partial = vec![0; body.len()];
    partial[..PART].copy_from_slice(&body[..PART]);
    partial[2 * PART..3 * PART].fill(1);
    fs::write(place.path("back.forebay-partial"), &partial).unwrap();
    let line = |index: usize| {
        let crc = forebay_client::Crc64::of(&body[index * PART..(index + 1) * PART]);
        format!("{index} {:016x}\n", crc.value())
    };
    let progress = format!(
        "{} {} {PART}\n{}{}3 ",
        info.etag,
        body.len(),
        line(0),
        line(2)
    );
    fs::write(place.path("back.forebay-progress"), progress).unwrap();
    let told = &server.json(&[
        "cp",
        "--part-size",
        "5MiB",
        "fb://parts/large",
        back.to_str().unwrap(),
    ])[0];
    assert_eq!(told["resumed_bytes"], PART, "{told}");
    assert_eq!(fs::read(&back).unwrap(), body);
    assert!(
        !place.path("back.forebay-partial").exists()
            && !place.path("back.forebay-progress").exists()
    );
}

#[test]
fn uploads_of_others_are_not_gone_on_with() {
    const PART: usize = 5 << 20;
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "others"]);
    let body = bytes(9, 3 * PART);
    let file = place.path("large");
    fs::write(&file, &body).unwrap();
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let to = ("others", "large");
    // Somebody else's, of the same bytes; and one of another file of this host.
    let (theirs, parts) = runtime.block_on(async {
        let none = Attributes::default();
        let upload = client.create_upload(to.0, to.1, &none).await.unwrap();
        let mut parts = Vec::new();
        for (number, part) in (1..).zip(body.chunks(PART)) {
            let sent = client.upload_part(to.0, to.1, &upload, number, part.to_vec().into());
            parts.push(sent.await.unwrap());
        }
        (upload, parts)
    });
    let another = place.path("another");
    fs::write(&another, &body).unwrap();
    let cut = runtime.block_on(harness::cut_off(&client, &another, to, PART));
    let copy = ["cp", "--part-size", "5MiB", file.to_str().unwrap()];
    let told = &server.json(&[&copy[..], &["fb://others/large"]].concat())[0];
    assert_eq!(told["resumed_bytes"], 0, "{told}");
    let left = runtime.block_on(client.uploads("others", "")).unwrap();
    let mut left: Vec<_> = left.into_iter().map(|upload| upload.id).collect();
    left.sort();
    let mut wanted = [theirs.clone(), cut];
    wanted.sort();
    assert_eq!(left, wanted);
    // What makes an upload one's own is not seen in what it becomes.
    let info = runtime.block_on(client.head(to.0, to.1)).unwrap();
    assert_eq!((info.size, info.metadata), (body.len() as u64, Vec::new()));
    let done = client.complete_upload(to.0, to.1, &theirs, &parts, None, Condition::None);
    runtime.block_on(done).unwrap();
    assert!(server.run(&["cat", "fb://others/large"]).expect(0).bytes == body);
}

#[test]
fn an_upload_that_ends_under_a_copy_is_begun_anew() {
    const PART: usize = 5 << 20;
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "ends"]);
    let body = bytes(9, 3 * PART);
    let file = place.path("large");
    fs::write(&file, &body).unwrap();
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // One that was cut off, and one that this copy has begun itself.
    for key in ["gone-on-with", "begun"] {
        if key == "gone-on-with" {
            runtime.block_on(harness::cut_off(&client, &file, ("ends", key), PART));
        }
        // Another copy of the same file gives it up as soon as this one has a part in it.
        let (ending, once) = (client.clone(), std::sync::Once::new());
        let end = async move || {
            let uploads = ending.uploads("ends", key).await.unwrap();
            assert_eq!(uploads.len(), 1);
            let ended = ending.abort_upload("ends", key, &uploads[0].id);
            ended.await.unwrap();
        };
        let end = move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(end());
        };
        let options = Options {
            part_bytes: Some(PART as u64),
            parallel: 1,
            progress: Arc::new(move |_| {
                once.call_once(|| {
                    std::thread::scope(|scope| scope.spawn(&end).join().unwrap());
                });
            }),
            ..Options::default()
        };
        let put = PutOptions::default();
        let sent = transfer::upload_file(&client, "ends", key, &file, &put, &options);
        let moved = runtime.block_on(sent).unwrap();
        assert_eq!((moved.bytes, moved.resumed), (body.len() as u64, 0));
        let stored = server.run(&["cat", &format!("fb://ends/{key}")]);
        assert!(stored.expect(0).bytes == body);
        let left = runtime.block_on(client.uploads("ends", "")).unwrap();
        assert_eq!(left, []);
    }
}

#[test]
fn patterns_choose() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "globs"]);
    let source = place.path("source");
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    for name in [
        "a1.bin",
        "a2.bin",
        "b1.bin",
        "a1.txt",
        "sub/a3.bin",
        "sub/deep/a4.bin",
    ] {
        fs::write(source.join(name), name).unwrap();
    }
    let from = |pattern: &str| source.join(pattern).to_str().unwrap().to_owned();
    let keys = |prefix: &str| -> Vec<String> {
        let listed = server.json(&["ls", "-r", &format!("fb://globs/{prefix}")]);
        listed
            .iter()
            .map(|object| object["key"].as_str().unwrap().to_owned())
            .collect()
    };
    // What is not meant is not counted, nor looked into.
    symlink("nowhere", source.join("dead")).unwrap();
    let closed = source.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    let told = &server.json(&["cp", &from("a?.bin"), "fb://globs/one/"])[0];
    assert_eq!((&told["copies"], &told["skipped"]), (&2.into(), &0.into()));
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(keys("one/"), ["one/a1.bin", "one/a2.bin"]);
    server.ok(&["cp", &from("**/a[1-3].bin"), "fb://globs/two"]);
    assert_eq!(keys("two/"), ["two/sub/a3.bin"]);
    for none in ["*.none", "none/*"] {
        server.run(&["cp", &from(none), "fb://globs/"]).expect(3);
    }
    server.ok(&["cp", &from("a1.txt"), &from("sub"), "fb://globs/three"]);
    assert_eq!(
        keys("three/"),
        ["three/a1.txt", "three/sub/a3.bin", "three/sub/deep/a4.bin"]
    );

    let out = place.path("out");
    server.ok(&["cp", "fb://globs/three/**a[34].bin", out.to_str().unwrap()]);
    let names: Vec<_> = tree(&out).into_keys().collect();
    assert_eq!(
        names,
        ["sub/a3.bin", "sub/deep/a4.bin"].map(std::path::PathBuf::from)
    );
    assert_eq!(server.json(&["ls", "fb://globs/*/a*.bin"]).len(), 2);
    server.ok(&["rm", "fb://globs/one/*"]);
    server.run(&["ls", "fb://globs/one/"]).expect(3);
    server.run(&["rm", "fb://globs/one/*"]).expect(3);
    server.run(&["rm", "fb://globs"]).expect(2);
    server.ok(&["rm", "-r", "fb://globs"]);
    server.ok(&["admin", "namespace", "rm", "globs"]);
}

#[test]
fn keys_never_write_outside_the_target() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "evil"]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for key in [
            "t/../../escaped",
            "t//etc/x",
            "t/fine",
            "t/folder/",
            "t/./dot",
        ] {
            let body = if key.ends_with('/') { "" } else { "x" };
            client
                .put("evil", key, body.into(), &PutOptions::default())
                .await
                .unwrap();
        }
    });
    let out = place.path("deep/out");
    fs::create_dir_all(&out).unwrap();
    let ran = server
        .run(&["cp", "fb://evil/t/", out.to_str().unwrap()])
        .expect(1);
    assert!(ran.err.contains("cannot be a file"), "{}", ran.err);
    assert_eq!(
        tree(&out).into_keys().collect::<Vec<_>>(),
        ["fine"].map(std::path::PathBuf::from)
    );
    assert!(out.join("folder").is_dir());
    assert!(!place.path("escaped").exists() && !place.path("deep/escaped").exists());
}

#[test]
fn failures_have_their_codes() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "codes"]);
    for (arguments, code) in [
        (&["cat", "fb://codes/none"][..], 3),
        (&["stat", "fb://codes/none"], 3),
        (&["rm", "fb://codes/none"], 3),
        (&["cp", "fb://codes/none", "x"], 3),
        (&["cp", "/no/such/file", "fb://codes/"], 3),
        (&["ls", "fb://nowhere"], 3),
        (&["stat", "fb://nowhere"], 3),
        (&["cp", "a", "b"], 2),
        (&["cat", "--range", "5-1", "fb://codes/none"], 2),
    ] {
        let ran = server.run(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?} {ran:?}");
    }
    let nobody = harness::forebay()
        .args(["ls", "--endpoint", "http://127.0.0.1:1"])
        .current_dir(place.path(""))
        .output()
        .map(harness::Ran::new)
        .unwrap();
    assert!(nobody.expect(4).err.contains("no credentials"));
    // A reader that goes away ends the command.
    server
        .run_on(&["cp", "-", "fb://codes/big"], &bytes(5, 3_000_000))
        .expect(0);
    let mut cat = harness::forebay()
        .args(["cat", "fb://codes/big", "--dir"])
        .arg(place.data())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(cat.stdout.take());
    let mut err = String::new();
    BufReader::new(cat.stderr.take().unwrap())
        .read_line(&mut err)
        .unwrap();
    assert_eq!((cat.wait().unwrap().code(), err.as_str()), (Some(1), ""));
}

#[test]
fn what_is_missing_is_named_and_keeps_nothing_else_back() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "there"]);
    for key in ["a", "b", "c", "in/d"] {
        let object = format!("fb://there/{key}");
        server.run_on(&["cp", "-", &object], b"value").expect(0);
    }
    for command in ["stat", "rm", "cat", "cp"] {
        for (object, says) in [
            ("fb://there/none", "fb://there/none does not exist"),
            ("fb://nowhere/none", "there is no namespace \"nowhere\""),
        ] {
            let target = (command == "cp").then_some("-");
            let arguments: Vec<&str> = [command, object].into_iter().chain(target).collect();
            let ran = server.run(&arguments).expect(3);
            assert_eq!(ran.err, format!("forebay: {says}\n"), "{arguments:?}");
        }
    }
    let ran = server.run(&["ls", "fb://nowhere"]).expect(3);
    assert_eq!(ran.err, "forebay: there is no namespace \"nowhere\"\n");
    let ran = server.run(&["rm", "fb://there/in"]).expect(3);
    assert!(ran.err.contains("-r removes"), "{}", ran.err);

    let ran = server.run(&[
        "rm",
        "fb://there/a",
        "fb://there/none",
        "fb://there/c",
        "--json",
    ]);
    let ran = ran.expect(3);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&told["removed"], &told["failed"]), (&2.into(), &1.into()));
    assert!(
        ran.err.contains("fb://there/none does not exist"),
        "{}",
        ran.err
    );
    // Nothing goes where a namespace would.
    server.run(&["rm", "fb://there/b", "fb://there"]).expect(2);
    assert_eq!(server.json(&["ls", "-r", "fb://there"]).len(), 2);

    let folder = format!("{}/", place.path("new").display());
    server.ok(&["cp", "fb://there/b", &folder]);
    assert_eq!(fs::read(place.path("new/b")).unwrap(), b"value");
    let file = place.path("new/b");
    let ran = server.run(&["cp", "fb://there/**", file.to_str().unwrap()]);
    assert!(ran.expect(2).err.contains("is a file"));
    for (arguments, code) in [
        (&["cat", "fb://there"][..], 2),
        (&["cp", "s3://there/b", "-"], 2),
        (
            &[
                "cp",
                "--make-namespace",
                file.to_str().unwrap(),
                "fb://My_NS/x",
            ],
            2,
        ),
        (&["ls", "--dir", "/no/such/directory"], 3),
    ] {
        let mut command = harness::forebay();
        command.args(arguments);
        if !arguments.contains(&"--dir") {
            command.arg("--dir").arg(place.data());
        }
        let ran = harness::Ran::new(command.output().unwrap());
        assert_eq!(ran.code, Some(code), "{arguments:?} {ran:?}");
    }
}

#[test]
fn what_cannot_be_copied_keeps_no_other_source_back() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "sources"]);
    let [a, b, missing, folder] = ["a", "b", "missing", "folder"].map(|name| place.path(name));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    for file in [&a, &b] {
        fs::write(file, "bytes").unwrap();
    }
    let counts = |ran: &harness::Ran| {
        let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        ["copies", "failed"].map(|name| told[name].as_u64().unwrap())
    };
    let sent = [
        "cp",
        "--json",
        &text(&a),
        &text(&missing),
        &text(&b),
        "fb://sources/",
    ];
    let ran = server.run(&sent).expect(3);
    assert_eq!(counts(&ran), [2, 1]);
    assert!(ran.err.contains("missing"), "{ran:?}");
    let into = text(&place.path("out"));
    let got = [
        "cp",
        "--json",
        "fb://sources/a",
        "fb://sources/none",
        "fb://sources/b",
        &into,
    ];
    let ran = server.run(&got).expect(3);
    assert_eq!(counts(&ran), [2, 1]);
    assert_eq!(fs::read(place.path("out/b")).unwrap(), b"bytes");

    // A name that no key can be.
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a"), "bytes").unwrap();
    let odd = OsStr::from_bytes(b"odd-\xff");
    fs::create_dir(folder.join(odd)).unwrap();
    fs::write(folder.join(odd).join("b"), "bytes").unwrap();
    let ran = server.run(&["cp", "--json", &text(&folder), "fb://sources/folder"]);
    let ran = ran.expect(1);
    assert_eq!(counts(&ran), [1, 1]);
    assert!(ran.err.contains("is not UTF-8"), "{ran:?}");
    // Where a pattern does not mean it, it is in nobody's way.
    server.ok(&[
        "cp",
        &format!("{}/a*", text(&folder)),
        "fb://sources/matches",
    ]);
}

#[test]
fn a_copy_that_reached_a_bound_counts_what_it_made() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "few",
        "--quota-objects",
        "3",
    ]);
    let source = place.path("source");
    fs::create_dir(&source).unwrap();
    for index in 0..40 {
        fs::write(source.join(index.to_string()), b"value").unwrap();
    }
    let copy = [
        "cp",
        "--parallel",
        "4",
        "--json",
        source.to_str().unwrap(),
        "fb://few/",
    ];
    let ran = server.run(&copy).expect(5);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let count = |name: &str| told[name].as_u64().unwrap();
    assert_eq!(
        count("copies"),
        server.json(&["ls", "-r", "fb://few"]).len() as u64
    );
    assert!(count("failed") > 0 && count("not_tried") > 0, "{told}");
    assert_eq!(count("copies") + count("failed") + count("not_tried"), 40);
    // All of them, and nothing that was compared.
    server.ok(&["admin", "quota", "namespace", "few", "--objects", "1"]);
    let ran = server
        .run(&["cp", "--json", source.to_str().unwrap(), "fb://few/more"])
        .expect(5);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&told["copies"], &told["verified"]),
        (&0.into(), &false.into())
    );
}

#[test]
fn a_large_copy_inside_the_server_keeps_what_is_kept_with_the_value() {
    let place = Place::new();
    let server = place.serve(&[]);
    let file = place.path("large");
    let size = (257 << 20) + 1;
    fs::File::create(&file).unwrap().set_len(size).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let put = PutOptions {
        attributes: Attributes {
            content_type: "text/x-forebay".to_owned(),
            cache_control: "no-cache".to_owned(),
            content_language: "de".to_owned(),
            metadata: vec![pair("origin", "the lab")],
            tags: vec![pair("stage", "raw/wild +1")],
            ..Attributes::default()
        },
        ..PutOptions::default()
    };
    let options = Options::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = server.client();
    server.ok(&["cp", "--make-namespace", "Cargo.toml", "fb://data/"]);
    let sent = transfer::upload_file(&client, "data", "large", &file, &put, &options);
    runtime.block_on(sent).unwrap();
    let told = &server.json(&["cp", "fb://data/large", "fb://data/copy"])[0];
    assert_eq!(
        (&told["bytes"], &told["verified"]),
        (&size.into(), &true.into()),
        "{told}"
    );
    runtime.block_on(async {
        let endpoint = server.rpc().parse().unwrap();
        let (credentials, links) = (server.credentials(), Links::default());
        let direct = Direct::connect(&endpoint, &credentials, links).await;
        let direct = direct.unwrap();
        let (copy, kept) = direct.describe("data", "copy").await.unwrap();
        assert_eq!(kept, put.attributes);
        let source = client.head("data", "large").await.unwrap();
        assert_eq!((copy.size, copy.crc64nvme), (size, source.crc64nvme));
        let uploads = client.uploads("data", "").await.unwrap();
        assert_eq!(uploads, []);
    });
}
