//! What keeps a host and a controller together: prepares the controller, keeps it alive, hears its events, and begins anew when a
//! connection is lost.
//!
//! All connections of a host and its controller are one association. When one of them ends, all do; commands wait in their queues
//! while a new association is made, each as long as its patience lasts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_proto::nvme::fabrics::Property;
use forebay_proto::nvme::feature::{EVENT_DISCOVERY, EVENT_NAMESPACES, fid};
use forebay_proto::nvme::identify::BYTES as IDENTIFY_BYTES;
use forebay_proto::nvme::log_page::{GetLogPage, lid};
use forebay_proto::nvme::opcode::admin;
use forebay_proto::nvme::property::{Configuration, ControllerStatus, offset};
use forebay_proto::nvme::{NSID_ALL, SubmissionQueueEntry};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::again::{self, Refusal};
use super::data::{Data, Sink};
use super::device::Attached;
use super::establishing::{Establishing, recognise};
use super::host::{Options, Place};
use super::identify::ControllerInfo;
use super::queue::{Gone, Queue};
use super::slots::{Command, Completed, GiveUp, REPEATS, SWEEP, Slots};
use super::{Error, Result};

/// Commands in flight of an admin queue.
pub(super) const ADMIN_DEPTH: u16 = 31;
/// Of those, of the keeper alone: one that prepares the controller or its end, a keep alive, and one that hears events, which may still be
/// with the controller when nobody waits for it any more.
pub(super) const ADMIN_KEPT: u16 = 4;
/// How long to wait between looks at whether a controller is ready.
pub(super) const READY_PAUSE: Duration = Duration::from_millis(5);
/// How long a controller may take to prepare for its end.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// What is known of a controller now.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Connected and prepared.
    Live(Arc<ControllerInfo>),
    /// Not, and why.
    Away(Error),
    /// Closed.
    Closed,
}

/// What a host wants of its keeper.
pub(super) enum Order {
    /// Ends the association in an orderly way, for ever.
    Close(oneshot::Sender<()>),
}

/// What keeper and handles share.
pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) options: Arc<Options>,
    pub(super) admin: Queue,
    pub(super) io: Vec<Queue>,
    /// I/O queues that have connections.
    pub(super) active: AtomicUsize,
    /// Identification descriptors of the namespaces that are used, when they were first looked at.
    pub(super) known: Mutex<BTreeMap<u32, Vec<u8>>>,
    /// Grows with every change of which the controller told.
    pub(super) changes: watch::Sender<u64>,
    pub(super) refusal: Refusal,
}

impl Shared {
    fn queues(&self) -> impl Iterator<Item = &Arc<Slots>> {
        std::iter::once(&self.admin)
            .chain(&self.io)
            .map(|queue| &queue.slots)
    }

    /// The I/O queues that have no connections.
    fn idle(&self) -> &[Queue] {
        &self.io[self.active.load(Relaxed).min(self.io.len())..]
    }

    /// Gives up commands of queues that have no connections: whoever chose one may have done so before there were fewer.
    pub(super) fn give_up_idle(&self) {
        let fewer = Error::Unreachable("the controller grants fewer queues now".to_owned());
        for idle in self.idle() {
            idle.slots.give_up(GiveUp::All, &fewer);
        }
    }
}

pub(super) struct Keeper {
    pub(super) shared: Arc<Shared>,
    pub(super) gone: mpsc::UnboundedReceiver<Gone>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) state: watch::Sender<State>,
    /// The association whose connections may live.
    pub(super) association: watch::Sender<u64>,
    /// How many connections there are.
    pub(super) living: watch::Receiver<usize>,
    /// The device that the association is with, if it is with one.
    pub(super) attached: Option<Arc<Attached>>,
}

/// Why an association ended.
enum Over {
    Lost(String),
    Closed(Option<oneshot::Sender<()>>),
}

