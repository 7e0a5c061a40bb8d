//! Buckets and what they are configured with: policies, CORS, lifecycle, tags, ACLs, and what was never set.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay_s3::Config;
use forebay_store::limits::NAMESPACES_MAX;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Attributes, ListOptions, MemoryStore, NamespaceConfig, Result, Seal, Space, Store,
    StoreOptions, Upload, VersionPage,
};

use crate::support::{ALPHA, Ask, BETA, HOST, START_MS, Server};

const DAY_MS: u64 = 86_400_000;

#[tokio::test]
async fn what_was_never_set_is_answered_as_s3_answers_it() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    for (resource, status, code) in [
        ("policy", 404, "NoSuchBucketPolicy"),
        ("policyStatus", 404, "NoSuchBucketPolicy"),
        ("cors", 404, "NoSuchCORSConfiguration"),
        ("lifecycle", 404, "NoSuchLifecycleConfiguration"),
        ("tagging", 404, "NoSuchTagSet"),
        (
            "encryption",
            404,
            "ServerSideEncryptionConfigurationNotFoundError",
        ),
        ("object-lock", 404, "ObjectLockConfigurationNotFoundError"),
        (
            "publicAccessBlock",
            404,
            "NoSuchPublicAccessBlockConfiguration",
        ),
        ("ownershipControls", 404, "OwnershipControlsNotFoundError"),
        ("replication", 404, "ReplicationConfigurationNotFoundError"),
        ("website", 404, "NoSuchWebsiteConfiguration"),
    ] {
        server
            .get(&format!("/bucket?{resource}"))
            .await
            .is(status, code);
    }
    for (resource, text) in [
        ("versioning", "<VersioningConfiguration"),
        ("location", "<LocationConstraint"),
        ("acl", "<Permission>FULL_CONTROL</Permission>"),
        ("requestPayment", "<Payer>BucketOwner</Payer>"),
        ("accelerate", "<AccelerateConfiguration"),
        ("logging", "<BucketLoggingStatus"),
        ("notification", "<NotificationConfiguration"),
        ("uploads", "<ListMultipartUploadsResult"),
    ] {
        let answer = server.get(&format!("/bucket?{resource}")).await;
        assert_eq!(answer.status, 200);
        assert!(
            answer.text().contains(text),
            "{resource}: {}",
            answer.text()
        );
    }
    let head = server.ask(ALPHA, Ask::new("HEAD", "/bucket")).await;
    assert_eq!(head.header("x-amz-bucket-region"), Some("us-east-1"));
    let absent = server.ask(ALPHA, Ask::new("HEAD", "/absent")).await;
    assert_eq!((absent.status, absent.body.len()), (404, 0));
    // The list that was given back is taken again; one that gives to others is not.
    let list = server.get("/bucket?acl").await.text();
    let again = Ask::new("PUT", "/bucket?acl").body(&list);
    assert_eq!(server.ask(ALPHA, again).await.status, 200);
    let foreign = list.replace("<ID>alpha</ID>", "<ID>beta</ID>");
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?acl").body(foreign))
        .await;
    answer.is(400, "AccessControlListNotSupported");
    let owner = Ask::new("GET", "/bucket").header("x-amz-expected-bucket-owner", "beta");
    server.ask(ALPHA, owner).await.is(403, "AccessDenied");
    server.finish().await;
}

