//! A peer that takes no messages is given up, and one that takes some is not.

use std::time::Duration;

use forebay_fabric::{CloseReason, ErrorKind, Link, MESSAGE_BYTES_MAX};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause, timeout};

use crate::ends::{Ends, ends};
use crate::run;

const STALL: Duration = Duration::from_secs(30);

/// Fills the ring to the server's peer; how long it took until the link had ended.
async fn send_until_it_ends(link: &impl Link) -> Duration {
    let begun = Instant::now();
    let ended = async {
        loop {
            if let Err(error) = link.send(&[7; MESSAGE_BYTES_MAX]).await {
                break error;
            }
        }
    };
    let error = timeout(STALL * 20, ended).await.expect("it ends");
    assert_eq!(error.kind, ErrorKind::Closed);
    assert_eq!(error.message, CloseReason::Stalled.to_string());
    begun.elapsed()
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    run(async {
        let Ends { server, client, .. } = ends().await;
        pause();
        // Whoever waits beside it learns of it, too.
        let (first, second) = tokio::join!(
            send_until_it_ends(&server.link),
            send_until_it_ends(&server.link)
        );
        for took in [first, second] {
            assert!((STALL..STALL * 2).contains(&took), "{took:?}");
        }
        assert_eq!(server.link.closed().await, CloseReason::Stalled);
        assert_eq!(client.closed().await, CloseReason::Lost);
    });
}

#[test]
fn a_client_gives_up_a_server_likewise() {
    run(async {
        let Ends { server, client, .. } = ends().await;
        pause();
        let took = send_until_it_ends(&client).await;
        assert!((STALL..STALL * 2).contains(&took), "{took:?}");
        assert_eq!(client.closed().await, CloseReason::Stalled);
        assert_eq!(server.link.closed().await, CloseReason::Lost);
    });
}

/// Until nobody has anything to do before the time goes on.
async fn turns() {
    for _ in 0..1000 {
        yield_now().await;
    }
}

/// Whether the link is still there when the peer has ten times taken so many of the longest messages in nearly the time that it has.
async fn stays(messages: usize) -> bool {
    let Ends { server, client, .. } = ends().await;
    pause();
    let taking = async {
        let mut message = Vec::new();
        for _ in 0..10 {
            turns().await;
            advance(STALL - Duration::from_secs(1)).await;
            for _ in 0..messages {
                assert!(client.recv(&mut message).await.unwrap().is_some());
            }
        }
    };
    tokio::select! {
        _ = send_until_it_ends(&server.link) => false,
        () = taking => true,
    }
}

#[test]
fn a_peer_has_to_take_a_little() {
    run(async { assert!(stays(5).await) });
    run(async { assert!(!stays(1).await) });
}
