//! Clients that lie. None reads or writes a foreign byte, and each hears the words for what does not exist.

use std::time::Duration;

use forebay_fabric::{Access, CloseReason, Fabric, Link};
use forebay_proto::direct::{
    Body, Delete, Hop, List, ListAfter, Operation, Range, RequestWriter, Retrieve, Stat, Status,
    Target, Window, parse_reply,
};
use proptest::prelude::*;

use crate::any::{WAYS, Way};
use crate::support::*;

/// Everything that can be asked of a namespace.
async fn everything(caller: &Caller, namespace: &str, memory: &Memory) -> Vec<Said> {
    let window = memory.window(0, 64);
    let mut said = vec![
        caller
            .retrieve(namespace, b"key", Target::Window(window))
            .await,
        caller.retrieve(namespace, b"key", Target::Message).await,
        caller.store(namespace, b"key", Body::Window(window)).await,
        caller.store(namespace, b"new", Body::Message(b"x")).await,
        caller.exist(namespace, &[b"key"]).await,
    ];
    for (operation, elements) in [
        (
            Operation::LongestPrefix,
            &(|writer: &mut RequestWriter<'_>| writer.key(b"key").unwrap())
                as &dyn Fn(&mut RequestWriter<'_>),
        ),
        (Operation::Stat, &|writer| {
            let key = b"key";
            writer.stat(&Stat { key, version: None }).unwrap();
        }),
        (Operation::Delete, &|writer| {
            let delete = Delete {
                key: b"key",
                version: None,
                condition: Default::default(),
            };
            writer.delete(&delete).unwrap();
        }),
        (Operation::List, &|writer| {
            let list = List {
                prefix: b"",
                delimiter: b"",
                after: ListAfter::Start,
                limit: 10,
            };
            writer.list(&list).unwrap();
        }),
    ] {
        said.push(caller.one(operation, namespace, elements).await);
    }
    said
}

#[tokio::test(flavor = "local")]
async fn a_foreign_namespace_is_one_that_does_not_exist() {
    for way in WAYS {
        let server = Server::new().await;
        server.set(FOREIGN, b"key", b"secret").await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(4096, Access::ReadWrite).await;
        let foreign = everything(&caller, FOREIGN, &memory).await;
        let missing = everything(&caller, "nowhere", &memory).await;
        assert_eq!(foreign, missing);
        for said in foreign {
            assert_eq!(said.status(), Status::NoSuchNamespace);
        }
        assert_eq!(memory.bytes(0, 4096), [0; 4096]);
        assert_eq!(
            server.value(FOREIGN, b"key").await,
            Some(b"secret".to_vec())
        );
        assert_eq!(server.value(FOREIGN, b"new").await, None);
    }
}

/// Asks with a window that the link must not reach. The words, or nothing where the client's own end refused, which ends the link.
async fn refused(caller: &Caller, window: Window, store: bool) -> Option<Said> {
    let operation = match store {
        true => Operation::Store,
        false => Operation::Retrieve,
    };
    caller
        .send(operation, NAMESPACE, |writer| match store {
            true => writer
                .store(&plain(b"stolen", Body::Window(window)))
                .unwrap(),
            false => writer
                .retrieve(&whole(b"key", Target::Window(window)))
                .unwrap(),
        })
        .await;
    let mut message = Vec::new();
    match caller.link.recv(&mut message).await {
        Ok(Some(())) => {
            let result = parse_reply(&message).unwrap().results.next().unwrap();
            let text = result.text().unwrap().to_owned();
            Some(Said::Failed(result.status, result.hop, text))
        }
        Ok(None) | Err(_) => None,
    }
}

#[tokio::test(flavor = "local")]
async fn windows_outside_of_what_is_exposed_are_not_reachable() {
    for way in WAYS {
        let server = Server::new().await;
        server.set(NAMESPACE, b"key", &[7; 4096]).await;
        let victim = server.connect(OTHER, way).await;
        let secret = victim.memory(8192, Access::ReadWrite).await;
        secret.set(0, &[0x55; 8192]);
        let mut words = Vec::new();
        for case in 0..10 {
            for store in [false, true] {
                let caller = server.connect(TENANT, way).await;
                let memory = caller.memory(8192, Access::ReadWrite).await;
                let closed = caller.memory(8192, Access::Read).await;
                let open = caller.memory(8192, Access::Write).await;
                let gone = caller.memory(8192, Access::ReadWrite).await;
                let withdrawn = gone.exposure.stag.0;
                caller.link.withdraw(gone.exposure).await;
                let mine = memory.exposure.stag.0;
                let window = |stag, offset| Window {
                    stag,
                    offset,
                    len: 4096,
                };
                let window = match case {
                    0 => window(mine, 8192),
                    1 => window(mine, 4097),
                    2 => window(mine, u64::MAX),
                    3 => window(mine, u64::MAX - 4095),
                    4 => window(mine, 1 << 63),
                    5 => window(withdrawn, 0),
                    6 => window(0, 0),
                    7 => window(mine ^ 0x8000_0000, 0),
                    // What the victim has beyond all of the caller's names is nobody's here.
                    8 => window(secret.exposure.stag.0.wrapping_add(1000), 0),
                    _ if store => open.window(0, 4096),
                    _ => closed.window(0, 4096),
                };
                let said = refused(&caller, window, store).await;
                match &said {
                    Some(said) => {
                        assert_eq!(said.status(), Status::NotReachable, "{way:?} {case}");
                        words.extend(Some(said.clone()));
                        // The link goes on: a lie ends nothing but itself.
                        let window = Target::Window(memory.window(4096, 4096));
                        let said = caller.retrieve(NAMESPACE, b"key", window).await;
                        assert_eq!(said.status(), Status::Ok, "{way:?} {case}");
                        assert_eq!(memory.bytes(0, 4096), [0; 4096]);
                    }
                    // Over iWARP it is the client's end that checks, and that ends the link.
                    None => {
                        assert_eq!(way, Way::Iwarp, "{case}");
                        caller.serving.await.unwrap();
                        assert_eq!(memory.bytes(0, 8192), [0; 8192]);
                    }
                }
                for region in [&closed.slice, &open.slice, &gone.slice] {
                    let mut bytes = [1; 8192];
                    assert!(region.read(0, &mut bytes));
                    assert_eq!(bytes, [0; 8192], "{way:?} {case}");
                }
            }
        }
        assert!(words.windows(2).all(|pair| pair[0] == pair[1]), "{words:?}");
        assert_eq!(server.value(NAMESPACE, b"stolen").await, None);
        assert_eq!(secret.bytes(0, 8192), [0x55; 8192]);
    }
}

#[tokio::test(flavor = "local")]
async fn overlapping_targets_harm_only_their_owner() {
    for way in WAYS {
        let server = Server::new().await;
        server.set(NAMESPACE, b"a", &[1; 4096]).await;
        server.set(NAMESPACE, b"b", &[2; 4096]).await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(16384, Access::ReadWrite).await;
        let answer = caller
            .call(Operation::Retrieve, NAMESPACE, |writer| {
                for (key, offset) in [(b"a", 4096), (b"b", 6144), (b"a", 4096)] {
                    let window = memory.window(offset, 4096);
                    writer
                        .retrieve(&whole(key, Target::Window(window)))
                        .unwrap();
                }
            })
            .await;
        assert!(
            answer
                .results
                .iter()
                .all(|said| said.status() == Status::Ok)
        );
        assert_eq!(memory.bytes(0, 4096), [0; 4096]);
        assert_eq!(memory.bytes(10240, 6144), [0; 6144]);
        assert!(
            memory
                .bytes(4096, 6144)
                .iter()
                .all(|byte| matches!(byte, 1 | 2))
        );
        // Stored from where it is being written to: some mix of the two, and the store's checksum fits it.
        let source = Body::Window(memory.window(4096, 6144));
        let said = caller.store(NAMESPACE, b"mix", source).await;
        let Said::Value { crc64nvme, .. } = said else {
            panic!("{said:?}")
        };
        let mix = server.value(NAMESPACE, b"mix").await.unwrap();
        assert_eq!(crc64nvme, Some(crc(&mix)));
    }
}

#[tokio::test(flavor = "local")]
async fn limits_are_refused_and_nothing_is_left() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Iwarp)).await;
    let memory = caller.memory(4096, Access::ReadWrite).await;
    for (window, status) in [
        // More than any value may have; more than the tenant's memory has.
        (memory.window(0, u64::MAX), Status::TooLarge),
        (memory.window(0, 6 << 40), Status::TooLarge),
        (memory.window(0, 1 << 20), Status::NotReachable),
        (memory.window(u64::MAX, 1), Status::NotReachable),
    ] {
        let said = caller.store(NAMESPACE, b"big", Body::Window(window)).await;
        assert_eq!(said.status(), status, "{window:?}");
    }
    let said = caller.store(NAMESPACE, b"", Body::Message(b"x")).await;
    assert_eq!(said.status(), Status::Invalid);
    let said = caller
        .retrieve(
            NAMESPACE,
            b"big",
            Target::Window(memory.window(0, u64::MAX)),
        )
        .await;
    assert_eq!(said.status(), Status::NotFound);
    let said = caller
        .one(Operation::Retrieve, NAMESPACE, |writer| {
            let range = Range::Inclusive(u64::MAX, u64::MAX);
            let element = Retrieve {
                range,
                ..whole(b"big", Target::Message)
            };
            writer.retrieve(&element).unwrap();
        })
        .await;
    assert_eq!(said.status(), Status::NotFound);
    assert_eq!(server.value(NAMESPACE, b"big").await, None);
}

