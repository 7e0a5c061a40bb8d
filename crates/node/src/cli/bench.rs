//! `forebay bench`: results are printed as they are made, and nothing is left of a measurement that is cut short.

use forebay_bench::{Args, Results};

use super::{show, wait};
use crate::exit::{Exit, Failure, Outcome};

/// Measures, and fails when in some measurement no operation ended well.
pub fn run(args: Args) -> Outcome {
    let outcome = wait(measure(args));
    // Nothing, when it came to its end.
    forebay_bench::abandon();
    outcome
}

async fn measure(args: Args) -> Outcome {
    let json = args.json();
    let (results, mut points) = Results::channel();
    let measuring = tokio::task::spawn_blocking(move || forebay_bench::run(&args, &results));
    let mut failed = None;
    while let Some(point) = points.recv().await {
        match json {
            true => show::json(&point)?,
            false => show::line(&point.to_string())?,
        }
        if let Some(why) = point.failure() {
            failed
                .get_or_insert_with(|| Failure::new(Exit::Failed, format_args!("{why}: {point}")));
        }
    }
    match measuring.await {
        Ok(measured) => measured?,
        // It is never cancelled.
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
    failed.map_or(Ok(()), Err)
}
