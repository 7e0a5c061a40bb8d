//! Versions of objects: how they are written, the list of them, and the one that `--version-id` means, which S3 alone tells apart.

use forebay_client::direct::{Choice, Path};
use forebay_client::{Client, Error, ListedVersion};
use forebay_store::VersionId;
use serde_json::json;

use super::address::Address;
use super::door::Door;
use super::server::{Clients, ServerArgs};
use super::{glob, show};
use crate::exit::{Exit, Failure, Outcome};

/// A version as every command writes it: as S3 does.
pub fn text(version: u64) -> String {
    forebay_s3::version_text(VersionId(version))
}

/// Reads what [`text`] writes.
pub fn parse(id: &str) -> Result<u64, String> {
    let read = forebay_s3::read_version(id).map(|VersionId(version)| version);
    read.ok_or_else(|| none(id, "fb://NAMESPACE/KEY"))
}

fn none(id: &str, address: &str) -> String {
    format!(
        "{id:?} names no version: that is 32 hexadecimal digits or null, as `forebay ls --versions {address}` shows it"
    )
}

/// A client for the version of an object that is meant.
pub async fn client(server: &ServerArgs, id: &str, connections: usize) -> Outcome<Client> {
    Ok(s3(server, connections).await?.at_version(id))
}

/// The same as clients for payloads.
pub async fn clients(
    server: &ServerArgs,
    id: &str,
    path: Choice,
    connections: usize,
) -> Outcome<Clients> {
    if let Choice::Only(Path::Shm | Path::Iwarp) = path {
        return Err(Failure::new(
            Exit::Usage,
            format_args!("a version comes by S3, and so by --path http, not by {path}"),
        ));
    }
    let client = client(server, id, connections).await?;
    Ok(Clients::by_http(client, "a version comes by S3".to_owned()))
}

async fn s3(server: &ServerArgs, connections: usize) -> Outcome<Client> {
    match server.door(connections).await? {
        Door::S3(client) => Ok(client),
        Door::Direct(_) => Err(Failure::new(
            Exit::Failed,
            "versions need the S3 door, and the server has none that can be reached from here",
        )),
    }
}

/// What a call about one version failed with. The answer to a HEAD has no words.
pub fn failed(error: Error, address: &Address, id: &str) -> Failure {
    let (exit, words) = match &error {
        _ if is_marker(&error) => (
            Exit::NotFound,
            format!("version {id} of {address} is a delete marker: it has no bytes"),
        ),
        Error::Refused(refusal) if refusal.status == 404 => (
            Exit::NotFound,
            format!("there is no version {id} of {address}"),
        ),
        Error::Refused(refusal) if refusal.status == 400 => {
            (Exit::Usage, none(id, &address.to_string()))
        }
        _ => return error.into(),
    };
    Failure::new(exit, words)
}

/// Whether a version was not found because it is a delete marker.
pub fn is_marker(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.status == 405)
}

/// Lists them: of the objects that an address stands for, the newest of each first.
pub async fn list(server: &ServerArgs, address: &Address, recursive: bool) -> Outcome {
    let client = s3(server, 1).await?;
    let pattern = Door::S3(client.clone()).is_pattern(address, true).await?;
    let prefix = &address.prefix(pattern);
    let delimiter = (!recursive && !pattern).then_some("/");
    let mut next = None;
    let mut any = false;
    loop {
        let page = client
            .versions(&address.namespace, prefix, delimiter, next.as_ref())
            .await?;
        for prefix in &page.prefixes {
            any = true;
            show::prefix(prefix, server.json)?;
        }
        for version in &page.versions {
            if pattern && !glob::matches(&address.key, &show::key(&version.key)) {
                continue;
            }
            any = true;
            show_version(version, server.json)?;
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    address.must_stand_for(any)
}

fn show_version(version: &ListedVersion, json: bool) -> Outcome {
    let key = show::key(&version.key);
    if json {
        return show::json(&json!({
            "key": key, "version": version.id, "size": version.size, "etag": version.etag,
            "modified": show::time(version.modified), "current": version.current, "delete_marker": version.marker,
        }));
    }
    let size = match version.marker {
        true => "deleted".to_owned(),
        false => show::size(version.size),
    };
    let current = match version.current {
        true => "current",
        false => "old",
    };
    show::line(&format!(
        "{:>20} {size:>10} {:<32} {current:<7} {}",
        show::time(version.modified),
        show::plain(&version.id),
        show::plain(&key)
    ))
}
