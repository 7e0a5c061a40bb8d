//! The client and what every call shares.

use std::sync::Arc;

use parking_lot::RwLock;

use super::attempt::{Budget, Failure, Tries};
use super::connected::Connected;
use super::options::{Options, Path};
use super::rpc::Rpc;
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
    rpc: Rpc,
    endpoint: Endpoint,
    credentials: Credentials,
    options: Options,
    connected: RwLock<Arc<Connected>>,
    connecting: tokio::sync::Mutex<()>,
    budget: Budget,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.inner.endpoint)
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
        let connected = establish(&rpc, endpoint, credentials, &options);
        let connected = tokio::time::timeout(options.deadline, connected)
            .await
            .map_err(|_| Error::TimedOut(options.deadline))??;
        let inner = Inner {
            rpc,
            endpoint: endpoint.clone(),
            credentials: credentials.clone(),
            options,
            connected: RwLock::new(connected),
            connecting: tokio::sync::Mutex::default(),
            budget: Budget::default(),
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// The path that payloads take now.
    pub fn path(&self) -> Path {
        self.connected().path
    }

    /// Why they take no better one.
    pub fn fallback(&self) -> Option<Arc<Fallback>> {
        self.connected().fallback.clone()
    }

    /// A client of the server's S3 door, for what only S3 can do; none when the server has no such door.
    pub fn s3(&self) -> Option<crate::Client> {
        self.connected().s3.clone()
    }

    /// How it was made.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn rpc(&self) -> &Rpc {
        &self.inner.rpc
    }

    pub(crate) fn connected(&self) -> Arc<Connected> {
        self.inner.connected.read().clone()
    }

    pub(crate) fn tries(&self) -> Tries {
        Tries::new(self.inner.options.deadline)
    }

    pub(crate) fn earn(&self) {
        self.inner.budget.earn();
    }

    /// Makes ready for another attempt, or says why there is none. `repeatable`: making the call twice is the same as once.
    pub(crate) async fn again(
        &self,
        connected: &Connected,
        failure: Failure,
        repeatable: bool,
        tries: &mut Tries,
    ) -> Result<()> {
        let (error, lost) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Unable(why) => {
                return Err(Error::Transport {
                    endpoint: connected.path.to_string(),
                    what: why,
                });
            }
            Failure::Again(error) => (error, false),
            Failure::Lost(error) => (error, true),
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
        let allowed = tries.made < self.inner.options.attempts
            && (repeatable || !lost)
            && std::time::Instant::now() < tries.until
            && self.inner.budget.spend();
        if !allowed {
            return Err(error);
        }
        if !lost {
            pause(tries.made).await;
        }
        tries.made += 1;
        Ok(())
    }

    /// Opens another session in place of a broken one, unless somebody else has done so meanwhile.
    async fn mend(&self, broken: &Connected) -> Result<()> {
        let inner = &*self.inner;
        let _one = inner.connecting.lock().await;
        if inner.connected.read().generation != broken.generation {
            return Ok(());
        }
        // HTTP has nothing to mend: its client makes connections as it needs them.
        if broken.lane().is_some() {
            let connected = establish(
                &inner.rpc,
                &inner.endpoint,
                &inner.credentials,
                &inner.options,
            )
            .await?;
            *inner.connected.write() = connected;
        }
        Ok(())
    }
}

async fn establish(
    rpc: &Rpc,
    endpoint: &Endpoint,
    credentials: &Credentials,
    options: &Options,
) -> Result<Arc<Connected>> {
    let connected = Connected::establish(rpc, endpoint, credentials, options).await?;
    let connected = Arc::new(connected);
    tokio::spawn(Connected::keep_alive(
        Arc::downgrade(&connected),
        connected.lease,
    ));
    Ok(connected)
}
