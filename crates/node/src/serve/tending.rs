//! Background work of a node, and the same work on demand.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_control::api::{LifecycleReport, ScrubReport, Server};
use forebay_control::{ColdTier, Error, Kind, Node, Result};
use forebay_s3::Door;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

use super::UnixClock;
use super::leaf::Leaf;
use super::stack::Stack;

/// How often the leaf gets to do a bounded piece of work.
const SWEEP: Duration = Duration::from_secs(5);
/// How often lifecycle rules are applied: their unit is a day.
const LIFECYCLE: Duration = Duration::from_secs(3600);

/// Tends a leaf and its S3 door.
pub struct Tending {
    leaf: Leaf,
    cold: Option<Arc<dyn ColdTier>>,
    door: Arc<Door<Stack>>,
    clock: UnixClock,
    server: Server,
    begun: Instant,
    /// One scrub at a time: two would only take each other's disk.
    scrubbing: tokio::sync::Mutex<()>,
}

impl Tending {
    /// `server` describes the process; its uptime counts from now.
    pub fn new(
        leaf: Leaf,
        cold: Option<Arc<dyn ColdTier>>,
        door: Arc<Door<Stack>>,
        clock: UnixClock,
        server: Server,
    ) -> Tending {
        Tending {
            leaf,
            cold,
            door,
            clock,
            server,
            begun: Instant::now(),
            scrubbing: tokio::sync::Mutex::new(()),
        }
    }

    /// Does what is due, for ever.
    pub async fn tend(&self) -> Infallible {
        // Side by side: to apply the rules of large buckets may take hours.
        let sweeping = async {
            let mut ticks = every(SWEEP);
            loop {
                ticks.tick().await;
                self.leaf.sweep().await;
            }
        };
        let expiring = async {
            let mut ticks = every(LIFECYCLE);
            loop {
                ticks.tick().await;
                let report = self.apply_lifecycle().await;
                tracing::info!(?report, "lifecycle rules applied");
            }
        };
        tokio::select! {
            never = sweeping => never,
            never = expiring => never,
        }
    }

    async fn apply_lifecycle(&self) -> LifecycleReport {
        let done = self.door.lifecycle_sweep((self.clock)()).await;
        LifecycleReport {
            expired: done.expired,
            versions: done.versions,
            markers: done.markers,
            uploads: done.uploads,
            failed: done.failed,
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Node for Tending {
    fn server(&self) -> Server {
        Server {
            uptime_s: self.begun.elapsed().as_secs(),
            ..self.server.clone()
        }
    }

    fn scrub(&self) -> Pin<Box<dyn Future<Output = Result<ScrubReport>> + Send + '_>> {
        Box::pin(async {
            let Ok(_alone) = self.scrubbing.try_lock() else {
                return Err(Error::new(Kind::Limit, "a scrub is under way already"));
            };
            Ok(self.leaf.scrub().await?)
        })
    }

    fn check_module(&self, wasm: &[u8]) -> std::result::Result<(), String> {
        let checked = forebay_exec::check(&forebay_exec::Limits::default(), wasm);
        checked.map_err(|ending| ending.to_string())
    }

    fn cold_tier(&self) -> Option<Arc<dyn ColdTier>> {
        self.cold.clone()
    }

    fn lifecycle_run(&self) -> Pin<Box<dyn Future<Output = Result<LifecycleReport>> + Send + '_>> {
        Box::pin(async { Ok(self.apply_lifecycle().await) })
    }
}
