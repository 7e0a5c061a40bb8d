//! Payloads that lie, hosts that go, and stores that are full.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::*;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_store::{Scope, Store, Usage};

use crate::support::*;

#[tokio::test]
async fn sizes_that_lie() {
    let mut fixture = Fixture::new().await;
    let store = |value_bytes: u32| KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes,
        options: StoreOptions::default(),
    };
    let short = Err(Status::DATA_SGL_LENGTH_INVALID);
    for way in WAYS {
        let mut data = Data::of(way, b"123");
        assert_eq!(fixture.kv(store(4), &mut data).await, short);
        assert_eq!(data.moved(), 0);
        // Longer: the value is what the command says.
        let mut data = Data::of(way, b"12345");
        assert_eq!(fixture.kv(store(4), &mut data).await, Ok(0));
        let (size, bytes) = fixture.retrieve(b"key", 10, way).await.unwrap();
        assert_eq!((size, &bytes[..]), (4, &b"1234"[..]));
        let retrieve = KvCommand::Retrieve {
            key: Key::new(b"key").unwrap(),
            buffer_bytes: 10,
        };
        assert_eq!(fixture.kv(retrieve, &mut Data::room(way, 9)).await, short);
        let list = |buffer_bytes| KvCommand::List {
            start: ListStart::First,
            extended: false,
            buffer_bytes,
        };
        assert_eq!(fixture.kv(list(8), &mut Data::room(way, 7)).await, short);
        for room in 0..4 {
            assert_eq!(
                fixture
                    .kv(list(room), &mut Data::room(way, room as usize))
                    .await,
                short
            );
        }
        let blocks = Blocks { first: 0, count: 2 };
        let mut data = Data::room(way, 2 * BLOCK_BYTES - 1);
        for command in [
            NvmCommand::Read { blocks },
            NvmCommand::Write { blocks, fua: false },
            NvmCommand::Compare { blocks },
        ] {
            let refused = fixture.nvm(command, &mut data).await;
            assert_eq!(refused, short.map(|_| ()));
        }
        let manage = NvmCommand::DatasetManagement {
            ranges: 2,
            deallocate: true,
        };
        assert_eq!(
            fixture.nvm(manage, &mut Data::of(way, &[0; 31])).await,
            short.map(|_| ())
        );
    }
}

#[tokio::test]
async fn heads_that_lie() {
    let mut fixture = Fixture::new().await;
    let wrong = Err(Status::INVALID_KEY_SIZE);
    for way in WAYS {
        for (payload, value_bytes) in [
            (&b""[..], 0),
            (b"\x01", 0),
            (b"\x03\0key", 5),
            (b"\x03\0key", 6),
            (b"\0\0", 0),
            (b"\0\0value", 5),
            (b"\0\x01value", 5),
            (b"\xff\xffvalue", 5),
            (b"\x03\0keyvalu", 5),
            (b"\x06\0keyvalue", 5),
        ] {
            let store = KvCommand::Store {
                key: KeyAt::Head,
                value_bytes,
                options: StoreOptions::default(),
            };
            let mut data = Data::of(way, payload);
            assert_eq!(fixture.kv(store, &mut data).await, wrong, "{payload:?}");
        }
        for payload in [
            &b""[..],
            b"\x01",
            b"\x01\0",
            b"\0\0k",
            b"\0\x01k",
            b"\x03\0ke",
        ] {
            let exist = KvCommand::ExtendedKey { verb: Verb::Exist };
            let mut data = Data::of(way, payload);
            assert_eq!(fixture.kv(exist, &mut data).await, wrong, "{payload:?}");
        }
    }
    assert_eq!(
        fixture.store.usage(Scope::Namespace("values")).unwrap(),
        Usage::default()
    );
}

