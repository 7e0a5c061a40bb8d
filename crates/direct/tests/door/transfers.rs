//! What goes well, and what a caller is told when it does not.

use std::sync::Arc;

use forebay_direct::{Config, Door};
use forebay_fabric::{Access, CloseReason, Fabric, Link};
use forebay_proto::direct::{
    Body, Condition, Delete, Hop, INLINE_BYTES_MAX, List, ListAfter, Operation, Range,
    RequestWriter, Retrieve, Stat, Status, Store, Target, parse_reply,
};
use forebay_store::suite::{Around, Detour};
use forebay_store::{Address, ErrorKind, ListOptions, ListPage, MemoryStore, Meta, StoreError};

use crate::any::{WAYS, Way};
use crate::support::*;

#[tokio::test(flavor = "local")]
async fn a_value_goes_in_and_out_by_memory_and_by_message() {
    for way in WAYS {
        let server = Server::new().await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(8 << 20, Access::ReadWrite).await;
        for (number, len) in [0, 1, 4095, 4096, 1 << 20, (3 << 20) + 17]
            .into_iter()
            .enumerate()
        {
            let bytes = noise(number as u64, len);
            memory.set(100, &bytes);
            let stored = caller
                .one(Operation::Store, NAMESPACE, |writer| {
                    let element = Store {
                        crc64nvme: Some(crc(&bytes)),
                        ..plain(b"key", Body::Window(memory.window(100, len as u64)))
                    };
                    writer.store(&element).unwrap();
                })
                .await;
            let Said::Value {
                size,
                replaced,
                crc64nvme,
                ..
            } = stored
            else {
                panic!("{stored:?}")
            };
            assert_eq!(
                (size, replaced, crc64nvme),
                (len as u64, number > 0, Some(crc(&bytes)))
            );
            assert_eq!(server.value(NAMESPACE, b"key").await, Some(bytes.clone()));

            memory.set(100, &vec![0xee; len + 1]);
            let window = Target::Window(memory.window(100, 4 << 20));
            let got = caller.retrieve(NAMESPACE, b"key", window).await;
            let Said::Value {
                moved,
                first,
                crc64nvme,
                ..
            } = got
            else {
                panic!("{got:?}")
            };
            assert_eq!(
                (moved, first, crc64nvme),
                (len as u64, 0, Some(crc(&bytes)))
            );
            assert_eq!(memory.bytes(100, len), bytes);
            assert_eq!(
                memory.bytes(100 + len, 1),
                [0xee],
                "the byte after the value"
            );

            let inline = caller.retrieve(NAMESPACE, b"key", Target::Message).await;
            match inline {
                Said::Value { bytes: here, .. } if len <= INLINE_BYTES_MAX => {
                    assert_eq!(here, Some(bytes));
                }
                other => assert_eq!(other.status(), Status::TooShort),
            }
        }
        let stored = caller
            .store(NAMESPACE, b"small", Body::Message(b"hello"))
            .await;
        assert_eq!(stored.status(), Status::Ok);
        assert_eq!(
            server.value(NAMESPACE, b"small").await,
            Some(b"hello".to_vec())
        );
        assert_eq!(caller.finish().await, CloseReason::Done);
    }
}

#[tokio::test(flavor = "local")]
async fn parts_come_with_a_checksum_of_their_own() {
    for way in WAYS {
        let server = Server::new().await;
        let bytes = noise(7, 300_000);
        server.set(NAMESPACE, b"key", &bytes).await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(1 << 20, Access::Write).await;
        for (range, start, end) in [
            (Range::Inclusive(10, 20_000), 10, 20_001),
            (Range::From(299_999), 299_999, 300_000),
            (Range::Suffix(5), 299_995, 300_000),
            (Range::Inclusive(1, u64::MAX), 1, 300_000),
            (Range::From(0), 0, 300_000),
        ] {
            for (target, checksum) in [
                (Target::Window(memory.window(0, 1 << 20)), true),
                (Target::Window(memory.window(0, 1 << 20)), false),
                (Target::Message, true),
            ] {
                let got = caller
                    .one(Operation::Retrieve, NAMESPACE, |writer| {
                        let element = Retrieve {
                            range,
                            checksum,
                            ..whole(b"key", target)
                        };
                        writer.retrieve(&element).unwrap();
                    })
                    .await;
                let len = end - start;
                if target == Target::Message && len > INLINE_BYTES_MAX {
                    assert_eq!(got.status(), Status::TooShort);
                    continue;
                }
                let Said::Value {
                    moved,
                    first,
                    size,
                    part_crc64nvme,
                    bytes: here,
                    ..
                } = got
                else {
                    panic!("{got:?}")
                };
                assert_eq!((moved, first, size), (len as u64, start as u64, 300_000));
                let part = &bytes[start..end];
                assert_eq!(here.unwrap_or_else(|| memory.bytes(0, len)), part);
                let expected = (checksum && len < bytes.len()).then(|| crc(part));
                assert_eq!(part_crc64nvme, expected, "{range:?}");
            }
        }
        let outside = caller
            .one(Operation::Retrieve, NAMESPACE, |writer| {
                let target = Target::Window(memory.window(0, 1 << 20));
                let range = Range::From(300_000);
                writer
                    .retrieve(&Retrieve {
                        range,
                        ..whole(b"key", target)
                    })
                    .unwrap();
            })
            .await;
        assert_eq!(outside.status(), Status::RangeNotSatisfiable);
    }
}

