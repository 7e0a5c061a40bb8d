//! What is admitted is a namespace and not its name: another tenant's of the same name is another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_direct::{Config, Door};
use forebay_fabric::{Access, Fabric, Link};
use forebay_mem::Region;
use forebay_proto::direct::{
    Body, Hop, Operation, Range, RequestWriter, Retrieve, Status, Target, Window, parse_reply,
};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, DeleteOptions, MemoryBody, MemoryStore, MemoryUpload, Meta,
    NamespaceConfig, Object, Scope, Store, StoreOptions, VersionId,
};

use crate::any::Way;
use crate::support::*;

/// Messages that a pipe holds for an end that reads none.
const PIPE_MESSAGES: usize = 64;
/// Elements of one request, whose results need several replies.
const ELEMENTS: usize = 200;

/// Sends a request of [`ELEMENTS`] elements and reads no reply until the door can do no more.
async fn stall(
    caller: &Caller,
    operation: Operation,
    element: impl Fn(&mut RequestWriter<'_>, &[u8]),
) -> u64 {
    for _ in 0..PIPE_MESSAGES {
        caller.send(Operation::Ping, "", |_| {}).await;
    }
    let id = caller
        .send(operation, NAMESPACE, |writer| {
            (0..ELEMENTS).for_each(|number| element(writer, format!("k{number}").as_bytes()));
        })
        .await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    id
}

/// Reads all that [`stall`] left waiting; the answer to its request.
async fn go_on(caller: &Caller, id: u64) -> Answer {
    for ping in id - PIPE_MESSAGES as u64..id {
        caller.answer(ping).await;
    }
    caller.answer(id).await
}

/// The namespace ends, and the other tenant makes one of the same name.
async fn change_hands(store: &MemoryStore) {
    for number in 0..ELEMENTS {
        let key = format!("k{number}");
        let address = Address::object(NAMESPACE, key.as_bytes());
        let deleted = store.delete(address, DeleteOptions::default());
        deleted.await.unwrap();
    }
    store.delete_namespace(NAMESPACE).await.unwrap();
    let config = NamespaceConfig {
        tenant: OTHER.to_owned(),
        ..NamespaceConfig::default()
    };
    let made = store.create_namespace(NAMESPACE, config);
    made.await.unwrap();
}

/// How many elements were done before the namespace changed hands; all others must find none.
#[track_caller]
fn done_before(answer: &Answer) -> usize {
    assert_eq!(answer.results.len(), ELEMENTS);
    let done = |said: &&Said| said.status() == Status::Ok;
    let count = answer.results.iter().take_while(done).count();
    let words = "there is no such namespace".to_owned();
    let none = Said::Failed(Status::NoSuchNamespace, Hop::None, words);
    for said in &answer.results[count..] {
        assert_eq!(*said, none);
    }
    assert!(0 < count && count < ELEMENTS, "{count}");
    count
}

#[tokio::test(flavor = "local")]
async fn elements_are_of_the_namespace_that_was_admitted() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    for number in 0..ELEMENTS {
        let key = format!("k{number}");
        server.set(NAMESPACE, key.as_bytes(), &[1; 1000]).await;
    }
    let id = stall(&caller, Operation::Retrieve, |writer, key| {
        writer.retrieve(&whole(key, Target::Message)).unwrap();
    })
    .await;
    change_hands(&server.store).await;
    for number in 0..ELEMENTS {
        let key = format!("k{number}");
        server.set(NAMESPACE, key.as_bytes(), &[2; 1000]).await;
    }
    let answer = go_on(&caller, id).await;
    for said in &answer.results[..done_before(&answer)] {
        let Said::Value { bytes, .. } = said else {
            panic!("{said:?}");
        };
        assert_eq!(bytes.as_deref(), Some(&[1; 1000][..]));
    }

    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    let id = stall(&caller, Operation::Store, |writer, key| {
        writer.store(&plain(key, Body::Message(b"x"))).unwrap();
    })
    .await;
    change_hands(&server.store).await;
    done_before(&go_on(&caller, id).await);
    let used = server.store.usage(Scope::Namespace(NAMESPACE)).unwrap();
    assert_eq!(used.objects, 0);
}

/// The namespace changes hands when keys were looked up so many times, and has values under the same keys then.
#[derive(Clone)]
struct Bequest(Arc<AtomicUsize>);

impl Detour<MemoryStore> for Bequest {
    async fn exist(
        &self,
        store: &MemoryStore,
        addresses: &[Address<'_>],
    ) -> forebay_store::Result<Vec<Option<Meta>>> {
        let found = store.exist(addresses).await;
        if self.0.fetch_sub(1, Relaxed) == 1 {
            change_hands(store).await;
            for number in 0..ELEMENTS {
                let key = format!("k{number}");
                write(store, NAMESPACE, key.as_bytes(), b"x").await;
            }
        }
        found
    }
}

/// The namespace changes hands before the store does anything, and has values under the same keys then.
#[derive(Clone)]
struct Haste;

impl Haste {
    async fn inherit(store: &MemoryStore) {
        change_hands(store).await;
        write(store, NAMESPACE, b"k0", b"theirs").await;
    }
}

impl Detour<MemoryStore> for Haste {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> forebay_store::Result<Object<MemoryBody>> {
        Haste::inherit(store).await;
        store.retrieve(address, version, range).await
    }

