//! Functions run over objects by `POST ?execute`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_exec::{Exec, Executor, Limits, Runs};
use forebay_io::SystemClock;
use forebay_mem::Pool;
use forebay_s3::Config;
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::programs::{self, BYTECOUNT, ECHO, Ends, FAILS, HOSTILE, LENGTH, STATEFUL};
use crate::support::{ALPHA, Answer, Ask, BETA, START_MS, Server};

/// Much longer than functions may take here.
const SOON: Duration = Duration::from_secs(30);

type Executing = Server<Exec<MemoryStore>>;

async fn start() -> (Executing, Arc<Executor>) {
    start_with(programs::executor(Pool::new(64 << 20))).await
}

/// Functions have an hour.
async fn start_patiently() -> (Executing, Arc<Executor>) {
    let limits = Limits {
        deadline: Duration::from_secs(3600),
        ..Limits::default()
    };
    let (pool, clock) = (Pool::new(64 << 20), Arc::new(SystemClock::default()));
    start_with(Executor::start(limits, Runs::default(), None, pool, clock).unwrap()).await
}

async fn start_with(executor: Arc<Executor>) -> (Executing, Arc<Executor>) {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let runs = Arc::clone(&executor);
    let wrap = |store| Exec::new(store, Some(runs));
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    for (name, tenant) in [("bucket", "alpha"), ("other", "alpha"), ("theirs", "beta")] {
        let config = NamespaceConfig {
            tenant: tenant.to_owned(),
            ..NamespaceConfig::default()
        };
        server.store.create_namespace(name, config).await.unwrap();
    }
    programs::allow(&server.store, &executor, "alpha", "beta").await;
    put(&server, "/bucket/key", b"some value").await;
    put(&server, "/other/key", b"another").await;
    (server, executor)
}

async fn put(server: &Executing, target: &str, body: &[u8]) {
    let answer = server.ask(ALPHA, Ask::new("PUT", target).body(body)).await;
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
}

fn request(operation: u32, more: &str) -> Ask {
    let body = format!("<ExecuteRequest><Operation>{operation}</Operation>{more}</ExecuteRequest>");
    Ask::new("POST", "/bucket/key?execute").body(body)
}

async fn run(server: &Executing, operation: u32, more: &str) -> Answer {
    server.ask(ALPHA, request(operation, more)).await
}

#[track_caller]
fn is(answer: &Answer, body: &[u8]) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.text(), String::from_utf8_lossy(body));
}

async fn is_unharmed(server: &Executing) {
    let answer = run(server, ECHO, "<Argument>and</Argument>").await;
    is(&answer, b"and\0some value");
}

#[tokio::test]
async fn output_comes_back_with_its_length_and_is_cut_where_asked() {
    let (server, _executor) = start().await;
    is_unharmed(&server).await;
    let answer = run(
        &server,
        ECHO,
        "<Arguments>AP8B</Arguments><Capacity>5</Capacity>",
    )
    .await;
    assert_eq!(answer.body, b"\x00\xff\x01so");
    assert_eq!(answer.header("x-forebay-output-length"), Some("13"));
    assert_eq!(answer.header("content-length"), Some("5"));
    for (operation, body) in [(LENGTH, 10_u64), (BYTECOUNT, 10)] {
        assert_eq!(run(&server, operation, "").await.body, body.to_le_bytes());
    }
    for _ in 0..3 {
        is(&run(&server, STATEFUL, "").await, b"1");
    }
    // Nothing is an output, too.
    is(&run(&server, LENGTH, "<Capacity>0</Capacity>").await, b"");
    // By name, and by ranges and inputs beside the first.
    let named = Ask::new("POST", "/bucket/key?execute")
        .header("range", "bytes=5-")
        .body("<ExecuteRequest><Module>op10</Module><Function>run</Function></ExecuteRequest>");
    is(&server.ask(ALPHA, named).await, b"value");
    let more = "<Input><Bucket>other</Bucket><Key>key</Key><Range>bytes=0-2</Range></Input>";
    is(&run(&server, ECHO, more).await, b"some value");
    server.finish().await;
}

