//! A value arriving: full buffers go to the device as they are, while more arrive.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crc_fast::{CrcAlgorithm, Digest};
use forebay_io::{Disk, File};
use forebay_mem::{Buf, BufMut, CopySite, RegionSlice, copy};
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    Away, Change, ErrorKind, Result, Seal, StoreError, StoreOptions, Stored, Taking, Upload, Usage,
    VersionId, plan_store,
};

use crate::batch::SMALL_BYTES_MAX;
use crate::checkpoint::{Orphan, Writing};
use crate::command::{Command, Content, StoreCommand, TakeBackCommand, Target};
use crate::core::{Core, device_failed};
use crate::entry::Place;
use crate::extent::{BLOCK_BYTES, EXTENT_BYTES_MAX, Extent, GRANULE_BYTES, Run, Sums, granules};
use crate::usage::Reservation;
use crate::view::{malformed, unless_damaged, versioning};

/// Groups that may drop values past their time before one for which a quota has no room is refused.
const SWEEPS_MAX: usize = 64;

/// A value arriving in an [`Engine`](crate::Engine). In a box: layers above hand it on, and an allocation costs less than moving
/// it so often.
pub struct EngineUpload<D: Disk>(Box<Arriving<D>>);

struct Arriving<D: Disk> {
    core: Arc<Core<D>>,
    target: Option<Target>,
    /// The version whose bytes come back, and from where.
    back: Option<(Option<VersionId>, Away)>,
    options: StoreOptions,
    reservation: Option<Reservation>,
    /// What the value replaces, as far as was known at the start.
    replaced: Usage,
    digest: Digest,
    size: u64,
    held: Held,
    extents: Vec<Extent>,
    writing: Vec<Writing>,
    /// Where a write failed.
    suspect: Vec<Run>,
    failed: bool,
}

/// Bytes that are not on their way to the device yet.
enum Held {
    Nothing,
    /// One buffer that may turn out to be the last, and the checksums of its blocks where they are known.
    Buffer(Buf, Option<Sums>),
    /// Several, packed.
    Packed(BufMut),
}

impl<D: Disk> EngineUpload<D> {
    pub(crate) async fn begin(
        core: &Arc<Core<D>>,
        target: Target,
        options: StoreOptions,
    ) -> Result<EngineUpload<D>> {
        core.check_writable()?;
        core.check_index_room()?;
        if options
            .size
            .is_some_and(|size| size > core.upload_bytes_max())
        {
            return Err(too_large());
        }
        let mut upload = Box::new(Arriving::new(core, target, options));
        upload.look()?;
        let size = options.size.unwrap_or(0);
        if upload.reserve(size).is_err() {
            upload.reserve_swept(size).await?;
        }
        if let Some(size) = options.size {
            core.find_room(size).await?;
        }
        Ok(EngineUpload(upload))
    }

    /// For bytes that come back. Usage counts them already.
    pub(crate) async fn begin_back(
        core: &Arc<Core<D>>,
        target: Target,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<EngineUpload<D>> {
        core.check_writable()?;
        core.check_index_room()?;
        let view = core.view();
        let entry = view.find(&target.namespace, target.space, &target.key, version)?;
        if entry.place().map_err(malformed)? != Place::Away(away) {
            return Err(StoreError::moved());
        }
        let size = entry.size();
        if size > core.upload_bytes_max() {
            return Err(too_large());
        }
        core.find_room(size).await?;
        let options = StoreOptions {
            size: Some(size),
            ..StoreOptions::default()
        };
        let mut upload = Arriving::new(core, target, options);
        upload.back = Some((version, away));
        Ok(EngineUpload(Box::new(upload)))
    }
}

impl<D: Disk> Arriving<D> {
    fn new(core: &Arc<Core<D>>, target: Target, options: StoreOptions) -> Arriving<D> {
        Arriving {
            core: core.clone(),
            reservation: Some(core.ledger.reservation(target.namespace.id)),
            replaced: Usage::default(),
            target: Some(target),
            back: None,
            options,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            size: 0,
            held: Held::Nothing,
            extents: Vec::new(),
            writing: Vec::new(),
            suspect: Vec::new(),
            failed: false,
        }
    }

    /// Checks the condition, and what would be replaced.
    fn look(&mut self) -> Result<()> {
        let Some(target) = &self.target else {
            return Ok(());
        };
        let (info, space, key) = (&target.namespace, target.space, &target.key);
        let view = self.core.view();
        let standing = view.present(info, space, key)?;
        standing.check(self.options.condition)?;
        let plan = plan_store(
            versioning(info, space),
            standing.present,
            VersionId(u64::MAX),
        );
        self.replaced = standing
            .expired
            .map(|expired| Usage::of(space, expired.size()))
            .unwrap_or_default();
        for change in plan {
            let gone = match change {
                Change::DropCurrent => standing.current.clone(),
                Change::DropKept(version) => {
                    let (kept, _) = unless_damaged(view.kept(info.id, key, version))?;
                    kept.filter(|kept| !kept.is_marker())
                }
                Change::PutCurrent(_)
                | Change::KeepCurrent
                | Change::PutMarker(_)
                | Change::PromoteKept(_) => None,
            };
            if let Some(gone) = gone {
                self.replaced = self.replaced.plus(Usage::of(space, gone.size()));
            }
        }
        Ok(())
    }

