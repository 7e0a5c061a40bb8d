//! Values out of the caller's memory, or out of the message.

use forebay_fabric::{Access, Link};
use forebay_mem::{BufMut, CopySite, copy};
use forebay_proto::direct::{self, Body, Full, ReplyWriter, Status, Value, Window};
use forebay_proto::s3::kept::Keeper;
use forebay_store::waiting::{self, Held};
use forebay_store::{
    Address, Attributes, Condition, Etag, Seal, Store, StoreOptions, Stored, Upload,
};
use futures_util::FutureExt;
use futures_util::future::join;

use crate::call::{Context, Own};
use crate::retrieve::described;
use crate::status::Failure;

pub(crate) fn write(writer: &mut ReplyWriter, stored: &Stored) -> Result<(), Full> {
    writer.value(&Value {
        moved: stored.meta.size,
        replaced: stored.replaced,
        ..described(&stored.meta)
    })
}

/// What is kept beside a value, as every door keeps it.
///
/// # Errors
/// When somebody may not keep it so.
fn kept(given: direct::Attributes<'_>) -> Result<Attributes, Failure> {
    let mut kept = Attributes::builder();
    let mut keeper = Keeper::default();
    for (name, value) in given.iter() {
        keeper.keep(name, value, |name, value| kept.insert(name, value))?;
    }
    keeper.finish()?;
    kept.build()
        .ok_or(Failure::new(Status::Invalid, "the attributes are too long"))
}

/// # Errors
/// A tag that no value can have is one that no value has.
pub(crate) fn condition(condition: direct::Condition<'_>) -> Result<Condition, Failure> {
    Ok(match condition {
        direct::Condition::None => Condition::None,
        direct::Condition::IfAbsent => Condition::IfAbsent,
        direct::Condition::IfPresent => Condition::IfPresent,
        direct::Condition::IfMatch(etag) => Condition::IfMatch(Etag::new(etag).ok_or(
            Failure::new(Status::PreconditionFailed, "the entity tag does not match"),
        )?),
    })
}

impl<S: Store, L: Link> Context<'_, S, L> {
    pub(crate) async fn put(
        &self,
        own: Own<'_>,
        element: direct::Store<'_>,
    ) -> Result<Stored, Failure> {
        let size = match element.body {
            Body::Window(window) => {
                Self::check(&window)?;
                window.len
            }
            Body::Message(bytes) => bytes.len() as u64,
        };
        let options = StoreOptions {
            size: Some(size),
            condition: condition(element.condition)?,
        };
        let attributes = kept(element.attributes)?;
        let address = Address::object(own.name, element.key);
        let begun = self.store.store(address, options).await;
        self.recheck(own)?;
        let mut upload = begun?;
        // Until it is done: the store may still have buffers.
        let _held = match element.body {
            Body::Message(bytes) => fill(&mut upload, bytes).await.map(|()| None),
            Body::Window(window) if window.len > 0 => self.fetch(&mut upload, &window).await,
            Body::Window(_) => Ok(None),
        }?;
        if element
            .crc64nvme
            .is_some_and(|crc| crc != upload.crc64nvme())
        {
            return Err(Failure::changed_on_the_way());
        }
        // Whoever lost a link stores once more over another. What was asked over the lost one must not come after that.
        self.still_asked()?;
        let seal = Seal {
            expires: element.expires,
            attributes,
            ..Seal::default()
        };
        let stored = upload.commit(seal).await?;
        self.counting.received(size);
        Ok(stored)
    }

    /// Takes the bytes of the window, each once. What is counted for them stays so while the upload goes on.
    async fn fetch(
        &self,
        upload: &mut S::Upload,
        window: &Window,
    ) -> Result<Option<Held>, Failure> {
        if let Some(source) = self.mapped(window, Access::Read) {
            upload.read_from(source).await?;
            self.turn.moved(window.len);
            return Ok(None);
        }
        let held = self
            .hold(waiting::arriving(&self.store.caps(), window.len))
            .await?;
        let mut at = 0;
        let mut read = self.read(upload, window, &mut at).await?;
        // The next bytes travel while the last ones are taken. Whoever waited for a buffer while it holds one could wait for others that
        // do the same.
        while at < window.len {
            let Some(buffer) = upload.buffer(rest(window, at)).now_or_never() else {
                upload.write(read.freeze()).await?;
                read = self.read(upload, window, &mut at).await?;
                continue;
            };
            let (wrote, next) = join(
                upload.write(read.freeze()),
                self.read_into(buffer?, window, &mut at),
            )
            .await;
            wrote?;
            read = next?;
        }
        upload.write(read.freeze()).await?;
        self.counting.carried();
        Ok(Some(held))
    }

    async fn read(
        &self,
        upload: &mut S::Upload,
        window: &Window,
        at: &mut u64,
    ) -> Result<BufMut, Failure> {
        let buffer = upload.buffer(rest(window, *at)).await?;
        self.read_into(buffer, window, at).await
    }

    /// Fills a buffer with the bytes of the window from `at` on.
    async fn read_into(
        &self,
        buffer: BufMut,
        window: &Window,
        at: &mut u64,
    ) -> Result<BufMut, Failure> {
        let len = (buffer.capacity() as u64).min(window.len - *at);
        let from = Self::remote(window, *at, len).ok_or(Failure::NOT_REACHABLE)?;
        let buffer = self.link.read(from, buffer).await?;
        if buffer.len() as u64 != len {
            return Err(Failure::new(Status::Io, "the link read fewer bytes"));
        }
        *at += len;
        Ok(buffer)
    }
}

fn rest(window: &Window, at: u64) -> usize {
    usize::try_from(window.len - at).unwrap_or(usize::MAX)
}

async fn fill<U: Upload>(upload: &mut U, bytes: &[u8]) -> Result<(), Failure> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buffer = upload.buffer(rest.len()).await?;
        let (now, later) = rest.split_at(buffer.capacity().min(rest.len()));
        buffer.set_len(now.len());
        copy(CopySite::ReadFrom, &mut buffer, now);
        upload.write(buffer.freeze()).await?;
        rest = later;
    }
    Ok(())
}
