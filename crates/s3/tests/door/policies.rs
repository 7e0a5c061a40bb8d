//! What policies can give, to whom, and of what they are asked.

use crate::support::{ALPHA, Answer, Ask, BETA, Server};

/// Beta may do this in `bucket`: pairs of an action and what follows it in the statement.
async fn allow(server: &Server, statements: &[(&str, &str)]) {
    let statements: Vec<String> = statements
        .iter()
        .map(|(actions, condition)| {
            format!(
                r#"{{"Effect":"Allow","Principal":{{"AWS":"beta"}},"Action":[{actions}],
                "Resource":["arn:aws:s3:::bucket","arn:aws:s3:::bucket/*"]{condition}}}"#
            )
        })
        .collect();
    let policy = format!(r#"{{"Statement":[{}]}}"#, statements.join(","));
    put_policy(server, &policy).await;
}

async fn put_policy(server: &Server, policy: &str) {
    let ask = Ask::new("PUT", "/bucket?policy").body(policy);
    let answer = server.ask(ALPHA, ask).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

async fn start() -> Server {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    let own = server.ask(BETA, Ask::new("PUT", "/betas")).await;
    assert_eq!(own.status, 200);
    server
}

async fn served(server: &Server, ask: Ask) -> Answer {
    let answer = server.ask(BETA, ask).await;
    assert!(matches!(answer.status, 200 | 204), "{}", answer.text());
    answer
}

async fn refused(server: &Server, ask: Ask) {
    server.ask(BETA, ask).await.is(404, "NoSuchBucket");
}

fn copy(from: &str, to: &str) -> Ask {
    Ask::new("PUT", to).header("x-amz-copy-source", from)
}

fn tagging(value: &str) -> String {
    format!("<Tagging><TagSet><Tag><Key>class</Key><Value>{value}</Value></Tag></TagSet></Tagging>")
}

#[tokio::test]
async fn an_entity_tag_tells_what_may_not_be_read() {
    let server = start().await;
    let changes = r#""s3:PutObject","s3:DeleteObject""#;
    let put = || Ask::new("PUT", "/bucket/key").body("secret");
    for (actions, may_read) in [
        (changes.to_owned(), false),
        (format!(r#"{changes},"s3:GetObject""#), true),
    ] {
        allow(&server, &[(&actions, "")]).await;
        let stored = server.ask(ALPHA, put()).await;
        let tag = stored.header("etag").expect("a tag").to_owned();
        let list = format!("<Delete><Object><Key>key</Key><ETag>{tag}</ETag></Object></Delete>");
        for ask in [
            put().header("if-match", &tag),
            Ask::new("DELETE", "/bucket/key").header("if-match", &tag),
            Ask::new("POST", "/bucket?delete").body(&list),
        ] {
            assert_eq!(server.ask(ALPHA, put()).await.status, 200);
            let answer = server.ask(BETA, ask).await;
            let code = answer.element("Code");
            let refused = (!may_read).then(|| "NoSuchBucket".to_owned());
            assert_eq!(code, refused, "{}", answer.text());
        }
        // That it is there at all may be known by who can remove it.
        assert_eq!(server.ask(ALPHA, put()).await.status, 200);
        served(
            &server,
            Ask::new("DELETE", "/bucket/key").header("if-match", "*"),
        )
        .await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_policy_gives_itself_to_nobody() {
    let server = start().await;
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:*",
        "Resource":["arn:aws:s3:::bucket","arn:aws:s3:::bucket/*"]}}"#;
    put_policy(&server, policy).await;
    for method in ["GET", "PUT", "DELETE"] {
        let ask =
            || Ask::new(method, "/bucket?policy").body(if method == "PUT" { policy } else { "" });
        server.ask(BETA, ask()).await.is(405, "MethodNotAllowed");
        server.anonymous(ask()).await.is(405, "MethodNotAllowed");
    }
    assert_eq!(server.get("/bucket?policy").await.text(), policy);
    allow(&server, &[(r#""s3:GetObject""#, "")]).await;
    refused(&server, Ask::new("GET", "/bucket?policy")).await;
    server.finish().await;
}

#[tokio::test]
async fn writing_with_tags_takes_the_right_to_tag() {
    let server = start().await;
    let tagged = |ask: Ask| ask.header("x-amz-tagging", "class=public");
    let put = || Ask::new("PUT", "/bucket/key");
    let create = || Ask::new("POST", "/bucket/key?uploads");
    let replace =
        || copy("/betas/plain", "/bucket/copy").header("x-amz-tagging-directive", "REPLACE");
    served(&server, Ask::new("PUT", "/betas/plain")).await;
    served(&server, tagged(Ask::new("PUT", "/betas/tagged"))).await;
    allow(&server, &[(r#""s3:PutObject""#, "")]).await;
    for ask in [
        put(),
        create(),
        replace(),
        copy("/betas/plain", "/bucket/copy"),
    ] {
        served(&server, ask).await;
    }
    let taggings = [
        tagged(put()),
        tagged(create()),
        tagged(replace()),
        copy("/betas/tagged", "/bucket/copy"),
    ];
    for ask in taggings.clone() {
        refused(&server, ask).await;
    }
    allow(&server, &[(r#""s3:PutObject","s3:PutObjectTagging""#, "")]).await;
    for ask in taggings {
        served(&server, ask).await;
    }
    // Tags of the source are read, too.
    let tagged = tagged(Ask::new("PUT", "/bucket/tagged"));
    assert_eq!(server.ask(ALPHA, tagged).await.status, 200);
    let out = || copy("/bucket/tagged", "/betas/copy");
    allow(&server, &[(r#""s3:GetObject""#, "")]).await;
    refused(&server, out()).await;
    served(&server, out().header("x-amz-tagging-directive", "REPLACE")).await;
    allow(&server, &[(r#""s3:GetObject","s3:GetObjectTagging""#, "")]).await;
    served(&server, out()).await;
    server.finish().await;
}

#[tokio::test]
async fn policies_may_ask_for_the_tags_that_are_set_and_for_no_others() {
    let server = start().await;
    server.put("/bucket/key", b"x").await;
    let public = r#","Condition":{"StringEquals":{"s3:RequestObjectTag/class":"public"}}"#;
    allow(
        &server,
        &[(r#""s3:PutObject","s3:PutObjectTagging""#, public)],
    )
    .await;
    let set = |value| Ask::new("PUT", "/bucket/key?tagging").body(tagging(value));
    refused(
        &server,
        set("secret").header("x-amz-tagging", "class=public"),
    )
    .await;
    refused(
        &server,
        Ask::new("PUT", "/bucket/key?tagging").body("<Tagging>"),
    )
    .await;
    served(&server, set("public")).await;
    let put = |tags| Ask::new("PUT", "/bucket/new").header("x-amz-tagging", tags);
    served(&server, put("class=public")).await;
    refused(&server, put("class=secret")).await;
    // A copy that takes the source's tags ignores those of the header.
    served(&server, Ask::new("PUT", "/betas/plain")).await;
    let copy = copy("/betas/plain", "/bucket/copy").header("x-amz-tagging", "class=public");
    refused(&server, copy.clone()).await;
    served(&server, copy.header("x-amz-tagging-directive", "REPLACE")).await;
    server.finish().await;
}

#[tokio::test]
async fn conditions_on_tags_hold_however_the_json_is_written() {
    let server = start().await;
    let secret = Ask::new("PUT", "/bucket/key").header("x-amz-tagging", "secret=yes");
    assert_eq!(server.ask(ALPHA, secret).await.status, 200);
    server.put("/bucket/plain", b"x").await;
    // As it is, as PHP writes a slash, and as anybody may write any letter.
    for slash in ["/", r"\/", r"\u002f"] {
        for letter in ["E", r"\u0045"] {
            let policy = format!(
                r#"{{"Statement":[
                {{"Effect":"Allow","Principal":"*","Action":["s3:GetObject","s3:PutObjectTagging"],
                "Resource":"arn:aws:s3:::bucket/*"}},
                {{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*",
                "Condition":{{"StringEquals":{{"s3:{letter}xistingObjectTag{slash}secret":"yes"}}}}}},
                {{"Effect":"Deny","Principal":"*","Action":"s3:PutObjectTagging","Resource":"arn:aws:s3:::bucket/*",
                "Condition":{{"StringEquals":{{"s3:R{letter_2}questObjectTag{slash}class":"secret"}}}}}}]}}"#,
                letter_2 = if letter == "E" { "e" } else { r"\u0065" },
            );
            put_policy(&server, &policy).await;
            let read = server.ask(BETA, Ask::new("GET", "/bucket/key")).await;
            read.is(403, "AccessDenied");
            served(&server, Ask::new("GET", "/bucket/plain")).await;
            let set = |value| Ask::new("PUT", "/bucket/plain?tagging").body(tagging(value));
            server
                .ask(BETA, set("secret"))
                .await
                .is(403, "AccessDenied");
            served(&server, set("public")).await;
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn policies_may_ask_for_the_version_that_is_meant() {
    let server = start().await;
    server.keep_versions("bucket").await;
    let mut versions = Vec::new();
    for _ in 0..2 {
        let put = server.put("/bucket/key", b"x").await;
        versions.push(
            put.header("x-amz-version-id")
                .expect("a version")
                .to_owned(),
        );
    }
    let [given, kept] = &versions[..] else {
        panic!("two versions");
    };
    let condition = format!(r#","Condition":{{"StringEquals":{{"s3:VersionId":"{given}"}}}}"#);
    let actions = r#""s3:GetObjectVersion","s3:DeleteObjectVersion""#;
    allow(&server, &[(actions, &condition)]).await;
    let from = |version: &str| format!("/bucket/key?versionId={version}");
    served(&server, copy(&from(given), "/betas/copy")).await;
    refused(&server, copy(&from(kept), "/betas/copy")).await;
    let pretending = format!("/betas/copy?versionId={given}");
    refused(&server, copy(&from(kept), &pretending)).await;
    let delete = |version: &str, query: &str| {
        let body = format!(
            "<Delete><Object><Key>key</Key><VersionId>{version}</VersionId></Object></Delete>"
        );
        Ask::new("POST", &format!("/bucket?delete{query}")).body(body)
    };
    refused(&server, delete(kept, &format!("&versionId={given}"))).await;
    assert_eq!(server.get(&from(kept)).await.status, 200);
    served(&server, delete(given, "")).await;
    server.get(&from(given)).await.is(404, "NoSuchVersion");
    server.finish().await;
}

#[tokio::test]
async fn a_copy_may_expect_who_owns_its_source() {
    let server = start().await;
    server.put("/bucket/key", b"x").await;
    let upload = server
        .ask(ALPHA, Ask::new("POST", "/bucket/up?uploads"))
        .await;
    let id = upload.element("UploadId").expect("an upload");
    let part = format!("/bucket/up?partNumber=1&uploadId={id}");
    for target in ["/bucket/copy", &part] {
        for (owner, status) in [("beta", 403), ("alpha", 200)] {
            let ask =
                copy("/bucket/key", target).header("x-amz-source-expected-bucket-owner", owner);
            assert_eq!(
                server.ask(ALPHA, ask).await.status,
                status,
                "{target} {owner}"
            );
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_version_that_is_none_does_not_tell_that_the_bucket_is_there() {
    let server = start().await;
    let ask = |bucket: &str| Ask::new("GET", &format!("/{bucket}/key?versionId=none"));
    for bucket in ["bucket", "absent"] {
        let told = server.anonymous(ask(bucket)).await;
        told.is(400, "InvalidArgument");
        server
            .ask(BETA, ask(bucket))
            .await
            .is(400, "InvalidArgument");
    }
    server.finish().await;
}

#[tokio::test]
async fn tags_whose_keys_differ_in_case_are_different_tags() {
    let server = start().await;
    let own = r#","Condition":{"StringEquals":{"S3:requestobjecttag/team":"beta"}}"#;
    let own = (r#""s3:PutObject","s3:PutObjectTagging""#, own);
    let open = r#","Condition":{"StringNotEquals":{"s3:ExistingObjectTag/secret":"yes"}}"#;
    allow(&server, &[own, (r#""s3:GetObject""#, open)]).await;
    let put = |tags| Ask::new("PUT", "/bucket/key").header("x-amz-tagging", tags);
    served(&server, put("TEAM=other&team=beta")).await;
    refused(&server, put("TEAM=beta&team=other")).await;
    refused(&server, put("TEAM=beta")).await;
    for (tags, secret) in [
        ("Secret=no&secret=yes", true),
        ("Secret=yes&secret=no", false),
    ] {
        assert_eq!(server.ask(ALPHA, put(tags)).await.status, 200);
        let get = Ask::new("GET", "/bucket/key");
        match secret {
            true => refused(&server, get).await,
            false => drop(served(&server, get).await),
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_batch_of_a_stranger_does_not_tell_that_the_bucket_is_there() {
    let server = start().await;
    server.put("/bucket/shared/key", b"x").await;
    server.put("/bucket/private/key", b"x").await;
    let batch = |keys: &[&str]| {
        let objects = keys
            .iter()
            .map(|key| format!("<Object><Key>{key}</Key></Object>"));
        format!("<Delete>{}</Delete>", objects.collect::<String>())
    };
    allow(&server, &[(r#""s3:GetObject""#, "")]).await;
    for body in [batch(&["private/key", "shared/key"]), "<Delete>".to_owned()] {
        for owner in ["alpha", "beta"] {
            let mut told = Vec::new();
            for bucket in ["bucket", "absent"] {
                let ask = Ask::new("POST", &format!("/{bucket}?delete")).body(&body);
                let ask = ask.header("x-amz-expected-bucket-owner", owner);
                told.push(server.ask(BETA, ask).await.refusal());
            }
            assert_eq!(told[0], told[1], "{body}");
        }
    }
    let ask = Ask::new("POST", "/bucket?delete").body(batch(&["private/key"]));
    server.anonymous(ask).await.is(403, "AccessDenied");
    // Who may delete something hears about each key, and of a batch for another owner's bucket nothing goes.
    let policy = r#"{"Statement":{"Effect":"Allow","Principal":{"AWS":"beta"},"Action":"s3:DeleteObject",
        "Resource":"arn:aws:s3:::bucket/shared/*"}}"#;
    put_policy(&server, policy).await;
    let ask = Ask::new("POST", "/bucket?delete").body(batch(&["private/key", "shared/key"]));
    let other = ask.clone().header("x-amz-expected-bucket-owner", "beta");
    server.ask(BETA, other).await.is(403, "AccessDenied");
    assert_eq!(server.get("/bucket/shared/key").await.status, 200);
    let answer = served(&server, ask).await;
    assert!(
        answer.text().contains("<Deleted><Key>shared/key</Key>"),
        "{}",
        answer.text()
    );
    assert!(answer.text().contains("<Error><Key>private/key</Key>"));
    server.finish().await;
}

#[tokio::test]
async fn attributes_take_the_right_to_read() {
    let server = start().await;
    server.put("/bucket/key", b"x").await;
    let version = server.get("/bucket/key").await;
    assert_eq!(version.status, 200);
    let ask =
        |target: &str| Ask::new("GET", target).header("x-amz-object-attributes", "ETag,ObjectSize");
    let current = || ask("/bucket/key?attributes");
    let version = || ask("/bucket/key?attributes&versionId=null");
    for only in [r#""s3:GetObjectAttributes""#, r#""s3:GetObject""#] {
        allow(&server, &[(only, "")]).await;
        refused(&server, current()).await;
    }
    allow(
        &server,
        &[(r#""s3:GetObjectAttributes","s3:GetObject""#, "")],
    )
    .await;
    served(&server, current()).await;
    refused(&server, version()).await;
    let both = r#""s3:GetObjectVersionAttributes","s3:GetObjectVersion""#;
    allow(&server, &[(both, "")]).await;
    served(&server, version()).await;
    refused(&server, current()).await;
    server.finish().await;
}
