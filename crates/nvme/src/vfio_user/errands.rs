//! What a device does itself in far memory: reads commands, writes completions, looks at doorbells, moves the data of admin commands.
//!
//! Each is a future that asks and waits; what it leads to, the device does when it has come back.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_mem::Buf;
use forebay_proto::nvme::{Effect, QueueRequest, Status, SubmissionQueueEntry};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::asking::Asker;
use super::doorbells::Tour;
use super::far::Far;
use super::memory::Gone;

/// What has come back.
pub(super) enum Errand {
    /// Commands of this queue.
    Read(u16, Result<Vec<u8>, Gone>),
    /// Completions of this queue are written.
    Written(u16, Result<(), Gone>),
    /// Far doorbells were read; they were made so for an admin command.
    Toured(Option<Bells>, Result<Vec<u8>, Gone>),
    /// The data of an admin command.
    Taken(SubmissionQueueEntry, Result<Vec<u8>, Status>),
    /// An admin command has its data.
    Given(Ending, Result<(), Status>),
}

/// An admin command that waits for far doorbells.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bells {
    /// They are where they are to be from now on; its identifier.
    Begin(u16),
    /// A queue's begins at zero; its identifier.
    Clear(QueueRequest, u16),
}

/// How an admin command ends when its data was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) effect: Effect,
}

/// Those that have not come back.
#[derive(Default)]
pub(super) struct Errands {
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Errand> + Send>>>,
    /// One has begun and was not polled.
    begun: bool,
}

impl Errands {
    /// The next one that has come back.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Errand>> {
        self.begun = false;
        self.under_way.poll_next_unpin(cx)
    }

    /// Whether one is to be polled.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    fn begin(&mut self, errand: impl Future<Output = Errand> + Send + 'static) {
        self.under_way.push(Box::pin(errand));
        self.begun = true;
    }

    /// Reads commands of a queue.
    pub(super) fn read(&mut self, asker: Asker, qid: u16, (address, len): (u64, usize)) {
        self.begin(async move {
            let mut bytes = vec![0; len];
            let read = asker.read(address, &mut bytes).await;
            Errand::Read(qid, read.map(|()| bytes))
        });
    }

    /// Writes completions of a queue: their phase last, all of it after the rest is there.
    pub(super) fn write(&mut self, asker: Asker, qid: u16, (address, bytes): (u64, [Vec<u8>; 2])) {
        self.begin(async move {
            let mut written = Ok(());
            for bytes in bytes {
                if written.is_ok() {
                    written = asker.write(address, &Buf::from(bytes)).await;
                }
            }
            Errand::Written(qid, written)
        });
    }

    /// Looks at far doorbells.
    pub(super) fn tour(&mut self, asker: Asker, tour: Tour, bells: Option<Bells>) {
        self.begin(async move {
            let toured = async {
                for (address, bytes) in tour.writes {
                    asker.write(address, &Buf::from(bytes)).await?;
                }
                let (address, len) = tour.read;
                let mut bytes = vec![0; len];
                asker.read(address, &mut bytes).await?;
                Ok::<_, Gone>(bytes)
            };
            Errand::Toured(bells, toured.await)
        });
    }

    /// Takes the data of an admin command.
    pub(super) fn take(&mut self, mut data: Far, entry: SubmissionQueueEntry) {
        self.begin(async move { Errand::Taken(entry, data.take().await) });
    }

    /// Gives an admin command its data.
    pub(super) fn give(&mut self, mut data: Far, bytes: Vec<u8>, ending: Ending) {
        self.begin(async move {
            let given = async {
                data.locate().await?;
                data.send(&Buf::from(bytes)).await
            };
            Errand::Given(ending, given.await)
        });
    }
}
