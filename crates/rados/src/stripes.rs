//! Stripes: objects that hold a value's bytes in pieces, under names that are never used again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, CopySite, count_copy};
use forebay_store::{ErrorKind, Result, StoreError};
use futures_util::StreamExt;
use futures_util::stream;

use crate::core::{Core, Namespace};
use crate::error::unread;
use crate::heads::Seen;
use crate::held::Holding;
use crate::keeper::Task;
use crate::names;
use crate::record::{BLOCK_BYTES, Layout, Segment, Value};
use crate::sums::Blocks;
use crate::sys::{Errno, Place, Read, ReadOp, WriteOp};
use crate::under_way::{Intent, Named};

/// Bytes that are written and read together; whole pieces lie one after the other in a stripe.
pub(crate) const PIECE_BYTES: usize = forebay_mem::BLOCK_MAX_BYTES;
/// Shorter buffers are packed.
const PACKED_BYTES: usize = 16 << 10;
/// Stripes that are removed at once.
const REMOVALS: usize = 16;

/// The attribute with the block sums of a piece.
fn sums_name(piece: u64) -> Vec<u8> {
    format!("c{piece}").into_bytes()
}

/// Bytes of one piece, coming.
#[derive(Default)]
pub(crate) struct Piece {
    bufs: Vec<Buf>,
    packed: Vec<u8>,
    len: usize,
    blocks: Blocks,
}

/// Bytes of one piece, all there.
pub(crate) struct Whole {
    pub bufs: Vec<Buf>,
    pub sums: Vec<u32>,
    pub len: usize,
}

/// A value of a key's object, copied into stripes that nothing refers to yet.
pub(crate) struct Copied {
    segment: Segment,
    /// The object's version.
    version: u64,
    /// The life of this gateway in which they were written.
    pub life: u64,
    _holding: Holding,
}

impl Piece {
    pub fn room(&self) -> usize {
        PIECE_BYTES - self.len
    }

    /// Appends what there is room for.
    pub fn push(&mut self, buf: Buf) {
        self.blocks.update(&buf);
        self.len += buf.len();
        if buf.len() < PACKED_BYTES {
            count_copy(CopySite::RadosRepack, buf.len());
            self.packed.extend_from_slice(&buf);
            return;
        }
        self.unpack();
        self.bufs.push(buf);
    }

    pub fn finish(mut self) -> Whole {
        self.unpack();
        Whole {
            bufs: self.bufs,
            sums: self.blocks.finish(),
            len: self.len,
        }
    }

    fn unpack(&mut self) {
        if !self.packed.is_empty() {
            let packed = std::mem::take(&mut self.packed);
            self.bufs.push(packed.into());
        }
    }
}

impl Core {
    /// Sends a piece of a segment, at `offset` in it; what comes back waits for its end.
    pub async fn write_piece(
        &self,
        namespace: &Namespace,
        segment: Segment,
        offset: u64,
        whole: Whole,
    ) -> impl Future<Output = std::result::Result<u64, Errno>> + Send + use<> {
        let stripe_bytes = u64::from(segment.stripe_bytes);
        let object = names::stripe(segment.id, offset / stripe_bytes);
        let mut at = offset % stripe_bytes;
        let mut op = WriteOp::new(&namespace.stripes);
        let sums: Vec<u8> = whole
            .sums
            .iter()
            .flat_map(|sum| sum.to_le_bytes())
            .collect();
        op.set_xattr(&sums_name(at / PIECE_BYTES as u64), &sums);
        for buf in &whole.bufs {
            op.write(at, buf);
            at += buf.len() as u64;
        }
        count_copy(CopySite::RadosWrite, whole.len);
        let access = &self.access;
        access
            .begin_write(&namespace.stripes, &object, op, whole.len)
            .await
    }

    /// Says before they are written which stripes there will be, so that they are found if nobody comes to need them.
    pub async fn intend(
        &self,
        namespace: &Namespace,
        named: &Named,
        segment: Segment,
    ) -> Result<()> {
        let intent = Intent {
            named: named.clone(),
            segment,
        };
        let entry = (names::intent(segment.id), intent.encode());
        let entered = self
            .access
            .in_time(namespace.journal.enter(vec![entry]))
            .await;
        entered.map_err(|errno| self.not_entered(namespace, errno))
    }

