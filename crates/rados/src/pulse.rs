//! Whether this gateway is known to be alive. One that is not may be swept: what it has under way is then nobody's.
//!
//! Its own clock tells it when it could not renew its lease for too long. That stands still with the machine, in a guest that is paused or a
//! host that sleeps: so before it sends what others would have undone it asks the cluster, whose clock goes on.

use std::sync::Arc;
use std::time::Duration;

use forebay_store::{ErrorKind, Result, StoreError};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::core::Core;
use crate::error::unread;
use crate::keeper::Task;
use crate::sys::{Errno, Lease};

/// How often a gateway that may be taken for dead looks whether it still is.
const LOOK: Duration = Duration::from_millis(20);
/// How often one whose lock somebody else holds asks for it, however many wait for that.
const ASK: Duration = Duration::from_millis(200);

/// When the lease was renewed last, and how often it was taken.
pub(crate) struct Pulse {
    hold: Duration,
    state: Mutex<State>,
    /// How often the cluster was asked.
    #[cfg(test)]
    pub asks: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct State {
    /// When it was asked for last, and given; `None`: it is not held.
    renewed: Option<Instant>,
    life: u64,
    ended: bool,
    /// Why a connection did not answer when all were asked last: until they do the lease is not renewed.
    unreached: Option<Errno>,
    /// Why it was not given last.
    refused: Option<Errno>,
}

impl Pulse {
    /// Of a gateway whose lease of `hold` is about to be taken.
    pub fn new(hold: Duration) -> Pulse {
        Pulse {
            hold,
            state: Mutex::default(),
            #[cfg(test)]
            asks: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// This gateway leaves: it commits nothing any more.
    pub fn end(&self) {
        self.state.lock().ended = true;
    }

    /// Whether it leaves.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Which life this is: the next begins when a lease was lost and taken anew.
    pub fn life(&self) -> u64 {
        self.state.lock().life
    }

    fn is_held(&self) -> bool {
        self.state.lock().renewed.is_some()
    }

    /// The lease that was asked for at `asked` was given, and had been held until then.
    fn renewed(&self, asked: Instant) {
        self.state.lock().renewed = Some(asked);
    }

    /// What came of asking every connection but the first, by which it is renewed.
    fn reached(&self, reached: std::result::Result<(), Errno>) {
        self.state.lock().unreached = reached.err();
    }

    fn unreached(&self) -> Option<Errno> {
        self.state.lock().unreached
    }

    /// It is held no more.
    fn lost(&self) {
        self.state.lock().renewed = None;
    }

    /// It was given anew: somebody may have swept before. Which life begins.
    fn begin_life(&self, asked: Instant) -> u64 {
        let mut state = self.state.lock();
        state.renewed = Some(asked);
        state.life += 1;
        state.life
    }

    /// As if the lease had been lost, and taken anew.
    #[cfg(test)]
    pub fn lose(&self) {
        self.state.lock().life += 1;
    }

    /// Whether nobody can have swept what was begun in that life, as far as can be told here. A quarter of the lease is left for what is
    /// on its way.
    pub fn is_alive_since(&self, life: u64) -> bool {
        self.alive_at(life, Instant::now())
    }

    fn alive_at(&self, life: u64, now: Instant) -> bool {
        let state = self.state.lock();
        let is_held = |renewed| now < renewed + self.hold * 3 / 4;
        !state.ended && state.renewed.is_some_and(is_held) && state.life == life
    }

    /// Waits until the lease is held again.
    pub async fn wait(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.is_alive_since(self.life()) {
            if self.has_ended() {
                return Err(closing());
            }
            if begun.elapsed() > patience {
                return Err(not_held(self.state.lock().refused));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }
}

/// What came of asking for the lease last.
#[derive(Default)]
pub(crate) enum Asked {
    /// Nobody has asked yet.
    #[default]
    Never,
    /// It was given to who asked at this time.
    Given(Instant),
    /// Somebody else held the lock at this time.
    Refused(Instant),
}

impl Core {
    /// Asks the cluster whether this gateway still has its lease. If not, it is taken anew, and another life begins. Who asks while others
    /// do waits for one answer with all who came meanwhile. Who cleans up after this gateway has the lock until that is done: it is waited
    /// for, and asked for by one of those who wait.
    pub async fn prove_alive(&self) -> Result<()> {
        let came = Instant::now();
        loop {
            let proving = async {
                let mut asked = self.asked.lock().await;
                match *asked {
                    Asked::Given(at) if at > came => Ok(()),
                    Asked::Refused(at) if at.elapsed() < ASK => Err(Errno(libc::EBUSY)),
                    _ => self.take_lease(&mut asked).await,
                }
            };
            match self.access.in_time(proving).await {
                Ok(()) => return Ok(()),
                Err(_) if self.pulse.has_ended() => return Err(closing()),
                Err(Errno(libc::EBUSY)) if came.elapsed() < self.config.patience => {
                    sleep(ASK).await;
                }
                Err(errno) => return Err(unread(errno, "this gateway's lease")),
            }
        }
    }

    /// The same after every connection was asked. What goes by a dead one fails for ever, and only who takes this gateway for dead cleans up
    /// after it: so nobody renews the lease from here on until all of them answer again.
    pub async fn renew_lease(&self) -> std::result::Result<(), Errno> {
        self.pulse.reached(self.ask(Lease::reaches).await);
        self.take_lease(&mut *self.asked.lock().await).await
    }

    /// Nobody takes it any more: this gateway has ended.
    pub async fn give_lease_back(&self) {
        let _only = self.asked.lock().await;
        let _ = self.ask(Lease::release).await;
    }

    /// Renews the lease, or takes it anew; says what came of that.
    async fn take_lease(&self, asked: &mut Asked) -> std::result::Result<(), Errno> {
        let taken = self.ask_for_lease(asked).await;
        self.pulse.state.lock().refused = taken.err();
        taken
    }

    async fn ask_for_lease(&self, asked: &mut Asked) -> std::result::Result<(), Errno> {
        if self.pulse.has_ended() {
            return Err(Errno(libc::ESHUTDOWN));
        }
        if let Some(errno) = self.pulse.unreached() {
            return Err(errno);
        }
        let hold = self.config.lease;
        let at = Instant::now();
        if self.pulse.is_held() {
            match self.ask(move |lease| lease.renew(hold)).await {
                Ok(()) => {
                    self.pulse.renewed(at);
                    *asked = Asked::Given(at);
                    return Ok(());
                }
                Err(Errno(libc::ENOENT)) => {
                    tracing::warn!("this gateway's lease was lost");
                    self.pulse.lost();
                }
                Err(errno) => return Err(errno),
            }
        }
        let taken = self.ask(move |lease| lease.take(hold)).await;
        if taken == Err(Errno(libc::EBUSY)) {
            *asked = Asked::Refused(Instant::now());
        }
        taken?;
        *asked = Asked::Given(at);
        if self.pulse.begin_life(at) > 1 {
            // Whoever asked does not wait for that: there may be much to read.
            self.task(Task::ReturnToLife);
        }
        Ok(())
    }

    /// Calls of the lease block.
    async fn ask(
        &self,
        call: impl FnOnce(&Lease) -> std::result::Result<(), Errno> + Send + 'static,
    ) -> std::result::Result<(), Errno> {
        #[cfg(test)]
        self.pulse
            .asks
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let lease: Arc<Lease> = self.lease.clone();
        let asked = spawn_blocking(move || call(&lease)).await;
        asked.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }
}

fn closing() -> StoreError {
    StoreError::new(ErrorKind::Io, "the store is being closed")
}

/// Why it was not given says why it is not held, or nothing came back yet.
fn not_held(refused: Option<Errno>) -> StoreError {
    match refused {
        Some(Errno(libc::EBUSY)) => StoreError::new(
            ErrorKind::Io,
            "this gateway lost its lease, and another one cleans up after it",
        ),
        refused => {
            let errno = refused.unwrap_or(Errno(libc::ETIMEDOUT));
            unread(errno, "this gateway lost its lease")
        }
    }
}

/// What began before a lease was lost may have been swept.
pub(crate) fn swept() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        "this gateway lost its lease while the value arrived; its bytes may be gone",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_lease_begins_a_new_life() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let pulse = Pulse::new(Duration::from_secs(4));
        assert!(!pulse.alive_at(0, at(0)), "it is not taken yet");
        assert_eq!(pulse.begin_life(at(0)), 1);
        assert!(pulse.alive_at(1, at(2)) && !pulse.alive_at(2, at(2)));
        assert!(!pulse.alive_at(1, at(3)), "a quarter is kept back");
        // The answer may come late: what counts is when it was asked for.
        pulse.renewed(at(4));
        assert!(pulse.alive_at(1, at(6)) && !pulse.alive_at(1, at(7)));
        pulse.renewed(at(20));
        assert!(
            pulse.alive_at(1, at(20)),
            "only the cluster says that it was lost"
        );
        pulse.lost();
        assert!(!pulse.is_held() && !pulse.alive_at(1, at(20)));
        assert_eq!(pulse.begin_life(at(21)), 2);
        assert!(!pulse.alive_at(1, at(21)) && pulse.alive_at(2, at(21)));
        pulse.end();
        assert!(!pulse.alive_at(2, at(21)));
    }
}
