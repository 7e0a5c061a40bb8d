//! Where a command's payload is: sent from and received into memory by reference.

use std::ops::Range;
use std::sync::Arc;

use forebay_io::socket::{Parts, Scatter};
use forebay_mem::{Buf, BufMut, CopySite, Region, RegionSlice, count_copy};

/// What a command sends from.
#[derive(Debug, Clone)]
pub enum Source {
    /// One buffer.
    Buf(Buf),
    /// Several, one after the other.
    Bufs(Vec<Buf>),
    /// Registered memory that others may be using; with data digests it is copied, so that the digest is of what is sent.
    Region(RegionSlice, Option<Hold>),
    /// These bytes, then the rest.
    Led(Buf, Box<Source>),
}

/// What is kept until a command has ended, and never looked at.
#[derive(Clone)]
pub struct Hold(pub forebay_io::Hold);

impl Hold {
    /// Keeps this.
    pub fn of(what: impl std::any::Any + Send + Sync) -> Hold {
        Hold(std::sync::Arc::new(what))
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}

/// What a command receives into.
#[derive(Debug)]
pub enum Sink {
    /// The first `len` bytes of a buffer, or as many as it can hold; its length is what came.
    Buf(BufMut, usize),
    /// Several buffers, each filled as far as it can hold before the next; their lengths are what came.
    Bufs(Vec<BufMut>),
    /// Registered memory that others may be using.
    Region(RegionSlice, Option<Hold>),
    /// Ordinary memory, for what is no payload; its length is what came.
    Bytes(Vec<u8>),
}

/// The payload of a command.
#[derive(Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// To the controller.
    Out(Source),
    /// To the host.
    In(Sink),
}

impl Data {
    /// How much is offered, or wanted at most, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length that commands state")]
    pub fn len(&self) -> u64 {
        match self {
            Data::None => 0,
            Data::Out(source) => source.len(),
            Data::In(sink) => sink.len(),
        }
    }

    /// Whether it is in memory that others may change, or take away.
    pub(super) fn is_exposed(&self) -> bool {
        match self {
            Data::None => false,
            Data::Out(source) => source.is_exposed(),
            Data::In(sink) => matches!(sink, Sink::Region(..)),
        }
    }

    /// The registered memory that all of it lies in, and where.
    pub(super) fn memory(&self) -> Option<(&Arc<Region>, usize)> {
        match self {
            Data::Out(Source::Region(memory, _)) | Data::In(Sink::Region(memory, _)) => {
                Some((memory.region(), memory.range().start))
            }
            Data::Out(Source::Buf(buf)) => Some((buf.region()?, buf.place()?.1)),
            Data::In(Sink::Buf(buf, _)) => Some((buf.region(), buf.place().1)),
            Data::None
            | Data::Out(Source::Bufs(_) | Source::Led(..))
            | Data::In(Sink::Bufs(_) | Sink::Bytes(_)) => None,
        }
    }
}

impl From<bytes::Bytes> for Source {
    fn from(bytes: bytes::Bytes) -> Source {
        Source::Buf(bytes.into())
    }
}

impl From<Buf> for Source {
    fn from(buf: Buf) -> Source {
        Source::Buf(buf)
    }
}

impl From<Vec<Buf>> for Source {
    fn from(bufs: Vec<Buf>) -> Source {
        Source::Bufs(bufs)
    }
}

impl From<RegionSlice> for Source {
    fn from(memory: RegionSlice) -> Source {
        Source::Region(memory, None)
    }
}

impl From<RegionSlice> for Sink {
    fn from(memory: RegionSlice) -> Sink {
        Sink::Region(memory, None)
    }
}

impl From<BufMut> for Sink {
    fn from(buf: BufMut) -> Sink {
        let len = buf.capacity();
        Sink::Buf(buf, len)
    }
}

