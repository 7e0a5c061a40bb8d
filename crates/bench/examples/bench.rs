//! `forebay bench` without the rest of the program: quick to build while an engine is being tuned.

use clap::Parser;

fn main() -> Result<(), forebay_bench::Error> {
    let args = forebay_bench::Args::parse();
    for point in forebay_bench::run(&args)? {
        println!("{}", serde_json::to_string(&point).unwrap_or_default());
    }
    Ok(())
}
