//! What a node configures about direct payloads, and the tokens being served at this moment.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::iwarp::OUTSTANDING_BYTES_MAX;
use forebay_fabric::{Fabric, Session, SessionId, Sessions};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::token::ort1::{Direction, Limits, Transport};
use forebay_store::Caps;
use parking_lot::Mutex;

use crate::object_put::PUT_BYTES_MAX;
use crate::status::Outcome;

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

/// What the tokens of one tenant may hold of all buffers.
const TENANT_PART: u64 = 2;

/// What tokens hold of the store's buffers.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    /// The length of one.
    bytes: u64,
    /// The most of a token that reads its client's memory: one is filled while another is written, behind those that the store still
    /// has.
    arriving: u64,
    /// The most of one that writes to it: one is written, and the store has read ahead.
    leaving: u64,
    /// Of these the most that were written and that a link over TCP has yet to send.
    queued: u64,
    /// What the tokens of one tenant may hold together.
    tenant: u64,
}

impl Buffers {
    fn of(caps: &Caps, pool_bytes: u64) -> Buffers {
        let bytes = caps.chunk_bytes.max(1) as u64;
        Buffers {
            bytes,
            arriving: caps.write_behind as u64 + 2,
            leaving: caps.read_ahead as u64 + 1,
            queued: (OUTSTANDING_BYTES_MAX as u64).div_ceil(bytes),
            tenant: pool_bytes / TENANT_PART / bytes,
        }
    }

    /// The most of one token, however much it moves.
    fn most(&self, direction: Direction, fabric: Fabric) -> u64 {
        match (direction, fabric) {
            (Direction::Read, _) => self.arriving,
            (Direction::Write, Fabric::Shm) => self.leaving,
            (Direction::Write, Fabric::Iwarp) => self.leaving + self.queued,
        }
    }

    /// Those in which bytes `range` of a value lie.
    fn around(&self, range: &Range<u64>) -> u64 {
        range.end.div_ceil(self.bytes) - range.start / self.bytes
    }

    /// Whether a tenant whose tokens hold so many may hold so many more. One token is served however small the part is.
    fn allow(&self, held: u64, more: u64) -> bool {
        held == 0 || held + more <= self.tenant
    }
}

/// The configuration at work.
pub(crate) struct Lender {
    pub(super) direct: Direct,
    buffers: Buffers,
    serving: Arc<Mutex<Counts>>,
}

/// What is being served at this moment.
#[derive(Default)]
struct Counts {
    /// Tokens.
    sessions: HashMap<SessionId, u64>,
    /// Buffers that their tokens may hold.
    tenants: HashMap<Box<str>, u64>,
}

impl Lender {
    /// For a store that can so much, and has so many bytes of buffers.
    pub(crate) fn new(direct: Direct, pool_bytes: u64, caps: &Caps) -> Lender {
        Lender {
            direct,
            buffers: Buffers::of(caps, pool_bytes),
            serving: Arc::default(),
        }
    }

    /// Counts a token of a session in that moves at most so many bytes; `None` when as many as may are being served.
    pub(super) fn begin(
        &self,
        session: &Arc<Session>,
        direction: Direction,
        fabric: Fabric,
        bytes: u64,
    ) -> Option<Serving> {
        let buffers = self.buffers;
        let most = buffers.most(direction, fabric);
        let held = buffers.around(&(0..bytes)).clamp(1, most);
        let mut serving = self.serving.lock();
        let Counts { sessions, tenants } = &mut *serving;
        let (id, tenant) = (session.id(), session.tenant());
        let of_session = sessions.get(&id).copied().unwrap_or(0);
        let of_tenant = tenants.get(tenant).copied().unwrap_or(0);
        if of_session >= u64::from(self.direct.in_flight) || !buffers.allow(of_tenant, held) {
            return None;
        }
        sessions.insert(id, of_session + 1);
        match tenants.get_mut(tenant) {
            Some(count) => *count += held,
            None => drop(tenants.insert(tenant.into(), held)),
        }
        Some(Serving {
            session: Arc::clone(session),
            serving: Arc::clone(&self.serving),
            buffers,
            most,
            held,
        })
    }
}

/// One token being served.
pub(super) struct Serving {
    session: Arc<Session>,
    serving: Arc<Mutex<Counts>>,
    buffers: Buffers,
    most: u64,
    /// Buffers that are counted for it.
    held: u64,
}

impl Serving {
    /// Bytes `range` of a value were found, in place of what the token has room for: they are read ahead whatever room that is.
    ///
    /// # Errors
    /// `SlowDown` when with the others of the tenant they hold more than they may.
    pub(super) fn found(&mut self, range: &Range<u64>) -> Outcome<()> {
        let held = self.buffers.around(range).clamp(1, self.most);
        let mut serving = self.serving.lock();
        // It is there as long as this one is counted in it.
        if let Some(count) = serving.tenants.get_mut(self.session.tenant()) {
            let others = *count - self.held;
            if !self.buffers.allow(others, held) {
                return Err(ErrorCode::SlowDown.into());
            }
            *count = others + held;
        }
        self.held = held;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut serving = self.serving.lock();
        uncount(&mut serving.sessions, &self.session.id(), 1);
        uncount(&mut serving.tenants, self.session.tenant(), self.held);
    }
}

fn uncount<K, Q>(counts: &mut HashMap<K, u64>, key: &Q, by: u64)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= by;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
