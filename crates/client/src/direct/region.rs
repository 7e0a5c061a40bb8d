//! Memory that payloads are placed in and taken from.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use forebay_fabric::{Access, Error as LinkError, Exposure, Link, Stag};
use forebay_mem::RegionSlice;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lane::Lane;
use super::loans::{LoanId, Loans, Use};
use super::seat::Memory;
use crate::Crc64;

/// Memory of this process that a server may place values in and take them from, while calls name it.
///
/// Cloning shares the memory. It is registered with a link when the first call over that link uses it and stays so until the last
/// clone is dropped or [`Region::release`] returns.
///
/// # When bytes may be used again
/// A call has its bytes lent to it until the server can no longer touch them: after a call that was dropped or timed out that is
/// later than the call's end. Another call over the same bytes waits for that by itself; [`Region::idle`] and [`Region::release`]
/// wait for it on the caller's behalf.
#[derive(Debug, Clone)]
pub struct Region {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: RegionSlice,
    state: Mutex<State>,
    /// Somebody waits for a loan to end.
    given_back: Notify,
    /// One registration at a time: two first calls must not register twice.
    exposing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    loans: Loans,
    waiting: usize,
    exposed: Vec<Exposed>,
}

impl State {
    fn exposed_to(&self, lane: u64) -> Option<Remote> {
        let there = self.exposed.iter().find(|there| there.lane == lane)?;
        Some(there.remote)
    }
}

/// Memory that the peer of a lane can reach; withdrawn later when this is dropped. A lane that is gone took its exposures along.
#[derive(Debug)]
struct Exposed {
    lane: u64,
    remote: Remote,
    exposure: Option<Exposure>,
    by: Weak<dyn Withdraw>,
}

impl Exposed {
    /// Returns when the peer can no longer touch the memory.
    async fn withdraw(mut self) {
        if let Some((exposure, lane)) = self.exposure.take().zip(self.by.upgrade()) {
            lane.withdraw(exposure).await;
        }
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        if let Some((exposure, lane)) = self.exposure.take().zip(self.by.upgrade()) {
            lane.withdraw_later(exposure);
        }
    }
}

/// Where a region lies for the peer of one link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) stag: Stag,
    pub(crate) base: u64,
}

/// Ends exposures; a lane of whichever fabric.
pub(crate) trait Withdraw: std::fmt::Debug + Send + Sync {
    /// Ends one; when it returns, the peer can no longer touch the memory.
    fn withdraw(self: Arc<Self>, exposure: Exposure) -> BoxFuture<'static, ()>;

    /// Ends one some time soon.
    fn withdraw_later(self: Arc<Self>, exposure: Exposure);
}

/// Bytes of a region that a call uses; given back when dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    region: Region,
    id: LoanId,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut state = self.region.shared.state.lock();
        state.loans.give_back(self.id);
        if state.waiting > 0 {
            self.region.shared.given_back.notify_waiters();
        }
    }
}

