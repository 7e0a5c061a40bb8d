//! The client and what every call shares.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OnceCell;

use super::attempt::{Budget, Failure, Tries};
use super::connected::Connected;
use super::options::{Choice, Options, Path};
use super::rpc::Rpc;
use super::seat::{Memory, Seat, Server};
use super::transfer::Fallback;
use crate::client::pause;
use crate::{Credentials, Endpoint, Error, Result};

/// A client of one server and one identity. Cloning shares its session.
///
/// Calls may come from any task and thread; those of one client share its links. Every call is made by its caller's task, so dropping
/// its future cancels it; see [`super::Region`] for what that means to memory.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    server: Arc<Server>,
    /// For all memory that the best path reaches.
    seat: Arc<Seat>,
    /// For memory of this process alone, when shared memory is the best path: taken by the first call over such memory.
    private: OnceCell<Arc<Seat>>,
    budget: Budget,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.inner.server.endpoint)
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a session at a gRPC endpoint and makes the best link there is. Needs a tokio runtime, here and later.
    ///
    /// # Errors
    /// [`Error::Transport`] when nobody answers there or no path that `options` allows works; [`Error::Refused`] when the
    /// identity is not known or has too many sessions.
    pub async fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        options: Options,
    ) -> Result<Client> {
        let rpc = Rpc::new(
            endpoint,
            credentials,
            options.tls.as_ref(),
            options.deadline,
        )?;
        let deadline = options.deadline;
        let server = Arc::new(Server {
            rpc,
            endpoint: endpoint.clone(),
            credentials: credentials.clone(),
            options,
        });
        let seat = Seat::take(server.clone(), Memory::Mappable);
        let seat = tokio::time::timeout(deadline, seat)
            .await
            .map_err(|_| Error::TimedOut(deadline))??;
        let inner = Inner {
            server,
            seat,
            private: OnceCell::new(),
            budget: Budget::default(),
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// The path that payloads take now.
    pub fn path(&self) -> Path {
        self.inner.seat.connected().path
    }

    /// Why they take no better one.
    pub fn fallback(&self) -> Option<Arc<Fallback>> {
        self.inner.seat.connected().fallback.clone()
    }

    /// A client of the server's S3 door, for what only S3 can do; none when the server has no such door.
    pub fn s3(&self) -> Option<crate::Client> {
        self.inner.seat.connected().s3.clone()
    }

    /// How it was made.
    pub fn options(&self) -> &Options {
        &self.inner.server.options
    }

    pub(crate) fn rpc(&self) -> &Rpc {
        &self.inner.server.rpc
    }

    pub(crate) fn connected(&self) -> Arc<Connected> {
        self.inner.seat.for_call()
    }

    /// The session for a call over this memory.
    pub(crate) async fn reaching(&self, memory: Memory, tries: &Tries) -> Arc<Connected> {
        match memory {
            Memory::Mappable => self.connected(),
            // Boxed: the rare way must not make the usual one's future large.
            Memory::Private => Box::pin(self.reaching_private(tries)).await,
        }
    }

    async fn reaching_private(&self, tries: &Tries) -> Arc<Connected> {
        let inner = &*self.inner;
        let usual = self.connected();
        if usual.path != Path::Shm || inner.server.options.path != Choice::Auto {
            return usual;
        }
        let seat = inner
            .private
            .get_or_try_init(|| Seat::take(inner.server.clone(), Memory::Private));
        match tokio::time::timeout_at(tries.until.into(), seat).await {
            Ok(Ok(seat)) => seat.for_call(),
            // The call itself finds out whether the server is there.
            Ok(Err(_)) | Err(_) => usual,
        }
    }

    /// The attempts of a call that moves so many bytes.
    pub(crate) fn tries(&self, bytes: usize) -> Tries {
        Tries::new(self.inner.server.options.deadline, bytes as u64)
    }

    pub(crate) fn earn(&self) {
        self.inner.budget.earn();
    }

    /// Makes ready for another attempt, or says why there is none. `repeatable`: making the call twice is the same as once; else it is
    /// made again only if nothing of it was done.
    pub(crate) async fn again(
        &self,
        connected: &Connected,
        failure: Failure,
        repeatable: bool,
        tries: &mut Tries,
    ) -> Result<()> {
        let undone = matches!(failure, Failure::Unsent(_) | Failure::Again(_));
        let repeatable = repeatable || undone;
        let (error, lost) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Unable(why) => {
                return Err(Error::Transport {
                    endpoint: connected.path.to_string(),
                    what: why,
                });
            }
            Failure::Again(error) | Failure::Unclear(error) => (error, false),
            Failure::Lost(error) | Failure::Unsent(error) => (error, true),
        };
        let error = match repeatable {
            true => error,
            false => error.of_unknown_outcome(),
        };
        // The link is mended for the calls to come, too.
        if lost {
            let mend = Box::pin(self.mend(connected));
            let mended = tokio::time::timeout_at(tries.until.into(), mend).await;
            match mended {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(error),
            }
        }
        if !repeatable || !self.may_try_again(tries.made, tries) {
            return Err(error);
        }
        // A link that was made again is worth an attempt at once.
        if !lost || connected.lane().is_none() {
            pause(tries.made).await;
        }
        tries.made += 1;
        Ok(())
    }

    /// Whether a call of which so many attempts were made may be made once more. Whoever is told so has spent a retry.
    pub(crate) fn may_try_again(&self, made: u32, tries: &Tries) -> bool {
        made < self.inner.server.options.attempts
            && Instant::now() < tries.until
            && self.inner.budget.spend()
    }

    /// Opens another session in place of a broken one, unless somebody else has done so.
    async fn mend(&self, broken: &Connected) -> Result<()> {
        let seats = [Some(&self.inner.seat), self.inner.private.get()];
        match seats.into_iter().flatten().find(|seat| seat.is(broken)) {
            Some(seat) => seat.mend(broken).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
impl Client {
    /// One of shared memory and an S3 door, with the server's end and what keeps it.
    pub(crate) async fn linked(
        s3: &str,
        options: Options,
    ) -> (Client, forebay_fabric::Connection, forebay_fabric::Sessions) {
        use forebay_fabric::{Connection, shm};
        let (sessions, proof) = Client::session();
        let (here, there) = tokio::net::UnixStream::pair().unwrap();
        let ends = tokio::join!(shm::accept(here, &sessions), shm::connect(there, &proof));
        let link = Connection::Shm(Arc::new(ends.1.unwrap()));
        let client = Client::over(&link, s3, options).await;
        (client, ends.0.unwrap().link, sessions)
    }

    /// A server's sessions, one of them open, and the proof of that.
    pub(super) fn session() -> (
        forebay_fabric::Sessions,
        [u8; forebay_fabric::sessions::PROOF_BYTES],
    ) {
        use forebay_fabric::sessions::{Limits, Principal};
        use forebay_fabric::{Sessions, SystemClock};
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let principal = Principal {
            tenant: "tenant",
            id: "KEY",
            secret: "secret",
        };
        let lease = std::time::Duration::from_secs(60);
        let session = sessions.open_with_random_key(principal, lease);
        let proof = session.unwrap().proof();
        (sessions, proof)
    }

    /// Gives it the session of another client, as if its own had been found broken.
    pub(super) fn mended_by(&self, other: &Client) {
        self.inner.seat.replace(other.connected());
    }

    /// A client with nothing but a link and an S3 door.
    pub(super) async fn over(
        link: &forebay_fabric::Connection,
        s3: &str,
        options: Options,
    ) -> Client {
        let endpoint: Endpoint = s3.parse().unwrap();
        let credentials = Credentials {
            access_key: "KEY".to_owned(),
            secret_key: "secret".to_owned(),
        };
        let server = Arc::new(Server {
            rpc: Rpc::new(&endpoint, &credentials, None, options.deadline).unwrap(),
            endpoint,
            credentials,
            options,
        });
        let connected = Arc::new(Connected::over(link, &server).await);
        let inner = Inner {
            seat: Seat::of(server.clone(), Memory::Mappable, connected),
            server,
            private: OnceCell::new(),
            budget: Budget::default(),
        };
        Client {
            inner: Arc::new(inner),
        }
    }
}
