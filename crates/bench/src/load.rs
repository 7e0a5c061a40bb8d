//! What all closed loops have in common: threads, the window that is measured, and what was seen in it.

use std::fmt::Display;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{Error, Histogram, Point, cpu};

/// When operations count: those that end between the end of the warm-up and the end of the window.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    begin: Instant,
    /// None: when the work is done.
    end: Option<Instant>,
}

impl Window {
    /// A window of this length after a warm-up that begins now.
    pub(crate) fn after(warm_up: Duration, length: Duration) -> Window {
        let begin = Instant::now() + warm_up;
        Window {
            begin,
            end: Some(begin + length),
        }
    }

    /// From now on, until the work is done.
    pub(crate) fn open() -> Window {
        Window {
            begin: Instant::now(),
            end: None,
        }
    }

    /// Whether nothing more is to be begun.
    pub(crate) fn is_over(self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end)
    }

    /// How much `cpu` grows within it, seen by this thread, which sleeps until it is over. None: when it has no end, or nothing is told.
    fn growth(self, cpu: impl Fn() -> Option<Duration>) -> Option<Duration> {
        let sleep_until = |at: Instant| thread::sleep(at.saturating_duration_since(Instant::now()));
        let end = self.end?;
        sleep_until(self.begin);
        let before = cpu()?;
        sleep_until(end);
        Some(cpu()?.saturating_sub(before))
    }

    /// The CPU time that a process takes within it, seen by a thread of its own: one that makes load looks when its operations let it.
    pub(crate) fn watch(
        self,
        cpu: impl Fn() -> Option<Duration> + Send + 'static,
    ) -> Result<Watch, Error> {
        let thread = thread::Builder::new().name("forebay-bench-cpu".to_owned());
        let thread = thread.spawn(move || self.growth(cpu));
        thread.map(Watch).map_err(Error::io("start a thread"))
    }

    /// Whether what ends now counts.
    pub(crate) fn measures(self, now: Instant) -> bool {
        now >= self.begin && !self.is_over(now)
    }
}

/// The CPU time of a process, being watched.
pub(crate) struct Watch(thread::JoinHandle<Option<Duration>>);

impl Watch {
    /// Waits, blocking, until the window is over.
    pub(crate) fn used(self) -> Option<Duration> {
        let joined = self.0.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// How long a worker keeps the thread that it shares: long beside what it costs to give way, short beside any window.
const TURN: Duration = Duration::from_micros(100);

/// A worker's turn. One whose operations never wait would leave the others of its thread none.
pub(crate) struct Turn(Instant);

impl Turn {
    pub(crate) fn begin() -> Turn {
        Turn(Instant::now())
    }

    /// To be called after each operation: gives way when the turn is over.
    pub(crate) async fn may_end(&mut self, now: Instant) {
        if now - self.0 >= TURN {
            tokio::task::yield_now().await;
            *self = Turn::begin();
        }
    }
}

/// What happened within a window.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) latency: Histogram,
    /// Operations that succeeded; of a batch each value or key counts.
    pub(crate) done: u64,
    /// Payload of these.
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    /// CPU time of the generating threads, where it is told apart.
    pub(crate) client_cpu: Option<Duration>,
    /// CPU time of the server's process, where it is known.
    pub(crate) server_cpu: Option<Duration>,
}

impl Tally {
    /// One operation, or one batch of `done`, has succeeded, and moved so many bytes.
    pub(crate) fn succeeded(&mut self, took: Duration, done: u64, bytes: u64) {
        self.latency.record(took);
        self.done += done;
        self.bytes += bytes;
    }

    /// One has not.
    pub(crate) fn failed(&mut self, error: impl Display) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// As a result.
    pub(crate) fn point(self, of: About) -> Point {
        let bytes = self.bytes as f64;
        let per_gb = |cpu: Duration| (bytes > 0.0).then(|| cpu.as_secs_f64() / (bytes / 1e9));
        Point {
            bench: of.bench,
            op: of.op,
            size: of.size,
            concurrency: of.concurrency,
            path: of.path,
            seconds: self.seconds,
            ops_per_s: self.done as f64 / self.seconds,
            mb_per_s: bytes / 1e6 / self.seconds,
            p50_us: self.latency.quantile_us(0.5),
            p99_us: self.latency.quantile_us(0.99),
            p999_us: self.latency.quantile_us(0.999),
            client_cpu_s_per_gb: self.client_cpu.and_then(per_gb),
            server_cpu_s_per_gb: self.server_cpu.and_then(per_gb),
            copied_bytes: None,
            errors: self.errors,
            first_error: self.first_error,
        }
    }

