//! Keys that are none.

mod harness;

use forebay_client::{Error, PutOptions};
use harness::{Place, Server};

/// A server with a namespace whose keys these are, each with its own name for a value, or nothing when it is a folder's.
fn with_keys(keys: &[&str]) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "names"]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for key in keys {
            let body = match key.ends_with('/') {
                true => "",
                false => *key,
            };
            let body = body.to_owned().into();
            let put = PutOptions::default();
            client.put("names", key, body, &put).await.unwrap();
        }
    });
    (place, server)
}

#[test]
fn an_object_without_a_key_is_refused_here() {
    let (_place, server) = with_keys(&["a"]);
    let client = server.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let put = PutOptions::default();
        // The namespace is there, or it is not: nobody is asked.
        for namespace in ["names", "none"] {
            let refused = [
                client.put(namespace, "", "x".into(), &put).await,
                client.copy(("names", "a"), (namespace, ""), 1).await,
                client.create_upload(namespace, "", &put).await,
            ];
            for refused in refused {
                assert!(matches!(&refused, Err(Error::Local { .. })), "{refused:?}");
            }
        }
        assert_eq!(client.namespaces().await.unwrap().len(), 1);
    });
}
