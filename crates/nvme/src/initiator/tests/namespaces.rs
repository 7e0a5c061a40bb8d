//! What namespaces do, over every way that payload can take.

use forebay_mem::{Pool, Region};
use forebay_proto::nvme::Status;
use tokio::task::JoinSet;

use super::super::{
    Address, Error, HostIdentity, NamespaceContent, Options, Sink, Source, StoreOptions,
    SubsystemType, discover,
};
use super::fake::{BLOCK_BYTES, BLOCKS, Fake, Manner, SUBNQN};
use super::*;

/// Manners and options under which everything works alike.
fn ways() -> Vec<(Manner, Options)> {
    let mut ways = Vec::new();
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)]
    {
        for (c2h_bytes, r2t_bytes, success, cpda) in [
            (1 << 20, u32::MAX, true, 0),
            (1500, 4096, false, 31),
            (40_000, 100_000, true, 3),
        ] {
            let manner = Manner {
                c2h_bytes,
                r2t_bytes,
                success,
                cpda,
                ..Manner::default()
            };
            let options = Options {
                header_digest,
                data_digest,
                ..options()
            };
            ways.push((manner, options));
        }
    }
    ways
}

#[tokio::test]
async fn blocks_come_back_as_they_were_written_over_every_kind_of_memory() {
    for (manner, options) in ways() {
        let (_fake, namespace) = blocks(manner, options).await;
        assert_eq!(namespace.bytes(), (BLOCKS * BLOCK_BYTES) as u64);
        let pool = Pool::new(8 << 20);
        for (turn, blocks) in [1, 8, 9, 128, 1024].into_iter().enumerate() {
            let bytes = pattern(blocks * BLOCK_BYTES, turn as u64 + 1);
            let region = Region::anonymous(bytes.len()).unwrap();
            let memory = region.slice(0..bytes.len()).unwrap();
            assert!(memory.write(0, &bytes));
            let middle = bytes.len() / 2 / BLOCK_BYTES * BLOCK_BYTES;
            let parts = vec![
                buf(&pool, &bytes[..middle]).await,
                buf(&pool, &bytes[middle..]).await,
            ];
            let sources: [Source; 3] = [source(&bytes).into(), parts.into(), memory.into()];
            for (place, from) in sources.into_iter().enumerate() {
                let first = (turn * 3 + place) as u64 * 1024;
                namespace.write(first, from, place == 1).await.unwrap();
                let sinks = [
                    room(bytes.len()),
                    Sink::Buf(pool.take(bytes.len()).await, bytes.len()),
                    Region::anonymous(bytes.len())
                        .unwrap()
                        .slice(0..bytes.len())
                        .unwrap()
                        .into(),
                ];
                for sink in sinks {
                    let (done, sink) = namespace.read(first, sink).await;
                    assert_eq!(done.unwrap().received, bytes.len() as u64);
                    assert!(received(sink) == bytes);
                }
                assert!(namespace.compare(first, source(&bytes)).await.unwrap());
            }
        }
        namespace.flush().await.unwrap();
        assert!(!namespace.compare(0, source(&[9; 512])).await.unwrap());
        namespace.write_zeroes(0, 1, true).await.unwrap();
        assert!(namespace.compare(0, source(&[0; 512])).await.unwrap());
        namespace.deallocate(&[(1024, 1), (2048, 1)]).await.unwrap();
        let (done, sink) = namespace.read(2048, room(512)).await;
        done.unwrap();
        assert_eq!(received(sink), [0; 512]);
    }
}

#[tokio::test]
async fn values_of_every_length_come_back_with_keys_of_every_length() {
    for (manner, options) in ways() {
        let (_fake, namespace) = values(manner, options).await;
        let pool = Pool::new(8 << 20);
        let whole = StoreOptions::default();
        for len in [0, 1, 511, 4096, 4097, 300_000] {
            let bytes = pattern(len, len as u64);
            for key_len in [1, 16, 17, 255] {
                let key = vec![b'k'; key_len];
                namespace.store(&key, source(&bytes), whole).await.unwrap();
                let found = namespace.retrieve(&key, room(len + 10)).await.unwrap();
                assert_eq!(
                    (found.value_bytes, found.received),
                    (len as u64, len as u64)
                );
                assert!(received(found.into) == bytes);
                let half = len / 2;
                let found = namespace.retrieve(&key, room(half.max(1))).await.unwrap();
                assert_eq!(found.value_bytes, len as u64);
                assert!(received(found.into) == bytes[..half.max(1).min(len)]);
                let rest = Sink::Bufs(vec![pool.take(4096).await, pool.take(1 << 19).await]);
                let found = namespace
                    .retrieve_range(&key, half as u64, rest)
                    .await
                    .unwrap();
                assert_eq!(found.value_bytes, len as u64);
                assert!(received(found.into) == bytes[half..]);
                assert!(namespace.exist(&key).await.unwrap());
                namespace.delete(&key).await.unwrap();
                assert!(!namespace.exist(&key).await.unwrap());
                assert!(namespace.delete(&key).await.unwrap_err().is_absent());
                assert!(
                    namespace
                        .retrieve(&key, room(1))
                        .await
                        .unwrap_err()
                        .is_absent()
                );
            }
        }
    }
}

