//! The target over TCP (NVMe TCP Transport Specification 1.0).
//!
//! [`Door::serve`] runs one connection, which is one queue, to its end, on the thread it is called on. A controller is shared by its
//! queues, wherever they are served.
//!
//! - `setup`: ICReq and Connect, and the end of a connection; `driver`: the loop of a queue, `work`: what it starts;
//! - `receiver`, `transfers`, `sender`: the two directions of a connection; `wire`: how the loop and its commands share them;
//! - `slots`: commands side by side in one task; `command`, `payload`: one command and its data;
//! - `association`: a controller and its queues.
//!
//! # How payload moves
//! Data that hosts send when asked is received straight into the registered buffers of whoever takes it; what came with its head is
//! copied, and so is in-capsule data: once, when the command takes it at once. Data to hosts is sent from where it lies.
//!
//! # What is agreed
//! CPDA 0, MAXH2CDATA 1 MiB, digests as the host asks, one R2T a command. 8 KiB of in-capsule data on the admin queue, on I/O queues what
//! the target is configured with. SUCCESS stands for a completion where the host does without flow control of the submission queue,
//! and only for blocks: elsewhere the result matters.
//!
//! # TLS
//! A host that begins with TLS gets it, on the same port, when it has a key that the target knows: TLS 1.3 with a pre-shared key. Its
//! Connect must name the host and the subsystem that the key is for. A host that has a key may not come in the clear, but for discovery.
//! What goes through TLS is copied once each way, and counted.
//!
//! # What it does not do
//! No secure channel that an authentication leads to (secure channel concatenation): TLS is there from the first byte, or not at all.
//!
//! # Bounds
//! [`Limits`] says how long hosts are waited for and what is lent to them. A queue runs as many commands as it has entries; one more
//! ends it. A command whose data comes by R2T holds no buffer before data comes, and all commands of a host are lent a bounded amount
//! of memory, until what they answer has gone: who comes later asks for its data later. Reading stops while a command has no place
//! for what comes next, and while much that came in capsules waits for its commands.
mod association;
mod command;
mod driver;
mod end;
mod leaving;
mod payload;
mod receiver;
mod sender;
mod setup;
mod stall;
mod transfers;
mod wire;
mod work;

use std::collections::HashMap;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_io::File;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::fabrics::{Connect, Refused, connect_at};
use forebay_proto::nvme::psk::{Identity, TlsKey};
use forebay_store::Store;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::socket::{Acceptor, Keys, Socket, begins_with_tls};
use crate::target::{Arrival, Change, Hosts, Proven, Target};
use association::{Association, Member, Orders};
use command::Queue;
use driver::{Connected, Driver};
use end::End;
use leaving::Leaving;
use setup::Granted;
use stall::Stall;
use wire::Wire;

/// Room for capsules that come together on an I/O queue: 32 writes of 4 KiB.
const STAGING_BYTES: usize = 160 << 10;

/// How long a connection may be silent before the system asks whether the host's system is still there, and how often it asks in vain,
/// each time after as long again.
const SILENCE: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;

/// What hosts are granted, the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a host may take for its first byte, for the handshake of TLS, for ICReq, and then again for Connect.
    pub begin: Duration,
    /// How long it may leave what it was sent, or what it was asked for: then it is cut off.
    pub stall: Duration,
    /// How long one may take for a mebibyte, or for what is left of less, while it holds memory that others wait for.
    pub wanted: Duration,
    /// What the commands in progress of a host are lent for their data, in bytes.
    pub host_bytes: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            begin: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            wanted: Duration::from_secs(2),
            host_bytes: 64 << 20,
        }
    }
}

/// What a queue has joined: an I/O queue is a member of it.
type Joined<S> = (Arc<Association<S>>, Option<Member>);

/// Serves connections of one target.
pub struct Door<S: Store, F: File> {
    target: Arc<Target<S, F>>,
    limits: Limits,
    associations: Mutex<HashMap<u16, Arc<Association<S>>>>,
    leaving: Arc<Leaving>,
    hosts: Hosts,
    /// Made when the first host begins with TLS; `None` when that failed.
    acceptor: OnceLock<Option<Acceptor>>,
}