impl Source {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Buf(buf) => buf.len() as u64,
            Source::Bufs(bufs) => bufs.iter().map(|buf| buf.len() as u64).sum(),
            Source::Region(memory, _) => memory.len() as u64,
            Source::Led(head, rest) => head.len() as u64 + rest.len(),
        }
    }

    /// The same behind these bytes.
    pub(super) fn led_by(self, head: Buf) -> Source {
        Source::Led(head, Box::new(self))
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `len` bytes from `offset` to what is sent next, as far as there is room; says how many. `None` when memory is gone.
    pub(super) fn gather<'a>(
        &'a self,
        offset: u64,
        len: usize,
        to: &mut impl Parts<'a>,
    ) -> Option<usize> {
        match self {
            Source::Buf(buf) => part(buf, offset, len).map(|bytes| to.bytes(bytes)),
            Source::Bufs(bufs) => {
                let pieces = pieces(bufs, offset as usize, len);
                Some(pieces.map(|bytes| to.bytes(bytes)).sum())
            }
            Source::Region(memory, _) => to.region(memory, offset as usize, len),
            Source::Led(head, rest) => {
                let (first, behind, left) = split(head, offset, len);
                Some(to.bytes(first) + rest.gather(behind, left, to)?)
            }
        }
    }

    /// Shows `len` bytes from `offset`, in order; false when memory is gone.
    pub(super) fn show(&self, offset: u64, len: usize, each: &mut dyn FnMut(&[u8])) -> bool {
        match self {
            Source::Buf(buf) => part(buf, offset, len).map(each).is_some(),
            Source::Bufs(bufs) => {
                pieces(bufs, offset as usize, len).for_each(each);
                true
            }
            Source::Region(memory, _) => {
                let from = offset as usize;
                memory
                    .slice(from..from + len)
                    .is_some_and(|slice| slice.for_each_chunk(each))
            }
            Source::Led(head, rest) => {
                let (first, behind, left) = split(head, offset, len);
                each(first);
                rest.show(behind, left, each)
            }
        }
    }

    /// Copies it to the begin of a region; false when it does not fit, or memory is gone.
    pub(super) fn copy_to(&self, region: &Arc<Region>) -> bool {
        let len = self.len() as usize;
        let Some(room) = region.slice(0..len) else {
            return false;
        };
        count_copy(CopySite::LinkStaging, len);
        let (mut at, mut whole) = (0, true);
        let shown = self.show(0, len, &mut |bytes| {
            whole &= room.write(at, bytes);
            at += bytes.len();
        });
        shown && whole
    }

    /// Whether others may change it while it is sent.
    pub(super) fn is_exposed(&self) -> bool {
        match self {
            Source::Buf(_) | Source::Bufs(_) => false,
            Source::Region(..) => true,
            Source::Led(_, rest) => rest.is_exposed(),
        }
    }
}

/// Of `len` bytes from `offset`: those of the head, and where and how much is to be taken of the rest.
fn split(head: &Buf, offset: u64, len: usize) -> (&[u8], u64, usize) {
    let from = offset.min(head.len() as u64) as usize;
    let first = &head[from..head.len().min(from + len)];
    (first, offset - from as u64, len - first.len())
}

fn part(buf: &Buf, offset: u64, len: usize) -> Option<&[u8]> {
    let from = usize::try_from(offset).ok()?;
    buf.get(from..from.checked_add(len)?)
}

/// Of buffers put together, where the `len` bytes from `at` lie in each: told how long it is, one after the other.
fn within(at: usize, len: usize) -> impl FnMut(usize) -> Range<usize> {
    let (mut skip, mut left) = (at, len);
    move |buf_bytes| {
        let from = skip.min(buf_bytes);
        skip -= from;
        let take = (buf_bytes - from).min(left);
        left -= take;
        from..from + take
    }
}

/// The `len` bytes from `at` of buffers put together.
fn pieces(bufs: &[Buf], at: usize, len: usize) -> impl Iterator<Item = &[u8]> {
    let mut within = within(at, len);
    bufs.iter().map(move |buf| &buf[within(buf.len())])
}

/// The room for `len` bytes at `at` of buffers put together.
fn rooms(bufs: &mut [BufMut], at: usize, len: usize) -> impl Iterator<Item = &mut [u8]> {
    let mut within = within(at, len);
    bufs.iter_mut().map(move |buf| {
        let spare = buf.spare();
        let part = within(spare.len());
        &mut spare[part]
    })
}

