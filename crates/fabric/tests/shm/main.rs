//! Links over shared memory, and the sessions that they belong to.
#![forbid(unsafe_code)]

mod ends;
mod hostile;
mod killed;
mod letting_go;
#[path = "../../../io/tests/lingering/mod.rs"]
mod lingering;
mod sessions;
mod stalled;
mod wakes;

use forebay_fabric::suite::Suite;

forebay_fabric::conformance!(Suite::new(ends::connections));

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(test);
}
