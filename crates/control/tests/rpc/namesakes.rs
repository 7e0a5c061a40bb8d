//! What a call is admitted to is a namespace and not its name: another tenant's of the same name is another one.

use forebay_api::v1;
use forebay_fabric::Fabric;
use forebay_store::{Address, DeleteOptions, MemoryStore, NamespaceConfig, Scope, Store};
use tonic::Code;

use crate::harness::{Client, Door, refusal, refused};
use crate::memory::Shared;
use crate::objects::stored;

/// Elements of a batch, and those that are done before its namespace changes hands.
const BATCH: usize = 100;
const DONE: usize = 30;
/// Bytes of each element's value.
const PIECE: usize = 64;

/// A client of a namespace, with memory that is all `fill`.
async fn open(fill: u8) -> (Door, Client, Shared) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let shared = Shared::open(&door, &mut red, Fabric::Shm, PIECE).await;
    shared.set(0, &[fill; PIECE]);
    (door, red, shared)
}

/// The namespace with so many values ends, and another tenant makes one of the same name.
async fn give_away(store: &MemoryStore, count: usize) {
    for i in 0..count {
        let key = format!("k{i}");
        let address = Address::object("data", key.as_bytes());
        let deleted = store.delete(address, DeleteOptions::default());
        deleted.await.unwrap();
    }
    store.delete_namespace("data").await.unwrap();
    let config = NamespaceConfig {
        tenant: "blue".to_owned(),
        ..NamespaceConfig::default()
    };
    let made = store.create_namespace("data", config);
    made.await.unwrap();
}

/// Elements were done until the namespace changed hands, and found none from then on.
#[track_caller]
fn ended(failures: &[Option<v1::Failure>]) {
    assert_eq!(failures.len(), BATCH);
    let done = failures.iter().take_while(|failure| failure.is_none());
    assert_eq!(done.count(), DONE);
    for failure in &failures[DONE..] {
        let failure = failure.as_ref().expect("a failure");
        assert_eq!(failure.code, i32::from(Code::NotFound));
        assert_eq!(failure.reason(), v1::Reason::NoSuchNamespace);
        assert_eq!(failure.message, "there is no namespace \"data\"");
    }
}

#[tokio::test]
async fn a_gather_is_of_a_namespace_and_not_of_its_name() {
    let (door, mut red, shared) = open(0).await;
    let fill = async |store: &MemoryStore, with: u8| {
        for i in 0..BATCH {
            stored(store, "data", format!("k{i}").as_bytes(), &[with; PIECE]).await;
        }
    };
    fill(&door.store, 1).await;
    let store = door.store.clone();
    door.beside.filled.after(DONE - 1, async move {
        give_away(&store, BATCH).await;
        fill(&store, 2).await;
    });
    let elements = (0..BATCH).map(|i| v1::GatherElement {
        key: format!("k{i}").into(),
        range: None,
        place: shared.place(0, PIECE as u64),
    });
    let request = v1::GatherRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: elements.collect(),
        checksum: false,
    };
    let mut answers = red.objects.gather(request).await.unwrap().into_inner();
    let mut failures = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        failures.push(answer.failure);
    }
    ended(&failures);
    assert_eq!(shared.bytes(0, PIECE), [1; PIECE]);
}

#[tokio::test]
async fn a_scatter_is_of_a_namespace_and_not_of_its_name() {
    let (door, mut red, shared) = open(1).await;
    let store = door.store.clone();
    door.beside.committed.after(DONE - 1, async move {
        give_away(&store, BATCH).await;
    });
    let elements = (0..BATCH).map(|i| v1::ScatterElement {
        key: format!("k{i}").into(),
        place: shared.place(0, PIECE as u64),
        ..Default::default()
    });
    let request = v1::ScatterRequest {
        namespace: "data".into(),
        session: shared.session.clone().into(),
        elements: elements.collect(),
    };
    let mut answers = red.objects.scatter(request).await.unwrap().into_inner();
    let mut failures = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        failures.push(answer.failure);
    }
    ended(&failures);
    let used = door.store.usage(Scope::Namespace("data")).unwrap();
    assert_eq!(used.objects, 0);
}

