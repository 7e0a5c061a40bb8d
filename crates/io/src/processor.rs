//! Where a thread runs.

/// The number of the processor that the calling thread runs on at this moment; it may run on another one at the next.
pub fn processor() -> usize {
    rustix::thread::sched_getcpu()
}
