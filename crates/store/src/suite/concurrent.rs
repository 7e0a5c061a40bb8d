//! Tasks that race.

use std::sync::Arc;

use tokio::task::{JoinSet, yield_now};

use super::subject::{Subject, content, crc64nvme, drain, put_with};
use crate::{
    Address, ByteRange, Condition, DeleteOptions, ErrorKind, NamespaceConfig, Quota, Scope, Seal,
    Source, Store, StoreOptions,
};

const SPACE: &str = "concurrent";
const TASKS: u64 = 8;

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace(SPACE).await;
    one_writer_of_an_absent_key(subject).await;
    no_update_is_lost(subject).await;
    readers_see_whole_values(subject).await;
    one_compose_takes_the_parts(subject).await;
    quotas_hold(subject).await;
}

fn options(condition: Condition) -> StoreOptions {
    StoreOptions {
        size: None,
        condition,
    }
}

async fn one_writer_of_an_absent_key<S: Store>(subject: &Subject<S>) {
    for round in 0..20 {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let store = Arc::clone(&subject.store);
            tasks.spawn(async move {
                let key = format!("absent/{round}");
                let address = Address::object(SPACE, key.as_bytes());
                let bytes = task.to_le_bytes();
                let stored = put_with(
                    &*store,
                    address,
                    &bytes,
                    options(Condition::IfAbsent),
                    Seal::default(),
                );
                match stored.await {
                    Ok(_) => Some(task),
                    Err(error) if error.kind() == ErrorKind::PreconditionFailed => None,
                    Err(error) => panic!("{error:?}"),
                }
            });
        }
        let winners: Vec<u64> = tasks.join_all().await.into_iter().flatten().collect();
        let value = subject
            .get(SPACE, &format!("absent/{round}"))
            .await
            .unwrap();
        assert_eq!(winners.len(), 1, "exactly one writer wins");
        assert_eq!(value, winners[0].to_le_bytes(), "and its value stands");
    }
}

async fn no_update_is_lost<S: Store>(subject: &Subject<S>) {
    const INCREMENTS: u64 = 25;
    subject.put(SPACE, "counter", &0_u64.to_le_bytes()).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let store = Arc::clone(&subject.store);
        tasks.spawn(async move {
            let address = Address::object(SPACE, b"counter");
            let mut done = 0;
            while done < INCREMENTS {
                let found = store
                    .retrieve(address, None, ByteRange::Full)
                    .await
                    .unwrap();
                let etag = found.meta.etag;
                let bytes = drain(found).await.try_into().expect("eight bytes");
                yield_now().await;
                let next = (u64::from_le_bytes(bytes) + 1).to_le_bytes();
                let matching = options(Condition::IfMatch(etag));
                match put_with(&*store, address, &next, matching, Seal::default()).await {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed),
                }
            }
        });
    }
    tasks.join_all().await;
    let counted = subject.get(SPACE, "counter").await.unwrap();
    assert_eq!(counted, (TASKS * INCREMENTS).to_le_bytes());
}

/// The tag says which bytes the value must have.
async fn readers_see_whole_values<S: Store>(subject: &Subject<S>) {
    let chunk = subject.store.caps().chunk_bytes;
    let sizes = [10, 5000, chunk / 2 + 3, chunk + 7];
    let mut tasks = JoinSet::new();
    for task in 0..4_u64 {
        let store = Arc::clone(&subject.store);
        tasks.spawn(async move {
            let address = Address::object(SPACE, b"whole");
            for round in 0..20 {
                let seed = task * 100 + round;
                let bytes = content(seed, sizes[(seed % 4) as usize]);
                let free = StoreOptions::default();
                let stored = put_with(&*store, address, &bytes, free, Seal::default()).await;
                stored.unwrap();
                if seed % 5 == 0 {
                    store
                        .delete(address, DeleteOptions::default())
                        .await
                        .unwrap();
                }
                yield_now().await;
            }
        });
        let store = Arc::clone(&subject.store);
        tasks.spawn(async move {
            let address = Address::object(SPACE, b"whole");
            for _ in 0..60 {
                match store.retrieve(address, None, ByteRange::Full).await {
                    Ok(object) => {
                        yield_now().await;
                        let meta = object.meta.clone();
                        let bytes = drain(object).await;
                        assert_eq!(meta.size, bytes.len() as u64);
                        assert_eq!(meta.crc64nvme, crc64nvme(&bytes), "never a mix");
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
                yield_now().await;
            }
        });
    }
    tasks.join_all().await;
}

async fn one_compose_takes_the_parts<S: Store>(subject: &Subject<S>) {
    for round in 0..10 {
        let parts = [format!("part/{round}/1"), format!("part/{round}/2")];
        subject.stage(SPACE, &parts[0], b"one").await;
        subject.stage(SPACE, &parts[1], b"two").await;
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let store = Arc::clone(&subject.store);
            let parts = parts.clone();
            tasks.spawn(async move {
                let key = format!("composed/{round}/{task}");
                let target = Address::object(SPACE, key.as_bytes());
                let sources = [0, 1].map(|at: usize| Source::any(parts[at].as_bytes()));
                let free = StoreOptions::default();
                let composed = store.compose(target, &sources, &[], free, Seal::default());
                match composed.await {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NotFound);
                        0
                    }
                }
            });
        }
        let winners: u32 = tasks.join_all().await.into_iter().sum();
        assert_eq!(winners, 1, "parts become one value");
    }
}

async fn quotas_hold<S: Store>(subject: &Subject<S>) {
    let config = NamespaceConfig {
        quota: Quota {
            bytes: Some(500),
            objects: None,
        },
        ..NamespaceConfig::default()
    };
    subject.configured("concurrent-quota", config).await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&subject.store);
        tasks.spawn(async move {
            for round in 0..5 {
                let key = format!("{task}/{round}");
                let address = Address::object("concurrent-quota", key.as_bytes());
                let free = StoreOptions::default();
                let bytes = content(task, 100);
                match put_with(&*store, address, &bytes, free, Seal::default()).await {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::QuotaExceeded),
                }
                let held = store.usage(Scope::Namespace("concurrent-quota")).unwrap();
                assert!(held.bytes <= 500, "{held:?} at every moment");
            }
        });
    }
    tasks.join_all().await;
}
