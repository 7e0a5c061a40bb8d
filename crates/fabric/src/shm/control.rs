//! The task of a link that reads its Unix socket: regions come and go, sleepers are woken, and the peer's end is noticed.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;

use forebay_io::passing::{self, Owner, Passed};
use forebay_mem::Region;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::frame::{FRAME_BYTES, Frame, Refusal, WAKE};
use super::regions::{Mapped, REGIONS};
use super::shared::{Phase, Shared};
use crate::{Access, CloseReason, Stag};

/// Files that may lie here before the frame that they belong to.
const FILES_MAX: usize = 8;

/// With so many frames to send, a link reads nothing: of every region, here or there, one waits at most, unless the peer asks and asks and
/// takes no answer.
const UNSENT_MAX: usize = 2 * REGIONS;

/// What is to be sent, with the file behind a region.
pub(super) struct Outgoing {
    frame: Frame,
    region: Option<Arc<Region>>,
}

impl Outgoing {
    pub(super) fn frame(frame: Frame) -> Outgoing {
        Outgoing {
            frame,
            region: None,
        }
    }

    pub(super) fn with_file(frame: Frame, region: Arc<Region>) -> Outgoing {
        Outgoing {
            frame,
            region: Some(region),
        }
    }

    pub(super) fn withdrawn(stag: Stag) -> Outgoing {
        Outgoing::frame(Frame::Withdrawn { stag })
    }

    async fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let backing = self.region.as_ref().and_then(|region| region.backing());
        let file = backing.map(|backing| backing.file);
        passing::send(stream, &self.frame.encoded(), file).await
    }
}

/// While one of these lives, memory of the peer's may be in use here. The peer reads the end of our stream when the last is gone, and
/// knows then that its memory is its own.
pub(super) struct Uses(pub(super) Arc<UnixStream>);

impl Drop for Uses {
    fn drop(&mut self) {
        passing::finish(&self.0);
    }
}

/// Cuts what the socket gives into frames.
#[derive(Default)]
pub(super) struct Reader {
    bytes: VecDeque<u8>,
    files: VecDeque<Passed>,
    /// Whose files these are, when that is known.
    pub(super) owner: Option<Owner>,
}

impl Reader {
    /// Takes what is there; false at the end of the stream.
    pub(super) fn fill(&mut self, stream: &UnixStream) -> io::Result<bool> {
        let mut bytes = [0; 16 * FRAME_BYTES];
        let owner = self.owner.as_ref();
        let got = passing::try_recv(stream, &mut bytes, &mut self.files, owner)?;
        if self.files.len() > FILES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.bytes.extend(&bytes[..got]);
        Ok(got > 0)
    }

    /// The next whole frame; an error when it is none, or when there are files behind the last one that no frame begins with. Wake-ups are
    /// over when they are read.
    fn next(&mut self) -> Result<Option<Frame>, NoFrame> {
        while self.bytes.front() == Some(&WAKE) {
            self.bytes.pop_front();
        }
        let Some(frame) = self.take_frame() else {
            let begun = usize::from(!self.bytes.is_empty());
            return match self.files.len() > begun {
                true => Err(NoFrame),
                false => Ok(None),
            };
        };
        Frame::decode(&frame).map(Some).ok_or(NoFrame)
    }

    /// As many bytes as a frame has, whatever they are.
    pub(super) fn take_frame(&mut self) -> Option<[u8; FRAME_BYTES]> {
        if self.bytes.len() < FRAME_BYTES {
            return None;
        }
        let mut frame = [0; FRAME_BYTES];
        for (place, byte) in frame.iter_mut().zip(self.bytes.drain(..FRAME_BYTES)) {
            *place = byte;
        }
        Some(frame)
    }

    /// The file that came first and was not taken yet.
    pub(super) fn take_file(&mut self) -> Option<Passed> {
        self.files.pop_front()
    }
}

/// The bytes, or the files, are no frame's.
struct NoFrame;

/// Runs until the link has ended and the peer has let go of what was exposed to it.
pub(super) async fn run(
    mut last: Last,
    mut reader: Reader,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    uses: Arc<Uses>,
) {
    let shared = &last.shared;
    let mut phase = shared.phase.subscribe();
    let open = async {
        let mut next = None;
        loop {
            // A peer that always has something to say is not the only one here.
            tokio::task::consume_budget().await;
            take_events(shared, &mut reader, Some(&uses));
            let reads = outgoing.len() < UNSENT_MAX;
            tokio::select! {
                // Also while the peer takes nothing: it may be waiting for us to take something.
                ready = shared.stream.readable(), if reads => {
                    ready?;
                    if !fill(shared, &mut reader)? {
                        return Ok(());
                    }
                }
                sent = send_next(&mut outgoing, &mut next, &shared.stream) => {
                    if !sent? {
                        return Ok(());
                    }
                }
            }
        }
    };
    tokio::select! {
        biased;
        _ = phase.wait_for(|phase| *phase != Phase::Open) => {}
        // The peer went away without a word, or what it says is lost.
        _ = async { let _: io::Result<()> = open.await; } => shared.end(CloseReason::Lost, true),
    }

    shared.forget_regions();
    drop(uses);
    shared.exposures.lock().close();
    while take_events(shared, &mut reader, None) && !shared.exposures.lock().is_empty() {
        tokio::task::consume_budget().await;
        let more =
            shared.stream.readable().await.is_ok() && fill(shared, &mut reader).unwrap_or_default();
        if !more {
            break;
        }
    }
    last.released = true;
}

