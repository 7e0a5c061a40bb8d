//! A session opened by an S3 request (docs/token.md section 7.3), for programs that know nothing but an S3 door.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_fabric::{CloseReason, Connection, SessionId};

use super::attempt::{Failure, Tries};
use super::connected::Place;
use super::lane::{GRACE, Lane};
use super::options::Path;
use super::token::{Minter, Request, Token};
use super::window::Window;
use crate::token_session::OpenedByS3;
use crate::{Client as S3, Config, Credentials, Endpoint, Error, Result, Tls};

/// How long to wait for a link, and for memory that is in use.
const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing but tokens travels over the link; this many messages would.
const IN_FLIGHT_MAX: usize = 1;

/// A session and its link. It ends when no token of it has been used for as long as the server says, or when this is dropped (the server
/// hears of that only if the runtime goes on).
pub struct TokenSession {
    s3: S3,
    lane: Arc<Lane<Connection>>,
    path: Path,
    session: SessionId,
    key: [u8; 32],
    sequence: AtomicU64,
    runtime: tokio::runtime::Handle,
}

impl TokenSession {
    /// Connects by `POST /.ort1/connect`; `transports` are those wanted, the best first, separated by commas. `tls`: whom to trust, the
    /// machine's certificates when missing.
    ///
    /// # Errors
    /// [`Error::Refused`] when the server has none of them, [`Error::Transport`] when the link cannot be made.
    pub async fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        transports: &str,
        tls: Option<&Tls>,
    ) -> Result<TokenSession> {
        let mut config = Config::new(endpoint.clone(), credentials.clone());
        config.tls = tls.cloned();
        let s3 = S3::new(config)?;
        let opened = s3.open_token_session(transports).await?;
        let session = SessionId(opened.session);
        match linked(&opened, endpoint, tls).await {
            Ok((path, link)) => Ok(TokenSession {
                s3,
                lane: Lane::start(link, IN_FLIGHT_MAX, GRACE),
                path,
                session,
                key: opened.key,
                sequence: AtomicU64::new(0),
                runtime: tokio::runtime::Handle::current(),
            }),
            Err(error) => {
                let _ = s3.close_token_session(session).await;
                Err(error)
            }
        }
    }

    /// By what payloads will travel.
    pub fn path(&self) -> Path {
        self.path
    }

    /// As [`super::Client::token`].
    ///
    /// # Errors
    /// [`Error::Transport`] when the link has ended.
    pub async fn token(
        &self,
        request: &Request<'_>,
        window: impl Into<Window<'_>>,
    ) -> Result<Token> {
        let window = window.into();
        window.check()?;
        let minter = Minter {
            session: self.session,
            key: &self.key,
            sequence: &self.sequence,
            checksum: true,
        };
        let tries = Tries::new(PATIENCE, 0);
        let minted = minter.mint(0, &self.lane, request, &window, &tries).await;
        minted.map_err(|failure| match failure {
            Failure::Final(error)
            | Failure::Again(error)
            | Failure::Unclear(error)
            | Failure::Lost(error)
            | Failure::Unsent(error) => error,
            Failure::Unable(what) => Error::Transport {
                endpoint: self.path.to_string(),
                what,
            },
        })
    }

    /// Ends the link, and so the use of every token.
    pub fn close_link(&self) {
        self.lane.close(CloseReason::Done);
    }
}

/// The link that the server said where to make.
async fn linked(
    opened: &OpenedByS3,
    endpoint: &Endpoint,
    tls: Option<&Tls>,
) -> Result<(Path, Connection)> {
    let path = match opened.transport.as_str() {
        "shm" => Path::Shm,
        "iwarp" => Path::Iwarp,
        other => return Err(Error::Protocol(format!("transport {other:?}"))),
    };
    let place = Place {
        path,
        address: &opened.address,
        tls: opened.tls,
        endpoint,
        trusted: tls,
    };
    let link = place.dial(SessionId(opened.session), &opened.key);
    let link = tokio::time::timeout(PATIENCE, link).await;
    let link = link.map_err(|_| Error::TimedOut(PATIENCE))?;
    let link = link.map_err(|what| Error::Transport {
        endpoint: path.to_string(),
        what,
    })?;
    Ok((path, link))
}

/// Without the key.
impl fmt::Debug for TokenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSession")
            .field("path", &self.path)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Drop for TokenSession {
    fn drop(&mut self) {
        self.close_link();
        let (s3, session) = (self.s3.clone(), self.session);
        self.runtime.spawn(async move {
            let _ = s3.close_token_session(session).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::direct::rpc::Opened;
    use crate::direct::{Client, Options};

    /// What nobody would show by chance.
    const KEY: [u8; 32] = [0xd7; 32];

    fn assert_hidden(shown: &str) {
        assert!(!shown.contains("215, 215"), "{shown}");
        assert!(shown.contains("SessionId"), "{shown}");
    }

    /// A session over this client's link.
    fn session(client: &Client) -> TokenSession {
        TokenSession {
            s3: client.s3().unwrap(),
            lane: client.connected().lane().unwrap().clone(),
            path: Path::Shm,
            session: SessionId([1; 16]),
            key: KEY,
            sequence: AtomicU64::new(0),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    #[tokio::test]
    async fn the_server_hears_when_a_session_is_dropped() {
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", door.local_addr().unwrap());
        let (client, ..) = Client::linked(&endpoint, Options::default()).await;
        drop(session(&client));
        let told = tokio::time::timeout(PATIENCE, door.accept()).await;
        let (stream, _) = told.unwrap().unwrap();
        let mut head = BufReader::new(stream).lines();
        let first = head.next_line().await.unwrap().unwrap();
        assert_eq!(first, "POST /.ort1/disconnect HTTP/1.1");
        let named = format!("x-amz-rdma-session: {}", "01".repeat(16));
        while head.next_line().await.unwrap().unwrap() != named {}
    }

    #[tokio::test]
    async fn keys_of_sessions_are_not_shown() {
        let (client, ..) = Client::linked("http://127.0.0.1:1", Options::default()).await;
        let connected = client.connected();
        assert_eq!(connected.key, KEY);
        assert_hidden(&format!("{connected:?}"));
        assert_hidden(&format!("{:?}", session(&client)));
        let opened = Opened {
            session: [1; 16],
            key: KEY,
            lease: PATIENCE,
            paths: Vec::new(),
        };
        assert_hidden(&format!("{opened:?}"));
    }
}
