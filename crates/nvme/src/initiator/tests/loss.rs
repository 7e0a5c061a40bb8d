//! Connections that are lost, and targets that come back.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use forebay_mem::Region;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::opcode::kv;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::super::{Error, Options, StoreOptions};
use super::fake::{Answer, BLOCK_BYTES, Fake, Manner};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_block_survives_connections_that_are_cut() {
    let manner = Manner {
        c2h_bytes: 5000,
        ..Manner::default()
    };
    let two = Options {
        queues: 2,
        ..options()
    };
    let (fake, namespace) = blocks(manner, two).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..12u64 {
        let (namespace, over) = (namespace.clone(), over.clone());
        tasks.spawn(async move {
            let mut turns = 0;
            while !over.load(SeqCst) || turns < 20 {
                turns += 1;
                let bytes = pattern((1 + (turns % 60)) * BLOCK_BYTES, task * 1000 + turns as u64);
                let first = task * 64;
                namespace.write(first, source(&bytes), false).await.unwrap();
                let (done, sink) = namespace.read(first, room(bytes.len())).await;
                done.unwrap();
                assert!(received(sink) == bytes);
            }
            turns
        });
    }
    for _ in 0..10 {
        namespace.controller().connected().await.unwrap();
        for _ in 0..50 {
            namespace.flush().await.unwrap();
        }
        fake.cut();
    }
    over.store(true, SeqCst);
    while let Some(done) = tasks.join_next().await {
        assert!(done.unwrap() >= 20);
    }
    assert!(fake.shared.connections.load(SeqCst) >= 3 * 5);
}

/// With a process that is killed, too: its target may serve the next one already.
#[tokio::test]
async fn what_a_connection_has_not_sent_at_its_end_is_never_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hurried = Options {
        connect_timeout: Duration::from_millis(200),
        ..options()
    };
    let connecting = Controller::connect(address.parse().unwrap(), SUBNQN, hurried);
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    assert!(matches!(connected, Err(Error::Unreachable(_))));
    let ended = accepted.unwrap().0.read_to_end(&mut Vec::new()).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_command_that_may_not_be_made_twice_ends_with_an_unknown_outcome() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let manner = Manner::default().conduct(move |entry| match entry.opcode() {
        kv::DELETE | kv::STORE => {
            count.fetch_add(1, SeqCst);
            Answer::Close
        }
        _ => Answer::Proper,
    });
    let (fake, namespace) = values(manner, options()).await;
    let deleted = namespace.delete(b"key").await;
    assert!(matches!(deleted, Err(Error::Lost(_))), "{deleted:?}");
    let once = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let stored = namespace.store(b"key", source(b"1"), once).await;
    assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
    assert_eq!(seen.load(SeqCst), 2);
    // One that may is made again.
    let mut store = Box::pin(namespace.store(b"key", source(b"2"), StoreOptions::default()));
    while seen.load(SeqCst) < 4 {
        let step = tokio::time::timeout(Duration::from_millis(5), &mut store).await;
        assert!(step.is_err());
    }
    fake.behave(Manner::default());
    store.await.unwrap();
    assert_eq!(fake.shared.values.lock()[&b"key"[..]], b"2");
}

/// It says so itself.
#[tokio::test]
async fn what_the_target_does_not_know_has_an_unknown_outcome() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let unknown = move |last: usize, then: Status| {
        let count = count.clone();
        Manner::default().conduct(move |entry| match entry.opcode() {
            kv::DELETE | kv::STORE if count.fetch_add(1, SeqCst) < last => {
                Answer::Fail(Status::OUTCOME_UNKNOWN)
            }
            kv::DELETE | kv::STORE if !then.is_success() => Answer::Fail(then),
            _ => Answer::Proper,
        })
    };
    let (fake, namespace) = values(unknown(2, Status::SUCCESS), options()).await;
    let deleted = namespace.delete(b"key").await;
    assert!(matches!(deleted, Err(Error::Lost(_))), "{deleted:?}");
    let once = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let stored = namespace.store(b"key", source(b"1"), once).await;
    assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
    assert_eq!(seen.load(SeqCst), 2);
    // One that may is made again, and then it is known.
    fake.behave(unknown(4, Status::SUCCESS));
    let store = || namespace.store(b"key", source(b"2"), StoreOptions::default());
    store().await.unwrap();
    assert_eq!(fake.shared.values.lock()[&b"key"[..]], b"2");
    assert_eq!(seen.load(SeqCst), 5);
    // Or not.
    fake.behave(unknown(6, Status::NAMESPACE_WRITE_PROTECTED));
    let stored = store().await;
    assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
    assert_eq!(seen.load(SeqCst), 7);
}

