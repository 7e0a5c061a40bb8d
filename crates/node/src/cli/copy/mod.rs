//! `forebay cp`.

mod files;
mod plan;
mod progress;
mod tally;
#[cfg(test)]
mod tests;
mod work;

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_bench::Size;
use forebay_client::direct::{Choice, Path};
use forebay_client::transfer::{self, Unfinished};
use forebay_client::{Attributes, Client, Error, Kind, PutOptions, Refusal};
use http::{HeaderName, HeaderValue};
use serde_json::json;

use super::address::Place;
use super::door::Door;
use super::interrupt::Interrupt;
use super::server::ServerArgs;
use super::{show, versions};
use crate::exit::{Exit, Failure, Outcome};
use progress::Progress;
use tally::Tally;

/// What helps when the namespace of a target is not found: where it was not to be made, and where the name was taken.
const MAKE_IT: &str = "; --make-namespace makes a namespace that is missing";
const TAKEN: &str = "; the name is taken, perhaps by somebody else";
/// Registered memory for the parts in flight is kept below this, but for one.
const STAGING_BYTES: u64 = 256 << 20;
/// How long the server is waited for after an interrupt.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);
/// The most links that a server gives one session.
const LINKS_MAX: i64 = 16;

/// Copy files and objects
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay cp model.safetensors fb://models/                       one file
  forebay cp ./dataset fb://data/v1                               everything below ./dataset, as v1/...
  forebay cp 'fb://data/v1/*.bin' ./out/                          what matches
  forebay cp fb://data/v1/ ./out                                  everything below v1/
  forebay cp fb://data/v1/ fb://archive/v1                        inside the server
  forebay cp 'fb://data/a[1].txt' ./out/                          the object of that name, if there is one
  tar c . | forebay cp - fb://backup/today.tar                    from standard input
  forebay cp <(tar c .) fb://backup/today.tar                     from a pipe
  forebay cp fb://backup/today.tar - | tar t                      to standard output
  forebay cp --path iwarp big.bin fb://data/big                   over iWARP or not at all
  forebay cp --path iwarp --links 4 big.bin fb://data/big         by four connections side by side
  forebay cp --version-id 0123... fb://data/a ./a                 as it was; the id is of forebay ls --versions
  forebay cp --version-id 0123... fb://data/a fb://data/a         as it was becomes what it is

Payloads take the best path there is: memory shared with a server on this host (shm), RDMA over TCP (iwarp), the bodies of HTTP
requests (http). The last line says which one it was, and why no better one.

Patterns: * and ? within a level, ** across levels, [a-z], [!x]; \\ before a character takes it as it is. Where a file has just the
name that is written, or an object the key (ending in /: where keys begin so), it is no pattern.

A copy that was cut off goes on where it ended when it is run again on the same host with the same file: parts that are there are
compared by checksum and not moved again, and so are objects and files of 1 MiB and more that are there already. Objects that are
given a type, a rule, metadata or tags are sent anew each time.

A file appears only when it is whole; where the target is a link, the file that it leads to. Until then an object of several parts is
in NAME.forebay-partial and NAME.forebay-progress, which one copy at a time fills; folders are sent without such files, and no
object is retrieved into one. Pipes, devices and files of no length are read to their end; pipes and devices are written to.")]
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
    /// Size of the parts of large objects, 5MiB to 5GiB [default: 16MiB, more for very large ones]
    #[arg(long, value_name = "SIZE", value_parser = part_size)]
    part_size: Option<Size>,
    /// The way payloads take: auto, shm, iwarp or http
    #[arg(long, default_value = "auto", value_name = "PATH")]
    path: Choice,
    /// Links side by side, 1 to 16: more than one where a single TCP connection of iWARP is the limit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LINKS_MAX),
        conflicts_with = "version_id")]
    links: u8,
    /// An old version of the one object fb://NAMESPACE/KEY that is copied, as `ls --versions` shows it; comes by S3, and so by HTTP
    #[arg(long, value_name = "ID")]
    version_id: Option<String>,
    /// Move everything again, also what is there
    #[arg(long)]
    no_resume: bool,
    /// As cp(1) has it: folders are copied with all that is below them in any case
    #[arg(short, long)]
    recursive: bool,
    /// Make the target's namespace when it is missing
    #[arg(long)]
    make_namespace: bool,
    #[command(flatten)]
    attributes: AttributeArgs,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is kept with the objects made.
#[derive(Debug, Clone, Args)]
struct AttributeArgs {
    /// Type of the objects made
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How long others may keep copies of the objects made, such as max-age=3600
    #[arg(long, value_name = "RULE")]
    cache_control: Option<String>,
    /// User metadata of the objects made; more than once for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = metadata)]
    metadata: Vec<(String, String)>,
    /// A tag of the objects made; more than once for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    tag: Vec<(String, String)>,
}

