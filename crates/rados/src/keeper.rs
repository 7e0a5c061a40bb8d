//! The keeper: a thread of a store's own that does what nobody waits for. Without work it sleeps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_store::Notice;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::core::{Core, Namespace};
use crate::names::{CHANGES, NAMESPACES};
use crate::record::Segment;
use crate::sys::{Answer, Heard, Lease, Leaving, Watching};
use crate::under_way::Named;

/// Changes wait so long for others to be entered in the index together with them: they are spread over its objects, and each write of
/// one costs about as much as the change itself.
const GATHER: Duration = Duration::from_millis(100);
/// A failed entry is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);
/// How often namespaces and others' counters are read anew, if nobody says that they changed.
const REFRESH: Duration = Duration::from_secs(10);
/// How often somebody cleans up.
const SWEEP: Duration = Duration::from_secs(30);
/// How long a gateway that was told of changes may take to say so.
const HEARING_MS: u64 = 2000;

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
    /// Enter what waits, and end.
    Stop(Stop),
}

/// Dropped when the keeper has ended: somebody may wait for that, and the process does.
pub(crate) struct Stop {
    _waiting: Option<oneshot::Sender<()>>,
    _leaving: Leaving,
}

impl Stop {
    pub(crate) fn new(waiting: Option<oneshot::Sender<()>>) -> Stop {
        Stop {
            _waiting: waiting,
            _leaving: Leaving::begin(),
        }
    }
}

/// Runs until it is told to stop; what told it is to be dropped last.
pub(crate) async fn run(
    core: Arc<Core>,
    mut tasks: mpsc::UnboundedReceiver<Task>,
    lease: Lease,
) -> Option<Stop> {
    let mut keeper = Keeper {
        watching: Vec::new(),
        dirty: HashMap::new(),
        lease: Arc::new(lease),
        core,
    };
    keeper.watch().await;
    let telling = tokio::spawn(tell(keeper.core.clone()));
    let (over, ended) = oneshot::channel();
    let renewing = renew(keeper.core.clone(), keeper.lease.clone(), ended);
    let renewing = tokio::spawn(renewing);
    let mut refresh = interval(REFRESH);
    let mut sweep = interval(SWEEP);
    for timer in [&mut refresh, &mut sweep] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once; what it stands for was just done.
        timer.tick().await;
    }
    let stopped = loop {
        tokio::select! {
            task = tasks.recv() => match task {
                None => break None,
                Some(Task::Stop(stop)) => break Some(stop),
                Some(task) => keeper.take(task, &mut tasks).await,
            },
            _ = refresh.tick() => keeper.refresh().await,
            _ = sweep.tick() => keeper.sweep().await,
        }
    };
    telling.abort();
    keeper.enter_all().await;
    // Afterwards nobody takes the lease that is given back.
    drop(over);
    let _ = renewing.await;
    keeper.stop().await;
    stopped
}

struct Keeper {
    core: Arc<Core>,
    watching: Vec<Watching>,
    dirty: HashMap<u32, Arc<Namespace>>,
    lease: Arc<Lease>,
}

impl Keeper {
    async fn take(&mut self, task: Task, tasks: &mut mpsc::UnboundedReceiver<Task>) {
        let mut next = Some(task);
        let mut stop = None;
        while let Some(task) = next {
            match task {
                Task::Settle(namespace) => {
                    self.dirty.insert(namespace.id, namespace);
                }
                Task::Stop(told) => stop = Some(told),
                task => {
                    let core = self.core.clone();
                    tokio::spawn(async move { work(&core, task).await });
                }
            }
            next = tasks.try_recv().ok();
        }
        if !self.dirty.is_empty() {
            if stop.is_none() {
                sleep(GATHER).await;
            }
            self.settle().await;
        }
        if let Some(stop) = stop {
            self.core.task(Task::Stop(stop));
        }
    }

