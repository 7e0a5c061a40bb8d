//! What runs modules. Two do: an interpreter, and behind the feature `wasm-jit` a compiler to machine code; a function cannot
//! tell them apart.

use std::sync::Arc;

use forebay_store::ModuleDigest;

use crate::Limits;
use crate::ending::{Bound, Ending};
use crate::host::Host;

/// Makes programs of modules.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// Words for a person: `wasmi`, `wasmtime`.
    fn name(&self) -> &'static str;

    /// The program that was made of this module before, if it was kept, and how long the module was.
    fn restore(&self, digest: &ModuleDigest) -> Option<(Arc<dyn Program>, u64)> {
        let _ = digest;
        None
    }

    /// Makes a program; takes its time.
    ///
    /// # Errors
    /// [`Ending::NoProgram`].
    fn compile(&self, digest: &ModuleDigest, wasm: &[u8]) -> Result<Arc<dyn Program>, Ending>;
}

/// A module that is ready to run.
pub(crate) trait Program: Send + Sync + 'static {
    /// Runs one of its functions in a fresh instance, on this thread. The host comes back with whatever came of it.
    fn run(&self, function: &str, host: Host) -> (Host, Result<(), Ending>);

    /// How many bytes of code the longest of its functions has.
    fn longest(&self) -> u64;
}

/// The function that sets a module up, when it has one.
pub(crate) const INITIALIZE: &str = "_initialize";
/// What memories are called.
pub(crate) const MEMORY: &str = "memory";
/// Where rados-nkv puts the object, and finds the result.
pub(crate) const NKV_OBJECT: usize = 256;
pub(crate) const NKV_RESULT: i32 = 8;
/// The page of WebAssembly.
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// Memory that a function may have in the task of its call: one instruction goes over all of it, and nothing looks at the time meanwhile.
const HERE_MEMORY_BYTES: usize = 4 << 20;
/// Tables of an instance.
pub(crate) const TABLES_MAX: usize = 8;

/// No function of that name, or of no type that can be called.
pub(crate) fn no_function(name: &str) -> Ending {
    Ending::NoProgram(format!(
        "the module exports no function {name:?} that can be called"
    ))
}

/// What a code that a function returned says.
pub(crate) fn by_code(code: i32) -> Result<(), Ending> {
    match code {
        0 => Ok(()),
        code => Err(Ending::Failed {
            code,
            words: String::new(),
        }),
    }
}

impl Host {
    /// Whether an instance's memory may grow to so many bytes; notes the most that it had. `None` when it may elsewhere, and the
    /// call ends here.
    pub(crate) fn memory_may_grow(&mut self, desired: usize, limits: &Limits) -> Option<bool> {
        let may = self.may_grow(desired, limits.memory_bytes);
        if may && desired > HERE_MEMORY_BYTES && self.exchange.is_here() {
            self.ended = Some(Ending::TooLong);
            return None;
        }
        if may {
            self.memory_peak = self.memory_peak.max(desired);
        }
        Some(may)
    }

    /// Why its memory did not grow.
    pub(crate) fn no_memory(&mut self) -> Ending {
        let by_host = self.ended.take();
        by_host.unwrap_or(Ending::Stopped(Bound::Memory))
    }

    /// Whether one of its tables may grow to so many elements.
    pub(crate) fn table_may_grow(&mut self, desired: usize, limits: &Limits) -> bool {
        self.may_grow(desired, limits.table_elements)
    }

    /// Remembers a refusal, which tells why what follows went wrong.
    fn may_grow(&mut self, desired: usize, max: usize) -> bool {
        let may = desired <= max;
        self.refused |= !may;
        may
    }

    /// A trap after memory was refused is for want of memory.
    pub(crate) fn blame(&self, ending: Ending) -> Ending {
        match (self.refused, ending) {
            (true, Ending::Trapped(_) | Ending::NoProgram(_)) => Ending::Stopped(Bound::Memory),
            (_, ending) => ending,
        }
    }

    /// How long the first input is, for a memory of `max` bytes to hold it at [`NKV_OBJECT`].
    pub(crate) fn nkv_object(&self, max: usize) -> Result<usize, Ending> {
        let size = self.inputs.get(0).map_or(0, |input| input.size);
        match usize::try_from(size) {
            Ok(len) if len.saturating_add(NKV_OBJECT) <= max => Ok(len),
            _ => Err(Ending::Stopped(Bound::Memory)),
        }
    }

    /// Puts the first input where a function of rados-nkv expects it.
    pub(crate) fn nkv_load(&mut self, target: &mut [u8]) -> Result<(), Ending> {
        match target.is_empty() {
            true => Ok(()),
            false => self.inputs.copy(&mut self.exchange, 0, 0, target),
        }
    }

    /// Takes the result of a function of rados-nkv out of its memory.
    pub(crate) fn nkv_result(&mut self, memory: &mut [u8], len: i32) -> Result<(), Ending> {
        match len {
            ..0 => by_code(len),
            len => self.write(memory, NKV_RESULT, len),
        }
    }
}
