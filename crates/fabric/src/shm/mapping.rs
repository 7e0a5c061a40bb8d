//! How much is mapped in this process, and how many files at once: what all have together, and each tenant of it; and where they are
//! mapped, which may take its time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use forebay_io::apart::in_turn;
use forebay_io::passing::Owner;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::frame::Refusal;

/// Bytes of all mappings, over all links: address space is bounded, too.
const MAPPED_BYTES_MAX: u64 = 1 << 44;

/// Mappings, over all links; the system has a bound (`vm.max_map_count`, 65,530) that other parts need, too.
const MAPPED_MAX: usize = 16_384;

/// Files of file systems that are mapped at once, over all links: each has a thread.
const MAPPING_MAX: usize = 16;

/// What one tenant may have of all these, over all links of all its sessions: the half, so that others find room.
const TENANT_PART: usize = 2;

/// Files of file systems that are being mapped or wait for their turn, of a tenant over all its links: each is open here for so long.
const WAITING_MAX: usize = 256;

/// All of this process.
static ALL: LazyLock<Share> = LazyLock::new(|| Share::part(1));

/// How much is mapped, of a part of the bounds.
#[derive(Debug)]
pub(crate) struct Share {
    part: usize,
    count: AtomicUsize,
    bytes: AtomicU64,
    turns: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    /// Of the files that its clients pass.
    owner: Owner,
}

impl Share {
    pub(crate) fn of_tenant() -> Share {
        Share::part(TENANT_PART)
    }

    fn part(part: usize) -> Share {
        Share {
            part,
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            turns: Arc::new(Semaphore::new(MAPPING_MAX / part)),
            waits: Arc::new(Semaphore::new(WAITING_MAX)),
            owner: Owner::default(),
        }
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// A place among the files that wait; none, when there are too many.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.waits.clone().try_acquire_owned().ok()
    }

    /// Counts a mapping in; says whether it is within the bounds.
    fn add(&self, bytes: u64) -> bool {
        let count = self.count.fetch_add(1, Relaxed);
        let total = self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        count < MAPPED_MAX / self.part && total <= MAPPED_BYTES_MAX / self.part as u64
    }

