//! Keys and values.

use std::pin::pin;
use std::task::{Context, Waker};

use forebay_mem::Pool;
use forebay_proto::nvme::kv::*;
use forebay_proto::nvme::{IoCommand, Status};
use forebay_store::{Address, Store};

use crate::support::*;

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[tokio::test]
async fn values_come_back_by_every_way_and_tell_their_length() {
    let mut fixture = Fixture::new().await;
    for way in WAYS {
        for len in [0, 1, 511, 4096, 300_000, VALUE_BYTES_MAX as usize] {
            let value = pattern(len);
            assert_eq!(
                fixture.store(b"key", &value, way).await,
                Ok(0),
                "{way:?} {len}"
            );
            for room in [0, 1, len.saturating_sub(1), len, len + 1, len + 5000] {
                let (size, bytes) = fixture.retrieve(b"key", room, way).await.unwrap();
                assert_eq!(size, len as u64, "{way:?} {len} {room}");
                assert_eq!(bytes, value[..len.min(room)], "{way:?} {len} {room}");
            }
        }
    }
}

#[tokio::test]
async fn a_short_value_leaves_the_rest_of_the_buffer_alone() {
    let mut fixture = Fixture::new().await;
    fixture.store(b"key", b"short", Way::Stream).await.unwrap();
    let command = KvCommand::Retrieve {
        key: key(b"key"),
        buffer_bytes: 4096,
    };
    let mut data = Data::of(Way::Stream, &[0xee; 4096]);
    assert_eq!(fixture.kv(command, &mut data).await, Ok(5));
    assert_eq!(data.moved(), 5);
    assert_eq!(data.bytes()[..8], *b"short\xee\xee\xee");
}

#[tokio::test]
async fn conditions_deletes_and_what_exists() {
    let mut fixture = Fixture::new().await;
    let absent = Err(Status::KV_KEY_DOES_NOT_EXIST);
    let mut none = Data::none();
    let if_exists = StoreOptions {
        if_exists: true,
        ..StoreOptions::default()
    };
    let if_absent = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let exist = KvCommand::Exist { key: key(b"key") };
    let delete = KvCommand::Delete { key: key(b"key") };
    assert_eq!(fixture.kv(exist, &mut none).await, absent);
    assert_eq!(fixture.kv(delete, &mut none).await, absent);
    assert_eq!(
        fixture.retrieve(b"key", 10, Way::Stream).await.map(|_| 0),
        absent
    );
    assert_eq!(
        fixture.retrieve(b"key", 0, Way::Stream).await.map(|_| 0),
        absent
    );
    assert_eq!(
        fixture
            .store_with(b"key", b"1", if_exists, Way::Stream)
            .await,
        absent
    );
    assert_eq!(
        fixture
            .store_with(b"key", b"12", if_absent, Way::Stream)
            .await,
        Ok(0)
    );
    let exists = Err(Status::KEY_EXISTS);
    assert_eq!(
        fixture
            .store_with(b"key", b"1", if_absent, Way::Stream)
            .await,
        exists
    );
    assert_eq!(fixture.kv(exist, &mut none).await, Ok(2));
    assert_eq!(
        fixture
            .store_with(b"key", b"123", if_exists, Way::Stream)
            .await,
        Ok(0)
    );
    assert_eq!(fixture.kv(exist, &mut none).await, Ok(3));
    // What other doors see.
    let address = Address::object("values", b"key");
    assert_eq!(fixture.store.stat(address, None).await.unwrap().size, 3);
    assert_eq!(fixture.kv(delete, &mut none).await, Ok(0));
    assert_eq!(fixture.kv(exist, &mut none).await, absent);
    assert_eq!(fixture.kv(KvCommand::Flush, &mut none).await, Ok(0));
}

#[tokio::test]
async fn values_with_a_time_to_live_go() {
    let mut fixture = Fixture::new().await;
    let ttl = |ttl_s| StoreOptions {
        ttl_s: Some(ttl_s),
        ..StoreOptions::default()
    };
    let refused = fixture.store_with(b"key", b"1", ttl(0), Way::Stream).await;
    assert_eq!(refused, Err(Status::INVALID_FIELD));
    fixture
        .store_with(b"key", b"1", ttl(60), Way::Stream)
        .await
        .unwrap();
    fixture.pass(59);
    assert!(fixture.retrieve(b"key", 1, Way::Stream).await.is_ok());
    fixture.pass(1);
    assert!(fixture.retrieve(b"key", 1, Way::Stream).await.is_err());
}

async fn list(
    fixture: &mut Fixture,
    start: ListStart,
    extended: bool,
    room: usize,
) -> Vec<Vec<u8>> {
    let command = KvCommand::List {
        start,
        extended,
        buffer_bytes: room as u32,
    };
    let mut data = Data::room(Way::Stream, room);
    fixture.kv(command, &mut data).await.unwrap();
    let bytes = data.bytes();
    ListReader::new(&bytes)
        .unwrap()
        .map(<[u8]>::to_vec)
        .collect()
}

