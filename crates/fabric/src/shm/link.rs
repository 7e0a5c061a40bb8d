//! One end of a link.

use std::convert::identity;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_io::Patience;
use forebay_mem::{Buf, BufMut, RegionSlice};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use super::control::{self, Last, Outgoing, Reader, Uses};
use super::frame::Frame;
use super::mapping::Share;
use super::ring::DIRECTION_BYTES;
use super::shared::{LONG_BYTES, Phase, Shared, Taken};
use super::spin::{Seen, look_for};
use crate::sessions::LinkId;
use crate::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, MESSAGE_BYTES_MAX, Placed,
    RemoteRange, Result, Stag,
};

/// Steps between two turns of other tasks of the thread.
const STEPS_A_TURN: usize = 4;

/// One end of a link over shared memory. It ends when it is dropped.
pub struct ShmLink {
    shared: Arc<Shared>,
    id: OnceLock<LinkId>,
}

/// What a link is made of before it runs.
pub(super) struct Parts {
    pub(super) stream: Arc<UnixStream>,
    pub(super) reader: Reader,
    pub(super) sends: RegionSlice,
    pub(super) receives: RegionSlice,
    /// What the peer's tenant has mapped.
    pub(super) tenant: Option<Arc<Share>>,
}

impl ShmLink {
    /// Starts the link's task on the runtime of the caller.
    pub(super) fn start(parts: Parts) -> ShmLink {
        debug_assert!(parts.sends.len() >= DIRECTION_BYTES);
        let (tell, outgoing) = mpsc::unbounded_channel();
        let shared = Shared::new(
            parts.stream.clone(),
            tell,
            parts.sends,
            parts.receives,
            parts.tenant,
        );
        let shared = Arc::new(shared);
        let uses = Arc::new(Uses(parts.stream));
        let last = Last::of(shared.clone());
        tokio::spawn(control::run(last, parts.reader, outgoing, uses));
        ShmLink {
            shared,
            id: OnceLock::new(),
        }
    }

    pub(super) fn set_id(&self, id: LinkId) {
        let _ = self.id.set(id);
    }

    /// Copies on a thread that may wait: memory of a file may first have to be read from a disk.
    async fn apart<T: Send + 'static>(
        &self,
        copy: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        let turn = shared.apart.clone().acquire_owned().await;
        let turn = turn.map_err(|_| shared.closed())?;
        let copied = tokio::task::spawn_blocking(move || {
            let copied = copy(&shared);
            drop(turn);
            copied
        });
        let copied = copied.await;
        copied.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?
    }

    /// Its name in the session at the server, for registering regions.
    pub fn id(&self) -> Option<LinkId> {
        self.id.get().copied()
    }
}

impl std::fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ShmLink").field(&self.id.get()).finish()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.shared.end(CloseReason::Done, false);
    }
}

/// Memory that the peer was told of, until it answers. What nobody waits for any more is withdrawn.
struct Offer<'a> {
    shared: &'a Shared,
    stag: Stag,
    answer: oneshot::Receiver<Result<()>>,
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        // Whoever brings the answer from here on finds nobody, and withdraws. It may also have come, and not been read.
        self.answer.close();
        if let Ok(Ok(())) = self.answer.try_recv() {
            self.shared.withdraw(self.stag);
        }
    }
}