impl Sink {
    /// The most that it takes, in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Sink::Buf(buf, len) => buf.capacity().min(*len) as u64,
            Sink::Bufs(bufs) => bufs.iter().map(|buf| buf.capacity() as u64).sum(),
            Sink::Region(memory, _) => memory.len() as u64,
            Sink::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it takes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds room for `len` bytes at `offset` to what is received next, as far as there are places; how much was added. `filled`
    /// tells the lengths of buffers: 0 while a command is under way.
    pub(super) fn scatter<'a>(
        &'a mut self,
        offset: u64,
        len: usize,
        to: &mut Scatter<'a>,
    ) -> usize {
        let before = to.len();
        let at = offset as usize;
        match self {
            Sink::Buf(buf, _) => {
                if let Some(room) = buf.spare().get_mut(at..at + len) {
                    to.bytes(room);
                }
            }
            Sink::Bufs(bufs) => {
                rooms(bufs, at, len).all(|room| to.bytes(room));
            }
            Sink::Region(memory, _) => {
                to.region(memory, at, len);
            }
            Sink::Bytes(bytes) => {
                if let Some(room) = bytes.get_mut(at..at + len) {
                    to.bytes(room);
                }
            }
        }
        to.len() - before
    }

    /// Copies bytes that came with others to their place; false when they do not fit, or memory is gone.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let at = offset as usize;
        if !matches!(self, Sink::Bytes(_)) {
            count_copy(CopySite::LinkStaging, bytes.len());
        }
        match self {
            Sink::Buf(buf, _) => buf
                .spare()
                .get_mut(at..at + bytes.len())
                .map(|room| room.copy_from_slice(bytes))
                .is_some(),
            Sink::Bufs(bufs) => {
                let mut rest = bytes;
                for room in rooms(bufs, at, bytes.len()) {
                    let (first, behind) = rest.split_at(room.len());
                    room.copy_from_slice(first);
                    rest = behind;
                }
                rest.is_empty()
            }
            Sink::Region(memory, _) => memory.write(at, bytes),
            Sink::Bytes(into) => into
                .get_mut(at..at + bytes.len())
                .map(|room| room.copy_from_slice(bytes))
                .is_some(),
        }
    }

    /// Copies the first `len` bytes of a region; false when they do not fit, or memory is gone.
    pub(super) fn copy_from(&mut self, region: &Arc<Region>, len: usize) -> bool {
        let Some(from) = region.slice(0..len) else {
            return false;
        };
        let (mut at, mut whole) = (0, true);
        let shown = from.for_each_chunk(|bytes| {
            whole &= self.write(at, bytes);
            at += bytes.len() as u64;
        });
        shown && whole
    }

    /// Shows `len` bytes from `offset` as they have arrived, in order; false when memory is gone.
    pub(super) fn show(&mut self, offset: u64, len: usize, mut each: impl FnMut(&[u8])) -> bool {
        let at = offset as usize;
        match self {
            Sink::Buf(buf, _) => buf.spare().get(at..at + len).map(each).is_some(),
            Sink::Bufs(bufs) => {
                let mut left = len;
                for room in rooms(bufs, at, len) {
                    left -= room.len();
                    each(room);
                }
                left == 0
            }
            Sink::Region(memory, _) => memory
                .slice(at..at + len)
                .is_some_and(|slice| slice.for_each_chunk(&mut each)),
            Sink::Bytes(bytes) => bytes.get(at..at + len).map(each).is_some(),
        }
    }

    /// Says how much has arrived, when a command has ended.
    pub(super) fn finish(&mut self, received: u64) {
        let received = received.min(self.len()) as usize;
        match self {
            Sink::Buf(buf, _) => buf.set_len(received),
            Sink::Bufs(bufs) => {
                let mut left = received;
                for buf in bufs {
                    let len = buf.capacity().min(left);
                    left -= len;
                    buf.set_len(len);
                }
            }
            Sink::Region(..) => {}
            Sink::Bytes(bytes) => bytes.truncate(received),
        }
    }

    /// Makes it empty again, when a command is sent once more.
    pub(super) fn restart(&mut self) {
        match self {
            Sink::Buf(buf, _) => buf.set_len(0),
            Sink::Bufs(bufs) => bufs.iter_mut().for_each(|buf| buf.set_len(0)),
            Sink::Region(..) | Sink::Bytes(_) => {}
        }
    }
}