    /// The stripes of the copy of a value that is the data of its key's object; `None` when the object has changed since. `copy` keeps what
    /// was copied: one of what the object was before is of no use to anybody.
    pub async fn moved_out(
        &self,
        namespace: &Arc<Namespace>,
        named: &Named,
        seen: &Seen,
        value: &Value,
        copy: &mut Option<Copied>,
    ) -> Result<Option<Vec<Segment>>> {
        if value.size == 0 {
            return Ok(Some(Vec::new()));
        }
        let life = self.pulse.life();
        if let Some(old) = copy.take_if(|old| old.version != seen.version || old.life != life) {
            self.task(Task::Discard(namespace.clone(), old.segment));
        }
        if copy.is_none() {
            *copy = self.copy_out(namespace, named, seen.version, value).await?;
        }
        Ok(copy.as_ref().map(|copy| vec![copy.segment]))
    }

    /// Copies a value that is the data of its key's object into stripes, because the object gets another value. It keeps its sums: of bytes
    /// that were damaged before no other are made, which would call them sound.
    async fn copy_out(
        &self,
        namespace: &Namespace,
        named: &Named,
        version: u64,
        value: &Value,
    ) -> Result<Option<Copied>> {
        let Layout::Inline(sums) = &value.layout else {
            return Ok(None);
        };
        let mut sums = sums.chunks(PIECE_BYTES / BLOCK_BYTES as usize);
        let life = self.pulse.life();
        let segment = Segment {
            id: self.number(),
            len: value.size,
            stripe_bytes: self.config.object_bytes,
        };
        let holding = self.held.hold(segment.id);
        self.intend(namespace, named, segment).await?;
        let (place, object) = namespace.object(named.space, &named.key);
        let mut offset = 0;
        while offset < value.size {
            let len = (value.size - offset).min(PIECE_BYTES as u64) as usize;
            let mut op = ReadOp::new(place);
            op.assert_version(version);
            op.read(offset, self.one_more(len).await);
            let read = match self.access.read(place, &object, op, len).await {
                Err(Errno(libc::ENOENT | libc::ERANGE | libc::EOVERFLOW)) => {
                    self.discard(namespace, segment).await?;
                    return Ok(None);
                }
                Err(errno) => return Err(unread(errno, "the value that is replaced")),
                Ok(read) => read,
            };
            let bufs = read.data.into_iter().map(|mut buf| {
                buf.set_len(buf.len().min(len));
                buf.freeze()
            });
            let whole = Whole {
                bufs: bufs.collect(),
                sums: sums.next().unwrap_or_default().to_vec(),
                len,
            };
            if whole.bufs.iter().map(|buf| buf.len()).sum::<usize>() != len {
                return Err(corrupt(&named.key, offset));
            }
            let written = self.write_piece(namespace, segment, offset, whole);
            let written = written.await.await;
            written.map_err(|errno| unread(errno, "the value that is replaced"))?;
            offset += len as u64;
        }
        Ok(Some(Copied {
            segment,
            version,
            life,
            _holding: holding,
        }))
    }

    /// Removes a segment's stripes, and what the journal says of it.
    pub async fn discard(&self, namespace: &Namespace, segment: Segment) -> Result<()> {
        self.remove_stripes(&namespace.stripes, segment).await?;
        namespace
            .journal
            .later(Vec::new(), [names::intent(segment.id)]);
        Ok(())
    }

    /// Removes a segment's stripes, as many as there are.
    pub async fn remove_stripes(&self, place: &Arc<Place>, segment: Segment) -> Result<()> {
        let removals = (0..segment.stripes()).map(|number| {
            let object = names::stripe(segment.id, number);
            async move {
                let mut op = WriteOp::new(place);
                op.remove();
                self.access.write(place, &object, op, None, 0).await
            }
        });
        let mut removals = stream::iter(removals).buffer_unordered(REMOVALS);
        let mut failed = None;
        while let Some(removed) = removals.next().await {
            match removed {
                Ok(_) | Err(Errno(libc::ENOENT)) => {}
                Err(errno) => failed = Some(errno),
            }
        }
        match failed {
            None => Ok(()),
            Some(errno) => Err(unread(errno, "stripes that nothing needs")),
        }
    }

