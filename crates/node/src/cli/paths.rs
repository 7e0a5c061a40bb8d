//! The table of paths of `forebay doctor`: which work, how fast, why not.

use std::time::{Duration, Instant};

use forebay_client::direct::{Choice, Client, Path, Region};
use serde::Serialize;

use super::server::ServerArgs;
use super::show;
use crate::exit::Outcome;

/// The value that is moved back and forth, and how long each way.
const VALUE_BYTES: usize = 4 << 20;
const LONG_ENOUGH: Duration = Duration::from_millis(300);
const KEY: &str = "forebay-doctor";

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

/// Tries every path to the endpoint, and measures those that work in a namespace of its own that is removed again.
pub async fn show(server: &ServerArgs) -> Outcome {
    let rows = match rows(server).await {
        Ok(rows) => rows,
        Err(failure) => Path::ALL.map(|path| unavailable(path, &failure)).into(),
    };
    if server.json {
        return rows.iter().try_for_each(show::json);
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
    )
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

async fn rows(server: &ServerArgs) -> Outcome<Vec<Row>> {
    let (endpoint, credentials) = server.rpc().await?;
    let namespace = format!("forebay-doctor-{}", std::process::id());
    let mut rows = Vec::with_capacity(Path::ALL.len());
    let mut made = None;
    for path in Path::ALL {
        let options = server.options(Choice::Only(path))?;
        let client = match Client::connect(&endpoint, &credentials, options).await {
            Ok(client) => client,
            Err(error) => {
                rows.push(unavailable(path, error));
                continue;
            }
        };
        let measured = async {
            if made.is_none() {
                client.create_namespace(&namespace, 1000).await?;
            }
            measure(&client, &namespace).await
        };
        let measured = measured.await;
        rows.push(match measured {
            Ok((get, put)) => Row {
                path: path.name(),
                available: true,
                get_bytes_per_s: Some(get),
                put_bytes_per_s: Some(put),
                why: None,
            },
            Err(error) => Row {
                available: true,
                ..unavailable(path, error)
            },
        });
        made = Some(client);
    }
    if let Some(client) = made {
        // What cannot be removed was not made.
        let _ = client.delete(&namespace, KEY).await;
        let _ = client.remove_namespace(&namespace).await;
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
