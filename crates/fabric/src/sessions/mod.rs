//! Who is connected: sessions, their leases, and what they let the server reach.
//!
//! A session belongs to one tenant and one principal (an access key) and lives while its lease is renewed. Its client and the server
//! share a key, K_s, with which the client proves that a connection belongs to the session ([`proof`]) and the server makes grants.
//! What belongs to somebody else looks exactly like what does not exist: lookups that may be asked by anybody answer `None` for both.

mod grant;
mod lent;
mod principal;
mod proof;
mod seats;
mod session;
mod window;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_io::Clock;
use forebay_proto::hex;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::seats::Seats;
use crate::{iwarp, shm};

pub use grant::{Grant, Granted};
pub use lent::{Lent, Registered, RegisteredId};
pub use principal::Principal;
pub(crate) use proof::MAGIC;
pub use proof::{PROOF_BYTES, proof};
pub use session::{LinkId, Serving, Session, Traffic};
pub use window::WINDOW;

/// Names a session; 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A new one.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn random() -> io::Result<SessionId> {
        let mut bytes = [0; 16];
        forebay_io::random(&mut bytes)?;
        Ok(SessionId(bytes))
    }

    /// The one after it, in the order of their bytes.
    pub fn next(self) -> Option<SessionId> {
        let next = u128::from_be_bytes(self.0).checked_add(1)?;
        Some(SessionId(next.to_be_bytes()))
    }

    /// Reads its 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<SessionId> {
        hex::decode(text.as_bytes()).map(SessionId)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// The most that sessions may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Sessions in all.
    pub sessions: usize,
    /// Sessions of one tenant.
    pub sessions_per_tenant: usize,
    /// Links of one session.
    pub links: usize,
    /// Links of all sessions together. A tenant has no more of them than it leaves: alone a half, of two each a third.
    pub links_in_all: usize,
    /// Bytes of messages that nobody has taken, over all iWARP links whose peers owe an answer, beyond the first 128 KiB of each. A tenant
    /// has no more of them than it leaves: alone a half, of two each a third.
    pub backlog: usize,
    /// Registered regions of one session.
    pub regions: usize,
    /// Grants of one session.
    pub grants: usize,
    /// The longest lease; a longer one is shortened.
    pub lease: Duration,
    /// The longest life of a grant; a longer one is shortened.
    pub grant: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 65_536,
            sessions_per_tenant: 16_384,
            links: 16,
            links_in_all: 65_536,
            backlog: 64 << 20,
            regions: 1024,
            grants: 4096,
            lease: Duration::from_secs(15 * 60),
            grant: Duration::from_secs(15 * 60),
        }
    }
}

/// Why a session did not take something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The server has as many sessions as it may.
    #[error("the server has no room for another session")]
    Sessions,
    /// The tenant has as many sessions as it may.
    #[error("the tenant has no room for another session")]
    TenantSessions,
    /// The session has as many links as it may.
    #[error("the session has no room for another link")]
    Links,
    /// The tenant has as many links as it leaves to others.
    #[error("the tenant has no room for another link")]
    TenantLinks,
    /// The session has as many regions as it may.
    #[error("the session has no room for another region")]
    Regions,
    /// The session has as many grants as it may.
    #[error("the session has no room for another grant")]
    Grants,
    /// The session, or the link named, has ended or never was.
    #[error("there is no such session or link")]
    Ended,
    /// There is no such region.
    #[error("there is no such region")]
    Unknown,
    /// The region does not have these bytes, or not for this access.
    #[error("the region does not allow that")]
    Range,
    /// The system gave no randomness.
    #[error("the system gave no randomness")]
    Entropy,
}

/// The sessions of a server.
pub struct Sessions {
    clock: Arc<dyn Clock>,
    limits: Arc<Limits>,
    seats: Arc<Seats>,
    backlog: Arc<iwarp::Backlog>,
    table: Mutex<Table>,
    opened: Notify,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Those that have ended while links of them were served. Whoever serves one has it, nobody here.
    ending: HashMap<SessionId, Weak<Session>>,
    per_tenant: HashMap<Box<str>, Tenant>,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.ending.is_empty()
    }
}

/// What the sessions of one tenant have together. It may outlive them all: a file that somebody serves is let go when he answers.
#[derive(Default)]
struct Tenant {
    sessions: BTreeSet<SessionId>,
    mapped: Weak<shm::Share>,
    backlog: Weak<iwarp::Share>,
}

