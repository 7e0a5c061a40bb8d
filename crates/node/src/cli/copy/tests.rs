//! Copies to a door of this process.

use std::fs;

use forebay_client::{Config, Credentials, ObjectInfo};
use forebay_io::{Clock, SystemClock};
use forebay_mem::Pool;
use forebay_s3::{AccessKey, AccessKeys, Door};
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::net::TcpListener;

use super::super::address::Address;
use super::*;

struct OneKey;

impl AccessKeys for OneKey {
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>> {
        (access_key_id == "KEY").then(|| {
            Arc::new(AccessKey {
                id: "KEY".to_owned(),
                secret: "secret".to_owned(),
                tenant: "tenant".to_owned(),
            })
        })
    }
}

/// A client of a door that has the namespace `data`.
async fn client() -> Client {
    let clock = || {
        let system = SystemClock::default();
        move || system.unix_millis()
    };
    let store = MemoryStore::new(Pool::new(64 << 20), clock());
    let config = NamespaceConfig {
        tenant: "tenant".to_owned(),
        ..NamespaceConfig::default()
    };
    store.create_namespace("data", config).await.unwrap();
    let config = forebay_s3::Config::default();
    let door = Door::new(Arc::new(store), Arc::new(OneKey), Arc::new(clock()), config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let never = std::future::pending::<()>();
            tokio::spawn(
                door.clone()
                    .serve_connection(stream, Some(peer), false, never),
            );
        }
    });
    let credentials = Credentials {
        access_key: "KEY".to_owned(),
        secret_key: "secret".to_owned(),
    };
    Client::new(Config::new(endpoint.parse().unwrap(), credentials)).unwrap()
}

fn context(client: &Client, attributes: Attributes) -> Context {
    Context {
        client: client.clone(),
        door: super::Door::S3(client.clone()),
        put: PutOptions {
            attributes,
            ..PutOptions::default()
        },
        version: None,
        hint: MAKE_IT,
        parallel: 4,
        transfer: transfer::Options {
            part_bytes: Some(5 << 20),
            ..transfer::Options::default()
        },
        progress: Arc::new(Progress::new(false)),
    }
}

#[tokio::test]
async fn attributes_are_never_those_of_an_earlier_copy() {
    let client = client().await;
    let folder = tempfile::tempdir().unwrap();
    let typed = || Attributes {
        content_type: "text/plain".to_owned(),
        metadata: vec![("a".to_owned(), "b".to_owned())],
        ..Attributes::default()
    };
    // One that goes at once, and one that goes in parts.
    for len in [2 << 20, 11 << 20] {
        let body = vec![7_u8; len];
        let path = folder.path().join("file");
        fs::write(&path, &body).unwrap();
        let target = Address {
            namespace: "data".to_owned(),
            key: format!("key-{len}"),
        };
        let (sources, target) = ([Place::Local(path)], Place::Remote(target.clone()));
        let key = format!("key-{len}");
        let copied = async |attributes: Attributes| -> (Tally, ObjectInfo) {
            let context = context(&client, attributes);
            let tally = work::run(&context, &sources, &target).await.unwrap();
            assert!(tally.failures.is_empty());
            (tally, client.head("data", &key).await.unwrap())
        };
        copied(Attributes::default()).await;
        let (again, _) = copied(Attributes::default()).await;
        assert_eq!(again.unchanged, 1);
        // The bytes are there, and what is asked for is not.
        let (tally, info) = copied(typed()).await;
        assert_eq!((tally.unchanged, tally.resumed), (0, 0));
        assert_eq!(info.content_type, "text/plain");
        assert_eq!(info.metadata, typed().metadata);
        // An attempt that was cut off wanted something else.
        let other = Attributes {
            content_type: "text/html".to_owned(),
            ..Attributes::default()
        };
        let upload = client.create_upload("data", &key, &other).await.unwrap();
        let part = body[..len.min(5 << 20)].to_vec();
        client
            .upload_part("data", &key, &upload, 1, part.into())
            .await
            .unwrap();
        let (tally, info) = copied(typed()).await;
        assert_eq!((tally.resumed, &*info.content_type), (0, "text/plain"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_has_gone_keeps_the_others_from_nothing() {
    let client = client().await;
    let folder = tempfile::tempdir().unwrap();
    let source = Place::Remote("fb://data/from/".parse().unwrap());
    for target in ["fb://data/to/", folder.path().to_str().unwrap()] {
        let plain = PutOptions::default();
        for key in ["from/a", "from/b", "from/c"] {
            let put = client.put("data", key, "body".into(), &plain);
            put.await.unwrap();
        }
        let mut context = context(&client, Attributes::default());
        context.parallel = 1;
        let deleting = client.clone();
        context.transfer.progress = Arc::new(move |_| {
            let deleted = deleting.delete("data", "from/b");
            let here = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| here.block_on(deleted)).unwrap();
        });
        let target: Place = target.parse().unwrap();
        let sources = [source.clone()];
        let tally = work::run(&context, &sources, &target).await.unwrap();
        assert_eq!((tally.copies, tally.untried), (2, 0), "{target:?}");
        assert_eq!(tally.failures.len(), 1);
        assert_eq!(tally.failures[0].exit, Exit::NotFound);
    }
}

#[test]
fn attributes_that_nothing_would_get_are_refused() {
    let typed = Attributes {
        content_type: "text/plain".to_owned(),
        ..Attributes::default()
    };
    let place = |text: &str| text.parse::<Place>().unwrap();
    let refused = check(&[place("file"), place("fb://data/key")], &typed);
    assert_eq!(refused.unwrap_err().exit, Exit::Usage);
    check(&[place("fb://data/key")], &Attributes::default()).unwrap();
    check(&[place("file"), place("-")], &typed).unwrap();
}