/// The target has it, and says nothing before it goes.
#[tokio::test]
async fn a_change_that_was_sent_and_is_given_up_has_an_unknown_outcome() {
    for closes in [false, true] {
        let sent = Arc::new(Notify::new());
        let told = sent.clone();
        let manner = Manner::default().conduct(move |_| {
            told.notify_one();
            Answer::Silence
        });
        let patience = Duration::from_millis(if closes { 60_000 } else { 300 });
        let patient = Options {
            patience: Some(patience),
            ..options()
        };
        let (fake, namespace) = values(manner, patient).await;
        let store = || namespace.store(b"key", source(b"1"), StoreOptions::default());
        let (stored, ()) = tokio::join!(store(), async {
            sent.notified().await;
            fake.stop().await;
            let controller = namespace.controller();
            controller.disconnected().await;
            if closes {
                controller.close().await;
            }
        });
        assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
        // What was never sent has an outcome: none.
        let stored = store().await;
        let none = matches!(stored, Err(Error::Unreachable(_) | Error::Closed));
        assert!(none, "{stored:?}");
    }
}

/// Handles are of one association, which may end before and after they are used.
#[tokio::test]
async fn long_keys_are_read_and_listed_across_connections_that_are_lost() {
    let key = [b'k'; 40];
    for (opcode, lists) in [
        (kv::EXTENDED_KEY, false),
        (kv::RETRIEVE_RANGE, false),
        (kv::EXTENDED_KEY, true),
        (kv::LIST, true),
    ] {
        let seen = Arc::new(AtomicUsize::new(0));
        let count = seen.clone();
        let manner = Manner::default().conduct(move |entry| {
            if entry.opcode() != opcode || count.fetch_add(1, SeqCst) > 0 {
                return Answer::Proper;
            }
            match opcode {
                kv::EXTENDED_KEY => Answer::Last,
                _ => Answer::Close,
            }
        });
        let (fake, namespace) = values(manner, options()).await;
        let values = [
            (key.to_vec(), b"value".to_vec()),
            (b"last".to_vec(), b"1".to_vec()),
        ];
        fake.shared.values.lock().extend(values);
        if lists {
            assert_eq!(namespace.list(Some(&key)).await, Ok(vec![b"last".to_vec()]));
        } else {
            let found = namespace.retrieve_range(&key, 1, room(3)).await.unwrap();
            assert_eq!(found.value_bytes, 5);
            assert_eq!(received(found.into), b"alu");
        }
        assert_eq!(seen.load(SeqCst), 2);
        assert_eq!(fake.shared.connections.load(SeqCst), 4);
    }
}

#[tokio::test]
async fn commands_left_with_one_whose_memory_is_gone_are_made() {
    let digests = Options {
        data_digest: true,
        ..options()
    };
    let (_fake, namespace) = values(Manner::default(), digests).await;
    let file = tempfile::tempfile().unwrap();
    file.set_len(512).unwrap();
    let memory = Region::received(&file, 0, 512, true, Box::new(())).unwrap();
    file.set_len(0).unwrap();
    let once = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let (stored, exists) = tokio::join!(
        namespace.store(b"key", memory.clone(), once),
        namespace.exist(b"key")
    );
    assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
    assert!(!exists.unwrap());
    // One that may be made again is not made for ever.
    let again = namespace.store(b"key", memory, StoreOptions::default());
    let stored = again.await;
    assert!(matches!(stored, Err(Error::Lost(_))), "{stored:?}");
    assert!(!namespace.exist(b"key").await.unwrap());
}

