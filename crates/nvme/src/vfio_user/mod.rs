//! The target as a PCI device over a Unix socket (vfio-user), for virtual machines and for programs that drive a device themselves.
//!
//! - [`serve`]: one client, one controller, until the client goes.
//! - [`client`]: the other end, for programs.
//!
//! A socket is best bound as `DIR/NAME/cntrl`: initiators such as SPDK's are told `DIR/NAME` and add the rest themselves. Whoever can
//! connect to it is a host: the socket's mode and folder decide that, and the [`Viewer`] what is seen.
//!
//! # How it works
//! The client hands its memory over by files, and the controller reads commands there, and reads and writes their data, as a device
//! would by DMA: `transfer` finds the pieces, `payload` gives them to the target, which reads its disk straight into them where it
//! can. Registers are reached by messages (`messages`, `pci`); doorbells by messages or in memory (`doorbells`); completions are told
//! by eventfds (`interrupts`).
//!
//! # Memory without a file
//! What the client maps without a file only it can reach: it is asked (`DMA_READ`, `DMA_WRITE`), 32 KiB at a time or less where it says
//! so in `VERSION`, and answers with the same socket's messages (`asking`). Data may lie there (`far`), lists of where data lies, queues,
//! shadow doorbells (`errands`), or parts of any of them. It is a way that works, not a fast one: each command takes several messages
//! each way, and data is copied. A client all of whose memory has files has nothing of it.
//!
//! While an answer is awaited everything else goes on, the client's own requests first: one that waits for us before it answers is
//! served. That is why an unmapped range and a reset wait for no answer: what was asked for has failed then, and a later answer is
//! dropped. So it is after ten seconds. What commands hold that wait for the client is bounded, as over TCP. A wrong answer fails what it was asked for; an answer to nothing ends the connection.
//!
//! # Waiting
//! Shadow doorbells (Doorbell Buffer Config) are watched while commands come; then the client is asked to ring by a message, and
//! nothing runs until it does. A client that tells nothing of itself in `VERSION` may map the page of doorbells; nobody hears it ring
//! there, and a timer looks, from a thousand down to sixteen times a second, as long as the controller is enabled.
//!
//! # What it does not do
//! No interrupt pin, no masks, no file for a doorbell, no migration, no second socket for what we ask (`twin_socket`). Commands in
//! progress are not aborted; they end.
//!
//! # What a hostile client can do
//! Change its queues and lists while they are read, take its memory away, lie in every field, vanish: each ends or fails at most its
//! own controller. Memory that it could truncate is touched by the kernel alone, which answers an error; its device transfers go by our
//! buffers. It can have this process touch as much of its memory as it handed over. What it is asked for and does not answer is bounded:
//! 16 questions with their data are with it at once, and after 64 without an answer it is asked no more.
//!
//! # How memory comes back
//! `DMA_UNMAP` is answered when the last use of the memory has ended: no transfer that has begun is cut off, and nothing lands there
//! afterwards. A reset ends when the last command has. When the client dies, transfers that a disk has begun keep its memory mapped
//! until they are over.
//!
//! To look at a file of a file system, and to map it, may take as long as whoever serves that likes, and to unmap much memory takes some
//! milliseconds: threads of their own do that, while other clients of this thread, and the other requests of this one, are served. Requests
//! about the same memory are done in their order all the same: one waits for another that is still being mapped.

mod asking;
mod bar;
mod channel;
pub mod client;
mod device;
mod doorbells;
mod errno;
mod far;
mod interrupts;
mod mapping;
mod memory;
mod messages;
mod payload;
mod pci;
mod queues;
mod remapping;
mod run;
mod transfer;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use forebay_io::File;
use forebay_proto::nvme::{Controller, Status, SubmissionQueueEntry};
use forebay_store::Store;
use tokio::net::UnixStream;

use crate::target::{Hosts, Session, Share, Target, Viewer, held_bytes};

pub use run::Ended;

use asking::asking;
use channel::Channel;
use device::{Behind, Device};
use messages::Messages;
use run::{Done, Run, Work};

/// Room for keys that hosts list into, however little a value may be.
const LIST_BYTES: u32 = 64 << 10;
/// A client says within this what it can.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// What commands whose data is far may hold at once, in bytes, lists of where it lies among it: they wait for the client. With them those
/// that hold buffers without data, or for arguments.
const LENT_BYTES_MAX: u32 = 64 << 20;

/// I/O queues of each direction that a client may have.
const IO_QUEUES_MAX: u16 = 64;
/// Interrupt vectors: one for the admin queue and one for each other.
const VECTORS: u16 = IO_QUEUES_MAX + 1;

