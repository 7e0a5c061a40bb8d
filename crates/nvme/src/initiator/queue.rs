//! One queue: the places of its commands, and the task that carries them, over one connection after the other.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::Result;
use super::driver::Driver;
use super::host::Options;
use super::receiver::End;
use super::setup::{self, Purpose};
use super::slots::Slots;

/// A connection to be made.
pub(super) struct Dial {
    pub(super) purpose: Purpose,
    pub(super) association: u64,
    /// Payload that goes with its command, at most, in bytes.
    pub(super) in_capsule_bytes_max: u64,
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
    while let Some(mut dial) = dials.recv().await {
        let association = dial.association;
        let opened = match setup::open(&dial.purpose, &options).await {
            Ok(opened) => opened,
            Err(error) => {
                let _ = dial.made.send(Err(error));
                continue;
            }
        };
        let cntlid = opened.cntlid;
        let mut driver = Driver::new(
            slots.clone(),
            opened,
            association,
            dial.in_capsule_bytes_max,
            options.command_timeout,
        );
        let mut life = lives.begin(association);
        if dial.made.send(Ok(cntlid)).is_err() {
            continue;
        }
        let why = tokio::select! {
            end = &mut driver => reason(&end),
            // Also when nobody is left to end it.
            _ = dial.association_now.wait_for(|now| *now != association) => {
                "the association was ended".to_owned()
            }
        };
        tracing::debug!(qid = dial.purpose.qid, why, "an NVMe connection ended");
        driver.wind_up(&why);
        life.why = why;
    }
    drop(closing);
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
            why: "its runtime has ended".to_owned(),
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
        End::Silent => "a command was not completed in time".to_owned(),
    }
}
