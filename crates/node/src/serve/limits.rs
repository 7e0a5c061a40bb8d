//! What this machine allows, and what follows for the defaults.

use std::fs;
use std::path::Path;
use std::thread;

use rustix::process::{Resource, getrlimit, setrlimit};

use super::args::ServeArgs;
use super::cache;

/// The most shards that are made unasked.
const SHARDS_MAX: usize = 16;
/// Bounds of the default for buffer memory, in bytes.
const POOL_DEFAULT_MIN: u64 = 64 << 20;
const POOL_DEFAULT_MAX: u64 = 1 << 30;
/// So many descriptors are left at least for what no bound on connections counts: files, the console, administration, a cluster.
const DESCRIPTORS_LEFT: u64 = 256;

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

/// The flags, with as many connections at once as there are descriptors for.
pub fn within_descriptors(args: &ServeArgs) -> ServeArgs {
    let descriptors = getrlimit(Resource::Nofile).current;
    let asked = args.connections;
    let most = descriptors.and_then(|most| u32::try_from(connections_within(most)).ok());
    let connections = most.map_or(asked, |most| asked.min(most));
    if connections < asked {
        tracing::warn!(
            asked,
            connections,
            descriptors,
            "fewer connections at once: more would take descriptors (ulimit -n) that the rest needs"
        );
    }
    ServeArgs {
        connections,
        ..args.clone()
    }
}

/// Of so many descriptors a quarter is left for the rest, or as many as that needs, but no more than a half; the gRPC door counts its
/// connections apart.
fn connections_within(descriptors: u64) -> u64 {
    let left = (descriptors / 4).max(DESCRIPTORS_LEFT);
    let left = left.min(descriptors / 2);
    ((descriptors - left) / 2).max(1)
}

/// Raises the bound on open descriptors as far as the system lets us.
pub fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the bound on open descriptors stays");
    }
}

/// The memory that this process may use: the machine's, or the share of the control groups that it is in.
pub fn machine_bytes() -> u64 {
    let total = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(POOL_DEFAULT_MAX * 8, |kib| kib * 1024);
    group_bytes(Path::new("/")).map_or(total, |group| group.min(total))
}

/// The least that a control group (version 2) of this process may use, as files below `root` say.
fn group_bytes(root: &Path) -> Option<u64> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let all = root.join("sys/fs/cgroup");
    let own = all.join(own.unwrap_or_default());
    // A group that is not to be seen from here has no file, and one without a bound has no number.
    let bound = |group: &Path| fs::read_to_string(group.join("memory.max")).ok();
    let groups = own.ancestors().take_while(|group| group.starts_with(&all));
    let bounds = groups.filter_map(|group| bound(group)?.trim().parse().ok());
    bounds.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        let bounds = [(0, 1), (1, 1), (128, 32), (1024, 384), (65_536, 24_576)];
        for (descriptors, connections) in bounds {
            assert_eq!(connections_within(descriptors), connections);
        }
    }

    #[test]
    fn the_least_bound_of_the_groups_above_counts() {
        const MIB: u64 = 1 << 20;
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(group_bytes(root), None);
        // A container: its own group is the only one that it sees, whatever that is called outside.
        write("sys/fs/cgroup/memory.max", &format!("{}\n", 2048 * MIB));
        assert_eq!(group_bytes(root), Some(2048 * MIB));
        write("proc/self/cgroup", "0::/system.slice/forebay.service\n");
        assert_eq!(group_bytes(root), Some(2048 * MIB));
        // A service of systemd, whose slice has a bound, too, or not.
        let group = "sys/fs/cgroup/system.slice/forebay.service/memory.max";
        let slice = "sys/fs/cgroup/system.slice/memory.max";
        write(group, &format!("{}\n", 512 * MIB));
        write(slice, "max\n");
        assert_eq!(group_bytes(root), Some(512 * MIB));
        write(slice, &format!("{}\n", 256 * MIB));
        assert_eq!(group_bytes(root), Some(256 * MIB));
        // Groups of version 1 beside it say nothing here.
        let hierarchies = "9:memory:/elsewhere\n0::/system.slice/forebay.service\n";
        write("proc/self/cgroup", hierarchies);
        assert_eq!(group_bytes(root), Some(256 * MIB));
    }
}
