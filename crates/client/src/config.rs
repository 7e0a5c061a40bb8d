//! How a server is reached.

use std::fmt;
use std::time::Duration;

use crate::{Credentials, Endpoint, Tls};

/// How to reach a server.
#[derive(Clone)]
pub struct Config {
    /// Where it is.
    pub endpoint: Endpoint,
    /// As whom.
    pub credentials: Credentials,
    /// What goes with credentials that are good for a while.
    pub session_token: Option<String>,
    /// The region that signatures name.
    pub region: String,
    /// For `https`: whom to trust; the machine's certificates when missing.
    pub tls: Option<Tls>,
    /// The most connections, and so the most requests in flight.
    pub connections_max: usize,
    /// How often a call is made in all before it fails.
    pub attempts: u32,
    /// How long to wait for a connection, an answer's head, or the next bytes of a body. An answer may take a second more for every 256 KiB
    /// that are sent, or copied inside the server, before it.
    pub timeout: Duration,
}

/// Without the token.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("endpoint", &self.endpoint)
            .field("credentials", &self.credentials)
            .field("region", &self.region)
            .field("connections_max", &self.connections_max)
            .field("attempts", &self.attempts)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The defaults: region `us-east-1`, 64 connections, 6 attempts, 60 s.
    pub fn new(endpoint: Endpoint, credentials: Credentials) -> Config {
        Config {
            endpoint,
            credentials,
            session_token: None,
            region: "us-east-1".to_owned(),
            tls: None,
            connections_max: 64,
            attempts: 6,
            timeout: Duration::from_secs(60),
        }
    }
}
