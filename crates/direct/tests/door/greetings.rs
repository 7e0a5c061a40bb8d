//! The first message of a link.

use forebay_fabric::{Access, CloseReason, Link, iwarp};
use forebay_proto::direct::{Status, Target};

use crate::any::Way;
use crate::support::*;

/// As the kernel and adapters make links: who connects has to speak first, and MPA does not do it for him.
fn as_adapters_do() -> iwarp::Options {
    iwarp::Options {
        peer_to_peer: false,
        ..iwarp::Options::default()
    }
}

async fn is_served(caller: &Caller) {
    let memory = caller.memory(4096, Access::ReadWrite).await;
    let window = Target::Window(memory.window(0, 4096));
    let said = caller.retrieve(NAMESPACE, b"key", window).await;
    assert_eq!(said.status(), Status::Ok);
    assert_eq!(memory.bytes(0, 4096), [7; 4096]);
}

async fn is_a_violation(caller: Caller, message: &[u8]) {
    caller.link.send(message).await.unwrap();
    let reason = caller.serving.await.unwrap();
    assert!(
        matches!(reason, CloseReason::Violation(_)),
        "{}: {reason:?}",
        message.len()
    );
}

#[tokio::test(flavor = "local")]
async fn who_speaks_first_over_iwarp_asks_for_nothing() {
    let server = Server::new().await;
    server.set(NAMESPACE, b"key", &[7; 4096]).await;
    let caller = server.connect_far(TENANT, as_adapters_do()).await;
    caller.link.send(&[0; 8]).await.unwrap();
    is_served(&caller).await;
    // Once.
    is_a_violation(caller, &[0; 8]).await;
    let caller = server.connect_far(TENANT, as_adapters_do()).await;
    is_served(&caller).await;
    is_a_violation(caller, &[0; 8]).await;
    for len in [1, 7, 9] {
        let caller = server.connect_far(TENANT, as_adapters_do()).await;
        is_a_violation(caller, &[0; 9][..len]).await;
    }
    // Nobody has to over shared memory.
    is_a_violation(server.connect(TENANT, Way::Shm).await, &[0; 8]).await;
}
