//! The keeper: a thread of a store's own that does what nobody waits for. Without work it sleeps.
//!
//! Nothing of it waits for anything else: a placement group that does not answer keeps back what needs it, and no more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

use forebay_store::Result;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::adopt::adopt_now_and_then;
use crate::core::{Core, Namespace};
use crate::listen::{listen, tell};
use crate::namespaces::PATIENCE;
use crate::record::Segment;
use crate::sys::{Answer, AtEnd};
use crate::under_way::Named;

/// Changes wait so long for others to be entered in the index together with them: they are spread over its objects, and each write of
/// one costs about as much as the change itself.
const GATHER: Duration = Duration::from_millis(100);
/// What failed, and others wait for, is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);
/// How often namespaces and others' counters are read anew, if nobody says that they changed.
pub(crate) const REFRESH: Duration = Duration::from_secs(10);
/// How often somebody cleans up.
const SWEEP: Duration = Duration::from_secs(30);
/// Who leaves waits so long for what is being done: what is left then is swept.
const LEAVE: Duration = Duration::from_secs(5);

/// Company of no moment: what others have counted is to be read in any case.
const NEVER: u64 = u64::MAX;

/// Something for the keeper to do.
pub(crate) enum Task {
    /// Changes wait to be entered in a namespace's index.
    Settle(Arc<Namespace>),
    /// Stripes that nobody will need.
    Discard(Arc<Namespace>, Segment),
    /// A composition whose outcome is unknown.
    Finish(Arc<Namespace>, Named, u128),
    /// Namespaces changed, or may have; who changed them may wait for an answer.
    Reload(Option<Answer>),
    /// The lease was lost, and is held again.
    ReturnToLife,
    /// Enter what waits, and end.
    Stop(Stop),
}

/// Dropped when the keeper has ended: somebody may wait for that, and the process does.
pub(crate) struct Stop {
    _waiting: Option<oneshot::Sender<()>>,
    _leaving: AtEnd,
}

impl Stop {
    pub(crate) fn new(waiting: Option<oneshot::Sender<()>>) -> Stop {
        Stop {
            _waiting: waiting,
            _leaving: AtEnd::leaving(),
        }
    }
}

/// Runs until it is told to stop; what told it is to be dropped last.
pub(crate) async fn run(core: Arc<Core>, mut tasks: mpsc::UnboundedReceiver<Task>) -> Option<Stop> {
    let (enough_heard, ended) = oneshot::channel();
    let listening = tokio::spawn(listen(core.clone(), ended));
    let (over, ended) = oneshot::channel();
    let renewing = tokio::spawn(renew(core.clone(), ended));
    let mut rounds = JoinSet::new();
    rounds.spawn(tell(core.clone()));
    rounds.spawn(adopt_now_and_then(core.clone()));
    rounds.spawn(enter_again(core.clone()));
    rounds.spawn(every(core.clone(), REFRESH, async |core| {
        core.reload().await
    }));
    rounds.spawn(every(core.clone(), REFRESH, async |core| {
        core.recount_others().await
    }));
    rounds.spawn(every(core.clone(), SWEEP, async |core| {
        core.sweep().await.map(drop)
    }));
    rounds.spawn(every(core.clone(), SWEEP, async |core| core.tidy().await));
    rounds.spawn(every(core.clone(), SWEEP, async |core| {
        core.collect().await
    }));
    rounds.spawn(every(core.clone(), SWEEP, async |core| {
        core.clear_orphans().await
    }));
    rounds.spawn(every(core.clone(), SWEEP, async |core| {
        core.clear_strays().await
    }));
    let mut keeper = Keeper {
        working: JoinSet::new(),
        settling: HashMap::new(),
        core: core.clone(),
    };
    let stopped = loop {
        tokio::select! {
            task = tasks.recv() => match task {
                None => break None,
                Some(Task::Stop(stop)) => break Some(stop),
                Some(Task::Settle(namespace)) => keeper.settle(namespace),
                Some(task) => keeper.begin(task),
            },
            Some(done) = keeper.working.join_next() => {
                if let Ok(Some(settled)) = done {
                    keeper.settled(settled);
                }
            }
        }
    };
    rounds.shutdown().await;
    keeper.finish().await;
    // Afterwards nobody takes the lease that is given back.
    drop(over);
    let _ = renewing.await;
    leave(&core).await;
    drop(enough_heard);
    let _ = listening.await;
    stopped
}

