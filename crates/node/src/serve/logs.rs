//! Log lines on standard error, and traces to a collector.

use std::io;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use super::args::{LogFormat, ServeArgs};
use crate::exit::{Exit, Failure, Outcome};

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// What must be ended for the last traces to leave; nothing when there are none.
pub struct Logs {
    #[cfg(feature = "otlp")]
    traces: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Logs {
    /// Starts logging for this process. Within a runtime, which then carries the traces.
    pub fn start(args: &ServeArgs) -> Outcome<Logs> {
        let filter = filter(&args.log_level).map_err(|error| {
            Failure::new(
                Exit::Usage,
                format_args!("--log-level {}: {error}", args.log_level),
            )
        })?;
        let lines: Boxed = match args.log_format {
            LogFormat::Text => fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .with_filter(filter.clone())
                .boxed(),
            LogFormat::Json => fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(io::stderr)
                .with_filter(filter.clone())
                .boxed(),
        };
        #[cfg(feature = "otlp")]
        let (more, traces) = match &args.otlp {
            Some(url) => {
                let (layer, provider) = traces(url, filter)?;
                (Some(layer), Some(provider))
            }
            None => (None, None),
        };
        #[cfg(not(feature = "otlp"))]
        let more = None;
        let layers: Vec<Boxed> = std::iter::once(lines).chain(more).collect();
        tracing_subscriber::registry()
            .with(layers)
            .try_init()
            .map_err(|error| Failure::new(Exit::Failed, error))?;
        Ok(Logs {
            #[cfg(feature = "otlp")]
            traces,
        })
    }

    /// Sends the traces that are still here.
    pub async fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(provider) = self.traces {
            // It waits for its sender, which this runtime drives.
            let ended = tokio::task::spawn_blocking(move || {
                provider.shutdown_with_timeout(std::time::Duration::from_secs(1))
            });
            if let Ok(Err(error)) = ended.await {
                tracing::warn!(%error, "the last traces were not sent");
            }
        }
    }
}

/// What is logged. A word that is no level is a mistake: it would be taken for a target, and all others would be silent.
fn filter(levels: &str) -> Result<Targets, String> {
    for word in levels.split(',').filter(|word| !word.contains('=')) {
        LevelFilter::from_str(word).map_err(|_| format!("{word:?} is no level"))?;
    }
    Targets::from_str(levels).map_err(|error| error.to_string())
}

#[cfg(feature = "otlp")]
fn traces(
    url: &str,
    filter: Targets,
) -> Outcome<(Boxed, opentelemetry_sdk::trace::SdkTracerProvider)> {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_otlp::WithExportConfig as _;

    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .build()
        .map_err(|error| Failure::new(Exit::Usage, format_args!("--otlp {url}: {error}")))?;
    let resource = opentelemetry_sdk::Resource::builder()
        .with_service_name("forebay")
        .build();
    let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build();
    // Whoever asks for traces wants every request's, whatever is logged.
    let filter = filter.with_target("forebay_s3", tracing::Level::DEBUG);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("forebay"))
        .with_filter(filter)
        .boxed();
    Ok((layer, provider))
}
