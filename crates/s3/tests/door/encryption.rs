//! Encryption that nobody does is promised to nobody.

use crate::support::{ALPHA, Ask, Server};

/// Of SSE-S3, of SSE-KMS and of SSE-C, for what is written and for what a copy reads.
const HEADERS: [(&str, &str); 12] = [
    ("x-amz-server-side-encryption", "AES256"),
    ("x-amz-server-side-encryption", "aws:kms"),
    ("x-amz-server-side-encryption", "aws:kms:dsse"),
    ("x-amz-server-side-encryption-aws-kms-key-id", "alias/key"),
    ("x-amz-server-side-encryption-context", "e30="),
    ("x-amz-server-side-encryption-bucket-key-enabled", "true"),
    ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
    ("x-amz-server-side-encryption-customer-key", KEY),
    ("x-amz-server-side-encryption-customer-key-md5", KEY_MD5),
    (
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "AES256",
    ),
    ("x-amz-copy-source-server-side-encryption-customer-key", KEY),
    (
        "x-amz-copy-source-server-side-encryption-customer-key-md5",
        KEY_MD5,
    ),
];
/// 32 zeros.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const KEY_MD5: &str = "cLyPS3KoaSFGi/joRB3OUQ==";

/// All that there is, as it is listed.
async fn listed(server: &Server, upload: &str) -> String {
    let mut listed = String::new();
    for target in ["/bucket?versions", "/bucket?uploads", upload] {
        let answer = server.get(target).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        listed += &answer.text();
    }
    listed
}

#[tokio::test]
async fn encryption_is_refused_by_all_that_could_be_asked_for_it() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"in the clear").await;
    let begun = server.ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads"));
    let id = begun.await.element("UploadId").expect("an upload");
    let upload = format!("/bucket/parts?uploadId={id}");
    let part = |number: u32| format!("{upload}&partNumber={number}");
    let etag = server.put(&part(1), b"part").await.etag();
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    let copy = |ask: Ask| ask.header("x-amz-copy-source", "/bucket/key");
    let asks = [
        Ask::new("GET", "/bucket/key"),
        Ask::new("HEAD", "/bucket/key"),
        Ask::new("GET", "/bucket/key?attributes").header("x-amz-object-attributes", "ETag"),
        Ask::new("PUT", "/bucket/new").body(b"secret"),
        copy(Ask::new("PUT", "/bucket/copy")),
        Ask::new("POST", "/bucket/more?uploads"),
        Ask::new("PUT", &part(2)).body(b"secret"),
        copy(Ask::new("PUT", &part(3))),
        Ask::new("POST", &upload).body(list),
    ];
    let (before, used) = (listed(&server, &upload).await, server.used());
    for ask in &asks {
        for (name, value) in HEADERS {
            let answer = server.ask(ALPHA, ask.clone().header(name, value)).await;
            let what = format!("{} {}, {name}: {value}", ask.method, ask.target());
            let code = match ask.method {
                "HEAD" => "",
                _ => "NotImplemented",
            };
            assert_eq!(answer.refusal(), (501, code.to_owned()), "{what}");
            // The client is told which header it was.
            let told = answer.text().contains(&format!("header {name}."));
            assert_eq!(told, ask.method != "HEAD", "{what}: {}", answer.text());
        }
    }
    assert_eq!(listed(&server, &upload).await, before);
    assert_eq!(server.used(), used);
    // It was the header, and nothing else.
    for ask in asks {
        let what = format!("{} {}", ask.method, ask.target());
        assert_eq!(server.ask(ALPHA, ask).await.status, 200, "{what}");
    }
    server.finish().await;
}