#[tokio::test]
async fn conditions_hold_and_wrong_keys_and_values_are_refused() {
    let (_fake, namespace) = values(Manner::default(), options()).await;
    let if_absent = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    let if_exists = StoreOptions {
        if_exists: true,
        ..StoreOptions::default()
    };
    let absent = namespace.store(b"k", source(b"1"), if_exists).await;
    assert!(absent.unwrap_err().is_absent());
    namespace
        .store(b"k", source(b"2"), if_absent)
        .await
        .unwrap();
    let exists = namespace.store(b"k", source(b"3"), if_absent).await;
    assert!(matches!(exists, Err(Error::Status(status)) if status.code() == Status::KEY_EXISTS));
    namespace
        .store(b"k", source(b"4"), if_exists)
        .await
        .unwrap();
    for key in [vec![], vec![1; 256]] {
        let refused = namespace.store(&key, source(b"1"), if_exists).await;
        assert_eq!(refused, Err(Error::Status(Status::INVALID_KEY_SIZE)));
    }
    let value = source(&vec![0; (16 << 20) + 1]);
    let refused = namespace.store(b"k", value, if_exists).await;
    assert_eq!(refused, Err(Error::Status(Status::INVALID_VALUE_SIZE)));
}

#[tokio::test]
async fn lists_tell_every_key_once() {
    let (fake, namespace) = values(Manner::default(), options()).await;
    let mut keys: Vec<Vec<u8>> = (0..20_000)
        .map(|n| format!("key {n:06}").into_bytes())
        .collect();
    // Long ones, and many that begin alike.
    keys.extend((0..300).map(|n| format!("one and the same beginning {n:0200}").into_bytes()));
    keys.push(vec![0xff; 255]);
    keys.sort();
    fake.shared
        .values
        .lock()
        .extend(keys.iter().map(|key| (key.clone(), Vec::new())));
    let mut told: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = namespace
            .list(told.last().map(Vec::as_slice))
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        told.extend(page);
    }
    assert_eq!(told.len(), keys.len());
    assert!(told == keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_commands_of_several_threads_go_side_by_side() {
    let manner = Manner {
        c2h_bytes: 3000,
        ..Manner::default()
    };
    let three = Options {
        queues: 3,
        depth: 8,
        ..options()
    };
    let (fake, namespace) = blocks(manner, three).await;
    assert_eq!(
        fake.shared
            .connections
            .load(std::sync::atomic::Ordering::SeqCst),
        4
    );
    let mut tasks = JoinSet::new();
    for task in 0..24 {
        let namespace = namespace.clone();
        tasks.spawn(async move {
            for turn in 0..20 {
                let blocks = 1 + (task * 7 + turn) % 40;
                let bytes = pattern(blocks * BLOCK_BYTES, (task * 100 + turn) as u64);
                let first = task as u64 * 64;
                namespace.write(first, source(&bytes), false).await.unwrap();
                let (done, sink) = namespace.read(first, room(bytes.len())).await;
                done.unwrap();
                assert!(received(sink) == bytes);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn calls_that_make_no_sense_are_not_sent() {
    let (_fake, namespace) = blocks(
        Manner {
            mdts: 3,
            ..Manner::default()
        },
        options(),
    )
    .await;
    assert_eq!(namespace.transfer_bytes_max(), 8 * 4096);
    for (first, bytes) in [
        (0, 0),
        (0, 100),
        (BLOCKS as u64, 512),
        (u64::MAX, 512),
        (0, 8 * 4096 + 512),
    ] {
        let (done, sink) = namespace.read(first, room(bytes)).await;
        assert!(matches!(done, Err(Error::Invalid(_))), "{first} {bytes}");
        assert_eq!(sink.len(), bytes as u64);
    }
    assert!(
        namespace
            .write_zeroes(1, BLOCKS as u64, false)
            .await
            .is_err()
    );
    let controller = namespace.controller();
    assert!(matches!(
        controller.key_value(1).await,
        Err(Error::Invalid(_))
    ));
    assert!(matches!(controller.block(3).await, Err(Error::Invalid(_))));
    let nobody = HostIdentity {
        nqn: String::new(),
        id: [0; 16],
    };
    let refused = Controller::connect(
        "127.0.0.1:1".parse().unwrap(),
        SUBNQN,
        Options {
            host: nobody,
            ..options()
        },
    );
    assert!(matches!(refused.await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn what_there_is_can_be_told() {
    let fake = Fake::start(Manner::default()).await;
    let controller = connect(&fake, options()).await;
    assert_eq!(controller.namespaces().await.unwrap(), [1, 2]);
    let info = controller.info().unwrap();
    assert_eq!((info.serial.as_str(), info.cntlid), ("serial", 9));
    let block = controller.namespace(1).await.unwrap();
    assert_eq!(block.uuid, Some([7; 16]));
    assert!(matches!(block.kind, NamespaceContent::Block(_)));
    let values = controller.namespace(2).await.unwrap();
    assert!(matches!(values.kind, NamespaceContent::KeyValue(info) if info.key_bytes_max == 16));
    let found = discover(address(&fake), options()).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].kind, found[0].subnqn.as_str()),
        (SubsystemType::Nvm, SUBNQN)
    );
    assert_eq!(
        Address::of(&found[0]).unwrap().to_string(),
        "127.0.0.1:4420"
    );
    let mut changes = controller.changes();
    let ready = controller.io(
        forebay_proto::nvme::SubmissionQueueEntry::new(0, 0, 1),
        super::super::Data::None,
        super::super::Repeat::Safe,
    );
    ready.await.0.unwrap();
    fake.shared.events.send_replace(2 | 4 << 16);
    // An event that comes before it is awaited is told with the next.
    while tokio::time::timeout(Duration::from_millis(50), changes.changed())
        .await
        .is_err()
    {
        fake.shared.events.send_modify(|event| *event ^= 1 << 24);
    }
    controller.close().await;
    assert!(matches!(controller.namespaces().await, Err(Error::Closed)));
}
