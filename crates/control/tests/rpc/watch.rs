//! Watching namespaces: from the beginning, from a revision, through every door, and no further than one may see.

use std::time::Duration;

use forebay_api::v1::{self, NamespaceChangeKind as Kind, NamespaceEvent};
use forebay_control::rpc::Config;
use forebay_store::{NamespaceConfig, Store};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use crate::bounds::bounded;
use crate::harness::{Client, Door, refused};
use crate::objects::stored;

struct Seen {
    stream: Streaming<NamespaceEvent>,
    revision: Vec<u8>,
}

impl Seen {
    async fn begin(client: &mut Client, revision: Vec<u8>) -> Seen {
        let request = v1::WatchNamespacesRequest {
            revision: revision.clone().into(),
        };
        let stream = client.watch.namespaces(request).await.unwrap().into_inner();
        Seen { stream, revision }
    }

    async fn event(&mut self) -> NamespaceEvent {
        let event = self.stream.message().await.unwrap().expect("an event");
        if !event.revision.is_empty() {
            self.revision = event.revision.to_vec();
        }
        event
    }

    /// The next event: what happened, to which namespace.
    async fn next(&mut self) -> (Kind, String) {
        let event = self.event().await;
        let name = event.namespace.as_ref().map(|shown| shown.name.clone());
        (event.kind(), name.unwrap_or_default())
    }
}

fn told(kind: Kind, name: &str) -> (Kind, String) {
    (kind, name.to_owned())
}

async fn remove(client: &mut Client, name: &str) {
    let request = v1::RemoveNamespaceRequest { name: name.into() };
    client.admin.remove_namespace(request).await.unwrap();
}

#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("first").await;
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    assert_eq!(seen.next().await, told(Kind::Reset, ""));
    assert_eq!(seen.next().await, told(Kind::Present, "first"));
    assert_eq!(seen.next().await, told(Kind::Synced, ""));
    red.namespace("second").await;
    assert_eq!(seen.next().await, told(Kind::Created, "second"));
    let change = v1::ChangeNamespaceRequest {
        name: "second".into(),
        change: Some(v1::NamespaceChange {
            ttl_ms: Some(v1::Bound { value: Some(1) }),
            ..Default::default()
        }),
    };
    red.admin.change_namespace(change).await.unwrap();
    assert_eq!(seen.next().await, told(Kind::Changed, "second"));
    remove(&mut red, "first").await;
    assert_eq!(seen.next().await, told(Kind::Removed, "first"));

    // A change through another door is found.
    let config = NamespaceConfig {
        tenant: "red".into(),
        ..NamespaceConfig::default()
    };
    door.store.create_namespace("third", config).await.unwrap();
    assert_eq!(seen.next().await, told(Kind::Created, "third"));
}

#[tokio::test]
async fn a_watcher_continues_where_it_was() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    seen.next().await;
    assert_eq!(seen.next().await, told(Kind::Synced, ""));
    let at_first = seen.revision.clone();
    red.namespace("first").await;
    seen.next().await;
    let after_first = seen.revision.clone();
    red.namespace("second").await;
    seen.next().await;
    drop(seen);

    let mut again = Seen::begin(&mut red, after_first).await;
    assert_eq!(again.next().await, told(Kind::Created, "second"));
    let mut again = Seen::begin(&mut red, at_first).await;
    assert_eq!(again.next().await, told(Kind::Created, "first"));
    assert_eq!(again.next().await, told(Kind::Created, "second"));
    for unknown in [vec![9; 16], vec![1], vec![0; 1000]] {
        let mut anew = Seen::begin(&mut red, unknown).await;
        assert_eq!(anew.next().await, told(Kind::Reset, ""));
        assert_eq!(anew.next().await, told(Kind::Present, "first"));
    }
}

#[tokio::test]
async fn a_watcher_that_missed_more_than_is_remembered_begins_anew() {
    const REMEMBERED: usize = 1024;
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    assert_eq!(seen.next().await, told(Kind::Reset, ""));
    assert_eq!(seen.next().await, told(Kind::Synced, ""));
    for _ in 0..REMEMBERED / 2 {
        red.namespace("first").await;
        remove(&mut red, "first").await;
    }
    let mut again = Seen::begin(&mut red, seen.revision.clone()).await;
    for _ in 0..REMEMBERED / 2 {
        assert_eq!(again.next().await, told(Kind::Created, "first"));
        assert_eq!(again.next().await, told(Kind::Removed, "first"));
    }
    red.namespace("last").await;
    assert_eq!(again.next().await, told(Kind::Created, "last"));
    let mut anew = Seen::begin(&mut red, seen.revision.clone()).await;
    assert_eq!(anew.next().await, told(Kind::Reset, ""));
    assert_eq!(anew.next().await, told(Kind::Present, "last"));
    assert_eq!(anew.next().await, told(Kind::Synced, ""));
}

