//! The arguments of `forebay bench exec`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::Size;
use crate::bounds::{Seconds, count, window};

/// An operation on functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecOp {
    /// Call a function that is ready over an object at hand; the function counts bytes by the host's function
    Warm,
    /// The same with the function counting in WebAssembly
    Loop,
    /// What both are compared with: the same counting in this program, over the same store
    Native,
    /// What it is compared with on a network: the object, fetched
    Fetch,
    /// Call a function of a module of 1 MB that was never seen
    Cold,
    /// The same in a process that begins, with what its predecessor kept
    Restart,
}

impl ExecOp {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ExecOp::Warm => "warm",
            ExecOp::Loop => "loop",
            ExecOp::Native => "native",
            ExecOp::Fetch => "fetch",
            ExecOp::Cold => "cold",
            ExecOp::Restart => "restart",
        }
    }
}

/// Arguments of `forebay bench exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// Operations to measure, one after the other; beside `native`, when it comes first, the others tell their share of it
    #[arg(long, value_enum, value_delimiter = ',', default_value = "native,warm")]
    pub op: Vec<ExecOp>,
    /// Sizes of the object; of no meaning to cold and restart
    #[arg(long, value_delimiter = ',', default_value = "4KiB")]
    pub size: Vec<Size>,
    /// Calls in flight
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = count)]
    pub concurrency: Vec<usize>,
    /// Length of the measured window
    #[arg(long, default_value = "5", value_parser = window)]
    pub seconds: Seconds,
    /// Interpret, also where this program can compile
    #[arg(long)]
    pub interpret: bool,
    /// Where the objects are, in a new directory that is removed afterwards [default: the system's temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// One JSON object a point
    #[arg(long)]
    pub json: bool,
}