impl Keeper {
    /// Keeps the host connected until it is closed. The outcome of the first attempt is told; when it fails, there is no second.
    pub(super) async fn run(mut self, first: oneshot::Sender<Result<()>>) {
        let mut first = Some(first);
        let mut attempt = 0;
        let told = loop {
            let over = match self.attempt().await {
                Ok(info) => {
                    attempt = 0;
                    tracing::info!(place = %self.shared.place, "connected");
                    self.state.send_replace(State::Live(info));
                    self.open(true);
                    if let Some(first) = first.take() {
                        let _ = first.send(Ok(()));
                    }
                    let over = self.keep().await;
                    self.open(false);
                    over
                }
                Err(Over::Closed(told)) => break told,
                Err(Over::Lost(_)) if first.is_some() => break None,
                Err(over) => over,
            };
            match over {
                Over::Closed(told) => {
                    self.shut_down().await;
                    break told;
                }
                Over::Lost(why) => {
                    if attempt == 0 {
                        tracing::warn!(place = %self.shared.place, why, "connection lost");
                    }
                    if !matches!(*self.state.borrow(), State::Away(_)) {
                        self.state
                            .send_replace(State::Away(Error::Unreachable(why)));
                    }
                }
            }
            self.part().await;
            let options = &self.shared.options;
            let pause = again::grown(options.pause, options.pause_max, attempt);
            attempt += 1;
            if let Err(Over::Closed(told)) = self.swept(sleep(pause)).await {
                break told;
            }
        };
        let why = match &*self.state.borrow() {
            State::Away(error) => error.clone(),
            State::Live(_) | State::Closed => Error::Closed,
        };
        self.state.send_replace(State::Closed);
        self.part().await;
        self.shared.queues().for_each(|slots| slots.close());
        if let Some(first) = first {
            let _ = first.send(Err(why));
        }
        if let Some(told) = told {
            let _ = told.send(());
        }
    }

    fn open(&self, open: bool) {
        self.shared.queues().for_each(|slots| slots.open(open));
    }

    /// Waits for something while the host is not connected: commands whose patience ends are given up. An error is the order to
    /// close, or that a connection of this association has ended.
    async fn swept<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Over> {
        tokio::pin!(what);
        loop {
            // First, too: what is waited for may be shorter than the time between two looks.
            self.sweep();
            tokio::select! {
                done = &mut what => return Ok(done),
                order = self.orders.recv() => {
                    return Err(Over::Closed(order.map(|Order::Close(told)| told)));
                }
                why = lost(&mut self.gone, &self.association) => return Err(Over::Lost(why)),
                () = sleep(SWEEP) => {}
            }
        }
    }

    /// Gives up commands whose patience has ended.
    fn sweep(&self) {
        let error = match &*self.state.borrow() {
            State::Away(error) => error.clone(),
            State::Live(_) | State::Closed => Error::Unreachable("connecting".to_owned()),
        };
        let now = Instant::now();
        for slots in self.shared.queues() {
            slots.give_up(GiveUp::At(now), &error);
        }
    }

    /// Makes the next association.
    async fn attempt(&mut self) -> Result<Arc<ControllerInfo>, Over> {
        let association = *self.association.borrow() + 1;
        self.association.send_replace(association);
        let shared = self.shared.clone();
        let now = self.association.subscribe();
        let establishing = Establishing {
            shared: &shared,
            association,
            now,
        };
        self.attached = None;
        let made = match self.swept(establishing.run()).await {
            Err(Over::Lost(why)) => Err(Error::Unreachable(why)),
            Err(closed) => return Err(closed),
            Ok(made) => made,
        };
        match made {
            Ok((info, attached)) => {
                self.attached = attached;
                Ok(Arc::new(info))
            }
            Err(error) => {
                tracing::debug!(%error, "no association was made");
                let why = error.to_string();
                self.state.send_replace(State::Away(error));
                Err(Over::Lost(why))
            }
        }
    }

