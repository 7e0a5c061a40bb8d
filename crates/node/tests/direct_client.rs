//! The client library against the real server, over every path.

mod harness;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_client::direct::{
    Choice, Client, Condition, Entry, Get, Listing, Options, Path, Put, Region, Request, Span,
    Transfer, blocking,
};
use forebay_client::{Attributes, Crc64, Endpoint, Error, Kind, PutOptions};
use harness::skipping::skip;
use harness::{Place, Server, bytes};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const NAMESPACE: &str = "values";

fn endpoint(server: &Server) -> Endpoint {
    format!("http://{}", server.doors["rpc"]).parse().unwrap()
}

async fn connect(server: &Server, path: Path) -> Client {
    connect_with(server, path, |_| {}).await
}

async fn connect_with(server: &Server, path: Path, set: impl FnOnce(&mut Options)) -> Client {
    let mut options = Options {
        path: Choice::Only(path),
        ..Options::default()
    };
    set(&mut options);
    let client = Client::connect(&endpoint(server), &server.credentials(), options)
        .await
        .unwrap();
    assert_eq!(client.path(), path);
    client.create_namespace(NAMESPACE, 0).await.unwrap();
    client
}

fn filled(contents: &[u8]) -> Region {
    let region = Region::alloc(contents.len().max(1)).unwrap();
    assert!(region.write(0, contents));
    region
}

