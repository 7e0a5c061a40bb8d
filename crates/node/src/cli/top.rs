//! `forebay top`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use http::Method;
use serde::Serialize;
use serde_json::json;

use super::server::DEFAULT_DIR;
use super::{here, show};
use crate::exit::Outcome;
use crate::serve::live::{self, Live};

/// Clears the terminal from its first cell on.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Show who moves how much by which path, now
#[derive(Debug, Args)]
#[command(after_help = "\
Speaks to the server on this host by its socket. Ends with Ctrl-C. A row of the path http is a tenant's S3 requests, one of the path grpc its
calls of objects and functions; their payload counts where it goes as bodies or messages, else with the link that carries it. A link of the paths nvme-tcp and vfio-user is a controller; what hosts that nobody made known do has no tenant.
Examples:
  forebay top                          redraws every second
  forebay top --interval 5 --dir /srv/forebay
  forebay top --once --json | jq       one look: an object of totals, then one for each row")]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
    /// Look once (over one interval) and end
    #[arg(long)]
    once: bool,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    dir: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!(
            "{text:?} is not a number of seconds from 0.05 to 3600"
        )),
    }
}

/// The paths of bodies and of messages, which belong to no link.
const HTTP: &str = "http";
const GRPC: &str = "grpc";

/// What one tenant does by one path.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    tenant: String,
    path: String,
    /// None of paths that have no sessions.
    sessions: usize,
    /// None of paths that have no links.
    links: usize,
    in_flight: u64,
    requests_per_s: f64,
    failures_per_s: f64,
    get_bytes_per_s: f64,
    put_bytes_per_s: f64,
}

impl Row {
    fn of(tenant: &str, path: &str) -> Row {
        Row {
            tenant: tenant.to_owned(),
            path: path.to_owned(),
            sessions: 0,
            links: 0,
            in_flight: 0,
            requests_per_s: 0.0,
            failures_per_s: 0.0,
            get_bytes_per_s: 0.0,
            put_bytes_per_s: 0.0,
        }
    }
}

/// Looks, until it is interrupted.
pub async fn run(args: TopArgs) -> Outcome {
    let redraw = !args.once && !args.json && std::io::stdout().is_terminal();
    let mut before = look(&args.dir).await?;
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs_f64(args.interval)).await;
        let now = look(&args.dir).await?;
        let elapsed = since.elapsed().as_secs_f64();
        since = Instant::now();
        let rows = rows(&before, &now, elapsed);
        draw(&args, &now, &rows, redraw)?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

async fn look(dir: &Path) -> Outcome<Live> {
    here::ask(dir, Method::GET, &["live"], &()).await
}

fn draw(args: &TopArgs, live: &Live, rows: &[Row], redraw: bool) -> Outcome {
    let (sessions, links, controllers) = (live.sessions, live.links.len(), live.nvme.len());
    if args.json {
        show::json(&json!({"sessions": sessions, "links": links, "controllers": controllers}))?;
        return rows.iter().try_for_each(show::json);
    }
    if redraw {
        show::bytes(REDRAW.as_bytes())?;
    }
    show::line(&format!(
        "{sessions} sessions, {links} links, {controllers} NVMe controllers"
    ))?;
    let rate = |bytes: f64| format!("{}/s", show::size(bytes as u64));
    let cells = rows.iter().map(|row| {
        let counted = |count: usize| match count {
            0 => "-".to_owned(),
            count => count.to_string(),
        };
        let tenant = match row.tenant.as_str() {
            "" if row.path == HTTP => "(anonymous)",
            "" => "(everybody)",
            tenant => tenant,
        };
        vec![
            tenant.to_owned(),
            row.path.clone(),
            counted(row.sessions),
            counted(row.links),
            row.in_flight.to_string(),
            format!("{:.0}", row.requests_per_s),
            format!("{:.0}", row.failures_per_s),
            rate(row.get_bytes_per_s),
            rate(row.put_bytes_per_s),
        ]
    });
    show::table(
        &[
            "tenant",
            "path",
            "sessions",
            "links",
            "in flight",
            "requests/s",
            "failures/s",
            "get",
            "put",
        ],
        cells.collect(),
    )
}