#[tokio::test]
async fn lists_go_on_from_a_key_whether_it_exists_or_not() {
    let mut fixture = Fixture::new().await;
    let mut keys: Vec<Vec<u8>> = (0..1500)
        .map(|at| format!("k{at:04}").into_bytes())
        .collect();
    let long = vec![b'l'; 100];
    keys.extend([
        b"\0".to_vec(),
        b"..".to_vec(),
        b"/".to_vec(),
        b"\n".to_vec(),
        vec![0xff; 16],
    ]);
    for key in keys.iter().chain([&long]) {
        fixture.store(key, b"", Way::Stream).await.unwrap();
    }
    keys.sort();
    assert_eq!(
        list(&mut fixture, ListStart::First, false, 1 << 20).await,
        keys
    );
    assert!(
        list(&mut fixture, ListStart::First, false, 4)
            .await
            .is_empty()
    );
    assert!(
        list(&mut fixture, ListStart::First, false, 7)
            .await
            .is_empty()
    );
    // Page by page, as a host does it: with the last key again, left out.
    let mut found: Vec<Vec<u8>> = Vec::new();
    loop {
        let start = found
            .last()
            .map_or(ListStart::First, |last| ListStart::Key(key(last)));
        let page = list(&mut fixture, start, false, 400).await;
        let skip = usize::from(!found.is_empty());
        if page.len() <= skip {
            break;
        }
        found.extend_from_slice(&page[skip..]);
    }
    assert_eq!(found, keys);
    let between = list(&mut fixture, ListStart::Key(key(b"k0007a")), false, 12).await;
    assert_eq!(between, [b"k0008".to_vec()]);
    // Long keys on demand, and from a long key on.
    let mut all = keys.clone();
    all.push(long.clone());
    all.sort();
    assert_eq!(
        list(&mut fixture, ListStart::First, true, 1 << 20).await,
        all
    );
    let mut data = Data::of(Way::Stream, &headed(&long[..99], b""));
    let position = KvCommand::ExtendedKey {
        verb: Verb::Position,
    };
    let handle = fixture.kv(position, &mut data).await.unwrap() >> 32;
    let rest = list(&mut fixture, ListStart::Bound(handle as u32), true, 1 << 20).await;
    assert_eq!(rest, [long, vec![0xff; 16]]);
}

#[tokio::test]
async fn long_keys_in_payloads() {
    let mut fixture = Fixture::new().await;
    let absent = Err(Status::KV_KEY_DOES_NOT_EXIST);
    for len in [1, 16, 17, 255] {
        let long = pattern(len);
        for way in WAYS {
            let value = pattern(10_000);
            let command = KvCommand::Store {
                key: KeyAt::Head,
                value_bytes: value.len() as u32,
                options: StoreOptions::default(),
            };
            let mut data = Data::of(way, &headed(&long, &value));
            assert_eq!(fixture.kv(command, &mut data).await, Ok(0));
            let mut verb = async |verb| {
                let mut data = Data::of(way, &headed(&long, b""));
                fixture.kv(KvCommand::ExtendedKey { verb }, &mut data).await
            };
            assert_eq!(verb(Verb::Exist).await, Ok(10_000));
            let bound = verb(Verb::Bind).await.unwrap();
            assert_eq!(bound as u32, 10_000);
            let handle = (bound >> 32) as u32;
            for (offset, room) in [
                (0, 10_000),
                (1, 10),
                (9_999, 100),
                (10_000, 10),
                (u64::MAX, 10),
            ] {
                let command = KvCommand::RetrieveRange {
                    key: RangeKey::Bound(handle),
                    offset,
                    buffer_bytes: room as u32,
                };
                let mut data = Data::room(way, room);
                assert_eq!(fixture.kv(command, &mut data).await, Ok(10_000));
                let from = offset.min(10_000) as usize;
                let there = &value[from..(from + room).min(10_000)];
                assert_eq!(data.bytes()[..there.len()], *there);
            }
            let mut verb = async |verb| {
                let mut data = Data::of(way, &headed(&long, b""));
                fixture.kv(KvCommand::ExtendedKey { verb }, &mut data).await
            };
            assert_eq!(verb(Verb::Delete).await, Ok(0));
            assert_eq!(verb(Verb::Delete).await, absent);
            assert_eq!(verb(Verb::Bind).await, absent);
        }
    }
}

