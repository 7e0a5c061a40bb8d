//! A peer that sleeps is woken for several messages at once, and never forgotten.

use std::future::Future;
use std::pin::{Pin, pin};

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
fn at_the_latest_when_nothing_is_left_to_take() {
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
                assert!(ends.server.link.recv(&mut message).await.unwrap().is_some());
                assert_eq!(message, [number]);
            }
            assert_waits(asleep.as_mut()).await;
            assert_waits(pin!(ends.server.link.recv(&mut message))).await;
            assert!(asleep.await.unwrap().is_some());
        }
        assert_eq!(answer, b"answer");
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