impl<S: Store, F: File> Keys for Target<S, F> {
    fn key(&self, identity: &Identity<'_>) -> Option<TlsKey> {
        self.key_by(identity)
    }
}

impl<S: Store, F: File> Door<S, F> {
    /// A door to this target.
    pub fn new(target: Arc<Target<S, F>>) -> Door<S, F> {
        Door::with_limits(target, Limits::default())
    }

    /// A door to this target, with other limits than usual.
    pub fn with_limits(target: Arc<Target<S, F>>, limits: Limits) -> Door<S, F> {
        Door {
            target,
            limits,
            associations: Mutex::default(),
            leaving: Arc::default(),
            hosts: Hosts::default(),
            acceptor: OnceLock::new(),
        }
    }

    /// How many controllers there are.
    pub fn controllers(&self) -> usize {
        self.associations.lock().len()
    }

    /// Serves a connection until it ends, soon after `shutdown` at the latest.
    pub async fn serve(&self, stream: TcpStream, shutdown: impl Future<Output = ()>) {
        self.serve_trusted(stream, false, shutdown).await;
    }

    /// As [`serve`](Door::serve). `trusted`: the host may come though nobody made it known, see
    /// [`Arrival`].
    pub async fn serve_trusted(
        &self,
        stream: TcpStream,
        trusted: bool,
        shutdown: impl Future<Output = ()>,
    ) {
        let peer = stream.peer_addr();
        let local = stream.local_addr().ok();
        let local = local.map(|local| local.ip().to_canonical());
        // Completions are small and awaited; and one whose host has lost its power says nothing any more, which is no sign of that where
        // it set no timeout.
        let prepared = stream
            .set_nodelay(true)
            .and_then(|()| forebay_io::socket::set_keep_alive(&stream, SILENCE, PROBES));
        if let Err(error) = prepared {
            tracing::debug!(%error, "an NVMe/TCP connection is lost");
            return;
        }
        let mut shutdown = pin!(shutdown);
        let agreed = match select(pin!(self.agree(stream)), &mut shutdown).await {
            Either::Left((agreed, _)) => agreed,
            Either::Right(_) => Err(End::Ended),
        };
        let (socket, proven) = match agreed {
            Ok(agreed) => agreed,
            Err(end) => return tracing::debug!(?peer, %end, "an NVMe/TCP connection has ended"),
        };
        let arrival = Arrival {
            trusted,
            local,
            peer: peer.as_ref().ok().map(SocketAddr::ip),
            proven: proven.map(Arc::new),
        };
        let wire = Wire::new(socket);
        let orders = Arc::new(Orders::default());
        let admit = |connect: &Connect| self.admit(connect, &arrival, &orders);
        let begun = pin!(setup::begin(&wire, self.limits.begin, admit));
        let begun = match select(begun, &mut shutdown).await {
            Either::Left((begun, _)) => begun,
            Either::Right(_) => Err(End::Ended),
        };
        let end = match begun {
            Ok(granted) => {
                let Granted { connect, to } = granted;
                let (association, member) = to;
                let end = self
                    .run(&wire, &orders, &connect, &association, shutdown)
                    .await;
                match member {
                    None => {
                        association.end();
                        let cntlid = association.session.cntlid();
                        self.associations.lock().remove(&cntlid);
                    }
                    Some(member) => association.leave(connect.qid, &member),
                }
                end
            }
            Err(end) => end,
        };
        match end {
            End::Stalled | End::KeepAliveExpired => {
                tracing::warn!(?peer, %end, "an NVMe/TCP connection has ended");
            }
            _ => tracing::debug!(?peer, %end, "an NVMe/TCP connection has ended"),
        }
        setup::farewell(&wire, &end).await;
    }

