//! What waits for room with the library.

use std::collections::HashSet;

use forebay_store::{Body, ByteRange};
use tokio::runtime::Builder;

use super::*;
use crate::access::{UNITS, units};
use crate::index::Settle;
use crate::keeper::Task;
use crate::record::{BLOCK_BYTES, Entry};
use crate::under_way::Sum;
use crate::waiting::WAITING_MOST;

const NS: &str = "crowded";
/// Two stripes.
const STRIPED: usize = 8 << 20;
const AT_MOST: Duration = Duration::from_secs(30);

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(AT_MOST, work).await;
    done.expect("nothing waits for ever")
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn what_waits_for_room_is_sent_whoever_looks() {
    let cluster = cluster();
    // One thread: who was asked first has the first turn.
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let store = open(config(&cluster), TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, &bytes(1, STRIPED)).await;
        // A block of the first stripe, and all of the second one.
        let range = ByteRange::From(STRIPED as u64 / 2 - BLOCK_BYTES);
        let found = store.retrieve(key, None, range).await;
        let mut body = found.unwrap().body;
        let room = body.pieces.clone().map(|piece| units(piece.len()));
        let room: Vec<u32> = room.collect();
        let access = &store.core().access;
        let others = access.crowd(UNITS - room[1]).await;
        let another = access.crowd(room[1] - room[0]).await;
        assert!(in_time(body.next()).await.unwrap().is_some());
        // The second one gets all the room that there is, and nobody asks for it.
        drop(another);
        in_time(store.stat(key, None)).await.unwrap();
        drop(others);
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn who_finds_no_room_is_told_so() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = Config {
            patience: Duration::from_secs(2),
            ..config(&cluster)
        };
        let store = open(config, TestClock::default());
        space(&store, NS).await;
        let key = Address::object(NS, b"k");
        put(&store, key, b"v").await;
        let others = store.core().access.crowd(UNITS).await;
        let told = in_time(store.stat(key, None)).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Busy, "{told}");
        let upload = store.store(key, StoreOptions::default());
        let mut upload = upload.await.unwrap();
        upload.write(b"w".to_vec().into()).await.unwrap();
        let told = in_time(upload.commit(Seal::default())).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Busy, "nothing was sent: {told}");
        drop(others);
        assert_eq!(get(&store, key).await, b"v");
    });
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn changes_wait_for_an_index_that_is_too_far_behind() {
    let cluster = cluster();
    runtime().block_on(async {
        let config = Config {
            patience: Duration::from_secs(2),
            ..config(&cluster)
        };
        let store = open(config, TestClock::default());
        space(&store, NS).await;
        let namespace = store.core().namespace(NS).unwrap();
        let key = Address::object(NS, b"k");
        let shard = namespace.shard(&names::entry(key.space, key.key));
        let stuck = shard.hold().await;
        // Keys that went as soon as they came.
        for number in 0..WAITING_MOST {
            shard.settle(Settle {
                named: Named::object(number.to_be_bytes().to_vec()),
                before: None,
                after: Some(Entry::of(1, None)),
                ended: HashSet::new(),
                freed: HashSet::new(),
                unsure: false,
                counted: Sum::default(),
            });
        }
        let write = async || {
            let upload = store.store(key, StoreOptions::default()).await;
            let mut upload = upload.unwrap();
            upload.write(b"v".to_vec().into()).await.unwrap();
            upload.commit(Seal::default()).await
        };
        store.core().task(Task::Settle(namespace.clone()));
        let refused = in_time(write()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert_eq!(shard.waiting(), WAITING_MOST);
        let entered = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(stuck);
        };
        let (stored, ()) = tokio::join!(in_time(write()), entered);
        stored.unwrap();
        assert_eq!(get(&store, key).await, b"v");
    });
}
