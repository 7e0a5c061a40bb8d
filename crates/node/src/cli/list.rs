//! `forebay ls`.

use std::collections::HashMap;

use clap::Args;
use forebay_control::api::Namespace;
use http::Method;
use serde_json::json;

use super::address::Address;
use super::door::Door;
use super::server::ServerArgs;
use super::{glob, show, versions};
use crate::exit::Outcome;

/// List namespaces, or objects
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay ls                        namespaces, with their durability where the server's socket or gRPC door tells it
  forebay ls fb://data/train/       one level
  forebay ls -r 'fb://data/*.bin'   everything that matches
  forebay ls --versions fb://data/model.bin   what it was before, and when it was deleted

Patterns: * and ? within a level, ** across levels, [a-z], [!x]; \\ before a character takes it as it is. Where keys begin just as
it is written, it is no pattern.")]
pub struct ListArgs {
    /// fb://NAMESPACE[/PREFIX or PATTERN]; all namespaces when missing
    address: Option<Address>,
    /// All levels, not one
    #[arg(short, long)]
    recursive: bool,
    /// Every version that is kept, the newest of each object first: its time, size and id, whether it is the current one, and
    /// where the object was deleted; needs the S3 door
    #[arg(long, requires = "address")]
    versions: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Lists.
pub async fn run(args: ListArgs) -> Outcome {
    match &args.address {
        None => namespaces(&args.server).await,
        Some(address) if args.versions => {
            versions::list(&args.server, address, args.recursive).await
        }
        Some(address) => objects(&args, address).await,
    }
}

async fn namespaces(server: &ServerArgs) -> Outcome {
    // S3 cannot say how durable a namespace is; the server's socket and its gRPC door can.
    let known = server.ask::<Vec<Namespace>>(Method::GET, &["namespaces"], &());
    let known = known.await;
    let (found, known) = match server.door(1).await? {
        Door::S3(client) => (client.namespaces().await?, known.unwrap_or_default()),
        Door::Direct(_) => {
            let known = known?;
            let made = |known: &Namespace| (known.name.clone(), (known.created / 1000) as i64);
            (known.iter().map(made).collect(), known)
        }
    };
    let known: HashMap<String, Namespace> = known
        .into_iter()
        .map(|namespace| (namespace.name.clone(), namespace))
        .collect();
    if server.json {
        for (name, created) in &found {
            let known = known.get(name);
            let durability = known.map(|known| known.durability);
            // As the admin API has it: in milliseconds, which S3 does not tell.
            let created = known.map_or(created.saturating_mul(1000), |known| known.created as i64);
            show::json(&json!({"namespace": name, "created": created, "durability": durability}))?;
        }
        return Ok(());
    }
    let rows = found.iter().map(|(name, created)| {
        let durability = known.get(name);
        vec![
            show::time(*created),
            durability.map_or_else(|| "?".to_owned(), |known| known.durability.to_string()),
            format!("fb://{name}/"),
        ]
    });
    show::table(&["created", "durability", "namespace"], rows.collect())
}

async fn objects(args: &ListArgs, address: &Address) -> Outcome {
    let client = args.server.door(1).await?;
    let pattern = client.is_pattern(address, true).await?;
    let prefix = &address.prefix(pattern);
    let delimiter = (!args.recursive && !pattern).then_some("/");
    let mut next = None;
    let mut any = false;
    loop {
        let page = client
            .list(&address.namespace, prefix, delimiter, next)
            .await?;
        for prefix in &page.prefixes {
            any = true;
            show::prefix(prefix, args.server.json)?;
        }
        for object in &page.objects {
            let key = object.shown();
            if pattern && !glob::matches(&address.key, &key) {
                continue;
            }
            any = true;
            match args.server.json {
                true => show::json(&json!({
                    "key": key, "size": object.size, "etag": object.etag,
                    "modified": show::time(object.modified),
                }))?,
                false => show::line(&format!(
                    "{:>20} {:>10} {}",
                    show::time(object.modified),
                    show::size(object.size),
                    show::plain(&key)
                ))?,
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    address.must_stand_for(any)
}