#[tokio::test]
async fn output_becomes_an_object_whole_or_not_at_all() {
    let (server, _executor) = start().await;
    let into =
        "<Output><Bucket>other</Bucket><Key>a b</Key><ContentType>text/x</ContentType></Output>";
    let answer = run(&server, ECHO, into).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.element("Key").as_deref(), Some("a b"));
    assert_eq!(answer.element("Size").as_deref(), Some("10"));
    let object = server.ask(ALPHA, Ask::new("GET", "/other/a%20b")).await;
    is(&object, b"some value");
    assert_eq!(object.header("content-type"), Some("text/x"));
    assert_eq!(
        answer.element("ETag").unwrap().replace("&quot;", "\""),
        object.etag()
    );
    // Conditions are about what it becomes.
    let again = request(ECHO, into).header("if-none-match", "*");
    server.ask(ALPHA, again).await.is(412, "PreconditionFailed");
    // What fails leaves nothing.
    let into = "<Output><Key>made</Key></Output>";
    for (operation, words) in [(FAILS, "not today"), (22, "it wrote more than it may")] {
        let answer = run(&server, operation, into).await;
        answer.is(400, "InvalidRequest");
        assert!(answer.text().contains(words), "{}", answer.text());
    }
    let made = server.ask(ALPHA, Ask::new("GET", "/bucket/made")).await;
    made.is(404, "NoSuchKey");
    server.finish().await;
}

#[tokio::test]
async fn a_failure_says_what_the_function_said() {
    let (server, _executor) = start().await;
    let answer = run(&server, FAILS, "").await;
    answer.is(400, "InvalidRequest");
    assert!(answer.text().contains("not today"), "{}", answer.text());
    assert_eq!(answer.element("ProgramCode").as_deref(), Some("42"));
    assert_eq!(answer.header("x-forebay-program-code"), Some("42"));
    assert_eq!(answer.header("x-forebay-logs"), Some("%0Aa%20line%0A"));
    // Of many logs the last.
    let many = format!("<Argument>{}</Argument>", "y".repeat(5000));
    let answer = run(&server, FAILS, &many).await;
    let logs = answer.header("x-forebay-logs").unwrap();
    let end = "%00%0Aa%20line%0A";
    assert_eq!(logs, "y".repeat(4096 - 9) + end);
    server.finish().await;
}

#[tokio::test]
async fn requests_that_are_none_are_refused() {
    let (server, _executor) = start().await;
    let many = "<Input><Key>key</Key></Input>".repeat(64);
    let long = format!("<Argument>{}</Argument>", "x".repeat(1 << 20));
    for (more, status, code) in [
        ("<Operation>1</Operation>", 400, "MalformedXML"),
        ("<Module>op10</Module>", 400, "MalformedXML"),
        ("<Surprise/>", 400, "MalformedXML"),
        (
            "<Argument>a</Argument><Arguments>YQ==</Arguments>",
            400,
            "MalformedXML",
        ),
        ("<Arguments>?</Arguments>", 400, "MalformedXML"),
        ("<Input/>", 400, "MalformedXML"),
        ("<Output/>", 400, "MalformedXML"),
        ("<Capacity>-1</Capacity>", 400, "MalformedXML"),
        ("<Capacity>16777217</Capacity>", 400, "InvalidArgument"),
        (
            "<Capacity>18446744073709551615</Capacity>",
            400,
            "InvalidArgument",
        ),
        (many.as_str(), 400, "MalformedXML"),
        (long.as_str(), 400, "MaxMessageLengthExceeded"),
        ("<Input><Key>none</Key></Input>", 404, "NoSuchKey"),
        (
            "<Input><Bucket>none</Bucket><Key>key</Key></Input>",
            404,
            "NoSuchBucket",
        ),
        (
            "<Input><Key>key</Key><Range>lines=1</Range></Input>",
            400,
            "InvalidArgument",
        ),
        (
            "<Input><Key>key</Key><Range>bytes=99-</Range></Input>",
            416,
            "InvalidRange",
        ),
        (
            "<Output><Bucket>none</Bucket><Key>key</Key></Output>",
            404,
            "NoSuchBucket",
        ),
    ] {
        let answer = run(&server, ECHO, more).await;
        assert_eq!(
            answer.refusal(),
            (status, code.to_owned()),
            "{}: {}",
            &more[..more.len().min(80)],
            answer.text()
        );
    }
    for condition in ["if-match", "if-none-match"] {
        let asked = request(ECHO, "").header(condition, "*");
        server.ask(ALPHA, asked).await.is(400, "InvalidRequest");
    }
    let none = Ask::new("POST", "/bucket/key?execute").body("<ExecuteRequest/>");
    server.ask(ALPHA, none).await.is(400, "MalformedXML");
    let empty = Ask::new("POST", "/bucket/key?execute");
    server.ask(ALPHA, empty).await.is(400, "MalformedXML");
    let digest = "<ExecuteRequest><Module>sha256:12</Module></ExecuteRequest>";
    let digest = Ask::new("POST", "/bucket/key?execute").body(digest);
    server.ask(ALPHA, digest).await.is(400, "InvalidArgument");
    run(&server, 99, "").await.is(403, "AccessDenied");
    server
        .anonymous(request(ECHO, ""))
        .await
        .is(403, "AccessDenied");
    let get = Ask::new("GET", "/bucket/key?execute");
    is(&server.ask(ALPHA, get).await, b"some value");
    is_unharmed(&server).await;
    server.finish().await;
}