#[tokio::test]
async fn handles_of_nobody_and_of_others() {
    let mut fixture = Fixture::new().await;
    fixture.store(b"key", b"value", Way::Stream).await.unwrap();
    let mut data = Data::of(Way::Stream, b"\x03\0key");
    let bind = KvCommand::ExtendedKey { verb: Verb::Bind };
    let handle = (fixture.kv(bind, &mut data).await.unwrap() >> 32) as u32;
    let range = |handle| KvCommand::RetrieveRange {
        key: RangeKey::Bound(handle),
        offset: 0,
        buffer_bytes: 5,
    };
    assert_eq!(
        fixture
            .kv(range(handle), &mut Data::room(Way::Stream, 5))
            .await,
        Ok(5)
    );
    let unknown = Err(Status::INVALID_FIELD);
    for other in [0, handle.wrapping_add(1), u32::MAX ^ handle] {
        assert_eq!(
            fixture
                .kv(range(other), &mut Data::room(Way::Stream, 5))
                .await,
            unknown
        );
    }
    // Another controller of the same host knows nothing of it.
    let other = fixture.target.connect(0, &connect("nqn.our-host")).unwrap();
    let own = std::mem::replace(&mut fixture.session, other.session);
    assert_eq!(
        fixture
            .kv(range(handle), &mut Data::room(Way::Stream, 5))
            .await,
        unknown
    );
    fixture.session = own;
    fixture.session.reset();
    assert_eq!(
        fixture
            .kv(range(handle), &mut Data::room(Way::Stream, 5))
            .await,
        unknown
    );
}

#[tokio::test]
async fn a_host_that_goes_in_the_middle_leaves_the_old_value() {
    let mut fixture = Fixture::new().await;
    fixture.store(b"key", b"old", Way::Stream).await.unwrap();
    let used = fixture.store.usage(Scope::Namespace("values")).unwrap();
    let value = vec![7; 3 << 20];
    let store = KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes: value.len() as u32,
        options: StoreOptions::default(),
    };
    // Its data ends with an error.
    for comes in [0, 1, 1 << 20, (3 << 20) - 1] {
        let mut data = Data::of(Way::Stream, &value);
        data.comes = comes;
        let gone = fixture.kv(store, &mut data).await;
        assert_eq!(gone, Err(Status::TRANSIENT_TRANSPORT_ERROR));
        assert_eq!(
            fixture.retrieve(b"key", 8, Way::Stream).await.unwrap().1,
            b"old"
        );
    }
    // It is dropped, after any number of turns.
    let command = fixture.controller.io(0, 1, &store.entry(1, KV)).unwrap();
    for turns in 0..8 {
        let mut data = Data::of(Way::Stream, &value);
        let mut execute = pin!(
            fixture
                .target
                .execute(&fixture.session, &command, &mut data)
        );
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..turns {
            if execute.as_mut().poll(&mut context).is_ready() {
                panic!("a value of several buffers takes more turns");
            }
        }
    }
    assert_eq!(
        fixture.retrieve(b"key", 8, Way::Stream).await.unwrap().1,
        b"old"
    );
    assert_eq!(
        fixture.store.usage(Scope::Namespace("values")).unwrap(),
        used
    );
}

#[tokio::test]
async fn a_full_namespace_keeps_what_it_has() {
    let mut fixture = Fixture::new().await;
    fixture.store(b"key", b"old", Way::Stream).await.unwrap();
    let value = vec![7; VALUE_BYTES_MAX as usize];
    let mut stored = 0;
    let full = loop {
        match fixture.store(&[stored], &value, Way::Stream).await {
            Ok(_) => stored += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((full, stored), (Status::CAPACITY_EXCEEDED, 7));
    assert_eq!(
        fixture.retrieve(b"key", 8, Way::Stream).await.unwrap().1,
        b"old"
    );
    // What takes no more than it gives back fits.
    assert_eq!(fixture.store(&[0], &value, Way::Stream).await, Ok(0));
    let delete = KvCommand::Delete {
        key: Key::new(&[0]).unwrap(),
    };
    fixture.kv(delete, &mut Data::none()).await.unwrap();
    assert_eq!(fixture.store(b"new", &value, Way::Stream).await, Ok(0));
}

#[tokio::test]
async fn one_of_many_that_want_a_new_key_gets_it() {
    let mut fixture = Fixture::new().await;
    let options = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let store = KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes: 4,
        options,
    };
    let command = fixture.controller.io(0, 1, &store.entry(1, KV)).unwrap();
    let other = fixture.target.connect(0, &connect("nqn.our-host")).unwrap();
    let one = async |session, value: &[u8]| {
        let mut data = Data::of(Way::Stream, value);
        fixture
            .target
            .execute(session, &command, &mut data)
            .await
            .0
            .code()
    };
    let all = futures_util::future::join_all([
        one(&fixture.session, b"1111"),
        one(&other.session, b"2222"),
        one(&fixture.session, b"3333"),
        one(&other.session, b"4444"),
    ])
    .await;
    let won = all.iter().filter(|status| status.is_success()).count();
    let lost = all
        .iter()
        .filter(|status| **status == Status::KEY_EXISTS)
        .count();
    assert_eq!((won, lost), (1, 3));
}
