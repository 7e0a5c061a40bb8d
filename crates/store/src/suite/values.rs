//! Storing and retrieving.

use forebay_mem::Region;

use super::subject::{
    Subject, attributes, content, crc64nvme, drain, etag, fill, fill_pieces, put_with, refused,
    try_drain,
};
use crate::limits::{EXIST_BATCH_MAX, KEY_BYTES_MAX, STAGING_KEY_BYTES_MAX};
use crate::{
    Address, Attributes, ByteRange, Condition, DeleteOptions, ErrorKind, Etag, Meta, Object, Scope,
    Seal, Store, StoreOptions, Upload, VersionId,
};

const SPACE: &str = "values";

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace(SPACE).await;
    sizes_come_back(subject).await;
    ranges(subject).await;
    metadata_is_kept(subject).await;
    buffers_of_any_length(subject).await;
    registered_memory(subject).await;
    parts_into_registered_memory(subject).await;
    declared_sizes_bind(subject).await;
    abandoned_uploads_leave_nothing(subject).await;
    bodies_outlive_their_key(subject).await;
    what_is_not_there(subject).await;
    amending(subject).await;
    keys_of_any_bytes(subject).await;
    limits(subject).await;
    batches(subject).await;
}

fn interesting_sizes(chunk: usize) -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 511, 4095, 4096, 4097, 65_535, 65_537];
    sizes.extend([chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 12_345]);
    sizes
}

async fn sizes_come_back<S: Store>(subject: &Subject<S>) {
    for (seed, size) in interesting_sizes(subject.store.caps().chunk_bytes)
        .into_iter()
        .enumerate()
    {
        let bytes = content(seed as u64, size);
        let key = format!("size/{size}");
        let stored = subject.put(SPACE, &key, &bytes).await;
        assert!(!stored.replaced);
        let meta = &stored.meta;
        assert_eq!(meta.size, size as u64);
        assert_eq!(meta.crc64nvme, crc64nvme(&bytes));
        assert_eq!(meta.etag, Etag::of_value(meta.crc64nvme, meta.size));
        assert_eq!(meta.modified, subject.clock.now());
        assert_eq!(meta.version, VersionId::NULL);
        assert_eq!(meta.expires, None);
        let address = Address::object(SPACE, key.as_bytes());
        assert_eq!(&subject.store.stat(address, None).await.unwrap(), meta);
        let object = subject.store.retrieve(address, None, ByteRange::Full).await;
        let object = object.unwrap();
        assert_eq!(&object.meta, meta);
        assert_eq!(object.range, 0..size as u64);
        assert!(drain(object).await == bytes, "{size} bytes come back");
        let null = subject.store.stat(address, Some(VersionId::NULL)).await;
        assert_eq!(&null.unwrap(), meta, "the null version is the value");
    }
    let again = subject.put(SPACE, "size/0", b"more").await;
    assert!(again.replaced);
    assert_eq!(subject.get(SPACE, "size/0").await.unwrap(), b"more");
}

async fn ranges<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes as u64;
    for size in [0, 1, 100, 10_000, 2 * chunk + 777] {
        let bytes = content(size, size as usize);
        subject.put(SPACE, "ranged", &bytes).await;
        let offsets = [
            0,
            1,
            99,
            4095,
            4096,
            chunk - 1,
            chunk,
            chunk + 1,
            size / 2,
            size.saturating_sub(1),
            size,
            u64::MAX,
        ];
        let address = Address::object(SPACE, b"ranged");
        for first in offsets {
            for last in offsets {
                let range = ByteRange::Inclusive(first, last);
                check_range(subject, address, &bytes, range).await;
            }
            check_range(subject, address, &bytes, ByteRange::From(first)).await;
            check_range(subject, address, &bytes, ByteRange::Suffix(first)).await;
        }
    }
}

