//! A session with its links.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_api::v1;
use forebay_fabric::sessions::proof;
use forebay_fabric::{Connection, SessionId, iwarp, shm};
use forebay_io::socket::connect_unix;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::lane::Lane;
use super::lanes::Lanes;
use super::options::{Options, Path};
use super::rpc::{Opened, Rpc};
use super::seat::{Memory, Server};
use super::transfer::Fallback;
use crate::endpoint::is_loopback;
use crate::{Client as S3, Config, Credentials, Endpoint, Error, Kind, Result, Tls};

/// How long a path may take to make a link before HTTP, which always works, is better.
const DIAL: Duration = Duration::from_secs(5);

static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

/// An open session: the links of the best path, or none when payloads go by HTTP.
pub(crate) struct Connected {
    /// Tells sessions of one client apart.
    pub(crate) generation: u64,
    pub(crate) path: Path,
    /// Why no better path.
    pub(crate) fallback: Option<Arc<Fallback>>,
    pub(crate) s3: Option<S3>,
    /// The same for calls that are made again by whoever has the budget for that.
    pub(crate) s3_once: Option<S3>,
    pub(crate) rpc: Rpc,
    pub(crate) session: SessionId,
    pub(crate) key: [u8; 32],
    pub(crate) lease: Duration,
    lanes: Lanes<Connection>,
    /// Whether the server has said that it has no such session any more.
    closed: AtomicBool,
    /// The last number of a token.
    pub(crate) sequence: AtomicU64,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Connected {
    /// Opens a session and makes the links that the options allow, the best first.
    pub(crate) async fn establish(server: &Server, memory: Memory) -> Result<Connected> {
        let Server {
            rpc,
            endpoint,
            credentials,
            options,
        } = server;
        let opened = rpc.open(options.lease).await?;
        let mut fallback = Fallback::default();
        let mut found = None;
        for path in [Path::Shm, Path::Iwarp] {
            if !options.path.allows(path) {
                continue;
            }
            if path == Path::Shm && memory == Memory::Private {
                fallback.push(path, "the memory is this process' alone");
                continue;
            }
            match lanes(path, &opened, endpoint, options).await {
                Ok(lanes) => {
                    found = Some((path, lanes));
                    break;
                }
                Err(reason) => fallback.push(path, reason),
            }
        }
        let shm = matches!(found, Some((Path::Shm, _)));
        let s3 = match offer(&opened, Path::Http) {
            Ok(offer) => {
                let door: Endpoint = offer.address.parse().map_err(Error::Protocol)?;
                match is_near(&door, endpoint) || shm {
                    true => Ok(s3(door.beside(endpoint), credentials, options)?),
                    false => Err(too_far("S3", "--s3")),
                }
            }
            Err(why) => Err(why),
        };
        let (path, lanes) = match found {
            Some(found) => found,
            None if options.path.allows(Path::Http) && s3.is_ok() => (Path::Http, Lanes::none()),
            None => {
                if let Err(why) = &s3
                    && options.path.allows(Path::Http)
                {
                    fallback.push(Path::Http, why);
                }
                // The session stays until its lease ends, unless the server hears this.
                let _ = rpc.close(&opened.session).await;
                return Err(Error::Transport {
                    endpoint: endpoint.to_string(),
                    what: format!("no path works: {fallback}"),
                });
            }
        };
        let connected = Connected {
            generation: NEXT_GENERATION.fetch_add(1, Relaxed),
            path,
            fallback: fallback.above(path),
            s3_once: s3.as_ref().ok().map(S3::trying_once),
            s3: s3.ok(),
            session: SessionId(opened.session),
            key: opened.key,
            lease: opened.lease,
            lanes,
            closed: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            rpc: rpc.clone(),
            runtime: tokio::runtime::Handle::current(),
        };
        Ok(connected)
    }

    /// Whether payloads go by HTTP for want of something better.
    pub(crate) fn fell_back(&self) -> bool {
        self.path == Path::Http && self.fallback.is_some()
    }

    /// The lane for the next call; none when payloads go by HTTP.
    pub(crate) fn lane(&self) -> Option<&Arc<Lane<Connection>>> {
        self.lanes.next()
    }

    /// The lane that was made last, after how many others.
    pub(crate) fn last_lane(&self) -> Option<(usize, &Arc<Lane<Connection>>)> {
        self.lanes.last()
    }

    /// Whether one of its links has ended.
    pub(crate) fn has_lost_a_link(&self) -> bool {
        self.lanes.has_ended()
    }

    /// Ends the session: after this the server does nothing more for its links.
    pub(crate) async fn close(&self) -> Result<()> {
        self.lanes.close();
        match self.rpc.close(&self.session.0).await {
            // There is none when nothing of it goes on, whatever has ended it.
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => self.closed.store(true, Relaxed),
        }
        Ok(())
    }

    /// Shows the server that this session lives, three times a lease, until it or its client is gone.
    pub(crate) async fn keep_alive(this: Weak<Connected>, lease: Duration) {
        let sign = || async {
            let there = this.upgrade().map(|this| (this.rpc.clone(), this.session));
            let Some((rpc, session)) = there else {
                return false;
            };
            let lives = rpc.keep_alive(&session.0, lease).await;
            // After an error there is another chance, as long as the lease lasts.
            lives.unwrap_or(true)
        };
        // When the session is no more the server has closed the links by itself; the next call notices.
        thrice(lease, sign).await;
    }
}

/// Without the key.
impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("generation", &self.generation)
            .field("path", &self.path)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.lanes.close();
        if *self.closed.get_mut() {
            return;
        }
        let (rpc, session) = (self.rpc.clone(), self.session.0);
        self.runtime.spawn(async move {
            // Without this the lease ends it.
            let _ = rpc.close(&session).await;
        });
    }
}

