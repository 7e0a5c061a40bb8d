//! What is at hand is moved, looked for and told without a wait: others of the thread get their turn all the same.

use std::cell::Cell;
use std::rc::Rc;

use forebay_fabric::{Access, Fabric, Link};
use forebay_proto::direct::{
    Body, List, ListAfter, Operation, Range, RequestWriter, Retrieve, Stat, Status, Target,
    parse_reply,
};

use crate::any::Way;
use crate::support::*;

const MIB: usize = 1 << 20;
/// Bytes moved in all.
const BYTES: usize = 64 * MIB;
/// Another gets its turn at least once in so many.
const TURN_BYTES: usize = 8 * MIB;
/// The same of keys.
const TURN_KEYS: usize = 2048;

/// Waits for nothing, and counts how often it gets its turn.
fn other() -> Rc<Cell<usize>> {
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    tokio::task::spawn_local(async move {
        while Rc::strong_count(&counted) > 1 {
            counted.set(counted.get() + 1);
            tokio::task::yield_now().await;
        }
    });
    turns
}

#[tokio::test(flavor = "local")]
async fn others_get_their_turn_while_one_moves_much() {
    let server = Server::new().await;
    server.set(NAMESPACE, b"k", &noise(1, MIB)).await;
    server.set(NAMESPACE, b"long", &noise(2, BYTES + 1)).await;
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    let memory = caller.memory(BYTES, Access::ReadWrite).await;
    let windows = || {
        (0..BYTES)
            .step_by(MIB)
            .map(|at| memory.window(at as u64, MIB as u64))
    };
    let turns = other();
    let took_turns = |what| {
        let count = turns.replace(0);
        assert!(count >= BYTES / TURN_BYTES, "{what}: {count}");
    };

    turns.set(0);
    let gathered = caller.call(Operation::Retrieve, NAMESPACE, |writer| {
        for window in windows() {
            writer
                .retrieve(&whole(b"k", Target::Window(window)))
                .unwrap();
        }
    });
    let gathered = gathered.await.results;
    assert!(gathered.iter().all(|said| said.status() == Status::Ok));
    took_turns("a gather");

    let mut ids = Vec::new();
    for window in windows() {
        let asked = caller.send(Operation::Retrieve, NAMESPACE, |writer| {
            writer
                .retrieve(&whole(b"k", Target::Window(window)))
                .unwrap();
        });
        ids.push(asked.await);
    }
    for id in ids {
        assert_eq!(caller.answer(id).await.results[0].status(), Status::Ok);
    }
    took_turns("many requests");

    let part = Retrieve {
        range: Range::From(1),
        ..whole(b"long", Target::Window(memory.window(0, BYTES as u64)))
    };
    let said = caller.one(Operation::Retrieve, NAMESPACE, |writer| {
        writer.retrieve(&part).unwrap();
    });
    assert_eq!(said.await.status(), Status::Ok);
    took_turns("a part with a checksum");

    let scattered = caller.call(Operation::Store, NAMESPACE, |writer| {
        for (key, window) in windows().enumerate() {
            let key = [key as u8];
            writer.store(&plain(&key, Body::Window(window))).unwrap();
        }
    });
    let scattered = scattered.await.results;
    assert!(scattered.iter().all(|said| said.status() == Status::Ok));
    for said in &scattered {
        assert_eq!(said.status(), Status::Ok, "{said:?}");
    }
}

#[tokio::test(flavor = "local")]
async fn others_get_their_turn_while_one_asks_for_many_keys() {
    let server = Server::new().await;
    let keys: Vec<_> = (0..1000).map(|number| format!("{number:06}")).collect();
    for key in &keys {
        server.set(NAMESPACE, key.as_bytes(), b"").await;
    }
    let caller = server.connect(TENANT, Way::Pipe(Fabric::Shm)).await;
    let turns = other();
    // The pipe holds all questions, and all answers.
    for (operation, count, messages) in [
        (Operation::Exist, 1000, 48),
        (Operation::LongestPrefix, 1000, 48),
        (Operation::Stat, 500, 16),
        (Operation::List, 1000, 12),
    ] {
        let ask = |writer: &mut RequestWriter<'_>| match operation {
            Operation::Stat => keys[..count].iter().for_each(|key| {
                let key = key.as_bytes();
                writer.stat(&Stat { key, version: None }).unwrap();
            }),
            Operation::List => {
                let list = List {
                    prefix: b"",
                    delimiter: b"",
                    after: ListAfter::Start,
                    limit: count as u32,
                };
                writer.list(&list).unwrap();
            }
            _ => keys
                .iter()
                .for_each(|key| writer.key(key.as_bytes()).unwrap()),
        };
        for _ in 0..messages {
            caller.send(operation, NAMESPACE, ask).await;
        }
        turns.set(0);
        let (mut message, mut answered) = (Vec::new(), 0);
        while answered < messages {
            caller.link.recv(&mut message).await.unwrap().unwrap();
            let reply = parse_reply(&message).unwrap();
            answered += usize::from(reply.last);
            for result in reply.results {
                assert_eq!(result.status, Status::Ok);
            }
        }
        let got = turns.get();
        assert!(got >= messages * count / TURN_KEYS, "{operation:?}: {got}");
    }
}