/// Rates between two looks, the busiest first. A link that is new counts from zero; what one did that has ended since is not known.
/// Bytes are a session's by one path, told with any of its links.
fn rows(before: &Live, now: &Live, elapsed: f64) -> Vec<Row> {
    let known: BTreeMap<u64, &live::Link> =
        before.links.iter().map(|link| (link.id, link)).collect();
    let mut moved: BTreeMap<(&str, &str), [u64; 2]> = BTreeMap::new();
    for link in &before.links {
        let [sent, received] = moved.entry((&link.session, &link.path)).or_default();
        *sent += link.sent_bytes;
        *received += link.received_bytes;
    }
    let mut rows: BTreeMap<(String, String), (Row, Vec<&str>)> = BTreeMap::new();
    for link in &now.links {
        let key = (link.tenant.clone(), link.path.clone());
        let (row, sessions) = rows
            .entry(key)
            .or_insert_with_key(|(tenant, path)| (Row::of(tenant, path), Vec::new()));
        let then = known.get(&link.id).copied();
        let rate = |count| rate(then, link, count, elapsed);
        let mut bytes = [link.sent_bytes, link.received_bytes];
        if bytes != [0; 2]
            && let Some(then) = moved.remove(&(&*link.session, &*link.path))
        {
            bytes = [0, 1].map(|way| bytes[way].saturating_sub(then[way]));
        }
        row.links += 1;
        row.in_flight += link.in_flight;
        row.requests_per_s += rate(|link| link.requests);
        row.failures_per_s += rate(|link| link.failures);
        row.get_bytes_per_s += per_second(bytes[0], elapsed);
        row.put_bytes_per_s += per_second(bytes[1], elapsed);
        sessions.push(&link.session);
    }
    let mut rows: Vec<Row> = rows
        .into_values()
        .map(|(mut row, mut sessions)| {
            sessions.sort_unstable();
            sessions.dedup();
            row.sessions = sessions.len();
            row
        })
        .collect();
    rows.extend(door_rows(HTTP, &before.http, &now.http, elapsed));
    rows.extend(door_rows(GRPC, &before.grpc, &now.grpc, elapsed));
    rows.extend(nvme_rows(before, now, elapsed));
    let busy = |row: &Row| row.get_bytes_per_s + row.put_bytes_per_s;
    rows.sort_by(|a, b| {
        busy(b)
            .total_cmp(&busy(a))
            .then(b.requests_per_s.total_cmp(&a.requests_per_s))
    });
    rows
}

fn per_second(count: u64, elapsed: f64) -> f64 {
    count as f64 / elapsed.max(1e-9)
}

/// By how much a count grew between two looks; of what is new since, from zero.
fn rate<T>(then: Option<&T>, now: &T, count: fn(&T) -> u64, elapsed: f64) -> f64 {
    per_second(count(now).saturating_sub(then.map_or(0, count)), elapsed)
}

/// The rows of tenants who asked a door between two looks, or wait for an answer.
fn door_rows(
    path: &str,
    before: &[live::Tenant],
    now: &[live::Tenant],
    elapsed: f64,
) -> impl Iterator<Item = Row> {
    let known: BTreeMap<&str, &live::Tenant> = before
        .iter()
        .map(|tenant| (tenant.tenant.as_str(), tenant))
        .collect();
    now.iter().filter_map(move |tenant| {
        let then = known.get(tenant.tenant.as_str()).copied();
        if tenant.in_flight == 0 && then == Some(tenant) {
            return None;
        }
        let rate = |count| rate(then, tenant, count, elapsed);
        Some(Row {
            in_flight: tenant.in_flight,
            requests_per_s: rate(|tenant| tenant.requests),
            failures_per_s: rate(|tenant| tenant.failures),
            get_bytes_per_s: rate(|tenant| tenant.sent_bytes),
            put_bytes_per_s: rate(|tenant| tenant.received_bytes),
            ..Row::of(&tenant.tenant, path)
        })
    })
}

