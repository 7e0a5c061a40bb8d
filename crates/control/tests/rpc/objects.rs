//! Values in messages, keys in batches, pages of lists: what a client without a link can do.

use forebay_api::v1;
use forebay_api::v1::condition::Rule;
use forebay_api::v1::list_entry::Entry;
use forebay_api::v1::store_request::Source;
use forebay_mem::Buf;
use forebay_proto::s3::checksum::{Algorithm, checksum};
use forebay_store::{Address, Body, ByteRange, MemoryStore, Seal, Store, StoreOptions, Upload};
use tonic::Code;

use crate::harness::{Client, Door, START, refusal, refused};
use crate::memory::noise;

pub fn crc(bytes: &[u8]) -> u64 {
    checksum(Algorithm::Crc64Nvme, bytes).crc_value().unwrap()
}

pub async fn stored(store: &MemoryStore, namespace: &str, key: &[u8], value: &[u8]) {
    let address = Address::object(namespace, key);
    let mut upload = store.store(address, StoreOptions::default()).await.unwrap();
    upload.write(Buf::from(value.to_vec())).await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
}

pub async fn read(store: &MemoryStore, namespace: &str, key: &[u8]) -> Option<Vec<u8>> {
    let address = Address::object(namespace, key);
    let object = store.retrieve(address, None, ByteRange::Full).await;
    let mut body = object.ok()?.body;
    let mut bytes = Vec::new();
    while let Some(buf) = body.next().await.unwrap() {
        bytes.extend_from_slice(&buf);
    }
    Some(bytes)
}

fn put(key: &str, value: &[u8]) -> v1::StoreRequest {
    v1::StoreRequest {
        namespace: "data".into(),
        key: key.to_owned().into(),
        source: Some(Source::Data(value.to_vec().into())),
        ..Default::default()
    }
}

fn get(key: &str) -> v1::RetrieveRequest {
    v1::RetrieveRequest {
        namespace: "data".into(),
        key: key.to_owned().into(),
        ..Default::default()
    }
}

async fn ready() -> (Door, Client) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    (door, red)
}

#[tokio::test]
async fn small_values_ride_in_messages() {
    let (_door, mut red) = ready().await;
    for len in [0, 1, 4096, 100_000, 1 << 20] {
        let value = noise(len);
        let mut request = put("value", &value);
        request.crc64nvme = Some(crc(&value));
        let answer = red.objects.store(request).await.unwrap().into_inner();
        let object = answer.object.unwrap();
        assert_eq!((object.size, object.crc64nvme), (len as u64, crc(&value)));
        assert_eq!((object.modified_ms, object.version), (START, 0));
        assert_eq!(answer.replaced, len > 0);
        let mut request = get("value");
        request.checksum = true;
        let answer = red.objects.retrieve(request).await.unwrap().into_inner();
        assert_eq!(answer.data, value);
        assert_eq!(answer.object, Some(object));
        assert_eq!(answer.crc64nvme, Some(crc(&value)));
        assert_eq!((answer.length, answer.path.as_str()), (len as u64, "grpc"));
    }
    let too_large = red
        .objects
        .store(put("value", &vec![0; (1 << 20) + 1]))
        .await;
    refused(too_large, Code::InvalidArgument, "TOO_LARGE");
    let nothing_given = v1::StoreRequest {
        source: None,
        ..put("empty", b"")
    };
    let answer = red.objects.store(nothing_given).await.unwrap().into_inner();
    assert_eq!(answer.object.unwrap().size, 0);
}

#[tokio::test]
async fn a_larger_value_is_read_in_ranges() {
    let (door, mut red) = ready().await;
    let value = noise(3 << 20);
    stored(&door.store, "data", b"big", &value).await;
    refused(
        red.objects.retrieve(get("big")).await,
        Code::InvalidArgument,
        "TOO_LARGE",
    );
    let len = value.len() as u64;
    for (offset, length, expected) in [
        (0, 10, 0..10),
        (5, 1 << 20, 5..5 + (1 << 20)),
        (len - 9, 0, len - 9..len),
        (len - 9, 100, len - 9..len),
        (len - 9, u64::MAX, len - 9..len),
    ] {
        let mut request = get("big");
        request.range = Some(v1::Range { offset, length });
        request.checksum = true;
        let answer = red.objects.retrieve(request).await.unwrap().into_inner();
        let expected = &value[expected.start as usize..expected.end as usize];
        assert_eq!(answer.offset, offset);
        assert_eq!(answer.data, expected);
        assert_eq!(answer.crc64nvme, Some(crc(expected)));
    }
    for offset in [len, u64::MAX] {
        let mut request = get("big");
        request.range = Some(v1::Range { offset, length: 1 });
        refused(
            red.objects.retrieve(request).await,
            Code::OutOfRange,
            "RANGE",
        );
    }
}

