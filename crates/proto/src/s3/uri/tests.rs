//! Addresses, names, queries, ranges and conditions, good and hostile.

use proptest::prelude::*;

use super::*;

fn object(bucket: &str, key: &str) -> Resource {
    Resource::Object {
        bucket: bucket.into(),
        key: key.into(),
    }
}

#[test]
fn targets_in_both_forms() {
    let target = |host, path, query| Ok(Target { host, path, query });
    assert_eq!(parse_target("/b/k?a=b?c"), target(None, "/b/k", "a=b?c"));
    assert_eq!(
        parse_target("http://h:9000/b/k"),
        target(Some("h:9000"), "/b/k", "")
    );
    assert_eq!(
        parse_target("HTTP://h?list-type=2"),
        target(Some("h"), "/", "list-type=2")
    );
    for wrong in [
        "",
        "b/k",
        "*",
        "ftp://h/",
        "http:///k",
        "/a b",
        "/a\r\n",
        "http://u@h/",
    ] {
        assert!(parse_target(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn path_style_and_virtual_host_style() {
    let bases = ["s3.example.org", "localhost"];
    let parse = |path, host| parse_resource(path, Some(host), &bases);
    assert_eq!(parse("/", "localhost:9000"), Ok(Resource::Service));
    assert_eq!(
        parse("/bucket", "localhost"),
        Ok(Resource::Bucket("bucket".into()))
    );
    assert_eq!(
        parse("/bucket/", "127.0.0.1:9000"),
        Ok(Resource::Bucket("bucket".into()))
    );
    assert_eq!(
        parse("/bucket//a/../b/", "[::1]:9000"),
        Ok(object("bucket", "/a/../b/"))
    );
    assert_eq!(
        parse("/a%20b+c", "My.Bucket.S3.example.org:80"),
        Ok(object("my.bucket", "a b+c"))
    );
    assert_eq!(parse("/", "b.localhost"), Ok(Resource::Bucket("b".into())));
    assert_eq!(parse("/b", ".localhost"), Ok(Resource::Bucket("b".into())));
    assert_eq!(
        parse("/b", "notlocalhost"),
        Ok(Resource::Bucket("b".into()))
    );
    // A base may lie under another one.
    for bases in [["s3.localhost", "localhost"], ["localhost", "s3.localhost"]] {
        let parse = |host| parse_resource("/", Some(host), &bases);
        assert_eq!(parse("S3.localhost:9000"), Ok(Resource::Service));
        assert_eq!(parse("b.s3.localhost"), Ok(Resource::Bucket("b".into())));
        assert_eq!(parse("b.localhost"), Ok(Resource::Bucket("b".into())));
    }
    for (path, code) in [
        ("//key", ErrorCode::InvalidBucketName),
        ("/b/%00", ErrorCode::InvalidURI),
        ("/b/%ff", ErrorCode::InvalidURI),
        ("/b/%f", ErrorCode::InvalidURI),
        ("/b/%", ErrorCode::InvalidURI),
        ("b/k", ErrorCode::InvalidURI),
    ] {
        assert_eq!(
            parse(path, "h").map_err(|error| error.code),
            Err(code),
            "{path}"
        );
    }
    let [longest, longer] = [1024, 1025].map(|length| format!("/b/{}", "k".repeat(length)));
    assert!(parse(&longest, "h").is_ok());
    assert_eq!(
        parse(&longer, "h").map_err(|e| e.code),
        Err(ErrorCode::KeyTooLongError)
    );
    let bucket = format!("/{}/k", "b".repeat(300));
    assert!(parse(&bucket, "h").is_err());
}

#[test]
fn bucket_names() {
    for good in ["abc", "a.b-c", "0-9", &"a".repeat(63)] {
        assert!(check_bucket_name(good).is_ok(), "{good}");
    }
    for wrong in [
        "",
        "ab",
        "Abc",
        "a_b",
        "-ab",
        "ab-",
        ".ab",
        "ab.",
        "a..b",
        "192.168.1.1",
        "xn--abc",
        "abc-s3alias",
        "abc--ol-s3",
        "a b",
        "caf\u{e9}",
        &"a".repeat(64),
    ] {
        assert!(check_bucket_name(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn queries() {
    let query =
        Query::parse("uploads&prefix=a+b%2Bc&prefix=no&&max-keys=5&bad=x&empty=").expect("good");
    assert!(query.has("uploads") && !query.has("upload"));
    assert_eq!(query.get("prefix"), Some("a b+c"));
    assert_eq!(query.get("empty"), Some(""));
    assert_eq!(query.get_nonempty("empty"), None);
    assert_eq!(query.number::<u32>("max-keys"), Ok(Some(5)));
    assert_eq!(query.number::<u32>("absent"), Ok(None));
    assert!(query.number::<u32>("bad").is_err());
    for wrong in ["a=%", "a=%ff", "%zz", &"a&".repeat(65)] {
        assert!(Query::parse(wrong).is_err(), "{wrong}");
    }
    assert!(
        Query::parse("n=%2B5")
            .expect("good")
            .number::<u32>("n")
            .is_err()
    );
}

#[test]
fn ranges() {
    use ByteRange::{From, Span, Suffix};
    for (header, expected) in [
        ("bytes=0-9", Some(Span { first: 0, last: 9 })),
        ("Bytes = 5- ", Some(From(5))),
        ("bytes=-3", Some(Suffix(3))),
        (
            "bytes=0-99999999999999999999999",
            Some(Span {
                first: 0,
                last: u64::MAX,
            }),
        ),
        ("bytes=9-0", None),
        ("bytes=0-1,3-4", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("bytes=+1-2", None),
        ("lines=0-9", None),
        ("", None),
    ] {
        assert_eq!(parse_range(header), expected, "{header}");
    }
    let resolve = |range: ByteRange, size| range.resolve(size).map_err(|error| error.code);
    let none = Err(ErrorCode::InvalidRange);
    assert_eq!(
        resolve(
            Span {
                first: 0,
                last: u64::MAX
            },
            10
        ),
        Ok(0..10)
    );
    assert_eq!(resolve(Span { first: 9, last: 9 }, 10), Ok(9..10));
    assert_eq!(
        resolve(
            Span {
                first: 10,
                last: 12
            },
            10
        ),
        none
    );
    assert_eq!(resolve(From(10), 10), none);
    assert_eq!(resolve(From(3), 10), Ok(3..10));
    assert_eq!(resolve(Suffix(3), 10), Ok(7..10));
    assert_eq!(resolve(Suffix(30), 10), Ok(0..10));
    assert_eq!(resolve(Suffix(0), 10), none);
    assert_eq!(resolve(Suffix(1), 0), none);
    assert_eq!(parse_copy_range("bytes=1-2"), Ok(1..3));
    for wrong in [
        "bytes=1-",
        "bytes=-1",
        "bytes=2-1",
        "1-2",
        "bytes=0-99999999999999999999",
    ] {
        assert!(parse_copy_range(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn conditions() {
    assert_eq!(parse_entity_tags(" * "), EntityTags::Any);
    let tags = parse_entity_tags("\"a,b\", W/\"c\" ,d");
    assert!(tags.matches_strongly("a,b") && tags.matches_strongly("d"));
    assert!(!tags.matches_strongly("c") && tags.matches_weakly("c"));
    assert!(!tags.matches_weakly("e"));
    assert_eq!(parse_entity_tags(",, "), EntityTags::List(vec![]));
    assert!(!parse_entity_tags("\"\"").matches_strongly("a"));
}

#[test]
fn copy_sources() {
    let source = parse_copy_source("/b/a%20b/../c?versionId=v%2F1").expect("good");
    assert_eq!((&*source.bucket, &*source.key), ("b", "a b/../c"));
    assert_eq!(source.version_id.as_deref(), Some("v/1"));
    assert_eq!(
        parse_copy_source("b%2Fk").map(|source| source.key),
        Ok("k".into())
    );
    // Otherwise than in a path, a plus is a space.
    assert_eq!(
        parse_copy_source("b%2Fa+b%2Bc").map(|source| source.key),
        Ok("a b+c".into())
    );
    for wrong in ["", "/", "b", "b/", "/b/", "//k", "b/%ff", "b/%00"] {
        assert!(parse_copy_source(wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn encoded_paths_come_back(key in "[^\\x00]{1,60}") {
        let path = encode_path("bucket", Some(&key));
        prop_assert_eq!(parse_resource(&path, None, &[]), Ok(object("bucket", &key)));
    }

    #[test]
    fn ranges_stay_inside(header in "bytes=[0-9]{0,21}-[0-9]{0,21}", size in any::<u64>()) {
        if let Some(Ok(range)) = parse_range(&header).map(|range| range.resolve(size)) {
            prop_assert!(range.start < range.end && range.end <= size);
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,60}") {
        let _ = (parse_target(&text), parse_resource(&text, Some(&text), &["a"]));
        let _ = (parse_range(&text), parse_copy_range(&text), parse_entity_tags(&text).matches_weakly("a"));
        let _ = (Query::parse(&text), parse_copy_source(&text), check_bucket_name(&text));
    }
}
