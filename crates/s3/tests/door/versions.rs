//! Versioning: enabled, suspended, delete markers, lists.

use crate::support::{ALPHA, Ask, Server};

async fn set(server: &Server, status: &str) {
    let body =
        format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?versioning").body(body))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn put(server: &Server, body: &str) -> String {
    let answer = server.put("/bucket/key", body.as_bytes()).await;
    answer
        .header("x-amz-version-id")
        .expect("a version")
        .to_owned()
}

async fn listed(server: &Server) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut marker = String::new();
    loop {
        let answer = server
            .get(&format!("/bucket?versions&max-keys=1{marker}"))
            .await;
        let text = answer.text();
        if let Some(id) = answer.element("VersionId") {
            found.push((id, text.contains("<DeleteMarker>")));
        }
        match (
            answer.element("NextKeyMarker"),
            answer.element("NextVersionIdMarker"),
        ) {
            (Some(key), Some(id)) => {
                marker = format!("&key-marker={key}&version-id-marker={id}");
            }
            _ => return found,
        }
    }
}

#[tokio::test]
async fn versions_stay_until_they_are_removed_by_name() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let never = server.get("/bucket?versioning").await;
    assert!(!never.text().contains("<Status>"));
    server.put("/bucket/key", b"zero").await;
    set(&server, "Enabled").await;
    assert!(
        server
            .get("/bucket?versioning")
            .await
            .text()
            .contains("Enabled")
    );
    let one = put(&server, "one").await;
    let two = put(&server, "two").await;
    assert_eq!(one.len(), 32);
    for (version, body) in [(one.as_str(), "one"), (&two, "two"), ("null", "zero")] {
        let answer = server
            .get(&format!("/bucket/key?versionId={version}"))
            .await;
        assert_eq!(answer.text(), body);
        assert_eq!(answer.header("x-amz-version-id"), Some(version));
    }
    let deleted = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    assert_eq!(deleted.status, 204);
    assert_eq!(deleted.header("x-amz-delete-marker"), Some("true"));
    let marker = deleted
        .header("x-amz-version-id")
        .expect("a marker")
        .to_owned();
    let gone = server.get("/bucket/key").await;
    gone.is(404, "NoSuchKey");
    assert_eq!(gone.header("x-amz-delete-marker"), Some("true"));
    let itself = server.get(&format!("/bucket/key?versionId={marker}")).await;
    itself.is(405, "MethodNotAllowed");
    assert_eq!(
        listed(&server).await,
        [
            (marker.clone(), true),
            (two.clone(), false),
            (one.clone(), false),
            ("null".to_owned(), false)
        ]
    );
    let empty = server.get("/bucket?list-type=2").await;
    assert!(!empty.text().contains("<Contents>"));
    server
        .ask(ALPHA, Ask::new("DELETE", "/bucket"))
        .await
        .is(409, "BucketNotEmpty");

    // Without the marker the newest version is back.
    let undo = Ask::new("DELETE", &format!("/bucket/key?versionId={marker}"));
    let undone = server.ask(ALPHA, undo).await;
    assert_eq!(undone.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(server.get("/bucket/key").await.text(), "two");

    // Versions are copied by name.
    let source = format!("/bucket/key?versionId={one}");
    let copy = Ask::new("PUT", "/bucket/copy").header("x-amz-copy-source", &source);
    let copied = server.ask(ALPHA, copy).await;
    assert_eq!(
        copied.header("x-amz-copy-source-version-id"),
        Some(one.as_str())
    );
    assert_eq!(server.get("/bucket/copy").await.text(), "one");

    let body = format!(
        "<Delete><Object><Key>key</Key><VersionId>{two}</VersionId></Object>\
         <Object><Key>key</Key></Object></Delete>"
    );
    let answer = server
        .ask(ALPHA, Ask::new("POST", "/bucket?delete").body(body))
        .await;
    assert!(
        answer.text().contains("<DeleteMarkerVersionId>"),
        "{}",
        answer.text()
    );
    server
        .get(&format!("/bucket/key?versionId={two}"))
        .await
        .is(404, "NoSuchVersion");
    for wrong in ["x", "0", &"g".repeat(32)] {
        server
            .get(&format!("/bucket/key?versionId={wrong}"))
            .await
            .is(400, "InvalidArgument");
    }
    server.finish().await;
}

#[tokio::test]
async fn suspended_writes_replace_the_null_version_only() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    set(&server, "Enabled").await;
    let one = put(&server, "one").await;
    set(&server, "Suspended").await;
    assert_eq!(put(&server, "null one").await, "null");
    assert_eq!(put(&server, "null two").await, "null");
    assert_eq!(
        listed(&server).await,
        [("null".to_owned(), false), (one.clone(), false)]
    );
    let deleted = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    assert_eq!(deleted.header("x-amz-version-id"), Some("null"));
    assert_eq!(
        listed(&server).await,
        [("null".to_owned(), true), (one.clone(), false)]
    );
    let kept = server.get(&format!("/bucket/key?versionId={one}")).await;
    assert_eq!(kept.text(), "one");
    let nonsense = "<VersioningConfiguration><Status>Off</Status></VersioningConfiguration>";
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?versioning").body(nonsense))
        .await;
    answer.is(400, "MalformedXML");
    server.finish().await;
}
