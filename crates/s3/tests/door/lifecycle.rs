//! Uploads that nobody finishes.

use forebay_s3::Swept;

use crate::support::{ALPHA, Ask, Server};

const DAY_MS: u64 = 86_400_000;

/// Begins an upload and gives it parts of these lengths; what it is called by, and the first part's tag.
async fn begin(server: &Server, key: &str, parts: &[usize]) -> (String, String) {
    let begun = Ask::new("POST", &format!("/bucket/{key}?uploads"));
    let id = server.ask(ALPHA, begun).await.element("UploadId");
    let upload = format!("/bucket/{key}?uploadId={}", id.expect("an upload"));
    let mut etags = Vec::new();
    for (number, length) in (1..).zip(parts) {
        let target = format!("{upload}&partNumber={number}");
        etags.push(server.put(&target, &vec![1; *length]).await.etag());
    }
    (upload, etags.swap_remove(0))
}

#[tokio::test]
async fn an_upload_that_nobody_finished_gives_back_the_room_of_its_parts() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
        <Filter><Prefix>old/</Prefix></Filter><AbortIncompleteMultipartUpload>\
        <DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>\
        </LifecycleConfiguration>";
    let put = Ask::new("PUT", "/bucket?lifecycle").body(rule);
    assert_eq!(server.ask(ALPHA, put).await.status, 200);
    let (old, etag) = begin(&server, "old/key", &[300_000, 2000, 0]).await;
    let (other, _) = begin(&server, "other/key", &[40]).await;
    let sweep = async || server.door.lifecycle_sweep(server.now_ms()).await;
    server.advance_ms(DAY_MS - 1000);
    assert_eq!(sweep().await.expect("sweeps"), Swept::default());
    let (young, _) = begin(&server, "old/young", &[5]).await;
    assert_eq!(server.used().bytes, 302_045);

    server.advance_ms(1000);
    let swept = Swept {
        uploads: 1,
        ..Swept::default()
    };
    assert_eq!(sweep().await.expect("sweeps"), swept);
    // Neither what the rule is not about goes, nor what is too young for it.
    assert_eq!(server.used().bytes, 45);
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    for ask in [
        Ask::new("GET", &old),
        Ask::new("PUT", &format!("{old}&partNumber=4")).body(b"late"),
        Ask::new("POST", &old).body(list),
        Ask::new("DELETE", &old),
    ] {
        server.ask(ALPHA, ask).await.is(404, "NoSuchUpload");
    }
    server.get("/bucket/old/key").await.is(404, "NoSuchKey");
    let uploads = server.get("/bucket?uploads").await.text();
    assert_eq!(uploads.matches("<Upload>").count(), 2, "{uploads}");
    for upload in [other, young] {
        let parts = server.get(&upload).await.text();
        assert_eq!(parts.matches("<Part>").count(), 1, "{parts}");
    }
    assert_eq!(server.used().bytes, 45);
    server.finish().await;
}