/// Serves one client of a socket: it gets a controller that shows what `viewer` sees, until it goes or `shutdown` is over. Runs on the
/// caller's thread, whose ring its commands use; returns when none of them is in progress any more, or dropped.
pub async fn serve<S: Store, F: File>(
    stream: UnixStream,
    target: &Target<S, F>,
    viewer: Viewer,
    shutdown: impl Future<Output = ()>,
) -> Ended {
    let Some(session) = target.attach(viewer) else {
        return Ended::Busy;
    };
    let session = &*session;
    let behind = Shown { target, session };
    let (asker, asks) = asking();
    let mut device = match Device::new(&behind, asker) {
        Ok(device) => device,
        Err(error) => return Ended::Broken(error),
    };
    let mut messages = Messages::new(Channel::new(stream), asks);
    // What others change may take its time, which is not the client's.
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        () = target.settled(session) => {}
        () = &mut shutdown => return Ended::Stopped,
    }
    let hello = poll_fn(|cx| {
        while !messages.are_agreed() {
            if !ready!(messages.poll(cx, &mut device))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Poll::Ready(Ok(()))
    });
    match tokio::time::timeout(HELLO_TIMEOUT, hello).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Ended::Broken(error),
        Err(_) => return Ended::Broken(io::ErrorKind::TimedOut.into()),
    }

    // It tells whether the host may stay, too; a device's always may.
    let changed = |mut since| async move {
        target.changed(session, &mut since).await;
        since
    };
    let mut change = pin!(changed(0));
    let update = |cx: &mut std::task::Context<'_>, controller: &mut Controller| {
        let since = ready!(change.as_mut().poll(cx));
        change.set(changed(since));
        target.update(session, || controller);
        Poll::Ready(())
    };
    let config = target.config();
    let kv_bytes_max = config.value_bytes_max.max(config.result_bytes_max);
    // As MDTS says it, which is in powers of two.
    let kv_bytes_max = u64::from(kv_bytes_max.max(LIST_BYTES)).next_power_of_two();
    let share = Hosts::default().share(None, target.lending(), LENT_BYTES_MAX);
    let share = &Arc::new(share);
    let run = Run::new(messages, device, kv_bytes_max, |work| {
        execute(target, session, share, work)
    });
    run.run(update, shutdown).await
}

async fn execute<S: Store, F: File>(
    target: &Target<S, F>,
    session: &Session<S>,
    share: &Arc<Share>,
    work: Work,
) -> Done {
    match work {
        Work::One(command, mut ticket) => {
            // A future is moved into its place whole: the short way must not pay for the length of this, nor of what fused ones take.
            let (bytes, list_bytes) = ticket.data.most();
            let held = held_bytes(&command, bytes).saturating_add(list_bytes);
            let lent = match held {
                0 => None,
                held => Box::pin(share.lend(held)).await,
            };
            if ticket.data.is_far()
                && let Err(status) = Box::pin(ticket.data.locate()).await
            {
                return Done::One(ticket, status, 0);
            }
            let (status, result) = target.execute(session, &command, &mut ticket.data).await;
            drop(lent);
            Done::One(ticket, status, result)
        }
        Work::Both(halves) => {
            let [(first, mut one), (second, mut other)] = *halves;
            let fused = Box::pin(async {
                // Both are far, or none is.
                let halves = [&one, &other].map(|half| half.data.most());
                let held = halves
                    .map(|(bytes, list_bytes)| bytes.saturating_mul(2).saturating_add(list_bytes));
                let _lent = match held[0].saturating_add(held[1]) {
                    0 => None,
                    held => share.lend(held).await,
                };
                if let Err(status) = one.data.locate().await {
                    return (status, Status::ABORTED_FAILED_FUSED);
                }
                if let Err(status) = other.data.locate().await {
                    return (Status::ABORTED_FAILED_FUSED, status);
                }
                target
                    .execute_fused(session, (&first, &mut one.data), (&second, &mut other.data))
                    .await
            });
            let (status, other_status) = fused.await;
            Done::Both((one, status), (other, other_status))
        }
    }
}

/// What a target shows to one client.
struct Shown<'a, S: Store, F: File> {
    target: &'a Target<S, F>,
    session: &'a Session<S>,
}

impl<S: Store, F: File> Behind for Shown<'_, S, F> {
    fn controller(&self, now_ms: u64) -> Controller {
        self.target.device(now_ms, self.session, VECTORS)
    }

    fn prepare(&self, controller: &mut Controller, entry: &SubmissionQueueEntry) {
        if let Some(prepared) = self.target.prepare(self.session, entry) {
            prepared.show(controller);
        }
    }

    fn reset(&self) {
        self.session.reset();
    }
}
