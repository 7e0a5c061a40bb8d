//! Payloads between a store and registered memory.
//!
//! Where the fabric maps the client's memory, the store reads its device straight into it and writes from it; elsewhere the link
//! writes the store's own buffers and reads into them, as many as the tenant may keep from others meanwhile. An answer about bytes that
//! went to a client is made from [`Placed`] alone.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use forebay_api::v1::{Place, place::Memory};
use forebay_fabric::iwarp::OUTSTANDING_BYTES_MAX;
use forebay_fabric::sessions::{Grant, RegisteredId, Traffic};
use forebay_fabric::{Access, Connection, Link, Placed, RemoteRange, Session};
use forebay_mem::{Buf, RegionSlice};
use forebay_proto::s3::checksum::{Algorithm, Hasher};
use forebay_store::waiting::{self, Held};
use forebay_store::{
    Address, Attributes, Body, ByteRange, Condition, Meta, NamespaceInfo, Seal, Store,
    StoreOptions, Stored, Upload, VersionId,
};
use futures_util::future::{Either, select};

use super::admission::Ticket;
use super::identity::Caller;
use super::metrics::Way;
use super::status::{Outcome, Refusal};
use super::{INLINE_BYTES_MAX, Service};
use forebay_api::v1::Reason;

/// Memory of a client, the session that it belongs to, and the link that reaches it.
pub(crate) struct Target {
    session: Arc<Session>,
    link: Connection,
    range: RemoteRange,
}

/// What came of reading a value.
pub(crate) struct Retrieved {
    pub(crate) meta: Meta,
    pub(crate) range: Range<u64>,
    pub(crate) crc64nvme: Option<u64>,
}

impl Retrieved {
    /// How many bytes were read.
    pub(crate) fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Which bytes of which value, and whether their checksum is wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) address: Address<'a>,
    pub(crate) version: Option<VersionId>,
    pub(crate) range: ByteRange,
    pub(crate) checksum: bool,
}

/// What is known of a value before its bytes.
pub(crate) struct Arriving<'a> {
    pub(crate) attributes: Attributes,
    pub(crate) address: Address<'a>,
    pub(crate) condition: Condition,
    pub(crate) expires: Option<u64>,
    /// What the client made over its memory.
    pub(crate) crc64nvme: Option<u64>,
}

/// Where the bytes of a value come from.
pub(crate) enum Source {
    Message(Bytes),
    /// And what is counted for the buffers in which they arrive, until the value is stored.
    Memory(Target, Option<Held>),
}

impl<S: Store> Service<S> {
    /// The memory that a place names, if the caller may have it used so.
    pub(super) fn target(
        &self,
        caller: &Caller,
        session: &[u8],
        place: Option<&Place>,
        access: Access,
    ) -> Outcome<Target> {
        let memory = place.and_then(|place| Some((place, place.memory.as_ref()?)));
        let Some((place, memory)) = memory else {
            return Err(Refusal::invalid("a place names a region or a grant"));
        };
        match memory {
            Memory::Region(id) => {
                let session = self.session(caller, session)?;
                let region = session.region(RegisteredId(*id));
                let found = region.and_then(|region| {
                    Some(Target {
                        link: session.link(region.link)?,
                        range: region.range(place.offset, place.length, access)?,
                        session,
                    })
                });
                found.ok_or_else(Refusal::no_region)
            }
            Memory::Grant(grant) => {
                let found = Grant::decode(grant).and_then(|grant| {
                    let granted = self.sessions.verify(&grant, caller.tenant(), access)?;
                    let end = place.offset.checked_add(place.length)?;
                    (end <= granted.range.len).then_some(())?;
                    Some(Target {
                        session: self.sessions.find(grant.session)?,
                        link: granted.link,
                        range: RemoteRange {
                            offset: granted.range.offset.checked_add(place.offset)?,
                            len: place.length,
                            ..granted.range
                        },
                    })
                });
                found.ok_or_else(Refusal::no_grant)
            }
        }
    }

    /// Counts bytes for the tenant, as soon as it may have so many and while the link lasts.
    async fn hold(&self, target: &Target, bytes: usize) -> Outcome<Held> {
        let share = self.config.carried.of(target.session.tenant());
        let (taken, ended) = (pin!(share.take(bytes)), pin!(target.link.closed()));
        match select(taken, ended).await {
            Either::Left((held, _)) => Ok(held),
            Either::Right((reason, _)) => Err(Refusal::new(Reason::LinkLost, reason.to_string())),
        }
    }