#[tokio::test]
async fn buckets_are_made_listed_and_removed() {
    let server = Server::start().await;
    for name in ["one", "two", "three"] {
        server.make_bucket(name).await;
    }
    let listed = server.get("/").await.text();
    let names: Vec<&str> = listed
        .split("<Name>")
        .skip(1)
        .filter_map(|rest| rest.split('<').next())
        .collect();
    assert_eq!(names, ["one", "three", "two"]);
    let page = server.get("/?max-buckets=2").await;
    assert_eq!(page.element("ContinuationToken").as_deref(), Some("three"));
    let rest = server.get("/?max-buckets=2&continuation-token=three").await;
    assert!(rest.text().contains("<Name>two</Name>"));
    server.put("/one/key", b"x").await;
    server
        .ask(ALPHA, Ask::new("DELETE", "/one"))
        .await
        .is(409, "BucketNotEmpty");
    server.ask(ALPHA, Ask::new("DELETE", "/one/key")).await;
    assert_eq!(
        server.ask(ALPHA, Ask::new("DELETE", "/one")).await.status,
        204
    );
    server.get("/one").await.is(404, "NoSuchBucket");
    let body = "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint>\
        </CreateBucketConfiguration>";
    let answer = server.ask(ALPHA, Ask::new("PUT", "/four").body(body)).await;
    assert_eq!(answer.status, 200);
    let tags = "<Tag><Key>team</Key><Value>a+b</Value></Tag><Tag><Key>t</Key><Value></Value></Tag>";
    let wanted = |inner: &str| {
        let body = format!("<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>");
        server.ask(ALPHA, Ask::new("PUT", "/five").body(body))
    };
    for (inner, status, code) in [
        (
            "<Location><Name>a</Name><Type>LocalZone</Type></Location>",
            501,
            "NotImplemented",
        ),
        (
            "<Bucket><Type>Directory</Type></Bucket>",
            501,
            "NotImplemented",
        ),
        (
            "<Tags><Tag><Key>aws:x</Key><Value/></Tag></Tags>",
            400,
            "InvalidTag",
        ),
    ] {
        wanted(inner).await.is(status, code);
        server.get("/five").await.is(404, "NoSuchBucket");
    }
    let made = wanted(&format!("<Tags>{tags}</Tags>")).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let told = server.get("/five?tagging").await.text();
    assert!(told.contains(tags), "{told}");
    let locked = Ask::new("PUT", "/six").header("x-amz-bucket-object-lock-enabled", "true");
    server.ask(ALPHA, locked).await.is(501, "NotImplemented");
    server.finish().await;
}

/// A store whose lists pass over every object.
#[derive(Clone)]
struct Unreadable;

impl Detour<MemoryStore> for Unreadable {
    async fn list_versions(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        let objects = options.space == Space::Objects;
        let mut page = store.list_versions(options).await?;
        if objects {
            page.items.clear();
            page.passed_over.push("key".into());
        }
        Ok(page)
    }
}

#[tokio::test]
async fn uploads_stay_while_their_bucket_has_what_cannot_be_read() {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| Around {
        store,
        detour: Unreadable,
    };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"x").await;
    let begun = server
        .ask(ALPHA, Ask::new("POST", "/bucket/other?uploads"))
        .await;
    let id = begun.element("UploadId").expect("an upload");
    server
        .ask(ALPHA, Ask::new("DELETE", "/bucket"))
        .await
        .is(409, "BucketNotEmpty");
    let parts = server.get(&format!("/bucket/other?uploadId={id}")).await;
    assert_eq!(parts.status, 200, "{}", parts.text());
    server.finish().await;
}

