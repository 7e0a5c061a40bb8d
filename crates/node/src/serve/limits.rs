//! What this machine allows, and what follows for the defaults.

use std::fs;
use std::thread;

use rustix::process::{Resource, getrlimit, setrlimit};

use super::args::ServeArgs;
use super::cache;

/// The most shards that are made unasked.
const SHARDS_MAX: usize = 16;
/// Bounds of the default for buffer memory, in bytes.
const POOL_DEFAULT_MIN: u64 = 64 << 20;
const POOL_DEFAULT_MAX: u64 = 1 << 30;

/// Buffer memory, in bytes.
pub struct Memory {
    /// Of all buffers.
    pub pool: usize,
    /// Of those, what may keep values read before.
    pub cache: u64,
}

impl Memory {
    /// As asked for, or fitting the machine.
    pub fn of(args: &ServeArgs) -> Memory {
        let pool = pool_bytes(args);
        Memory {
            pool: usize::try_from(pool.saturating_add(cache::memory_bytes(&args.before)))
                .unwrap_or(usize::MAX),
            // Requests in flight always find the rest.
            cache: args.cache.map_or(pool / 2, |size| size.0),
        }
    }
}

/// Buffer memory beside what a cache before the backend has: as asked for, or fitting the machine.
pub fn pool_bytes(args: &ServeArgs) -> u64 {
    let eighth = machine_bytes() / 8;
    let usual = eighth.clamp(POOL_DEFAULT_MIN, POOL_DEFAULT_MAX);
    args.memory.map_or(usual, |size| size.0)
}

/// One a core, at most [`SHARDS_MAX`].
pub fn shards() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(SHARDS_MAX))
}

/// Raises the bound on open descriptors as far as the system lets us.
pub fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the bound on open descriptors stays");
    }
}

/// The memory that this process may use: the machine's, or its control group's share.
pub fn machine_bytes() -> u64 {
    let total = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(POOL_DEFAULT_MAX * 8, |kib| kib * 1024);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    group.map_or(total, |group| group.min(total))
}