async fn check_range<S: Store>(
    subject: &Subject<S>,
    address: Address<'_>,
    bytes: &[u8],
    range: ByteRange,
) {
    let found = subject.store.retrieve(address, None, range).await;
    let Some(wanted) = range.resolve(bytes.len() as u64) else {
        return refused(found, ErrorKind::RangeNotSatisfiable);
    };
    let object = found.unwrap();
    assert_eq!(object.range, wanted);
    let wanted = &bytes[wanted.start as usize..wanted.end as usize];
    assert!(
        drain(object).await == wanted,
        "{range:?} of {}",
        bytes.len()
    );
}

async fn metadata_is_kept<S: Store>(subject: &Subject<S>) {
    let address = Address::object(SPACE, b"described");
    for pairs in [
        &[][..],
        &[("content-type", "text/plain")],
        &[("a", ""), ("b", "2"), ("c", "\u{fc}")],
    ] {
        let seal = Seal {
            etag: Some(etag("d41d8cd98f00b204e9800998ecf8427e-3")),
            attributes: attributes(pairs),
            expires: None,
        };
        let stored = put_with(
            &*subject.store,
            address,
            b"x",
            StoreOptions::default(),
            seal.clone(),
        )
        .await
        .unwrap();
        assert_eq!(Some(stored.meta.etag), seal.etag);
        assert_eq!(stored.meta.attributes, seal.attributes);
        assert_eq!(
            subject.store.stat(address, None).await.unwrap(),
            stored.meta
        );
    }
    let large = Attributes::builder()
        .set("large", vec![7; 500 << 10])
        .build()
        .unwrap();
    let seal = Seal {
        attributes: large.clone(),
        ..Seal::default()
    };
    let stored = put_with(
        &*subject.store,
        address,
        b"x",
        StoreOptions::default(),
        seal,
    )
    .await;
    assert_eq!(stored.unwrap().meta.attributes, large);
    let meta = subject.store.stat(address, None).await.unwrap();
    assert_eq!(meta.attributes, large);
}

async fn buffers_of_any_length<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes;
    for (size, piece) in [
        (10, 3),
        (5000, 1),
        (100_000, 4097),
        (2 * chunk + 5, chunk / 2 + 1),
    ] {
        let bytes = content(piece as u64, size);
        let address = Address::object(SPACE, b"pieces");
        let mut upload = subject
            .store
            .store(address, StoreOptions::default())
            .await
            .unwrap();
        assert_eq!(upload.crc64nvme(), 0);
        let (head, tail) = bytes.split_at(size / 3);
        fill_pieces(&mut upload, head, piece).await.unwrap();
        upload.write(Vec::new().into()).await.unwrap();
        assert_eq!(upload.crc64nvme(), crc64nvme(head));
        fill(&mut upload, tail).await.unwrap();
        assert_eq!(upload.crc64nvme(), crc64nvme(&bytes));
        let stored = upload.commit(Seal::default()).await.unwrap();
        assert_eq!(stored.meta.crc64nvme, crc64nvme(&bytes));
        assert!(subject.get(SPACE, "pieces").await.unwrap() == bytes);
    }
    let mut upload = subject
        .store
        .store(Address::object(SPACE, b"pieces"), StoreOptions::default())
        .await
        .unwrap();
    let buf = upload.buffer(usize::MAX).await.unwrap();
    assert!(buf.capacity() <= chunk, "a buffer is at most a chunk");
}

