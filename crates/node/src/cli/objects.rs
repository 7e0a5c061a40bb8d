//! `forebay stat`, `cat` and `rm`.

use std::collections::BTreeMap;
use std::ops::Range;

use clap::Args;
use forebay_client::direct::{self, Choice};
use forebay_client::{Kind, transfer};
use forebay_control::api::Namespace;
use http::Method;
use serde_json::json;

use super::address::Address;
use super::door::{Described, Door};
use super::server::ServerArgs;
use super::{glob, show, versions};
use crate::exit::{Exit, Failure, Outcome};

/// Parts read ahead of what is written out, and their size.
const PARALLEL: usize = 4;
const PART_BYTES: usize = 8 << 20;
/// What would help whoever names a folder.
const BELOW: &str = "; there are objects below it: see `forebay ls`";

/// Show what is known of an object or a namespace
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay stat fb://data/train/0001.bin
  forebay stat fb://data/                                a namespace
  forebay stat --version-id 0123... fb://data/notes.txt  as it was; the id is of forebay ls --versions")]
pub struct StatArgs {
    /// fb://NAMESPACE[/KEY]
    address: Address,
    /// An old version of the object, as `ls --versions` shows it; needs the S3 door
    #[arg(long, value_name = "ID")]
    version_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Write objects to standard output
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay cat fb://data/notes.txt
  forebay cat --range 0-15 fb://data/model.safetensors | xxd
  forebay cat --version-id 0123... fb://data/notes.txt   as it was; the id is of forebay ls --versions
With --json a line on standard error says of each object how it came.")]
pub struct CatArgs {
    /// fb://NAMESPACE/KEY, one after the other
    #[arg(required = true)]
    addresses: Vec<Address>,
    /// First and last byte, both included
    #[arg(long, value_name = "FIRST-LAST", value_parser = range)]
    range: Option<Range<u64>>,
    /// The way payloads take: auto, shm, iwarp or http
    #[arg(long, default_value = "auto", value_name = "PATH")]
    path: Choice,
    /// An old version of the one object, as `ls --versions` shows it; comes by S3, and so by HTTP
    #[arg(long, value_name = "ID")]
    version_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Remove objects
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay rm fb://data/old.bin
  forebay rm 'fb://data/tmp/*.part'
  forebay rm -r fb://data/tmp/       everything below; the namespace itself: forebay admin namespace rm
  forebay rm 'fb://data/a[1].txt'    the object of that name if there is one, else what matches
  forebay rm --version-id 0123... fb://data/old.bin    that version, for good; of a delete marker: the object is back

Patterns: * and ? within a level, ** across levels, [a-z], [!x]; \\ before a character takes it as it is. Where an object has just
the key that is written (with -r: where keys begin so), it is no pattern.")]
pub struct RemoveArgs {
    /// fb://NAMESPACE/KEY or PATTERN; with -r a prefix
    #[arg(required = true)]
    addresses: Vec<Address>,
    /// Everything whose key begins so
    #[arg(short, long)]
    recursive: bool,
    /// This version of the one object alone, for good, as `ls --versions` shows it; needs the S3 door
    #[arg(long, value_name = "ID", conflicts_with = "recursive")]
    version_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Of what `--version-id` is the one that is meant.
fn one_object(addresses: &[Address]) -> Outcome<&Address> {
    match addresses {
        [address] if !address.key.is_empty() => Ok(address),
        _ => Err(Failure::new(
            Exit::Usage,
            "--version-id is of one object, fb://NAMESPACE/KEY",
        )),
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is not a range such as 0-4095");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    let last: u64 = last.parse().map_err(|_| wrong())?;
    if first > last || last == u64::MAX {
        return Err(wrong());
    }
    Ok(first..last + 1)
}

/// Shows.
pub async fn stat(args: StatArgs) -> Outcome {
    let address = &args.address;
    if let Some(id) = &args.version_id {
        one_object(std::slice::from_ref(address))?;
        let door = Door::S3(versions::client(&args.server, id, 1).await?);
        let described = door.describe(&address.namespace, &address.key).await;
        let described = described.map_err(|error| versions::failed(error, address, id))?;
        return show_object(&args, described);
    }
    if address.key.is_empty() {
        return stat_namespace(&args).await;
    }
    let door = args.server.door(1).await?;
    match door.describe(&address.namespace, &address.key).await {
        Err(error) if error.kind() == Kind::NotFound => Err(door.missing(address, BELOW).await),
        described => show_object(&args, described?),
    }
}

fn show_object(args: &StatArgs, Described { info, tags }: Described) -> Outcome {
    let crc = info.crc64nvme.map(|crc| format!("{crc:016x}"));
    if args.server.json {
        let metadata: serde_json::Map<String, serde_json::Value> = info
            .metadata
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect();
        return show::json(&json!({
            "namespace": args.address.namespace, "key": args.address.key, "size": info.size,
            "etag": info.etag, "modified": show::time(info.modified), "content_type": info.content_type,
            "cache_control": given(&info.cache_control), "version": info.version, "crc64nvme": crc, "metadata": metadata,
            "tags": tags.map(|tags| tags.into_iter().collect::<BTreeMap<_, _>>()),
        }));
    }
    show::line(&show::plain(&args.address.to_string()))?;
    let cache_control = given(&info.cache_control).unwrap_or("-").to_owned();
    let mut lines = vec![
        (
            "size",
            format!("{} ({} bytes)", show::size(info.size), info.size),
        ),
        ("etag", info.etag),
        ("modified", show::time(info.modified)),
        ("type", info.content_type),
        ("cache", cache_control),
        ("version", info.version.unwrap_or_else(|| "-".to_owned())),
        ("crc64nvme", crc.unwrap_or_else(|| "-".to_owned())),
    ];
    for (name, value) in info.metadata {
        lines.push(("metadata", format!("{name}: {value}")));
    }
    match tags {
        Some(tags) => {
            let tags = tags.into_iter();
            lines.extend(tags.map(|(name, value)| ("tag", format!("{name}={value}"))));
        }
        None => {
            let count = show::count(info.tags, "tag");
            lines.push(("tags", format!("{count}, which may not be read")));
        }
    }
    for (name, value) in lines {
        show::line(&format!("  {name:<10} {}", show::plain(&value)))?;
    }
    Ok(())
}

/// What was said, if it was.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

async fn stat_namespace(args: &StatArgs) -> Outcome {
    if args.server.is_told_who_asks() {
        // A directory's socket shows everything, whoever asks.
        let door = args.server.door(1).await?;
        door.list(&args.address.namespace, "", Some("/"), None)
            .await?;
    }
    let path = ["namespaces", &args.address.namespace];
    let namespace: Namespace = args.server.ask(Method::GET, &path, &()).await?;
    super::admin::show_namespaces(&args.server, &[namespace])
}

/// Writes out.
pub async fn cat(args: CatArgs) -> Outcome {
    let clients = match &args.version_id {
        Some(id) => {
            one_object(&args.addresses)?;
            versions::clients(&args.server, id, args.path, PARALLEL).await?
        }
        None => args.server.clients(args.path, 1, PARALLEL).await?,
    };
    let (direct, why) = match clients.direct {
        Ok(direct) => {
            let why = direct.fallback().map(|why| why.to_string());
            let staging = transfer::Staging::new(direct, PART_BYTES, PARALLEL)?;
            (Some(staging), why)
        }
        Err(why) => (None, Some(why)),
    };
    let options = transfer::Options {
        part_bytes: Some(PART_BYTES as u64),
        parallel: PARALLEL,
        direct,
        ..transfer::Options::default()
    };
    if let Some(address) = args.addresses.iter().find(|address| address.key.is_empty()) {
        return Err(Failure::new(
            Exit::Usage,
            format_args!("{address} is a namespace, and what is written out is objects"),
        ));
    }
    for address in &args.addresses {
        let mut broken = None;
        let moved = transfer::download_stream(
            &clients.s3,
            &address.namespace,
            &address.key,
            args.range.clone(),
            &options,
            |bytes| show::bytes(bytes).map_err(|failure| show::stopped(failure, &mut broken)),
        );
        let moved = match (moved.await, &args.version_id) {
            (Err(error), Some(id)) if broken.is_none() => {
                return Err(versions::failed(error, address, id));
            }
            (moved, _) => moved,
        };
        let moved = match moved {
            Err(error) if broken.is_none() && error.kind() == Kind::NotFound => {
                return Err(clients.door.missing(address, BELOW).await);
            }
            moved => moved.map_err(|error| broken.unwrap_or_else(|| error.into()))?,
        };
        if args.server.json {
            let by_http = moved.path == Some(direct::Path::Http);
            let declined = options.direct.as_ref().filter(|_| by_http);
            let declined = declined.and_then(|staging| staging.declined());
            // Standard output is the object.
            let told = json!({
                "object": address.to_string(), "bytes": moved.bytes, "verified": moved.verified,
                "path": moved.path.map(direct::Path::name), "why": declined.as_ref().or(why.as_ref()),
            });
            eprintln!("{told}");
        }
    }
    Ok(())
}

/// Removes.
pub async fn remove(args: RemoveArgs) -> Outcome {
    if let Some(id) = &args.version_id {
        return remove_version(&args.server, one_object(&args.addresses)?, id).await;
    }
    let is_namespace = |address: &&Address| address.key.is_empty() && !args.recursive;
    if let Some(address) = args.addresses.iter().find(is_namespace) {
        return Err(Failure::new(
            Exit::Usage,
            format_args!("{address} is a namespace: -r removes all objects in it"),
        ));
    }
    let client = args.server.door(4).await?;
    let mut removal = Removal::default();
    let mut failures = Vec::new();
    for address in &args.addresses {
        let removed = removal.of(&client, address, args.recursive).await;
        failures.extend(removed.err());
    }
    let Removal { removed, stayed } = removal;
    match args.server.json {
        true => {
            show::json(&json!({"removed": removed, "failed": stayed.len() + failures.len()}))?;
        }
        false => show::line(&format!("{} removed", show::count(removed, "object")))?,
    }
    if let Some((key, why)) = stayed.first() {
        let count = show::count(stayed.len(), "object");
        failures.push(Failure::new(
            Exit::Failed,
            format_args!("{count} stayed; the first: {key}: {why}"),
        ));
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => {
            let told = failures.iter().map(|failure| failure.message.as_str());
            let told: Vec<&str> = told.collect();
            Err(Failure::new(first.exit, told.join("; ")))
        }
    }
}

async fn remove_version(server: &ServerArgs, address: &Address, id: &str) -> Outcome {
    let client = versions::client(server, id, 1).await?;
    // S3's delete does not say whether there was anything.
    match client.head(&address.namespace, &address.key).await {
        Err(error) if !versions::is_marker(&error) => {
            return Err(versions::failed(error, address, id));
        }
        Ok(_) | Err(_) => client.delete(&address.namespace, &address.key).await?,
    }
    match server.json {
        true => show::json(&json!({"removed": 1, "failed": 0})),
        false => show::line("1 version removed"),
    }
}

/// What was removed, and what was not.
#[derive(Debug, Default)]
struct Removal {
    removed: usize,
    /// Keys that were found, each with the reason.
    stayed: Vec<(String, String)>,
}

impl Removal {
    /// Removes what an address stands for.
    async fn of(&mut self, client: &Door, address: &Address, recursive: bool) -> Outcome {
        let pattern = client.is_pattern(address, recursive).await?;
        if recursive || pattern {
            return self.many(client, address, recursive, pattern).await;
        }
        // S3's delete does not say whether there was anything.
        let below = "; there are objects below it, which -r removes";
        client.info(address, below).await?;
        client.delete(&address.namespace, &address.key).await?;
        self.removed += 1;
        Ok(())
    }

    async fn many(
        &mut self,
        client: &Door,
        address: &Address,
        recursive: bool,
        pattern: bool,
    ) -> Outcome {
        let prefix = &address.prefix(pattern);
        let mut next = None;
        let mut any = false;
        loop {
            let page = client.list(&address.namespace, prefix, None, next).await?;
            let fits = |key: &str| {
                !pattern
                    || glob::matches(&address.key, key)
                    || (recursive
                        && glob::matches(&format!("{}/**", address.key.trim_end_matches('/')), key))
            };
            let mut objects = page.objects;
            objects.retain(|object| fits(&object.shown()));
            any |= !objects.is_empty();
            let stayed = client.delete_many(&address.namespace, &objects).await?;
            self.removed += objects.len() - stayed.len();
            self.stayed.extend(stayed);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        address.must_stand_for(any)
    }
}
