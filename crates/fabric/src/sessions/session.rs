//! One session: its links, and what may be reached through them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use forebay_io::{Clock, UnixMillis};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::grant::{Grant, Granted};
use super::lent::{Lent, Registered, RegisteredId};
use super::proof::{PROOF_BYTES, proof};
use super::seats::Seats;
use super::window::Window;
use super::{Limits, Principal, Refused, SessionId, Shares};
use crate::{Access, CloseReason, Connection, Fabric, Link, iwarp, shm};

/// Names a link in its session; never reused there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What a client has at a server until its lease ends.
///
/// Its end comes in this order: nothing new is taken, every link is closed, regions and grants are forgotten. So whatever names a
/// region or a grant that still exists finds a link that refuses.
pub struct Session {
    id: SessionId,
    tenant: Box<str>,
    principal: Box<str>,
    /// Of the principal's secret.
    mark: [u8; 16],
    key: [u8; 32],
    since: UnixMillis,
    clock: Arc<dyn Clock>,
    limits: Arc<Limits>,
    seats: Arc<Seats>,
    /// On the monotonic clock, in milliseconds; zero when it has ended.
    deadline_ms: AtomicU64,
    /// The same as a time of day when it was set, to be shown.
    until: AtomicU64,
    shm: Traffic,
    iwarp: Traffic,
    /// What its tenant has.
    shares: Shares,
    state: Mutex<State>,
    /// How many of its links are being served.
    served: AtomicUsize,
    /// Told when there are none any more.
    silent: Notify,
}

/// While there is one, a link of its session is being served.
#[derive(Debug)]
pub struct Serving<'a>(&'a Session);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if self.0.served.fetch_sub(1, SeqCst) == 1 {
            self.0.silent.notify_waiters();
        }
    }
}

/// The payload that a session's links of one fabric have moved, whichever door asked for it. It only grows.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    /// Bytes were placed in the client's memory.
    pub fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    /// Bytes were taken from the client's memory.
    pub fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    /// Bytes placed and bytes taken.
    pub fn totals(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.received.load(Relaxed))
    }
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    window: Window,
    /// Every link, region and grant ever named took one.
    names: u64,
    links: Vec<(LinkId, Connection)>,
    regions: BTreeMap<RegisteredId, Held>,
    /// The grants that hold, by id.
    grants: BTreeMap<u64, Loan>,
}

/// A region, and since when it is one.
#[derive(Debug)]
struct Held {
    region: Registered,
    since: UnixMillis,
}

/// What is known of a grant without its text.
#[derive(Debug)]
struct Loan {
    region: RegisteredId,
    offset: u64,
    len: u64,
    access: Access,
    since: UnixMillis,
    /// When the last one issued under its id ends.
    expires: UnixMillis,
}

