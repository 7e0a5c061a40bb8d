//! What the figures were measured on.

use std::fs;
use std::path::Path;

use crate::tool::{command, output};

/// A line about the machine, and one about its load when the run began.
pub fn describe(folder: &Path) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpu, "model name").unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = output(
        command("stat")
            .args(["--file-system", "--format=%T"])
            .arg(folder),
    )
    .unwrap_or_default();
    // proc(5) field 19, the 17th after the name in parentheses.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let nice = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(16));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    format!(
        "{cores} cores of {model}, {} GiB of memory, Linux {}, data on {}. Everything at nice {}; load averages when the run began: {}.",
        memory_kib("MemTotal").div_ceil(1 << 20),
        // The rest is whose build it is.
        kernel.trim().split('-').next().unwrap_or_default(),
        system.trim().replace("ext2/ext3", "ext4"),
        nice.unwrap_or("0"),
        load.join(", "),
    )
}

/// Memory that can be had without anything being given up for it, in MiB; 0 where the system does not say.
pub fn available_mib() -> u64 {
    memory_kib("MemAvailable") >> 10
}

fn memory_kib(name: &str) -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&memory, name)
        .and_then(|text| text.trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}
