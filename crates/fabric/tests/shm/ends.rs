//! Two ends of a link.

use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::shm::{self, ShmLink};
use forebay_fabric::{Accepted, Connection, Session, Sessions, SystemClock};
use tokio::net::UnixStream;

pub const LEASE: Duration = Duration::from_secs(60);

pub fn key_of(tenant: &str) -> Principal<'_> {
    Principal {
        tenant,
        id: "key",
        secret: "secret",
    }
}

pub struct Ends {
    pub sessions: Arc<Sessions>,
    pub session: Arc<Session>,
    pub server: Accepted,
    pub client: ShmLink,
}

pub fn sessions() -> Arc<Sessions> {
    let clock = Arc::new(SystemClock::default());
    Arc::new(Sessions::new(clock, Limits::default()))
}

/// A new session of that tenant's.
pub fn session_of(sessions: &Sessions, tenant: &str) -> Arc<Session> {
    let session = sessions.open_with_random_key(key_of(tenant), LEASE);
    session.unwrap()
}

pub async fn ends() -> Ends {
    let sessions = sessions();
    let session = session_of(&sessions, "tenant");
    let (server, client) = joined(&sessions, &session).await;
    Ends {
        sessions,
        session,
        server,
        client,
    }
}

/// Another link of a session.
pub async fn joined(sessions: &Sessions, session: &Session) -> (Accepted, ShmLink) {
    let (here, there) = UnixStream::pair().unwrap();
    let proof = session.proof();
    let (server, client) = tokio::join!(shm::accept(here, sessions), shm::connect(there, &proof));
    (server.unwrap(), client.unwrap())
}

/// As the suite wants them.
pub async fn connections() -> (Connection, Connection, Arc<Sessions>) {
    let Ends {
        sessions,
        session,
        server,
        client,
    } = ends().await;
    // The session would keep the link alive.
    drop(session);
    (server.link, Connection::Shm(Arc::new(client)), sessions)
}