impl State {
    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        principal: Principal<'_>,
        key: [u8; 32],
        clock: Arc<dyn Clock>,
        limits: Arc<Limits>,
        seats: Arc<Seats>,
        shares: Shares,
    ) -> Session {
        Session {
            id,
            tenant: principal.tenant.into(),
            principal: principal.id.into(),
            mark: principal.mark(&key),
            key,
            since: clock.unix_millis(),
            clock,
            limits,
            seats,
            deadline_ms: AtomicU64::new(0),
            until: AtomicU64::new(0),
            shm: Traffic::default(),
            iwarp: Traffic::default(),
            shares,
            state: Mutex::default(),
            served: AtomicUsize::new(0),
            silent: Notify::new(),
        }
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Whose it is.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Who opened it: an access key's id.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Whether it was opened by this principal, and not by another one of the same name.
    pub fn is_of(&self, principal: Principal<'_>) -> bool {
        let named = self.is_of_name(principal.tenant, principal.id);
        named && self.mark == principal.mark(&self.key)
    }

    /// Whether it was opened by a principal of this name.
    pub(super) fn is_of_name(&self, tenant: &str, principal: &str) -> bool {
        *self.tenant == *tenant && *self.principal == *principal
    }

    /// A link of it is served until what this gives is dropped.
    pub fn serve(&self) -> Serving<'_> {
        self.served.fetch_add(1, SeqCst);
        Serving(self)
    }

    /// Returns when no link of it is served. Of a session that has ended, all that was asked over its links has happened then, or never
    /// will.
    pub async fn quiet(&self) {
        loop {
            let mut told = pin!(self.silent.notified());
            // From here on nothing is missed.
            told.as_mut().enable();
            if !self.is_served() {
                return;
            }
            told.await;
        }
    }

    /// Whether a link of it is served.
    pub(super) fn is_served(&self) -> bool {
        self.served.load(SeqCst) > 0
    }

    /// When it was opened.
    pub fn since(&self) -> UnixMillis {
        self.since
    }

    /// When its lease runs out unless it is renewed; `None` when it has ended.
    pub fn until(&self) -> Option<UnixMillis> {
        self.is_open().then(|| self.until.load(Relaxed))
    }

    /// K_s of docs/token.md section 7.2, which server and client share.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// What its client shows when it connects.
    pub fn proof(&self) -> [u8; PROOF_BYTES] {
        proof(self.id, &self.key)
    }

    /// Whether it has not ended and its lease has not run out.
    pub fn is_open(&self) -> bool {
        self.lease_left().is_some()
    }

    /// How long its lease still runs; `None` when it has ended.
    pub fn lease_left(&self) -> Option<Duration> {
        let deadline = self.deadline_ms.load(Relaxed);
        let left = deadline.checked_sub(self.now_ms())?;
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Where those who move payload by its links of `fabric` count it.
    pub fn traffic(&self, fabric: Fabric) -> &Traffic {
        match fabric {
            Fabric::Shm => &self.shm,
            Fabric::Iwarp => &self.iwarp,
        }
    }

    /// What its tenant has mapped here.
    pub(crate) fn mapped(&self) -> Arc<shm::Share> {
        self.shares.mapped.clone()
    }

    /// What waits here because its tenant's clients owe what comes behind it.
    pub(crate) fn backlog(&self) -> Arc<iwarp::Share> {
        self.shares.backlog.clone()
    }

    /// The most it may hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes a token's sequence number: true once for each, and never for one that is more than 1023 behind the newest.
    pub fn fresh(&self, sequence: u64) -> bool {
        let mut state = self.state.lock();
        !state.ended && state.window.take(sequence)
    }

    /// Adds a link.
    ///
    /// # Errors
    /// When the session has ended, or it or its tenant has as many as it may; the link is then closed.
    pub fn attach(&self, link: Connection) -> Result<LinkId, Refused> {
        let mut state = self.state.lock();
        let refused = if state.ended {
            Refused::Ended
        } else if state.links.len() >= self.limits.links {
            Refused::Links
        } else if !self.seats.take(&self.tenant, self.limits.links_in_all) {
            Refused::TenantLinks
        } else {
            let id = LinkId(state.name());
            state.links.push((id, link));
            return Ok(id);
        };
        drop(state);
        link.close(match refused {
            Refused::Ended => CloseReason::SessionEnded,
            Refused::TenantLinks => {
                CloseReason::Violation("more links than a tenant may have".into())
            }
            _ => CloseReason::Violation("more links than a session may have".into()),
        });
        Err(refused)
    }

    /// Closes a link (if nothing else has) and forgets it and what was registered over it.
    pub fn detach(&self, id: LinkId) {
        let Some(link) = self.link(id) else {
            return;
        };
        // It is found until it is closed: whoever ends the session meanwhile waits for that, too.
        link.close(CloseReason::Done);
        let mut state = self.state.lock();
        let had = state.links.len();
        state.links.retain(|(link, _)| *link != id);
        self.seats.give_back(&self.tenant, had - state.links.len());
        state.regions.retain(|_, held| held.region.link != id);
        let State {
            regions, grants, ..
        } = &mut *state;
        grants.retain(|_, loan| regions.contains_key(&loan.region));
    }

    /// The link of that name.
    pub fn link(&self, id: LinkId) -> Option<Connection> {
        let state = self.state.lock();
        let (_, link) = state.links.iter().find(|(link, _)| *link == id)?;
        Some(link.clone())
    }

    /// The `rail`-th of its links over `fabric`, in the order in which they came, from zero.
    pub fn rail(&self, fabric: Fabric, rail: usize) -> Option<(LinkId, Connection)> {
        let state = self.state.lock();
        let mut of_fabric = state
            .links
            .iter()
            .filter(|(_, link)| link.fabric() == fabric);
        of_fabric.nth(rail).cloned()
    }

    /// Its links, in the order in which they came.
    pub fn links(&self) -> Vec<(LinkId, Connection)> {
        self.state.lock().links.clone()
    }

    /// Takes note of memory that the client exposed on one of its links.
    ///
    /// # Errors
    /// When the session has ended, has as many as it may, or has no such link, or the range wraps around.
    pub fn register(&self, region: Registered) -> Result<RegisteredId, Refused> {
        let since = self.clock.unix_millis();
        let mut state = self.state.lock();
        if state.ended || !state.links.iter().any(|(link, _)| *link == region.link) {
            return Err(Refused::Ended);
        }
        if region.base.checked_add(region.len).is_none() {
            return Err(Refused::Range);
        }
        if state.regions.len() >= self.limits.regions {
            return Err(Refused::Regions);
        }
        let id = RegisteredId(state.name());
        state.regions.insert(id, Held { region, since });
        Ok(id)
    }

    /// Forgets a region and its grants; false when there is none of that name. Its client withdraws the memory itself afterwards.
    pub fn deregister(&self, id: RegisteredId) -> bool {
        let mut state = self.state.lock();
        state.grants.retain(|_, loan| loan.region != id);
        state.regions.remove(&id).is_some()
    }

    /// The region of that name.
    pub fn region(&self, id: RegisteredId) -> Option<Registered> {
        self.state.lock().regions.get(&id).map(|held| held.region)
    }

    /// Lends bytes of a region for `lifetime`, or for [`Limits::grant`] if that is shorter.
    ///
    /// # Errors
    /// When there is no such region, or it does not have these bytes or this access, or the session has as many grants as it may.
    pub fn grant(
        &self,
        region: RegisteredId,
        offset: u64,
        len: u64,
        access: Access,
        lifetime: Duration,
    ) -> Result<Grant, Refused> {
        let now = self.clock.unix_millis();
        let expires = self.expiry(now, lifetime);
        let mut state = self.state.lock();
        let lent = &state.regions.get(&region).ok_or(Refused::Unknown)?.region;
        lent.range(offset, len, access).ok_or(Refused::Range)?;
        if state.grants.len() >= self.limits.grants {
            state.grants.retain(|_, loan| loan.expires > now);
        }
        if state.grants.len() >= self.limits.grants {
            return Err(Refused::Grants);
        }
        let id = state.name();
        let loan = Loan {
            region,
            offset,
            len,
            access,
            since: now,
            expires,
        };
        state.grants.insert(id, loan);
        let grant = Grant {
            id,
            session: self.id,
            region,
            offset,
            len,
            access,
            expires,
            mac: [0; 16],
        };
        Ok(grant.sealed(&self.key))
    }

    /// The same grant with a new lifetime from now; `None` when it does not hold.
    pub fn renew_grant(&self, grant: &Grant, lifetime: Duration) -> Option<Grant> {
        self.verify(grant, grant.access)?;
        let now = self.clock.unix_millis();
        let expires = self.expiry(now, lifetime);
        let mut state = self.state.lock();
        let loan = state.grants.get_mut(&grant.id)?;
        // An older text of the same grant keeps the moment that stands in it.
        loan.expires = loan.expires.max(expires);
        Some(Grant { expires, ..*grant }.sealed(&self.key))
    }

    /// Ends a grant, all its renewals included; false when there is none of that name.
    pub fn revoke(&self, id: u64) -> bool {
        self.state.lock().grants.remove(&id).is_some()
    }

    /// What a grant reaches, if it holds now and includes `access`. Forged, expired, revoked, foreign and never issued are the same
    /// `None`.
    pub fn verify(&self, grant: &Grant, access: Access) -> Option<Granted> {
        let genuine = grant.is_genuine(&self.key) && grant.session == self.id;
        if !genuine || !self.is_open() || grant.expires <= self.clock.unix_millis() {
            return None;
        }
        let state = self.state.lock();
        let loan = state.grants.get(&grant.id)?;
        if state.ended || loan.region != grant.region || !grant.access.includes(access) {
            return None;
        }
        let region = &state.regions.get(&loan.region)?.region;
        let range = region.range(grant.offset, grant.len, access)?;
        let (link_id, link) = state.links.iter().find(|(id, _)| *id == region.link)?;
        Some(Granted {
            link: link.clone(),
            link_id: *link_id,
            range,
        })
    }

    /// Its regions, and the grants that hold now, whose names come after `after`, by name; the first `limit` of them. For
    /// administration: what it tells is no grant.
    pub fn lent(&self, after: u64, limit: usize) -> Vec<Lent> {
        let now = self.clock.unix_millis();
        let state = self.state.lock();
        let fabric_of = |region: &Registered| {
            let mut links = state.links.iter();
            let (_, link) = links.find(|(id, _)| *id == region.link)?;
            Some(link.fabric())
        };
        let regions = (Excluded(RegisteredId(after)), Unbounded);
        let regions = state.regions.range(regions);
        let regions = regions.filter_map(|(id, held)| {
            Some(Lent {
                name: id.0,
                region: *id,
                fabric: fabric_of(&held.region)?,
                offset: 0,
                len: held.region.len,
                access: held.region.access,
                since: held.since,
                until: None,
            })
        });
        let holding = state.grants.range((Excluded(after), Unbounded));
        let holding = holding.filter(|(_, loan)| loan.expires > now);
        let grants = holding.filter_map(|(name, loan)| {
            Some(Lent {
                name: *name,
                region: loan.region,
                fabric: fabric_of(&state.regions.get(&loan.region)?.region)?,
                offset: loan.offset,
                len: loan.len,
                access: loan.access,
                since: loan.since,
                until: Some(loan.expires),
            })
        });
        let mut lent: Vec<Lent> = regions.take(limit).chain(grants.take(limit)).collect();
        lent.sort_unstable_by_key(|lent| lent.name);
        lent.truncate(limit);
        lent
    }

    /// Takes back what [`Session::lent`] tells by this name: a grant as [`Session::revoke`] does, a region as
    /// [`Session::deregister`]. False when there is neither.
    pub fn take_back(&self, name: u64) -> bool {
        // No two things of a session ever have the same name.
        self.revoke(name) || self.deregister(RegisteredId(name))
    }

    /// How many links, regions and grants it has.
    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.links.len(), state.regions.len(), state.grants.len())
    }

    pub(super) fn extend(&self, lease: Duration) {
        let lease_ms = lease.min(self.limits.lease).as_millis() as u64;
        let deadline = self.now_ms().saturating_add(lease_ms.max(1));
        let until = self.clock.unix_millis().saturating_add(lease_ms);
        let state = self.state.lock();
        if !state.ended {
            self.until.store(until, Relaxed);
            self.deadline_ms.store(deadline, Relaxed);
        }
    }

    pub(super) fn end(&self) {
        let links = {
            let mut state = self.state.lock();
            state.ended = true;
            self.deadline_ms.store(0, Relaxed);
            state.links.clone()
        };
        // They are found until they are closed: whoever ends it meanwhile waits for that, too.
        for (_, link) in &links {
            link.close(CloseReason::SessionEnded);
        }
        let mut state = self.state.lock();
        self.seats.give_back(&self.tenant, state.links.len());
        state.links = Vec::new();
        state.regions = BTreeMap::new();
        state.grants = BTreeMap::new();
    }

    fn expiry(&self, now: UnixMillis, lifetime: Duration) -> UnixMillis {
        now.saturating_add(lifetime.min(self.limits.grant).as_millis() as u64)
    }

    fn now_ms(&self) -> u64 {
        // One more than the clock shows, so that zero is never a deadline ahead.
        (self.clock.monotonic().as_millis() as u64).saturating_add(1)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        write!(f, "Session({} of {})", self.id, self.tenant)
    }
}