#[tokio::test(flavor = "local")]
async fn a_window_too_short_is_not_touched() {
    for way in WAYS {
        let server = Server::new().await;
        // Of several buffers, so that some of them would fit; a part with a checksum goes another way than the whole.
        server.set(NAMESPACE, b"key", &vec![1; 5 << 20]).await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(6 << 20, Access::Write).await;
        for range in [Range::Full, Range::From(1)] {
            let said = caller
                .one(Operation::Retrieve, NAMESPACE, |writer| {
                    let target = Target::Window(memory.window(0, (5 << 20) - 2));
                    let element = Retrieve {
                        range,
                        ..whole(b"key", target)
                    };
                    writer.retrieve(&element).unwrap();
                })
                .await;
            assert_eq!(said.status(), Status::TooShort, "{way:?} {range:?}");
            assert!(memory.bytes(0, 6 << 20).iter().all(|byte| *byte == 0));
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_wrong_checksum_stores_nothing_and_names_the_hop() {
    for way in WAYS {
        let server = Server::new().await;
        server.set(NAMESPACE, b"key", b"old").await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(4096, Access::Read).await;
        for body in [Body::Window(memory.window(0, 4096)), Body::Message(b"new")] {
            let said = caller
                .one(Operation::Store, NAMESPACE, |writer| {
                    let element = Store {
                        crc64nvme: Some(1),
                        ..plain(b"key", body)
                    };
                    writer.store(&element).unwrap();
                })
                .await;
            let Said::Failed(Status::Corrupt, Hop::ToServer, _) = said else {
                panic!("{said:?}")
            };
            assert_eq!(server.value(NAMESPACE, b"key").await, Some(b"old".to_vec()));
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_gather_is_answered_in_the_callers_order() {
    for way in WAYS {
        let server = Server::new().await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(64 << 10, Access::ReadWrite).await;
        let count = 100u64;
        let keys: Vec<_> = (0..count)
            .map(|number| format!("layer-{number:03}"))
            .collect();
        memory.set(0, &noise(3, 64 << 10));
        // A scatter first: its inverse.
        let stored = caller
            .call(Operation::Store, NAMESPACE, |writer| {
                for (number, key) in (0u64..).zip(&keys) {
                    let window = memory.window(number * 512, 512);
                    writer
                        .store(&plain(key.as_bytes(), Body::Window(window)))
                        .unwrap();
                }
            })
            .await;
        assert_eq!(stored.results.len(), keys.len());
        let before = memory.bytes(0, 64 << 10);
        memory.set(0, &[0; 64 << 10]);
        let gathered = caller
            .call(Operation::Retrieve, NAMESPACE, |writer| {
                for (number, key) in keys.iter().enumerate().rev() {
                    let number = number as u64;
                    let window = Target::Window(memory.window(number * 512, 512));
                    // One of them is not there.
                    let key = if number == 40 { "nowhere" } else { key };
                    writer.retrieve(&whole(key.as_bytes(), window)).unwrap();
                }
            })
            .await;
        assert_eq!(gathered.results.len(), keys.len());
        for (number, said) in (0..count as usize).rev().zip(gathered.results) {
            let at = number * 512;
            if number == 40 {
                assert_eq!(said.status(), Status::NotFound);
                assert_eq!(memory.bytes(at, 512), [0; 512]);
            } else {
                let Said::Value { crc64nvme, .. } = said else {
                    panic!("{said:?}")
                };
                assert_eq!(
                    crc64nvme,
                    Some(crc(&before[at..at + 512])),
                    "element {number}"
                );
                assert_eq!(memory.bytes(at, 512), before[at..at + 512]);
            }
        }
    }
}

#[tokio::test(flavor = "local")]
async fn batches_tell_what_is_there() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    for number in 0..150u64 {
        let key = format!("k{number:04}");
        server
            .set(NAMESPACE, key.as_bytes(), &vec![0; number as usize])
            .await;
    }
    let names: Vec<_> = (0..1000).map(|number| format!("k{number:04}")).collect();
    let keys: Vec<_> = names.iter().map(String::as_bytes).collect();
    let Said::Sizes(sizes) = caller.exist(NAMESPACE, &keys).await else {
        panic!()
    };
    let expected: Vec<_> = (0..1000)
        .map(|number| (number < 150).then_some(number))
        .collect();
    assert_eq!(sizes, expected);
    for (from, expected) in [(0, 150), (100, 50), (150, 0), (149, 1)] {
        let prefix = caller
            .one(Operation::LongestPrefix, NAMESPACE, |writer| {
                keys[from..].iter().for_each(|key| writer.key(key).unwrap());
            })
            .await;
        assert_eq!(prefix, Said::Prefix(expected));
    }
}

#[tokio::test(flavor = "local")]
async fn a_list_needs_as_many_replies_as_it_is_long() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    for number in 0..400 {
        let key = format!("a/{number:04}{}", "x".repeat(100));
        server.set(NAMESPACE, key.as_bytes(), b"1").await;
    }
    server.set(NAMESPACE, b"b", b"22").await;
    let list = |after: Vec<u8>, delimiter: &'static [u8], limit| {
        let caller = &caller;
        async move {
            caller
                .call(Operation::List, NAMESPACE, |writer| {
                    let after = match after.as_slice() {
                        [] => ListAfter::Start,
                        key => ListAfter::Key(key),
                    };
                    let list = List {
                        prefix: b"",
                        delimiter,
                        after,
                        limit,
                    };
                    writer.list(&list).unwrap();
                })
                .await
        }
    };
    let all = list(Vec::new(), b"", 1000).await;
    assert!(all.replies > 1 && !all.more);
    assert_eq!(all.results.len(), 401);
    let first = list(Vec::new(), b"", 100).await;
    assert!(first.more);
    assert_eq!(first.results, all.results[..100]);
    let Some(Said::Line(last, 1)) = first.results.last() else {
        panic!()
    };
    let second = list(last.clone(), b"", 100).await;
    assert_eq!(second.results, all.results[100..200]);
    let folded = list(Vec::new(), b"/", 1000).await;
    assert_eq!(
        folded.results,
        [Said::Common(b"a/".to_vec()), Said::Line(b"b".to_vec(), 2)]
    );
}

#[tokio::test(flavor = "local")]
async fn conditions_metadata_and_deletes() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Iwarp)).await;
    let put = async |condition: Condition<'_>| {
        caller
            .one(Operation::Store, NAMESPACE, |writer| {
                let element = Store {
                    condition,
                    ..plain(b"k", Body::Message(b"x"))
                };
                writer.store(&element).unwrap();
            })
            .await
    };
    let delete = async |condition: Condition<'_>| {
        caller
            .one(Operation::Delete, NAMESPACE, |writer| {
                let element = Delete {
                    key: b"k",
                    version: None,
                    condition,
                };
                writer.delete(&element).unwrap();
            })
            .await
    };
    let stat = || {
        caller.one(Operation::Stat, NAMESPACE, |writer| {
            writer
                .stat(&Stat {
                    key: b"k",
                    version: None,
                })
                .unwrap();
        })
    };
    assert_eq!(stat().await.status(), Status::NotFound);
    assert_eq!(
        put(Condition::IfPresent).await.status(),
        Status::PreconditionFailed
    );
    let Said::Value { etag, .. } = put(Condition::IfAbsent).await else {
        panic!()
    };
    assert_eq!(
        put(Condition::IfAbsent).await.status(),
        Status::PreconditionFailed
    );
    assert_eq!(
        put(Condition::IfMatch("other")).await.status(),
        Status::PreconditionFailed
    );
    // No value has a tag with a quote in it.
    assert_eq!(
        put(Condition::IfMatch("a\"b")).await.status(),
        Status::PreconditionFailed
    );
    assert_eq!(put(Condition::IfMatch(&etag)).await.status(), Status::Ok);
    let Said::Value {
        size: 1,
        moved: 0,
        crc64nvme,
        ..
    } = stat().await
    else {
        panic!()
    };
    assert_eq!(crc64nvme, Some(crc(b"x")));
    assert_eq!(
        delete(Condition::IfMatch("other")).await.status(),
        Status::PreconditionFailed
    );
    let Said::Deleted(deleted) = delete(Condition::None).await else {
        panic!()
    };
    assert!(deleted.existed);
    let Said::Deleted(deleted) = delete(Condition::None).await else {
        panic!()
    };
    assert!(!deleted.existed);
    assert_eq!(stat().await.status(), Status::NotFound);
}

