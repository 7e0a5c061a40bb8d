//! The initiator on a vfio-user socket: values and blocks, payload that is moved in place, devices that go and come back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_mem::{CopySite, PAGE_BYTES, Region, copied_bytes};
use forebay_nvme::initiator::{
    Controller, Error, KeyValueNamespace, NamespaceContent, Options, Sink, Source, StoreOptions,
};
use forebay_proto::nvme::Status;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::support::alone::is_alone;
use crate::support::{BLOCK, BLOCK_BYTES, KV, World, pattern};

/// How long a controller that is gone is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn open(socket: &Path, options: Options) -> Controller {
    Controller::open(socket, options).await.unwrap()
}

async fn whole(values: &KeyValueNamespace, key: &[u8], room: usize) -> Result<Vec<u8>, Error> {
    let found = values.retrieve(key, Sink::Bytes(vec![0; room])).await?;
    let Sink::Bytes(bytes) = found.into else {
        panic!("another memory");
    };
    assert_eq!(found.received, found.value_bytes.min(room as u64));
    assert_eq!(bytes.len() as u64, found.received);
    Ok(bytes)
}

/// How long a value may be says nothing of blocks, of lists, nor of room that is left empty.
#[test]
fn what_a_controller_announces_is_moved_however_little_a_value_may_be() {
    runtime().block_on(async {
        for value_bytes_max in [100_000, 4096] {
            let world = World::with_values_of(value_bytes_max).await;
            let (socket, _listening) = world.listen();
            let controller = open(&socket, Options::default()).await;
            let blocks = controller.block(BLOCK).await.unwrap();
            let bytes = Bytes::from(pattern(128 << 10, 3));
            blocks.write(8, bytes.clone(), false).await.unwrap();
            let room = Sink::Bytes(vec![0; bytes.len()]);
            let (done, sink) = blocks.read(8, room).await;
            done.unwrap();
            assert!(matches!(sink, Sink::Bytes(read) if read == bytes));
            let values = controller.key_value(KV).await.unwrap();
            let (key, value) = (pattern(255, 1), pattern(value_bytes_max, 2));
            let store =
                |value: Vec<u8>| values.store(&key, Bytes::from(value), StoreOptions::default());
            store(value.clone()).await.unwrap();
            assert!(whole(&values, &key, 1 << 20).await.unwrap() == value);
            assert_eq!(values.list(None).await.unwrap(), std::slice::from_ref(&key));
            let longer = store(pattern(value_bytes_max + 1, 2)).await;
            assert!(matches!(longer, Err(Error::Status(_))), "{longer:?}");
            controller.close().await;
        }
    });
}

#[test]
fn values_of_every_length_by_keys_of_every_length() {
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, _listening) = world.listen();
        let values = open(&socket, Options::default()).await;
        let values = values.key_value(KV).await.unwrap();
        for (key_len, len) in [(1, 0), (16, 1), (17, 4095), (255, 4097), (3, 3 << 20)] {
            let (key, value) = (pattern(key_len, 7), pattern(len, key_len as u64));
            let options = StoreOptions::default();
            let stored = Source::from(Bytes::from(value.clone()));
            values.store(&key, stored, options).await.unwrap();
            assert!(values.exist(&key).await.unwrap());
            for room in [len + 100, len, len / 2] {
                let found = whole(&values, &key, room).await.unwrap();
                assert!(found == value[..len.min(room)], "{key_len} {len} {room}");
            }
            let behind = values.retrieve_range(&key, 1.min(len as u64), Sink::Bytes(vec![0; 50]));
            let behind = behind.await.unwrap();
            let Sink::Bytes(bytes) = behind.into else {
                panic!("another memory");
            };
            assert!(bytes == value[1.min(len)..len.min(51)], "{key_len} {len}");
            let absent = StoreOptions {
                if_absent: true,
                ..options
            };
            let again = values.store(&key, Bytes::from_static(b"x"), absent).await;
            assert!(
                matches!(again, Err(Error::Status(status)) if status.code() == Status::KEY_EXISTS),
                "{again:?}"
            );
        }
        let gone = pattern(17, 7);
        values.delete(&gone).await.unwrap();
        assert!(values.delete(&gone).await.unwrap_err().is_absent());
        assert!(!values.exist(&gone).await.unwrap());
        assert!(whole(&values, &gone, 10).await.unwrap_err().is_absent());
        values.controller().close().await;
        assert_eq!(values.exist(&gone).await, Err(Error::Closed));
    });
}

