//! `forebay cp`.

mod plan;
mod progress;
mod work;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use forebay_bench::Size;
use forebay_client::{Client, PutOptions, transfer};
use serde_json::json;

use super::address::Place;
use super::server::ServerArgs;
use super::show;
use crate::exit::{Exit, Failure, Outcome};
use progress::Progress;
use work::Tally;

/// Why data takes no shorter way than an HTTP body.
const WHY_HTTP: &str = "this version has no direct path: shm, RDMA and GPU memory are not used";

/// Copy files and objects
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay cp model.safetensors fb://models/                       one file
  forebay cp ./dataset fb://data/v1                               everything below ./dataset, as v1/...
  forebay cp 'fb://data/v1/*.bin' ./out/                          what matches
  forebay cp fb://data/v1/ ./out                                  everything below v1/
  forebay cp fb://data/v1/ fb://archive/v1                        inside the server
  tar c . | forebay cp - fb://backup/today.tar                    from standard input
  forebay cp fb://backup/today.tar - | tar t                      to standard output

A copy that was cut off goes on where it ended when it is run again: parts that are there are compared by checksum and not
moved again, and so are objects and files of 1 MiB and more that are there already. A file appears only when it is whole.")]
pub struct CopyArgs {
    /// From: files, folders, patterns, fb://NAMESPACE/KEY, fb://NAMESPACE/PREFIX/, or - for standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<Place>,
    /// To: a file, a folder, fb://NAMESPACE/KEY, or - for standard output
    #[arg(value_name = "DST")]
    target: Place,
    /// Transfers in flight at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Size of the parts of large objects [default: 16MiB, more for very large ones]
    #[arg(long, value_name = "SIZE")]
    part_size: Option<Size>,
    /// Move everything again, also what is there
    #[arg(long)]
    no_resume: bool,
    /// Make the target's namespace when it is missing
    #[arg(long)]
    make_namespace: bool,
    /// Type of the objects made
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// What every part of a copy needs.
#[derive(Clone)]
struct Context {
    client: Client,
    put: PutOptions,
    parallel: usize,
    transfer: transfer::Options,
    progress: Arc<Progress>,
}

/// Copies.
pub async fn run(args: CopyArgs) -> Outcome {
    let parallel = usize::from(args.parallel);
    let client = args.server.client(parallel * 2).await?;
    let visible = !args.quiet && !args.server.json && std::io::stderr().is_terminal();
    let progress = Arc::new(Progress::new(visible));
    let counted = progress.clone();
    let context = Context {
        client,
        put: PutOptions {
            content_type: args.content_type.clone().unwrap_or_default(),
            ..PutOptions::default()
        },
        parallel,
        transfer: transfer::Options {
            part_bytes: args.part_size.map(|size| size.0),
            parallel,
            resume: !args.no_resume,
            progress: Arc::new(move |bytes| counted.moved(bytes)),
        },
        progress,
    };
    if let Place::Remote(target) = &args.target
        && args.make_namespace
    {
        make_namespace(&context.client, &target.namespace).await?;
    }
    let begun = Instant::now();
    let tally = work::run(&context, &args.sources, &args.target).await;
    context.progress.end();
    let tally = tally?;
    report(&args, &tally, begun.elapsed().as_secs_f64())?;
    match tally.failures.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(
            first.exit,
            match tally.failures.len() {
                1 => first.message.clone(),
                count => format!("{count} copies failed; the first: {first}"),
            },
        )),
    }
}

async fn make_namespace(client: &Client, namespace: &str) -> Outcome {
    match client.create_namespace(namespace).await {
        // 409: it is there, ours or not; the copy will tell.
        Err(error) if error.kind() == forebay_client::Kind::Precondition => Ok(()),
        made => Ok(made?),
    }
}

fn report(args: &CopyArgs, tally: &Tally, seconds: f64) -> Outcome {
    let rate = tally.bytes as f64 / seconds.max(1e-9);
    let text = if args.server.json {
        json!({
            "copies": tally.copies, "bytes": tally.bytes, "seconds": seconds, "bytes_per_s": rate,
            "resumed_bytes": tally.resumed, "unchanged": tally.unchanged, "skipped": tally.skipped,
            "failed": tally.failures.len(), "verified": tally.verified, "path": "http", "why": WHY_HTTP,
        })
        .to_string()
    } else {
        let mut text = format!(
            "{} {}, {} in {seconds:.2} s, {}/s",
            tally.copies,
            if tally.copies == 1 {
                "object"
            } else {
                "objects"
            },
            show::size(tally.bytes),
            show::size(rate as u64)
        );
        if tally.unchanged > 0 {
            text.push_str(&format!(", {} were there", tally.unchanged));
        }
        if tally.resumed > 0 {
            text.push_str(&format!(
                ", {} from an earlier attempt",
                show::size(tally.resumed)
            ));
        }
        if tally.skipped > 0 {
            text.push_str(&format!(", {} not copied (no plain files)", tally.skipped));
        }
        if !tally.failures.is_empty() {
            text.push_str(&format!(", {} failed", tally.failures.len()));
        }
        text.push_str(&format!(", path http ({WHY_HTTP})"));
        text
    };
    // Standard output may be the copy itself.
    if args.target == Place::Standard {
        eprintln!("{text}");
        return Ok(());
    }
    show::line(&text)
}

fn usage(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, text)
}
