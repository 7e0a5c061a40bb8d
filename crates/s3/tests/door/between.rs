//! What comes between two steps: of a request whose body is slow, of a read, of a sweep.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_s3::{Config, Swept};
use forebay_store::{Scope, Store};
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::gated::{At, Gate, Gated};
use crate::slow::trickle;
use crate::support::{ALPHA, ALPHA_ELSEWHERE, Ask, BETA, START_MS, Server};

const DAY_MS: u64 = 86_400_000;

pub async fn gated() -> (Server<Gated>, Gate) {
    gated_by(Config::default()).await
}

async fn gated_by(config: Config) -> (Server<Gated>, Gate) {
    let gate = Gate::default();
    let detour = gate.clone();
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| Gated { store, detour };
    let server = Server::over(config, u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    (server, gate)
}

async fn configure(server: &Server<Gated>, resource: &str, body: &str) {
    let ask = Ask::new("PUT", &format!("/bucket?{resource}")).body(body);
    let answer = server.ask(ALPHA, ask).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn version(server: &Server<Gated>, status: &str) {
    let body =
        format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    configure(server, "versioning", &body).await;
}

fn rules(what: &str) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status>\
         <Filter><Prefix></Prefix></Filter>{what}</Rule></LifecycleConfiguration>"
    )
}

async fn expire(server: &Server<Gated>, what: &str) {
    configure(server, "lifecycle", &rules(what)).await;
}

/// A sweep that has read its list when `change` happens.
async fn sweep_around(server: &Server<Gated>, gate: &Gate, change: impl Future<Output = ()>) {
    gate.close(At::Listed);
    let (swept, ()) = tokio::join!(server.door.lifecycle_sweep(server.now_ms()), async {
        gate.arrival().await;
        change.await;
        gate.open();
    });
    assert_eq!(swept, Swept::default());
}

#[tokio::test]
async fn a_slow_request_for_a_bucket_is_none_for_the_next_of_its_name() {
    let server = Server::start().await;
    let delete = "<Delete><Object><Key>key</Key></Object></Delete>";
    let tags = "<Tagging><TagSet><Tag><Key>t</Key><Value>1</Value></Tag></TagSet></Tagging>";
    let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    for (method, target, body) in [
        ("POST", "/bucket?delete", delete),
        ("PUT", "/bucket/key?tagging", tags),
        ("PUT", "/bucket?tagging", tags),
        ("PUT", "/bucket?versioning", versioning),
    ] {
        for next in [ALPHA, BETA] {
            server.make_bucket("bucket").await;
            let ask = Ask::new(method, target).body(body);
            let ask = ask.header("expect", "100-continue");
            let (head, body) = ask.parts(ALPHA, server.now_ms());
            let mut slow = server.connect().await;
            slow.send(head.as_bytes()).await;
            // It is let in, and waited for.
            assert_eq!(slow.answer(false).await.status, 100);
            server.ask(ALPHA, Ask::new("DELETE", "/bucket")).await;
            for (target, body) in [("/bucket", ""), ("/bucket/key", "kept")] {
                let ask = Ask::new("PUT", target).body(body);
                assert_eq!(server.ask(next, ask).await.status, 200);
            }
            slow.send(&body).await;
            slow.answer(false).await.is(404, "NoSuchBucket");
            let kept = server.ask(next, Ask::new("GET", "/bucket/key")).await;
            assert_eq!(kept.text(), "kept");
            assert_eq!(kept.header("x-amz-tagging-count"), None);
            let tags = server.ask(next, Ask::new("GET", "/bucket?tagging")).await;
            tags.is(404, "NoSuchTagSet");
            for target in ["/bucket/key", "/bucket"] {
                let gone = server.ask(next, Ask::new("DELETE", target)).await;
                assert_eq!(gone.status, 204, "{}", gone.text());
            }
        }
    }
    server.finish().await;
}

/// Begins an upload, and says where it is.
async fn begin(server: &Server<Gated>, target: &str) -> String {
    let begun = server
        .ask(ALPHA, Ask::new("POST", &format!("{target}?uploads")))
        .await;
    let id = begun.element("UploadId").expect("an upload");
    format!("{target}?uploadId={id}")
}

