//! CPU time of a thread and of a process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// User and system time of the calling thread so far.
pub(crate) fn this_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// User and system time of all threads of this process so far.
pub(crate) fn this_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// User and system time of all threads of a process so far, to a clock tick (10 ms); `None` when there is no such process.
pub(crate) fn process(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks(&stat)?;
    Some(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// The sum of `utime` and `stime`, proc(5) fields 14 and 15. The name before them may hold spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user = fields.next()?.parse::<u64>().ok()?;
    let system = fields.next()?.parse::<u64>().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_shift_its_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 5 6 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn a_thread_that_works_uses_time() {
        let before = this_thread();
        while this_thread() == before {}
        assert!(process(std::process::id()).is_some());
        assert!(process(u32::MAX).is_none());
    }
}
