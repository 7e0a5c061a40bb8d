//! Memory that commands may hold for data that a host has still to send, or to take, or that its device has.
//!
//! A command that holds a buffer and waits for its host must never wait for a command that has none yet: their data share a stream, and
//! what comes first is not for the one that could end. So a command is lent all that it will hold before its host is asked for anything.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use forebay_mem::BLOCK_MAX_BYTES;
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{IoCommand, IoVerb};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory is lent in units of this many bytes.
const UNIT_BYTES: u32 = 4096;
/// What a command in progress holds of its data at most: a buffer that moves and one that follows, or all of a value that its store keeps
/// as one object.
const COMMAND_BYTES_MAX: u32 = 4 * BLOCK_MAX_BYTES as u32;

/// What a command holds whose host moves so many bytes.
pub(crate) fn held_bytes(command: &IoCommand, bytes: u32) -> u32 {
    match command.verb {
        // They are held beside those that they are compared with.
        IoVerb::Nvm(NvmCommand::Compare { .. }) => bytes.saturating_mul(2),
        // Their hosts move none, and their blocks pass through a buffer all the same; not what is only let go.
        IoVerb::Nvm(
            NvmCommand::Verify { .. }
            | NvmCommand::WriteZeroes {
                deallocate: false, ..
            },
        ) => BLOCK_MAX_BYTES as u32,
        // Arguments stay in a buffer while their function runs, also those that lie near.
        IoVerb::Kv(
            KvCommand::Execute { payload_bytes, .. }
            | KvCommand::ExecuteSubmit { payload_bytes, .. },
        ) => bytes.max(payload_bytes),
        _ => bytes,
    }
}

/// So much memory, lent in the order in which it is asked for.
#[derive(Debug)]
pub(crate) struct Lending {
    free: Semaphore,
    units: u32,
    /// Commands that wait for some.
    waiting: AtomicU32,
}

impl Lending {
    pub(crate) fn new(bytes: u64) -> Lending {
        let units = bytes / u64::from(UNIT_BYTES);
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u64) as u32;
        Lending {
            free: Semaphore::new(units as usize),
            units,
            waiting: AtomicU32::new(0),
        }
    }

    /// Waits until a command with so many bytes of data may hold buffers for them: their lengths are powers of two.
    async fn lend(&self, bytes: u32) -> Option<SemaphorePermit<'_>> {
        let held = bytes.min(COMMAND_BYTES_MAX).next_power_of_two();
        let units = held.div_ceil(UNIT_BYTES).min(self.units);
        if let Ok(lent) = self.free.try_acquire_many(units) {
            return Some(lent);
        }
        let _waits = Counted::new(&self.waiting);
        self.free.acquire_many(units).await.ok()
    }
}

/// What the commands of one association are lent: some memory of its host's own, and what all hosts have together.
#[derive(Debug)]
pub(crate) struct Share {
    own: Arc<Lending>,
    whole: Arc<Lending>,
    /// Commands that hold some.
    holding: AtomicU32,
    /// Commands that wait for what is the host's own.
    waiting: AtomicU32,
}

/// What a command may hold, until this is dropped. It goes with data that was not sent yet: what nobody takes is held, too.
#[derive(Debug)]
pub(crate) struct Lent {
    share: Arc<Share>,
    own: usize,
    whole: usize,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.share.own.free.add_permits(self.own);
        self.share.whole.free.add_permits(self.whole);
        self.share.holding.fetch_sub(1, Relaxed);
    }
}

/// What hosts have of their own, as long as anything holds some of it: also when the association that asked for it is over, and the host
/// has come anew.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<HashMap<Option<String>, Weak<Lending>>>);

impl Hosts {
    /// For an association of a host that has at most `bytes`: one alone leaves something to the others.
    pub(crate) fn share(&self, host: Option<&str>, whole: &Arc<Lending>, bytes: u32) -> Share {
        let host = host.map(str::to_owned);
        let mut hosts = self.0.lock();
        let own = hosts.get(&host).and_then(Weak::upgrade).unwrap_or_else(|| {
            let half = u64::from(whole.units) * u64::from(UNIT_BYTES) / 2;
            let own = Arc::new(Lending::new(half.min(u64::from(bytes))));
            hosts.retain(|_, own| own.strong_count() > 0);
            hosts.insert(host, Arc::downgrade(&own));
            own
        });
        Share::new(own, whole)
    }
}

