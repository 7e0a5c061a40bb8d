//! What is asked for in a header and not done here is refused, and changes nothing.

use crate::support::{ALPHA, Ask, HOST, Server};

#[tokio::test]
async fn a_condition_that_nobody_looks_at_removes_nothing() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"to stay").await;
    let begun = server.ask(ALPHA, Ask::new("POST", "/bucket/parts?uploads"));
    let id = begun.await.element("UploadId").expect("an upload");
    let upload = format!("/bucket/parts?uploadId={id}");
    server.put(&format!("{upload}&partNumber=1"), b"part").await;
    let used = server.used();
    let date = "Sat, 21 Nov 2026 00:00:00 GMT";
    for target in ["/bucket/key", &upload] {
        for (name, value) in [
            ("x-amz-if-match-size", "9"),
            ("x-amz-if-match-last-modified-time", date),
            ("x-amz-if-match-initiated-time", date),
        ] {
            let ask = Ask::new("DELETE", target).header(name, value);
            server.ask(ALPHA, ask).await.is(501, "NotImplemented");
        }
        let mark = if target.contains('?') { '&' } else { '?' };
        let presigned = Ask::new("DELETE", &format!("{target}{mark}x-amz-if-match-size=9"));
        let presigned = presigned.presigned(ALPHA, server.now_ms(), 60);
        let request = format!("DELETE {presigned} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        let answer = server.exchange(request.as_bytes(), false).await;
        answer.is(501, "NotImplemented");
    }
    assert_eq!(server.get("/bucket/key").await.body, b"to stay");
    assert_eq!(server.used(), used);
    for target in ["/bucket/key", &upload] {
        let answer = server.ask(ALPHA, Ask::new("DELETE", target)).await;
        assert_eq!(answer.status, 204, "{target}: {}", answer.text());
    }
    server.finish().await;
}
