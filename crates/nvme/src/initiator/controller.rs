//! One host and one controller.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_proto::nvme::identify::{Descriptors, cns, list_entries};
use forebay_proto::nvme::{Csi, SubmissionQueueEntry};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::again;
use super::block::BlockNamespace;
use super::data::{Data, Sink};
use super::host::{Address, NamespaceUrl, Options, Place, Scheme, check_nqn};
use super::identify::{BlockInfo, ControllerInfo, KeyValueInfo, NamespaceContent, NamespaceInfo};
use super::keeper::{self, ADMIN_DEPTH, ADMIN_KEPT, Keeper, Order, Shared, State, identify};
use super::kv::KeyValueNamespace;
use super::queue::{Lives, Queue};
use super::slots::{Command, REPEATS};
use super::{Error, Result};

/// A host and a controller of a subsystem, by NVMe/TCP or vfio-user. Cloning shares it; the connections end with the last clone.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    orders: mpsc::UnboundedSender<Order>,
}

/// Whether a command may be made twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Making it twice is the same as making it once.
    Safe,
    /// It is not.
    Never,
}

/// How a command is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) repeat: Repeat,
    /// How long it waits for a connection, or for a controller that cannot carry it out for now; for ever, when missing.
    pub(super) patience: Option<Duration>,
    /// As [`Command::value_behind`].
    pub(super) value_behind: Option<u64>,
}