/// Where one session finds that.
struct Shares {
    mapped: Arc<shm::Share>,
    backlog: Arc<iwarp::Share>,
}

impl Tenant {
    fn shares(&mut self, backlog: &Arc<iwarp::Backlog>) -> Shares {
        Shares {
            mapped: kept(&mut self.mapped, shm::Share::of_tenant),
            backlog: kept(&mut self.backlog, || backlog.share()),
        }
    }

    fn has_nothing(&self) -> bool {
        let others = self.mapped.strong_count() + self.backlog.strong_count();
        self.sessions.is_empty() && others == 0
    }
}

/// The one that is there, or a new one.
fn kept<T>(share: &mut Weak<T>, new: impl FnOnce() -> T) -> Arc<T> {
    share.upgrade().unwrap_or_else(|| {
        let new = Arc::new(new());
        *share = Arc::downgrade(&new);
        new
    })
}

impl Sessions {
    /// None yet. Leases run on `clock`'s monotonic time, grants end at its time of day.
    pub fn new(clock: Arc<dyn Clock>, limits: Limits) -> Sessions {
        Sessions {
            clock,
            seats: Arc::default(),
            backlog: iwarp::Backlog::new(limits.backlog),
            limits: Arc::new(limits),
            table: Mutex::default(),
            opened: Notify::new(),
        }
    }

    /// The most they may hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Opens a session of `principal` for `lease`; `key` makes its K_s, which may depend on the id.
    ///
    /// # Errors
    /// [`Refused::Sessions`], [`Refused::TenantSessions`] at the bounds, [`Refused::Entropy`].
    pub fn open(
        &self,
        principal: Principal<'_>,
        lease: Duration,
        key: impl FnOnce(SessionId) -> [u8; 32],
    ) -> Result<Arc<Session>, Refused> {
        let id = SessionId::random().map_err(|_| Refused::Entropy)?;
        let key = key(id);
        let (clock, limits) = (self.clock.clone(), self.limits.clone());
        let seats = self.seats.clone();
        let mut table = self.table.lock();
        if table.sessions.len() >= self.limits.sessions {
            return Err(Refused::Sessions);
        }
        let of_tenant = table.per_tenant.entry(principal.tenant.into());
        let of_tenant = of_tenant.or_default();
        if of_tenant.sessions.len() >= self.limits.sessions_per_tenant {
            return Err(Refused::TenantSessions);
        }
        of_tenant.sessions.insert(id);
        let shares = of_tenant.shares(&self.backlog);
        let session = Session::new(id, principal, key, clock, limits, seats, shares);
        session.extend(lease);
        let session = Arc::new(session);
        table.sessions.insert(id, session.clone());
        drop(table);
        self.opened.notify_one();
        Ok(session)
    }

    /// Opens a session whose key is random: the caller gives it to the client on a way that nobody reads.
    ///
    /// # Errors
    /// As [`Sessions::open`].
    pub fn open_with_random_key(
        &self,
        principal: Principal<'_>,
        lease: Duration,
    ) -> Result<Arc<Session>, Refused> {
        let mut key = [0; 32];
        forebay_io::random(&mut key).map_err(|_| Refused::Entropy)?;
        self.open(principal, lease, |_| key)
    }