/// Does something again and again, one after the other.
async fn every(core: Arc<Core>, period: Duration, work: impl AsyncFn(&Arc<Core>) -> Result<()>) {
    let mut timer = interval(period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once; what it stands for was just done.
    timer.tick().await;
    loop {
        timer.tick().await;
        if let Err(error) = work(&core).await {
            tracing::debug!(%error, "it is tried again later");
        }
    }
}

struct Keeper {
    core: Arc<Core>,
    /// What is being done; a namespace that was entered comes back.
    working: JoinSet<Option<Arc<Namespace>>>,
    /// Namespaces being entered, and whether more has come for them meanwhile.
    settling: HashMap<u32, bool>,
}

impl Keeper {
    fn begin(&mut self, task: Task) {
        let core = self.core.clone();
        self.working.spawn(async move {
            work(&core, task).await;
            None
        });
    }

    fn settle(&mut self, namespace: Arc<Namespace>) {
        if let Some(more) = self.settling.get_mut(&namespace.id) {
            *more = true;
            return;
        }
        self.settling.insert(namespace.id, false);
        let core = self.core.clone();
        self.working.spawn(async move {
            sleep(GATHER).await;
            // What comes from here on may come too late for this time.
            namespace.told.swap(false, AcqRel);
            while let Err(error) = enter(&core, &namespace).await {
                tracing::warn!(%error, namespace = namespace.info().name, "the index is behind");
                sleep(RETRY).await;
            }
            Some(namespace)
        });
    }

    fn settled(&mut self, namespace: Arc<Namespace>) {
        if self.settling.remove(&namespace.id) == Some(true) {
            self.settle(namespace);
        }
    }

    /// Comes to an end with what is being done, and enters everything that is left.
    async fn finish(mut self) {
        let done = async { while self.working.join_next().await.is_some() {} };
        if timeout(LEAVE, done).await.is_err() {
            tracing::debug!("not everything was done");
        }
        self.working.shutdown().await;
        let snapshot = self.core.snapshot();
        let namespaces = snapshot.namespaces.values();
        let entered = namespaces.map(|namespace| enter(&self.core, namespace));
        for failed in join_all(entered).await.into_iter().filter_map(Result::err) {
            tracing::warn!(error = %failed, "the index is left behind");
        }
    }
}

/// Enters in a namespace's index what waits. What cannot be entered keeps nothing else from being done.
async fn enter(core: &Arc<Core>, namespace: &Arc<Namespace>) -> Result<()> {
    let settled = core.settle(namespace).await;
    // What is left in the journal goes with the next entry, or now if none comes.
    if !namespace.journal.is_idle() {
        let _ = core.flush_journal(namespace).await;
    }
    if let Err(error) = core.forget_gone(namespace).await {
        tracing::debug!(%error, "entries of removed keys stay for now");
    }
    settled
}

/// Leaves nothing to be swept, if it can; else this gateway stays registered, and is swept once its lease is over.
async fn leave(core: &Arc<Core>) {
    // What begins from here on happens no more, and what began before is in a journal.
    core.pulse.end();
    let left = match core.leaves_something().await {
        Ok(left) => left,
        Err(error) => return tracing::debug!(%error, "what is left is swept later"),
    };
    core.give_turn_back().await;
    if left {
        return tracing::debug!("what is left is swept later");
    }
    for namespace in core.snapshot().namespaces.values() {
        if let Err(error) = core.fold(namespace, core.gateway).await {
            tracing::debug!(%error, "this gateway's counters stay");
        }
    }
    core.give_lease_back().await;
    if let Err(error) = core.unregister_gateway().await {
        tracing::debug!(%error, "this gateway's name stays");
    }
}

async fn work(core: &Arc<Core>, task: Task) {
    let done = match task {
        Task::Discard(namespace, segment) => core.discard(&namespace, segment).await,
        Task::Finish(namespace, named, number) => {
            // Until it is over nobody can change its target and sources: nobody else finishes it as long as this gateway lives.
            let mut pause = RETRY;
            while let Err(error) = core.finish_composition(&namespace, &named, number).await {
                not_yet(error, &mut pause).await;
            }
            core.find_out(&namespace, named.clone());
            while let Err(error) = core.end_composition(&namespace, &named, number).await {
                not_yet(error, &mut pause).await;
            }
            Ok(())
        }
        Task::Reload(answer) => {
            let reloaded = core.reload().await;
            // Who has not taken it in does not say so: whoever changed it stops waiting for that, and waits for longer.
            if reloaded.is_err() && answer.is_some() {
                sleep(2 * PATIENCE).await;
            }
            reloaded
        }
        Task::ReturnToLife => return_to_life(core).await,
        Task::Settle(_) | Task::Stop(_) => Ok(()),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "left for a later sweep");
    }
}

