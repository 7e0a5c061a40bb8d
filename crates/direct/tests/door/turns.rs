//! What is at hand is moved without a wait: others of the thread get their turn all the same.

use std::cell::Cell;
use std::rc::Rc;

use forebay_fabric::{Access, Fabric};
use forebay_proto::direct::{Body, Operation, Range, Retrieve, Status, Target};

use crate::any::Way;
use crate::support::*;

const MIB: usize = 1 << 20;
/// Bytes moved in all.
const BYTES: usize = 64 * MIB;
/// Another gets its turn at least once in so many.
const TURN_BYTES: usize = 8 * MIB;

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