/// Gives signs three times a lease until one says that it was the last. One that hangs must not take the place of the next.
async fn thrice<F: Future<Output = bool>>(lease: Duration, mut sign: impl FnMut() -> F) {
    tokio::time::sleep(lease / 3).await;
    loop {
        let next = tokio::time::Instant::now() + lease / 3;
        if let Ok(false) = tokio::time::timeout_at(next, sign()).await {
            return;
        }
        tokio::time::sleep_until(next).await;
    }
}

fn offer(opened: &Opened, path: Path) -> std::result::Result<&v1::Path, String> {
    opened
        .paths
        .iter()
        .find(|offer| offer.fabric == path.name())
        .ok_or_else(|| "the server does not offer it".to_owned())
}

async fn lanes(
    path: Path,
    opened: &Opened,
    endpoint: &Endpoint,
    options: &Options,
) -> std::result::Result<Lanes<Connection>, String> {
    let v1::Path { address, tls, .. } = offer(opened, path)?;
    let place = Place {
        path,
        address,
        tls: *tls,
        endpoint,
        trusted: options.tls.as_ref(),
    };
    let patience = match options.path.allows(Path::Http) {
        true => options.deadline.min(DIAL),
        false => options.deadline,
    };
    let dial = || async {
        let link = place.dial(SessionId(opened.session), &opened.key);
        let link = tokio::time::timeout(patience, link).await;
        link.map_err(|_| format!("{address} does not answer"))?
    };
    Lanes::dialled(options.links.max(1), options.in_flight_max, dial).await
}

/// Where links are made, as the server told.
pub(super) struct Place<'a> {
    pub(super) path: Path,
    pub(super) address: &'a str,
    pub(super) tls: bool,
    /// How the server was found.
    pub(super) endpoint: &'a Endpoint,
    /// For TLS; the machine's certificates when missing.
    pub(super) trusted: Option<&'a Tls>,
}

impl Place<'_> {
    /// Makes a link of a session; what does not work is told in words.
    pub(super) async fn dial(
        &self,
        session: SessionId,
        key: &[u8; 32],
    ) -> std::result::Result<Connection, String> {
        let proof = proof(session, key);
        let address = self.address;
        match self.path {
            Path::Shm => {
                let stream = connect_unix(address.as_ref()).await;
                let stream = stream.map_err(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => "the server is not on this host".to_owned(),
                    _ => format!("{address}: {error}"),
                })?;
                let link = shm::connect(stream, &proof).await;
                let link = link.map_err(|error| error.message)?;
                Ok(Connection::Shm(Arc::new(link)))
            }
            Path::Iwarp => {
                let (host, port) = reachable(address, self.endpoint)?;
                let stream = forebay_io::socket::connect(&host, port).await;
                let stream = stream.map_err(|error| format!("{address}: {error}"))?;
                let stream = match self.tls {
                    false => stream.into(),
                    true => self.secured(stream).await?,
                };
                let link = iwarp::connect(stream, &proof, iwarp::Options::default()).await;
                let link = link.map_err(|error| error.message)?;
                Ok(Connection::Iwarp(Arc::new(link)))
            }
            Path::Http => Err("HTTP has no link".to_owned()),
        }
    }

    /// The server shows a certificate for the host that this program's user named: an address that a server tells is no identity.
    async fn secured(&self, stream: TcpStream) -> std::result::Result<iwarp::Stream, String> {
        let failed = |what: &dyn std::fmt::Display| format!("no TLS with {}: {what}", self.address);
        let tls = match self.trusted {
            Some(tls) => tls.clone(),
            None => Tls::new(None).map_err(|error| failed(&error))?,
        };
        let name = ServerName::try_from(self.endpoint.host().to_owned());
        let name = name.map_err(|error| failed(&error))?;
        let stream = iwarp::Stream::connect(&tls.of_links(), name, stream).await;
        stream.map_err(|error| failed(&error))
    }
}

