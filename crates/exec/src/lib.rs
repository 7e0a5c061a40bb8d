//! Runs a Wasm module beside the data.
//!
//! - [`Exec`]: the layer. A store like the one below it, whose [`execute`](forebay_store::Store::execute) works.
//! - [`Executor`]: what runs functions for the layers of a process: threads, modules that are ready, who may run what.
//! - [`Allowed`]: leave for one module, by its SHA-256, to run over the values of a tenant or of one of its namespaces. What has
//!   none does not run.
//! - [`Limits`]: time, memory, stack, output, logs, threads.
//! - [`Ending`]: why a call ended before it was done.
//!
//! What a module may import and how it is called is in `docs/execute.md`. Functions run on threads of their own (`workers`): the
//! task of the caller reads inputs and stores the output meanwhile (`service`, over `exchange`), so that neither a shard waits
//! for a function nor the store's futures leave their shard. Those that are known to be short run in the task itself (`brief`).
//! Two runtimes stand behind one trait (`runtime`): an interpreter, and with the feature `wasm-jit` a compiler.
//!
//! # What it does not do
//! It proves no identity and keeps no records: the caller's tenant comes with the call, leaves come from the control plane.
//!
//! # Invariants
//! A function reads what the call names and nothing else, and all that is its tenant's. It ends by its deadline, wherever it loops. No
//! instance serves two calls. A tenant's functions cannot have all threads while there are more than they may have, nor its outputs all
//! room. What failed stores nothing.
//!
//! # How it is tested
//! The conformance suite runs over the layer; functions written as text for every import, every bound and every way to do harm; races of
//! calls with changes of their inputs; a fuzz target that runs whatever bytes are a module.
#![deny(unsafe_code)]

mod allowed;
mod brief;
mod bulk;
mod dialect;
mod ending;
mod exchange;
mod executor;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host;
mod inputs;
mod interpreter;
#[cfg(feature = "wasm-jit")]
mod jit;
#[cfg(any(test, feature = "wasm-jit"))]
mod kept;
mod layer;
mod limits;
mod metrics;
mod output;
mod programs;
mod room;
mod runtime;
mod service;
mod workers;

pub use allowed::Allowed;
pub use ending::{Bound, Ending};
pub use executor::{Executor, Keeping, Runs, StartError, check};
pub use layer::Exec;
pub use limits::{ARGUMENTS_BYTES_MAX, INPUTS_MAX, Limits, NAME_BYTES_MAX};
