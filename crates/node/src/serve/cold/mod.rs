//! The cold tier of a node: where it is, who tends it, and its administration.

mod admin;
mod credentials;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use forebay_bench::Size;
use forebay_client::Tls;
use forebay_control::{ColdTier, SYSTEM_NAMESPACE, store_name};
use forebay_mem::Pool;
use forebay_tier::cold::{Bucket, Cold, ColdUrl, Config};
use prometheus_client::registry::Registry;
use tokio::runtime::{Builder, Runtime};

use self::admin::Administered;
use self::metrics::ColdMetrics;
use super::UnixClock;
use super::args::ServeArgs;
use super::leaf::Leaf;
use super::limits;
use crate::exit::{Exit, Failure, Outcome};

/// A copy in the bucket is nobody's when nothing referred to it for a day, or for as long as what was replaced may be read.
const GRACE_MS: u64 = 24 * 3600 * 1000;
/// With less, a large value on its way holds more than the share of those that go its way.
const BUFFER_BYTES_MIN: usize = 64 << 20;
/// How long the far side may take to delete the copies of what ended last: a part of the time that closing has.
const LAST_TIDY: Duration = Duration::from_secs(1);
/// The file of DIR that keeps when values were read last.
const READS: &str = "reads";

/// The flag.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cold tier")]
pub struct ColdArgs {
    /// Where bytes go that policies send away (`forebay admin tier`): s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME, with
    /// profile=NAME and credentials=FILE, else AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else ~/.aws/credentials
    #[arg(long, value_name = "URL", value_parser = ColdUrl::parse)]
    pub cold: Option<ColdUrl>,
}

/// The layer, and the thread that its connections and its work live on.
pub struct ColdSide {
    /// Over the leaf; a branch when there is no cold tier.
    pub store: Cold<Leaf>,
    runtime: Option<Runtime>,
}

impl ColdSide {
    /// Over a leaf, with a bucket when one is named. Nothing is asked of the bucket yet: a server starts without it.
    pub async fn open(
        args: &ServeArgs,
        leaf: &Leaf,
        pool: &Pool,
        clock: &UnixClock,
    ) -> Outcome<ColdSide> {
        let leaf = Arc::new(leaf.clone());
        let Some(url) = &args.far.cold else {
            return Ok(ColdSide {
                store: Cold::off(leaf),
                runtime: None,
            });
        };
        let wrong = |message: String| Failure::new(Exit::Usage, format!("--cold: {message}"));
        let buffer_bytes = usize::try_from(limits::pool_bytes(args)).unwrap_or(usize::MAX);
        if buffer_bytes < BUFFER_BYTES_MIN {
            let least = Size(BUFFER_BYTES_MIN as u64);
            return Err(wrong(format!("at least {least} of --memory are asked for")));
        }
        let (url, secret) = credentials::find(url).map_err(wrong)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("forebay-cold")
            .enable_all()
            .build()
            .map_err(Failure::io("cannot start the cold tier's thread"))?;
        let tls = match url.needs_tls(secret.as_ref()) {
            true => Some(Tls::new(url.ca.as_deref())?.config()),
            false => None,
        };
        let objects = url.open(secret, tls, runtime.handle()).map_err(wrong)?;
        let home = url.home(&store_name(&leaf).await?);
        tracing::info!(bucket = url.bucket, home, "cold tier");
        let config = Config {
            pool: pool.clone(),
            clock: clock.clone(),
            runtime: runtime.handle().clone(),
            reads: (!leaf.is_shared()).then(|| args.dir.join(READS)),
            shared: leaf.is_shared().then(|| SYSTEM_NAMESPACE.to_owned()),
            buffer_bytes,
            grace_ms: GRACE_MS.max(1000 * u64::from(args.ceph.ceph_grace)),
        };
        let store = Cold::new(leaf, Bucket::new(objects, &home), config);
        if let Some(mover) = store.mover().cloned() {
            runtime.spawn(async move { mover.tend().await });
        }
        Ok(ColdSide {
            store,
            runtime: Some(runtime),
        })
    }

    /// Its administration.
    pub fn administered(&self) -> Option<Arc<dyn ColdTier>> {
        let mover = self.store.mover()?.clone();
        let store = self.store.clone();
        Some(Arc::new(Administered { store, mover }))
    }

    /// Adds its metrics.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(mover) = self.store.mover() {
            registry.register_collector(Box::new(ColdMetrics(mover.clone())));
        }
    }

    /// Ends its work, before the leaf closes; blocking. What is half done counts for nothing.
    pub fn close(self) {
        let (Some(mover), Some(runtime)) = (self.store.mover(), &self.runtime) else {
            return;
        };
        mover.save();
        let last = async { tokio::time::timeout(LAST_TIDY, mover.close()).await };
        if runtime.block_on(last) != Ok(true) {
            tracing::warn!("cold copies of values that ended may be left to a sweep");
        }
    }
}

impl Drop for ColdSide {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
