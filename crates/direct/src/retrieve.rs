//! Values into the caller's memory, or into the reply.

use std::ops::Range;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_fabric::iwarp::OUTSTANDING_BYTES_MAX;
use forebay_fabric::{Access, Link};
use forebay_mem::{Buf, CopySite, RegionSlice, count_copy};
use forebay_proto::direct::{
    self, Full, INLINE_BYTES_MAX, ReplyWriter, Retrieve, Target, Value, Window,
};
use forebay_store::waiting::{self, Held};
use forebay_store::{Address, Body, ByteRange, ErrorKind, Meta, Object, Store, VersionId};
use futures_util::future::join;

use crate::call::{Context, Own};
use crate::status::Failure;
use crate::turn::Turn;

/// What was placed, or what rides in the reply.
pub(crate) struct Retrieved {
    meta: Meta,
    range: Range<u64>,
    part_crc64nvme: Option<u64>,
    inline: Option<Inline>,
}

/// A small value on its way into the reply.
enum Inline {
    /// As the store gave it.
    Whole(Buf),
    /// Out of the store's buffers.
    Copied(Vec<u8>),
}

impl Retrieved {
    /// How many bytes were moved.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn write(&self, writer: &mut ReplyWriter) -> Result<(), Full> {
        writer.value(&Value {
            moved: self.bytes(),
            first: self.range.start,
            part_crc64nvme: self.part_crc64nvme,
            bytes: self.inline.as_ref().map(|inline| match inline {
                Inline::Whole(buf) => &buf[..],
                Inline::Copied(bytes) => bytes,
            }),
            ..described(&self.meta)
        })
    }
}

/// What a reply says of a value of which nothing was moved.
pub(crate) fn described(meta: &Meta) -> Value<'_> {
    Value {
        size: meta.size,
        moved: 0,
        first: 0,
        version: meta.version.0,
        modified: meta.modified,
        expires: meta.expires,
        crc64nvme: Some(meta.crc64nvme),
        part_crc64nvme: None,
        replaced: false,
        etag: meta.etag.as_str(),
        bytes: None,
    }
}

fn range(range: direct::Range) -> ByteRange {
    match range {
        direct::Range::Full => ByteRange::Full,
        direct::Range::From(first) => ByteRange::From(first),
        direct::Range::Inclusive(first, last) => ByteRange::Inclusive(first, last),
        direct::Range::Suffix(count) => ByteRange::Suffix(count),
    }
}

/// The checksum of a part while it passes; a whole value has one already.
struct Passing(Option<Digest>);

impl Passing {
    fn of(element: &Retrieve<'_>, range: &Range<u64>, size: u64) -> Passing {
        let part = element.checksum && *range != (0..size);
        Passing(part.then(|| Digest::new(CrcAlgorithm::Crc64Nvme)))
    }

    fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    fn finish(self) -> Option<u64> {
        self.0.map(|digest| digest.finalize())
    }
}