#[tokio::test]
async fn what_waits_before_it_stores_does_not_end_in_the_next_bucket_of_its_name() {
    let (server, gate) = gated().await;
    server.make_bucket("other").await;
    server.put("/other/source", b"planted").await;
    let copy = Ask::new("PUT", "/bucket/key").header("x-amz-copy-source", "/other/source");
    for ask in [
        copy,
        Ask::new("PUT", "/bucket/key").body("planted"),
        Ask::new("POST", "/bucket/key?uploads"),
    ] {
        gate.close(At::Store);
        let (answer, ()) = tokio::join!(server.ask(ALPHA, ask), async {
            gate.arrival().await;
            for (who, method) in [(ALPHA, "DELETE"), (BETA, "PUT")] {
                let answer = server.ask(who, Ask::new(method, "/bucket")).await;
                assert!(answer.status < 300, "{}", answer.text());
            }
            gate.open();
        });
        answer.is(404, "NoSuchBucket");
        // Beta has an empty bucket.
        for list in ["/bucket", "/bucket?uploads"] {
            let text = server.ask(BETA, Ask::new("GET", list)).await.text();
            assert!(!text.contains("<Key>"), "{text}");
        }
        let gone = server.ask(BETA, Ask::new("DELETE", "/bucket")).await;
        assert_eq!(gone.status, 204, "{}", gone.text());
        server.make_bucket("bucket").await;
    }
    server.finish().await;
}

#[tokio::test]
async fn to_delete_a_bucket_does_not_delete_the_next_of_its_name() {
    let (server, gate) = gated().await;
    let upload = begin(&server, "/bucket/key").await;
    gate.close(At::Listed);
    let (answer, ()) = tokio::join!(server.ask(ALPHA, Ask::new("DELETE", "/bucket")), async {
        gate.arrival().await;
        for (who, method, target) in [
            (ALPHA, "DELETE", upload.as_str()),
            (ALPHA, "DELETE", "/bucket"),
            (BETA, "PUT", "/bucket"),
            (BETA, "POST", "/bucket/key?uploads"),
        ] {
            let answer = server.ask(who, Ask::new(method, target)).await;
            assert!(answer.status < 300, "{}", answer.text());
        }
        gate.open();
    });
    answer.is(404, "NoSuchBucket");
    let uploads = server.ask(BETA, Ask::new("GET", "/bucket?uploads")).await;
    assert_eq!(
        uploads.text().matches("<Upload>").count(),
        1,
        "{}",
        uploads.text()
    );
    server.finish().await;
}