#[tokio::test]
async fn policies_allow_and_deny() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/public/a", b"a").await;
    server.put("/bucket/private/b", b"b").await;
    server.put("/bucket/shared/c", b"c").await;
    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/public/*"},
        {"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::beta:root"},"Action":["s3:PutObject","s3:GetObject"],"Resource":"arn:aws:s3:::bucket/shared/*"},
        {"Effect":"Allow","Principal":{"AWS":"beta"},"Action":"s3:ListBucket","Resource":"arn:aws:s3:::bucket","Condition":{"StringEquals":{"s3:prefix":"shared/"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:DeleteObject","Resource":"arn:aws:s3:::bucket/shared/*"},
        {"Effect":"Deny","Principal":"*","Action":"s3:GetBucketPolicy","Resource":"arn:aws:s3:::bucket"}
    ]}"#;
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?policy").body(policy))
        .await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    // The owner is never locked out of the policy itself.
    assert_eq!(server.get("/bucket?policy").await.text(), policy);

    let get = |target: &str| Ask::new("GET", target);
    assert_eq!(server.anonymous(get("/bucket/public/a")).await.body, b"a");
    server
        .anonymous(get("/bucket/private/b"))
        .await
        .is(403, "AccessDenied");
    server
        .anonymous(get("/bucket"))
        .await
        .is(403, "AccessDenied");
    let put = Ask::new("PUT", "/bucket/public/new").body(b"x");
    server.anonymous(put).await.is(403, "AccessDenied");
    let overrides = get("/bucket/public/a?response-content-type=x");
    server.anonymous(overrides).await.is(400, "InvalidRequest");

    assert_eq!(server.ask(BETA, get("/bucket/shared/c")).await.body, b"c");
    let put = Ask::new("PUT", "/bucket/shared/d").body(b"d");
    assert_eq!(server.ask(BETA, put).await.status, 200);
    server
        .ask(BETA, get("/bucket/private/b"))
        .await
        .is(403, "AccessDenied");
    assert_eq!(
        server
            .ask(BETA, get("/bucket?prefix=shared%2F"))
            .await
            .status,
        200
    );
    server
        .ask(BETA, get("/bucket?prefix=private%2F"))
        .await
        .is(403, "AccessDenied");

    // A denial binds the owner too, one key at a time.
    let delete = Ask::new("DELETE", "/bucket/shared/c");
    server.ask(ALPHA, delete).await.is(403, "AccessDenied");
    let body = "<Delete><Object><Key>shared/c</Key></Object><Object><Key>private/b</Key></Object></Delete>";
    let answer = server
        .ask(ALPHA, Ask::new("POST", "/bucket?delete").body(body))
        .await;
    assert!(
        answer.text().contains("<Deleted><Key>private/b</Key>"),
        "{}",
        answer.text()
    );
    assert!(
        answer
            .text()
            .contains("<Error><Key>shared/c</Key><Code>AccessDenied</Code>")
    );

    // Gone, it gives nothing any more.
    let removed = server
        .ask(ALPHA, Ask::new("DELETE", "/bucket?policy"))
        .await;
    assert_eq!(removed.status, 204);
    server
        .anonymous(get("/bucket/public/a"))
        .await
        .is(403, "AccessDenied");
    server
        .ask(BETA, get("/bucket/shared/c"))
        .await
        .is(404, "NoSuchBucket");
    let foreign = policy.replace("arn:aws:s3:::bucket", "arn:aws:s3:::other");
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?policy").body(foreign))
        .await;
    answer.is(400, "MalformedPolicy");
    server.finish().await;
}

#[tokio::test]
async fn policies_may_ask_for_tags_of_the_object() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let tagged = Ask::new("PUT", "/bucket/open").header("x-amz-tagging", "state=open");
    assert_eq!(server.ask(ALPHA, tagged).await.status, 200);
    server.put("/bucket/closed", b"").await;
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*","Condition":{"StringEquals":{"s3:ExistingObjectTag/state":"open"}}}}"#;
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?policy").body(policy))
        .await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let get = |target: &str| Ask::new("GET", target);
    assert_eq!(server.anonymous(get("/bucket/open")).await.status, 200);
    server
        .anonymous(get("/bucket/closed"))
        .await
        .is(403, "AccessDenied");
    server.finish().await;
}

#[tokio::test]
async fn cors_rules_answer_preflights_and_mark_responses() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"x").await;
    let rules = "<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example.org</AllowedOrigin>\
        <AllowedMethod>GET</AllowedMethod><AllowedHeader>x-*</AllowedHeader>\
        <ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>";
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?cors").body(rules))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let preflight = |origin: &str, method: &str, bucket: &str| {
        format!(
            "OPTIONS /{bucket}/key HTTP/1.1\r\nhost: {HOST}\r\norigin: {origin}\r\n\
             access-control-request-method: {method}\r\naccess-control-request-headers: x-a\r\n\r\n"
        )
    };
    let ask = preflight("https://a.example.org", "GET", "bucket");
    let answer = server.exchange(ask.as_bytes(), false).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://a.example.org")
    );
    assert_eq!(answer.header("access-control-max-age"), Some("60"));
    for (origin, method, bucket) in [
        ("https://a.example.com", "GET", "bucket"),
        ("https://a.example.org", "PUT", "bucket"),
        ("https://a.example.org", "GET", "absent"),
    ] {
        let ask = preflight(origin, method, bucket);
        let answer = server.exchange(ask.as_bytes(), false).await;
        answer.is(403, "AccessForbidden");
    }
    // More headers than a request may have.
    let ask = preflight("https://a.example.org", "GET", "bucket");
    let many = ask.replace("x-a\r\n", &format!("{}\r\n", "x-a,".repeat(101)));
    let answer = server.exchange(many.as_bytes(), false).await;
    answer.is(403, "AccessForbidden");
    let ask = |target: &str| Ask::new("GET", target).header("origin", "https://a.example.org");
    for target in ["/bucket/key", "/bucket/absent"] {
        let answer = server.ask(ALPHA, ask(target)).await;
        assert_eq!(answer.header("access-control-expose-headers"), Some("ETag"));
    }
    // A page may read that it was refused.
    let answer = server.anonymous(ask("/bucket/key")).await;
    answer.is(403, "AccessDenied");
    assert_eq!(answer.header("access-control-expose-headers"), Some("ETag"));
    let removed = server.ask(ALPHA, Ask::new("DELETE", "/bucket?cors")).await;
    assert_eq!(removed.status, 204);
    let answer = server.ask(ALPHA, ask("/bucket/key")).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    server.finish().await;
}

#[tokio::test]
async fn configurations_are_bounded_each_and_all_of_a_tenants_together() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let cors = |headers: usize| {
        let header = "<AllowedHeader>x-a</AllowedHeader>".repeat(headers);
        let rules = format!(
            "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
             <AllowedMethod>GET</AllowedMethod>{header}</CORSRule></CORSConfiguration>"
        );
        Ask::new("PUT", "/bucket?cors").body(rules)
    };
    let lifecycle = |prefix: usize| {
        let prefix = "p".repeat(prefix);
        let rules: String = (0..300)
            .map(|id| {
                format!(
                    "<Rule><ID>{id}</ID><Status>Enabled</Status><Filter><Prefix>{prefix}</Prefix>\
                     </Filter><Expiration><Days>1</Days></Expiration></Rule>"
                )
            })
            .collect();
        let rules = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        Ask::new("PUT", "/bucket?lifecycle").body(rules)
    };
    for (fits, too_long) in [(cors(1800), cors(2000)), (lifecycle(600), lifecycle(900))] {
        assert_eq!(server.ask(ALPHA, fits).await.status, 200);
        let refused = server.ask(ALPHA, too_long).await;
        refused.is(400, "MaxMessageLengthExceeded");
    }

    let removed = server.ask(ALPHA, Ask::new("DELETE", "/bucket?lifecycle"));
    assert_eq!(removed.await.status, 204);
    let full = NamespaceConfig {
        tenant: ALPHA.tenant.to_owned(),
        attributes: Attributes::builder()
            .set("s3.lifecycle", vec![b' '; 511 << 10])
            .build()
            .expect("within what a namespace may have"),
        ..NamespaceConfig::default()
    };
    for number in 0..32 {
        let name = format!("full-{number}");
        let made = server.store.create_namespace(&name, full.clone()).await;
        made.expect("a namespace");
    }
    assert_eq!(
        server.ask(ALPHA, cors(1)).await.status,
        200,
        "less than before"
    );
    let more = server.ask(ALPHA, cors(1800)).await;
    more.is(400, "InvalidRequest");
    assert_eq!(
        server
            .ask(ALPHA, Ask::new("DELETE", "/bucket?cors"))
            .await
            .status,
        204
    );
    // Others have room of their own.
    assert_eq!(
        server.ask(BETA, Ask::new("PUT", "/betas")).await.status,
        200
    );
    let mut of_others = cors(1800);
    of_others.path = "/betas".to_owned();
    assert_eq!(server.ask(BETA, of_others).await.status, 200);
    server.finish().await;
}

#[tokio::test]
async fn lifecycle_rules_expire_what_they_are_about() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let rules = "<LifecycleConfiguration>\
        <Rule><ID>logs</ID><Status>Enabled</Status><Filter><Prefix>logs/</Prefix></Filter>\
        <Expiration><Days>2</Days></Expiration></Rule>\
        <Rule><ID>tagged</ID><Status>Enabled</Status><Filter><Tag><Key>t</Key><Value>1</Value></Tag></Filter>\
        <Expiration><Days>1</Days></Expiration></Rule>\
        <Rule><ID>uploads</ID><Status>Enabled</Status><Filter><Prefix></Prefix></Filter>\
        <AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>\
        </LifecycleConfiguration>";
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?lifecycle").body(rules))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(
        server
            .get("/bucket?lifecycle")
            .await
            .text()
            .contains("<ID>logs</ID>")
    );
    server.put("/bucket/logs/a", b"x").await;
    server.put("/bucket/keep", b"x").await;
    let tagged = Ask::new("PUT", "/bucket/tagged").header("x-amz-tagging", "t=1");
    let put = server.ask(ALPHA, tagged).await;
    let shown = "expiry-date=\"Sun, 22 Nov 2026 00:00:00 GMT\", rule-id=\"tagged\"";
    assert_eq!(put.header("x-amz-expiration"), Some(shown));
    let head = server.ask(ALPHA, Ask::new("HEAD", "/bucket/tagged")).await;
    assert_eq!(head.header("x-amz-expiration"), Some(shown));
    let head = server.ask(ALPHA, Ask::new("HEAD", "/bucket/keep")).await;
    assert_eq!(head.header("x-amz-expiration"), None);
    server
        .ask(ALPHA, Ask::new("POST", "/bucket/up?uploads"))
        .await;

    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!(swept, forebay_s3::Swept::default());
    server.advance_ms(DAY_MS);
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!((swept.expired, swept.uploads), (1, 1));
    server.get("/bucket/tagged").await.is(404, "NoSuchKey");
    assert!(
        !server
            .get("/bucket?uploads")
            .await
            .text()
            .contains("<Upload>")
    );
    server.advance_ms(DAY_MS);
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!((swept.expired, swept.uploads), (1, 0));
    server.get("/bucket/logs/a").await.is(404, "NoSuchKey");
    assert_eq!(server.get("/bucket/keep").await.status, 200);
    let transition = rules.replace(
        "<Expiration><Days>2</Days></Expiration>",
        "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>",
    );
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?lifecycle").body(transition))
        .await;
    answer.is(501, "NotImplemented");
    server.finish().await;
}

/// Stores a part as another server of the same store would.
async fn part_from_elsewhere(server: &Server, id: &str, number: u32) {
    let key = format!("p\0{id}\0{number:05}");
    let address = Address::staging("bucket", key.as_bytes());
    let upload = server.store.store(address, StoreOptions::default());
    let upload = upload.await.unwrap();
    upload.commit(Seal::default()).await.unwrap();
}

#[tokio::test]
async fn parts_of_uploads_that_have_ended_are_removed() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let begun = server.ask(ALPHA, Ask::new("POST", "/bucket/up?uploads"));
    let begun = begun.await.text();
    let (_, rest) = begun.split_once("<UploadId>").unwrap();
    let (going_on, _) = rest.split_once("</UploadId>").unwrap();
    let ended = "0".repeat(32);
    for number in [1, 2] {
        part_from_elsewhere(&server, going_on, number).await;
        part_from_elsewhere(&server, &ended, number).await;
    }
    let sweep = async || server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!(sweep().await.orphans, 0, "they are young");
    server.advance_ms(DAY_MS);
    part_from_elsewhere(&server, &ended, 3).await;
    assert_eq!(sweep().await.orphans, 0, "one of them is young");
    server.advance_ms(DAY_MS);
    let swept = sweep().await;
    assert_eq!((swept.orphans, swept.uploads, swept.failed), (3, 0, 0));
    assert_eq!(sweep().await, forebay_s3::Swept::default());
    let parts = format!("/bucket/up?uploadId={going_on}");
    let listed = server.ask(ALPHA, Ask::new("GET", &parts)).await.text();
    assert_eq!(listed.matches("<Part>").count(), 2, "{listed}");
    server.finish().await;
}

#[tokio::test]
async fn lifecycle_rules_thin_out_versions() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.keep_versions("bucket").await;
    let rules = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter><Prefix></Prefix></Filter>\
        <Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>\
        <NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays><NewerNoncurrentVersions>1</NewerNoncurrentVersions>\
        </NoncurrentVersionExpiration></Rule></LifecycleConfiguration>";
    let answer = server
        .ask(ALPHA, Ask::new("PUT", "/bucket?lifecycle").body(rules))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for body in ["1", "2", "3", "4"] {
        server.put("/bucket/key", body.as_bytes()).await;
    }
    server.advance_ms(2 * DAY_MS);
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    // Of three noncurrent versions the newest stays.
    assert_eq!((swept.versions, swept.expired), (2, 0));
    assert_eq!(server.get("/bucket/key").await.text(), "4");
    // A delete marker with nothing under it goes.
    let deleted = server.ask(ALPHA, Ask::new("DELETE", "/bucket/alone")).await;
    assert_eq!(deleted.header("x-amz-delete-marker"), Some("true"));
    let swept = server.door.lifecycle_sweep(server.now_ms()).await;
    assert_eq!(swept.markers, 1);
    server.finish().await;
}

#[tokio::test]
async fn metrics_count_requests_bytes_and_codes() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", &[0; 1000]).await;
    server.get("/bucket/key").await;
    server.get("/bucket/absent").await;
    server.door.drain().await;
    let mut registry = prometheus_client::registry::Registry::default();
    server.door.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
    for line in [
        "forebay_s3_requests_total{op=\"PutObject\",code=\"200\"} 1",
        "forebay_s3_requests_total{op=\"GetObject\",code=\"200\"} 1",
        "forebay_s3_requests_total{op=\"GetObject\",code=\"404\"} 1",
        "forebay_s3_received_bytes_total{path=\"http\"} 1000",
        "forebay_s3_requests_in_flight 0",
        "forebay_s3_request_seconds_count{op=\"PutObject\"} 1",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_tenant_has_no_more_buckets_than_it_may() {
    let server = Server::start().await;
    for number in 0..NAMESPACES_MAX {
        let config = NamespaceConfig {
            tenant: "alpha".to_owned(),
            ..NamespaceConfig::default()
        };
        let name = format!("alpha-{number}");
        let made = server.store.create_namespace(&name, config).await;
        made.expect("room");
    }
    let make = |name: &str| Ask::new("PUT", &format!("/{name}"));
    server
        .ask(ALPHA, make("one-more"))
        .await
        .is(400, "TooManyBuckets");
    server
        .ask(ALPHA, make("alpha-7"))
        .await
        .is(409, "BucketAlreadyOwnedByYou");
    assert_eq!(server.ask(BETA, make("betas")).await.status, 200);
    let removed = server.ask(ALPHA, Ask::new("DELETE", "/alpha-7")).await;
    assert_eq!(removed.status, 204);
    assert_eq!(server.ask(ALPHA, make("one-more")).await.status, 200);
    // To look through all of them for what is left over would take minutes.
}
