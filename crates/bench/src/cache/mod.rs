//! A cache's hit ratio on a trace: ours as it runs in a node, beside simulations of what was published and of the best possible.

mod belady;
mod generated;
mod picture;
mod source;
mod trace;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_store::{Address, Body, ByteRange, NamespaceConfig, Store};
use forebay_tier::policy::{Lru, Policy, S3Fifo, Slot, WTinyLfu};
use forebay_tier::{Config, PolicyKind, Tier};
use serde::Serialize;

use crate::{Error, Results, Size};
use source::Blocks;

const NAMESPACE: &str = "blocks";

/// Arguments of `forebay bench cache`.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArgs {
    /// Requests as JSON lines with the numbers of their blocks in `hash_ids`, as Mooncake publishes them [default: made up after
    /// that trace's published figures]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Sizes of the cache
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64MiB,192MiB,320MiB,640MiB"
    )]
    pub cache: Vec<Size>,
    /// Size of a block: a cache of 320MiB holds 5120 of 64KiB
    #[arg(long, default_value = "64KiB")]
    pub block: Size,
    /// What leaves our cache: s3-fifo, w-tinylfu or lru
    #[arg(long, value_name = "NAME", default_value = "s3-fifo", value_parser = policy)]
    pub policy: PolicyKind,
    /// Draw the ratios as SVG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// One JSON object a size
    #[arg(long)]
    pub json: bool,
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    PolicyKind::from_label(text)
        .ok_or_else(|| format!("{text:?} is not one of s3-fifo, w-tinylfu, lru"))
}

/// Hit ratios at one size of the cache, each of all blocks asked for.
#[derive(Clone, Debug, Serialize)]
pub struct CachePoint {
    /// Which trace.
    pub trace: String,
    /// Blocks asked for.
    pub asked: u64,
    /// Different ones among them.
    pub distinct: u64,
    /// Of a block, in bytes.
    pub block: u64,
    /// Of the cache, in bytes.
    pub cache: u64,
    /// Ours: the whole layer, its own overhead paid from the same memory.
    pub tier: f64,
    /// S3-FIFO as published, simulated.
    pub s3_fifo: f64,
    /// W-TinyLFU as published, simulated.
    pub w_tinylfu: f64,
    /// The least recently used leaves, simulated.
    pub lru: f64,
    /// Whoever knows the future (Belady).
    pub optimum: f64,
    /// A cache that holds everything.
    pub ceiling: f64,
    /// Reads of the store below.
    pub fills: u64,
}

impl fmt::Display for CachePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cache {} of {:>7}: tier {:5.1} %  s3-fifo {:5.1} %  w-tinylfu {:5.1} %  lru {:5.1} %  optimum {:5.1} %  ceiling {:5.1} %",
            self.trace,
            Size(self.cache).to_string(),
            self.tier * 100.0,
            self.s3_fifo * 100.0,
            self.w_tinylfu * 100.0,
            self.lru * 100.0,
            self.optimum * 100.0,
            self.ceiling * 100.0,
        )
    }
}