    /// Reads a value of the caller's namespace into the memory that a place names; the proof that nothing of it can still land, and how it
    /// travelled, come with the answer. The caller has looked whether it may, in this turn.
    pub(super) async fn retrieve_into(
        &self,
        caller: &Caller,
        namespace: &NamespaceInfo,
        (session, place): (&[u8], Option<&Place>),
        wanted: Wanted<'_>,
    ) -> Outcome<(Retrieved, Placed, Way)> {
        let mut target = self.target(caller, session, place, Access::Write)?;
        let retrieved = match target.memory(&wanted) {
            Some(memory) => read_to(&*self.store, wanted, memory).await,
            None => {
                let (caps, room) = (self.store.caps(), target.range.len);
                let most = waiting::may_leave(&caps, wanted.range, room, OUTSTANDING_BYTES_MAX);
                let held = self.hold(&target, most).await?;
                // What was so before that wait need not be so any more.
                self.may_begin(caller, namespace)?;
                target = self.target(caller, session, place, Access::Write)?;
                write_to(&*self.store, wanted, &target, held).await
            }
        };
        // A refusal, too, is an answer after which nothing of the transfer may land.
        let placed = target.fence().await?;
        let retrieved = retrieved?;
        target.traffic().sent(retrieved.length());
        Ok((retrieved, placed, target.way()))
    }

    /// The memory that a place names, as where a value of the caller's namespace comes from. The caller has looked whether it may, in this
    /// turn, and has the value begin in the one in which this returns.
    pub(super) async fn source(
        &self,
        caller: &Caller,
        namespace: &NamespaceInfo,
        session: &[u8],
        place: Option<&Place>,
    ) -> Outcome<Source> {
        let find = || self.target(caller, session, place, Access::Read);
        let target = find()?;
        let is_mapped = target.link.mapped(target.range, Access::Read).is_some();
        if is_mapped || target.range.len == 0 {
            return Ok(Source::Memory(target, None));
        }
        let most = waiting::arriving(&self.store.caps(), target.range.len);
        let held = self.hold(&target, most).await?;
        // What was so before that wait need not be so any more.
        self.may_begin(caller, namespace)?;
        Ok(Source::Memory(find()?, Some(held)))
    }
}

impl Target {
    /// How the bytes travel.
    pub(crate) fn way(&self) -> Way {
        Way::Link(self.link.fabric())
    }

    /// How many bytes it takes.
    pub(crate) fn length(&self) -> u64 {
        self.range.len
    }

    /// The memory itself, where the fabric maps it.
    pub(crate) fn mapped(&self) -> Option<RegionSlice> {
        self.link.mapped(self.range, Access::Write)
    }

    /// The memory itself, if what is wanted may be read straight into it.
    fn memory(&self, wanted: &Wanted<'_>) -> Option<RegionSlice> {
        // A checksum of a part is made over the store's buffers, before the client can touch the bytes.
        let is_copied = wanted.checksum && wanted.range != ByteRange::Full;
        if is_copied { None } else { self.mapped() }
    }

    /// Sends buffers to its start; they fit.
    pub(crate) async fn send(&self, bufs: Vec<Buf>) -> Outcome<()> {
        let mut offset = 0;
        for buf in bufs {
            let part = self.part(offset, buf.len() as u64);
            offset += part.len;
            self.link.write(part, vec![buf]).await?;
        }
        Ok(())
    }

    /// Waits until nothing more can land.
    ///
    /// # Errors
    /// `LINK_LOST` for whatever ended the link, when more may still come of it.
    pub(crate) async fn fence(&self) -> Outcome<Placed> {
        let fenced = self.link.fence().await;
        fenced.map_err(|error| match self.link.is_settled() {
            true => error.into(),
            false => Refusal::new(Reason::LinkLost, error.message),
        })
    }

    /// Counts bytes that came to be there.
    pub(crate) fn count_sent(&self, bytes: u64) {
        self.traffic().sent(bytes);
    }

    fn traffic(&self) -> &Traffic {
        self.session.traffic(self.link.fabric())
    }

    fn part(&self, offset: u64, len: u64) -> RemoteRange {
        RemoteRange {
            offset: self.range.offset + offset,
            len,
            ..self.range
        }
    }
}

async fn read_to<S: Store>(
    store: &S,
    wanted: Wanted<'_>,
    memory: RegionSlice,
) -> Outcome<Retrieved> {
    let placed = store.retrieve_into(wanted.address, wanted.version, wanted.range, memory);
    let (meta, range) = placed.await?;
    let crc64nvme = wanted.checksum.then_some(meta.crc64nvme);
    Ok(Retrieved {
        meta,
        range,
        crc64nvme,
    })
}

async fn write_to<S: Store>(
    store: &S,
    wanted: Wanted<'_>,
    target: &Target,
    mut held: Held,
) -> Outcome<Retrieved> {
    let mut object = store
        .retrieve(wanted.address, wanted.version, wanted.range)
        .await?;
    let len = object.range.end - object.range.start;
    if len > target.range.len {
        return Err(Refusal::invalid("the target is shorter than the range"));
    }
    let (caps, size) = (store.caps(), object.meta.size);
    held.shrink(waiting::leaving(
        &caps,
        &object.range,
        size,
        OUTSTANDING_BYTES_MAX,
    ));
    // What was written waits in the link.
    let held = Arc::new(held);
    let mut checksum = Checksum::of(&wanted, &object.meta);
    let mut offset = 0;
    while let Some(buf) = object.body.next().await? {
        checksum.update(&buf);
        let part = target.part(offset, buf.len() as u64);
        offset += part.len;
        let from = vec![buf.keeping(held.clone())];
        target.link.write(part, from).await?;
    }
    Ok(Retrieved {
        crc64nvme: checksum.value(),
        meta: object.meta,
        range: object.range,
    })
}