async fn registered_memory<S: Store>(subject: &Subject<S>) {
    let size = subject.store.caps().chunk_bytes + 3000;
    let bytes = content(4, size);
    let region = Region::anonymous(size + 100).unwrap();
    let source = region.slice(50..50 + size).unwrap();
    assert!(source.write(0, &bytes));
    let address = Address::object(SPACE, b"registered");
    let mut upload = subject
        .store
        .store(address, StoreOptions::default())
        .await
        .unwrap();
    upload.read_from(source).await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
    assert!(subject.get(SPACE, "registered").await.unwrap() == bytes);

    let target = Region::anonymous(size).unwrap();
    for range in [
        ByteRange::Full,
        ByteRange::Inclusive(10, 5000),
        ByteRange::Suffix(7),
    ] {
        let wanted = range.resolve(size as u64).unwrap();
        let len = (wanted.end - wanted.start) as usize;
        let into = target.slice(0..len).unwrap();
        let (meta, placed) = subject
            .store
            .retrieve_into(address, None, range, into.clone())
            .await
            .unwrap();
        assert_eq!((meta.size, &placed), (size as u64, &wanted));
        let mut found = vec![0; len];
        assert!(into.read(0, &mut found));
        assert!(found == bytes[wanted.start as usize..wanted.end as usize]);
        let short = target.slice(0..len - 1).unwrap();
        let placed = subject
            .store
            .retrieve_into(address, None, range, short)
            .await;
        refused(placed, ErrorKind::Invalid);
    }
}

/// Any part of a large value to any place, again and again: leaves take other ways when pieces are whole, aligned, or come back.
async fn parts_into_registered_memory<S: Store>(subject: &Subject<S>) {
    const GUARD: u8 = 0xa5;
    let size = 2 * subject.store.caps().chunk_bytes + 77_777;
    let bytes = content(9, size);
    subject.put(SPACE, "parts", &bytes).await;
    let address = Address::object(SPACE, b"parts");
    let memory = Region::anonymous(size + 16_384).unwrap();
    let whole = memory.slice(0..memory.len()).unwrap();
    let block = 65_536;
    for (at, range) in [
        (0, 0..size),
        (4096, 0..size),
        (1, 0..size),
        (0, 0..block),
        (8192, block..3 * block),
        (0, 3..size),
        (4096 - 3, 3..size - 5),
        (4096, block - 1..size - block),
        (0, size - 77_777..size),
        (0, size - 1..size),
        (0, 0..size),
    ] {
        whole.write(0, &vec![GUARD; memory.len()]);
        let into = memory.slice(at..at + range.len()).unwrap();
        let wanted = ByteRange::Inclusive(range.start as u64, range.end as u64 - 1);
        let placed = subject
            .store
            .retrieve_into(address, None, wanted, into)
            .await;
        placed.unwrap();
        let mut found = vec![0; memory.len()];
        assert!(whole.read(0, &mut found));
        assert!(
            found[at..at + range.len()] == bytes[range.clone()],
            "{range:?}"
        );
        let around = found[..at].iter().chain(&found[at + range.len()..]);
        assert!(around.into_iter().all(|byte| *byte == GUARD), "{range:?}");
    }
}

async fn declared_sizes_bind<S: Store>(subject: &Subject<S>) {
    let address = Address::object(SPACE, b"declared");
    let options = StoreOptions {
        size: Some(10),
        ..StoreOptions::default()
    };
    let mut upload = subject.store.store(address, options).await.unwrap();
    fill(&mut upload, b"too short").await.unwrap();
    refused(upload.commit(Seal::default()).await, ErrorKind::Invalid);

    let mut upload = subject.store.store(address, options).await.unwrap();
    let sent = fill(&mut upload, b"eleven bytes").await;
    refused(sent, ErrorKind::TooLarge);
    let committed = upload.commit(Seal::default()).await;
    assert!(
        committed.is_err(),
        "an upload that failed cannot be committed"
    );
    assert_eq!(subject.get(SPACE, "declared").await, None);

    let options = StoreOptions {
        size: Some(subject.store.caps().value_bytes_max + 1),
        ..StoreOptions::default()
    };
    refused(
        subject.store.store(address, options).await,
        ErrorKind::TooLarge,
    );
}

