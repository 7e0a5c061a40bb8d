//! Namespaces that go, and come anew under their old names or numbers, while hosts are at work in them.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::*;
use forebay_store::{Address, DeleteOptions, NamespaceConfig, Seal, Store, Upload};

use crate::support::*;

const LONG: [u8; 40] = [b'l'; 40];

/// Polls so often; true when it is still not over.
fn goes_on(mut future: Pin<&mut impl Future>, polls: usize) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).all(|_| future.as_mut().poll(&mut cx).is_pending())
}

async fn put(store: &impl Store, namespace: &str, key: &[u8], value: &[u8]) {
    let address = Address::object(namespace, key);
    let mut upload = store.store(address, Default::default()).await.unwrap();
    let mut buf = upload.buffer(value.len()).await.unwrap();
    buf.set_len(value.len());
    buf.copy_from_slice(value);
    upload.write(buf.freeze()).await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
}

/// Makes the namespace of our host anew, for somebody else, who keeps something under the same key.
async fn give_away(store: &impl Store, keys: &[&[u8]]) {
    for key in keys {
        let address = Address::object("values", key);
        store
            .delete(address, DeleteOptions::default())
            .await
            .unwrap();
    }
    store.delete_namespace("values").await.unwrap();
    let config = NamespaceConfig {
        tenant: "others".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace("values", config).await.unwrap();
    put(store, "values", &LONG, b"secret of others").await;
}

fn store_head() -> (KvCommand, Data) {
    let command = KvCommand::Store {
        key: KeyAt::Head,
        value_bytes: 5,
        options: StoreOptions::default(),
    };
    (command, Data::of(Way::Stream, &headed(&LONG, b"value")))
}

fn store_inline() -> (KvCommand, Data) {
    let command = KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes: 5,
        options: StoreOptions::default(),
    };
    (command, Data::of(Way::Stream, b"value"))
}

fn part(offset: u64, last: bool) -> (KvCommand, Data) {
    let command = KvCommand::StorePart {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        offset,
        value_bytes: 5,
        options: StoreOptions::default(),
        last,
    };
    (command, Data::of(Way::Stream, b"value"))
}

fn long(verb: Verb) -> (KvCommand, Data) {
    let command = KvCommand::ExtendedKey { verb };
    (command, Data::of(Way::Stream, &headed(&LONG, b"")))
}

#[tokio::test]
async fn a_command_does_not_reach_what_was_made_under_the_name_of_its_namespace_meanwhile() {
    let commands: [fn() -> (KvCommand, Data); 7] = [
        store_head,
        store_inline,
        || part(0, false),
        || part(0, true),
        || long(Verb::Exist),
        || long(Verb::Delete),
        || long(Verb::Bind),
    ];
    for command in commands {
        for polls in 1.. {
            let mut fixture = Fixture::new().await;
            let store = fixture.store.clone();
            let (command, mut data) = command();
            let mut done = pin!(fixture.kv(command, &mut data));
            if !goes_on(done.as_mut(), polls) {
                assert!(polls > 1, "{command:?} waits for its host");
                break;
            }
            give_away(&*store, &[]).await;
            let status = done.await.unwrap_err();
            assert_eq!(
                status,
                Status::INVALID_NAMESPACE_OR_FORMAT,
                "{command:?} {polls}"
            );
            let theirs = Address::object("values", &LONG);
            assert_eq!(
                store.stat(theirs, None).await.unwrap().size,
                16,
                "{command:?} {polls}"
            );
            let ours = Address::object("values", b"key");
            assert!(store.stat(ours, None).await.is_err(), "{command:?} {polls}");
        }
    }
}