    /// Bytes begin to arrive. Until they all have the value is not whole: the caller may be dropped half-way.
    fn enter(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "an earlier write failed",
            ));
        }
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<()> {
        let (Some(target), Some(reservation)) = (&self.target, &mut self.reservation) else {
            return Ok(());
        };
        reservation.raise(Usage::of(target.space, size).less(self.replaced))
    }

    /// The same, although a quota has no room for it: values past their time may still be counted. They are dropped in the order in which they
    /// expired, whosever they are.
    async fn reserve_swept(&mut self, size: u64) -> Result<()> {
        for _ in 0..SWEEPS_MAX {
            let is_more = self.core.submit(Command::Sweep).await?;
            self.look()?;
            match self.reserve(size) {
                Err(_) if is_more => {}
                reserved => return reserved,
            }
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "a quota has no room yet: values past their time are being dropped",
        ))
    }

    /// Appends what is in `digest` already.
    async fn append(&mut self, buf: Buf, sums: Option<Sums>) -> Result<()> {
        let size = self.size.saturating_add(buf.len() as u64);
        match self.options.size {
            Some(declared) if size > declared => return Err(too_large()),
            Some(_) => {}
            None if size > self.core.upload_bytes_max() => return Err(too_large()),
            None => self.reserve(size)?,
        }
        self.size = size;
        let whole = buf.len();
        let mut rest = buf;
        while !rest.is_empty() {
            match std::mem::replace(&mut self.held, Held::Nothing) {
                Held::Nothing => {
                    let len = rest.len().min(EXTENT_BYTES_MAX);
                    let first = rest.slice(0..len);
                    rest = rest.slice(len..rest.len());
                    let sums = sums.filter(|_| len == whole);
                    if len == EXTENT_BYTES_MAX {
                        self.send(first, sums).await?;
                    } else {
                        self.held = Held::Buffer(first, sums);
                    }
                }
                Held::Buffer(held, _) => {
                    let mut packed = self.take(EXTENT_BYTES_MAX).await?;
                    append(&mut packed, &held);
                    self.held = Held::Packed(packed);
                }
                Held::Packed(mut packed) => {
                    let taken = append(&mut packed, &rest);
                    rest = rest.slice(taken..rest.len());
                    if packed.room() > 0 {
                        self.held = Held::Packed(packed);
                    } else {
                        self.send(packed.freeze(), None).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts at most [`EXTENT_BYTES_MAX`] bytes on their way to the device.
    async fn send(&mut self, buf: Buf, sums: Option<Sums>) -> Result<()> {
        let padded = match buf.padded_to_page() {
            Some(padded) => padded,
            None => {
                let mut packed = self.take(buf.len()).await?;
                append(&mut packed, &buf);
                let packed = packed.freeze();
                packed.padded_to_page().unwrap_or(packed)
            }
        };
        let mut at = 0;
        while at < buf.len() {
            let lock = self.core.stay()?;
            let run = self.core.find_space(granules(buf.len() - at)).await?;
            let room = run.granules as usize * GRANULE_BYTES;
            let end = buf.len().min(at + room);
            let bytes = &buf[at..end];
            self.extents.push(match sums {
                Some(sums) if bytes.len() == buf.len() => Extent::summed(run.start, bytes, sums),
                _ => Extent::of(run.start, bytes),
            });
            let file = self.core.data.clone();
            let offset = self.core.space.offset(run.start);
            let part = padded.slice(at..padded.len().min(at + room));
            self.writing.push(Box::pin(async move {
                let written = file.write_at(offset, part).await;
                drop(lock);
                (run, written)
            }));
            at = end;
            self.drain(self.core.config.upload_depth.max(1) - 1).await?;
        }
        Ok(())
    }

    /// A buffer; while it is waited for, writes in flight go on and give theirs back.
    async fn take(&mut self, len: usize) -> Result<BufMut> {
        let pool = self.core.pool.clone();
        let mut taking = pin!(pool.take(len));
        let (writing, suspect) = (&mut self.writing, &mut self.suspect);
        let failed = &mut self.failed;
        poll_fn(|context| {
            if let Err(error) = poll_writes(writing, suspect, context) {
                *failed = true;
                return Poll::Ready(Err(error));
            }
            taking.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Waits until at most `most` writes are in flight. A first look submits those that are new.
    async fn drain(&mut self, most: usize) -> Result<()> {
        let (writing, suspect) = (&mut self.writing, &mut self.suspect);
        let most = if writing.len() <= most {
            usize::MAX
        } else {
            most
        };
        if most == usize::MAX {
            let mut context = Context::from_waker(Waker::noop());
            return poll_writes(writing, suspect, &mut context);
        }
        poll_fn(|context| match poll_writes(writing, suspect, context) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(()) if writing.len() <= most => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
        })
        .await
    }

    async fn content(&mut self) -> Result<Content> {
        let last = match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Nothing => None,
            Held::Buffer(buf, sums) => Some((buf, sums)),
            Held::Packed(packed) => Some((packed.freeze(), None)),
        };
        if self.extents.is_empty() {
            match last {
                None => return Ok(Content::Small(Buf::from(Vec::new()))),
                Some((buf, _)) if buf.len() <= SMALL_BYTES_MAX => return Ok(Content::Small(buf)),
                Some((buf, sums)) => self.send(buf, sums).await?,
            }
        } else if let Some((buf, sums)) = last {
            self.send(buf, sums).await?;
        }
        self.drain(0).await?;
        Ok(Content::Written(std::mem::take(&mut self.extents)))
    }
}

/// Polls all writes, dropping those that are done; `suspect` gets where one failed.
fn poll_writes(
    writing: &mut Vec<Writing>,
    suspect: &mut Vec<Run>,
    context: &mut Context<'_>,
) -> Result<()> {
    let mut at = 0;
    while let Some(write) = writing.get_mut(at) {
        match write.as_mut().poll(context) {
            Poll::Pending => at += 1,
            Poll::Ready((run, done)) => {
                drop(writing.swap_remove(at));
                done.map_err(|error| {
                    suspect.push(run);
                    device_failed("writing a value failed")(error)
                })?;
            }
        }
    }
    Ok(())
}

/// Copies as much as there is room for; returns how much.
fn append(packed: &mut BufMut, from: &[u8]) -> usize {
    let len = from.len().min(packed.room());
    copy(
        CopySite::EngineRepack,
        &mut packed.spare()[..len],
        &from[..len],
    );
    packed.set_len(packed.len() + len);
    len
}

impl<D: Disk> Upload for EngineUpload<D> {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        self.0.take(len.min(EXTENT_BYTES_MAX)).await
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        let upload = &mut self.0;
        upload.enter()?;
        upload.digest.update(&buf);
        upload.append(buf, None).await?;
        upload.failed = false;
        Ok(())
    }

    async fn read_from(&mut self, source: RegionSlice) -> Result<()> {
        let upload = &mut self.0;
        upload.enter()?;
        let mut taking = Taking::new(source);
        while taking.left() > 0 {
            let mut buf = upload.take(taking.left().min(EXTENT_BYTES_MAX)).await?;
            let mut sums = Sums::default();
            taking.fill_blocks(&mut buf, &mut upload.digest, BLOCK_BYTES, |sum| {
                sums.push(sum)
            })?;
            upload.append(buf.freeze(), Some(sums)).await?;
        }
        upload.failed = false;
        Ok(())
    }

    fn crc64nvme(&self) -> u64 {
        self.0.digest.finalize()
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        let mut upload = self.0;
        if upload.failed || upload.options.size.is_some_and(|size| size != upload.size) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "not all bytes of the value arrived",
            ));
        }
        let content = upload.content().await?;
        let (Some(target), Some(reservation)) = (upload.target.take(), upload.reservation.take())
        else {
            return Err(StoreError::new(ErrorKind::Invalid, "the upload has ended"));
        };
        let core = upload.core.clone();
        if let Some((version, away)) = upload.back {
            let command = TakeBackCommand {
                target,
                version,
                away,
                size: upload.size,
                crc64nvme: upload.digest.finalize(),
                content,
            };
            return core.submit(|reply| Command::TakeBack(command, reply)).await;
        }
        let command = StoreCommand {
            target,
            condition: upload.options.condition,
            seal,
            size: upload.size,
            crc64nvme: upload.digest.finalize(),
            content,
            reservation,
        };
        core.submit(|reply| Command::Store(command, reply)).await
    }
}

impl<D: Disk> Drop for Arriving<D> {
    fn drop(&mut self) {
        let runs = self.extents.iter().map(Extent::run);
        if self.writing.is_empty() {
            self.core.let_go(runs, &self.suspect);
        } else {
            let adopted = self.core.handoff.adopt(Orphan {
                writing: std::mem::take(&mut self.writing),
                runs: runs.collect(),
                suspect: std::mem::take(&mut self.suspect),
            });
            if let Err(orphan) = adopted {
                self.core.wait_beyond_close(orphan.writing);
            }
        }
    }
}

fn too_large() -> StoreError {
    StoreError::new(
        ErrorKind::TooLarge,
        "the value is larger than allowed or declared",
    )
}

impl<D: Disk> Core<D> {
    /// The largest value that one upload takes: its record must fit a segment. Larger ones are composed.
    pub fn upload_bytes_max(&self) -> u64 {
        // An extent of 1 MiB takes 76 bytes twice: as written, and in its layout.
        let extents = self.geometry.record_bytes_max() / 4 / 160;
        VALUE_BYTES_MAX.min(extents.saturating_mul(EXTENT_BYTES_MAX as u64))
    }
}