    fn remove(&self, bytes: u64) {
        self.count.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Room for one mapping; given back when dropped.
pub(super) struct Room {
    bytes: u64,
    tenant: Option<Arc<Share>>,
}

impl Room {
    pub(super) fn take(bytes: u64, tenant: Option<Arc<Share>>) -> Option<Room> {
        let of_tenant = tenant.as_ref().is_none_or(|tenant| tenant.add(bytes));
        let of_all = ALL.add(bytes);
        let room = Room { bytes, tenant };
        (of_tenant && of_all).then_some(room)
    }

    /// Who has taken it; at a client's end nobody.
    pub(super) fn tenant(&self) -> Option<Arc<Share>> {
        self.tenant.clone()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        ALL.remove(self.bytes);
        if let Some(tenant) = &self.tenant {
            tenant.remove(self.bytes);
        }
    }
}

/// Has a thread of its own map what may have to be waited for, in its turn.
pub(super) async fn apart<T: Send + 'static>(
    tenant: Option<Arc<Share>>,
    map: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let own = tenant.map(|tenant| tenant.turns.clone());
    let mapped = in_turn(own, &ALL.turns, map).await;
    mapped.unwrap_or(Err(Refusal::Busy))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use forebay_io::{SystemClock, passing};
    use forebay_mem::Region;
    use tokio::net::UnixStream;
    use tokio::time::pause;

    use super::super::control::Reader;
    use super::super::frame::{Frame, hello};
    use super::super::{accept, read_frame};
    use super::*;
    use crate::sessions::{Limits, Principal, Session, Sessions};
    use crate::{Accepted, Access, Stag};

    /// A client that says what it likes.
    struct Hand {
        stream: UnixStream,
        reader: Reader,
        _accepted: Accepted,
    }

    impl Hand {
        async fn of(sessions: &Sessions, session: &Session) -> Hand {
            let (here, stream) = UnixStream::pair().unwrap();
            let hello = hello(&session.proof());
            passing::send(&stream, &hello, None).await.unwrap();
            let mut hand = Hand {
                stream,
                reader: Reader::default(),
                _accepted: accept(here, sessions).await.unwrap(),
            };
            assert!(matches!(hand.told().await, Frame::Welcome { .. }));
            hand
        }

        async fn expose(&self, name: u32, file: impl AsFd) {
            let frame = Frame::Expose {
                stag: Stag(name),
                access: Access::Read,
                offset: 0,
                len: 10,
            };
            let (bytes, file) = (frame.encoded(), Some(file.as_fd()));
            let sent = passing::send(&self.stream, &bytes, file).await;
            sent.unwrap();
        }

        async fn told(&mut self) -> Frame {
            let frame = read_frame(&self.stream, &mut self.reader).await.unwrap();
            Frame::decode(&frame).unwrap()
        }

        async fn is_refused(&mut self, name: u32, why: Refusal) {
            let stag = Stag(name);
            assert_eq!(self.told().await, Frame::Refused { stag, why });
        }
    }

    fn open(sessions: &Sessions, tenant: &str) -> Arc<Session> {
        let principal = Principal {
            tenant,
            id: "key",
            secret: "secret",
        };
        let lease = Duration::from_secs(60);
        sessions.open_with_random_key(principal, lease).unwrap()
    }

    #[tokio::test]
    async fn who_waits_for_files_of_others_goes_on_with_the_rest() {
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let (one, other) = (open(&sessions, "one"), open(&sessions, "other"));
        let mut hand = Hand::of(&sessions, &one).await;
        // Whether somebody serves it is known only when he was asked.
        let file = File::open("/dev/zero").unwrap();
        let others = ALL.turns.acquire_many(MAPPING_MAX as u32).await.unwrap();
        hand.expose(1, &file).await;
        let memory = Region::memfd(4096).unwrap();
        hand.expose(2, memory.backing().unwrap().file).await;
        let exposed = Frame::Exposed { stag: Stag(2) };
        assert_eq!(hand.told().await, exposed);
        drop(others);
        hand.is_refused(1, Refusal::Invalid).await;

        // A tenant's files do not answer.
        pause();
        let mapped = one.mapped();
        let half = MAPPING_MAX / TENANT_PART;
        let _own = mapped.turns.acquire_many(half as u32).await.unwrap();
        hand.expose(3, &file).await;
        hand.is_refused(3, Refusal::Busy).await;
        let mut hand = Hand::of(&sessions, &other).await;
        hand.expose(1, &file).await;
        hand.is_refused(1, Refusal::Invalid).await;
    }

    #[tokio::test]
    async fn so_many_files_of_a_tenant_wait_over_all_its_links() {
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let (one, other) = (open(&sessions, "one"), open(&sessions, "other"));
        let mapped = one.mapped();
        let _waiting: Vec<_> = (0..WAITING_MAX).map(|_| mapped.place().unwrap()).collect();
        let file = File::open("/dev/zero").unwrap();
        let mut hand = Hand::of(&sessions, &one).await;
        hand.expose(1, &file).await;
        hand.is_refused(1, Refusal::Busy).await;
        let mut hand = Hand::of(&sessions, &other).await;
        hand.expose(1, &file).await;
        hand.is_refused(1, Refusal::Invalid).await;
    }

    #[tokio::test]
    async fn what_stays_mapped_counts_for_the_next_session() {
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let one = open(&sessions, "one");
        let held = Room::take(10, Some(one.mapped())).unwrap();
        sessions.close(one.id());
        drop(one);
        sessions.expire();
        let again = open(&sessions, "one");
        assert!(Arc::ptr_eq(&again.mapped(), &held.tenant().unwrap()));
        assert!(!Arc::ptr_eq(
            &again.mapped(),
            &open(&sessions, "other").mapped()
        ));
    }
}