#[tokio::test]
async fn nobody_is_told_of_anothers() {
    let door = Door::open().await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    blue.namespace("blue-before").await;
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    let mut root = door.root().await;
    let mut all = Seen::begin(&mut root, Vec::new()).await;
    assert_eq!(seen.next().await, told(Kind::Reset, ""));
    assert_eq!(seen.next().await, told(Kind::Synced, ""));
    assert_eq!(all.next().await, told(Kind::Reset, ""));
    assert_eq!(all.next().await, told(Kind::Present, "blue-before"));
    assert_eq!(all.next().await, told(Kind::Synced, ""));
    blue.namespace("blue-after").await;
    red.namespace("red-after").await;
    assert_eq!(seen.next().await, told(Kind::Created, "red-after"));
    assert_eq!(all.next().await, told(Kind::Created, "blue-after"));
    assert_eq!(all.next().await, told(Kind::Created, "red-after"));

    // A name that changes hands is another namespace.
    remove(&mut blue, "blue-after").await;
    red.namespace("blue-after").await;
    assert_eq!(seen.next().await, told(Kind::Created, "blue-after"));
    assert_eq!(all.next().await, told(Kind::Removed, "blue-after"));
    assert_eq!(all.next().await, told(Kind::Created, "blue-after"));
}

#[tokio::test]
async fn a_removed_namespace_has_nothing_of_its_namesake() {
    let door = Door::open().await;
    let (mut red, mut blue) = (door.tenant("red").await, door.tenant("blue").await);
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    seen.next().await;
    assert_eq!(seen.next().await, told(Kind::Synced, ""));
    red.namespace("data").await;
    remove(&mut red, "data").await;
    blue.namespace("data").await;
    stored(&door.store, "data", b"key", b"value").await;
    let mut again = Seen::begin(&mut red, seen.revision).await;
    for kind in [Kind::Created, Kind::Removed] {
        let event = again.event().await;
        assert_eq!(event.kind(), kind);
        let usage = event.namespace.unwrap().usage.unwrap();
        assert_eq!((usage.objects, usage.bytes), (0, 0));
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_key_and_with_the_door() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    let mut root = door.root().await;
    let mut seen = Seen::begin(&mut red, Vec::new()).await;
    let mut all = Seen::begin(&mut root, Vec::new()).await;
    for _ in 0..2 {
        seen.next().await;
        all.next().await;
    }
    door.identities.remove_key(&red.access_key).await.unwrap();
    let ended = seen.stream.message().await;
    refused(ended, Code::Unauthenticated, "UNAUTHENTICATED");
    // One of the same name is another key.
    let key = door.identities.create_key("red", None).await.unwrap();
    let mut seen = Seen::begin(&mut door.client(&key).await, Vec::new()).await;
    for _ in 0..2 {
        seen.next().await;
    }
    door.identities.remove_key(&key.id).await.unwrap();
    let made = door
        .identities
        .create_key("red", Some((&key.id, "another-secret")));
    made.await.unwrap();
    let ended = seen.stream.message().await;
    refused(ended, Code::Unauthenticated, "UNAUTHENTICATED");
    door.close().await;
    assert!(all.stream.message().await.unwrap().is_none());
}

/// Makes so many namespaces of red's.
async fn filled(door: &Door, count: usize) {
    for i in 0..count {
        let config = NamespaceConfig {
            tenant: "red".to_owned(),
            ..NamespaceConfig::default()
        };
        let name = format!("data-{i}");
        door.store.create_namespace(&name, config).await.unwrap();
    }
}

async fn begun(client: &mut Client) -> Streaming<NamespaceEvent> {
    let request = v1::WatchNamespacesRequest::default();
    let watch = client.watch.namespaces(request).await;
    watch.unwrap().into_inner()
}

/// How many events come, and what the watch ends with.
async fn rest(mut watch: Streaming<NamespaceEvent>) -> (usize, Result<(), Status>) {
    let mut events = 0;
    loop {
        match watch.message().await {
            Ok(Some(_)) => events += 1,
            Ok(None) => return (events, Ok(())),
            Err(status) => return (events, Err(status)),
        }
    }
}

#[tokio::test]
async fn what_a_watch_has_not_told_counts_as_what_it_holds() {
    const MANY: usize = 700;
    let door = Door::choose(bounded(Config {
        call_bytes: 64 << 10,
        patience: Duration::from_secs(1),
        ..Config::default()
    }))
    .await;
    let mut red = door.narrow_tenant("red", 16).await;
    filled(&door, MANY).await;
    let mut first = begun(&mut red).await;
    let reset = first.message().await.unwrap().unwrap();
    assert_eq!(reset.kind(), Kind::Reset);
    // Nobody reads on, and what is left of it leaves no room for as much again.
    let refusal = begun(&mut red).await.message().await;
    refused(refusal, Code::ResourceExhausted, "BUSY");
    // It is given up at last, though nobody reads on.
    let again = async {
        loop {
            let mut again = begun(&mut red).await;
            if again.message().await.is_ok() {
                return;
            }
        }
    };
    let again = timeout(Duration::from_secs(30), again).await;
    again.expect("there is room again");
    let (events, ended) = rest(first).await;
    assert!(events < MANY, "{events}");
    refused(ended, Code::DeadlineExceeded, "STOPPED");
}

#[tokio::test]
async fn a_watch_ends_with_its_key_though_events_wait() {
    const MANY: usize = 3000;
    let door = Door::open().await;
    let mut red = door.slow_tenant("red").await;
    filled(&door, MANY).await;
    let mut watch = begun(&mut red).await;
    watch.message().await.unwrap().unwrap();
    door.identities.remove_key(&red.access_key).await.unwrap();
    let (events, ended) = rest(watch).await;
    assert!(events < MANY, "{events}");
    refused(ended, Code::Unauthenticated, "UNAUTHENTICATED");
}
