//! What runs functions for all stores of a process: threads, modules that are ready, who may run what.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_io::Clock;
use forebay_mem::Pool;
use parking_lot::RwLock;

use crate::Limits;
use crate::allowed::{AllowList, Allowed};
use crate::brief::Places;
use crate::ending::Ending;
use crate::inputs::window_bytes;
use crate::metrics::Metrics;
use crate::programs::Programs;
use crate::room::Rooms;
use crate::runtime::Runtime;
use crate::workers::Workers;

/// What runs modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Runs {
    /// The best there is in this build.
    #[default]
    Best,
    /// The interpreter.
    Interpreted,
}

/// Where compiled modules are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// The directory, which nobody else may write to; it is made when it is missing.
    pub folder: PathBuf,
    /// What is left to others of its file system, in bytes: a module is not kept when that would take some of it.
    pub spare_bytes: u64,
}

/// Runs functions.
pub struct Executor {
    pub(crate) limits: Limits,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) workers: Workers,
    pub(crate) places: Places,
    pub(crate) programs: Arc<Programs>,
    pub(crate) pool: Pool,
    pub(crate) window_bytes: usize,
    pub(crate) rooms: Rooms,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    allowed: RwLock<Arc<AllowList>>,
}

/// Why there is no executor.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The runtime does not work here.
    #[error("cannot run modules: {0}")]
    Runtime(#[from] Ending),
    /// There are no threads to be had.
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
}

impl Executor {
    /// Starts its threads. Compiled modules are kept where `keeping` says, when the runtime compiles. Until [`Executor::allow`] says
    /// otherwise, nothing may run.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        limits: Limits,
        runs: Runs,
        keeping: Option<Keeping>,
        pool: Pool,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Executor>, StartError> {
        let runtime = runtime(&limits, runs, keeping)?;
        Ok(Arc::new(Executor {
            workers: Workers::start(&limits)?,
            places: Places::new(limits.here()),
            window_bytes: window_bytes(pool.usage().limit, limits.threads),
            rooms: Rooms::new(limits.waiting_output_bytes),
            runtime,
            limits,
            programs: Arc::default(),
            pool,
            clock,
            metrics: Metrics::default(),
            allowed: RwLock::default(),
        }))
    }

    /// Says which modules may run where, instead of all that was said before. Calls that have begun go on.
    pub fn allow(&self, all: impl IntoIterator<Item = Allowed>) {
        *self.allowed.write() = Arc::new(AllowList::new(all));
    }

    /// Its bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What runs modules: `wasmi`, `wasmtime`.
    pub fn runtime(&self) -> &'static str {
        self.runtime.name()
    }

    /// Calls that wait for a thread, and calls that have one.
    pub fn load(&self) -> (usize, usize) {
        self.workers.load()
    }

    pub(crate) fn allowed(&self) -> Arc<AllowList> {
        self.allowed.read().clone()
    }
}

/// Refuses bytes that are no module that could run within `limits`, whichever runtime it will be.
///
/// # Errors
/// [`Ending::NoProgram`].
pub fn check(limits: &Limits, wasm: &[u8]) -> Result<(), Ending> {
    if wasm.len() as u64 > limits.module_bytes {
        let max = limits.module_bytes;
        return Err(Ending::NoProgram(format!(
            "a module has at most {max} bytes"
        )));
    }
    crate::interpreter::Interpreter::new(limits.clone())?
        .compile(&forebay_store::ModuleDigest([0; 32]), wasm)
        .map(drop)
}

#[cfg(not(feature = "wasm-jit"))]
fn runtime(
    limits: &Limits,
    runs: Runs,
    keeping: Option<Keeping>,
) -> Result<Arc<dyn Runtime>, Ending> {
    // An interpreter keeps nothing.
    let (Runs::Best | Runs::Interpreted, _) = (runs, keeping);
    Ok(Arc::new(crate::interpreter::Interpreter::new(
        limits.clone(),
    )?))
}

#[cfg(feature = "wasm-jit")]
fn runtime(
    limits: &Limits,
    runs: Runs,
    keeping: Option<Keeping>,
) -> Result<Arc<dyn Runtime>, Ending> {
    Ok(match runs {
        Runs::Best => Arc::new(crate::jit::Jit::new(limits.clone(), keeping)?),
        Runs::Interpreted => Arc::new(crate::interpreter::Interpreter::new(limits.clone())?),
    })
}
