//! One queue: the places of its commands, and the task that carries them, over one connection, or by one device, after the other.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::Result;
use super::device::{Admin, Attached, Pair};
use super::driver::Driver;
use super::host::Options;
use super::receiver::End;
use super::setup::{self, Purpose};
use super::slots::{RUNTIME_ENDED, Slots, TOO_SLOW};

/// What is to carry the commands of a queue.
pub(super) enum Way {
    /// A connection.
    Tcp {
        purpose: Purpose,
        /// Payload that goes with its command, at most, in bytes.
        in_capsule_bytes_max: u64,
    },
    /// The admin queue of a device.
    Admin(Arc<Attached>),
    /// A pair of I/O queues of a device, for so many commands.
    Pair(Arc<Attached>, u16),
}

/// A connection to be made.
pub(super) struct Dial {
    pub(super) way: Way,
    pub(super) association: u64,
    /// The controller's identifier, when the connection is there.
    pub(super) made: oneshot::Sender<Result<u16>>,
    /// Ends the connection when its value is no longer that of the association.
    pub(super) association_now: watch::Receiver<u64>,
}

/// A connection that ended, and why.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) association: u64,
    pub(super) why: String,
}

/// One queue.
pub(super) struct Queue {
    pub(super) slots: Arc<Slots>,
    dials: mpsc::UnboundedSender<Dial>,
}

impl Queue {
    /// A queue without connection, with places for so many commands, some of them kept for preparation. Its task runs on `runtime` until
    /// the queue is dropped.
    pub(super) fn new(
        (depth, kept): (u16, u16),
        options: Arc<Options>,
        lives: Lives,
        runtime: &Handle,
    ) -> Queue {
        let slots = Arc::new(Slots::new(depth, kept));
        let (dials, orders) = mpsc::unbounded_channel();
        runtime.spawn(run(slots.clone(), options, orders, lives));
        Queue { slots, dials }
    }

    /// Orders a connection.
    pub(super) fn dial(&self, dial: Dial) {
        // Without its task (the runtime has ended) the order is dropped, and with it the answer's sender.
        let _ = self.dials.send(dial);
    }
}

async fn run(
    slots: Arc<Slots>,
    options: Arc<Options>,
    mut dials: mpsc::UnboundedReceiver<Dial>,
    lives: Lives,
) {
    // Dropped last, also by a runtime that stops: nobody waits for a task that is gone.
    let closing = Closing(slots.clone());
    while let Some(dial) = dials.recv().await {
        let Dial {
            way,
            association,
            made,
            mut association_now,
        } = dial;
        let (mut line, cntlid) = match Line::open(way, &slots, &options, association).await {
            Ok(opened) => opened,
            Err(error) => {
                let _ = made.send(Err(error));
                continue;
            }
        };
        let mut life = lives.begin(association);
        if made.send(Ok(cntlid)).is_err() {
            continue;
        }
        let why = tokio::select! {
            why = line.run() => why,
            // Also when nobody is left to end it.
            _ = association_now.wait_for(|now| *now != association) => {
                "the association was ended".to_owned()
            }
        };
        tracing::debug!(why, "an NVMe queue lost its connection");
        line.wind_up(&why).await;
        life.why = why;
    }
    drop(closing);
}

/// What carries the commands of a queue now.
enum Line {
    Tcp(Box<Driver>),
    Admin(Box<Admin>),
    Pair(Box<Pair>),
}

impl Line {
    /// Opens it; also tells the controller's identifier, where the connection does.
    async fn open(
        way: Way,
        slots: &Arc<Slots>,
        options: &Options,
        association: u64,
    ) -> Result<(Line, u16)> {
        let (slots, timeout) = (slots.clone(), options.command_timeout);
        Ok(match way {
            Way::Tcp {
                purpose,
                in_capsule_bytes_max,
            } => {
                let opened = setup::open(&purpose, options).await?;
                let cntlid = opened.cntlid;
                let driver = Driver::new(slots, opened, association, in_capsule_bytes_max, timeout);
                (Line::Tcp(Box::new(driver)), cntlid)
            }
            Way::Admin(attached) => {
                let admin = Admin::new(slots, attached, association, timeout);
                (Line::Admin(Box::new(admin)), 0)
            }
            Way::Pair(attached, depth) => {
                let pair = Pair::open(slots, attached, depth, association, timeout).await?;
                (Line::Pair(Box::new(pair)), 0)
            }
        })
    }

    /// Carries commands until the connection ends, and tells why it did.
    async fn run(&mut self) -> String {
        match self {
            Line::Tcp(driver) => reason(&driver.as_mut().await),
            Line::Admin(admin) => admin.run().await,
            Line::Pair(pair) => pair.run().await,
        }
    }

    /// Ends what was under way, when the connection is over.
    async fn wind_up(&mut self, why: &str) {
        match self {
            Line::Tcp(driver) => driver.wind_up(why),
            Line::Admin(admin) => admin.wind_up(why),
            Line::Pair(pair) => pair.wind_up(why).await,
        }
    }
}

/// The connections of a host, for its keeper.
#[derive(Clone)]
pub(super) struct Lives {
    pub(super) gone: mpsc::UnboundedSender<Gone>,
    /// How many there are.
    pub(super) count: watch::Sender<usize>,
}

/// One connection; tells of its end when it is dropped.
struct Life {
    lives: Lives,
    association: u64,
    why: String,
}

impl Lives {
    fn begin(&self, association: u64) -> Life {
        self.count.send_modify(|count| *count += 1);
        Life {
            lives: self.clone(),
            association,
            why: RUNTIME_ENDED.to_owned(),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.lives.count.send_modify(|count| *count -= 1);
        // Nobody listens any more when the host is closed.
        let _ = self.lives.gone.send(Gone {
            association: self.association,
            why: std::mem::take(&mut self.why),
        });
    }
}

/// Refuses commands from when it is dropped.
struct Closing(Arc<Slots>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn reason(end: &End) -> String {
    match end {
        End::Fault(fault) => format!("the controller broke the protocol: {fault}"),
        End::Terminated(request) => format!("the controller ended the connection: {request}"),
        End::Lost(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the controller closed the connection".to_owned()
        }
        End::Lost(error) => error.to_string(),
        End::Silent => TOO_SLOW.to_owned(),
    }
}