#[tokio::test]
async fn conditions_and_expiry() {
    let (door, mut red) = ready().await;
    let when = |rule| Some(v1::Condition { rule: Some(rule) });
    let conditional = |rule| v1::StoreRequest {
        condition: when(rule),
        ..put("key", b"value")
    };
    let objects = red.objects.clone();
    let store = |request| {
        let mut objects = objects.clone();
        async move { objects.store(request).await }
    };
    let failed = (Code::FailedPrecondition, "CONDITION");
    refused(
        store(conditional(Rule::IfPresent(true))).await,
        failed.0,
        failed.1,
    );
    store(conditional(Rule::IfAbsent(true))).await.unwrap();
    refused(
        store(conditional(Rule::IfAbsent(true))).await,
        failed.0,
        failed.1,
    );
    let there = store(conditional(Rule::IfAbsent(false))).await.unwrap();
    let etag = there.into_inner().object.unwrap().etag;
    refused(
        store(conditional(Rule::IfMatch("other".into()))).await,
        failed.0,
        failed.1,
    );
    store(conditional(Rule::IfMatch(etag))).await.unwrap();
    refused(
        store(conditional(Rule::IfMatch("no \"tag".into()))).await,
        Code::InvalidArgument,
        "INVALID",
    );
    let deleted = v1::DeleteRequest {
        namespace: "data".into(),
        key: "key".into(),
        condition: when(Rule::IfMatch("other".into())),
        ..Default::default()
    };
    refused(red.objects.delete(deleted).await, failed.0, failed.1);

    store(v1::StoreRequest {
        expires_ms: Some(START + 500),
        ..put("short", b"lived")
    })
    .await
    .unwrap();
    let stat = v1::StatRequest {
        namespace: "data".into(),
        key: "short".into(),
        version: None,
    };
    let shown = red.objects.stat(stat.clone()).await.unwrap().into_inner();
    assert_eq!(shown.object.unwrap().expires_ms, Some(START + 500));
    door.hands.forward(std::time::Duration::from_millis(500));
    refused(red.objects.stat(stat).await, Code::NotFound, "NOT_FOUND");
}

