//! What is kept beside a value.

use forebay_fabric::Access;
use forebay_proto::direct::{Attributes, Body, Operation, Status, Store};
use forebay_store::{Address, Store as _};

use crate::any::WAYS;
use crate::support::*;

async fn kept(server: &Server) -> Vec<(String, String)> {
    let stat = server.store.stat(Address::object(NAMESPACE, b"key"), None);
    let attributes = stat.await.unwrap().attributes;
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    let pairs = attributes.iter();
    pairs
        .map(|(name, value)| (name.to_owned(), text(value)))
        .collect()
}

async fn store(caller: &Caller, body: Body<'_>, pairs: &[(&str, &str)]) -> Said {
    let mut encoded = Vec::new();
    let pairs = pairs.iter().map(|(name, value)| (*name, value.as_bytes()));
    let attributes = Attributes::encode(&mut encoded, pairs).unwrap();
    caller
        .one(Operation::Store, NAMESPACE, |writer| {
            let element = Store {
                attributes,
                ..plain(b"key", body)
            };
            writer.store(&element).unwrap();
        })
        .await
}

#[tokio::test(flavor = "local")]
async fn they_are_kept_as_s3_keeps_them() {
    for way in WAYS {
        let server = Server::new().await;
        let caller = server.connect(TENANT, way).await;
        let memory = caller.memory(4096, Access::Read).await;
        for body in [Body::Window(memory.window(0, 4096)), Body::Message(b"new")] {
            let pairs = [
                ("cache-control", "no-cache"),
                ("content-encoding", "aws-chunked"),
                ("content-type", "text/plain"),
                ("x-amz-meta-a", "1"),
                ("x-amz-tagging", "k=v%20w"),
            ];
            store(&caller, body, &pairs).await;
            let expected = [
                ("cache-control", "no-cache"),
                ("content-type", "text/plain"),
                ("s3.tags", "k=v%20w"),
                ("x-amz-meta-a", "1"),
            ];
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(kept(&server).await, expected);
            // A value replaces another whole.
            caller.store(NAMESPACE, b"key", body).await;
            assert_eq!(kept(&server).await, []);
        }
    }
}

#[tokio::test(flavor = "local")]
async fn what_nobody_keeps_stores_nothing() {
    for way in WAYS {
        let server = Server::new().await;
        server.set(NAMESPACE, b"key", b"old").await;
        let caller = server.connect(TENANT, way).await;
        let long = "x".repeat(2048);
        for pair in [
            ("s3.checksum", "CRC32 FULL_OBJECT AAAAAA=="),
            ("s3.parts", "4000000000*1"),
            ("content-length", "7"),
            ("content-type", "a\r\nset-cookie: b"),
            ("x-amz-meta-a", &long),
            ("x-amz-meta-A", "1"),
            ("x-amz-tagging", "k=1&k=2"),
            ("x-amz-tagging", "%ff"),
        ] {
            let said = store(&caller, Body::Message(b"new"), &[pair]).await;
            let Said::Failed(Status::Invalid, _, _) = said else {
                panic!("{pair:?}: {said:?}")
            };
        }
        assert_eq!(server.value(NAMESPACE, b"key").await, Some(b"old".to_vec()));
    }
}