impl Link for ShmLink {
    fn fabric(&self) -> Fabric {
        Fabric::Shm
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        let shared = &*self.shared;
        let region = memory.region().clone();
        let usable = region
            .backing()
            .is_some_and(|backing| backing.writable || !access.writes());
        if !usable || memory.is_empty() {
            let why = "only memory of a file can be shared with another process";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let (offset, len) = (memory.range().start as u64, memory.len() as u64);
        let turn = shared.offers.clone().acquire_owned().await;
        let turn = turn.map_err(|_| shared.closed())?;
        let (stag, answer) = shared.exposures.lock().offer(memory, turn)?;
        let frame = Frame::Expose {
            stag,
            access,
            offset,
            len,
        };
        shared.say(Outgoing::with_file(frame, region));
        let mut offer = Offer {
            shared,
            stag,
            answer,
        };
        let answered = (&mut offer.answer).await;
        answered.map_err(|_| shared.closed())??;
        Ok(Exposure { stag, base: 0, len })
    }

    async fn withdraw(&self, exposure: Exposure) {
        if let Some(gone) = self.shared.withdraw(exposure.stag) {
            // An error is the end of the link, with all memory released.
            let _ = gone.await;
        }
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        let total: u64 = from.iter().map(|buf| buf.len() as u64).sum();
        if total > to.len {
            return Err(Error::new(ErrorKind::Invalid, "longer than its target"));
        }
        let target = self.shared.find(to, Access::Write)?;
        if !target.region().is_steady() {
            let copy =
                move |shared: &Shared| shared.steps_to(&target, &from).try_for_each(identity);
            return self.apart(copy).await;
        }
        for (steps, step) in self.shared.steps_to(&target, &from).enumerate() {
            step?;
            if (steps + 1) % STEPS_A_TURN == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn read(&self, from: RemoteRange, mut into: BufMut) -> Result<BufMut> {
        let len = usize::try_from(from.len).unwrap_or(usize::MAX);
        if len > into.room() {
            return Err(Error::new(ErrorKind::Invalid, "longer than its target"));
        }
        let source = self.shared.find(from, Access::Read)?;
        if !source.region().is_steady() {
            let copy = move |shared: &Shared| {
                let done = shared.steps_from(&source, &mut into).try_for_each(identity);
                done.map(|()| into)
            };
            return self.apart(copy).await.map(|into| filled(into, len));
        }
        for (steps, step) in self.shared.steps_from(&source, &mut into).enumerate() {
            step?;
            if (steps + 1) % STEPS_A_TURN == 0 {
                yield_now().await;
            }
        }
        Ok(filled(into, len))
    }

    async fn fence(&self) -> Result<Placed> {
        // Every write has copied its bytes when it returns.
        match self.shared.ending.get() {
            None => Ok(Placed::proven()),
            Some(_) => Err(self.shared.closed()),
        }
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        let shared = &*self.shared;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "too long a message"));
        }
        let mut since = None;
        while !shared.push(message)? {
            let since = *since.get_or_insert_with(Instant::now);
            let has_room = || {
                let mut sending = shared.sending.lock();
                let room = sending.producer.has_room_for(message.len());
                drop(sending);
                match room.map_err(|violation| shared.violated(violation))? {
                    true => Ok(Seen::Found),
                    false => Ok(Seen::Nothing),
                }
            };
            // The peer empties the ring at this moment, or it does not receive at all.
            if look_for(Patience::SHORTEST, since, has_room).await? {
                continue;
            }
            // Boxed: a message that finds room does not pay for it.
            Box::pin(shared.wait_for_room(message.len())).await?;
        }
        Ok(())
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        let shared = &*self.shared;
        let mut waited = None;
        loop {
            match shared.take(into, waited)? {
                Taken::Message => return Ok(Some(())),
                Taken::Turn => {
                    yield_now().await;
                    continue;
                }
                Taken::Finished => return Ok(None),
                Taken::Nothing => {}
            }
            let since = *waited.get_or_insert_with(Instant::now);
            let patience = shared.receiving.lock().patience.get();
            if look_for(patience, since, || shared.look()).await? {
                continue;
            }
            if shared.sleeps()? {
                // A wake-up that came since is kept for us.
                shared.arrival.notified().await;
            }
        }
    }

    fn pauses(&self) {
        self.shared.tell();
    }

    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        if range.len > LONG_BYTES {
            self.shared.tell();
        }
        let found = self.shared.find(range, access).ok()?;
        // What may vanish fails a device's transfer, which is then to blame on the peer and not on the device.
        found.region().is_steady().then_some(found)
    }

    fn has_ended(&self) -> bool {
        self.shared.ending.get().is_some()
    }

    fn close(&self, reason: CloseReason) {
        self.shared.end(reason, false);
    }

    fn is_settled(&self) -> bool {
        // Whatever this end wrote, it copied itself before that.
        self.shared.is_still.load(Acquire)
    }

    async fn closed(&self) -> CloseReason {
        let mut phase = self.shared.phase.subscribe();
        // The sender lives as long as we do.
        let _ = phase.wait_for(|phase| *phase == Phase::Released).await;
        let ending = self.shared.ending.get();
        ending.map_or(CloseReason::Lost, |ending| ending.reason.clone())
    }
}

fn filled(mut into: BufMut, len: usize) -> BufMut {
    into.set_len(into.len() + len);
    into
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::pin;
    use std::time::Duration;

    use forebay_io::SystemClock;

    use super::super::{accept, connect};
    use super::*;
    use crate::Connection;
    use crate::sessions::{Limits, Principal, Sessions};

    /// A wake-up that the system has no memory for is not had twice.
    #[tokio::test]
    async fn who_cannot_be_woken_finds_the_link_ended() {
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let principal = Principal {
            tenant: "tenant",
            id: "key",
            secret: "secret",
        };
        let session = sessions.open_with_random_key(principal, Duration::from_secs(60));
        let proof = session.unwrap().proof();
        let (here, there) = UnixStream::pair().unwrap();
        let (accepted, client) = tokio::join!(accept(here, &sessions), connect(there, &proof));
        let (accepted, client) = (accepted.unwrap(), client.unwrap());
        let Connection::Shm(server) = &accepted.link else {
            panic!("it is shared memory");
        };
        let mut message = Vec::new();
        let mut asleep = pin!(client.recv(&mut message));
        for _ in 0..1000 {
            tokio::select! {
                biased;
                _ = asleep.as_mut() => panic!("nothing was sent"),
                () = yield_now() => {}
            }
        }
        server.shared.woke(Err(io::ErrorKind::WouldBlock.into()));
        assert!(!server.has_ended());
        server.shared.woke(Err(io::ErrorKind::OutOfMemory.into()));
        let ended = asleep.await.unwrap_err();
        assert_eq!(ended.kind, ErrorKind::Closed);
    }
}