#[tokio::test]
async fn functions_that_do_harm_are_stopped_and_others_go_on() {
    let (server, _executor) = start().await;
    for (operation, what, _, ends) in HOSTILE {
        let more = match operation == HOSTILE[0].0 {
            true => "<DeadlineMilliseconds>500</DeadlineMilliseconds>",
            false => "",
        };
        let answer = timeout(SOON, run(&server, operation, more)).await;
        let answer = answer.unwrap_or_else(|_| panic!("it {what}, and is not stopped"));
        answer.is(400, "InvalidRequest");
        let words = answer.element("Message").unwrap();
        let stopped = words.starts_with("the function was stopped: ");
        assert_eq!(stopped, ends == Ends::Stopped, "it {what}: {words}");
        is_unharmed(&server).await;
    }
    run(&server, 29, "").await.is(400, "InvalidRequest");
    server.finish().await;
}

#[tokio::test]
async fn what_is_another_tenants_is_reached_by_no_function() {
    let (server, _executor) = start().await;
    // Neither as the object of the request, nor beside it, nor as the place of the output.
    server
        .ask(BETA, request(ECHO, ""))
        .await
        .is(404, "NoSuchBucket");
    let body = "<ExecuteRequest><Operation>10</Operation></ExecuteRequest>";
    let own = Ask::new("PUT", "/theirs/key").body(b"theirs");
    assert_eq!(server.ask(BETA, own).await.status, 200);
    let theirs = |more: &str| {
        let body = body.replace("</ExecuteRequest>", &format!("{more}</ExecuteRequest>"));
        Ask::new("POST", "/theirs/key?execute").body(body)
    };
    for more in [
        "<Input><Bucket>bucket</Bucket><Key>key</Key></Input>",
        "<Output><Bucket>bucket</Bucket><Key>key</Key></Output>",
    ] {
        server.ask(BETA, theirs(more)).await.is(404, "NoSuchBucket");
    }
    // The module is theirs elsewhere alone.
    server.ask(BETA, theirs("")).await.is(403, "AccessDenied");
    // A policy opens objects to them, and not to their functions.
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket/*"}]}"#;
    let opened = Ask::new("PUT", "/bucket?policy").body(policy);
    assert!(server.ask(ALPHA, opened).await.status < 300);
    assert_eq!(
        server
            .ask(BETA, Ask::new("GET", "/bucket/key"))
            .await
            .status,
        200
    );
    server
        .ask(BETA, request(ECHO, ""))
        .await
        .is(404, "NoSuchBucket");
    server
        .anonymous(request(ECHO, ""))
        .await
        .is(403, "AccessDenied");
    // What a policy denies to its owner's keys, it denies to their functions.
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::other/*"},{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::other/*"}]}"#;
    let closed = Ask::new("PUT", "/other?policy").body(policy);
    assert!(server.ask(ALPHA, closed).await.status < 300);
    for more in [
        "<Input><Bucket>other</Bucket><Key>key</Key></Input>",
        "<Output><Bucket>other</Bucket><Key>new</Key></Output>",
    ] {
        run(&server, ECHO, more).await.is(403, "AccessDenied");
    }
    // Nor does an output tell whether what may not be read has this entity tag.
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::other/*"}]}"#;
    let closed = Ask::new("PUT", "/other?policy").body(policy);
    assert!(server.ask(ALPHA, closed).await.status < 300);
    let output = "<Output><Bucket>other</Bucket><Key>key</Key></Output>";
    for (tag, status) in [("\"tag\"", 403), ("*", 200)] {
        let ask = request(ECHO, output).header("if-match", tag);
        assert_eq!(server.ask(ALPHA, ask).await.status, status, "{tag}");
    }
    is_unharmed(&server).await;
    server.finish().await;
}

#[tokio::test]
async fn a_store_that_runs_nothing_says_so() {
    let server = Server::start().await;
    server.make_bucket("bucket").await;
    server.put("/bucket/key", b"value").await;
    let answer = server.ask(ALPHA, request(ECHO, "")).await;
    answer.is(501, "NotImplemented");
    server.finish().await;
}

#[tokio::test]
async fn the_object_that_is_read_is_the_one_that_was_judged() {
    let (server, _executor) = start().await;
    let policy = r#"{"Statement":{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket/*","Condition":{"StringEquals":{"s3:ExistingObjectTag/secret":"yes"}}}}"#;
    let policy = Ask::new("PUT", "/bucket?policy").body(policy);
    assert_eq!(server.ask(ALPHA, policy).await.status, 204);
    is_unharmed(&server).await;
    let ask = request(LENGTH, "").header("expect", "100-continue");
    let (head, body) = ask.parts(ALPHA, server.now_ms());
    let mut slow = server.connect().await;
    slow.send(head.as_bytes()).await;
    // It is let in, and waited for.
    assert_eq!(slow.answer(false).await.status, 100);
    let secret = Ask::new("PUT", "/bucket/key").header("x-amz-tagging", "secret=yes");
    assert_eq!(server.ask(ALPHA, secret.body("hidden")).await.status, 200);
    slow.send(&body).await;
    slow.answer(false).await.is(403, "AccessDenied");
    let other = format!(
        "<ExecuteRequest><Operation>{ECHO}</Operation><Input><Bucket>bucket</Bucket><Key>key</Key></Input></ExecuteRequest>"
    );
    let other = Ask::new("POST", "/other/key?execute").body(&other);
    server.ask(ALPHA, other).await.is(403, "AccessDenied");
    server.finish().await;
}

#[tokio::test]
async fn a_function_stops_when_its_client_goes() {
    let (server, executor) = start_patiently().await;
    let load = async |load: (usize, usize)| {
        while executor.load() != load {
            yield_now().await;
        }
    };
    for more in ["", "<Output><Key>made</Key></Output>"] {
        let endless = HOSTILE[0].0;
        let (head, body) = request(endless, more).parts(ALPHA, server.now_ms());
        let mut client = server.connect().await;
        client.send(head.as_bytes()).await;
        client.send(&body).await;
        let runs = timeout(SOON, load((0, 1))).await;
        runs.expect("it runs");
        drop(client);
        let stops = timeout(SOON, load((0, 0))).await;
        stops.expect("it stops");
    }
    is_unharmed(&server).await;
    server.finish().await;
}

#[tokio::test]
async fn a_key_that_is_deleted_meanwhile_is_told_nothing() {
    // Once for the signature, once when the request is here.
    const LOOKS: usize = 2;
    for operation in [ECHO, FAILS] {
        let (server, _executor) = start().await;
        server.delete_key_after(ALPHA, LOOKS);
        let answer = run(&server, operation, "").await;
        answer.is(403, "InvalidAccessKeyId");
        assert_eq!(answer.header("x-forebay-logs"), None);
        server.finish().await;
    }
}

#[tokio::test]
async fn output_that_nobody_reads_is_all_that_its_tenant_gets() {
    const LONG: usize = 16 << 20;
    let (server, _executor) = start_patiently().await;
    put(&server, "/bucket/key", &vec![b'x'; LONG]).await;
    let bytes = request(ECHO, "").signed(ALPHA, server.now_ms());
    let mut slow = server.connect().await;
    slow.send(&bytes).await;
    // Its head is here, and no connection holds all of the rest.
    assert!(slow.more().await);
    run(&server, ECHO, "").await.is(503, "SlowDown");
    drop(slow);
    let others = async { while run(&server, ECHO, "").await.status != 200 {} };
    timeout(SOON, others).await.expect("it is let go");
    server.finish().await;
}