#[tokio::test]
async fn a_slow_request_ends_with_the_key_that_signed_it() {
    let delete = "<Delete><Object><Key>key</Key></Object></Delete>";
    let tags = "<Tagging><TagSet><Tag><Key>t</Key><Value>1</Value></Tag></TagSet></Tagging>";
    for (method, target, body) in [
        ("PUT", "/bucket/key", "late"),
        ("PUT", "/bucket/key?partNumber=1&uploadId=", "late"),
        (
            "PUT",
            "/made",
            "<CreateBucketConfiguration></CreateBucketConfiguration>",
        ),
        ("POST", "/bucket?delete", delete),
        ("PUT", "/bucket/key?tagging", tags),
        ("PUT", "/bucket?tagging", tags),
    ] {
        let (server, _) = gated().await;
        server.put("/bucket/key", b"kept").await;
        let upload = begin(&server, "/bucket/parts").await;
        let target = match target.strip_suffix("uploadId=") {
            Some(_) => format!("{upload}&partNumber=1"),
            None => target.to_owned(),
        };
        let ask = Ask::new(method, &target)
            .body(body)
            .header("expect", "100-continue");
        let (head, body) = ask.parts(ALPHA, server.now_ms());
        let mut slow = server.connect().await;
        slow.send(head.as_bytes()).await;
        assert_eq!(slow.answer(false).await.status, 100);
        server.delete_key(ALPHA);
        slow.send(&body).await;
        slow.answer(false).await.is(403, "InvalidAccessKeyId");
        let look = async |target: &str| server.ask(ALPHA_ELSEWHERE, Ask::new("GET", target)).await;
        let kept = look("/bucket/key").await;
        assert_eq!(
            (kept.text().as_str(), kept.header("x-amz-tagging-count")),
            ("kept", None)
        );
        assert!(!look(&upload).await.text().contains("<Part>"));
        look("/bucket?tagging").await.is(404, "NoSuchTagSet");
        look("/made").await.is(404, "NoSuchBucket");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_bucket_whose_maker_is_gone_by_then_is_not_made() {
    let (server, gate) = gated().await;
    gate.close(At::Create);
    let (made, ()) = tokio::join!(server.ask(ALPHA, Ask::new("PUT", "/made")), async {
        gate.arrival().await;
        server.delete_key(ALPHA);
        gate.open();
    });
    made.is(403, "InvalidAccessKeyId");
    let look = server.ask(ALPHA_ELSEWHERE, Ask::new("GET", "/made"));
    look.await.is(404, "NoSuchBucket");
    server.finish().await;
}

#[tokio::test]
async fn the_end_of_an_upload_is_no_matter_to_others() {
    let (server, gate) = gated().await;
    let mut others = Vec::new();
    for _ in 0..500 {
        others.push(begin(&server, "/bucket/others").await);
    }
    let upload = begin(&server, "/bucket/key").await;
    server.put(&format!("{upload}&partNumber=1"), b"part").await;
    gate.close(At::Delete);
    let (aborted, ()) = tokio::join!(server.ask(ALPHA, Ask::new("DELETE", &upload)), async {
        gate.arrival().await;
        for others in others.chunks(50) {
            let parts = others.iter().map(|other| {
                let ask = Ask::new("PUT", &format!("{other}&partNumber=1")).body("part");
                server.ask(ALPHA, ask)
            });
            let parts = timeout(Duration::from_secs(60), join_all(parts)).await;
            for part in parts.expect("they wait for an abort that is not theirs") {
                assert_eq!(part.status, 200, "{}", part.text());
            }
        }
        gate.open();
    });
    assert_eq!(aborted.status, 204, "{}", aborted.text());
    server.finish().await;
}

#[tokio::test]
async fn a_range_is_of_what_if_range_names_or_there_is_none() {
    let (server, gate) = gated().await;
    for next in ["other bytes", "x"] {
        let seen = server.put("/bucket/key", b"these bytes").await.etag();
        let ask = Ask::new("GET", "/bucket/key").header("range", "bytes=2-4");
        let ask = ask.header("if-range", &seen);
        let plain = server.ask(ALPHA, ask.clone()).await;
        assert_eq!((plain.status, plain.text()), (206, "ese".to_owned()));
        gate.close(At::Retrieve);
        let (answer, ()) = tokio::join!(server.ask(ALPHA, ask), async {
            gate.arrival().await;
            server.put("/bucket/key", next.as_bytes()).await;
            gate.open();
        });
        assert_eq!((answer.status, answer.text()), (200, next.to_owned()));
        assert_eq!(answer.header("content-range"), None);
    }
    server.finish().await;
}

#[tokio::test]
async fn a_policy_on_tags_is_about_the_object_that_is_read() {
    let (server, gate) = gated().await;
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
        "Condition":{"StringEquals":{"s3:ExistingObjectTag/state":"open"}}}}"#;
    let ask = Ask::new("PUT", "/bucket?policy").body(policy);
    assert_eq!(server.ask(ALPHA, ask).await.status, 204);
    server.ask(BETA, Ask::new("PUT", "/betas")).await;
    let get = |target: &str| Ask::new("GET", target);
    let copy = Ask::new("PUT", "/betas/copy").header("x-amz-copy-source", "/bucket/key");
    let copy = copy.header("x-amz-tagging-directive", "REPLACE");
    for (ask, status) in [
        (get("/bucket/key"), 200),
        (get("/bucket/key").header("range", "bytes=0-2"), 206),
        (get("/bucket/key").header("range", "bytes=40-"), 416),
        (get("/bucket/key?partNumber=1"), 206),
        (get("/bucket/key").header("if-none-match", "\"other\""), 200),
        (copy, 200),
    ] {
        let tagged = Ask::new("PUT", "/bucket/key").header("x-amz-tagging", "state=open");
        let tagged = tagged.body("anybody may read it");
        assert_eq!(server.ask(ALPHA, tagged).await.status, 200);
        let answer = server.ask(BETA, ask.clone()).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        gate.close(At::Retrieve);
        let (answer, ()) = tokio::join!(server.ask(BETA, ask), async {
            gate.arrival().await;
            server.put("/bucket/key", b"nobody may").await;
            gate.open();
        });
        answer.is(404, "NoSuchBucket");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_null_version_that_takes_its_delete_markers_place_stays() {
    let (server, gate) = gated().await;
    version(&server, "Enabled").await;
    version(&server, "Suspended").await;
    let rule =
        "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
    expire(&server, rule).await;
    server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
    sweep_around(&server, &gate, async {
        server.put("/bucket/key", b"new").await;
    })
    .await;
    assert_eq!(server.get("/bucket/key").await.text(), "new");
    server.finish().await;
}

#[tokio::test]
async fn a_version_that_became_current_again_stays() {
    let (server, gate) = gated().await;
    version(&server, "Enabled").await;
    let rule = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>";
    expire(&server, rule).await;
    for replaced in [false, true] {
        let put = server.put("/bucket/key", b"old").await;
        let old = put.header("x-amz-version-id").expect("a version");
        let deleted = server.ask(ALPHA, Ask::new("DELETE", "/bucket/key")).await;
        let marker = deleted.header("x-amz-version-id").expect("a marker");
        server.advance_ms(3 * DAY_MS);
        sweep_around(&server, &gate, async {
            let undelete = format!("/bucket/key?versionId={marker}");
            server.ask(ALPHA, Ask::new("DELETE", &undelete)).await;
            if replaced {
                // Old from now on, not since the marker.
                server.put("/bucket/key", b"newer").await;
            }
        })
        .await;
        let kept = server.get(&format!("/bucket/key?versionId={old}")).await;
        assert_eq!(kept.text(), "old");
    }
    server.finish().await;
}

#[tokio::test]
async fn the_same_bytes_put_again_are_young() {
    let (server, gate) = gated().await;
    expire(&server, "<Expiration><Days>1</Days></Expiration>").await;
    server.put("/bucket/key", b"same").await;
    server.advance_ms(3 * DAY_MS);
    sweep_around(&server, &gate, async {
        server.put("/bucket/key", b"same").await;
    })
    .await;
    assert_eq!(server.get("/bucket/key").await.text(), "same");
    server.finish().await;
}

#[tokio::test]
async fn rules_that_were_withdrawn_remove_nothing_more() {
    let (server, gate) = gated().await;
    server.make_bucket("later").await;
    for what in [
        "<Expiration><Days>1</Days></Expiration>",
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>",
    ] {
        for (bucket, replaced) in [("bucket", false), ("bucket", true), ("later", false)] {
            let rules = rules(what);
            let target = format!("/{bucket}?lifecycle");
            // The first bucket has rules in any case: that is where the sweep is when they are withdrawn.
            expire(&server, "<Expiration><Days>400</Days></Expiration>").await;
            let set = |rules: &str| server.ask(ALPHA, Ask::new("PUT", &target).body(rules));
            assert_eq!(set(&rules).await.status, 200);
            server.put(&format!("/{bucket}/key"), b"kept").await;
            let upload = begin(&server, &format!("/{bucket}/parts")).await;
            server.advance_ms(3 * DAY_MS);
            sweep_around(&server, &gate, async {
                let changed = match replaced {
                    true => {
                        set(&rules.replace("<Prefix></Prefix>", "<Prefix>other</Prefix>")).await
                    }
                    false => server.ask(ALPHA, Ask::new("DELETE", &target)).await,
                };
                assert!(changed.status < 300, "{}", changed.text());
            })
            .await;
            assert_eq!(server.get(&format!("/{bucket}/key")).await.text(), "kept");
            assert_eq!(server.get(&upload).await.status, 200);
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_read_whose_conditions_do_not_hold_reads_nothing() {
    let (server, gate) = gated().await;
    let put = server.ask(ALPHA, Ask::new("PUT", "/bucket/key").body(b"abc"));
    let etag = put.await.etag();
    gate.close(At::Retrieve);
    let get = || Ask::new("GET", "/bucket/key");
    let past = "Sun, 01 Nov 2026 00:00:00 GMT";
    let future = "Tue, 01 Dec 2026 00:00:00 GMT";
    for (ask, status) in [
        (get().header("if-none-match", &etag), 304),
        (get().header("if-modified-since", future), 304),
        (get().header("if-match", "\"other\""), 412),
        (get().header("if-unmodified-since", past), 412),
        (
            get()
                .header("if-none-match", "*")
                .header("range", "bytes=1-"),
            304,
        ),
    ] {
        let answer = timeout(Duration::from_secs(20), server.ask(ALPHA, ask)).await;
        assert_eq!(answer.expect("answered").status, status);
    }
    gate.open();
    let answer = server.ask(ALPHA, get().header("if-match", &etag)).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"abc"[..]));
    server.finish().await;
}

fn allow_public(actions: &str) -> String {
    format!(
        r#"{{"Statement":{{"Effect":"Allow","Principal":{{"AWS":"beta"}},"Action":[{actions}],
        "Resource":"arn:aws:s3:::bucket/*",
        "Condition":{{"StringEquals":{{"s3:ExistingObjectTag/class":"public"}}}}}}}}"#
    )
}