#[tokio::test]
async fn values_in_parts_appear_whole() {
    let mut fixture = Fixture::new().await;
    let value = pattern(100_000);
    let part = |offset: usize, len: usize, last: bool| KvCommand::StorePart {
        key: KeyAt::Inline(Key::new(b"parts").unwrap()),
        offset: offset as u64,
        value_bytes: len as u32,
        options: StoreOptions::default(),
        last,
    };
    let order = Err(Status::COMMAND_SEQUENCE_ERROR);
    let mut send = async |offset: usize, len: usize, last: bool| {
        let mut data = Data::of(Way::Stream, &value[offset..offset + len]);
        fixture.kv(part(offset, len, last), &mut data).await
    };
    assert_eq!(send(10, 10, false).await, order);
    assert_eq!(send(0, 40_000, false).await, Ok(0));
    assert_eq!(send(40_000, 40_000, false).await, Ok(0));
    // A gap; what had come is forgotten.
    assert_eq!(send(80_001, 10, false).await, order);
    assert_eq!(send(80_000, 20_000, true).await, order);
    assert_eq!(send(0, 40_000, false).await, Ok(0));
    assert_eq!(send(40_000, 60_000, false).await, Ok(0));
    assert!(fixture.retrieve(b"parts", 1, Way::Stream).await.is_err());
    let mut end = Data::none();
    assert_eq!(fixture.kv(part(100_000, 0, true), &mut end).await, Ok(0));
    let (size, bytes) = fixture
        .retrieve(b"parts", 100_000, Way::Stream)
        .await
        .unwrap();
    assert_eq!((size, bytes == value), (100_000, true));
    // A reset forgets, and so does time.
    for forget in [true, false] {
        let mut data = Data::of(Way::Stream, b"begun");
        assert_eq!(fixture.kv(part(0, 5, false), &mut data).await, Ok(0));
        match forget {
            true => fixture.session.reset(),
            false => {
                fixture.pass(200);
                let mut other = Data::of(Way::Stream, b"other");
                let command = KvCommand::StorePart {
                    key: KeyAt::Inline(Key::new(b"other").unwrap()),
                    offset: 0,
                    value_bytes: 5,
                    options: StoreOptions::default(),
                    last: false,
                };
                assert_eq!(fixture.kv(command, &mut other).await, Ok(0));
            }
        }
        let mut data = Data::of(Way::Stream, b"more");
        assert_eq!(fixture.kv(part(5, 4, true), &mut data).await, order);
    }
}

fn part_of(name: &[u8], offset: u64, len: usize, last: bool) -> KvCommand {
    KvCommand::StorePart {
        key: KeyAt::Inline(key(name)),
        offset,
        value_bytes: len as u32,
        options: StoreOptions::default(),
        last,
    }
}

#[tokio::test]
async fn a_value_in_parts_is_no_longer_than_any() {
    let mut fixture = Fixture::new().await;
    let most = u64::from(VALUE_BYTES_MAX);
    let mut send = async |offset: u64, len: usize, last: bool| {
        let mut data = Data::of(Way::Stream, &pattern(len));
        let part = part_of(b"long", offset, len, last);
        fixture.kv(part, &mut data).await
    };
    let half = VALUE_BYTES_MAX as usize / 2;
    assert_eq!(send(0, half, false).await, Ok(0));
    let longer = Err(Status::INVALID_VALUE_SIZE);
    assert_eq!(send(most / 2, half + 1, true).await, longer);
    assert_eq!(send(u64::MAX, 1, true).await, longer);
    assert_eq!(send(most / 2, half, true).await, Ok(0));
    let (size, _) = fixture.retrieve(b"long", 0, Way::Stream).await.unwrap();
    assert_eq!(size, most);
}

/// Also while a part of it arrives.
#[tokio::test]
async fn a_value_that_began_is_not_forgotten_for_a_later_one() {
    const UNFINISHED_MAX: u8 = 32;
    let mut fixture = Fixture::over(Pool::new(512 << 20)).await;
    let mut checked = |name: &[u8], offset, len, last| {
        let entry = part_of(name, offset, len, last).entry(1, KV);
        fixture.controller.io(0, 1, &entry).unwrap()
    };
    let begins = checked(b"first", 0, 5, false);
    let goes_on = checked(b"first", 5, 5, false);
    let ends = checked(b"first", 10, 6, true);
    let others = (1..=UNFINISHED_MAX).map(|number| checked(&[number], 0, 5, false));
    let others: Vec<IoCommand> = others.collect();
    let (target, session) = (&fixture.target, &fixture.session);
    let execute = async |command: &IoCommand, bytes: &[u8]| {
        let mut data = Data::of(Way::Stream, bytes);
        target.execute(session, command, &mut data).await.0.code()
    };
    assert_eq!(execute(&begins, b"begun").await, Status::SUCCESS);
    {
        let mut arriving = pin!(execute(&goes_on, b", and"));
        // It waits for its data.
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(arriving.as_mut().poll(&mut cx).is_pending());
        }
        let mut begun = Vec::new();
        for other in &others {
            begun.push(execute(other, b"other").await);
        }
        assert_eq!(begun.pop(), Some(Status::CAPACITY_EXCEEDED));
        assert!(begun.iter().all(|status| status.is_success()));
        assert_eq!(arriving.await, Status::SUCCESS);
    }
    assert_eq!(execute(&ends, b" ended").await, Status::SUCCESS);
    let found = fixture.retrieve(b"first", 99, Way::Stream).await.unwrap();
    assert_eq!(found.1, b"begun, and ended");
}
