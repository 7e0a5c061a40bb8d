//! The task of a link that reads its Unix socket: regions come and go, sleepers are woken, and the peer's end is noticed.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;

use forebay_io::passing::{self, Passed};
use forebay_mem::Region;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

use super::frame::{FRAME_BYTES, Frame, Refusal, WAKE};
use super::shared::{Phase, Shared};
use crate::{Access, CloseReason, Stag};

/// Files that may lie here before the frame that they belong to.
const FILES_MAX: usize = 8;

/// Files of file systems that are mapped at once, of all links: each has a thread.
static MAPPING: Semaphore = Semaphore::const_new(16);

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
}

impl Reader {
    /// Takes what is there; false at the end of the stream.
    pub(super) fn fill(&mut self, stream: &UnixStream) -> io::Result<bool> {
        let mut bytes = [0; 16 * FRAME_BYTES];
        let got = passing::try_recv(stream, &mut bytes, &mut self.files)?;
        if self.files.len() > FILES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.bytes.extend(&bytes[..got]);
        Ok(got > 0)
    }

    /// The next whole frame; an error when it is none. Wake-ups are over when they are read.
    fn next(&mut self) -> Result<Option<Frame>, NoFrame> {
        while self.bytes.front() == Some(&WAKE) {
            self.bytes.pop_front();
        }
        let Some(frame) = self.take_frame() else {
            return Ok(None);
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

/// The bytes are no frame.
struct NoFrame;

/// Runs until the link has ended and the peer has let go of what was exposed to it.
pub(super) async fn run(
    mut last: Last,
    mut reader: Reader,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    uses: Arc<Uses>,
) {
    let shared = &*last.shared;
    let mut phase = shared.phase.subscribe();
    let open = async {
        loop {
            // A peer that always has something to say is not the only one here.
            tokio::task::consume_budget().await;
            take_events(shared, &mut reader, Some(&uses)).await;
            // All answers are sent before more is read: what waits here is bounded by what one read brings.
            while let Ok(out) = outgoing.try_recv() {
                out.send(&shared.stream).await?;
            }
            tokio::select! {
                ready = shared.stream.readable() => {
                    ready?;
                    if !fill(shared, &mut reader)? {
                        return Ok(());
                    }
                }
                out = outgoing.recv() => match out {
                    Some(out) => out.send(&shared.stream).await?,
                    None => return Ok(()),
                },
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
    while take_events(shared, &mut reader, None).await && !shared.exposures.lock().is_empty() {
        tokio::task::consume_budget().await;
        let more =
            shared.stream.readable().await.is_ok() && fill(shared, &mut reader).unwrap_or_default();
        if !more {
            break;
        }
    }
    last.released = true;
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
async fn take_events(shared: &Shared, reader: &mut Reader, uses: Option<&Arc<Uses>>) -> bool {
    loop {
        let handled = match reader.next() {
            Ok(None) => return true,
            Ok(Some(frame)) => handle(shared, reader, frame, uses).await,
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
async fn handle(
    shared: &Shared,
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
            let Some(uses) = uses else { return Some(()) };
            let offered = (stag, access, len);
            let mapped = map(shared, offered, (file, offset), uses).await;
            let answer = match mapped {
                Ok(()) => Frame::Exposed { stag },
                Err(why) => Frame::Refused { stag, why },
            };
            shared.say(Outgoing::frame(answer));
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
                shared.say(Outgoing::frame(Frame::Withdraw { stag }));
            }
        }
        Frame::Refused { stag, why } => shared.exposures.lock().refused(stag, why)?,
        Frame::Withdrawn { stag } => shared.exposures.lock().withdrawn(stag)?,
        Frame::Close { reason } => shared.end(reason, true),
    }
    Some(())
}

/// Maps what the peer exposes, on a thread that may wait when somebody serves that file: he might not answer.
async fn map(
    shared: &Shared,
    offered: (Stag, Access, u64),
    (file, offset): (Passed, u64),
    uses: &Arc<Uses>,
) -> Result<(), Refusal> {
    let offered = {
        let peer_regions = shared.peer_regions.read();
        peer_regions.offer(offered, uses, &shared.tell)
    }?;
    let mapped = match file.is_memory() {
        true => offered.map(file, offset)?,
        false => {
            let turn = MAPPING.acquire().await.map_err(|_| Refusal::Busy)?;
            let mapped = spawn_blocking(move || {
                let mapped = offered.map(file, offset);
                drop(turn);
                mapped
            });
            mapped.await.map_err(|_| Refusal::Busy)??
        }
    };
    let kept = shared.peer_regions.write().keep(mapped);
    kept.map_err(|_ended| Refusal::Busy)
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