    /// Ends the connections of the association, and waits until nothing moves on them.
    async fn part(&mut self) {
        self.association
            .send_modify(|association| *association += 1);
        // Without tasks there are no connections.
        let _ = self.living.wait_for(|count| *count == 0).await;
        let lost = Error::Lost("the association ended".to_owned());
        for slots in self.shared.queues() {
            slots.give_up(GiveUp::Preparing, &lost);
        }
    }

    /// Keeps an association until it ends.
    async fn keep(&mut self) -> Over {
        let shared = self.shared.clone();
        tokio::select! {
            why = lost(&mut self.gone, &self.association) => Over::Lost(why),
            order = self.orders.recv() => {
                Over::Closed(order.map(|Order::Close(told)| told))
            }
            why = attend(&shared, self.attached.as_deref()) => Over::Lost(why),
            never = sweep_live(&shared) => match never {},
        }
    }

    /// Tells the controller to get ready for the end; it may be gone.
    async fn shut_down(&mut self) {
        if self.attached.is_some() {
            // Nobody else has this device: with its connection it ends.
            return;
        }
        let shared = self.shared.clone();
        let shutting = async {
            let configuration = property_get(&shared, offset::CC).await? as u32;
            let configuration = Configuration(configuration).with_shutdown();
            property_set(&shared, offset::CC, configuration.0.into()).await?;
            loop {
                let status = property_get(&shared, offset::CSTS).await?;
                if ControllerStatus(status as u32).shutdown_complete() {
                    return Ok::<(), Error>(());
                }
                sleep(READY_PAUSE).await;
            }
        };
        let _ = timeout(SHUTDOWN, shutting).await;
    }
}

/// Waits until a connection of this association ends, and tells why.
async fn lost(
    gone: &mut mpsc::UnboundedReceiver<Gone>,
    association: &watch::Sender<u64>,
) -> String {
    loop {
        match gone.recv().await {
            Some(gone) if gone.association == *association.borrow() => return gone.why,
            Some(_) => {}
            None => return "its tasks have ended".to_owned(),
        }
    }
}

