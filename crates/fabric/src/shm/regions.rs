//! What the peer exposed to us, mapped; and what we exposed to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use forebay_io::passing::Passed;
use forebay_io::unmapping::{let_go, unmapped_apart};
use forebay_mem::{Region, RegionSlice};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::control::{Outgoing, Uses};
use super::frame::Refusal;
use super::mapping::{Room, Share, apart};
use crate::{Access, Error, ErrorKind, RemoteRange, Result, Stag};

/// Regions that one end of a link may have exposed at once. A [`Stag`]'s low bits are its slot, the others its generation there.
pub const REGIONS: usize = 1024;

/// Bytes of one exposure.
const REGION_BYTES_MAX: u64 = 1 << 40;

const _: () = assert!(REGIONS.is_power_of_two());

/// Where a region's name puts it.
fn slot_of(stag: Stag) -> usize {
    stag.0 as usize % REGIONS
}

/// What goes when the last use of a mapped region goes: the peer is told, if it asked.
struct Pin {
    stag: Stag,
    withdrawn: Arc<AtomicBool>,
    tell: mpsc::UnboundedSender<Outgoing>,
    room: Room,
    /// While this lives, the peer knows that its memory is in use.
    _uses: Arc<Uses>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.withdrawn.load(SeqCst) {
            // Nobody is told any more when the link has ended: the end of the stream says it.
            let _ = self.tell.send(Outgoing::withdrawn(self.stag));
        }
    }
}

/// A region that the peer offers, with room for it.
pub(super) struct Offered {
    stag: Stag,
    access: Access,
    len: u64,
    withdrawn: Arc<AtomicBool>,
    pin: Pin,
}

impl Offered {
    /// Maps it. Until it is known that the file is one to be waited for, that may take as long as the peer likes.
    pub(super) fn map(self, file: Passed, offset: u64) -> std::result::Result<Mapped, Refusal> {
        let (len, writable) = (self.len as usize, self.access.writes());
        let memory = Region::received(&file, offset, len, writable, Box::new(self.pin))
            .map_err(|_| Refusal::Invalid)?;
        // Memory or a local file, which stays open with the mapping.
        drop(file.into_known());
        Ok(Mapped {
            stag: self.stag,
            access: self.access,
            memory: unmapped_apart(memory),
            withdrawn: self.withdrawn,
        })
    }

    /// A place among the files of its tenant that wait to be mapped; of a client's end nobody counts them.
    pub(super) fn place(&self) -> std::result::Result<Option<OwnedSemaphorePermit>, Refusal> {
        let tenant = self.pin.room.tenant();
        let place = tenant.map(|tenant| tenant.place().ok_or(Refusal::Busy));
        place.transpose()
    }

    /// As [`Offered::map`], in its turn, on a thread that may wait.
    pub(super) async fn map_apart(
        self,
        file: Passed,
        offset: u64,
    ) -> std::result::Result<Mapped, Refusal> {
        apart(self.pin.room.tenant(), move || self.map(file, offset)).await
    }
}

pub(super) struct Mapped {
    stag: Stag,
    access: Access,
    memory: RegionSlice,
    withdrawn: Arc<AtomicBool>,
}

/// The peer's regions, by slot.
#[derive(Default)]
pub(super) struct PeerRegions {
    slots: Vec<Option<Mapped>>,
    /// What the peer's tenant has mapped; at a client's end there is none.
    tenant: Option<Arc<Share>>,
    /// The link has ended.
    closed: bool,
}

impl PeerRegions {
    /// None yet, of a peer of this tenant.
    pub(super) fn of(tenant: Option<Arc<Share>>) -> PeerRegions {
        PeerRegions {
            tenant,
            ..PeerRegions::default()
        }
    }

    /// Takes room for what the peer exposes.
    pub(super) fn offer(
        &self,
        (stag, access, len): (Stag, Access, u64),
        uses: &Arc<Uses>,
        tell: &mpsc::UnboundedSender<Outgoing>,
    ) -> std::result::Result<Offered, Refusal> {
        if self.slots.get(slot_of(stag)).is_some_and(Option::is_some) {
            return Err(Refusal::Busy);
        }
        if len > REGION_BYTES_MAX {
            return Err(Refusal::Invalid);
        }
        let withdrawn = Arc::new(AtomicBool::new(false));
        let pin = Pin {
            stag,
            withdrawn: withdrawn.clone(),
            tell: tell.clone(),
            room: Room::take(len, self.tenant.clone()).ok_or(Refusal::Busy)?,
            _uses: uses.clone(),
        };
        Ok(Offered {
            stag,
            access,
            len,
            withdrawn,
            pin,
        })
    }

    /// Keeps what was offered and mapped; it comes back when the link has ended or the name is taken, to be unmapped outside of the
    /// caller's locks.
    pub(super) fn keep(&mut self, mapped: Mapped) -> std::result::Result<(), Mapped> {
        if self.closed {
            return Err(mapped);
        }
        let slot = slot_of(mapped.stag);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        match &mut self.slots[slot] {
            Some(_) => Err(mapped),
            free => {
                *free = Some(mapped);
                Ok(())
            }
        }
    }

    /// Forgets a region; the peer is told when its last use ends, which may be what is returned. `None` when there is none of that
    /// name.
    pub(super) fn remove(&mut self, stag: Stag) -> Option<impl Sized + use<>> {
        let slot = self.slots.get_mut(slot_of(stag))?;
        let mapped = slot.take_if(|mapped| mapped.stag == stag)?;
        mapped.withdrawn.store(true, SeqCst);
        Some(mapped)
    }