    /// Reads bytes of one stripe of a segment, checked. `range` is in the segment, and `bufs` have room for its blocks.
    pub async fn read_stripe(
        &self,
        place: &Arc<Place>,
        segment: Segment,
        range: Range<u64>,
        bufs: Vec<BufMut>,
    ) -> Result<VecDeque<Buf>> {
        let blocks = blocks_of(&range, segment.len);
        let into = |op: &mut ReadOp, at| op.read_all(at, bufs);
        let (read, sums) = self
            .read_blocks(place, segment, blocks.clone(), into)
            .await?;
        let stripe_bytes = u64::from(segment.stripe_bytes);
        let number = blocks.start / stripe_bytes;
        let in_stripe = |range: Range<u64>| {
            let begin = number * stripe_bytes;
            range.start - begin..range.end - begin
        };
        let object = names::stripe(segment.id, number);
        checked(
            &object,
            read.data,
            in_stripe(blocks),
            &sums,
            in_stripe(range),
        )
    }

    /// Reads whole blocks of one stripe of a segment, and their sums. `into` says where to, and gets the offset in the stripe.
    pub async fn read_blocks(
        &self,
        place: &Arc<Place>,
        segment: Segment,
        range: Range<u64>,
        into: impl FnOnce(&mut ReadOp, u64),
    ) -> Result<(Read, Vec<u32>)> {
        let stripe_bytes = u64::from(segment.stripe_bytes);
        let object = names::stripe(segment.id, range.start / stripe_bytes);
        let at = range.start % stripe_bytes;
        let mut op = ReadOp::new(place);
        op.xattrs();
        into(&mut op, at);
        let len = range.end - range.start;
        let read = match self.access.read(place, &object, op, len as usize).await {
            Ok(read) => read,
            Err(Errno(libc::ENOENT)) => {
                return Err(StoreError::new(
                    ErrorKind::Io,
                    "the value was replaced, and read for longer than its bytes are kept",
                ));
            }
            Err(errno) => return Err(unread(errno, "a stripe")),
        };
        let pieces = at / PIECE_BYTES as u64..(at + len).div_ceil(PIECE_BYTES as u64);
        let sums = pieces.flat_map(|piece| {
            let name = sums_name(piece);
            let sums = read.xattrs.iter().find(|(found, _)| *found == name);
            sums.map_or(&[][..], |(_, value)| value).chunks_exact(4)
        });
        let before = (at % PIECE_BYTES as u64 / BLOCK_BYTES) as usize;
        let sums = sums
            .skip(before)
            .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
        let sums = sums.collect();
        Ok((read, sums))
    }
}

/// The blocks that hold a range of `len` bytes.
pub(crate) fn blocks_of(range: &Range<u64>, len: u64) -> Range<u64> {
    range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES).min(len)
}

/// The wanted bytes of `bufs`, which hold `blocks` of an object, or what lies beyond, too, after they were compared with their sums.
pub(crate) fn checked(
    object: &[u8],
    bufs: Vec<BufMut>,
    blocks: Range<u64>,
    sums: &[u32],
    wanted: Range<u64>,
) -> Result<VecDeque<Buf>> {
    let mut made = Blocks::default();
    let mut at = blocks.start;
    let mut found = VecDeque::with_capacity(bufs.len());
    for mut buf in bufs {
        let len = ((blocks.end - at).min(buf.len() as u64)) as usize;
        if len == 0 {
            break;
        }
        buf.set_len(len);
        made.update(&buf);
        let from = wanted.start.max(at);
        let to = wanted.end.min(at + len as u64);
        if from < to {
            let slice = (from - at) as usize..(to - at) as usize;
            found.push_back(buf.freeze().slice(slice));
        }
        at += len as u64;
    }
    let made = made.finish();
    let sums = sums.get(..made.len()).unwrap_or(sums);
    let differs = made.iter().zip(sums).position(|(made, sum)| made != sum);
    let short = at < blocks.end || sums.len() != made.len();
    match differs.or(short.then_some(made.len())) {
        None => Ok(found),
        Some(block) => Err(corrupt(object, blocks.start + block as u64 * BLOCK_BYTES)),
    }
}

/// Bytes that do not match their checksum.
pub(crate) fn corrupt(object: &[u8], offset: u64) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!(
            "the block at {offset} of {} does not match its checksum",
            crate::error::shown(object)
        ),
    )
}