    async fn settle(&mut self) {
        for namespace in std::mem::take(&mut self.dirty).into_values() {
            if let Err(error) = self.core.settle(&namespace).await {
                tracing::warn!(%error, namespace = namespace.info().name, "the index is behind");
                let core = self.core.clone();
                tokio::spawn(async move {
                    sleep(RETRY).await;
                    core.task(Task::Settle(namespace));
                });
                continue;
            }
            // What is left in the journal goes with the next entry, or now if none comes.
            if !namespace.journal.is_idle() {
                let _ = namespace.journal.flush().await;
            }
            for shard in namespace.shards.iter().filter(|shard| shard.has_gone()) {
                if let Err(error) = shard.forget_gone(&self.core, &namespace).await {
                    tracing::debug!(%error, "entries of removed keys stay for now");
                }
            }
        }
    }

    /// Listens to what other gateways say.
    async fn watch(&mut self) {
        self.watching.clear();
        let core = &self.core;
        let (registry, names) = (core.registry.clone(), core.registry.clone());
        let (tasks, weak, own) = (core.tasks.clone(), Arc::downgrade(core), core.gateway);
        let again = core.tasks.clone();
        let hear_names = move |heard: Heard<'_>| {
            let answer = match heard {
                Heard::Words(words, _) if words == own.to_le_bytes() => return,
                Heard::Words(_, answer) => Some(answer),
                Heard::Broken => None,
            };
            let _ = tasks.send(Task::Reload(answer));
        };
        let hear_changes = move |heard: Heard<'_>| {
            let Some(core) = weak.upgrade() else {
                return;
            };
            match heard {
                Heard::Words(words, _) => core.notices.heard(words, core.gateway),
                Heard::Broken => {
                    core.notices.tell(Notice::Lost);
                    let _ = again.send(Task::Reload(None));
                }
            }
        };
        let begun = tokio::task::spawn_blocking(move || {
            let names = Watching::begin(&names, NAMESPACES, hear_names)?;
            let changes = Watching::begin(&registry, CHANGES, hear_changes)?;
            Ok::<_, crate::sys::Errno>(vec![names, changes])
        });
        match begun.await {
            Ok(Ok(watching)) => self.watching = watching,
            Ok(Err(errno)) => tracing::warn!(%errno, "other gateways are not heard"),
            Err(error) => tracing::warn!(%error, "other gateways are not heard"),
        }
    }

    async fn refresh(&mut self) {
        if self.watching.is_empty() || !self.watching.iter().all(Watching::is_whole) {
            self.watch().await;
            self.core.notices.tell(Notice::Lost);
        }
        if let Err(error) = self.core.refresh().await {
            tracing::debug!(%error, "namespaces were not read again");
        }
    }

    async fn sweep(&mut self) {
        let core = self.core.clone();
        tokio::spawn(async move {
            if let Err(error) = core.clean().await {
                tracing::debug!(%error, "not everything was cleaned up");
            }
        });
    }

    async fn enter_all(&mut self) {
        for namespace in self.core.snapshot().namespaces.values() {
            self.dirty.insert(namespace.id, namespace.clone());
        }
        self.settle().await;
    }

    /// Leaves nothing to be swept, if it can.
    async fn stop(&mut self) {
        let clean = self.core.snapshot();
        let clean = clean.namespaces.values();
        let clean = clean.map(|namespace| {
            let settles = namespace.shards.iter().map(|shard| shard.waiting());
            settles.sum::<usize>() + usize::from(!namespace.journal.is_idle())
        });
        // What could not be entered is for whoever sweeps once the lease is over.
        let composing = !self.core.composing.lock().is_empty();
        if clean.sum::<usize>() == 0 && !composing {
            let lease = self.lease.clone();
            let snapshot = self.core.snapshot();
            for namespace in snapshot.namespaces.values() {
                if let Err(error) = self.core.fold(namespace, self.core.gateway).await {
                    tracing::debug!(%error, "this gateway's counters stay");
                }
            }
            let _ = tokio::task::spawn_blocking(move || lease.release()).await;
            if let Err(error) = self.core.unregister_gateway().await {
                tracing::debug!(%error, "this gateway's name stays");
            }
        }
        let watching = std::mem::take(&mut self.watching);
        let _ = tokio::task::spawn_blocking(move || drop(watching)).await;
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
            core.find_out(&namespace, named);
            while let Err(error) = core.end_composition(&namespace, number).await {
                not_yet(error, &mut pause).await;
            }
            Ok(())
        }
        Task::Reload(_answered) => core.reload().await,
        Task::Settle(_) | Task::Stop(_) => Ok(()),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "left for a later sweep");
    }
}