#[tokio::test(flavor = "local")]
async fn what_is_no_request_is_said_to_be_none() {
    let server = Server::new().await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    let mut good = Vec::new();
    let mut writer = RequestWriter::begin(&mut good, Operation::Stat, 77, NAMESPACE).unwrap();
    writer
        .stat(&Stat {
            key: b"key",
            version: None,
        })
        .unwrap();
    writer.finish();
    let mut received = Vec::new();
    for len in 16..good.len() {
        caller.link.send(&good[..len]).await.unwrap();
        caller.link.recv(&mut received).await.unwrap().unwrap();
        let reply = parse_reply(&received).unwrap();
        assert_eq!((reply.id, reply.last), (77, true));
        let results: Vec<_> = reply.results.collect();
        let [result] = results.as_slice() else {
            panic!("{results:?}")
        };
        assert_eq!((result.status, result.hop), (Status::Malformed, Hop::None));
    }
    assert_eq!(
        caller.exist(NAMESPACE, &[b"k"]).await,
        Said::Sizes(vec![None])
    );
    // Too short to be answered: the link ends.
    caller.link.send(&good[..15]).await.unwrap();
    let CloseReason::Violation(_) = caller.serving.await.unwrap() else {
        panic!()
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever bytes come, the server goes on serving others.
    #[test]
    fn any_messages(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20)) {
        let runtime = local();
        runtime.block_on(async {
            let server = Server::new().await;
            let good = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
            let bad = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
            for mut message in messages {
                // Most random bytes end at the version.
                if let Some(version) = message.first_mut() {
                    *version = 1;
                }
                if bad.link.send(&message).await.is_err() {
                    break;
                }
            }
            let said = good.store(NAMESPACE, b"k", Body::Message(b"v")).await;
            assert_eq!(said.status(), Status::Ok);
            bad.link.close(CloseReason::Lost);
            bad.serving.await.unwrap();
        });
    }
}

#[tokio::test(flavor = "local")]
async fn ten_thousand_idle_sessions() {
    let server = Server::new().await;
    let sessions: Vec<_> = (0..10_000)
        .map(|number| {
            let lease = Duration::from_secs(60);
            let id = format!("AKID{number}");
            server
                .sessions
                .open_with_random_key(principal(TENANT, &id), lease)
                .unwrap()
        })
        .collect();
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    let said = caller.store(NAMESPACE, b"k", Body::Message(b"v")).await;
    assert_eq!(said.status(), Status::Ok);
    // None of them is another's, and each is found by its own proof alone.
    for session in sessions.iter().step_by(97) {
        let admitted = server.sessions.admit(&session.proof()).unwrap();
        assert_eq!(admitted.principal(), session.principal());
        let mut forged = session.proof();
        forged[35] ^= 1;
        assert!(server.sessions.admit(&forged).is_none());
    }
    for session in &sessions {
        assert!(server.sessions.close(session.id()));
    }
    assert_eq!(server.sessions.len(), 1);
}