#[tokio::test]
async fn calls_wait_for_a_target_as_long_as_their_patience() {
    let patient = Options {
        patience: Some(Duration::from_millis(300)),
        ..options()
    };
    let (fake, namespace) = blocks(Manner::default(), patient).await;
    namespace.write(0, source(&[1; 512]), false).await.unwrap();
    let address = fake.address;
    let kept = fake.stop().await;
    let (done, _) = namespace.read(0, room(512)).await;
    assert!(matches!(done, Err(Error::Unreachable(_))), "{done:?}");
    assert!(namespace.controller().info().is_err());
    let (fake, read) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Fake::start_at(address, Manner::default(), Some(kept)).await
        },
        async {
            // Until the target is there, some time out.
            loop {
                if let (Ok(_), sink) = namespace.read(0, room(512)).await {
                    return received(sink);
                }
            }
        }
    );
    assert_eq!(read, [1; 512]);
    drop(fake);
}

#[tokio::test]
async fn another_namespace_in_the_same_place_is_not_used() {
    let impatient = Options {
        patience: Some(Duration::from_millis(300)),
        ..options()
    };
    let (fake, namespace) = blocks(Manner::default(), impatient).await;
    let controller = namespace.controller();
    let values = controller.key_value(2).await.unwrap();
    // Another one, and none.
    for uuid in [[8; 16], [0; 16]] {
        *fake.shared.uuid.lock() = uuid;
        fake.cut();
        controller.disconnected().await;
        let written = namespace.write(0, source(&[1; 512]), false).await;
        assert!(matches!(written, Err(Error::Unreachable(_))), "{written:?}");
        assert_eq!(fake.shared.writes.load(SeqCst), 0);
        // The others are used on. Until the connections are there, some time out.
        let exists = loop {
            match values.exist(b"key").await {
                Err(Error::Unreachable(_)) => {}
                exists => break exists,
            }
        };
        assert!(!exists.unwrap());
        assert!(controller.block(1).await.is_err());
    }
    *fake.shared.uuid.lock() = [7; 16];
    // The controller tells that there is a change; once, or when that comes before it is awaited, with the next.
    fake.shared.events.send_replace(2 | 4 << 16);
    while namespace.write(0, source(&[1; 512]), false).await.is_err() {
        fake.shared.events.send_modify(|event| *event ^= 1 << 24);
    }
    controller.block(1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_grants_fewer_queues_is_used_by_those() {
    let two = Options {
        queues: 2,
        ..options()
    };
    let (fake, namespace) = blocks(Manner::default(), two).await;
    let before = fake.shared.connections.load(SeqCst);
    assert_eq!(before, 3);
    fake.shared.silent.send_replace(true);
    fake.behave(Manner {
        queues: 1,
        ..Manner::default()
    });
    fake.cut();
    // Both its connections are there, and it does not know yet whether it is the same namespace.
    while fake.shared.connections.load(SeqCst) < before + 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Of two threads one has the second queue.
    let runtime = tokio::runtime::Handle::current();
    let reads: Vec<_> = (0..2)
        .map(|_| {
            let (namespace, runtime) = (namespace.clone(), runtime.clone());
            let read = async move {
                let read = namespace.read(0, room(512));
                let done = tokio::time::timeout(Duration::from_secs(20), read).await;
                done.map(|(done, _)| done.map(drop))
            };
            std::thread::spawn(move || runtime.block_on(read))
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    fake.shared.silent.send_replace(false);
    for read in reads {
        let done = tokio::task::spawn_blocking(move || read.join().unwrap());
        assert_eq!(done.await.unwrap().expect("an end"), Ok(()));
    }
}

#[tokio::test]
async fn both_sides_are_kept_alive_and_a_dead_one_is_noticed() {
    let manner = Manner::default();
    let lively = Options {
        keep_alive: Duration::from_secs(2),
        ..options()
    };
    let (fake, namespace) = blocks(manner, lively).await;
    while fake.shared.keep_alives.load(SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    namespace.flush().await.unwrap();
    assert_eq!(fake.shared.connections.load(SeqCst), 2, "nothing was lost");
}

#[tokio::test]
async fn a_closed_host_refuses_and_a_dropped_one_disconnects() {
    let (fake, namespace) = blocks(Manner::default().conduct(|_| Answer::Silence), options()).await;
    let controller = namespace.controller().clone();
    let (read, ()) = tokio::join!(namespace.read(0, room(512)), async {
        tokio::task::yield_now().await;
        controller.close().await;
    });
    assert!(
        matches!(read.0, Err(Error::Closed | Error::Lost(_))),
        "{read:?}"
    );
    assert!(matches!(namespace.flush().await, Err(Error::Closed)));
    drop(fake);
}
