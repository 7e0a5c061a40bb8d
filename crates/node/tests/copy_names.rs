//! Keys that look like patterns, keys of folders, and no key at all.

mod harness;

use std::fs;
use std::path::Path;

use forebay_client::{Error, PutOptions};
use harness::{Place, Server, tree};

/// A server with a namespace whose keys these are, each with its own name for a value, or nothing when it is a folder's.
fn with_keys(keys: &[&str]) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "names"]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for key in keys {
            let body = match key.ends_with('/') {
                true => "",
                false => *key,
            };
            let body = body.to_owned().into();
            let put = PutOptions::default();
            client.put("names", key, body, &put).await.unwrap();
        }
    });
    (place, server)
}

fn keys(server: &Server, address: &str) -> Vec<String> {
    let listed = server.json(&["ls", "-r", address]);
    let key = |object: &serde_json::Value| object["key"].as_str().unwrap().to_owned();
    listed.iter().map(key).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_key_is_named_before_a_pattern() {
    let (place, server) = with_keys(&[
        "g/a[1].txt",
        "g/a1.txt",
        "g/b*",
        "g/bc",
        r"g/c\*",
        "g/c*",
        "g/cd",
        "g[1]/x",
        "g1/x",
    ]);
    let target = place.path("file");
    let read = || fs::read_to_string(&target).unwrap();
    server.ok(&["cp", "fb://names/g/a[1].txt", text(&target)]);
    assert_eq!(read(), "g/a[1].txt");
    server.ok(&["cp", "fb://names/g/a[1].txt", "fb://names/copy"]);
    let copied = server.run(&["cat", "fb://names/copy"]).expect(0);
    assert_eq!(copied.bytes, b"g/a[1].txt");
    // Escaped, it is a pattern that one key matches.
    let out = place.path("out");
    server.ok(&["cp", r"fb://names/g/a\[1].txt", text(&out)]);
    server.ok(&["cp", "fb://names/g[1]/", text(&out)]);
    assert_eq!(
        tree(&out).into_keys().collect::<Vec<_>>(),
        ["a[1].txt", "x"].map(std::path::PathBuf::from)
    );
    assert_eq!(fs::read(out.join("x")).unwrap(), b"g[1]/x");
    server.run(&["cp", "fb://names/g/z[1]", "-"]).expect(3);

    let left = || keys(&server, "fb://names/g");
    server.ok(&["rm", "fb://names/g/a[1].txt"]);
    assert!(left().contains(&"g/a1.txt".to_owned()));
    assert!(!left().contains(&"g/a[1].txt".to_owned()));
    // No key any more: a pattern.
    server.ok(&["rm", "fb://names/g/a[1].txt"]);
    assert!(!left().contains(&"g/a1.txt".to_owned()));
    server.ok(&["rm", "fb://names/g/b*"]);
    assert!(left().contains(&"g/bc".to_owned()) && !left().contains(&"g/b*".to_owned()));
    server.ok(&["rm", r"fb://names/g/c\*"]);
    assert_eq!(
        left(),
        ["g/bc", "g/c*", "g/cd", "g1/x", "g[1]/x"].map(str::to_owned)
    );
    server.ok(&["rm", r"fb://names/g/c\*"]);
    assert_eq!(keys(&server, "fb://names/g[1]/"), ["g[1]/x"]);
    server.ok(&["rm", "-r", "fb://names/g[1]/"]);
    assert_eq!(left(), ["g/bc", "g/cd", "g1/x"].map(str::to_owned));
    // The same where keys are asked for by gRPC.
    let rpc = server.rpc();
    let (rm, to) = (["rm"], ["--endpoint", &rpc]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = PutOptions::default();
    let stored = client.put("names", "g/[c]d", "x".into(), &put);
    runtime.block_on(stored).unwrap();
    server.ok(&[&rm[..], &["fb://names/g/[c]d"], &to].concat());
    assert_eq!(left(), ["g/bc", "g/cd", "g1/x"].map(str::to_owned));
    server.ok(&[&rm[..], &["fb://names/g/[c]d"], &to].concat());
    assert_eq!(left(), ["g/bc", "g1/x"].map(str::to_owned));
}

#[test]
fn files_are_named_before_patterns_and_escaped_in_them() {
    let (place, server) = with_keys(&[]);
    let source = place.path("so[u]rce");
    fs::create_dir(&source).unwrap();
    for name in ["a[1]", "a1", "a[2]", "a2"] {
        fs::write(source.join(name), name).unwrap();
    }
    let from = |name: &str| format!("{}/{name}", text(&source));
    server.ok(&["cp", &from("a[1]"), "fb://names/one/"]);
    assert_eq!(keys(&server, "fb://names/one/"), ["one/a[1]"]);
    let escaped = from(r"a\[?]").replace("so[", r"so\[");
    server.ok(&["cp", &escaped, "fb://names/two/"]);
    assert_eq!(keys(&server, "fb://names/two/"), ["two/a[1]", "two/a[2]"]);
}

#[test]
fn a_folders_own_key_is_no_file() {
    let (place, server) = with_keys(&["v1/", "v1/a", "v1/sub/", "v1/sub/b"]);
    for target in ["fb://names/v2", "fb://names/v3/"] {
        server.ok(&["cp", "fb://names/v1/", target]);
    }
    for prefix in ["v2", "v3"] {
        let wanted = ["/", "/a", "/sub/", "/sub/b"].map(|key| format!("{prefix}{key}"));
        assert_eq!(keys(&server, &format!("fb://names/{prefix}/")), wanted);
    }
    // A namespace has no key of its own.
    server.ok(&["admin", "namespace", "create", "others"]);
    server.ok(&["cp", "fb://names/v1/", "fb://others"]);
    assert_eq!(keys(&server, "fb://others"), ["a", "sub/", "sub/b"]);
    server.ok(&["cp", "fb://names/v1/*", "fb://others/all"]);
    assert_eq!(keys(&server, "fb://others/all"), ["all/", "all/a"]);
    for from in ["fb://names/v1/", "fb://names/v1/**"] {
        let out = place.path("out");
        server.ok(&["cp", from, text(&out)]);
        assert_eq!(
            tree(&out).into_keys().collect::<Vec<_>>(),
            ["a", "sub/b"].map(std::path::PathBuf::from)
        );
        fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn an_object_without_a_key_is_refused_here() {
    let (_place, server) = with_keys(&["a"]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let put = PutOptions::default();
        // The namespace is there, or it is not: nobody is asked.
        for namespace in ["names", "none"] {
            let refused = [
                client.put(namespace, "", "x".into(), &put).await,
                client.copy(("names", "a"), (namespace, ""), 1).await,
                client.create_upload(namespace, "", &put.attributes).await,
            ];
            for refused in refused {
                assert!(matches!(&refused, Err(Error::Local { .. })), "{refused:?}");
            }
        }
        assert_eq!(client.namespaces().await.unwrap().len(), 1);
    });
}

#[test]
fn a_name_that_nothing_can_have_says_why() {
    let (place, server) = with_keys(&["a"]);
    let file = place.path("file");
    fs::write(&file, "x").unwrap();
    let (longest, long) = ("k".repeat(1024), "k".repeat(1025));
    server.ok(&["cp", text(&file), &format!("fb://names/{longest}")]);
    let long = format!("fb://names/{long}");
    for command in [&["cp", text(&file)][..], &["cat"], &["stat"], &["rm"]] {
        let ran = server.run(&[command, &[&long]].concat()).expect(2);
        let words = "the key is too long: it has 1025 bytes, and may have 1024";
        assert!(ran.err.contains(words), "{ran:?}");
    }
    for (metadata, header) in [
        ("a b=1", "\"x-amz-meta-a b\""),
        ("a=1\n2", "\"x-amz-meta-a\""),
    ] {
        let line = ["cp", "--metadata", metadata, text(&file), "fb://names/b"];
        let ran = server.run(&line).expect(2);
        assert!(ran.err.contains(header), "{ran:?}");
    }
    for (name, rule) in [
        ("a..b", "no two dots together"),
        ("1.2.3.4", "not an IPv4 address"),
    ] {
        let ran = server
            .run(&["admin", "namespace", "create", name])
            .expect(2);
        assert!(ran.err.contains(rule), "{ran:?}");
    }
}
