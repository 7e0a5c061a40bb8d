//! The console: what a monitor or a browser asks of this process.

use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::http::{Answer, Asked, WORDS_BYTES_MAX, serve};
use super::listeners::Listeners;
use crate::exit::Outcome;

/// Serves `/metrics`, `/healthz` and `/readyz`, until `ending`: whoever asks before then hears that the process is `stopping`.
pub fn open(
    listeners: &Listeners,
    registry: Arc<RwLock<Registry>>,
    stopping: &watch::Receiver<bool>,
    ending: &watch::Receiver<bool>,
) -> Outcome {
    let Some(bound) = &listeners.console else {
        return Ok(());
    };
    let listener = bound.watched()?;
    let stopped = stopping.clone();
    let handle = move |asked: Asked| {
        let answer = answer(&asked, &registry, *stopped.borrow());
        async move { answer }
    };
    tokio::spawn(serve(listener, handle, WORDS_BYTES_MAX, ending.clone()));
    Ok(())
}

fn answer(asked: &Asked, registry: &RwLock<Registry>, stopping: bool) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET" | "HEAD", "/healthz") => Answer::text(200, "ok\n"),
        ("GET" | "HEAD", "/readyz") if stopping => Answer::text(503, "draining\n"),
        ("GET" | "HEAD", "/readyz") => Answer::text(200, "ready\n"),
        ("GET" | "HEAD", "/metrics") => {
            let mut text = String::new();
            match prometheus_client::encoding::text::encode(&mut text, &registry.read()) {
                Ok(()) => Answer {
                    status: 200,
                    content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    body: text.into_bytes(),
                },
                Err(error) => Answer::text(500, format!("{error}\n")),
            }
        }
        ("GET" | "HEAD", "/") => Answer::text(200, "forebay\n/metrics\n/healthz\n/readyz\n"),
        ("GET" | "HEAD", _) => Answer::text(404, "not found\n"),
        _ => Answer::text(405, "only GET\n"),
    }
}