/// Says that this gateway is alive, whatever else the keeper has to do, until `ended`. Once it could not for too long, it may count as
/// dead, and what it has under way as nobody's.
async fn renew(core: Arc<Core>, lease: Arc<Lease>, mut ended: oneshot::Receiver<()>) {
    let hold = core.config.lease;
    let mut renewal = interval(hold / 4);
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once; the lease was just taken.
    renewal.tick().await;
    loop {
        tokio::select! {
            _ = renewal.tick() => {}
            _ = &mut ended => return,
        }
        let (lease, asked) = (lease.clone(), Instant::now());
        let taken = tokio::task::spawn_blocking(move || lease.take(hold)).await;
        match taken {
            Ok(Ok(())) => {
                if core.pulse.renewed(asked) {
                    tracing::warn!("this gateway's lease was lost, and is held again");
                    // The next renewal does not wait for it: there may be much to read.
                    tokio::spawn(return_to_life(core.clone()));
                }
            }
            Ok(Err(errno)) => tracing::warn!(%errno, "the lease was not renewed"),
            Err(error) => tracing::warn!(%error, "the lease was not renewed"),
        }
    }
}

/// Who swept has forgotten this gateway, and has taken over what it had counted.
async fn return_to_life(core: Arc<Core>) {
    if let Err(error) = core.register().await {
        tracing::warn!(%error, "this gateway is not known to the others");
    }
    if let Err(error) = core.recount_all().await {
        tracing::warn!(%error, "usage is read again later");
    }
}

/// Waits longer each time.
async fn not_yet(error: forebay_store::StoreError, pause: &mut Duration) {
    tracing::warn!(%error, "a composition is not finished yet");
    sleep(*pause).await;
    *pause = SWEEP.min(2 * *pause);
}

/// Tells other gateways of changes, one notification at a time.
async fn tell(core: Arc<Core>) {
    loop {
        core.notices.something.notified().await;
        while let Some(words) = core.notices.words(core.gateway) {
            let told = Watching::tell(&core.registry, CHANGES, &words, HEARING_MS);
            if let Err(errno) = core.access.in_time(told).await {
                tracing::debug!(%errno, "a gateway did not hear of a change");
            }
        }
    }
}

impl Core {
    /// Reads namespaces anew, and what others have counted if there are others.
    pub async fn refresh(&self) -> forebay_store::Result<()> {
        self.reload().await?;
        match self.notices.is_alone() {
            true => Ok(()),
            false => self.recount_all().await,
        }
    }

    async fn recount_all(&self) -> forebay_store::Result<()> {
        for namespace in self.snapshot().namespaces.values() {
            self.recount(namespace).await?;
        }
        Ok(())
    }

    /// Everything that is to be cleaned up from time to time. Nothing, when that takes long and is still being done.
    pub async fn clean(self: &Arc<Self>) -> forebay_store::Result<()> {
        let Ok(_only) = self.cleaning.try_lock() else {
            return Ok(());
        };
        for namespace in self.snapshot().namespaces.values() {
            self.expire(namespace).await?;
            self.collect(namespace).await?;
        }
        self.sweep_alone().await.map(drop)
    }
}