#[tokio::test]
async fn versions_are_kept_and_named() {
    let (_door, mut red) = ready().await;
    let change = v1::ChangeNamespaceRequest {
        name: "data".into(),
        change: Some(v1::NamespaceChange {
            versioning: v1::Versioning::Enabled.into(),
            ..Default::default()
        }),
    };
    red.admin.change_namespace(change).await.unwrap();
    let first = red.objects.store(put("key", b"first")).await.unwrap();
    let first = first.into_inner().object.unwrap().version;
    red.objects.store(put("key", b"second")).await.unwrap();
    let mut old = get("key");
    old.version = Some(first);
    let answer = red.objects.retrieve(old.clone()).await.unwrap();
    assert_eq!(answer.into_inner().data, "first");
    let delete = v1::DeleteRequest {
        namespace: "data".into(),
        key: "key".into(),
        ..Default::default()
    };
    let deleted = red.objects.delete(delete.clone()).await.unwrap();
    let deleted = deleted.into_inner();
    assert!(deleted.existed && deleted.marker);
    refused(
        red.objects.retrieve(get("key")).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let mut marker = get("key");
    marker.version = deleted.version;
    refused(
        red.objects.retrieve(marker).await,
        Code::NotFound,
        "DELETE_MARKER",
    );
    let for_good = v1::DeleteRequest {
        version: Some(first),
        ..delete
    };
    red.objects.delete(for_good).await.unwrap();
    refused(
        red.objects.retrieve(old).await,
        Code::NotFound,
        "NO_SUCH_VERSION",
    );
}

#[tokio::test]
async fn ten_thousand_keys_at_once() {
    let (door, mut red) = ready().await;
    let key = |i: usize| format!("block-{i:05}");
    for i in (0..10_000).filter(|i| i % 3 == 0) {
        stored(&door.store, "data", key(i).as_bytes(), &[0; 7]).await;
    }
    let keys: Vec<_> = (0..10_000).map(|i| key(i).into()).collect();
    let request = v1::ExistRequest {
        namespace: "data".into(),
        keys: keys.clone(),
        sizes: true,
    };
    let answer = red.objects.exist(request).await.unwrap().into_inner();
    assert_eq!(answer.found.len(), 10_000);
    assert!(
        answer
            .found
            .iter()
            .enumerate()
            .all(|(i, found)| *found == (i % 3 == 0))
    );
    assert!(
        answer
            .sizes
            .iter()
            .enumerate()
            .all(|(i, size)| *size == if i % 3 == 0 { 7 } else { 0 })
    );
    let mut too_many = keys;
    too_many.push("one-more".into());
    let request = v1::ExistRequest {
        namespace: "data".into(),
        keys: too_many.clone(),
        sizes: false,
    };
    refused(
        red.objects.exist(request).await,
        Code::InvalidArgument,
        "INVALID",
    );
    let request = v1::LongestPrefixRequest {
        namespace: "data".into(),
        keys: too_many,
    };
    refused(
        red.objects.longest_prefix(request).await,
        Code::InvalidArgument,
        "INVALID",
    );
    for illegal in [Vec::new(), vec![b'x'; 1025]] {
        let request = v1::ExistRequest {
            namespace: "data".into(),
            keys: vec![illegal.into()],
            sizes: false,
        };
        refused(
            red.objects.exist(request).await,
            Code::InvalidArgument,
            "INVALID",
        );
    }
}

#[tokio::test]
async fn the_longest_prefix_ends_at_the_first_gap() {
    let (door, mut red) = ready().await;
    let key = |i: usize| format!("block-{i:05}");
    for i in (0..3000).filter(|i| *i != 2500) {
        stored(&door.store, "data", key(i).as_bytes(), b"x").await;
    }
    for (first, count, expected) in [
        (0, 0, 0),
        (0, 1, 1),
        (0, 63, 63),
        (0, 64, 64),
        (0, 65, 65),
        (0, 2500, 2500),
        (0, 3000, 2500),
        (2500, 10, 0),
        (2501, 600, 499),
        (2990, 500, 10),
    ] {
        let request = v1::LongestPrefixRequest {
            namespace: "data".into(),
            keys: (first..first + count).map(|i| key(i).into()).collect(),
        };
        let answer = red.objects.longest_prefix(request).await.unwrap();
        assert_eq!(answer.into_inner().found, expected, "{first} {count}");
    }
}

#[tokio::test]
async fn lists_go_on_from_page_to_page() {
    let (door, mut red) = ready().await;
    for i in 0..50 {
        stored(&door.store, "data", format!("a/{i:02}").as_bytes(), b"x").await;
        stored(
            &door.store,
            "data",
            format!("dir-{i:02}/x").as_bytes(),
            b"x",
        )
        .await;
    }
    for (delimiter, expected) in [("", 100), ("/", 51)] {
        let mut request = v1::ListRequest {
            namespace: "data".into(),
            delimiter: delimiter.into(),
            limit: 7,
            ..Default::default()
        };
        let mut names = Vec::new();
        loop {
            let page = red
                .objects
                .list(request.clone())
                .await
                .unwrap()
                .into_inner();
            assert!(page.entries.len() <= 7);
            names.extend(
                page.entries
                    .into_iter()
                    .map(|entry| match entry.entry.unwrap() {
                        Entry::Object(object) => object.key,
                        Entry::Prefix(prefix) => prefix,
                    }),
            );
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(names.len(), expected);
        assert!(names.is_sorted_by(|a, b| a < b));
    }
    let request = v1::ListRequest {
        namespace: "data".into(),
        prefix: "a/".into(),
        start_after: "a/47".into(),
        ..Default::default()
    };
    let page = red
        .objects
        .list(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(page.entries.len(), 2);
    let wrong = v1::ListRequest {
        page_token: "?".into(),
        ..request
    };
    refused(
        red.objects.list(wrong).await,
        Code::InvalidArgument,
        "INVALID",
    );
}

#[tokio::test]
async fn anothers_namespace_is_one_that_is_not_there() {
    let (door, _red) = ready().await;
    stored(&door.store, "data", b"key", b"value").await;
    // Not even the root tenant reads what is not its own.
    for mut client in [door.tenant("blue").await, door.root().await] {
        let objects = &mut client.objects;
        macro_rules! foreign {
            ($($call:ident($($field:tt)*)),* $(,)?) => {$({
                let request = |namespace: &str| $($field)* { namespace: namespace.into(), key: "key".into(), ..Default::default() };
                let (code, reason, words) = refusal(objects.$call(request("data")).await);
                let none = refusal(objects.$call(request("none")).await);
                assert_eq!((code, reason.as_str()), (Code::NotFound, "NO_SUCH_NAMESPACE"));
                assert_eq!((code, reason, words.replace("data", "none")), none);
            })*};
        }
        foreign!(
            store(v1::StoreRequest),
            retrieve(v1::RetrieveRequest),
            stat(v1::StatRequest),
            delete(v1::DeleteRequest),
        );
        macro_rules! foreign_batches {
            ($($call:ident($($field:tt)*)),* $(,)?) => {$({
                for namespace in ["data", "none", ".forebay", ""] {
                    let request = $($field)* { namespace: namespace.into(), ..Default::default() };
                    refused(objects.$call(request).await, Code::NotFound, "NO_SUCH_NAMESPACE");
                }
            })*};
        }
        foreign_batches!(
            exist(v1::ExistRequest),
            longest_prefix(v1::LongestPrefixRequest),
            list(v1::ListRequest),
            gather(v1::GatherRequest),
            scatter(v1::ScatterRequest),
        );
    }
    assert_eq!(read(&door.store, "data", b"key").await.unwrap(), b"value");
}

#[tokio::test]
async fn attributes_are_kept_as_s3_keeps_them() {
    let (door, mut red) = ready().await;
    let map = |pairs: &[(&str, &str)]| {
        let owned = pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        owned.collect()
    };
    let attributes = v1::Attributes {
        content_type: "text/plain".into(),
        cache_control: "no-cache".into(),
        content_disposition: "attachment".into(),
        content_encoding: "gzip".into(),
        content_language: "de".into(),
        expires: "Thu, 01 Dec 1994 16:00:00 GMT".into(),
        metadata: map(&[("origin", "lab"), ("run", "7")]),
        tags: map(&[("stage", "raw/wild +1"), ("z", "")]),
    };
    let mut request = put("key", b"value");
    request.attributes = Some(attributes.clone());
    red.objects.store(request).await.unwrap();
    let stat = |key: &str| v1::StatRequest {
        namespace: "data".into(),
        key: key.to_owned().into(),
        version: None,
    };
    let answer = red.objects.stat(stat("key")).await.unwrap().into_inner();
    assert_eq!(answer.attributes, Some(attributes));
    let address = Address::object("data", b"key");
    let kept = door.store.stat(address, None).await.unwrap().attributes;
    assert_eq!(kept.get_str("x-amz-meta-run"), Some("7"));
    assert_eq!(kept.get_str("s3.tags"), Some("stage=raw%2Fwild%20%2B1&z="));
    assert_eq!(kept.iter().count(), 9);

    for wrong in [
        v1::Attributes {
            content_type: "text/plain\r\nset-cookie: a".into(),
            ..Default::default()
        },
        v1::Attributes {
            metadata: map(&[("Upper", "x")]),
            ..Default::default()
        },
        v1::Attributes {
            metadata: map(&[("long", &"x".repeat(2048))]),
            ..Default::default()
        },
        v1::Attributes {
            tags: map(&[("", "empty")]),
            ..Default::default()
        },
        v1::Attributes {
            tags: (0..11).map(|n| (n.to_string(), String::new())).collect(),
            ..Default::default()
        },
    ] {
        let mut request = put("key", b"other");
        request.attributes = Some(wrong);
        let refused = red.objects.store(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    let value = read(&door.store, "data", b"key").await;
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    // A value replaces an object whole.
    red.objects.store(put("key", b"plain")).await.unwrap();
    let answer = red.objects.stat(stat("key")).await.unwrap().into_inner();
    assert_eq!(answer.attributes, Some(v1::Attributes::default()));
}
