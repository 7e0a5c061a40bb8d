//! The cache before the leaf, as a node opens and tends it.

pub mod flags;
pub mod metrics;

use std::convert::Infallible;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;

use forebay_engine::Engine;
use forebay_io::SystemClock;
use forebay_io::files::Directory;
use forebay_mem::Pool;
use forebay_store::Store;
use forebay_tier::{Config, Tier, Trust, buffer_bytes};

use self::flags::{CacheArgs, CacheDisk};
use super::UnixClock;
use super::args::ServeArgs;
use super::leaf::refused;
use crate::exit::{Failure, Outcome};

/// What the index of the cache's disk may keep in memory, in bytes.
const DISK_INDEX_BYTES: usize = 32 << 20;
/// Room on the disk beside the values: what is free, and what is being replaced.
const DISK_SPARE: u64 = 8;
const MS_DEFAULT: u64 = 1000;

/// A cache before `store`, if the flags say so.
pub fn open<S: Store>(
    store: Arc<S>,
    args: &ServeArgs,
    pool: &Pool,
    clock: UnixClock,
) -> Outcome<Tier<S>> {
    let lose_journal_from = args.lose_journal_from;
    let args = &args.before;
    let Some(memory) = args.cache_memory else {
        return Ok(Tier::off(store));
    };
    let mut config = Config::new(memory.0, clock);
    config.trust = match args.cache_strict {
        true => Trust::Strict,
        false => Trust::Within(args.cache_trust.unwrap_or(MS_DEFAULT)),
    };
    config.policy = args.cache_policy.unwrap_or_default();
    config.ttl_ms = args.cache_ttl;
    config.pins = args.cache_pin.iter().map(|pin| pin.0.clone()).collect();
    config.shares = args
        .cache_share
        .iter()
        .map(|share| share.0.clone())
        .collect();
    config.write_back_bytes = args.cache_write_back.map_or(0, |size| size.0);
    let Some(disk) = &args.cache_disk else {
        return Ok(Tier::new(store, config, Some(pool)));
    };
    config.disk_bytes = disk.size.0;
    let engine = open_disk(disk, lose_journal_from, pool)?;
    Ok(Tier::with_disk(store, config, Some(pool), engine))
}

/// Memory for buffers that the flags ask for beside the rest, in bytes: what is kept, and what is on its way there.
pub fn memory_bytes(args: &CacheArgs) -> u64 {
    let disk = args.cache_disk.is_some();
    args.cache_memory
        .map_or(0, |size| buffer_bytes(size.0, disk))
}

/// What goes on beside the calls, for ever.
pub async fn tend<S: Store>(tier: &Tier<S>) -> Infallible {
    if let Err(error) = tier.tend().await {
        tracing::error!(%error, "the cache goes on without its disk");
    }
    std::future::pending().await
}

fn open_disk(
    disk: &CacheDisk,
    lose_journal_from: Option<u64>,
    pool: &Pool,
) -> Outcome<Engine<Directory>> {
    let place = disk.dir.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&disk.dir)
        .map_err(Failure::io(&place))?;
    let directory = Directory::open(&disk.dir).map_err(Failure::io(&place))?;
    let config = forebay_engine::Config {
        // The tier's own memory is before it.
        cache_bytes: 0,
        index_cache_bytes: DISK_INDEX_BYTES,
        recent_bytes: DISK_INDEX_BYTES as u64,
        capacity_bytes: disk.size.0.saturating_add(disk.size.0 / DISK_SPARE),
        lose_journal_from,
        ..forebay_engine::Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    Engine::open(directory, clock, pool.clone(), config).map_err(|error| refused(&place, &error))
}
