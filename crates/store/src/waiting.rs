//! What one tenant may keep from everybody else while its clients take their time.
//!
//! Bytes that a link or a body carries wait in the store's buffers for a client that takes, or answers, as slowly as it likes; lines of a
//! list, and values that ride in replies, wait for it on the heap. Each is counted before there is anything of it, by whichever door. Whoever may not
//! have it yet waits, and holds nothing meanwhile, so that what is held is given back in the end.

use std::collections::HashMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;

use crate::limits::{at_most, may_have};
use crate::{ByteRange, Caps};

/// The shares of all tenants.
#[derive(Debug)]
pub struct Shares {
    /// Bytes of all buffers.
    bound: usize,
    /// Bytes that are counted for anybody.
    all: Mutex<usize>,
    freed: Notify,
    tenants: Mutex<HashMap<Box<str>, Weak<Share>>>,
}

/// The share of one tenant, whichever of its links or requests it is that wants some of it.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    /// Changes while `all` is locked.
    own: AtomicUsize,
    /// Whoever asked first is served first: what is large is not overtaken for ever by what is small.
    turn: tokio::sync::Mutex<()>,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Held {
    share: Arc<Share>,
    bytes: usize,
}

impl Shares {
    /// Of so many bytes of buffers.
    pub fn new(bound: usize) -> Arc<Shares> {
        Arc::new(Shares {
            bound,
            all: Mutex::default(),
            freed: Notify::new(),
            tenants: Mutex::default(),
        })
    }

    /// The share of a tenant, the same for all who ask while anybody has it.
    pub fn of(self: &Arc<Shares>, tenant: &str) -> Arc<Share> {
        let mut tenants = self.tenants.lock();
        if let Some(share) = tenants.get(tenant).and_then(Weak::upgrade) {
            return share;
        }
        tenants.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Share {
            shares: self.clone(),
            own: AtomicUsize::new(0),
            turn: tokio::sync::Mutex::default(),
        });
        tenants.insert(tenant.into(), Arc::downgrade(&share));
        share
    }
}

impl Share {
    /// Counts so many bytes more; waits while the tenant may not have them.
    pub async fn take(self: &Arc<Share>, bytes: usize) -> Held {
        // Also when the task has done enough for now: who comes back after that does not come in its old order.
        let _turn = unconstrained(self.turn.lock()).await;
        match self.try_take(bytes) {
            Some(held) => held,
            None => self.wait_to_take(bytes).await,
        }
    }

    /// The same where no order is kept.
    pub async fn wait_to_take(self: &Arc<Share>, bytes: usize) -> Held {
        loop {
            let mut freed = pin!(self.shares.freed.notified());
            freed.as_mut().enable();
            if let Some(held) = self.try_take(bytes) {
                return held;
            }
            freed.await;
        }
    }

    /// Counts so many bytes more, if the tenant may have them. Whoever has nothing may have something, however little there is.
    pub fn try_take(self: &Arc<Share>, bytes: usize) -> Option<Held> {
        self.try_take_beside(bytes, 1)
    }

    /// The same beside so many times what the tenant has.
    pub fn try_take_beside(self: &Arc<Share>, bytes: usize, times: usize) -> Option<Held> {
        let mut all = self.shares.all.lock();
        let own = self.own.load(Relaxed);
        let beside = own.saturating_mul(times);
        if own > 0 && !may_have(bytes, beside, *all, self.shares.bound) {
            return None;
        }
        *all += bytes;
        self.own.store(own + bytes, Relaxed);
        Some(Held {
            share: self.clone(),
            bytes,
        })
    }
}

impl Held {
    /// How many these are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// It turned out to be less.
    pub fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less > 0 {
            self.give_back(less);
        }
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        let shares = &self.share.shares;
        {
            let mut all = shares.all.lock();
            *all -= bytes;
            self.share.own.fetch_sub(bytes, Relaxed);
        }
        shares.freed.notify_waiters();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// What a store holds at most of its buffers, in bytes, while bytes `range` of a value of `size` leave by a link: one is written, others are
/// read ahead, and of those that were written `queued` bytes wait in the link.
pub fn leaving(caps: &Caps, range: &Range<u64>, size: u64, queued: usize) -> usize {
    let most = (caps.read_ahead + 1) * caps.chunk_bytes + queued;
    at_most(caps.around(range, size), most)
}

/// The same before the value is found, of which `range` is asked for, where there is `room` for so many bytes.
pub fn may_leave(caps: &Caps, range: ByteRange, room: u64, queued: usize) -> usize {
    let chunk = caps.chunk_bytes.max(1) as u64;
    let (first, len, size) = match range {
        ByteRange::Full => (0, room, room),
        ByteRange::From(first) => (first, room, u64::MAX),
        ByteRange::Inclusive(first, last) => {
            let len = last.saturating_sub(first).saturating_add(1);
            (first, len.min(room), u64::MAX)
        }
        // It may begin at the end of a buffer.
        ByteRange::Suffix(count) => (chunk - 1, count.min(room), u64::MAX),
    };
    leaving(caps, &(first..first.saturating_add(len)), size, queued)
}

/// What it holds at most while `len` bytes arrive: one is filled while another is written, behind those that it still has.
pub fn arriving(caps: &Caps, len: u64) -> usize {
    let most = (caps.write_behind + 2) * caps.chunk_bytes;
    at_most(caps.around(&(0..len), len), most)
}