/// Says that this gateway is alive, whatever else the keeper has to do, until `ended`. Once it could not for too long, it may count as
/// dead, and what it has under way as nobody's.
async fn renew(core: Arc<Core>, mut ended: oneshot::Receiver<()>) {
    let period = core.config.lease / 4;
    let mut renewal = interval(period);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once; the lease was just taken.
    renewal.tick().await;
    loop {
        tokio::select! {
            _ = renewal.tick() => {}
            _ = &mut ended => return,
        }
        if let Err(errno) = core.renew_lease().await {
            tracing::warn!(%errno, "the lease was not renewed");
            // Changes wait for that.
            renewal.reset_after(period.min(RETRY));
        }
    }
}

/// Enters this gateway among the living whenever they do not know it: who took it for dead has forgotten it, and it may not have felt it, or
/// have failed to enter itself since. Who forgets it may hold its lock for long, which keeps back nothing else.
async fn enter_again(core: Arc<Core>) {
    loop {
        core.unknown.notified().await;
        let entered = async {
            core.prove_alive().await?;
            core.register().await
        };
        if let Err(error) = entered.await {
            tracing::warn!(%error, "this gateway is not known to the others");
        }
    }
}

/// Who swept has forgotten this gateway, and has taken over what it had counted.
async fn return_to_life(core: &Core) -> Result<()> {
    if let Err(error) = core.register().await {
        // It is tried again whenever the registry is read.
        tracing::warn!(%error, "this gateway is not known to the others");
    }
    core.recount_all().await
}

/// Waits longer each time.
async fn not_yet(error: forebay_store::StoreError, pause: &mut Duration) {
    tracing::warn!(%error, "a composition is not finished yet");
    sleep(*pause).await;
    *pause = SWEEP.min(2 * *pause);
}

impl Core {
    /// Reads again what others have counted, if there are others, or were until after it was read last.
    async fn recount_others(&self) -> Result<()> {
        let company = self.notices.company();
        match self.notices.is_alone() && self.counted.load(Relaxed) == company {
            true => Ok(()),
            false => self.recount_all().await,
        }
    }

    async fn recount_all(&self) -> Result<()> {
        let company = self.notices.company();
        self.counted.store(NEVER, Relaxed);
        for namespace in self.snapshot().namespaces.values() {
            self.recount(namespace).await?;
        }
        self.counted.store(company, Relaxed);
        Ok(())
    }

    /// What is done every so often, now.
    #[cfg(test)]
    pub async fn refresh(&self) -> Result<()> {
        self.reload().await?;
        self.recount_others().await
    }
}