    /// Makes a connection secret when the host begins with TLS. One door serves both kinds: what PDUs begin with, TLS does not.
    async fn agree(&self, stream: TcpStream) -> Result<(Socket, Option<Proven>), End> {
        let patience = self.limits.begin;
        let late = |_| End::Stalled;
        let first = timeout(patience, begins_with_tls(&stream)).await;
        if !first.map_err(late)?.map_err(End::Lost)? {
            return Ok((Socket::from(stream), None));
        }
        let acceptor = self.acceptor.get_or_init(|| {
            let made = Acceptor::new(self.target.clone());
            made.inspect_err(|error| tracing::error!(%error, "no TLS for NVMe/TCP"))
                .ok()
        });
        let acceptor = acceptor.as_ref().ok_or(End::Ended)?;
        let agreed = timeout(patience, acceptor.accept(stream)).await;
        let (socket, proven) = agreed.map_err(late)?.map_err(End::Insecure)?;
        Ok((socket, Some(proven)))
    }

    /// Answers a Connect: with what the queue belongs to, which an I/O queue is a member of, and the result.
    fn admit(
        &self,
        connect: &Connect,
        arrival: &Arrival,
        orders: &Arc<Orders>,
    ) -> Result<(Joined<S>, u64), Refused> {
        if connect.qid == 0 {
            let admitted = self.target.connect_by(now_ms(), connect, arrival.clone())?;
            let cntlid = admitted.session.cntlid();
            let host = admitted.session.host();
            let (whole, most) = (self.target.lending(), self.limits.host_bytes);
            let share = self.hosts.share(host, whole, most);
            let association = Association::new(
                admitted.controller,
                admitted.session,
                share,
                self.leaving.clone(),
            );
            let association = Arc::new(association);
            self.associations.lock().insert(cntlid, association.clone());
            return Ok(((association, None), admitted.result));
        }
        let known = self.associations.lock().get(&connect.cntlid).cloned();
        let association = known.ok_or(Refused::in_data(connect_at::CNTLID))?;
        if !self.target.may_join(&association.session, arrival) {
            // Names and numbers of others are no secret.
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        let (member, result) = association.join(connect, orders)?;
        Ok(((association, Some(member)), result))
    }

    async fn run(
        &self,
        wire: &Wire,
        orders: &Orders,
        connect: &Connect,
        association: &Association<S>,
        shutdown: impl Future<Output = ()>,
    ) -> End {
        let mut shutdown = pin!(shutdown);
        let qid = connect.qid;
        if qid > 0 {
            let bytes = self.target.config().in_capsule_bytes as usize;
            wire.state().set_io(bytes);
            // The host may repeat what it began before: nothing of that may happen after what this queue does.
            let settled = pin!(async {
                association.settled().await;
                self.target.settled(&association.session).await;
            });
            let ended = pin!(orders.ended());
            let over = select(&mut shutdown, ended);
            if let Either::Right(_) = select(settled, over).await {
                return End::Ended;
            }
        }
        let queue = Queue {
            target: &*self.target,
            wire,
            association,
            qid,
            now_ms,
        };
        let connected = Connected {
            qid,
            entries: connect.entries,
            flow_control: !connect.no_sq_flow_control,
            // The Connect was its first.
            head: 1,
        };
        let over = async {
            match qid {
                0 => self.watch(association).await,
                // It ends with its controller.
                _ => pending().await,
            }
        };
        let stall = Stall::new(self.limits.stall, self.limits.wanted);
        let begin = |work| queue.serve(work);
        let driver = Driver::new(wire, association, orders, connected, now_ms, stall, begin);
        driver.run(shutdown, over).await
    }

    /// Shows the controller what changes, until its host may not stay.
    async fn watch(&self, association: &Association<S>) {
        let session = &association.session;
        let mut since = 0;
        loop {
            self.target.changed(session, &mut since).await;
            let change = self.target.update(session, || association.controller());
            if change == Change::Over {
                return;
            }
        }
    }
}

/// Milliseconds of a clock that never goes back.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}
