//! What a node configures about direct payloads, and the tokens being served at this moment.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::{Session, SessionId, Sessions};
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
    /// The most tokens of one session being served at once. Those of all sessions of a tenant are bound by the buffers, too.
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

/// Buffers that a token holds at most: one is filled while another is written.
const BUFFERS: u64 = 2;
/// What the tokens of one tenant may hold of all buffers.
const TENANT_PART: u64 = 2;

/// The configuration at work.
pub(crate) struct Lender {
    pub(super) direct: Direct,
    /// The most tokens of one tenant being served at once, whatever number of sessions it has.
    tenant_in_flight: u32,
    serving: Arc<Mutex<Counts>>,
}

/// Tokens being served at this moment.
#[derive(Default)]
struct Counts {
    sessions: HashMap<SessionId, u32>,
    tenants: HashMap<Box<str>, u32>,
}

impl Lender {
    /// For a store that has so many bytes of buffers, each at most `chunk_bytes` long.
    pub(crate) fn new(direct: Direct, pool_bytes: u64, chunk_bytes: usize) -> Lender {
        let held = BUFFERS * (chunk_bytes.max(1) as u64);
        let part = u32::try_from(pool_bytes / TENANT_PART / held).unwrap_or(u32::MAX);
        Lender {
            tenant_in_flight: part.max(direct.in_flight),
            direct,
            serving: Arc::default(),
        }
    }

    /// Counts a token of a session in; `None` when as many as may are being served.
    pub(super) fn begin(&self, session: &Arc<Session>) -> Option<Serving> {
        let mut serving = self.serving.lock();
        let Counts { sessions, tenants } = &mut *serving;
        let (id, tenant) = (session.id(), session.tenant());
        let of_session = sessions.get(&id).copied().unwrap_or(0);
        let of_tenant = tenants.get(tenant).copied().unwrap_or(0);
        if of_session >= self.direct.in_flight || of_tenant >= self.tenant_in_flight {
            return None;
        }
        sessions.insert(id, of_session + 1);
        match tenants.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(tenants.insert(tenant.into(), 1)),
        }
        Some(Serving {
            session: Arc::clone(session),
            serving: Arc::clone(&self.serving),
        })
    }
}

/// One token being served.
pub(super) struct Serving {
    session: Arc<Session>,
    serving: Arc<Mutex<Counts>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut serving = self.serving.lock();
        uncount(&mut serving.sessions, &self.session.id());
        uncount(&mut serving.tenants, self.session.tenant());
    }
}

fn uncount<K, Q>(counts: &mut HashMap<K, u32>, key: &Q)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