/// Sends what is next, which stays in `next` until it is sent; false when nothing more will come.
async fn send_next(
    outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
    next: &mut Option<Outgoing>,
    stream: &UnixStream,
) -> io::Result<bool> {
    if next.is_none() {
        *next = outgoing.recv().await;
    }
    let Some(out) = next else {
        return Ok(false);
    };
    out.send(stream).await?;
    *next = None;
    Ok(true)
}

/// Takes what is there; false at the end of the stream.
fn fill(shared: &Shared, reader: &mut Reader) -> io::Result<bool> {
    match reader.fill(&shared.stream) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        filled => {
            // Whatever came, the peer may have left out a wake-up because the socket was full.
            shared.wake();
            filled
        }
    }
}

/// Handles all whole frames; without `uses` only those that give our own memory back. False when one is none.
fn take_events(shared: &Arc<Shared>, reader: &mut Reader, uses: Option<&Arc<Uses>>) -> bool {
    loop {
        let handled = match reader.next() {
            Ok(None) => return true,
            Ok(Some(frame)) => handle(shared, reader, frame, uses),
            Err(NoFrame) => None,
        };
        if handled.is_none() {
            let what = "a frame that is none or comes at the wrong time";
            shared.end(CloseReason::Violation(what.into()), false);
            return false;
        }
    }
}

/// Does what a frame says; `None` when a peer of ours would not have sent it.
fn handle(
    shared: &Arc<Shared>,
    reader: &mut Reader,
    frame: Frame,
    uses: Option<&Arc<Uses>>,
) -> Option<()> {
    match frame {
        Frame::Welcome { .. } => return None,
        Frame::Expose {
            stag,
            access,
            offset,
            len,
        } => {
            let file = reader.take_file()?;
            if let Some(uses) = uses {
                map(shared, (stag, access, len), (file, offset), uses);
            }
        }
        Frame::Withdraw { stag } => {
            if uses.is_some() {
                // The guard is gone before the memory is unmapped.
                let gone = shared.peer_regions.write().remove(stag);
                drop(gone?);
            }
        }
        Frame::Exposed { stag } => {
            let wanted = shared.exposures.lock().accepted(stag)?;
            if !wanted {
                shared.withdraw(stag);
            }
        }
        Frame::Refused { stag, why } => shared.exposures.lock().refused(stag, why)?,
        Frame::Withdrawn { stag } => shared.exposures.lock().withdrawn(stag)?,
        Frame::Close { reason } => shared.end(reason, true),
    }
    Some(())
}

/// Maps what the peer exposes, and answers; beside the link when somebody may serve that file: he might never answer.
fn map(
    shared: &Arc<Shared>,
    (stag, access, len): (Stag, Access, u64),
    (file, offset): (Passed, u64),
    uses: &Arc<Uses>,
) {
    let offered = {
        let peer_regions = shared.peer_regions.read();
        peer_regions.offer((stag, access, len), uses, &shared.tell)
    };
    if file.is_memory() {
        let mapped = offered.and_then(|offered| offered.map(file, offset));
        return answer(shared, stag, mapped);
    }
    let waiting = offered.and_then(|offered| {
        let turn = shared.mappings.clone().try_acquire_owned();
        let turn = turn.map_err(|_| Refusal::Busy)?;
        let place = offered.place()?;
        Ok((offered, (turn, place)))
    });
    match waiting {
        Ok((offered, held)) => {
            let shared = shared.clone();
            let mut phase = shared.phase.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    mapped = offered.map_apart(file, offset) => answer(&shared, stag, mapped),
                    _ = phase.wait_for(|phase| *phase != Phase::Open) => {}
                }
                drop(held);
            });
        }
        Err(why) => answer(shared, stag, Err(why)),
    }
}

fn answer(shared: &Shared, stag: Stag, mapped: Result<Mapped, Refusal>) {
    let kept = mapped.and_then(|mapped| {
        // What is not kept is unmapped after the guard is gone.
        let kept = shared.peer_regions.write().keep(mapped);
        kept.map_err(|_unkept| Refusal::Busy)
    });
    let answer = match kept {
        Ok(()) => Frame::Exposed { stag },
        Err(why) => Frame::Refused { stag, why },
    };
    shared.say(Outgoing::frame(answer));
}

/// Whatever ends the task, also its runtime: the link has ended then.
pub(super) struct Last {
    shared: Arc<Shared>,
    /// The peer has let go of our memory.
    released: bool,
}

impl Last {
    pub(super) fn of(shared: Arc<Shared>) -> Last {
        Last {
            shared,
            released: false,
        }
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        self.shared.end(CloseReason::Lost, true);
        self.shared.forget_regions();
        self.shared.exposures.lock().close();
        let shared = self.shared.clone();
        if self.released || shared.exposures.lock().is_empty() {
            return release(&shared);
        }
        // The runtime is gone, and somebody may wait for memory that the peer still uses.
        let waiting = thread::Builder::new().name("forebay-shm-end".into());
        let waiting = waiting.spawn(move || {
            passing::wait_for_end(&shared.stream);
            release(&shared);
        });
        if let Err(error) = waiting {
            tracing::warn!(%error, "memory lent over a link stays lent");
        }
    }
}

fn release(shared: &Shared) {
    passing::give_up(&shared.stream);
    drop(shared.exposures.lock().release());
    shared.phase.send_replace(Phase::Released);
}
