//! What executing counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::{Effort, ErrorKind, Executed, StoreError};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::Executor;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// What is counted call by call.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Family<Outcome, Counter>,
    /// Of these, calls that ran in their tasks.
    pub here: Counter<u64, AtomicU64>,
    seconds: Histogram,
    read: Counter<u64, AtomicU64>,
    written: Counter<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            calls: Family::default(),
            here: Counter::default(),
            // 5 us to 24 s in factors of 3.
            seconds: Histogram::new((0..15).map(|step| 5e-6 * 3f64.powi(step))),
            read: Counter::default(),
            written: Counter::default(),
        }
    }
}

impl Metrics {
    pub fn ended(&self, executed: &Result<Executed, StoreError>) {
        let outcome = match executed.as_ref().map_err(StoreError::kind) {
            Ok(_) => "done",
            Err(ErrorKind::Denied) => "denied",
            Err(ErrorKind::ProgramStopped) => "stopped",
            Err(ErrorKind::ProgramFailed) => "failed",
            Err(ErrorKind::Busy) => "busy",
            Err(_) => "refused",
        };
        self.calls.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn took(&self, effort: &Effort, written: u64) {
        self.seconds
            .observe(Duration::from_nanos(effort.nanos).as_secs_f64());
        self.read.inc_by(effort.read);
        self.written.inc_by(written);
    }
}

impl Executor {
    /// Adds its metrics.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        let metrics = &self.metrics;
        registry.register(
            "forebay_exec_calls",
            "Functions that were to be executed, by what came of it",
            metrics.calls.clone(),
        );
        registry.register(
            "forebay_exec_here",
            "Functions that ran in the task of their call, short ones, without a thread of their own",
            metrics.here.clone(),
        );
        registry.register_with_unit(
            "forebay_exec_thread",
            "Time for which a call had a thread, or its task",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register_with_unit(
            "forebay_exec_read",
            "Bytes of inputs that functions read",
            Unit::Bytes,
            metrics.read.clone(),
        );
        registry.register_with_unit(
            "forebay_exec_written",
            "Bytes that functions wrote",
            Unit::Bytes,
            metrics.written.clone(),
        );
        registry.register_collector(Box::new(Load(self.clone())));
    }
}

/// What is read when it is asked for.
struct Load(Arc<Executor>);

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Load")
    }
}

impl Collector for Load {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        let (waiting, running) = self.0.workers.load();
        let programs = &self.0.programs;
        for (name, help, value) in [
            (
                "forebay_exec_waiting",
                "Calls that wait for a thread",
                waiting,
            ),
            ("forebay_exec_running", "Calls that have a thread", running),
            (
                "forebay_exec_modules",
                "Modules that are ready to run",
                programs.len(),
            ),
        ] {
            let gauge = ConstGauge::new(value as u64);
            let described = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(described)?;
        }
        for (name, help, value) in [
            (
                "forebay_exec_modules_found",
                "Times that a module was ready",
                &programs.found,
            ),
            (
                "forebay_exec_modules_restored",
                "Times that a module was compiled by a former process",
                &programs.restored,
            ),
            (
                "forebay_exec_modules_compiled",
                "Times that a module had to be compiled",
                &programs.compiled,
            ),
        ] {
            let counter = ConstCounter::new(value.load(Relaxed));
            let described = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(described)?;
        }
        Ok(())
    }
}