#[tokio::test]
async fn a_prefix_is_of_a_namespace_and_not_of_its_name() {
    const KEYS: usize = 100;
    let fill = async |store: &MemoryStore| {
        for i in 0..KEYS {
            stored(store, "data", format!("k{i}").as_bytes(), b"x").await;
        }
    };
    // In the midst, and after the last look.
    for count in [KEYS, 10] {
        let door = Door::open().await;
        let mut red = door.tenant("red").await;
        red.namespace("data").await;
        fill(&door.store).await;
        let request = v1::LongestPrefixRequest {
            namespace: "data".into(),
            keys: (0..count).map(|i| format!("k{i}").into()).collect(),
        };
        let found = red.objects.longest_prefix(request.clone()).await.unwrap();
        assert_eq!(found.into_inner().found as usize, count);
        let store = door.store.clone();
        door.beside.looked_up.once(async move {
            give_away(&store, KEYS).await;
            fill(&store).await;
        });
        let found = red.objects.longest_prefix(request).await;
        refused(found, Code::NotFound, "NO_SUCH_NAMESPACE");
    }
}

#[tokio::test]
async fn keys_are_those_of_a_namespace_and_not_of_its_name() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    stored(&door.store, "data", b"k0", b"x").await;
    let exist = v1::ExistRequest {
        namespace: "data".into(),
        keys: vec!["k0".into()],
        sizes: true,
    };
    let found = red.objects.exist(exist.clone()).await.unwrap();
    assert_eq!(found.into_inner().sizes, [1]);
    let store = door.store.clone();
    door.beside.looked_up.once(async move {
        give_away(&store, 1).await;
    });
    let found = red.objects.exist(exist).await;
    refused(found, Code::NotFound, "NO_SUCH_NAMESPACE");

    red.namespace("list").await;
    let list = v1::ListRequest {
        namespace: "list".into(),
        ..Default::default()
    };
    red.objects.list(list.clone()).await.unwrap();
    let store = door.store.clone();
    door.beside.listed.once(async move {
        store.delete_namespace("list").await.unwrap();
    });
    let listed = red.objects.list(list).await;
    refused(listed, Code::NotFound, "NO_SUCH_NAMESPACE");
}

#[tokio::test]
async fn a_change_is_of_a_namespace_and_not_of_its_name() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let change = v1::ChangeNamespaceRequest {
        name: "data".into(),
        change: Some(v1::NamespaceChange {
            ttl_ms: Some(v1::Bound { value: Some(1) }),
            ..Default::default()
        }),
    };
    let changed = red.admin.change_namespace(change.clone()).await.unwrap();
    assert_eq!(changed.into_inner().ttl_ms, Some(1));
    let gone = async |red: &mut Client| {
        let changed = red.admin.change_namespace(change.clone()).await;
        let (code, reason, words) = refusal(changed);
        assert_eq!(
            (code, reason.as_str()),
            (Code::NotFound, "NO_SUCH_NAMESPACE")
        );
        assert_eq!(words, "there is no namespace \"data\"");
        let theirs = door.store.namespace("data").unwrap();
        assert_eq!(theirs.config.ttl_ms, None);
    };
    let store = door.store.clone();
    door.beside.changing.once(async move {
        give_away(&store, 0).await;
    });
    gone(&mut red).await;

    // After a door changed it.
    door.store.delete_namespace("data").await.unwrap();
    red.namespace("data").await;
    let store = door.store.clone();
    door.beside.changing.once(async move {
        let config = store.namespace("data").unwrap().config.clone();
        let changed = store.update_namespace("data", None, config);
        changed.await.unwrap();
    });
    let store = door.store.clone();
    door.beside.changed.once(async move {
        give_away(&store, 0).await;
    });
    gone(&mut red).await;

    // Another one of the same tenant, which was changed as often.
    door.store.delete_namespace("data").await.unwrap();
    red.namespace("data").await;
    let store = door.store.clone();
    door.beside.changing.once(async move {
        let config = store.namespace("data").unwrap().config.clone();
        store.delete_namespace("data").await.unwrap();
        store.create_namespace("data", config).await.unwrap();
    });
    gone(&mut red).await;
}