async fn put_policy(server: &Server<Gated>, policy: &str) {
    let put = Ask::new("PUT", "/bucket?policy").body(policy);
    assert_eq!(server.ask(ALPHA, put).await.status, 204);
}

#[tokio::test]
async fn what_comes_before_a_delete_is_judged_anew() {
    let (server, gate) = gated().await;
    put_policy(&server, &allow_public(r#""s3:DeleteObject""#)).await;
    let list = "<Delete><Object><Key>key</Key></Object></Delete>";
    for ask in [
        Ask::new("DELETE", "/bucket/key"),
        Ask::new("POST", "/bucket?delete").body(list),
    ] {
        let tagged = |class: &str| {
            let put = Ask::new("PUT", "/bucket/key").body(class);
            put.header("x-amz-tagging", &format!("class={class}"))
        };
        assert_eq!(server.ask(ALPHA, tagged("public")).await.status, 200);
        gate.close(At::Delete);
        let (deleted, ()) = tokio::join!(server.ask(BETA, ask), async {
            gate.arrival().await;
            let put = server.ask(ALPHA, tagged("secret")).await;
            assert_eq!(put.status, 200, "{}", put.text());
            gate.open();
        });
        let code = deleted.element("Code");
        assert_eq!(code.as_deref(), Some("NoSuchBucket"), "{}", deleted.text());
        let left = server.ask(ALPHA, Ask::new("GET", "/bucket/key")).await;
        assert_eq!(left.body, b"secret");
    }
    server.finish().await;
}

#[tokio::test]
async fn what_comes_before_tags_are_set_is_judged_anew() {
    let (server, gate) = gated().await;
    let actions = r#""s3:PutObjectTagging","s3:DeleteObjectTagging","s3:GetObject""#;
    put_policy(&server, &allow_public(actions)).await;
    let tags =
        "<Tagging><TagSet><Tag><Key>class</Key><Value>public</Value></Tag></TagSet></Tagging>";
    for ask in [
        Ask::new("PUT", "/bucket/key?tagging").body(tags),
        Ask::new("DELETE", "/bucket/key?tagging"),
    ] {
        let tagged = |class: &str| {
            let put = Ask::new("PUT", "/bucket/key").body(class);
            put.header("x-amz-tagging", &format!("class={class}"))
        };
        assert_eq!(server.ask(ALPHA, tagged("public")).await.status, 200);
        gate.close(At::Amend);
        let (amended, ()) = tokio::join!(server.ask(BETA, ask), async {
            gate.arrival().await;
            let put = server.ask(ALPHA, tagged("secret")).await;
            assert_eq!(put.status, 200, "{}", put.text());
            gate.open();
        });
        amended.is(404, "NoSuchBucket");
        let left = server.ask(ALPHA, Ask::new("GET", "/bucket/key?tagging"));
        let left = left.await;
        assert_eq!(left.element("Value").as_deref(), Some("secret"));
        let read = server.ask(BETA, Ask::new("GET", "/bucket/key")).await;
        read.is(404, "NoSuchBucket");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_denial_ends_a_batch_of_deletes() {
    const KEYS: usize = 100;
    let (server, gate) = gated().await;
    let mut list = String::from("<Delete>");
    for key in 0..KEYS {
        let put = server.ask(ALPHA, Ask::new("PUT", &format!("/bucket/{key}")));
        assert_eq!(put.await.status, 200);
        list.push_str(&format!("<Object><Key>{key}</Key></Object>"));
    }
    list.push_str("</Delete>");
    gate.close(At::Delete);
    let batch = Ask::new("POST", "/bucket?delete").body(list);
    let (deleted, ()) = tokio::join!(server.ask(ALPHA, batch), async {
        gate.arrival().await;
        let deny = r#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:DeleteObject",
            "Resource":"arn:aws:s3:::bucket/*"}}"#;
        put_policy(&server, deny).await;
        gate.open();
    });
    let text = deleted.text();
    let denied = text.matches("<Code>AccessDenied</Code>").count();
    assert!((KEYS / 2..KEYS).contains(&denied), "{denied}");
    let entries = text.split("<Key>").skip(1);
    let keys: Vec<usize> = entries
        .map(|entry| entry.split('<').next().unwrap().parse().expect("a key"))
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..KEYS).collect::<Vec<_>>());
    let info = server
        .store
        .usage(Scope::Namespace("bucket"))
        .expect("a bucket");
    assert_eq!(info.objects, denied as u64);
    server.finish().await;
}