impl Region {
    /// Fresh zeroed memory of `len` bytes: a memfd sealed against shrinking and growing, which a server on this host maps. From 2 MiB on
    /// it is taken at once, on huge pages where the system can make some: one long region is moved faster than many short ones.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn alloc(len: usize) -> io::Result<Region> {
        let memory = forebay_mem::Region::memfd(len)?;
        memory.take_huge_pages();
        Ok(Region::of(memory))
    }

    /// The memory of a memfd (or of another file that can be mapped), whole. One that is not sealed against shrinking is used, too,
    /// but a server on this host then moves bytes by system calls.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn from_memfd(fd: OwnedFd) -> io::Result<Region> {
        Ok(Region::of(forebay_mem::Region::from_fd(fd)?))
    }

    /// Memory that is mapped already. For memory at an address there is [`from_ptr`](crate::mem::Region::from_ptr), which is unsafe: see
    /// there for what it asks for.
    pub fn of(memory: Arc<forebay_mem::Region>) -> Region {
        let len = memory.len();
        let shared = Shared {
            // The whole of it is always a part of it.
            memory: memory.slice(0..len).unwrap_or_else(|| unreachable!()),
            state: Mutex::default(),
            given_back: Notify::new(),
            exposing: tokio::sync::Mutex::default(),
        };
        Region {
            shared: Arc::new(shared),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.shared.memory.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes in; false (and nothing copied) when they do not fit.
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        self.shared.memory.write(offset, bytes)
    }

    /// Copies bytes out; false (and nothing copied) when they are out of range.
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        self.shared.memory.read(offset, into)
    }

    /// A window of it, for calls that take one; `None` when it is out of range.
    pub fn slice(&self, range: Range<usize>) -> Option<RegionSlice> {
        self.shared.memory.slice(range)
    }

    /// Who can reach it.
    pub(crate) fn memory(&self) -> Memory {
        match self.shared.memory.region().backing() {
            Some(_) => Memory::Mappable,
            None => Memory::Private,
        }
    }

    /// Whether its bytes cannot vanish.
    pub(crate) fn is_steady(&self) -> bool {
        self.shared.memory.region().is_steady()
    }

    /// The CRC-64/NVME of bytes in it; `None` when they are out of range.
    pub fn crc64(&self, range: Range<usize>) -> Option<Crc64> {
        let len = range.end.checked_sub(range.start)?;
        let value = self.shared.memory.crc64nvme(range)?;
        Some(Crc64::known(value, len as u64))
    }

    /// Waits until no call uses it, those included that were dropped or timed out.
    pub async fn idle(&self) {
        self.wait(|loans| loans.is_empty().then_some(())).await;
    }

    /// Waits until no call uses it and no server can reach it any more, on any link. Clones of it register it anew when used.
    pub async fn release(self) {
        self.idle().await;
        let exposed = std::mem::take(&mut self.shared.state.lock().exposed);
        for there in exposed {
            there.withdraw().await;
        }
    }

    /// Has bytes lent to a call, as soon as no other call excludes that; `None` when that takes longer than `until`.
    pub(crate) async fn lend(
        &self,
        range: Range<usize>,
        what: Use,
        until: Instant,
    ) -> Option<Loan> {
        let now = self.shared.state.lock().loans.lend(range.clone(), what);
        let id = match now {
            Some(id) => id,
            None => {
                let later = self.wait(|loans| loans.lend(range.clone(), what));
                tokio::time::timeout_at(until.into(), later).await.ok()?
            }
        };
        Some(self.loan(id))
    }

    /// The same without waiting, and where the region lies for the server of a lane that knows it.
    pub(crate) fn try_lend_on(
        &self,
        lane: u64,
        range: Range<usize>,
        what: Use,
    ) -> Option<(Remote, Loan)> {
        let mut state = self.shared.state.lock();
        let remote = state.exposed_to(lane)?;
        let id = state.loans.lend(range, what)?;
        drop(state);
        Some((remote, self.loan(id)))
    }

    fn loan(&self, id: LoanId) -> Loan {
        Loan {
            region: self.clone(),
            id,
        }
    }

    /// The same without an end to waiting.
    pub(crate) async fn lend_patiently(&self, range: Range<usize>, what: Use) -> Loan {
        self.loan(self.wait(|loans| loans.lend(range.clone(), what)).await)
    }

    /// The same without waiting.
    pub(crate) fn try_lend(&self, range: Range<usize>, what: Use) -> Option<Loan> {
        let id = self.shared.state.lock().loans.lend(range, what)?;
        Some(self.loan(id))
    }

    /// Where it stands among regions, the same for everybody.
    pub(crate) fn place(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    async fn wait<T>(&self, mut ready: impl FnMut(&mut Loans) -> Option<T>) -> T {
        let shared = &*self.shared;
        let _waiting = Waiting::begin(shared);
        loop {
            let given_back = shared.given_back.notified();
            tokio::pin!(given_back);
            given_back.as_mut().enable();
            if let Some(value) = ready(&mut shared.state.lock().loans) {
                return value;
            }
            given_back.await;
        }
    }

    /// Where it lies for the server of a lane, after registering it there if need be.
    pub(crate) async fn on<L: Link>(&self, lane: &Arc<Lane<L>>) -> Result<Remote, LinkError> {
        if let Some(remote) = self.known_to(lane.id()) {
            return Ok(remote);
        }
        let _one = self.shared.exposing.lock().await;
        if let Some(remote) = self.known_to(lane.id()) {
            return Ok(remote);
        }
        let memory = self.shared.memory.clone();
        let exposure = lane.link().expose(memory, Access::ReadWrite).await?;
        let remote = Remote {
            stag: exposure.stag,
            base: exposure.base,
        };
        let (id, lane): (u64, Arc<dyn Withdraw>) = (lane.id(), lane.clone());
        let mut state = self.shared.state.lock();
        state.exposed.retain(|there| there.by.strong_count() > 0);
        state.exposed.push(Exposed {
            lane: id,
            remote,
            exposure: Some(exposure),
            by: Arc::downgrade(&lane),
        });
        Ok(remote)
    }

    fn known_to(&self, lane: u64) -> Option<Remote> {
        self.shared.state.lock().exposed_to(lane)
    }
}

/// Counts a waiter while it lives.
struct Waiting<'a>(&'a Shared);

impl Waiting<'_> {
    fn begin(shared: &Shared) -> Waiting<'_> {
        shared.state.lock().waiting += 1;
        Waiting(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}
