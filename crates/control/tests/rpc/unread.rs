//! Answers that nobody reads, and calls that are given up in their midst.

use std::time::Duration;

use forebay_api::v1;
use forebay_fabric::Fabric;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use crate::harness::{Client, Door, refused};
use crate::memory::Shared;

/// Fewer bytes than any answer has.
const WINDOW: u32 = 16;
const SOON: Duration = Duration::from_secs(10);

/// A client that takes less than an answer, with memory.
async fn narrow() -> (Door, Client, Shared) {
    let door = Door::open().await;
    let mut red = door.narrow_tenant("red", WINDOW).await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, 4096).await;
    (door, red, shared)
}

/// Stores values of these keys after one that has no place to come from.
async fn scatter(
    client: &mut Client,
    shared: &Shared,
    keys: &[&str],
) -> Streaming<v1::ScatterResponse> {
    let element = |key: &str, place| v1::ScatterElement {
        key: key.to_owned().into(),
        place,
        ..Default::default()
    };
    let none = element("none", None);
    let stored = keys.iter().map(|key| element(key, shared.place(0, 4096)));
    let request = v1::ScatterRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: std::iter::once(none).chain(stored).collect(),
    };
    client.objects.scatter(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn what_has_begun_ends_though_no_answer_is_read() {
    let (door, mut red, shared) = narrow().await;
    // The first answer fills the window, the second one is in the server's hands, and the third is being made.
    let beside = door.beside.clone();
    door.beside.committing.once(async move {
        beside.committing.once(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        yield_now().await;
    });
    let mut answers = scatter(&mut red, &shared, &["second", "third"]).await;
    let mut other = door.tenant("red").await;
    let stat = v1::StatRequest {
        namespace: "data".into(),
        key: "third".into(),
        version: None,
    };
    let stored = async { while other.objects.stat(stat.clone()).await.is_err() {} };
    timeout(SOON, stored).await.expect("it is stored");
    // Then they are read.
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.failure.unwrap().reason(), v1::Reason::Invalid);
    for index in 1..3 {
        let stored = answers.message().await.unwrap().unwrap();
        assert_eq!((stored.index, stored.failure), (index, None));
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn what_is_at_work_is_given_up_with_its_call() {
    let (door, mut red, shared) = narrow().await;
    let (begun, is_begun) = oneshot::channel();
    let (at_work, mut given_up) = oneshot::channel::<()>();
    door.beside.committing.once(async {
        let _at_work = at_work;
        let _ = begun.send(());
        std::future::pending().await
    });
    let answers = scatter(&mut red, &shared, &["value"]).await;
    is_begun.await.unwrap();
    drop((answers, red));
    // Nothing of it outlives the door.
    timeout(SOON, door.close()).await.expect("the door closes");
    let gone = given_up.try_recv();
    assert_eq!(gone, Err(oneshot::error::TryRecvError::Closed));
}

#[tokio::test]
async fn answers_that_cannot_be_made_are_no_end() {
    let (door, mut red, shared) = narrow().await;
    door.beside.committing.once(async { panic!("on purpose") });
    let mut answers = scatter(&mut red, &shared, &["value"]).await;
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.index, 0);
    let ended = answers.message().await;
    refused(ended, Code::Unknown, "OUTCOME_UNKNOWN");
}
