//! What a server costs while nobody asks it for anything.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bench::figures::Check;

/// CPU and memory of an idle process.
pub struct Idle {
    /// Share of one core, in percent.
    pub cpu_percent: f64,
    /// Resident memory in MiB.
    pub rss_mib: f64,
}

const CPU_PERCENT_MAX: f64 = 0.1;
const RSS_MIB_MAX: f64 = 64.0;

impl Idle {
    /// What is asked of a server that has just started.
    pub fn check(&self) -> Check {
        let met = self.cpu_percent <= CPU_PERCENT_MAX && self.rss_mib <= RSS_MIB_MAX;
        let verdict = if met { "met" } else { "missed" };
        Check {
            text: format!(
                "asked at most {CPU_PERCENT_MAX} % of a core and {RSS_MIB_MAX} MiB when just started: {verdict}"
            ),
            met,
        }
    }
}

/// How long the process is watched.
pub const WATCHED: Duration = Duration::from_secs(20);

/// Watches a process for [`WATCHED`].
pub fn watch(pid: u32) -> Result<Idle> {
    let before = run_ns(pid)?;
    sleep(WATCHED);
    let used = run_ns(pid)?.saturating_sub(before);
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss_kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .and_then(|text| text.trim().parse().ok())
        .context("no VmRSS in the process' status")?;
    Ok(Idle {
        cpu_percent: used as f64 / WATCHED.as_nanos() as f64 * 100.0,
        rss_mib: rss_kib / 1024.0,
    })
}

/// Nanoseconds that the threads of a process have run; finer than the clock ticks of `/proc/PID/stat`, of which an idle server
/// uses none.
fn run_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let ns = text.split(' ').next().unwrap_or_default();
        sum += ns.parse::<u64>().context("schedstat")?;
    }
    Ok(sum)
}
