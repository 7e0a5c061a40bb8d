//! What a node configures about direct payloads, and the tokens being served at this moment.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{SessionId, Sessions};
use forebay_proto::token::ort1::{Limits, Transport};
use parking_lot::Mutex;

use crate::object_put::PUT_BYTES_MAX;

/// How payloads of S3 requests go straight between the store and a client's memory.
#[derive(Debug, Clone)]
pub struct Direct {
    /// The sessions of this server.
    pub sessions: Arc<Sessions>,
    /// The Unix socket where clients of this host connect for shared memory.
    pub uds: Option<PathBuf>,
    /// Where clients connect for iWARP.
    pub cm: Option<SocketAddr>,
    /// Whether they do so over TLS.
    pub cm_tls: bool,
    /// The most bytes that one token moves.
    pub bytes_max: u64,
    /// The most tokens of one session being served at once.
    pub in_flight: u32,
    /// After how long without a token a session ends.
    pub idle: Duration,
    /// How long after a request's head work may be given to the fabric, at most: a token says how long its client has patience.
    pub lease: Duration,
    /// Whether the headers in which other vendors carry descriptors are read. A write that has one is declined either way.
    pub vendor_carriers: bool,
}

impl Direct {
    /// A configuration that offers no way to connect yet.
    pub fn new(sessions: Arc<Sessions>) -> Direct {
        Direct {
            sessions,
            uds: None,
            cm: None,
            cm_tls: false,
            bytes_max: PUT_BYTES_MAX,
            in_flight: 64,
            idle: Duration::from_secs(300),
            lease: Duration::from_secs(50),
            vendor_carriers: false,
        }
    }

    /// Whether a client may connect over `transport`, from this host or from another.
    pub(super) fn serves(&self, transport: Transport, same_host: bool) -> bool {
        match transport {
            Transport::Shm => self.uds.is_some() && same_host,
            Transport::Iwarp => self.cm.is_some(),
            Transport::Rc | Transport::Dc => false,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            bytes_max: self.bytes_max,
            in_flight: self.in_flight,
            idle_s: u32::try_from(self.idle.as_secs()).unwrap_or(u32::MAX),
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

/// The configuration at work.
pub(crate) struct Lender {
    pub(super) direct: Direct,
    serving: Arc<Mutex<HashMap<SessionId, u32>>>,
}

impl Lender {
    pub(crate) fn new(direct: Direct) -> Lender {
        Lender {
            direct,
            serving: Arc::default(),
        }
    }

    /// Counts a token of a session in; `None` when as many as may are being served.
    pub(super) fn begin(&self, session: SessionId) -> Option<Serving> {
        let mut serving = self.serving.lock();
        let count = serving.entry(session).or_default();
        if *count >= self.direct.in_flight {
            return None;
        }
        *count += 1;
        Some(Serving {
            session,
            serving: Arc::clone(&self.serving),
        })
    }
}

/// One token being served.
pub(super) struct Serving {
    session: SessionId,
    serving: Arc<Mutex<HashMap<SessionId, u32>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut serving = self.serving.lock();
        if let Some(count) = serving.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                serving.remove(&self.session);
            }
        }
    }
}