/// Where to connect for an address that a server told: one that listens on all of its addresses is where the endpoint is.
fn reachable(address: &str, endpoint: &Endpoint) -> std::result::Result<(String, u16), String> {
    let wrong = || format!("{address:?} is not HOST:PORT");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let everywhere = host
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_unspecified());
    let host = if everywhere { endpoint.host() } else { host };
    match is_loopback(host) && !endpoint.is_loopback() {
        true => Err(too_far("direct", "--direct")),
        false => Ok((host.to_owned(), port)),
    }
}

/// Whether a door that a server told of is one of the server found there: its loopback is not everybody's.
fn is_near(door: &Endpoint, found: &Endpoint) -> bool {
    !door.is_loopback() || found.is_loopback()
}

fn too_far(door: &str, flag: &str) -> String {
    format!("the server's {door} door listens on loopback only (serve {flag} ADDRESS)")
}

fn s3(endpoint: Endpoint, credentials: &Credentials, options: &Options) -> Result<S3> {
    let mut config = Config::new(endpoint, credentials.clone());
    config.region = options.region.clone();
    config.tls = options.tls.clone();
    config.attempts = options.attempts;
    config.timeout = options.deadline;
    S3::new(config)
}

#[cfg(test)]
impl Connected {
    /// Nothing but a link, unless HTTP was asked for, and an S3 door: the server has no session of it.
    pub(super) async fn over(link: &Connection, server: &Server) -> Connected {
        let config = Config::new(server.endpoint.clone(), server.credentials.clone());
        let s3 = S3::new(config).unwrap();
        let options = &server.options;
        let dial = || std::future::ready(Ok(link.clone()));
        let (path, lanes) = match options.path.allows(Path::Shm) {
            true => {
                let lanes = Lanes::dialled(options.links, options.in_flight_max, dial).await;
                (Path::Shm, lanes.unwrap())
            }
            false => (Path::Http, Lanes::none()),
        };
        Connected {
            generation: NEXT_GENERATION.fetch_add(1, Relaxed),
            path,
            fallback: None,
            s3_once: Some(s3.trying_once()),
            s3: Some(s3),
            session: SessionId([0; 16]),
            key: [0xd7; 32],
            lease: server.options.lease,
            lanes,
            closed: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            rpc: server.rpc.clone(),
            runtime: tokio::runtime::Handle::current(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_door_on_loopback_is_not_looked_for_on_another_machine() {
        let here: Endpoint = "http://localhost:9001".parse().unwrap();
        let there: Endpoint = "http://10.0.0.7:9001".parse().unwrap();
        let at = |host: &str| Ok((host.to_owned(), 9002));
        assert_eq!(reachable("127.0.0.1:9002", &here), at("127.0.0.1"));
        assert_eq!(reachable("0.0.0.0:9002", &there), at("10.0.0.7"));
        assert_eq!(reachable("10.0.0.8:9002", &there), at("10.0.0.8"));
        for loopback in ["127.0.0.1:9002", "[::1]:9002"] {
            let why = reachable(loopback, &there).unwrap_err();
            let told = "the server's direct door listens on loopback only (serve --direct ADDRESS)";
            assert_eq!(why, told);
            let door: Endpoint = format!("http://{loopback}").parse().unwrap();
            assert!(is_near(&door, &here) && !is_near(&door, &there));
        }
    }

    #[tokio::test]
    async fn a_sign_of_life_that_hangs_does_not_keep_the_next_from_its_turn() {
        let given = AtomicU32::new(0);
        let sign = || async {
            match given.fetch_add(1, Relaxed) {
                0 | 1 => std::future::pending().await,
                2 => true,
                _ => false,
            }
        };
        let signs = thrice(Duration::from_millis(60), sign);
        let ended = tokio::time::timeout(Duration::from_secs(10), signs).await;
        assert!(ended.is_ok());
        assert_eq!(given.load(Relaxed), 4);
    }
}
