//! The AWS SDK for Rust: streamed bodies go as signed chunks with a signed trailer.

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, Delete, ObjectIdentifier};
use aws_sdk_s3::{Client, Config};
use interop::{Server, data, serve};

const MIB: usize = 1 << 20;

async fn client(server: &Server) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(&server.endpoint)
        .force_path_style(true)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .credentials_provider(Credentials::new(
            &server.access_key,
            &server.secret_key,
            None,
            None,
            "interop",
        ))
        .build();
    Client::from_conf(config)
}

async fn bytes(client: &Client, bucket: &str, key: &str, range: Option<&str>) -> Vec<u8> {
    let answer = client
        .get_object()
        .bucket(bucket)
        .key(key)
        .set_range(range.map(str::to_owned))
        .send()
        .await
        .expect("GET");
    answer.body.collect().await.expect("the body").to_vec()
}

#[test]
fn objects() {
    serve(objects_of);
}

async fn objects_of(server: &Server) {
    let client = client(server).await;
    client
        .create_bucket()
        .bucket("rust-sdk")
        .send()
        .await
        .expect("a bucket");

    let small = data(1000);
    let put = || client.put_object().bucket("rust-sdk").key("small");
    put()
        .body(small.clone().into())
        .if_none_match("*")
        .send()
        .await
        .expect("PUT");
    put()
        .body(small.clone().into())
        .if_none_match("*")
        .send()
        .await
        .expect_err("it is there");

    let folder = tempfile::tempdir().expect("a folder");
    let big = data(20 * MIB);
    let path = folder.path().join("big");
    std::fs::write(&path, &big).expect("a file");
    let body = ByteStream::from_path(&path).await.expect("a stream");
    client
        .put_object()
        .bucket("rust-sdk")
        .key("dir/big")
        .body(body)
        .send()
        .await
        .expect("PUT");

    assert_eq!(bytes(&client, "rust-sdk", "small", None).await, small);
    assert!(bytes(&client, "rust-sdk", "dir/big", None).await == big);
    let part = bytes(
        &client,
        "rust-sdk",
        "dir/big",
        Some("bytes=7000000-7000999"),
    )
    .await;
    assert_eq!(part, big[7_000_000..7_001_000]);

    let listed = client
        .list_objects_v2()
        .bucket("rust-sdk")
        .delimiter("/")
        .send()
        .await;
    let listed = listed.expect("a listing");
    assert_eq!(
        listed
            .contents()
            .iter()
            .filter_map(|o| o.key())
            .collect::<Vec<_>>(),
        ["small"]
    );
    let prefixes: Vec<_> = listed
        .common_prefixes()
        .iter()
        .filter_map(|p| p.prefix())
        .collect();
    assert_eq!(prefixes, ["dir/"]);

    let copy = client
        .copy_object()
        .bucket("rust-sdk")
        .key("copy")
        .copy_source("rust-sdk/small");
    copy.send().await.expect("a copy");
    assert_eq!(bytes(&client, "rust-sdk", "copy", None).await, small);

    let keys = ["small", "dir/big", "copy"];
    let objects = keys.map(|key| ObjectIdentifier::builder().key(key).build().expect("a key"));
    let delete = Delete::builder()
        .set_objects(Some(objects.to_vec()))
        .build()
        .expect("a list");
    let gone = client
        .delete_objects()
        .bucket("rust-sdk")
        .delete(delete)
        .send()
        .await;
    assert_eq!(gone.expect("DELETE").deleted().len(), 3);
    client
        .delete_bucket()
        .bucket("rust-sdk")
        .send()
        .await
        .expect("an empty bucket");
}

#[test]
fn multipart() {
    serve(multipart_by);
}

async fn multipart_by(server: &Server) {
    let client = client(server).await;
    client
        .create_bucket()
        .bucket("rust-parts")
        .send()
        .await
        .expect("a bucket");
    let begun = client
        .create_multipart_upload()
        .bucket("rust-parts")
        .key("k")
        .send()
        .await;
    let upload = begun.expect("an upload").upload_id.expect("its id");
    let body = data(12 * MIB + 1);
    let mut parts = Vec::new();
    for (number, chunk) in (1..).zip(body.chunks(5 * MIB)) {
        let part = client
            .upload_part()
            .bucket("rust-parts")
            .key("k")
            .upload_id(&upload);
        let sent = part
            .part_number(number)
            .body(chunk.to_vec().into())
            .send()
            .await;
        let sent = sent.expect("a part");
        parts.push(
            CompletedPart::builder()
                .part_number(number)
                .set_e_tag(sent.e_tag)
                .set_checksum_crc32(sent.checksum_crc32)
                .build(),
        );
    }
    client
        .complete_multipart_upload()
        .bucket("rust-parts")
        .key("k")
        .upload_id(upload)
        .multipart_upload(
            CompletedMultipartUpload::builder()
                .set_parts(Some(parts))
                .build(),
        )
        .send()
        .await
        .expect("an object");
    assert!(bytes(&client, "rust-parts", "k", None).await == body);
}