/// Gives up what waits in spite of a connection: commands of queues that have none, and those of namespaces that are others than they
/// were, as long as their patience lasts.
async fn sweep_live(shared: &Shared) -> Infallible {
    let mut changes = shared.changes.subscribe();
    let another = Error::Unreachable("the namespace is not the one that it was".to_owned());
    loop {
        shared.give_up_idle();
        for queue in &shared.io {
            queue
                .slots
                .give_up(GiveUp::WithheldAt(Instant::now()), &another);
        }
        let withholds = shared.io.iter().any(|queue| queue.slots.withholds());
        if withholds || !shared.idle().is_empty() {
            sleep(SWEEP).await;
        } else if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Does what an association needs, until that fails.
async fn attend(shared: &Shared, attached: Option<&Attached>) -> String {
    match attached {
        Some(attached) => attached.keep_tidy().await,
        None => tokio::select! {
            why = keep_alive(shared) => why,
            why = hear(shared) => why,
        },
    }
}

/// Sends a keep alive twice in the time after which silence means the end; tells when one was not answered.
async fn keep_alive(shared: &Shared) -> String {
    let patience = shared.options.keep_alive;
    if patience.is_zero() {
        return std::future::pending().await;
    }
    loop {
        sleep(patience / 2).await;
        let entry = SubmissionQueueEntry::new(admin::KEEP_ALIVE, 0, 0);
        match timeout(patience, preparation(shared, entry, Data::None)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return format!("a keep alive failed: {error}"),
            Err(_) => return "a keep alive was not answered".to_owned(),
        }
    }
}

/// Hears what the controller tells of its own accord. Ends only with the association.
async fn hear(shared: &Shared) -> String {
    let events = {
        let entry = SubmissionQueueEntry::new(admin::GET_FEATURES, 0, 0)
            .with_cdw(10, fid::ASYNC_EVENT_CONFIGURATION.into());
        preparation(shared, entry, Data::None).await
    };
    // A controller without this feature raises no optional events.
    if events.is_ok() {
        let wanted = EVENT_NAMESPACES | EVENT_DISCOVERY;
        let _ = set_features(shared, fid::ASYNC_EVENT_CONFIGURATION, wanted).await;
    }
    loop {
        let entry = SubmissionQueueEntry::new(admin::ASYNC_EVENT_REQUEST, 0, 0);
        let mut command = command(entry, Data::None);
        command.endless = true;
        let event = match shared.admin.slots.execute(command).await.outcome {
            Ok(completed) => completed.result as u32,
            // As after a loss, of which others tell; or it has none to tell of.
            Err(_) => return std::future::pending().await,
        };
        let log = (event >> 16) as u8;
        if log == lid::CHANGED_NAMESPACES {
            // Reading it lets the controller raise the event again.
            let entry = log_page(
                lid::CHANGED_NAMESPACES,
                NSID_ALL,
                0,
                0,
                IDENTIFY_BYTES as u32,
            );
            let _ = preparation(
                shared,
                entry,
                Data::In(Sink::Bytes(vec![0; IDENTIFY_BYTES])),
            )
            .await;
            // When it cannot look, the association is lost, of which others tell.
            let _ = recognise(shared).await;
        }
        shared.changes.send_modify(|changes| *changes += 1);
    }
}

/// A command of the keeper's own.
fn command(entry: SubmissionQueueEntry, data: Data) -> Command {
    Command {
        entry,
        data,
        repeats: 0,
        was_sent: false,
        patience: None,
        endless: false,
        preparing: true,
        value_behind: None,
    }
}

async fn preparation(
    shared: &Shared,
    entry: SubmissionQueueEntry,
    data: Data,
) -> Result<(Completed, Data)> {
    let reply = shared.admin.slots.execute(command(entry, data)).await;
    Ok((reply.outcome?, reply.data))
}

pub(super) async fn property_get(shared: &Shared, at: u32) -> Result<u64> {
    let entry = Property::get(at, 0);
    let (completed, _) = preparation(shared, entry, Data::None).await?;
    Ok(completed.result)
}

pub(super) async fn property_set(shared: &Shared, at: u32, value: u64) -> Result<()> {
    let entry = Property::set(at, value, 0);
    preparation(shared, entry, Data::None).await.map(drop)
}

pub(super) async fn set_features(shared: &Shared, feature: u8, value: u32) -> Result<u64> {
    let entry = SubmissionQueueEntry::new(admin::SET_FEATURES, 0, 0)
        .with_cdw(10, feature.into())
        .with_cdw(11, value);
    let (completed, _) = preparation(shared, entry, Data::None).await?;
    Ok(completed.result)
}

/// Identify; `preparing` as in [`Command`].
pub(super) async fn identify(
    shared: &Shared,
    cns: u8,
    nsid: u32,
    csi: u8,
    preparing: bool,
) -> Result<Vec<u8>> {
    let entry = SubmissionQueueEntry::new(admin::IDENTIFY, 0, nsid)
        .with_cdw(10, cns.into())
        .with_cdw(11, u32::from(csi) << 24);
    let sink = Sink::Bytes(vec![0; IDENTIFY_BYTES]);
    let mut command = command(entry, Data::In(sink));
    if !preparing {
        command.preparing = false;
        command.repeats = REPEATS;
        command.patience = shared
            .options
            .patience
            .map(|patience| Instant::now() + patience);
    }
    let reply = shared.admin.slots.execute(command).await;
    reply.outcome?;
    Ok(bytes(reply.data))
}

/// Get Log Page.
pub(super) fn log_page(
    lid: u8,
    nsid: u32,
    csi: u8,
    offset: u64,
    bytes: u32,
) -> SubmissionQueueEntry {
    let asked = GetLogPage {
        lid,
        retain_event: false,
        bytes: bytes.into(),
        offset,
        csi,
    };
    asked.entry(0, nsid)
}

/// What arrived in memory of its own.
pub(super) fn bytes(data: Data) -> Vec<u8> {
    match data {
        Data::In(Sink::Bytes(bytes)) => bytes,
        _ => Vec::new(),
    }
}
