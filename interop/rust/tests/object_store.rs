//! The `object_store` crate: conditional writes, multipart, ranges, bulk delete.

use futures_util::{StreamExt, TryStreamExt};
use interop::{Server, data, serve};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion, WriteMultipart,
};

const MIB: usize = 1 << 20;

/// A store on a new bucket. The crate cannot make one: a signed PUT of "no key" does.
async fn store(server: &Server, bucket: &str) -> AmazonS3 {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(aws_sdk_s3::config::BehaviorVersion::latest())
        .region(aws_sdk_s3::config::Region::new("us-east-1"))
        .endpoint_url(&server.endpoint)
        .force_path_style(true)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .credentials_provider(aws_sdk_s3::config::Credentials::new(
            &server.access_key,
            &server.secret_key,
            None,
            None,
            "interop",
        ))
        .build();
    let client = aws_sdk_s3::Client::from_conf(config);
    client
        .create_bucket()
        .bucket(bucket)
        .send()
        .await
        .expect("a bucket");
    AmazonS3Builder::new()
        .with_endpoint(&server.endpoint)
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id(&server.access_key)
        .with_secret_access_key(&server.secret_key)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .build()
        .expect("a store")
}

#[test]
fn objects() {
    serve(objects_of);
}

async fn objects_of(server: &Server) {
    let store = store(server, "rust-store").await;
    let (small, big) = (data(1000), data(20 * MIB));
    store
        .put(&Path::from("a/small"), small.clone().into())
        .await
        .expect("PUT");
    let upload = store
        .put_multipart(&Path::from("a/big"))
        .await
        .expect("an upload");
    let mut writer = WriteMultipart::new_with_chunk_size(upload, 5 * MIB);
    writer.write(&big);
    writer.finish().await.expect("an object");

    let whole = store
        .get(&Path::from("a/big"))
        .await
        .expect("GET")
        .bytes()
        .await
        .expect("bytes");
    assert!(whole == big);
    let ranges = [0..10, 6_000_000..6_000_100, 20_000_000..20_000_001];
    let parts = store
        .get_ranges(&Path::from("a/big"), &ranges)
        .await
        .expect("ranges");
    for (part, range) in parts.iter().zip(ranges) {
        assert_eq!(part[..], big[range.start as usize..range.end as usize]);
    }

    let top = store.list_with_delimiter(None).await.expect("a listing");
    assert_eq!(top.common_prefixes, [Path::from("a")]);
    store
        .copy(&Path::from("a/small"), &Path::from("b"))
        .await
        .expect("a copy");
    store
        .rename(&Path::from("b"), &Path::from("c"))
        .await
        .expect("a rename");
    let missing = store.head(&Path::from("b")).await;
    assert!(matches!(missing, Err(Error::NotFound { .. })));

    let all = store.list(None).map_ok(|meta| meta.location).boxed();
    let gone: Vec<_> = store
        .delete_stream(all)
        .try_collect()
        .await
        .expect("deletes");
    assert_eq!(gone.len(), 3);
    assert_eq!(store.list(None).count().await, 0);
}

#[test]
fn conditions() {
    serve(conditions_by);
}

async fn conditions_by(server: &Server) {
    let store = store(server, "rust-swap").await;
    let key = Path::from("k");
    let put = |body: &'static [u8], mode| {
        store.put_opts(&key, PutPayload::from_static(body), PutMode::into(mode))
    };
    let first = put(b"1", PutMode::Create).await.expect("it is new");
    assert!(matches!(
        put(b"2", PutMode::Create).await,
        Err(Error::AlreadyExists { .. })
    ));
    let version = UpdateVersion {
        e_tag: first.e_tag,
        version: None,
    };
    put(b"3", PutMode::Update(version.clone()))
        .await
        .expect("it is unchanged");
    let stale = put(b"4", PutMode::Update(version)).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })));
    assert_eq!(
        store
            .get(&key)
            .await
            .expect("GET")
            .bytes()
            .await
            .expect("bytes")[..],
        *b"3"
    );
}
