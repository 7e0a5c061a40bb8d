//! The cache before the leaf, as a node opens and tends it.

pub mod flags;
pub mod metrics;

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_control::SYSTEM_NAMESPACE;
use forebay_engine::{Engine, OpenError};
use forebay_io::files::Directory;
use forebay_io::{Clock, SystemClock};
use forebay_mem::Pool;
use forebay_store::Store;
use forebay_tier::{Config, Tier, Trust, buffer_bytes};

use self::flags::{CacheArgs, CacheDisk};
use super::UnixClock;
use super::args::ServeArgs;
use super::held::patiently;
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
    // It has the keys of all tenants.
    config.off_disk = vec![SYSTEM_NAMESPACE.to_owned()];
    Ok(match open_disk(disk, pool)? {
        Some(engine) => Tier::with_disk(store, config, Some(pool), engine),
        None => Tier::new(store, config, Some(pool)),
    })
}

/// Memory for buffers that the flags ask for beside the rest, in bytes: what is kept, and what is on its way there.
pub fn memory_bytes(args: &CacheArgs) -> u64 {
    let disk = args.cache_disk.is_some();
    args.cache_memory
        .map_or(0, |size| buffer_bytes(size.0, disk))
}

/// What goes on beside the calls, for ever.
pub async fn tend<S: Store>(tier: &Tier<S>) -> Infallible {
    tier.tend().await;
    std::future::pending().await
}

/// The cache's disk; `None` when it fails. It has nothing that the backend does not have: no damage to it keeps a server from
/// starting.
fn open_disk(disk: &CacheDisk, pool: &Pool) -> Outcome<Option<Engine<Directory>>> {
    let place = disk.dir.display();
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&disk.dir);
    match made {
        Err(cause) if is_of_a_failed_disk(&cause) => {
            return Ok(without(disk, &"making the directory", &cause));
        }
        made => made.map_err(Failure::io(&place))?,
    }
    let config = forebay_engine::Config {
        // The tier's own memory is before it.
        cache_bytes: 0,
        index_cache_bytes: DISK_INDEX_BYTES,
        recent_bytes: DISK_INDEX_BYTES as u64,
        capacity_bytes: disk.size.0.saturating_add(disk.size.0 / DISK_SPARE),
        ..forebay_engine::Config::default()
    };
    let clock = Arc::new(SystemClock::default());
    let open = || {
        let directory = Directory::open(&disk.dir).map_err(|cause| OpenError::Io {
            what: "opening the directory",
            cause,
        })?;
        Engine::open(directory, clock.clone(), pool.clone(), config.clone())
    };
    let is_held = |error: &OpenError| matches!(error, OpenError::Locked(_));
    let mut opened = patiently(open, is_held);
    if let Err(error) = &opened
        && is_damage(error)
    {
        let aside = match put_aside(&disk.dir, clock.unix_millis()) {
            Ok(aside) => aside,
            Err(cause) => return Ok(without(disk, &error, &cause)),
        };
        tracing::error!(
            %error,
            aside = %aside.display(),
            "the cache's disk is damaged: it begins empty; what there was may be removed"
        );
        opened = patiently(open, is_held);
    }
    match opened {
        Ok(engine) => Ok(Some(engine)),
        Err(OpenError::Io { what, cause }) => Ok(without(disk, &what, &cause)),
        Err(OpenError::ReadOnly(cause)) if is_of_a_failed_disk(&cause) => {
            Ok(without(disk, &"writing", &cause))
        }
        Err(error) => Err(refused(&place, &error)),
    }
}

/// Whether the system says so of a disk that fails: of some it makes the file system one that is only read.
fn is_of_a_failed_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

fn without(disk: &CacheDisk, what: &impl Display, cause: &io::Error) -> Option<Engine<Directory>> {
    let place = disk.dir.display();
    tracing::error!(disk = %place, %what, %cause, "the cache goes on without its disk");
    None
}

/// Whether what is in a directory cannot be used.
fn is_damage(error: &OpenError) -> bool {
    match error {
        OpenError::Version { .. }
        | OpenError::NotAStore
        | OpenError::NoIndex
        | OpenError::Mismatch
        | OpenError::Journal { .. }
        | OpenError::Index(_)
        | OpenError::Store(_) => true,
        OpenError::Locked(_) | OpenError::ReadOnly(_) | OpenError::Io { .. } => false,
    }
}

/// Moves an engine's files in a directory into a new one in it. Nothing is deleted: it may be somebody's store after all.
fn put_aside(dir: &Path, now: u64) -> io::Result<PathBuf> {
    let aside = dir.join(format!("damaged-{now}"));
    fs::create_dir(&aside)?;
    for name in forebay_engine::FILES {
        match fs::rename(dir.join(name), aside.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            moved => moved?,
        }
    }
    Ok(aside)
}