async fn abandoned_uploads_leave_nothing<S: Store>(subject: &Subject<S>) {
    subject.put(SPACE, "steady", b"old").await;
    let before = subject.store.usage(Scope::Namespace(SPACE)).unwrap();
    let chunk = subject.store.caps().chunk_bytes;
    for size in [0, 1, 10_000, 3 * chunk] {
        for declared in [None, Some(size as u64 + 1)] {
            let address = Address::object(SPACE, b"steady");
            let options = StoreOptions {
                size: declared,
                ..StoreOptions::default()
            };
            let mut upload = subject.store.store(address, options).await.unwrap();
            fill(&mut upload, &content(1, size)).await.unwrap();
            drop(upload);
            assert_eq!(subject.get(SPACE, "steady").await.unwrap(), b"old");
        }
    }
    let after = subject.store.usage(Scope::Namespace(SPACE)).unwrap();
    assert_eq!(after, before);
}

async fn bodies_outlive_their_key<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes;
    for size in [10, 10_000, 3 * chunk + 1] {
        let old = content(1, size);
        let address = Address::object(SPACE, b"read");
        subject.put(SPACE, "read", &old).await;
        let untouched: Object<S::Body> = subject
            .store
            .retrieve(address, None, ByteRange::Full)
            .await
            .unwrap();
        let replaced = subject
            .store
            .retrieve(address, None, ByteRange::From(5))
            .await
            .unwrap();
        // Enough new values that a store which reuses space too early reuses this.
        for seed in 2..6 {
            subject.put(SPACE, "read", &content(seed, size)).await;
        }
        assert!(
            drain(replaced).await == old[5..],
            "as it was when it was retrieved"
        );
        subject.delete(SPACE, "read").await;
        for seed in 6..10 {
            subject.put(SPACE, "read", &content(seed, size)).await;
        }
        assert!(try_drain(untouched).await.unwrap() == old);
        assert!(subject.get(SPACE, "read").await.unwrap() == content(9, size));
    }
}

async fn what_is_not_there<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let absent = Address::object(SPACE, b"absent");
    let found = store.retrieve(absent, None, ByteRange::Full).await;
    assert_eq!(found.map(|_| ()).unwrap_err().marker(), None);
    refused(store.stat(absent, None).await, ErrorKind::NotFound);
    refused(
        store.stat(absent, Some(VersionId(77_777))).await,
        ErrorKind::NoSuchVersion,
    );
    let amended = store.amend(absent, None, None, Attributes::EMPTY).await;
    refused(amended, ErrorKind::NotFound);
    let deleted = subject.delete(SPACE, "absent").await;
    assert!(!deleted.existed && !deleted.marker && deleted.version.is_none());
    let elsewhere = Address::object("nowhere", b"key");
    let kind = ErrorKind::NoSuchNamespace;
    refused(store.retrieve(elsewhere, None, ByteRange::Full).await, kind);
    refused(store.stat(elsewhere, None).await, kind);
    refused(store.store(elsewhere, StoreOptions::default()).await, kind);
    refused(
        store.delete(elsewhere, DeleteOptions::default()).await,
        kind,
    );
    refused(
        store.amend(elsewhere, None, None, Attributes::EMPTY).await,
        kind,
    );
    refused(store.exist(&[absent, elsewhere]).await, kind);
    // The spaces know nothing of each other.
    subject.put(SPACE, "here", b"1").await;
    subject.stage(SPACE, "there", b"2").await;
    let staged = Address::staging(SPACE, b"here");
    refused(store.stat(staged, None).await, ErrorKind::NotFound);
    assert_eq!(subject.get(SPACE, "there").await, None);
}

async fn amending<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let old = subject.put(SPACE, "amended", b"bytes").await.meta;
    subject.clock.advance(1000);
    let address = Address::object(SPACE, b"amended");
    let new = attributes(&[("tags", "a=b"), ("x", "y")]);
    let amended = store
        .amend(address, None, Some(&old), new.clone())
        .await
        .unwrap();
    let wanted = Meta {
        attributes: new,
        ..old.clone()
    };
    assert_eq!(amended, wanted, "nothing but the attributes changes");
    assert_eq!(store.stat(address, None).await.unwrap(), wanted);
    assert_eq!(subject.get(SPACE, "amended").await.unwrap(), b"bytes");
    let late = store
        .amend(address, None, Some(&old), Attributes::EMPTY)
        .await;
    refused(late, ErrorKind::PreconditionFailed);
    assert_eq!(store.stat(address, None).await.unwrap(), wanted);
    let cleared = store
        .amend(address, Some(VersionId::NULL), None, Attributes::EMPTY)
        .await
        .unwrap();
    assert!(cleared.attributes.is_empty());
}