#[tokio::test(flavor = "local")]
async fn what_was_done_is_counted_by_path() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Iwarp)).await;
    let memory = caller.memory(4096, Access::ReadWrite).await;
    caller
        .store(NAMESPACE, b"k", Body::Window(memory.window(0, 4096)))
        .await;
    let window = Target::Window(memory.window(0, 4096));
    caller.retrieve(NAMESPACE, b"k", window).await;
    caller.retrieve(NAMESPACE, b"gone", window).await;
    // The requests' ends are counted after their replies were sent; an answer to a later request comes after that.
    caller.call(Operation::Ping, "", |_| {}).await;
    let live = server.door.live();
    let [link] = live.as_slice() else {
        panic!("{live:?}")
    };
    assert_eq!(
        (link.tenant.as_str(), link.principal.as_str(), link.path),
        (TENANT, "AKID", "iwarp")
    );
    assert_eq!(
        (link.sent_bytes, link.received_bytes, link.failures),
        (4096, 4096, 1)
    );
    let told = || {
        let mut registry = prometheus_client::registry::Registry::default();
        server.door.metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    let check = |text: &str| {
        for line in [
            "forebay_direct_sent_bytes_total{path=\"iwarp\"} 4096",
            "forebay_direct_sent_bytes_total{path=\"shm\"} 0",
            "forebay_direct_received_bytes_total{path=\"iwarp\"} 4096",
            "forebay_direct_carried_total{path=\"iwarp\"} 2",
            "forebay_direct_failures_total{path=\"iwarp\",status=\"not_found\"} 1",
            "forebay_direct_request_seconds_count{path=\"iwarp\",op=\"retrieve\"} 2",
            "forebay_direct_request_seconds_bucket{le=\"+Inf\",path=\"iwarp\",op=\"store\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    };
    check(&told());
    caller.finish().await;
    assert!(server.door.live().is_empty());
    // What links did that have ended stays, and others come to it.
    check(&told());
    let other = server.connect(TENANT, Way::Pipe(Fabric::Iwarp)).await;
    let memory = other.memory(4096, Access::ReadWrite).await;
    let window = Target::Window(memory.window(0, 4096));
    other.retrieve(NAMESPACE, b"k", window).await;
    let line = "forebay_direct_sent_bytes_total{path=\"iwarp\"} 8192";
    assert!(told().contains(line), "{}", told());
    other.finish().await;
}

/// Keys are not looked at now.
#[derive(Clone)]
struct Unlisted;

impl Detour<MemoryStore> for Unlisted {
    async fn exist(
        &self,
        _: &MemoryStore,
        _: &[Address<'_>],
    ) -> forebay_store::Result<Vec<Option<Meta>>> {
        Err(StoreError::new(ErrorKind::Busy, "later"))
    }

    async fn list(&self, _: &MemoryStore, _: ListOptions<'_>) -> forebay_store::Result<ListPage> {
        Err(StoreError::new(ErrorKind::Busy, "later"))
    }
}

#[tokio::test(flavor = "local")]
async fn what_is_refused_of_keys_is_counted() {
    let server = Server::new().await;
    let store = Around {
        store: (*server.store).clone(),
        detour: Unlisted,
    };
    let door = Door::new(Arc::new(store), Config::default());
    let session = server.session(TENANT);
    let (near, far, _) = server.join(&session, Way::Pipe(Fabric::Shm)).await;
    let asking = async {
        let mut message = Vec::new();
        for operation in [Operation::Exist, Operation::LongestPrefix, Operation::List] {
            let mut writer = RequestWriter::begin(&mut message, operation, 1, NAMESPACE).unwrap();
            match operation {
                Operation::List => writer.list(&List {
                    prefix: b"",
                    delimiter: b"",
                    after: ListAfter::Start,
                    limit: 10,
                }),
                _ => writer.key(b"k"),
            }
            .unwrap();
            writer.finish();
            near.send(&message).await.unwrap();
            near.recv(&mut message).await.unwrap().unwrap();
            let result = parse_reply(&message).unwrap().results.next().unwrap();
            assert_eq!(result.status, Status::Busy);
        }
        door.live()[0].failures
    };
    tokio::select! {
        reason = door.serve(&session, &far, std::future::pending()) => panic!("{reason}"),
        failures = asking => assert_eq!(failures, 3),
    }
}