/// The rows of controllers, by tenant and transport.
fn nvme_rows(before: &Live, now: &Live, elapsed: f64) -> impl Iterator<Item = Row> {
    let known: BTreeMap<u64, &live::Controller> = before
        .nvme
        .iter()
        .map(|controller| (controller.id, controller))
        .collect();
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    for controller in &now.nvme {
        let then = known.get(&controller.id).copied();
        let rate = |count| rate(then, controller, count, elapsed);
        let row = rows
            .entry((&controller.tenant, &controller.path))
            .or_insert_with_key(|(tenant, path)| Row::of(tenant, path));
        row.links += 1;
        row.in_flight += controller.in_flight;
        row.requests_per_s += rate(|controller| controller.commands);
        row.failures_per_s += rate(|controller| controller.failures);
        row.get_bytes_per_s += rate(|controller| controller.sent_bytes);
        row.put_bytes_per_s += rate(|controller| controller.received_bytes);
    }
    rows.into_values()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(id: u64, tenant: &str, path: &str, requests: u64, sent: u64) -> live::Link {
        live::Link {
            id,
            tenant: tenant.to_owned(),
            principal: "K".to_owned(),
            session: format!("s{}", id / 2),
            path: path.to_owned(),
            requests,
            failures: 0,
            sent_bytes: sent,
            received_bytes: 0,
            in_flight: 1,
        }
    }

    #[test]
    fn rates_are_differences_of_the_same_link() {
        let before = Live {
            sessions: 2,
            links: vec![link(2, "a", "shm", 100, 1000), link(4, "b", "iwarp", 7, 0)],
            http: Vec::new(),
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        let now = Live {
            sessions: 2,
            links: vec![
                link(2, "a", "shm", 150, 2000),
                // New since, in the same session as the first.
                link(3, "a", "shm", 10, 0),
                link(4, "b", "iwarp", 7, 0),
            ],
            http: Vec::new(),
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        let rows = rows(&before, &now, 0.5);
        assert_eq!(rows.len(), 2);
        let a = &rows[0];
        assert_eq!(
            (a.tenant.as_str(), a.links, a.sessions, a.in_flight),
            ("a", 2, 1, 2)
        );
        assert_eq!((a.requests_per_s, a.get_bytes_per_s), (120.0, 2000.0));
        assert_eq!(
            (rows[1].requests_per_s, rows[1].path.as_str()),
            (0.0, "iwarp")
        );
    }

    #[test]
    fn a_session_whose_first_link_ends_moves_nothing_by_that() {
        let before = Live {
            sessions: 1,
            links: vec![link(2, "a", "shm", 9, 5000), link(3, "a", "shm", 9, 0)],
            http: Vec::new(),
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        let now = Live {
            sessions: 1,
            links: vec![link(3, "a", "shm", 9, 5000)],
            http: Vec::new(),
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        assert_eq!(rows(&before, &now, 1.0)[0].get_bytes_per_s, 0.0);
        let later = Live {
            sessions: 1,
            links: vec![link(3, "a", "shm", 9, 5500)],
            http: Vec::new(),
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        assert_eq!(rows(&now, &later, 1.0)[0].get_bytes_per_s, 500.0);
    }

    #[test]
    fn who_asks_by_http_has_a_row_while_it_does() {
        let http = |requests, sent_bytes, in_flight| Live {
            sessions: 0,
            links: Vec::new(),
            http: vec![live::Tenant {
                tenant: "a".to_owned(),
                requests,
                failures: 1,
                sent_bytes,
                received_bytes: 0,
                in_flight,
            }],
            grpc: Vec::new(),
            nvme: Vec::new(),
        };
        let row = &rows(&http(10, 1000, 0), &http(14, 5000, 1), 2.0)[0];
        assert_eq!((row.tenant.as_str(), row.path.as_str()), ("a", "http"));
        assert_eq!((row.requests_per_s, row.get_bytes_per_s), (2.0, 2000.0));
        assert_eq!((row.failures_per_s, row.in_flight), (0.0, 1));
        let waits = rows(&http(14, 5000, 1), &http(14, 5000, 1), 1.0);
        assert_eq!(waits.len(), 1, "one waits for its answer");
        let idle = rows(&http(14, 5000, 0), &http(14, 5000, 0), 1.0);
        assert_eq!(idle, [], "it asked long ago");
    }

    #[test]
    fn controllers_of_a_tenant_and_a_transport_are_one_row() {
        let controller = |id, path: &str, commands, sent_bytes| live::Controller {
            id,
            tenant: "a".to_owned(),
            host: String::new(),
            path: path.to_owned(),
            commands,
            failures: 0,
            sent_bytes,
            received_bytes: 0,
            in_flight: 2,
        };
        let live = |nvme| Live {
            sessions: 0,
            links: Vec::new(),
            http: Vec::new(),
            grpc: Vec::new(),
            nvme,
        };
        let before = live(vec![
            controller(1, "nvme-tcp", 100, 4096),
            controller(2, "vfio-user", 5, 0),
        ]);
        let now = live(vec![
            controller(1, "nvme-tcp", 110, 8192),
            controller(2, "vfio-user", 5, 0),
            controller(3, "nvme-tcp", 10, 4096),
        ]);
        let rows = rows(&before, &now, 2.0);
        assert_eq!(rows.len(), 2, "{rows:?}");
        let tcp = &rows[0];
        assert_eq!(
            (tcp.path.as_str(), tcp.links, tcp.in_flight),
            ("nvme-tcp", 2, 4)
        );
        assert_eq!((tcp.requests_per_s, tcp.get_bytes_per_s), (10.0, 4096.0));
        assert_eq!(
            (rows[1].path.as_str(), rows[1].requests_per_s),
            ("vfio-user", 0.0)
        );
    }
}
