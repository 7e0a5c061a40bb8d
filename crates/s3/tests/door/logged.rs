//! What is logged of a request names it as its answer does, and says what failed.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use forebay_s3::Config;
use forebay_store::suite::{Around, Detour};
use forebay_store::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes as Fields, Id, Record};
use tracing::subscriber::set_default;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::{ALPHA, Ask, START_MS, Server};

/// The request ids that spans and warnings have, and the causes that warnings tell.
#[derive(Clone, Default)]
struct Log {
    spans: Arc<Mutex<Vec<String>>>,
    warnings: Arc<Mutex<Vec<String>>>,
    causes: Arc<Mutex<Vec<String>>>,
}

/// Takes down the field of this name.
struct Of<'a>(&'static str, &'a Mutex<Vec<String>>);

impl Visit for Of<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.0 {
            let text = format!("{value:?}").trim_matches('"').to_owned();
            self.1.lock().unwrap().push(text);
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Fields<'_>) -> Id {
        span.record(&mut Of("request_id", &self.spans));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::WARN {
            event.record(&mut Of("request_id", &self.warnings));
            event.record(&mut Of("cause", &self.causes));
        }
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn the_log_names_a_request_as_its_answer_does() {
    let log = Log::default();
    let _logging = set_default(log.clone());
    // A door that is full answers every request by an error, which is logged.
    let config = Config {
        requests_in_flight: 0,
        ..Config::default()
    };
    let server = Server::with(config, u64::MAX).await;
    let mut told = Vec::new();
    for target in ["/", "/bucket", "/bucket/key"] {
        let answer = server.get(target).await;
        answer.is(503, "SlowDown");
        told.push(answer.header("x-amz-request-id").expect("an id").to_owned());
    }
    assert_eq!(*log.spans.lock().unwrap(), told);
    assert_eq!(*log.warnings.lock().unwrap(), told);
    server.finish().await;
}

/// What a store says over a cluster that does not answer.
const SAID: &str = "\"a\\nkey\": the cluster did not answer in time";

#[derive(Clone)]
struct Silent;

impl Detour<MemoryStore> for Silent {
    async fn retrieve(
        &self,
        _: &MemoryStore,
        _: Address<'_>,
        _: Option<VersionId>,
        _: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        Err(StoreError::new(ErrorKind::Io, SAID))
    }

    async fn commit(&self, _: MemoryUpload, _: Seal) -> Result<Stored> {
        Err(StoreError::new(ErrorKind::OutcomeUnknown, SAID))
    }

    async fn delete(&self, _: &MemoryStore, _: Address<'_>, _: DeleteOptions) -> Result<Deleted> {
        Err(StoreError::new(ErrorKind::OutcomeUnknown, SAID))
    }
}

#[tokio::test]
async fn what_a_store_fails_at_reaches_the_client_and_the_log() {
    let log = Log::default();
    let _logging = set_default(log.clone());
    let clock = Arc::new(AtomicU64::new(START_MS));
    let wrap = |store| Around {
        store,
        detour: Silent,
    };
    let server = Server::over(Config::default(), u64::MAX, clock, wrap, None).await;
    server.make_bucket("bucket").await;
    let unknown = format!("Whether the request took effect is not known: {SAID}");
    let delete = "<Delete><Object><Key>one</Key></Object><Object><Key>two</Key></Object></Delete>";
    let mut told = Vec::new();
    for (ask, kind, words) in [
        (Ask::new("GET", "/bucket/key"), "Io", SAID),
        (
            Ask::new("PUT", "/bucket/key").body("value"),
            "OutcomeUnknown",
            unknown.as_str(),
        ),
        (
            Ask::new("DELETE", "/bucket/key"),
            "OutcomeUnknown",
            unknown.as_str(),
        ),
        // Each key has an outcome of its own, and the log one line for all.
        (
            Ask::new("POST", "/bucket?delete").body(delete),
            "OutcomeUnknown",
            unknown.as_str(),
        ),
    ] {
        let answer = server.ask(ALPHA, ask).await;
        assert_eq!(answer.element("Code").as_deref(), Some("InternalError"));
        let message = answer.element("Message").expect("words");
        assert_eq!(message.replace("&quot;", "\""), words);
        told.push(kind);
    }
    let causes = log.causes.lock().unwrap().clone();
    assert_eq!(causes.len(), told.len(), "{causes:?}");
    for (cause, kind) in causes.iter().zip(told) {
        assert!(cause.contains(kind), "{cause}");
        assert!(cause.contains("the cluster did not answer"), "{cause}");
        assert!(!cause.contains('\n'), "{cause}");
    }
    server.finish().await;
}