fn part_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match (transfer::PART_BYTES_MIN..=transfer::PART_BYTES_MAX).contains(&size.0) {
        true => Ok(size),
        false => Err("parts have 5 MiB to 5 GiB, as S3 has it".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// User metadata is kept as headers.
fn metadata(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    let header = format!("x-amz-meta-{name}");
    let is_named = HeaderName::from_bytes(header.as_bytes()).is_ok();
    let is_told = HeaderValue::from_bytes(value.as_bytes()).is_ok();
    match (is_named, is_told) {
        (true, true) => Ok((name, value)),
        (false, _) => Err(format!(
            "its header would be {header:?}, and none can be named so"
        )),
        (true, false) => Err(format!("its header {header:?} cannot have this value")),
    }
}

impl From<AttributeArgs> for Attributes {
    fn from(args: AttributeArgs) -> Attributes {
        Attributes {
            content_type: args.content_type.unwrap_or_default(),
            cache_control: args.cache_control.unwrap_or_default(),
            metadata: args.metadata,
            tags: args.tag,
            ..Attributes::default()
        }
    }
}

/// What every part of a copy needs.
#[derive(Clone)]
struct Context {
    client: Client,
    /// Where objects are listed.
    door: Door,
    put: PutOptions,
    /// What helps when the target's namespace is not found.
    hint: &'static str,
    /// Which version of the one source is meant; that is a client's matter, and here one of words.
    version: Option<String>,
    parallel: usize,
    transfer: transfer::Options,
    progress: Arc<Progress>,
}

/// Copies, and says when it is interrupted whether that was all in vain.
pub async fn run(mut args: CopyArgs) -> Outcome {
    args.target = as_standard(args.target);
    let visible = !args.quiet && !args.server.json && std::io::stderr().is_terminal();
    let progress = Arc::new(Progress::new(visible));
    let goes_on = goes_on(&args);
    let part_bytes = part_bytes(&args);
    let unfinished = Arc::<Unfinished>::default();
    let copied = copy(args, progress.clone(), unfinished.clone());
    let mut interrupt = Interrupt::watch()?;
    if let Some(copied) = interrupt.before(copied).await {
        return copied;
    }
    progress.end();
    // An upload that could not be marked, because uploads may not be listed, begins anew.
    let is_of_use =
        progress.is_compared() || (progress.is_in_parts(part_bytes) && unfinished.is_empty());
    // What is not ended in this time, or before another interrupt, stays.
    let aborted = tokio::time::timeout(ABORT_TIMEOUT, unfinished.abort());
    let _ = interrupt.before(aborted).await;
    let words = match goes_on && is_of_use {
        true => "interrupted: the same command, run again, goes on where this one ended",
        false => "interrupted",
    };
    Err(Failure::new(Exit::Failed, words))
}

/// Whether the same command would go on where an earlier one ended, if there is something of that.
fn goes_on(args: &CopyArgs) -> bool {
    let sends = matches!(args.target, Place::Remote(_));
    let plain = Attributes::from(args.attributes.clone()) == Attributes::default();
    // What is copied inside the server, and what streams bring and take, begins anew.
    let moves = |source: &Place| match (source, &args.target) {
        (Place::Local(_), Place::Remote(_)) => true,
        (Place::Remote(_), Place::Local(target)) => !is_stream(target),
        _ => false,
    };
    !args.no_resume && (plain || !sends) && args.sources.iter().all(moves)
}

fn part_bytes(args: &CopyArgs) -> u64 {
    args.part_size.map_or(transfer::PART_BYTES, |size| size.0)
}

async fn copy(args: CopyArgs, progress: Arc<Progress>, unfinished: Arc<Unfinished>) -> Outcome {
    let attributes = Attributes::from(args.attributes.clone());
    check(&args.sources, &attributes)?;
    let parallel = usize::from(args.parallel);
    let clients = match &args.version_id {
        Some(id) => {
            check_version(&args.sources)?;
            versions::clients(&args.server, id, args.path, parallel * 2).await?
        }
        None if args.links > 1 && args.path == Choice::Only(Path::Http) => {
            return Err(Failure::new(
                Exit::Usage,
                "--links are of iwarp and shm: --path http makes connections as it needs them",
            ));
        }
        None => {
            let links = usize::from(args.links);
            args.server.clients(args.path, links, parallel * 2).await?
        }
    };
    let part_bytes = part_bytes(&args);
    let (staging, why) = match clients.direct {
        Ok(direct) => {
            let slots = (STAGING_BYTES / part_bytes).clamp(1, parallel as u64);
            let part_bytes = usize::try_from(part_bytes).unwrap_or(usize::MAX);
            let why = direct.fallback().map(|why| why.to_string());
            let staging = transfer::Staging::new(direct, part_bytes, slots as usize)?;
            (Some(staging), why)
        }
        Err(why) => (None, Some(why)),
    };
    let counted = progress.clone();
    let mut context = Context {
        client: clients.s3,
        door: clients.door,
        put: PutOptions {
            attributes,
            ..PutOptions::default()
        },
        hint: MAKE_IT,
        version: args.version_id.clone(),
        parallel,
        transfer: transfer::Options {
            part_bytes: args.part_size.map(|size| size.0),
            parallel,
            resume: !args.no_resume,
            direct: staging.clone(),
            progress: Arc::new(move |bytes| counted.moved(bytes)),
            unfinished,
        },
        progress,
    };
    if let Place::Remote(target) = &args.target
        && args.make_namespace
    {
        context.hint = match make_namespace(&context, &target.namespace).await? {
            true => "",
            false => TAKEN,
        };
    }
    let begun = Instant::now();
    let tally = work::run(&context, &args.sources, &args.target).await;
    context.progress.end();
    let tally = tally?;
    let declined = staging.and_then(|staging| staging.declined());
    let why = match (tally.path, declined) {
        (None, _) => None,
        (Some(Path::Http), Some(declined)) => Some(declined),
        (Some(Path::Shm), _) => None,
        (Some(Path::Iwarp | Path::Http), _) => why,
    };
    report(&args, &tally, why.as_deref(), begun.elapsed().as_secs_f64())?;
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

/// A pipe or device that is standard output, under whatever name, is standard output: what is told of the copy must not go there.
fn as_standard(target: Place) -> Place {
    let out = |path: &FilePath| {
        let there = fs::metadata(path).ok();
        let there = there.filter(|there| !there.is_file() && !there.is_dir());
        there.map(|there| (there.dev(), there.ino()))
    };
    match &target {
        Place::Local(path)
            if out(path).is_some() && out(path) == out(FilePath::new("/dev/stdout")) =>
        {
            Place::Standard
        }
        _ => target,
    }
}

/// Whether it is a pipe or a device.
fn is_stream(path: &FilePath) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

/// Refuses attributes that nothing would get: objects that are copied inside the server keep theirs, and files have none.
fn check(sources: &[Place], attributes: &Attributes) -> Outcome {
    let remote = |source: &&Place| matches!(source, Place::Remote(_));
    match sources.iter().find(remote) {
        Some(Place::Remote(source)) if *attributes != Attributes::default() => {
            Err(usage(format_args!(
                "types, rules, metadata and tags are given to what is sent from here, which {source} is not"
            )))
        }
        _ => Ok(()),
    }
}

/// A version is of one object.
fn check_version(sources: &[Place]) -> Outcome {
    match sources {
        [Place::Remote(source)] if !work::is_prefix(source) => Ok(()),
        _ => Err(usage(
            "--version-id is of one object, fb://NAMESPACE/KEY, that is copied",
        )),
    }
}

/// False when there is one of that name, ours or not; the copy will tell.
async fn make_namespace(context: &Context, namespace: &str) -> Outcome<bool> {
    if let Some(staging) = &context.transfer.direct {
        let made = staging.client().create_namespace(namespace, 0).await;
        return match made {
            Err(Error::Refused(refusal)) if is_wrong(&refusal) => Err(usage(refusal.message)),
            made => Ok(made?),
        };
    }
    match context.client.create_namespace(namespace).await {
        Err(Error::Refused(refusal)) if is_wrong(&refusal) => {
            Err(usage(format_args!("{namespace:?}: {}", refusal.message)))
        }
        // 409.
        Err(error) if error.kind() == Kind::Precondition => Ok(false),
        made => Ok(made.map(|()| true)?),
    }
}

/// Whether no namespace can have the name; a limit is refused as a bad request, too.
fn is_wrong(refusal: &Refusal) -> bool {
    refusal.status == 400 && refusal.kind() == Kind::Failed
}

fn report(args: &CopyArgs, tally: &Tally, why: Option<&str>, seconds: f64) -> Outcome {
    let path = tally.path.map(Path::name);
    let rate = tally.bytes as f64 / seconds.max(1e-9);
    let text = if args.server.json {
        json!({
            "copies": tally.copies, "bytes": tally.bytes, "seconds": seconds, "bytes_per_s": rate,
            "resumed_bytes": tally.resumed, "unchanged": tally.unchanged, "skipped": tally.skipped,
            "leftovers": tally.leftovers, "failed": tally.failures.len(), "not_tried": tally.untried, "verified": tally.is_verified(),
            "path": path, "why": why,
        })
        .to_string()
    } else {
        let mut text = format!(
            "{}, {} in {seconds:.2} s, {}/s",
            show::count(tally.copies, "object"),
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
        if tally.leftovers > 0 {
            text.push_str(&format!(
                ", {} not copied (left by copies that were cut off)",
                tally.leftovers
            ));
        }
        if !tally.failures.is_empty() {
            text.push_str(&format!(", {} failed", tally.failures.len()));
        }
        if tally.untried > 0 {
            text.push_str(&format!(", {} not tried", tally.untried));
        }
        if let Some(path) = path {
            text.push_str(&format!(", path {path}"));
        }
        if let Some(why) = why {
            text.push_str(&format!(" ({why})"));
        }
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