#[tokio::test]
async fn a_list_gives_others_their_turn_and_does_not_go_on_in_another_namespace() {
    const KEYS: usize = 3000;
    let keys: Vec<Vec<u8>> = (0..KEYS)
        .map(|at| format!("a key too long for hosts {at:06}").into_bytes())
        .collect();
    let command = KvCommand::List {
        start: ListStart::First,
        extended: false,
        buffer_bytes: 4096,
    };
    let mut fixture = Fixture::new().await;
    let store = fixture.store.clone();
    for key in &keys {
        put(&*store, "values", key, b"1").await;
    }
    let mut data = Data::room(Way::Stream, 4096);
    let mut turns = 0;
    {
        let mut listed = pin!(fixture.kv(command, &mut data));
        while goes_on(listed.as_mut(), 1) {
            turns += 1;
        }
    }
    // Between three pages, and until the host has taken what there is.
    assert_eq!(turns, 3);

    let mut data = Data::room(Way::Stream, 4096);
    let extended = KvCommand::List {
        start: ListStart::First,
        extended: true,
        buffer_bytes: 1 << 20,
    };
    let mut room = Data::room(Way::Stream, 1 << 20);
    for (command, data) in [(command, &mut data), (extended, &mut room)] {
        let mut fixture = Fixture::new().await;
        let store = fixture.store.clone();
        for key in &keys {
            put(&*store, "values", key, b"1").await;
        }
        let mut listed = pin!(fixture.kv(command, data));
        assert!(goes_on(listed.as_mut(), 1));
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        give_away(&*store, &keys).await;
        assert_eq!(listed.await, Err(Status::INVALID_NAMESPACE_OR_FORMAT));
    }
}

#[tokio::test]
async fn what_was_begun_in_a_namespace_does_not_go_on_in_another_of_its_number() {
    let mut fixture = Fixture::new().await;
    let config = NamespaceConfig {
        tenant: "ours".to_owned(),
        ..NamespaceConfig::default()
    };
    fixture
        .store
        .create_namespace("other", config)
        .await
        .unwrap();
    for namespace in ["values", "other"] {
        put(&*fixture.store, namespace, &LONG, b"value").await;
    }
    let (command, mut data) = part(0, false);
    assert_eq!(fixture.kv(command, &mut data).await, Ok(0));
    let (command, mut data) = long(Verb::Bind);
    let handle = (fixture.kv(command, &mut data).await.unwrap() >> 32) as u32;
    let bound = KvCommand::RetrieveRange {
        key: RangeKey::Bound(handle),
        offset: 0,
        buffer_bytes: 5,
    };
    let mut room = Data::room(Way::Stream, 5);
    assert_eq!(fixture.kv(bound, &mut room).await, Ok(5));

    fixture.target.publish(vec![key_value(KV, "other")]);
    let (command, mut data) = part(5, true);
    let order = Err(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(fixture.kv(command, &mut data).await, order);
    let mut room = Data::room(Way::Stream, 5);
    let refused = Err(Status::INVALID_FIELD);
    assert_eq!(fixture.kv(bound, &mut room).await, refused);
    // Nothing of it is in either.
    for namespace in ["values", "other"] {
        let address = Address::object(namespace, b"key");
        assert!(fixture.store.stat(address, None).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_nobody_goes_on_with_is_forgotten_by_time_alone() {
    const PART_BYTES: usize = VALUE_BYTES_MAX as usize;
    let mut fixture = Fixture::new().await;
    let store = fixture.store.clone();
    let full = async || {
        let options = forebay_store::StoreOptions {
            size: Some(1),
            ..Default::default()
        };
        let address = Address::object("values", b"other");
        store.store(address, options).await.is_err()
    };
    // All that the namespace may hold.
    for part in 1..=8 {
        assert!(!full().await);
        let command = KvCommand::StorePart {
            key: KeyAt::Inline(Key::new(&[part]).unwrap()),
            offset: 0,
            value_bytes: VALUE_BYTES_MAX,
            options: StoreOptions::default(),
            last: false,
        };
        let mut data = Data::of(Way::Stream, &vec![1; PART_BYTES]);
        assert_eq!(fixture.kv(command, &mut data).await, Ok(0));
    }
    let mut since = u64::MAX;
    let mut changed = pin!(fixture.target.changed(&fixture.session, &mut since));
    let minute = Duration::from_secs(60);
    for _ in 0..2 {
        assert!(goes_on(changed.as_mut(), 1));
        assert!(full().await);
        fixture.clock.advance(minute);
        tokio::time::advance(minute).await;
    }
    // Timers are as exact as a millisecond.
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(goes_on(changed.as_mut(), 1));
    assert!(!full().await);
}
