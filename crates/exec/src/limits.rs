//! The bounds that every call is held to.

use std::time::Duration;

/// How much a call, a tenant, and all calls together may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Threads that run functions.
    pub threads: usize,
    /// Of these, how many one tenant may have at a time; the others stay free for its neighbours.
    pub threads_per_tenant: usize,
    /// Calls of one tenant that may wait for a thread; more are refused as busy.
    pub waiting_per_tenant: usize,
    /// How long a call may take, its time in the queue and its waits for the store included, but for the commit of its output.
    pub deadline: Duration,
    /// A module whose calls take less of a thread is tried in the tasks of the next ones; no time, none is.
    pub short: Duration,
    /// Linear memory of an instance, in bytes.
    pub memory_bytes: usize,
    /// The stack of a call, in bytes.
    pub stack_bytes: usize,
    /// Elements of each table; there may be a few of them.
    pub table_elements: usize,
    /// Bytes that a function may write, whatever of them reaches the caller.
    pub output_bytes: u64,
    /// Bytes of the outputs that are in buffers, or wait there for those who asked for them, together. A tenant has no more of them than
    /// is free beside what it has.
    pub waiting_output_bytes: usize,
    /// Bytes of logs that are kept.
    pub log_bytes: usize,
    /// The longest module, in bytes.
    pub module_bytes: u64,
    /// Modules that are kept ready, as bytes of WebAssembly.
    pub ready_bytes: u64,
}

/// The most inputs of one call.
pub const INPUTS_MAX: usize = 64;
/// The most bytes of the name of a function, or of a module.
pub const NAME_BYTES_MAX: usize = 255;
/// The most bytes of arguments of one call.
pub const ARGUMENTS_BYTES_MAX: usize = 1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            threads: cores + 1,
            threads_per_tenant: cores,
            waiting_per_tenant: 256,
            deadline: Duration::from_secs(10),
            short: Duration::from_micros(100),
            memory_bytes: 64 << 20,
            stack_bytes: 512 << 10,
            table_elements: 10_000,
            output_bytes: 1 << 30,
            waiting_output_bytes: 32 << 20,
            log_bytes: 64 << 10,
            module_bytes: 16 << 20,
            ready_bytes: 64 << 20,
        }
    }
}

impl Limits {
    /// Calls that run outside of these threads at a time, in the tasks that made them.
    pub(crate) fn here(&self) -> usize {
        self.threads.max(1)
    }

    /// Instances that there are at a time, at most.
    pub(crate) fn instances(&self) -> usize {
        self.threads.max(1) + self.here()
    }
}