#[test]
fn lists_go_on_from_every_key() {
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, _listening) = world.listen();
        let values = open(&socket, Options::default()).await;
        let values = values.key_value(KV).await.unwrap();
        let mut model = BTreeSet::new();
        for number in 0..1500u32 {
            let key = pattern(1 + number as usize % 120, u64::from(number));
            let stored = values.store(&key, Bytes::new(), StoreOptions::default());
            stored.await.unwrap();
            model.insert(key);
        }
        let (mut listed, mut pages) = (Vec::new(), 0);
        loop {
            let after = listed.last().cloned();
            let page: Vec<Vec<u8>> = values.list(after.as_deref()).await.unwrap();
            if page.is_empty() {
                break;
            }
            pages += 1;
            listed.extend(page);
        }
        assert!(pages > 1);
        assert!(listed.iter().eq(&model));
    });
}

/// What lies in registered memory that has a file is moved by the device alone; the memory need not end with a page.
#[test]
fn registered_memory_is_used_in_place_and_given_back() {
    const LEN: usize = 122 * PAGE_BYTES + 5;
    const MAPPED: usize = 123 * PAGE_BYTES;
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, _listening) = world.listen();
        let values = open(&socket, Options::default()).await;
        let values = values.key_value(KV).await.unwrap();
        let before = copied_bytes(CopySite::LinkStaging);
        let check_copied = |bytes: u64| {
            if is_alone() {
                assert_eq!(copied_bytes(CopySite::LinkStaging) - before, bytes);
            }
        };
        let region = Region::memfd(LEN).unwrap();
        let value = pattern(50_001, 1);
        let from = region.slice(4321..4321 + value.len()).unwrap();
        assert!(from.write(0, &value));
        let into = region.slice(200_001..200_001 + value.len()).unwrap();
        let stored = values.store(b"key", from, StoreOptions::default());
        stored.await.unwrap();
        let found = values.retrieve(b"key", into.clone()).await.unwrap();
        assert_eq!(found.received as usize, value.len());
        let mut bytes = vec![0; value.len()];
        assert!(into.read(0, &mut bytes));
        assert!(bytes == value);
        check_copied(0);
        // Ours, and the device's: it is in this process, too.
        assert_eq!(mappings(MAPPED), 2);
        drop((region, into, found));
        until_unmapped(MAPPED).await;
        // Ordinary memory is copied by way of memory of the queue, which keeps none that is large.
        const LARGE: usize = 777 * PAGE_BYTES;
        let value = Bytes::from(pattern(LARGE, 2));
        let stored = values.store(b"large", value.clone(), StoreOptions::default());
        stored.await.unwrap();
        assert!(whole(&values, b"large", LARGE).await.unwrap() == value);
        check_copied(LARGE as u64);
        until_unmapped(LARGE).await;
    });
}

async fn until_unmapped(len: usize) {
    let begun = Instant::now();
    while mappings(len) > 0 {
        assert!(begun.elapsed() < PATIENCE, "the memory is kept");
        tokio::task::yield_now().await;
    }
}

/// How many mappings of this length there are in this process.
fn mappings(len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps
        .lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'));
    let number = |text| usize::from_str_radix(text, 16).unwrap();
    ranges
        .filter(|(begin, end)| number(end) - number(begin) == len)
        .count()
}

#[test]
fn blocks_are_written_read_and_compared() {
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, _listening) = world.listen();
        let controller = open(&socket, Options::default()).await;
        assert_eq!(controller.namespaces().await.unwrap(), [KV, BLOCK]);
        let info = controller.namespace(BLOCK).await.unwrap();
        assert!(matches!(info.kind, NamespaceContent::Block(_)));
        let blocks = controller.block(BLOCK).await.unwrap();
        let bytes = pattern(40 * BLOCK_BYTES, 5);
        let written = blocks.write(3, Bytes::from(bytes.clone()), false).await;
        written.unwrap();
        blocks.flush().await.unwrap();
        let region = Region::memfd(bytes.len()).unwrap();
        let all = region.slice(0..bytes.len()).unwrap();
        for into in [Sink::Bytes(vec![0; bytes.len()]), Sink::from(all.clone())] {
            let (read, into) = blocks.read(3, into).await;
            assert_eq!(read.unwrap().received as usize, bytes.len());
            let mut found = vec![0; bytes.len()];
            match into {
                Sink::Bytes(bytes) => found = bytes,
                _ => assert!(all.read(0, &mut found)),
            }
            assert!(found == bytes);
        }
        assert!(blocks.compare(3, all.clone()).await.unwrap());
        assert!(!blocks.compare(4, all).await.unwrap());
        let wrong = controller.key_value(BLOCK).await;
        assert!(matches!(wrong, Err(Error::Invalid(_))), "{wrong:?}");
        let none = controller.block(9).await;
        assert!(matches!(none, Err(Error::Invalid(_))), "{none:?}");
    });
}