/// The end of a command that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// DW0, and DW1 above it.
    pub result: u64,
    /// Payload bytes that came.
    pub received: u64,
    /// Which of the host's associations it was completed in, counted from 1.
    pub association: u64,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("place", &self.shared.place)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Connects to a controller of `subsystem` at `address`, prepares it, and keeps the connections until the last clone is dropped.
    ///
    /// # Errors
    /// When the first attempt fails: [`Error::Unreachable`], [`Error::Denied`], [`Error::Protocol`], [`Error::Status`];
    /// [`Error::Invalid`] for options out of bounds.
    pub async fn connect(
        address: Address,
        subsystem: &str,
        options: Options,
    ) -> Result<Controller> {
        let subsystem = subsystem.to_owned();
        Controller::at(Place::Tcp { address, subsystem }, options).await
    }

    /// Connects to the controller behind a vfio-user socket, as [`Controller::connect`]. Of the options, what TCP needs means nothing
    /// here: keep alive, digests, secrets, TLS. The controller tells no events.
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub async fn open(socket: &Path, options: Options) -> Result<Controller> {
        Controller::at(Place::Socket(socket.to_owned()), options).await
    }

    /// [Connects](Controller::connect) or [opens](Controller::open).
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub async fn at(place: Place, options: Options) -> Result<Controller> {
        if let Place::Tcp { subsystem, .. } = &place {
            check_nqn(subsystem)?;
        }
        let options = Arc::new(options.checked()?);
        let runtimes = match options.runtimes.as_slice() {
            [] => &[Handle::current()][..],
            given => given,
        };
        let (gone_sender, gone) = mpsc::unbounded_channel();
        let lives = Lives {
            gone: gone_sender,
            count: watch::Sender::new(0),
        };
        let mut turns = runtimes.iter().cycle();
        let mut queue = |places| {
            let runtime = turns.next().unwrap_or(&runtimes[0]);
            Queue::new(places, options.clone(), lives.clone(), runtime)
        };
        let io = (0..options.queues)
            .map(|_| queue((options.depth, 0)))
            .collect::<Vec<_>>();
        let admin = queue((ADMIN_DEPTH, ADMIN_KEPT));
        let shared = Arc::new(Shared {
            place,
            options: options.clone(),
            admin,
            io,
            active: AtomicUsize::new(0),
            known: Mutex::default(),
            changes: watch::Sender::new(0),
            refusal: again::Refusal::default(),
        });
        let (state_sender, state) =
            watch::channel(State::Away(Error::Unreachable("connecting".to_owned())));
        let (orders, orders_taken) = mpsc::unbounded_channel();
        let (first, connected) = oneshot::channel();
        let keeper = Keeper {
            shared: shared.clone(),
            gone,
            orders: orders_taken,
            state: state_sender,
            association: watch::Sender::new(0),
            living: lives.count.subscribe(),
            attached: None,
        };
        runtimes[0].spawn(keeper.run(first));
        let controller = Controller {
            shared,
            state,
            orders,
        };
        connected.await.map_err(|_| Error::Closed)??;
        Ok(controller)
    }

    /// What the controller says of itself.
    ///
    /// # Errors
    /// Why there is no connection now.
    pub fn info(&self) -> Result<Arc<ControllerInfo>> {
        match &*self.state.borrow() {
            State::Live(info) => Ok(info.clone()),
            State::Away(error) => Err(error.clone()),
            State::Closed => Err(Error::Closed),
        }
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn connected(&self) -> Result<()> {
        let mut state = self.state.clone();
        let state = state
            .wait_for(|state| !matches!(state, State::Away(_)))
            .await;
        match state.as_deref() {
            Ok(State::Live(_)) => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Waits until there is no connection.
    pub async fn disconnected(&self) {
        let mut state = self.state.clone();
        // A keeper that is gone has no connection either.
        let _ = state
            .wait_for(|state| !matches!(state, State::Live(_)))
            .await;
    }

    /// Changes with every event by which the controller tells that namespaces, or a discovery log, have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Ends the connections in an orderly way; calls are refused from now on.
    pub async fn close(&self) {
        let (told, closed) = oneshot::channel();
        if self.orders.send(Order::Close(told)).is_ok() {
            // Without an answer it was closed before.
            let _ = closed.await;
        }
    }

    /// The numbers of its active namespaces, of every command set.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn namespaces(&self) -> Result<Vec<u32>> {
        let mut all: Vec<u32> = Vec::new();
        loop {
            let above = all.last().copied().unwrap_or(0);
            let data = identify(&self.shared, cns::ACTIVE_NAMESPACES, above, 0, false).await?;
            let before = all.len();
            all.extend(list_entries(&data));
            let ascends = all[before..].is_sorted_by(|one, next| one < next)
                && all.get(before).is_none_or(|first| *first > above);
            if !ascends {
                return Err(Error::protocol("the list of namespaces does not ascend"));
            }
            if all.len() - before < data.len() / 4 {
                return Ok(all);
            }
        }
    }

    /// What a namespace is.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not active; see [`Error`].
    pub async fn namespace(&self, nsid: u32) -> Result<NamespaceInfo> {
        self.describe(nsid).await.map(|(info, _)| info)
    }

    /// What a namespace is, and its identification descriptors.
    async fn describe(&self, nsid: u32) -> Result<(NamespaceInfo, Vec<u8>)> {
        let none = || Error::invalid(format!("there is no namespace {nsid}"));
        let identify = |cns, csi| identify(&self.shared, cns, nsid, csi, false);
        let descriptors = match identify(cns::NAMESPACE_DESCRIPTORS, 0).await {
            Err(Error::Status(_)) => return Err(none()),
            data => data?,
        };
        let names = Descriptors::decode(&descriptors);
        let csi = names.csi.unwrap_or(Csi::Nvm as u8);
        let kind = match Csi::from_wire(csi) {
            Some(Csi::Nvm) => {
                let data = identify(cns::NAMESPACE, 0).await?;
                NamespaceContent::Block(BlockInfo::decode(&data).ok_or_else(none)?)
            }
            Some(Csi::Kv) => {
                let data = identify(cns::IO_NAMESPACE, csi).await?;
                NamespaceContent::KeyValue(KeyValueInfo::decode(&data).ok_or_else(none)?)
            }
            None => NamespaceContent::Other(csi),
        };
        Ok((NamespaceInfo::new(nsid, &names, kind), descriptors))
    }

    /// A namespace of blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none; see [`Error`].
    pub async fn block(&self, nsid: u32) -> Result<BlockNamespace> {
        let (info, descriptors) = self.describe(nsid).await?;
        let NamespaceContent::Block(block) = info.kind else {
            return Err(Error::invalid(format!("namespace {nsid} has no blocks")));
        };
        self.know(nsid, descriptors)?;
        BlockNamespace::new(self.clone(), nsid, block)
    }

    /// A namespace of keys and values.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none; see [`Error`].
    pub async fn key_value(&self, nsid: u32) -> Result<KeyValueNamespace> {
        let (info, descriptors) = self.describe(nsid).await?;
        let NamespaceContent::KeyValue(info) = info.kind else {
            return Err(Error::invalid(format!(
                "namespace {nsid} has no keys and values"
            )));
        };
        self.know(nsid, descriptors)?;
        Ok(KeyValueNamespace::new(self.clone(), nsid, info))
    }

    /// Another namespace than the one that this controller was used with is not used: who has the other would use it, too.
    fn know(&self, nsid: u32, descriptors: Vec<u8>) -> Result<()> {
        let mut known = self.shared.known.lock();
        match *known.entry(nsid).or_insert_with(|| descriptors.clone()) == descriptors {
            true => Ok(()),
            false => Err(Error::Unreachable(format!(
                "namespace {nsid} is not the one that it was"
            ))),
        }
    }

    /// Reads `bytes` (a multiple of 4) of a log page from `offset` on.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn log_page(
        &self,
        log: u8,
        nsid: u32,
        csi: u8,
        offset: u64,
        bytes: u32,
    ) -> Result<Vec<u8>> {
        let entry = keeper::log_page(log, nsid, csi, offset, bytes);
        let sink = Sink::Bytes(vec![0; bytes as usize]);
        let (done, data) = self.admin(entry, Data::In(sink), Repeat::Safe).await;
        done?;
        Ok(keeper::bytes(data))
    }

    /// Makes an admin command; its identifier and data pointer are set here. The memory comes back with the outcome.
    pub async fn admin(
        &self,
        entry: SubmissionQueueEntry,
        data: Data,
        repeat: Repeat,
    ) -> (Result<Completion>, Data) {
        let terms = Terms {
            repeat,
            patience: self.patience(),
            value_behind: None,
        };
        self.make(&self.shared.admin, entry, data, terms).await
    }

    /// Makes an I/O command; its identifier and data pointer are set here. The memory comes back with the outcome.
    pub async fn io(
        &self,
        entry: SubmissionQueueEntry,
        data: Data,
        repeat: Repeat,
    ) -> (Result<Completion>, Data) {
        let terms = Terms {
            repeat,
            patience: self.patience(),
            value_behind: None,
        };
        self.io_on(entry, data, terms).await
    }

    pub(super) async fn io_on(
        &self,
        entry: SubmissionQueueEntry,
        data: Data,
        terms: Terms,
    ) -> (Result<Completion>, Data) {
        match self.queue() {
            Some(queue) => self.make(queue, entry, data, terms).await,
            None => {
                let why = "a discovery controller has no I/O queue";
                (Err(Error::invalid(why)), data)
            }
        }
    }

    /// How long commands wait for a connection.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.shared.options.patience
    }

    /// The I/O queue of this thread.
    fn queue(&self) -> Option<&Queue> {
        thread_local! {
            static THREAD: usize = {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                NEXT.fetch_add(1, Relaxed)
            };
        }
        match self.shared.active.load(Relaxed) {
            0 => None,
            active => self.shared.io.get(THREAD.with(|thread| thread % active)),
        }
    }

    async fn make(
        &self,
        queue: &Queue,
        entry: SubmissionQueueEntry,
        data: Data,
        terms: Terms,
    ) -> (Result<Completion>, Data) {
        if data.len() > u64::from(u32::MAX) {
            return (Err(Error::invalid("a command of 4 GiB")), data);
        }
        let repeatable = terms.repeat == Repeat::Safe;
        let patience = terms.patience.map(|patience| Instant::now() + patience);
        let mut data = data;
        let mut attempt = 0;
        let mut unknown = false;
        loop {
            if let Data::In(sink) = &mut data {
                sink.restart();
            }
            let command = Command {
                entry,
                data,
                repeats: if repeatable { REPEATS } else { 0 },
                was_sent: false,
                patience,
                endless: false,
                preparing: false,
                value_behind: terms.value_behind,
            };
            let reply = queue.slots.execute(command).await;
            data = reply.data;
            unknown |= reply.outcome.as_ref().is_err_and(Error::is_unknown);
            match reply.outcome {
                Err(error) if repeatable && again::is_due(&error, attempt, patience) => {
                    self.shared
                        .refusal
                        .note(&self.shared.place, &error, attempt);
                    sleep(again::pause(attempt, self.shared.options.pause_max)).await;
                    attempt += 1;
                }
                outcome => {
                    if outcome.is_ok() {
                        self.shared.refusal.end(&self.shared.place);
                    }
                    let outcome = outcome.map(|completed| Completion {
                        result: completed.result,
                        received: completed.received,
                        association: completed.association,
                    });
                    // However the last attempt failed, an earlier one may not have.
                    let outcome = outcome.map_err(|error| match unknown {
                        true => Error::Lost(error.to_string()),
                        false => error,
                    });
                    return (outcome, data);
                }
            }
        }
    }
}

impl NamespaceUrl {
    /// Connects to the controller.
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub async fn connect(&self, options: Options) -> Result<Controller> {
        Controller::at(self.place.clone(), options).await
    }

    /// As [`NamespaceUrl::connect`], for a namespace of blocks.
    ///
    /// # Errors
    /// Also [`Error::Invalid`] when this is the URL of another kind.
    pub async fn connect_block(&self, options: Options) -> Result<BlockNamespace> {
        if self.scheme != Scheme::Block {
            return Err(Error::invalid(format!("{self} does not name blocks")));
        }
        self.connect(options).await?.block(self.nsid).await
    }

    /// As [`NamespaceUrl::connect`], for a namespace of keys and values.
    ///
    /// # Errors
    /// Also [`Error::Invalid`] when this is the URL of another kind.
    pub async fn connect_key_value(&self, options: Options) -> Result<KeyValueNamespace> {
        if self.scheme != Scheme::KeyValue {
            return Err(Error::invalid(format!(
                "{self} does not name keys and values"
            )));
        }
        self.connect(options).await?.key_value(self.nsid).await
    }
}
