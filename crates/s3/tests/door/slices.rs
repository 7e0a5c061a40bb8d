//! Objects that go in slices, because bodies of their tenant have most of the buffers that they may have.

use crate::between::gated;
use crate::gated::{At, Gate, Gated};
use crate::slow::{AHEAD, bytes, stalled};
use crate::support::{ALPHA, Answer, Ask, BETA, Server};

/// Asks for an object; `change` happens when it was found, and before anything of it is read.
async fn get_around(
    server: &Server<Gated>,
    gate: &Gate,
    target: &str,
    change: impl Future<Output = ()>,
) -> Answer {
    gate.close(At::Part);
    let (answer, ()) = tokio::join!(server.get(target), async {
        gate.arrival().await;
        change.await;
        gate.open();
    });
    answer
}

#[tokio::test]
async fn an_object_that_is_replaced_before_it_is_sent_is_found_again() {
    let (server, gate) = gated().await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = stalled(&server, AHEAD).await;
    for next in [vec![1; object.len()], vec![1; 2 << 20], Vec::new()] {
        server.put("/bucket/other", &object).await;
        let replace = async {
            server.put("/bucket/other", &next).await;
        };
        let answer = get_around(&server, &gate, "/bucket/other", replace).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body == next);
    }
    server.put("/bucket/other", &object).await;
    let delete = async {
        server.ask(ALPHA, Ask::new("DELETE", "/bucket/other")).await;
    };
    let answer = get_around(&server, &gate, "/bucket/other", delete).await;
    answer.is(404, "NoSuchKey");
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn a_version_that_is_removed_before_it_is_sent_leaves_the_one_before_it() {
    let (server, gate) = gated().await;
    let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let ask = Ask::new("PUT", "/bucket?versioning").body(body);
    assert_eq!(server.ask(ALPHA, ask).await.status, 200);
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = stalled(&server, AHEAD).await;
    server.put("/bucket/other", &object).await;
    let last = server.put("/bucket/other", &vec![1; 3 << 20]).await;
    let last = last.header("x-amz-version-id").expect("a version");
    let target = format!("/bucket/other?versionId={last}");
    let remove = async {
        server.ask(ALPHA, Ask::new("DELETE", &target)).await;
    };
    let answer = get_around(&server, &gate, "/bucket/other", remove).await;
    assert!(answer.status == 200 && answer.body == object);
    drop(readers);
    server.finish().await;
}

#[tokio::test]
async fn an_object_that_is_found_again_is_none_of_the_next_bucket_of_its_name() {
    let (server, gate) = gated().await;
    let object = bytes(3 << 20);
    server.put("/bucket/key", &object).await;
    let readers = stalled(&server, AHEAD).await;
    server.make_bucket("passed-on").await;
    server.put("/passed-on/key", &object).await;
    let pass_on = async {
        for (who, method, target) in [
            (ALPHA, "DELETE", "/passed-on/key"),
            (ALPHA, "DELETE", "/passed-on"),
            (BETA, "PUT", "/passed-on"),
            (BETA, "PUT", "/passed-on/key"),
        ] {
            let answer = server.ask(who, Ask::new(method, target)).await;
            assert!(answer.status < 300, "{}", answer.text());
        }
    };
    let answer = get_around(&server, &gate, "/passed-on/key", pass_on).await;
    answer.is(404, "NoSuchBucket");
    drop(readers);
    server.finish().await;
}