    /// The session of that name, if its lease still runs.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.table.lock().sessions.get(&id).cloned()?;
        if session.is_open() {
            return Some(session);
        }
        self.end(&session);
        None
    }

    /// The session of that name if it is this tenant's and this principal's; somebody else's is as none.
    pub fn find_of(&self, id: SessionId, tenant: &str, principal: &str) -> Option<Arc<Session>> {
        self.find(id)
            .filter(|session| session.is_of_name(tenant, principal))
    }

    /// The session of that name if it has ended, by whatever, while what was asked over its links goes on: [`Session::quiet`] tells when
    /// that is over.
    pub fn ending(&self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.table.lock().ending.get(&id).and_then(Weak::upgrade);
        session.filter(|session| session.is_served())
    }

    /// The same of this tenant and this principal; somebody else's is as none.
    pub fn ending_of(&self, id: SessionId, tenant: &str, principal: &str) -> Option<Arc<Session>> {
        self.ending(id)
            .filter(|session| session.is_of_name(tenant, principal))
    }

    /// All of this tenant that have ended while what was asked over their links goes on.
    pub fn all_ending(&self, tenant: &str) -> Vec<Arc<Session>> {
        let ending: Vec<_> = {
            let table = self.table.lock();
            table.ending.values().filter_map(Weak::upgrade).collect()
        };
        let of_tenant = |session: &Arc<Session>| session.is_served() && session.tenant() == tenant;
        ending.into_iter().filter(of_tenant).collect()
    }

    /// The session that a new connection proves to belong to. Without one, the answer takes as long as with a wrong proof.
    pub fn admit(&self, proof: &[u8; PROOF_BYTES]) -> Option<Arc<Session>> {
        let id = proof::claimed(proof)?;
        let session = self.find(id);
        let nobody = [0; 32];
        let key = session.as_ref().map_or(&nobody, |session| session.key());
        let proved = proof::proves(proof, id, key);
        session.filter(|_| proved)
    }

    /// Lets the lease run for `lease` from now; false when there is no such session.
    pub fn renew(&self, id: SessionId, lease: Duration) -> bool {
        let session = self.find(id);
        if let Some(session) = &session {
            session.extend(lease);
        }
        session.is_some()
    }

    /// Ends a session: when this returns, its links are closed and its regions and grants are gone. False when there is none.
    pub fn close(&self, id: SessionId) -> bool {
        let session = self.table.lock().sessions.get(&id).cloned();
        if let Some(session) = &session {
            self.end(session);
        }
        session.is_some()
    }

    /// Ends all sessions of a tenant; how many had not ended.
    pub fn close_all(&self, tenant: &str) -> usize {
        let all: Vec<_> = {
            let table = self.table.lock();
            let of_tenant = table.per_tenant.get(tenant);
            let ids = of_tenant.into_iter().flat_map(|tenant| &tenant.sessions);
            ids.filter_map(|id| table.sessions.get(id).cloned())
                .collect()
        };
        let open = all.iter().filter(|session| session.is_open()).count();
        all.iter().for_each(|session| self.end(session));
        open
    }

    /// Ends the sessions whose leases have run out, and forgets those that ended before and are done; how many have run out. To be called
    /// about once a second.
    pub fn expire(&self) -> usize {
        let run_out: Vec<_> = {
            let mut table = self.table.lock();
            table.per_tenant.retain(|_, tenant| !tenant.has_nothing());
            table.ending.retain(|_, session| session.strong_count() > 0);
            let all = table.sessions.values();
            all.filter(|session| !session.is_open()).cloned().collect()
        };
        run_out.iter().for_each(|session| self.end(session));
        run_out.len()
    }

    /// Returns when there is a session, or one that has ended is not done: without one there is nothing to expire. For one caller.
    pub async fn occupied(&self) {
        while self.table.lock().is_empty() {
            self.opened.notified().await;
        }
    }

    /// What a grant of this tenant reaches, if it holds now and includes `access`; see [`Session::verify`].
    pub fn verify(&self, grant: &Grant, tenant: &str, access: crate::Access) -> Option<Granted> {
        let session = self.find(grant.session)?;
        let own = session.tenant() == tenant;
        session.verify(grant, access).filter(|_| own)
    }

    /// Every session, in no order; for administration.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.table.lock().sessions.values().cloned().collect()
    }

    /// The sessions whose leases run, of this tenant or of all, from the one of this name on, by name; the first `limit` of them.
    pub fn listed(&self, tenant: Option<&str>, from: SessionId, limit: usize) -> Vec<Arc<Session>> {
        let table = self.table.lock();
        let Some(tenant) = tenant else {
            let all = table.sessions.values();
            let mut found: Vec<_> = all.filter(|one| one.id() >= from).cloned().collect();
            drop(table);
            found.retain(|session| session.is_open());
            found.sort_unstable_by_key(|session| session.id());
            found.truncate(limit);
            return found;
        };
        let ids = table
            .per_tenant
            .get(tenant)
            .map(|of_tenant| &of_tenant.sessions);
        let ids = ids.into_iter().flat_map(|ids| ids.range(from..));
        let found = ids.filter_map(|id| table.sessions.get(id));
        let open = found.filter(|session| session.is_open());
        open.take(limit).cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.lock().sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn end(&self, session: &Arc<Session>) {
        session.end();
        let mut table = self.table.lock();
        if table.sessions.remove(&session.id()).is_none() {
            return;
        }
        // It is found in one place or the other. Of what is served only later its links, which are closed, take nothing.
        if session.is_served() {
            let ending = Arc::downgrade(session);
            table.ending.insert(session.id(), ending);
        }
        if let Some(of_tenant) = table.per_tenant.get_mut(session.tenant()) {
            of_tenant.sessions.remove(&session.id());
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.len())
    }
}