/// Reads a small value into a message, which the call holds.
pub(crate) async fn retrieve_inline<S: Store>(
    store: &S,
    wanted: Wanted<'_>,
    call: &Ticket,
) -> Outcome<(Retrieved, Bytes)> {
    let mut object = store
        .retrieve(wanted.address, wanted.version, wanted.range)
        .await?;
    let len = object.range.end - object.range.start;
    if len > INLINE_BYTES_MAX as u64 {
        return Err(Refusal::new(
            Reason::TooLarge,
            format!("a message carries at most {INLINE_BYTES_MAX} bytes, and these are {len}"),
        ));
    }
    call.hold(len as usize)?;
    let mut checksum = Checksum::of(&wanted, &object.meta);
    let mut bytes = Vec::with_capacity(len as usize);
    while let Some(buf) = object.body.next().await? {
        checksum.update(&buf);
        forebay_mem::count_copy(forebay_mem::CopySite::RpcMessage, buf.len());
        bytes.extend_from_slice(&buf);
    }
    let retrieved = Retrieved {
        crc64nvme: checksum.value(),
        meta: object.meta,
        range: object.range,
    };
    Ok((retrieved, bytes.into()))
}

/// Stores a value; tells how its bytes travelled.
pub(crate) async fn store_from<S: Store>(
    store: &S,
    arriving: Arriving<'_>,
    source: Source,
) -> Outcome<(Stored, Way)> {
    let (size, way) = match &source {
        Source::Message(bytes) if bytes.len() > INLINE_BYTES_MAX => {
            return Err(Refusal::new(
                Reason::TooLarge,
                format!("a message carries at most {INLINE_BYTES_MAX} bytes"),
            ));
        }
        Source::Message(bytes) => (bytes.len() as u64, Way::Message),
        Source::Memory(target, _) => (target.range.len, target.way()),
    };
    let options = StoreOptions {
        size: Some(size),
        condition: arriving.condition,
    };
    let mut upload = store.store(arriving.address, options).await?;
    // Until it is done: the store may still have buffers.
    let _held = match source {
        Source::Message(bytes) if bytes.is_empty() => None,
        Source::Message(bytes) => {
            upload.write(Buf::from(bytes)).await?;
            None
        }
        Source::Memory(target, held) => {
            read_from(&mut upload, &target).await?;
            target.traffic().received(size);
            held
        }
    };
    if arriving
        .crc64nvme
        .is_some_and(|made| made != upload.crc64nvme())
    {
        return Err(Refusal::new(
            Reason::Checksum,
            format!(
                "the bytes changed between the client's memory and the server, over {}",
                way.name()
            ),
        ));
    }
    let seal = Seal {
        etag: None,
        attributes: arriving.attributes,
        expires: arriving.expires,
    };
    Ok((upload.commit(seal).await?, way))
}

async fn read_from<U: Upload>(upload: &mut U, source: &Target) -> Outcome<()> {
    if let Some(memory) = source.link.mapped(source.range, Access::Read) {
        return Ok(upload.read_from(memory).await?);
    }
    let mut offset = 0;
    while offset < source.range.len {
        let left = source.range.len - offset;
        let room = usize::try_from(left).unwrap_or(usize::MAX);
        let buf = upload.buffer(room).await?;
        let part = source.part(offset, left.min(buf.room() as u64));
        offset += part.len;
        let buf = source.link.read(part, buf).await?;
        upload.write(buf.freeze()).await?;
    }
    Ok(())
}

/// The checksum that goes with bytes read: the stored one for a whole value, one made here for a part of it.
enum Checksum {
    None,
    Stored(u64),
    Made(Box<Hasher>),
}

impl Checksum {
    fn of(wanted: &Wanted<'_>, meta: &Meta) -> Checksum {
        match (wanted.checksum, wanted.range) {
            (false, _) => Checksum::None,
            (true, ByteRange::Full) => Checksum::Stored(meta.crc64nvme),
            (true, _) => Checksum::Made(Box::new(Hasher::new(Algorithm::Crc64Nvme))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        if let Checksum::Made(hasher) = self {
            hasher.update(bytes);
        }
    }

    fn value(self) -> Option<u64> {
        match self {
            Checksum::None => None,
            Checksum::Stored(value) => Some(value),
            Checksum::Made(hasher) => hasher.finalize().crc_value(),
        }
    }
}