    async fn store(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: StoreOptions,
    ) -> forebay_store::Result<MemoryUpload> {
        Haste::inherit(store).await;
        store.store(address, options).await
    }
}

#[tokio::test(flavor = "local")]
async fn what_a_store_found_late_is_not_given_on() {
    let part = Range::Inclusive(0, 1);
    // Copied by the store's buffers, carried by the link, in the reply; alone and with another; stored.
    for (way, into_reply, elements) in [
        (Fabric::Shm, false, 1),
        (Fabric::Iwarp, false, 1),
        (Fabric::Shm, true, 1),
        (Fabric::Shm, true, 2),
        (Fabric::Shm, true, 0),
    ] {
        let server = Server::new().await;
        server.set(NAMESPACE, b"k0", b"ours").await;
        let store = Around {
            store: (*server.store).clone(),
            detour: Haste,
        };
        let door = Door::new(Arc::new(store), Config::default());
        let session = server.session(TENANT);
        let (near, far, _) = server.join(&session, Way::Pipe(way)).await;
        let memory = Region::memfd(4096).unwrap().slice(0..4096).unwrap();
        let exposure = near.expose(memory.clone(), Access::Write).await.unwrap();
        let target = match into_reply {
            true => Target::Message,
            false => Target::Window(Window {
                stag: exposure.stag.0,
                offset: 0,
                len: 4096,
            }),
        };
        let asking = async {
            let mut message = Vec::new();
            let operation = match elements {
                0 => Operation::Store,
                _ => Operation::Retrieve,
            };
            let mut writer = RequestWriter::begin(&mut message, operation, 1, NAMESPACE).unwrap();
            for _ in 0..elements {
                let range = part;
                let element = Retrieve {
                    range,
                    ..whole(b"k0", target)
                };
                writer.retrieve(&element).unwrap();
            }
            if elements == 0 {
                writer.store(&plain(b"k0", Body::Message(b"x"))).unwrap();
            }
            writer.finish();
            near.send(&message).await.unwrap();
            near.recv(&mut message).await.unwrap().unwrap();
            for result in parse_reply(&message).unwrap().results {
                assert_eq!(result.status, Status::NoSuchNamespace);
            }
        };
        tokio::select! {
            reason = door.serve(&session, &far, std::future::pending()) => panic!("{reason}"),
            () = asking => {}
        }
        let mut placed = [0; 6];
        assert!(memory.read(0, &mut placed));
        assert_eq!(placed, [0; 6]);
        let theirs = server.value(NAMESPACE, b"k0").await;
        assert_eq!(theirs.as_deref(), Some(&b"theirs"[..]));
    }
}

#[tokio::test(flavor = "local")]
async fn keys_are_those_of_the_namespace_that_was_admitted() {
    // In the midst, after the last step, and not at all.
    for (operation, looks, none) in [
        (Operation::LongestPrefix, 1, true),
        (Operation::LongestPrefix, ELEMENTS.div_ceil(64), true),
        (Operation::LongestPrefix, usize::MAX, false),
        (Operation::Exist, 1, true),
        (Operation::Exist, usize::MAX, false),
    ] {
        let server = Server::new().await;
        for number in 0..ELEMENTS {
            let key = format!("k{number}");
            server.set(NAMESPACE, key.as_bytes(), b"x").await;
        }
        let store = Around {
            store: (*server.store).clone(),
            detour: Bequest(Arc::new(AtomicUsize::new(looks))),
        };
        let door = Door::new(Arc::new(store), Config::default());
        let session = server.session(TENANT);
        let (near, far, _) = server.join(&session, Way::Pipe(Fabric::Shm)).await;
        let mut message = Vec::new();
        let mut writer = RequestWriter::begin(&mut message, operation, 1, NAMESPACE).unwrap();
        for number in 0..ELEMENTS {
            writer.key(format!("k{number}").as_bytes()).unwrap();
        }
        writer.finish();
        near.send(&message).await.unwrap();
        let serving = door.serve(&session, &far, std::future::pending());
        tokio::select! {
            reason = serving => panic!("{reason}"),
            answer = near.recv(&mut message) => answer.unwrap().unwrap(),
        }
        let mut results = parse_reply(&message).unwrap().results;
        let result = results.next().unwrap();
        match none {
            true => assert_eq!(result.status, Status::NoSuchNamespace),
            false if operation == Operation::Exist => assert_eq!(result.status, Status::Ok),
            false => assert_eq!(result.prefix().unwrap(), ELEMENTS as u64),
        }
    }
}