#[tokio::test]
async fn a_copy_that_waits_for_its_turn_holds_nothing_of_its_source() {
    let config = Config {
        // For one copy at a time.
        pool_bytes: 10 << 20,
        ..Config::default()
    };
    let (server, gate) = gated_by(config).await;
    let put = async |body: &[u8]| {
        let put = Ask::new("PUT", "/bucket/source").body(body);
        assert_eq!(server.ask(ALPHA, put).await.status, 200);
    };
    let copy = |to: &str| {
        let ask = Ask::new("PUT", &format!("/bucket/{to}"));
        server.ask(ALPHA, ask.header("x-amz-copy-source", "/bucket/source"))
    };
    put(&[1; 100_000]).await;
    gate.close(At::Body(0));
    let (first, second, ()) = tokio::join!(copy("first"), copy("second"), async {
        gate.arrival().await;
        for _ in 0..1000 {
            // Until the other one waits.
            tokio::task::yield_now().await;
        }
        put(&[2; 100_000]).await;
        gate.open();
    });
    assert_eq!((first.status, second.status), (200, 200));
    let first = server.ask(ALPHA, Ask::new("GET", "/bucket/first")).await;
    let second = server.ask(ALPHA, Ask::new("GET", "/bucket/second")).await;
    // Whichever had the turn copied what was there then.
    let mut bytes = [first.body[0], second.body[0]];
    bytes.sort_unstable();
    assert_eq!(bytes, [1, 2]);
    server.finish().await;
}

#[tokio::test]
async fn who_waits_in_the_middle_of_a_body_has_slow_senders_hurried() {
    let config = Config {
        body_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let (server, gate) = gated_by(config).await;
    server.put("/bucket/large", &vec![1; 3 << 20]).await;
    gate.close(At::Body(1));
    let sending = async {
        gate.arrival().await;
        let (head, body) = Ask::new("PUT", "/bucket/key")
            .body(vec![1; 200_000])
            .parts(ALPHA, server.now_ms());
        let mut slow = server.connect().await;
        slow.send(head.as_bytes()).await;
        let answer = trickle(&mut slow, &body, 4096, Duration::from_millis(40)).await;
        gate.open();
        answer
    };
    let (read, sent) = tokio::join!(server.get("/bucket/large"), sending);
    sent.is(400, "RequestTimeout");
    assert_eq!(read.body.len(), 3 << 20);
    server.finish().await;
}