async fn keys_of_any_bytes<S: Store>(subject: &Subject<S>) {
    let all: Vec<u8> = (0..=255).collect();
    let keys: [&[u8]; 9] = [
        b"\0",
        b"\0\0",
        b"\xff",
        b"\xff\xff",
        b"..",
        b"../..",
        b"a//b",
        &all,
        &[0xff; KEY_BYTES_MAX],
    ];
    for (seed, key) in keys.into_iter().enumerate() {
        let bytes = content(seed as u64, 100);
        let address = Address::object(SPACE, key);
        subject
            .try_put(address, &bytes, Condition::None)
            .await
            .unwrap();
    }
    for (seed, key) in keys.into_iter().enumerate() {
        let address = Address::object(SPACE, key);
        let object = subject.store.retrieve(address, None, ByteRange::Full).await;
        assert_eq!(drain(object.unwrap()).await, content(seed as u64, 100));
        subject
            .store
            .delete(address, DeleteOptions::default())
            .await
            .unwrap();
        refused(subject.store.stat(address, None).await, ErrorKind::NotFound);
    }
}

async fn limits<S: Store>(subject: &Subject<S>) {
    let store = &subject.store;
    let kind = ErrorKind::Invalid;
    let long = vec![b'k'; STAGING_KEY_BYTES_MAX + 1];
    for key in [&b""[..], &long[..=KEY_BYTES_MAX], &long] {
        let address = Address::object(SPACE, key);
        refused(store.store(address, StoreOptions::default()).await, kind);
        refused(store.retrieve(address, None, ByteRange::Full).await, kind);
        refused(store.stat(address, None).await, kind);
        refused(store.delete(address, DeleteOptions::default()).await, kind);
        refused(
            store.amend(address, None, None, Attributes::EMPTY).await,
            kind,
        );
        refused(store.exist(&[address]).await, kind);
    }
    for key in [&b""[..], &long] {
        let address = Address::staging(SPACE, key);
        refused(store.store(address, StoreOptions::default()).await, kind);
    }
    let longest = Address::staging(SPACE, &long[..STAGING_KEY_BYTES_MAX]);
    subject
        .try_put(longest, b"part", Condition::None)
        .await
        .unwrap();
    store
        .delete(longest, DeleteOptions::default())
        .await
        .unwrap();
}

async fn batches<S: Store>(subject: &Subject<S>) {
    subject.namespace("other-values").await;
    let one = subject.put(SPACE, "batch/1", b"1").await.meta;
    let two = subject.put("other-values", "batch/2", b"22").await.meta;
    let three = subject.stage(SPACE, "batch/3", b"333").await.meta;
    let addresses = [
        Address::object("other-values", b"batch/2"),
        Address::object(SPACE, b"batch/2"),
        Address::object(SPACE, b"batch/1"),
        Address::staging(SPACE, b"batch/3"),
        Address::object(SPACE, b"batch/1"),
    ];
    let found = subject.store.exist(&addresses).await.unwrap();
    assert_eq!(
        found,
        [Some(two), None, Some(one.clone()), Some(three), Some(one)]
    );
    assert_eq!(subject.store.exist(&[]).await.unwrap(), []);
    let many = vec![addresses[0]; EXIST_BATCH_MAX + 1];
    refused(subject.store.exist(&many).await, ErrorKind::Invalid);
    let found = subject.store.exist(&many[1..]).await.unwrap();
    assert_eq!(found.len(), EXIST_BATCH_MAX);
}