impl Share {
    fn new(own: Arc<Lending>, whole: &Arc<Lending>) -> Share {
        Share {
            own,
            whole: whole.clone(),
            holding: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// Waits until a command may hold so many bytes of buffers. The host's own comes first: a host whose commands have all of it does
    /// not keep others waiting for the whole.
    pub(crate) async fn lend(self: &Arc<Share>, bytes: u32) -> Option<Lent> {
        let own = {
            let _waits = Counted::new(&self.waiting);
            self.own.lend(bytes).await?
        };
        let whole = self.whole.lend(bytes).await?;
        let lent = Lent {
            share: self.clone(),
            own: own.num_permits(),
            whole: whole.num_permits(),
        };
        self.holding.fetch_add(1, Relaxed);
        own.forget();
        whole.forget();
        Some(lent)
    }

    /// Whether commands of the association hold what others wait for.
    pub(crate) fn is_wanted(&self) -> bool {
        let of_this_host = || self.own.waiting.load(Relaxed) > self.waiting.load(Relaxed);
        self.holding.load(Relaxed) > 0 && (self.whole.waiting.load(Relaxed) > 0 || of_this_host())
    }
}

/// One more, until this is dropped.
struct Counted<'a>(&'a AtomicU32);

impl Counted<'_> {
    fn new(count: &AtomicU32) -> Counted<'_> {
        count.fetch_add(1, Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn what_is_lent_is_bounded_and_a_command_is_never_too_large() {
        let lending = Lending::new(6 << 20);
        let mut cx = Context::from_waker(Waker::noop());
        let first = lending.lend(u32::MAX).await.unwrap();
        // Buffers of two megabytes.
        let second = lending.lend((1 << 20) + 1).await.unwrap();
        let mut third = pin!(lending.lend(2 << 20));
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_ready());
        drop(first);
        // Little is lent to one at a time.
        let little = Lending::new(0);
        assert!(little.lend(u32::MAX).await.is_some());
    }

    #[tokio::test]
    async fn whoever_holds_what_others_wait_for_is_known() {
        let whole = Arc::new(Lending::new(4 << 20));
        let hosts = Hosts::default();
        let share = |host| Arc::new(hosts.share(Some(host), &whole, u32::MAX));
        let shares = ["a", "b", "c"].map(share);
        let mut cx = Context::from_waker(Waker::noop());
        // Half of it for one, and the other half for another.
        let first = shares[0].lend(2 << 20).await.unwrap();
        {
            let mut more = pin!(shares[0].lend(4096));
            assert!(more.as_mut().poll(&mut cx).is_pending());
            assert!(!shares[0].is_wanted(), "by itself alone");
            let beside = share("a");
            let mut more = pin!(beside.lend(4096));
            assert!(more.as_mut().poll(&mut cx).is_pending());
            assert!(shares[0].is_wanted() && !beside.is_wanted());
        }
        let second = shares[1].lend(2 << 20).await.unwrap();
        assert!(!shares[0].is_wanted() && !shares[1].is_wanted());
        {
            let mut third = pin!(shares[2].lend(4096));
            assert!(third.as_mut().poll(&mut cx).is_pending());
            assert!(shares[0].is_wanted() && shares[1].is_wanted());
            assert!(!shares[2].is_wanted());
            drop(first);
            assert!(third.as_mut().poll(&mut cx).is_ready());
            assert!(!shares[0].is_wanted() && !shares[1].is_wanted());
        }
        drop(second);
        let lent = shares[2].lend(u32::MAX).await.unwrap();
        assert_eq!((lent.own, lent.whole), (512, 1024), "all that there is");
    }

    #[tokio::test]
    async fn a_host_that_comes_anew_has_what_it_did_not_give_back() {
        let whole = Arc::new(Lending::new(4 << 20));
        let hosts = Hosts::default();
        let share = |host| Arc::new(hosts.share(Some(host), &whole, u32::MAX));
        let lent = share("a").lend(2 << 20).await.unwrap();
        let anew = share("a");
        let mut cx = Context::from_waker(Waker::noop());
        let mut more = pin!(anew.lend(4096));
        assert!(more.as_mut().poll(&mut cx).is_pending());
        drop(lent);
        assert!(more.as_mut().poll(&mut cx).is_ready());
        drop(share("b"));
        drop(share("c"));
        assert_eq!(hosts.0.lock().len(), 2, "those that are gone are forgotten");
    }
}
