//! The table of paths of `forebay doctor`: which work, how fast, why not.

use std::time::{Duration, Instant};

use forebay_client::direct::{Choice, Client, Options, Path, Region};
use forebay_client::{Error, Kind};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{sleep, timeout};

use super::interrupt::Interrupt;
use super::server::ServerArgs;
use super::show;
use crate::exit::{Failure, Outcome};

/// The value that is moved back and forth, and how long each way.
const VALUE_BYTES: usize = 4 << 20;
const LONG_ENOUGH: Duration = Duration::from_millis(300);
const KEY: &str = "forebay-doctor";
/// How often it is looked whether what was interrupted has ended.
const LOOK: Duration = Duration::from_millis(20);

/// One path to the endpoint.
#[derive(Debug, Serialize)]
struct Row {
    path: &'static str,
    available: bool,
    get_bytes_per_s: Option<f64>,
    put_bytes_per_s: Option<f64>,
    /// Why it is not there, or has no rate.
    why: Option<String>,
}

/// Tries every path to the endpoint, and measures those that work in a namespace of its own that is removed again, also after an
/// interrupt. Says whether one of them works. `answers`: whether the S3 door does, by which payloads go where there is no gRPC to measure
/// them by. `patience`: how long each may take to answer, and then to be measured.
pub async fn show(
    server: &ServerArgs,
    answers: bool,
    patience: Duration,
    interrupt: &mut Interrupt,
) -> Outcome<bool> {
    let connecting = async { Ok(connect(server, patience).await) };
    let rows = match interrupt.or(connecting).await? {
        Ok(clients) => rows(&clients, patience, interrupt).await?,
        Err(failure) => {
            let row = |path| Row {
                available: answers && path == Path::Http,
                ..unavailable(path, &failure)
            };
            Path::ALL.map(row).into()
        }
    };
    let works = rows.iter().any(|row| row.available);
    if server.json {
        rows.iter().try_for_each(show::json)?;
        return Ok(works);
    }
    show::line("")?;
    let rate = |rate: Option<f64>| {
        rate.map_or_else(
            || "-".to_owned(),
            |rate| format!("{}/s", show::size(rate as u64)),
        )
    };
    let cells = rows.into_iter().map(|row| {
        let available = if row.available { "yes" } else { "no" };
        vec![
            row.path.to_owned(),
            available.to_owned(),
            rate(row.get_bytes_per_s),
            rate(row.put_bytes_per_s),
            row.why.unwrap_or_default(),
        ]
    });
    show::table(
        &["path", "available", "get", "put", "why not"],
        cells.collect(),
    )?;
    Ok(works)
}

fn unavailable(path: Path, why: impl std::fmt::Display) -> Row {
    Row {
        path: path.name(),
        available: false,
        get_bytes_per_s: None,
        put_bytes_per_s: None,
        why: Some(why.to_string()),
    }
}

/// A client by each path, or why there is none.
type Clients = Vec<(Path, Result<Client, Error>)>;

async fn connect(server: &ServerArgs, patience: Duration) -> Outcome<Clients> {
    // The server on this host is asked where its doors are.
    let found = timeout(patience, server.rpc()).await;
    let (endpoint, credentials) = found.map_err(|_| Error::TimedOut(patience))??;
    let options = Options {
        deadline: patience,
        ..server.options(Choice::Auto)?
    };
    let clients = Path::ALL.map(|path| {
        let options = Options {
            path: Choice::Only(path),
            ..options.clone()
        };
        let connecting = Client::connect(&endpoint, &credentials, options);
        async move { (path, connecting.await) }
    });
    Ok(join_all(clients).await)
}

async fn rows(
    clients: &Clients,
    patience: Duration,
    interrupt: &mut Interrupt,
) -> Outcome<Vec<Row>> {
    let mut random = [0; 8];
    forebay_io::random(&mut random).map_err(Failure::io("random bytes"))?;
    let namespace = &format!("forebay-doctor-{:016x}", u64::from_le_bytes(random));
    let keeper = clients.iter().find_map(|(_, client)| client.as_ref().ok());
    // Nobody else has the name: whatever else this comes to, it may have been made.
    let made = match keeper {
        Some(client) => client.create_namespace(namespace, 1000).await,
        None => Ok(false),
    };
    let rows = interrupt
        .or(measured(clients, namespace, &made, patience))
        .await;
    if let Some(client) = keeper {
        let _ = timeout(patience, remove(client, namespace)).await;
    }
    rows
}

/// What cannot be removed was not made.
async fn remove(client: &Client, namespace: &str) {
    loop {
        let _ = client.delete(namespace, KEY).await;
        match client.remove_namespace(namespace).await {
            // A put that was interrupted may have ended since.
            Err(error) if error.kind() == Kind::Precondition => sleep(LOOK).await,
            Ok(()) | Err(_) => return,
        }
    }
}

/// What each path is like, by values in a namespace if it could be made.
async fn measured(
    clients: &Clients,
    namespace: &str,
    made: &Result<bool, Error>,
    patience: Duration,
) -> Outcome<Vec<Row>> {
    let mut rows = Vec::with_capacity(clients.len());
    // One after the other: they would share what they are measured by.
    for (path, client) in clients {
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                rows.push(unavailable(*path, error));
                continue;
            }
        };
        let rates = match made {
            Ok(_) => {
                let measured = timeout(patience, measure(client, namespace)).await;
                measured
                    .unwrap_or(Err(Error::TimedOut(patience)))
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        rows.push(match rates {
            Ok((get, put)) => Row {
                path: path.name(),
                available: true,
                get_bytes_per_s: Some(get),
                put_bytes_per_s: Some(put),
                why: None,
            },
            Err(why) => Row {
                available: true,
                ..unavailable(*path, why)
            },
        });
    }
    Ok(rows)
}

/// Bytes a second of gets and of puts, one after the other.
async fn measure(client: &Client, namespace: &str) -> forebay_client::Result<(f64, f64)> {
    let region = Region::alloc(VALUE_BYTES).map_err(|source| forebay_client::Error::Local {
        what: "getting memory".to_owned(),
        source,
    })?;
    let mut rates = [0.0; 2];
    for (index, rate) in rates.iter_mut().enumerate() {
        // The first call pays for pages and connections.
        let mut begun = None;
        let mut count = 0;
        while begun.is_none_or(|begun: Instant| begun.elapsed() < LONG_ENOUGH) {
            match index {
                0 => client.put_from(namespace, KEY, &region).await?,
                _ => client.get_into(namespace, KEY, .., &region).await?,
            };
            match begun {
                None => begun = Some(Instant::now()),
                Some(_) => count += 1,
            }
        }
        let elapsed = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        *rate = (count * VALUE_BYTES) as f64 / elapsed.as_secs_f64().max(1e-9);
    }
    let [put, get] = rates;
    Ok((get, put))
}
