//! What is logged of a request names it as its answer does.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use forebay_s3::Config;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_default;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::Server;

/// The request ids that spans and warnings have.
#[derive(Clone, Default)]
struct Log {
    spans: Arc<Mutex<Vec<String>>>,
    warnings: Arc<Mutex<Vec<String>>>,
}

struct Ids<'a>(&'a Mutex<Vec<String>>);

impl Visit for Ids<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "request_id" {
            let text = format!("{value:?}").trim_matches('"').to_owned();
            self.0.lock().unwrap().push(text);
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Ids(&self.spans));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::WARN {
            event.record(&mut Ids(&self.warnings));
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