fn seen(region: &Region, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut seen = vec![0; range.len()];
    assert!(region.read(range.start, &mut seen));
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn values_go_there_and_come_back_whatever_the_path() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        for size in [0, 1, 4095, 4096, 8192, 8193, 1 << 20, 3_000_001] {
            let contents = bytes(size as u64 + 1, size);
            let key = format!("{path}/{size}");
            let source = filled(&contents);
            let put = client
                .put_from(NAMESPACE, &key, source.window(0..size))
                .await
                .unwrap();
            let crc = Crc64::of(&contents).value();
            assert_eq!(
                (put.bytes, put.path, put.checksum),
                (size as u64, path, Some(crc))
            );
            assert_eq!(put.fallback, None);
            // The same bytes by S3, and by every other path.
            for other in Path::ALL {
                let reader = connect(&server, other).await;
                let target = filled(&bytes(9, size + 20));
                let got = reader
                    .get_into(NAMESPACE, &key, .., (&target, 10))
                    .await
                    .unwrap();
                assert_eq!(
                    (got.bytes, got.size, got.path),
                    (size as u64, size as u64, other)
                );
                assert_eq!((got.checksum, &got.etag), (Some(crc), &put.etag));
                assert_eq!(seen(&target, 10..10 + size), contents);
                // Nothing around it was touched.
                let untouched = bytes(9, size + 20);
                assert_eq!(seen(&target, 0..10), untouched[..10]);
                assert_eq!(seen(&target, 10 + size..20 + size), untouched[10 + size..]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_cut_and_checked() {
    let place = Place::new();
    let server = place.serve(&[]);
    let contents = bytes(7, 300_000);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let source = filled(&contents);
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        let target = Region::alloc(400_000).unwrap();
        for (range, want) in [
            (0..1, 0..1),
            (4000..9000, 4000..9000),
            (299_999..300_000, 299_999..300_000),
            (299_000..350_000, 299_000..300_000),
        ] {
            let got = client
                .get_into(NAMESPACE, "value", range.clone(), &target)
                .await
                .unwrap();
            let expected = &contents[want.start as usize..want.end as usize];
            assert_eq!(
                (got.bytes, got.size),
                (expected.len() as u64, 300_000),
                "{path} {range:?}"
            );
            assert_eq!(seen(&target, 0..expected.len()), expected);
            if path != Path::Http {
                assert_eq!(got.checksum, Some(Crc64::of(expected).value()));
            }
        }
        let got = client
            .get_into(NAMESPACE, "value", 299_990.., &target)
            .await
            .unwrap();
        assert_eq!(
            (got.bytes, seen(&target, 0..10)),
            (10, contents[299_990..].to_vec())
        );
        let outside = client
            .get_into(NAMESPACE, "value", 300_000.., &target)
            .await;
        assert!(matches!(outside, Err(Error::Refused(refusal)) if refusal.status == 416));
        // A window that is too short is told, not cut.
        let short = client
            .get_into(NAMESPACE, "value", .., target.window(0..299_999))
            .await;
        assert_eq!(short.unwrap_err().kind(), Kind::Failed);
        let missing = client.get_into(NAMESPACE, "none", .., &target).await;
        assert_eq!(missing.unwrap_err().kind(), Kind::NotFound);
        let nowhere = client
            .get_into("other-namespace", "value", .., &target)
            .await;
        assert_eq!(nowhere.unwrap_err().kind(), Kind::NotFound);
        let window = target.window(399_999..400_001);
        let wrong = client.get_into(NAMESPACE, "value", 0..2, window).await;
        assert!(matches!(wrong, Err(Error::Local { .. })));
    }
}

/// 2^32 bytes is one more than some fabrics' registrations take.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_four_gibibytes_is_a_window() {
    let place = Place::new();
    let server = place.serve(&[]);
    let contents = bytes(8, 1 << 20);
    let source = filled(&contents);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        let target = Region::alloc(1 << 32).unwrap();
        let got = client.get_into(NAMESPACE, "value", .., &target).await;
        let got = got.unwrap();
        assert_eq!((got.bytes, got.path), (1 << 20, path));
        assert!(seen(&target, 0..1 << 20) == contents);
        let end = (1 << 32) - contents.len();
        let window = target.window(end..1 << 32);
        client
            .get_into(NAMESPACE, "value", .., window)
            .await
            .unwrap();
        assert!(seen(&target, end..1 << 32) == contents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_values_in_one_call_complete_in_order() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let size = 5000;
        let count = 300;
        let contents = bytes(3, size * count);
        let source = filled(&contents);
        let keys: Vec<String> = (0..count)
            .map(|index| format!("{path}/many/{index:04}"))
            .collect();
        let puts: Vec<Put<'_>> = keys
            .iter()
            .enumerate()
            .map(|(index, key)| {
                Put::new(
                    key.as_bytes(),
                    source.window(index * size..(index + 1) * size),
                )
            })
            .collect();
        let mut stored = Vec::new();
        let each =
            |index, result: Result<Transfer, Error>| stored.push((index, result.unwrap().bytes));
        client.scatter(NAMESPACE, &puts, each).await.unwrap();
        assert_eq!(
            stored,
            (0..count)
                .map(|index| (index, size as u64))
                .collect::<Vec<_>>()
        );

        let target = Region::alloc(size * count).unwrap();
        let gets: Vec<Get<'_>> = keys
            .iter()
            .enumerate()
            .map(|(index, key)| Get {
                // One is missing, which stops nobody else.
                key: if index == 77 { b"none" } else { key.as_bytes() },
                span: if index == 5 {
                    Span::of(10..20)
                } else {
                    Span::of(..)
                },
                into: target.window(index * size..(index + 1) * size),
            })
            .collect();
        let mut got = Vec::new();
        let each = |index, result: Result<Transfer, Error>| got.push((index, result));
        client.gather(NAMESPACE, &gets, each).await.unwrap();
        assert_eq!(got.len(), count);
        for (expected, (index, result)) in got.into_iter().enumerate() {
            assert_eq!(index, expected);
            let at = index * size;
            match index {
                77 => assert_eq!(result.unwrap_err().kind(), Kind::NotFound),
                5 => {
                    assert_eq!(result.unwrap().bytes, 10);
                    assert_eq!(seen(&target, at..at + 10), contents[at + 10..at + 20]);
                }
                _ => {
                    assert_eq!(result.unwrap().path, path);
                    assert_eq!(seen(&target, at..at + size), contents[at..at + size]);
                }
            }
        }
        let asked: Vec<&str> = keys.iter().map(String::as_str).chain(["none"]).collect();
        let found = client.exist(NAMESPACE, &asked).await.unwrap();
        assert_eq!(found.len(), count + 1);
        assert!(
            found[..count]
                .iter()
                .all(|found| *found == Some(size as u64))
        );
        assert_eq!(found[count], None);
        let prefix = [&asked[..9], &["none"], &asked[9..]].concat();
        assert_eq!(client.longest_prefix(NAMESPACE, &prefix).await.unwrap(), 9);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_element_or_all_of_them_cannot_have_is_told_of_each() {
    let place = Place::new();
    let server = place.serve(&[]);
    let region = filled(&bytes(1, 300));
    let long = [b'x'; 1025];
    for path in Path::ALL {
        let client = connect(&server, path).await;
        client.put_from(NAMESPACE, "key", &region).await.unwrap();
        let put = |at: usize, key| Put::new(key, region.window(at..at + 1));
        let puts: Vec<Put<'_>> = (0..300).map(|at| put(at, b"key".as_slice())).collect();
        let gets = |key: fn(usize) -> bool| -> Vec<Get<'_>> {
            let key = |at| if key(at) { long.as_slice() } else { b"key" };
            (0..300)
                .map(|at| Get {
                    key: key(at),
                    span: Span::of(0..1),
                    into: region.window(at..at + 1),
                })
                .collect()
        };
        // A namespace that is not there is one answer to many.
        let mut kinds = Vec::new();
        let each = |_, done: Result<Transfer, Error>| kinds.push(done.unwrap_err().kind());
        let all = gets(|_| false);
        client.gather("other-namespace", &all, each).await.unwrap();
        let each = |_, done: Result<Transfer, Error>| kinds.push(done.unwrap_err().kind());
        client
            .scatter("other-namespace", &puts, each)
            .await
            .unwrap();
        assert_eq!(kinds, [Kind::NotFound; 600], "{path}");
        // A key that no value can have is nobody else's trouble.
        let mut failed = Vec::new();
        let mut told = 0;
        let each = |index, done: Result<Transfer, Error>| {
            told += 1;
            failed.extend(done.is_err().then_some(index));
        };
        let some = gets(|at| [0, 200, 299].contains(&at));
        client.gather(NAMESPACE, &some, each).await.unwrap();
        assert_eq!((told, failed), (300, vec![0, 200, 299]), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_described_listed_and_deleted() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let source = filled(&bytes(1, 100));
        for key in ["a/1", "a/2", "b", "c"] {
            client.put_from(NAMESPACE, key, &source).await.unwrap();
        }
        let stat = client.stat(NAMESPACE, "a/2").await.unwrap();
        let crc = Crc64::of(&bytes(1, 100)).value();
        assert_eq!((stat.size, stat.crc64nvme), (100, Some(crc)));
        let mut listing = Listing {
            delimiter: b"/".to_vec(),
            limit: 2,
            ..Listing::default()
        };
        let mut keys = Vec::new();
        loop {
            let page = client.list(NAMESPACE, &listing).await.unwrap();
            assert!(page.entries.len() <= 2);
            keys.extend(page.entries.iter().map(|entry| match entry {
                Entry::Value { key, .. } => key.clone(),
                Entry::Prefix(prefix) => prefix.clone(),
            }));
            match page.next {
                Some(next) => listing.page = Some(next),
                None => break,
            }
        }
        assert_eq!(keys, ["a/", "b", "c"]);
        assert!(client.delete(NAMESPACE, "b").await.unwrap());
        assert!(!client.delete(NAMESPACE, "b").await.unwrap());
        assert_eq!(
            client.stat(NAMESPACE, "b").await.unwrap_err().kind(),
            Kind::NotFound
        );
        let put = Put {
            condition: Condition::IfAbsent,
            ..Put::new(b"c", source.window(0..100))
        };
        let refused = client.put(NAMESPACE, &put).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Precondition, "{path}: {refused}");
        let put = Put { key: b"b", ..put };
        client.put(NAMESPACE, &put).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_outlives_its_server() {
    let place = Place::new();
    let mut server = place.serve(&[]);
    let doors = server.doors.clone();
    let contents = bytes(5, 100_000);
    let source = filled(&contents);
    for path in [Path::Shm, Path::Iwarp, Path::Http] {
        let client = connect(&server, path).await;
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        server.kill();
        let mut flags = Vec::new();
        for (door, flag) in [("rpc", "--rpc"), ("direct", "--direct"), ("s3", "--s3")] {
            flags.extend([flag, doors[door].as_str()]);
        }
        server = place.serve(&flags);
        let target = Region::alloc(contents.len()).unwrap();
        let got = client
            .get_into(NAMESPACE, "value", .., &target)
            .await
            .unwrap();
        assert_eq!(got.path, path);
        assert_eq!(seen(&target, 0..contents.len()), contents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_given_up_gives_its_memory_back_and_hurts_nobody() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in [Path::Shm, Path::Iwarp] {
        let client = connect(&server, path).await;
        let contents = bytes(11, 4 << 20);
        let source = filled(&contents);
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        let target = Region::alloc(contents.len()).unwrap();
        for round in 0..40u32 {
            let call = client.get_into(NAMESPACE, "value", .., &target);
            let given = tokio::time::timeout(Duration::from_micros(u64::from(round) * 50), call);
            // It may have been quick enough.
            let _ = given.await;
        }
        // The next call over the same bytes waits for the last one, and what it places stays.
        let got = client.get_into(NAMESPACE, "value", 0..1000, target.window(500..1500));
        assert_eq!(got.await.unwrap().bytes, 1000);
        target.idle().await;
        assert_eq!(seen(&target, 500..1500), contents[..1000]);
        target.release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_call_that_waits_for_memory() {
    let place = Place::new();
    let server = place.serve(&[]);
    let client = connect_with(&server, Path::Shm, |options| {
        options.deadline = Duration::from_millis(300);
    });
    let client = client.await;
    let region = filled(&bytes(1, 8192));
    client.put_from(NAMESPACE, "value", &region).await.unwrap();
    let get = |range| Get {
        key: b"value",
        span: Span::of(..),
        into: region.window(range),
    };
    // The bytes are somebody else's until the request that they are lent to was answered.
    let request = Request {
        method: "GET",
        path: "/values/value",
        query: "",
        range: "",
    };
    let token = client.token(&request, &region).await.unwrap();
    let late = client
        .gather(NAMESPACE, &[get(0..8192)], |_, _| {})
        .await
        .unwrap_err();
    assert!(matches!(late, Error::TimedOut(_)), "{late:?}");
    assert_eq!(late.to_string(), "no answer within 0.3 s");
    token.answered();
    region.idle().await;
    // Two elements of one call that write the same bytes would wait for each other.
    for overlapping in [[0..8192, 0..8192], [4000..8192, 0..4001]] {
        let overlapping = overlapping.map(get);
        let refused = client.gather(NAMESPACE, &overlapping, |_, _| {}).await;
        assert!(matches!(refused, Err(Error::Local { .. })), "{refused:?}");
    }
    let apart = [0..0, 4000..8192, 0..4000].map(|range| Get {
        key: b"none",
        ..get(range)
    });
    client.gather(NAMESPACE, &apart, |_, _| {}).await.unwrap();
    client
        .get_into(NAMESPACE, "value", .., &region)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_link_payloads_go_by_http_and_say_why() {
    let place = Place::new();
    let server = place.serve(&["--no-direct"]);
    let client = Client::connect(
        &endpoint(&server),
        &server.credentials(),
        Options::default(),
    )
    .await
    .unwrap();
    assert_eq!(client.path(), Path::Http);
    client.create_namespace(NAMESPACE, 0).await.unwrap();
    let region = filled(&bytes(2, 5000));
    let put = client.put_from(NAMESPACE, "value", &region).await.unwrap();
    let why = put.fallback.unwrap().to_string();
    assert_eq!(put.path, Path::Http);
    assert_eq!(
        why,
        "shm: the server does not offer it; iwarp: the server does not offer it"
    );
    let options = Options {
        path: Choice::Only(Path::Iwarp),
        ..Options::default()
    };
    let none = Client::connect(&endpoint(&server), &server.credentials(), options).await;
    assert!(matches!(none, Err(Error::Transport { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_denied() {
    let place = Place::new();
    let server = place.serve(&[]);
    let mut credentials = server.credentials();
    credentials.secret_key.push('x');
    let refused = Client::connect(&endpoint(&server), &credentials, Options::default()).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_share_a_client() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in [Path::Shm, Path::Iwarp] {
        let client = connect_with(&server, path, |options| {
            options.links = 2;
            options.in_flight_max = 4;
        });
        let client = client.await;
        let tasks: Vec<_> = (0..16u64)
            .map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    let region = Region::alloc(20_000).unwrap();
                    for turn in 0..20 {
                        let contents = bytes(task * 100 + turn, 10_000);
                        assert!(region.write(0, &contents));
                        let key = format!("{task}");
                        let put = client.put_from(NAMESPACE, &key, region.window(0..10_000));
                        put.await.unwrap();
                        let target = region.window(10_000..20_000);
                        client.get_into(NAMESPACE, &key, .., target).await.unwrap();
                        assert_eq!(seen(&region, 10_000..20_000), contents);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[test]
fn threads_without_a_runtime_have_a_client_too() {
    let place = Place::new();
    let server = place.serve(&[]);
    let client = blocking::Client::connect(
        &endpoint(&server),
        &server.credentials(),
        Options::default(),
    );
    let client = Arc::new(client.unwrap());
    assert_eq!(client.path(), Path::Shm);
    assert!(client.create_namespace(NAMESPACE, 0).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let client = client.clone();
            scope.spawn(move || {
                let contents = bytes(thread, 9000);
                let region = filled(&contents);
                let key = thread.to_string();
                client.put_from(NAMESPACE, &key, &region).unwrap();
                assert!(region.write(0, &[0; 9000]));
                client.get_into(NAMESPACE, &key, .., &region).unwrap();
                assert_eq!(seen(&region, 0..9000), contents);
                client.release(region);
            });
        }
    });
    assert_eq!(
        client.exist(NAMESPACE, &["0", "9"]).unwrap(),
        [Some(9000), None]
    );
    assert!(!client.create_namespace(NAMESPACE, 0).unwrap());
    for thread in 0..4 {
        assert!(client.delete(NAMESPACE, &thread.to_string()).unwrap());
    }
    client.remove_namespace(NAMESPACE).unwrap();
    assert!(client.create_namespace(NAMESPACE, 0).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_change_on_the_way_are_told_with_the_hop() {
    let place = Place::new();
    let server = place.serve(&[]);
    for path in [Path::Shm, Path::Iwarp] {
        let client = connect(&server, path).await;
        let size = 1 << 20;
        let region = filled(&bytes(1, size));
        client.put_from(NAMESPACE, "value", &region).await.unwrap();
        // From now on it comes from the server's memory, which nobody else can change.
        let elsewhere = Region::alloc(size).unwrap();
        for _ in 0..3 {
            let get = client.get_into(NAMESPACE, "value", .., &elsewhere);
            get.await.unwrap();
        }
        let done = Arc::new(AtomicBool::new(false));
        // Somebody who writes where the payload is, at any time.
        let scribbler = std::thread::spawn({
            let (done, region) = (done.clone(), region.clone());
            move || {
                for turn in 0u64.. {
                    if done.load(Relaxed) {
                        return;
                    }
                    assert!(region.write(size / 2, &turn.to_le_bytes()));
                }
            }
        });
        // The scribbler may sleep just then.
        let mut got = client.get_into(NAMESPACE, "value", .., &region).await;
        while got.is_ok() {
            got = client.get_into(NAMESPACE, "value", .., &region).await;
        }
        let told = |result: Result<Transfer, Error>| match result {
            Err(Error::Corrupt(text)) => text,
            other => panic!("{path}: {other:?}"),
        };
        let got = told(got);
        assert!(
            got.contains("between the server and the client's memory"),
            "{got}"
        );
        let mut put = client.put_from(NAMESPACE, "changing", &region).await;
        while put.is_ok() {
            put = client.put_from(NAMESPACE, "changing", &region).await;
        }
        let put = told(put);
        assert!(
            put.contains("between the client's memory and the server"),
            "{put}"
        );
        done.store(true, Relaxed);
        scribbler.join().unwrap();
        let target = Region::alloc(size).unwrap();
        client
            .get_into(NAMESPACE, "value", .., &target)
            .await
            .unwrap();
        assert_eq!(seen(&target, 0..size), bytes(1, size));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_any_kind_can_be_used() {
    let place = Place::new();
    let server = place.serve(&[]);
    let contents = bytes(6, 200_000);
    let file = place.path("memory");
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let source = filled(&contents);
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        // An ordinary file, which its owner could cut at any time.
        std::fs::write(&file, vec![0; contents.len()]).unwrap();
        let open = File::options().read(true).write(true).open(&file).unwrap();
        let mapped = Region::from_memfd(open.into()).unwrap();
        let got = client
            .get_into(NAMESPACE, "value", .., &mapped)
            .await
            .unwrap();
        assert_eq!(got.path, path);
        assert!(std::fs::read(&file).unwrap() == contents);
        client.put_from(NAMESPACE, "again", &mapped).await.unwrap();
        client
            .get_into(NAMESPACE, "again", .., &source)
            .await
            .unwrap();
        assert!(seen(&source, 0..contents.len()) == contents);
    }
    // Memory that only this process has: shared memory cannot reach it, iWARP can.
    let private = || Region::of(forebay_client::mem::Region::anonymous(200_000).unwrap());
    let client = Client::connect(
        &endpoint(&server),
        &server.credentials(),
        Options::default(),
    )
    .await
    .unwrap();
    let region = private();
    let got = client
        .get_into(NAMESPACE, "value", .., &region)
        .await
        .unwrap();
    assert_eq!((client.path(), got.path), (Path::Shm, Path::Iwarp));
    assert!(
        got.fallback
            .unwrap()
            .to_string()
            .contains("shm: the memory is this process' alone")
    );
    assert!(seen(&region, 0..contents.len()) == contents);
    let client = connect(&server, Path::Iwarp).await;
    let region = private();
    let got = client
        .get_into(NAMESPACE, "value", .., &region)
        .await
        .unwrap();
    assert_eq!(got.path, Path::Iwarp);
    assert!(seen(&region, 0..contents.len()) == contents);
}

/// A file of so many huge pages, if there are as many.
fn huge_pages(pages: u64) -> Option<std::os::fd::OwnedFd> {
    let about = std::fs::read_to_string("/proc/meminfo").unwrap();
    let number = |name: &str| {
        let line = about.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (free, kib) = (number("HugePages_Free:")?, number("Hugepagesize:")?);
    if free < pages {
        return None;
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
    let file = memfd_create("huge", flags).ok()?;
    ftruncate(&file, pages * kib * 1024).ok()?;
    Some(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_huge_pages_can_be_used() {
    let Some(huge) = huge_pages(2) else {
        return skip("the system has no huge pages to give");
    };
    let huge = Region::from_memfd(huge).unwrap();
    let place = Place::new();
    let server = place.serve(&[]);
    let contents = bytes(6, 200_000);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let source = filled(&contents);
        client.put_from(NAMESPACE, "value", &source).await.unwrap();
        let got = client.get_into(NAMESPACE, "value", .., &huge).await;
        assert_eq!(got.unwrap().path, path);
        assert!(seen(&huge, 0..contents.len()) == contents);
        client.put_from(NAMESPACE, "huge", &huge).await.unwrap();
        let back = Region::alloc(huge.len()).unwrap();
        let got = client.get_into(NAMESPACE, "huge", .., &back).await;
        assert_eq!(got.unwrap().path, path);
        assert!(seen(&back, 0..huge.len()) == seen(&huge, 0..huge.len()));
    }
}

/// An object is the same to everybody whichever path its bytes took.
#[tokio::test(flavor = "multi_thread")]
async fn attributes_are_the_same_by_every_path() {
    let place = Place::new();
    let server = place.serve(&[]);
    connect(&server, Path::Http).await;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let attributes = Attributes {
        content_type: "text/x-forebay".to_owned(),
        cache_control: "no-cache".to_owned(),
        metadata: vec![pair("Origin", "the lab"), pair("run", "7")],
        tags: vec![pair("stage", "raw/wild +1"), pair("empty", "")],
        ..Attributes::default()
    };
    let bytes = bytes(9, 5000);
    let options = PutOptions {
        attributes: attributes.clone(),
        ..PutOptions::default()
    };
    let s3 = server.client();
    let body = bytes.clone().into();
    s3.put(NAMESPACE, "s3", body, &options).await.unwrap();
    let mut expected = s3.head(NAMESPACE, "s3").await.unwrap();
    assert_eq!(expected.content_type, "text/x-forebay");
    assert_eq!(
        expected.metadata,
        [pair("origin", "the lab"), pair("run", "7")]
    );

    let source = filled(&bytes);
    let many = Attributes {
        // Longer than a message carries, and than S3 takes.
        metadata: vec![pair("long", &"x".repeat(5000))],
        ..Attributes::default()
    };
    for path in Path::ALL {
        let client = connect(&server, path).await;
        let put = Put {
            attributes: Some(&attributes),
            ..Put::new(b"direct", source.window(0..bytes.len()))
        };
        let put = client.put(NAMESPACE, &put).await.unwrap();
        assert_eq!(put.path, path);
        let found = s3.head(NAMESPACE, "direct").await.unwrap();
        expected.modified = found.modified;
        assert_eq!(found, expected, "{path}");
        let scattered = Put {
            attributes: Some(&attributes),
            ..Put::new(b"scattered", source.window(0..bytes.len()))
        };
        let each = |_, result: Result<Transfer, Error>| drop(result.unwrap());
        client.scatter(NAMESPACE, &[scattered], each).await.unwrap();
        let found = s3.head(NAMESPACE, "scattered").await.unwrap();
        expected.modified = found.modified;
        assert_eq!(found, expected, "{path}");
        let refused = Put {
            attributes: Some(&many),
            ..Put::new(b"direct", source.window(0..bytes.len()))
        };
        assert!(client.put(NAMESPACE, &refused).await.is_err(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_expiry_and_keys_of_any_bytes_are_the_same_by_every_path() {
    let place = Place::new();
    let server = place.serve(&[]);
    let region = Region::alloc(3 << 20).unwrap();
    let contents = bytes(4, 5000);
    let source = filled(&contents);
    for path in Path::ALL {
        let client = connect(&server, path).await;
        // The second is none of S3's.
        for key in [format!("{path}/key").as_bytes(), &[0xff, 0, path as u8]] {
            let put = Put::new(key, (&source).into());
            let kept = Attributes {
                metadata: vec![("owner".to_owned(), "me".to_owned())],
                ..Attributes::default()
            };
            let present = Put {
                condition: Condition::IfPresent,
                attributes: Some(&kept),
                ..put.clone()
            };
            let absent = client.put(NAMESPACE, &present).await.unwrap_err();
            let kinds = [Kind::Precondition, Kind::NotFound];
            assert!(kinds.contains(&absent.kind()), "{path}: {absent:?}");
            let first = client.put(NAMESPACE, &put).await.unwrap();
            assert_eq!(first.checksum, Some(Crc64::of(&contents).value()));
            client.put(NAMESPACE, &present).await.unwrap();
            let matching = |etag| Put {
                condition: Condition::IfMatch(etag),
                from: source.window(0..10),
                ..put.clone()
            };
            let etag = first.etag.as_str();
            let second = client.put(NAMESPACE, &matching(etag)).await.unwrap();
            let stale = client.put(NAMESPACE, &matching(etag)).await.unwrap_err();
            assert_eq!(stale.kind(), Kind::Precondition, "{path}: {stale}");
            let got = client.get_into(NAMESPACE, key, .., &region).await.unwrap();
            assert_eq!((got.bytes, &got.etag, got.path), (10, &second.etag, path));
            let got = client
                .get_into(NAMESPACE, key, 4..7, &region)
                .await
                .unwrap();
            assert_eq!((got.bytes, got.size), (3, 10));
            assert_eq!(seen(&region, 0..3), contents[4..7]);
            let outside = client.get_into(NAMESPACE, key, 10.., &region).await;
            assert!(matches!(outside, Err(Error::Refused(refusal)) if refusal.status == 416));
            // Long ago.
            let gone = Put {
                expires_ms: Some(1),
                ..put
            };
            client.put(NAMESPACE, &gone).await.unwrap();
            let expired = client.stat(NAMESPACE, key).await.unwrap_err();
            assert_eq!(expired.kind(), Kind::NotFound, "{path}");
        }
        // By HTTP in several messages.
        let large = bytes(5, 2_500_000);
        let source = filled(&large);
        let key = [0xfe, path as u8];
        let writer = connect(&server, Path::Shm).await;
        writer.put_from(NAMESPACE, &key, &source).await.unwrap();
        let got = client.get_into(NAMESPACE, &key, .., &region).await.unwrap();
        let crc = Crc64::of(&large).value();
        assert_eq!((got.bytes, got.checksum), (2_500_000, Some(crc)));
        assert_eq!(seen(&region, 0..large.len()), large);
        writer
            .put_from(NAMESPACE, &key, source.window(0..0))
            .await
            .unwrap();
        let got = client.get_into(NAMESPACE, &key, .., &region).await.unwrap();
        assert_eq!((got.bytes, got.size), (0, 0));
    }
}

/// Passes connections on to a door, and can leave those that it has in silence: nothing more comes, and they do not end.
async fn relay(door: &str) -> (Endpoint, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let silence = watch::Sender::new(());
    let (door, silent) = (door.to_owned(), silence.clone());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(&door).await.unwrap();
            let mut silent = silent.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    _ = silent.changed() => std::future::pending().await,
                }
            });
        }
    });
    (endpoint.parse().unwrap(), silence)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_fails_no_call() {
    let place = Place::new();
    let server = place.serve(&[]);
    let (endpoint, silence) = relay(&server.doors["rpc"]).await;
    let options = Options {
        path: Choice::Only(Path::Http),
        deadline: Duration::from_secs(9),
        ..Options::default()
    };
    let client = Client::connect(&endpoint, &server.credentials(), options).await;
    let client = client.unwrap();
    client.create_namespace(NAMESPACE, 0).await.unwrap();
    silence.send_replace(());
    let missing = client.stat(NAMESPACE, "none").await.unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound, "{missing}");
}
