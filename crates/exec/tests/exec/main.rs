//! Functions over a store in memory.

mod again;
mod brief;
mod deadlines;
mod hostile;
mod imports;
mod inputs;
mod leaves;
mod memory;
mod namesakes;
mod outputs;
#[cfg(feature = "wasm-jit")]
mod restarts;
mod suite;
mod support;