impl<S: Store, L: Link> Context<'_, S, L> {
    /// One of several elements: its result may wait until the client has taken those before it, and keeps no buffer of the store
    /// meanwhile, only bytes that are counted.
    pub(crate) async fn retrieve_waiting(
        &self,
        own: Own<'_>,
        element: Retrieve<'_>,
    ) -> Result<(Retrieved, Option<Held>), Failure> {
        if let Target::Window(_) = element.target {
            return Ok((self.retrieve(own, element).await?, None));
        }
        // First of all: elements begin, and have theirs, in their order, so that those which have some wait for none that wants some.
        let mut held = self.hold(INLINE_BYTES_MAX).await?;
        let mut retrieved = self.retrieve(own, element).await?;
        held.shrink(retrieved.bytes() as usize);
        if let Some(Inline::Whole(buf)) = &retrieved.inline {
            count_copy(CopySite::RetrieveInto, buf.len());
            retrieved.inline = Some(Inline::Copied(buf.to_vec()));
        }
        Ok((retrieved, Some(held)))
    }

    pub(crate) async fn retrieve(
        &self,
        own: Own<'_>,
        element: Retrieve<'_>,
    ) -> Result<Retrieved, Failure> {
        let version = element.version.map(VersionId);
        let window = match element.target {
            Target::Window(window) => window,
            Target::Message => {
                return Box::pin(self.retrieve_inline(own, version, &element)).await;
            }
        };
        Self::check(&window)?;
        let mapped = self.mapped(&window, Access::Write);
        let whole = element.range == direct::Range::Full;
        let retrieved = match mapped {
            Some(target) if whole || !element.checksum => {
                self.retrieve_into(own, version, &element, target).await
            }
            Some(target) => {
                let object = self.open(own, version, &element, window.len).await?;
                Box::pin(copy_out(&self.turn, object, &element, &target)).await
            }
            None => Box::pin(self.carry_out(own, version, &element, &window)).await,
        }?;
        self.counting.sent(retrieved.bytes());
        Ok(retrieved)
    }

    /// What is asked for, if there is room for it.
    async fn open(
        &self,
        own: Own<'_>,
        version: Option<VersionId>,
        element: &Retrieve<'_>,
        room: u64,
    ) -> Result<Object<S::Body>, Failure> {
        let address = Address::object(own.name, element.key);
        let range = range(element.range);
        let found = self.store.retrieve(address, version, range).await;
        self.recheck(own)?;
        let object = found?;
        match object.range.end - object.range.start > room {
            true => Err(Failure::TOO_SHORT),
            false => Ok(object),
        }
    }

    /// The store places the bytes: from its device, when it can.
    async fn retrieve_into(
        &self,
        own: Own<'_>,
        version: Option<VersionId>,
        element: &Retrieve<'_>,
        target: RegionSlice,
    ) -> Result<Retrieved, Failure> {
        let address = Address::object(own.name, element.key);
        let room = target.len() as u64;
        let range = range(element.range);
        match self
            .store
            .retrieve_into(address, version, range, target)
            .await
        {
            Ok((meta, range)) => {
                self.turn.moved(range.end - range.start);
                Ok(Retrieved {
                    meta,
                    range,
                    part_crc64nvme: None,
                    inline: None,
                })
            }
            // One word of the store for several mistakes; this one deserves its own.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let meta = self.meta(own, element.key, version).await?;
                let wanted = range.resolve(meta.size);
                match wanted.is_some_and(|wanted| wanted.end - wanted.start > room) {
                    true => Err(Failure::TOO_SHORT),
                    false => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The link carries the bytes, as soon as the tenant may have them on their way.
    async fn carry_out(
        &self,
        own: Own<'_>,
        version: Option<VersionId>,
        element: &Retrieve<'_>,
        window: &Window,
    ) -> Result<Retrieved, Failure> {
        let caps = self.store.caps();
        let most = waiting::may_leave(
            &caps,
            range(element.range),
            window.len,
            OUTSTANDING_BYTES_MAX,
        );
        let mut held = self.hold(most).await?;
        let object = self.open(own, version, element, window.len).await?;
        held.shrink(waiting::leaving(
            &caps,
            &object.range,
            object.meta.size,
            OUTSTANDING_BYTES_MAX,
        ));
        self.write_out(object, held, element, window).await
    }

    /// The next bytes are read while the last ones travel.
    async fn write_out<B: Body>(
        &self,
        object: Object<B>,
        held: Held,
        element: &Retrieve<'_>,
        window: &Window,
    ) -> Result<Retrieved, Failure> {
        let Object {
            meta,
            range,
            mut body,
        } = object;
        // What was written waits in the link.
        let held = Arc::new(held);
        let mut passing = Passing::of(element, &range, meta.size);
        let mut placed = 0;
        let mut next = body.next().await?;
        while let Some(buf) = next {
            passing.update(&buf);
            let len = buf.len() as u64;
            let to = Self::remote(window, placed, len).ok_or(Failure::TOO_SHORT)?;
            placed += len;
            let from = vec![buf.keeping(held.clone())];
            let (written, following) = join(self.link.write(to, from), body.next()).await;
            written?;
            next = following?;
        }
        self.counting.carried();
        Ok(Retrieved {
            meta,
            range,
            part_crc64nvme: passing.finish(),
            inline: None,
        })
    }

    async fn retrieve_inline(
        &self,
        own: Own<'_>,
        version: Option<VersionId>,
        element: &Retrieve<'_>,
    ) -> Result<Retrieved, Failure> {
        let room = INLINE_BYTES_MAX as u64;
        let Object {
            meta,
            range,
            mut body,
        } = self.open(own, version, element, room).await?;
        let len = range.end - range.start;
        let mut passing = Passing::of(element, &range, meta.size);
        let mut inline = None;
        while let Some(buf) = body.next().await? {
            passing.update(&buf);
            count_copy(CopySite::RetrieveInto, buf.len());
            inline = Some(match inline {
                None => Inline::Whole(buf),
                Some(Inline::Whole(first)) => Inline::Copied([&first[..], &buf].concat()),
                Some(Inline::Copied(mut bytes)) => {
                    bytes.extend_from_slice(&buf);
                    Inline::Copied(bytes)
                }
            });
        }
        self.counting.sent(len);
        Ok(Retrieved {
            meta,
            range,
            part_crc64nvme: passing.finish(),
            inline: Some(inline.unwrap_or(Inline::Copied(Vec::new()))),
        })
    }
}

/// This process copies the bytes, because their checksum is wanted and must be that of what the store gave.
async fn copy_out<B: Body>(
    turn: &Turn,
    object: Object<B>,
    element: &Retrieve<'_>,
    target: &RegionSlice,
) -> Result<Retrieved, Failure> {
    let Object {
        meta,
        range,
        mut body,
    } = object;
    let mut passing = Passing::of(element, &range, meta.size);
    let mut placed = 0;
    while let Some(buf) = body.next().await? {
        passing.update(&buf);
        if !target.write(placed, &buf) {
            return Err(Failure::TOO_SHORT);
        }
        count_copy(CopySite::RetrieveInto, buf.len());
        placed += buf.len();
        turn.moved(buf.len() as u64);
        turn.wait().await;
    }
    Ok(Retrieved {
        meta,
        range,
        part_crc64nvme: passing.finish(),
        inline: None,
    })
}
