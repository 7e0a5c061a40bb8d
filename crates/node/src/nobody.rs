//! The process of a server that tests of administration do not have.

use std::pin::Pin;

use forebay_control::api::{LifecycleReport, ScrubReport, Server};
use forebay_control::{Node, Result};

/// What administration never asks of the process there.
pub(crate) struct Nobody;

impl Node for Nobody {
    fn server(&self) -> Server {
        unreachable!()
    }

    fn scrub(&self) -> Pin<Box<dyn Future<Output = Result<ScrubReport>> + Send + '_>> {
        unreachable!()
    }

    fn lifecycle_run(&self) -> Pin<Box<dyn Future<Output = Result<LifecycleReport>> + Send + '_>> {
        unreachable!()
    }

    fn check_module(&self, _: &[u8]) -> std::result::Result<(), String> {
        unreachable!()
    }
}