/// Callers on several queues, while the device dies again and again: every value whose store succeeded is there, whole.
#[test]
fn calls_outlive_the_device() {
    const TASKS: u64 = 16;
    const ROUNDS: u64 = 40;
    const LIVES: u64 = 10;
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, mut listening) = world.listen();
        let options = Options {
            queues: 3,
            depth: 4,
            pause: Duration::from_millis(1),
            pause_max: Duration::from_millis(20),
            patience: Some(PATIENCE),
            ..Options::default()
        };
        let controller = open(&socket, options).await;
        let values = controller.key_value(KV).await.unwrap();
        let region = Region::memfd(TASKS as usize * PAGE_BYTES).unwrap();
        let progress = watch::Sender::new(0);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (values, region) = (values.clone(), region.clone());
                let progress = progress.clone();
                tokio::spawn(async move {
                    let at = task as usize * PAGE_BYTES;
                    let mut stored = BTreeMap::new();
                    for round in 0..ROUNDS {
                        let key = (task * 1000 + round % 7).to_le_bytes();
                        let value = pattern(1 + (round as usize * 97) % PAGE_BYTES, task ^ round);
                        let memory = region.slice(at..at + value.len()).unwrap();
                        assert!(memory.write(0, &value));
                        let options = StoreOptions::default();
                        match round % 2 {
                            0 => values.store(&key, memory.clone(), options).await,
                            _ => {
                                values
                                    .store(&key, Bytes::from(value.clone()), options)
                                    .await
                            }
                        }
                        .unwrap();
                        assert!(memory.write(0, &vec![0; value.len()]));
                        let found = values.retrieve(&key, memory.clone()).await.unwrap();
                        assert_eq!(found.value_bytes as usize, value.len());
                        let mut bytes = vec![0; value.len()];
                        assert!(memory.read(0, &mut bytes));
                        assert!(bytes == value, "task {task}, round {round}");
                        stored.insert(key, value);
                        progress.send_modify(|rounds| *rounds += 1);
                    }
                    stored
                })
            })
            .collect();
        let mut rounds = progress.subscribe();
        for life in 1..LIVES {
            let enough = life * TASKS * ROUNDS / LIVES;
            rounds.wait_for(|rounds| *rounds >= enough).await.unwrap();
            listening.kill();
            controller.disconnected().await;
            listening = world.listen_at(&socket);
        }
        for task in tasks {
            for (key, value) in task.await.unwrap() {
                assert!(whole(&values, &key, PAGE_BYTES).await.unwrap() == value);
            }
        }
    });
}

/// Longer than an address has room for.
#[test]
fn a_socket_is_opened_by_a_path_of_any_length() {
    runtime().block_on(async {
        let world = World::new().await;
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long".repeat(50));
        std::fs::create_dir(&long).unwrap();
        let short = folder.path().join("short");
        std::os::unix::fs::symlink(&long, &short).unwrap();
        let _listening = world.listen_at(&short.join("cntrl"));
        let controller = open(&long.join("cntrl"), Options::default()).await;
        let values = controller.key_value(KV).await.unwrap();
        assert!(!values.exist(b"key").await.unwrap());
    });
}

/// Nobody is there, and nobody comes: a call ends when its patience does.
#[test]
fn patience_ends() {
    runtime().block_on(async {
        let world = World::new().await;
        let (socket, listening) = world.listen();
        let options = Options {
            patience: Some(Duration::ZERO),
            ..Options::default()
        };
        let controller = open(&socket, options).await;
        let values = Arc::new(controller.key_value(KV).await.unwrap());
        listening.kill();
        controller.disconnected().await;
        let gone = values.exist(b"key").await;
        assert!(matches!(gone, Err(Error::Unreachable(_))), "{gone:?}");
        let none = Controller::open(Path::new("/nowhere/cntrl"), Options::default()).await;
        assert!(matches!(none, Err(Error::Unreachable(_))), "{none:?}");
        // One that listens, and says nothing.
        let silent = std::os::unix::net::UnixListener::bind(socket.with_extension("silent"));
        let options = Options {
            connect_timeout: Duration::from_millis(50),
            ..Options::default()
        };
        let none = Controller::open(&socket.with_extension("silent"), options).await;
        assert!(matches!(none, Err(Error::Unreachable(_))), "{none:?}");
        drop(silent);
    });
}