    /// Bytes of the peer's memory, if it allows that.
    pub(super) fn find(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        let slots = (!self.closed).then_some(&self.slots)?;
        let mapped = slots.get(slot_of(range.stag))?.as_ref()?;
        let start = usize::try_from(range.offset).ok()?;
        let end = start.checked_add(usize::try_from(range.len).ok()?)?;
        let allowed = mapped.stag == range.stag && mapped.access.includes(access);
        mapped.memory.slice(start..end).filter(|_| allowed)
    }

    /// Finds nothing any more, and takes no more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Forgets all. They are returned, so that the caller unmaps them outside of its locks, when it drops that.
    pub(super) fn take_all(&mut self) -> impl Sized + use<> {
        Forgotten(std::mem::take(&mut self.slots))
    }
}

/// Regions that nobody finds any more.
struct Forgotten(Vec<Option<Mapped>>);

impl Drop for Forgotten {
    fn drop(&mut self) {
        let mapped = std::mem::take(&mut self.0);
        let bytes = mapped.iter().flatten().map(|one| one.memory.len());
        let bytes = bytes.fold(0, usize::saturating_add);
        let_go(mapped, bytes);
    }
}

enum State {
    /// The peer was told and has not answered: who waits for that, if anybody still does, and the turn that it takes.
    Offered(oneshot::Sender<Result<()>>, OwnedSemaphorePermit),
    Exposed,
    /// The peer was told to let go; who waits for that.
    Withdrawing(oneshot::Sender<()>),
}

struct Exposed {
    /// Stays mapped until the peer has let go.
    _memory: RegionSlice,
    state: State,
}

struct Slot {
    /// The name last given.
    stag: Stag,
    exposed: Option<Exposed>,
}

/// What we exposed to the peer, by slot.
#[derive(Default)]
pub(super) struct Exposures {
    slots: Vec<Slot>,
    count: usize,
    closed: bool,
}

impl Exposures {
    /// Names memory that is about to be offered to the peer, and who waits for its answer.
    pub(super) fn offer(
        &mut self,
        memory: RegionSlice,
        turn: OwnedSemaphorePermit,
    ) -> Result<(Stag, oneshot::Receiver<Result<()>>)> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed, "the link has ended"));
        }
        let free = self.slots.iter().position(|slot| slot.exposed.is_none());
        let slot = match free {
            Some(slot) => &mut self.slots[slot],
            None if self.slots.len() < REGIONS => {
                let stag = Stag(self.slots.len() as u32);
                self.slots.push_mut(Slot {
                    stag,
                    exposed: None,
                })
            }
            None => return Err(Error::new(ErrorKind::Busy, "too many regions are exposed")),
        };
        let (answer, answered) = oneshot::channel();
        // The slot stays, the generation is another one.
        slot.stag = Stag(slot.stag.0.wrapping_add(REGIONS as u32));
        slot.exposed = Some(Exposed {
            _memory: memory,
            state: State::Offered(answer, turn),
        });
        self.count += 1;
        Ok((slot.stag, answered))
    }

    /// The peer mapped it. False when nobody wants it any more: it must be withdrawn.
    pub(super) fn accepted(&mut self, stag: Stag) -> Option<bool> {
        let exposed = self.at(stag)?.exposed.as_mut()?;
        match std::mem::replace(&mut exposed.state, State::Exposed) {
            State::Offered(answer, _turn) => Some(answer.send(Ok(())).is_ok()),
            other => {
                exposed.state = other;
                None
            }
        }
    }

    /// The peer did not map it.
    pub(super) fn refused(&mut self, stag: Stag, why: Refusal) -> Option<()> {
        let offered = self.take(stag, |state| matches!(state, State::Offered(..)))?;
        let State::Offered(answer, _turn) = offered else {
            return None;
        };
        let error = match why {
            Refusal::Busy => Error::new(ErrorKind::Busy, "the peer maps no more memory"),
            Refusal::Invalid => Error::new(ErrorKind::Invalid, "the peer cannot map this memory"),
        };
        let _ = answer.send(Err(error));
        Some(())
    }

    /// The peer is about to be told to let go; `None` when it knows of no such memory any more.
    pub(super) fn withdraw(&mut self, stag: Stag) -> Option<oneshot::Receiver<()>> {
        let exposed = self.at(stag)?.exposed.as_mut()?;
        let (gone, wait) = oneshot::channel();
        exposed.state = State::Withdrawing(gone);
        Some(wait)
    }

    /// The peer has let go.
    pub(super) fn withdrawn(&mut self, stag: Stag) -> Option<()> {
        let State::Withdrawing(gone) =
            self.take(stag, |state| matches!(state, State::Withdrawing(_)))?
        else {
            return None;
        };
        // Nobody may wait for it any more.
        let _ = gone.send(());
        Some(())
    }

    /// Whether the peer knows of nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes no more offers.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// The peer has let go of everything. Who waited is answered by this being dropped.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        self.closed = true;
        self.count = 0;
        std::mem::take(&mut self.slots)
    }

    fn at(&mut self, stag: Stag) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(slot_of(stag))?;
        (slot.stag == stag).then_some(slot)
    }

    fn take(&mut self, stag: Stag, expected: impl Fn(&State) -> bool) -> Option<State> {
        let slot = self.at(stag)?;
        let exposed = slot.exposed.take_if(|exposed| expected(&exposed.state))?;
        self.count -= 1;
        Some(exposed.state)
    }
}
