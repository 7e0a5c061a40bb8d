//! A peer is told of several messages at once, and woken for them together, and never forgotten.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use forebay_fabric::Link;
use tokio::task::yield_now;

use crate::ends::{Ends, ends};
use crate::run;

/// Polls it until nobody has anything to do.
async fn assert_waits(mut what: Pin<&mut impl Future>) {
    for _ in 0..1000 {
        tokio::select! {
            biased;
            _ = what.as_mut() => panic!("it did not wait"),
            () = yield_now() => {}
        }
    }
}

/// The server has taken one of three messages.
async fn behind() -> Ends {
    let ends = ends().await;
    for number in 0..3 {
        ends.client.send(&[number]).await.unwrap();
    }
    let mut message = Vec::new();
    assert!(ends.server.link.recv(&mut message).await.unwrap().is_some());
    ends
}

#[test]
fn at_the_latest_when_the_last_message_is_taken() {
    run(async {
        let ends = behind().await;
        let mut answer = Vec::new();
        {
            let mut asleep = pin!(ends.client.recv(&mut answer));
            assert_waits(asleep.as_mut()).await;
            ends.server.link.send(b"answer").await.unwrap();
            assert_waits(asleep.as_mut()).await;

            let mut message = Vec::new();
            for number in 1..3 {
                assert_waits(asleep.as_mut()).await;
                assert!(ends.server.link.recv(&mut message).await.unwrap().is_some());
                assert_eq!(message, [number]);
            }
            assert!(asleep.await.unwrap().is_some());
        }
        assert_eq!(answer, b"answer");
    });
}

/// Whether the client, which was awake when the server answered the first of so many messages, is told of that at once.
async fn is_told_at_once(messages: usize) -> bool {
    let ends = ends().await;
    for _ in 0..messages {
        ends.client.send(&[0; 300]).await.unwrap();
    }
    let (mut message, mut answer) = (Vec::new(), Vec::new());
    assert!(ends.server.link.recv(&mut message).await.unwrap().is_some());
    ends.server.link.send(b"answer").await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let told = pin!(ends.client.recv(&mut answer))
        .poll(&mut context)
        .is_ready();
    if !told {
        for _ in 1..messages {
            assert!(ends.server.link.recv(&mut message).await.unwrap().is_some());
        }
        assert!(ends.client.recv(&mut answer).await.unwrap().is_some());
    }
    assert_eq!(answer, b"answer");
    told
}

#[test]
fn one_that_is_awake_is_told_later_only_while_there_is_much_to_take() {
    run(async {
        for (messages, at_once) in [(1, true), (2, true), (4, false)] {
            assert_eq!(is_told_at_once(messages).await, at_once, "{messages}");
        }
    });
}

#[test]
fn after_a_few_messages_whatever_is_left_to_take() {
    run(async {
        let ends = behind().await;
        let mut answer = Vec::new();
        let mut asleep = pin!(ends.client.recv(&mut answer));
        assert_waits(asleep.as_mut()).await;
        for number in 0..4 {
            ends.server.link.send(&[number]).await.unwrap();
        }
        assert!(asleep.await.unwrap().is_some());
    });
}

#[test]
fn when_nothing_more_is_taken_for_now() {
    run(async {
        let ends = behind().await;
        let mut answer = Vec::new();
        let mut asleep = pin!(ends.client.recv(&mut answer));
        assert_waits(asleep.as_mut()).await;
        ends.server.link.send(b"answer").await.unwrap();
        assert_waits(asleep.as_mut()).await;
        ends.server.link.pauses();
        assert!(asleep.await.unwrap().is_some());
    });
}