/// Replays the trace at every size.
///
/// # Errors
/// When the trace cannot be read, or a size is none.
pub(crate) fn run(args: &CacheArgs, results: &Results) -> Result<(), Error> {
    if args.block.0 == 0 || args.cache.iter().any(|size| size.0 < args.block.0) {
        return Err(Error::Usage(
            "a cache holds at least one block, which has at least one byte".to_owned(),
        ));
    }
    let (name, asked) = match &args.trace {
        Some(path) => trace::read(path)?,
        None => ("generated".to_owned(), generated::conversation()),
    };
    let distinct = asked.iter().collect::<std::collections::HashSet<_>>().len();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(Error::io("start a runtime"))?;
    let of_all = |hits: u64| hits as f64 / (asked.len() as f64).max(1.0);
    let point = |cache: Size| {
        let (bytes, block) = (cache.0, args.block.0);
        let (hits, fills) = runtime.block_on(replay(&asked, bytes, block, args.policy))?;
        Ok(CachePoint {
            trace: name.clone(),
            asked: asked.len() as u64,
            distinct: distinct as u64,
            block,
            cache: bytes,
            tier: of_all(hits),
            s3_fifo: of_all(simulate(S3Fifo::published(bytes), &asked, bytes, block)),
            w_tinylfu: of_all(simulate(WTinyLfu::new(bytes), &asked, bytes, block)),
            lru: of_all(simulate(Lru::default(), &asked, bytes, block)),
            optimum: of_all(belady::hits(&asked, bytes / block)),
            ceiling: of_all((asked.len() - distinct) as u64),
            fills,
        })
    };
    let mut points = Vec::new();
    for &size in &args.cache {
        let point = point(size)?;
        results.add(point.clone());
        points.push(point);
    }
    if let Some(path) = &args.picture {
        std::fs::write(path, picture::draw(&points))
            .map_err(Error::io(format!("write {}", path.display())))?;
    }
    Ok(())
}

/// Hits of our cache, and how often it read the store below.
async fn replay(
    asked: &[u64],
    bytes: u64,
    block: u64,
    policy: PolicyKind,
) -> Result<(u64, u64), Error> {
    let failed = |error: forebay_store::StoreError| Error::Protocol {
        what: "replaying".to_owned(),
        reason: error.to_string(),
    };
    let store = Arc::new(Blocks::new(block));
    let mut config = Config::new(bytes, Arc::new(|| 1));
    config.policy = policy;
    let tier = Tier::new(store, config, None);
    tier.create_namespace(NAMESPACE, NamespaceConfig::default())
        .await
        .map_err(failed)?;
    for number in asked {
        let key = number.to_be_bytes();
        let address = Address::object(NAMESPACE, &key);
        let found = tier.retrieve(address, None, ByteRange::Full).await;
        let mut body = found.map_err(failed)?.body;
        while body.next().await.map_err(failed)?.is_some() {}
    }
    let metrics = tier.metrics().unwrap_or_default();
    // A block of more than one piece counts when all of it was there.
    Ok((asked.len() as u64 - metrics.fills, metrics.fills))
}

/// Hits of a policy by itself, for items that weigh what their bytes do.
fn simulate(mut policy: impl Policy, asked: &[u64], bytes: u64, block: u64) -> u64 {
    let mut held: HashMap<u64, Slot> = HashMap::new();
    let mut of: HashMap<Slot, u64> = HashMap::new();
    let mut hits = 0;
    for number in asked {
        if let Some(slot) = held.get(number) {
            policy.touch(*slot);
            hits += 1;
            continue;
        }
        let slot = policy.insert(mixed(*number), block);
        held.insert(*number, slot);
        of.insert(slot, *number);
        while policy.weight() > bytes
            && let Some((gone, _)) = policy.evict()
        {
            if let Some(number) = of.remove(&gone) {
                held.remove(&number);
            }
        }
    }
    hits
}

/// A print as hashes have it, from a number that is small (splitmix64).
pub(super) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measured;

    #[test]
    fn ours_keeps_up_with_what_was_published_and_nobody_beats_the_optimum() {
        let args = CacheArgs {
            trace: None,
            cache: vec![Size(2048 * 16_384)],
            block: Size(16_384),
            policy: PolicyKind::S3Fifo,
            picture: None,
            json: false,
        };
        let (results, mut points) = Results::channel();
        run(&args, &results).expect("replayed");
        let Ok(Measured::Cache(point)) = points.try_recv() else {
            panic!("no ratios");
        };
        let best = point.s3_fifo.max(point.w_tinylfu);
        // A block of 16 KiB pays a sixteenth for its overhead; the figures are taken with larger ones.
        assert!(point.tier >= 0.9 * best, "{point}");
        for ratio in [point.tier, point.s3_fifo, point.w_tinylfu, point.lru] {
            assert!(
                ratio <= point.optimum && point.optimum <= point.ceiling,
                "{point}"
            );
        }
    }
}