    /// Adds what another thread saw in the same window.
    pub(crate) fn add(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.done += other.done;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        if let Some(used) = other.client_cpu {
            *self.client_cpu.get_or_insert_default() += used;
        }
    }
}

/// What a point is about; as there.
pub(crate) struct About {
    pub(crate) bench: &'static str,
    pub(crate) op: &'static str,
    pub(crate) size: u64,
    pub(crate) concurrency: usize,
    pub(crate) path: &'static str,
}

/// The CPU time of the thread that works, within the window.
#[derive(Default)]
pub(crate) struct CpuClock {
    begin: Option<Duration>,
    used: Option<Duration>,
}

impl CpuClock {
    /// Looks at the time; to be called often.
    pub(crate) fn look(&mut self, window: Window, now: Instant) {
        if now < window.begin {
            return;
        }
        let begin = *self.begin.get_or_insert_with(cpu::this_thread);
        if self.used.is_none() && window.is_over(now) {
            self.used = Some(cpu::this_thread().saturating_sub(begin));
        }
    }

    /// What was used when the work is done.
    pub(crate) fn used(&self) -> Duration {
        let so_far = || {
            self.begin
                .map(|begin| cpu::this_thread().saturating_sub(begin))
        };
        self.used.or_else(so_far).unwrap_or_default()
    }
}

/// Runs `work` on so many threads, which it gets the number of, and adds up. Of the process `server_pid` the CPU time within the
/// window is told.
pub(crate) fn on_threads(
    threads: usize,
    window: Window,
    server_pid: Option<u32>,
    work: impl Fn(usize) -> Result<Tally, Error> + Sync,
) -> Result<Tally, Error> {
    let work = &work;
    let (results, server_cpu) = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || work(index)))
            .collect();
        let server_cpu = window.growth(|| server_pid.and_then(cpu::process));
        let results: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let joined = worker.join();
                joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        (results, server_cpu)
    });
    let mut tally = Tally {
        server_cpu,
        seconds: window
            .end
            .map_or_else(|| window.begin.elapsed(), |end| end - window.begin)
            .as_secs_f64(),
        ..Tally::default()
    };
    for result in results {
        tally.add(result?);
    }
    Ok(tally)
}

/// One operation in flight at a time.
pub(crate) trait Caller: Send + 'static {
    type Error: Display + Send;

    /// Makes one operation, or a batch of as many as it says.
    fn call(&mut self) -> impl Future<Output = Result<u64, Self::Error>> + Send;
}

/// Has these callers work side by side on this thread until the window is over; each of their operations moves `bytes`. They are tasks of
/// their own, as programs have them: what a runtime runs itself it looks at only after it has asked the system for events.
pub(crate) async fn side_by_side(window: Window, callers: Vec<impl Caller>, bytes: u64) -> Tally {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut works = JoinSet::new();
    for mut caller in callers {
        let tally = tally.clone();
        works.spawn(async move {
            loop {
                let started = Instant::now();
                if window.is_over(started) {
                    return;
                }
                let done = caller.call().await;
                let ended = Instant::now();
                if !window.measures(ended) {
                    continue;
                }
                let mut tally = tally.lock();
                match done {
                    Ok(done) => tally.succeeded(ended - started, done, done * bytes),
                    Err(error) => tally.failed(error),
                }
            }
        });
    }
    let mut clock = CpuClock::default();
    for end in [Some(window.begin), window.end].into_iter().flatten() {
        tokio::time::sleep_until(end.into()).await;
        clock.look(window, Instant::now());
    }
    works.join_all().await;
    Tally {
        client_cpu: Some(clock.used()),
        ..std::mem::take(&mut *tally.lock())
    }
}

/// Runs something on this thread, with a runtime of its own.
pub(crate) fn alone<T>(what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start a runtime"))?;
    runtime.block_on(what)
}
