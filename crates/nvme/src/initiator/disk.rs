//! A disk whose data file is a namespace of blocks: an engine's data on a machine elsewhere.
//!
//! Only the file `data` lies there, from the first block on, and it is as long as the namespace. Other files (an index, the lock)
//! lie in a directory of this machine: they belong to the data, and to no other.
//!
//! # When the target is lost
//! Reads wait as long as [`Options::patience`](super::Options::patience) and fail then. Writes and syncs wait for ever: whoever
//! asked for them (a journal) could not go on after a failure. Data that was written and not synced may have been in the target's
//! memory only; it is kept here (up to 8 MiB, else it is synced early) and written again before a sync that spans two associations
//! succeeds.
//!
//! # Alignment
//! Whole blocks go as they are. Others are read, changed and written, one after the other.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use forebay_io::files::{Directory, OpenFile};
use forebay_io::{Disk, File, OpenOptions};
use forebay_mem::{
    BLOCK_MAX_BYTES, Buf, BufMut, CopySite, PAGE_BYTES, Pool, RegionSlice, count_copy,
};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::block::BlockNamespace;
use super::data::{Hold, Sink, Source};
use super::host::{NamespaceUrl, Options};
use super::{Error, Result};

/// The file that lies on the namespace.
const DATA: &str = "data";
/// Buffers for what is not whole blocks, and of blocking calls.
const POOL_BYTES: usize = 16 << 20;
/// Data that is written and not synced, at most.
const UNSYNCED_BYTES_MAX: usize = 8 << 20;

/// A directory whose data file is a namespace of blocks.
#[derive(Clone)]
pub struct NamespaceDisk {
    local: Directory,
    remote: Arc<Remote>,
}

/// A file of a [`NamespaceDisk`].
#[derive(Clone)]
pub enum NamespaceFile {
    /// In the directory.
    Local(OpenFile),
    /// The namespace.
    Remote(RemoteFile),
}

/// The namespace, as a file.
#[derive(Clone)]
pub struct RemoteFile(Arc<Remote>);

struct Remote {
    namespace: BlockNamespace,
    block_bytes: usize,
    pool: Pool,
    /// Taken to write again what may be lost; shared by all other writes.
    gate: tokio::sync::RwLock<()>,
    /// Taken while blocks are changed in part.
    edges: tokio::sync::Mutex<()>,
    /// Taken while what is unsynced is synced because there is much of it.
    relieving: tokio::sync::Mutex<()>,
    unsynced: Mutex<Unsynced>,
    _threads: Threads,
}

/// What was written since the last sync, in order.
#[derive(Default)]
struct Unsynced {
    writes: VecDeque<Written>,
    bytes: usize,
    number: u64,
}

struct Written {
    number: u64,
    association: u64,
    block: u64,
    from: Buf,
}

impl NamespaceDisk {
    /// Connects to the namespace; `local` keeps the other files. The connections run on `threads` threads of their own, one queue
    /// each, whatever [`Options::queues`] and [`Options::runtimes`] say.
    ///
    /// # Errors
    /// As [`NamespaceUrl::connect_block`]; [`Error::Invalid`] for a namespace that refuses writes or whose blocks are longer than a
    /// page.
    pub async fn connect(
        local: Directory,
        url: &NamespaceUrl,
        options: Options,
        threads: usize,
    ) -> Result<NamespaceDisk> {
        let threads = Threads::start(threads.max(1))
            .map_err(|error| Error::invalid(format!("cannot start a thread: {error}")))?;
        let options = Options {
            queues: threads.handles.len() as u16,
            runtimes: threads.handles.clone(),
            ..options
        };
        let namespace = url.connect_block(options).await?;
        let block_bytes = namespace.info().block_bytes as usize;
        if block_bytes > PAGE_BYTES {
            return Err(Error::invalid(format!(
                "{url} has blocks longer than a page"
            )));
        }
        if namespace.info().read_only {
            return Err(Error::invalid(format!("{url} refuses writes")));
        }
        Ok(NamespaceDisk {
            local,
            remote: Arc::new(Remote {
                namespace,
                block_bytes,
                pool: Pool::new(POOL_BYTES),
                gate: tokio::sync::RwLock::default(),
                edges: tokio::sync::Mutex::default(),
                relieving: tokio::sync::Mutex::default(),
                unsynced: Mutex::default(),
                _threads: threads,
            }),
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &BlockNamespace {
        &self.remote.namespace
    }

    /// The directory of the other files.
    pub fn local(&self) -> &Directory {
        &self.local
    }
}

impl Disk for NamespaceDisk {
    type File = NamespaceFile;

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<NamespaceFile> {
        match name {
            DATA => Ok(NamespaceFile::Remote(RemoteFile(self.remote.clone()))),
            name => self.local.open(name, options).map(NamespaceFile::Local),
        }
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        match name {
            DATA => Ok(true),
            name => self.local.exists(name),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.local.sync()
    }

    /// Of the directory: the namespace never grows.
    fn free_bytes(&self) -> io::Result<u64> {
        self.local.free_bytes()
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.local.lock()
    }
}

impl File for NamespaceFile {
    async fn read_at(&self, offset: u64, into: BufMut, len: usize) -> (io::Result<()>, BufMut) {
        match self {
            NamespaceFile::Local(file) => file.read_at(offset, into, len).await,
            NamespaceFile::Remote(RemoteFile(remote)) => remote.read_at(offset, into, len).await,
        }
    }

    async fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: forebay_io::Hold,
    ) -> io::Result<usize> {
        match self {
            NamespaceFile::Local(file) => file.read_into(offset, into, hold).await,
            NamespaceFile::Remote(RemoteFile(remote)) => {
                remote.read_into(offset, into, Hold(hold)).await
            }
        }
    }

    async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.write_at(offset, from).await,
            NamespaceFile::Remote(RemoteFile(remote)) => remote.write_at(offset, from).await,
        }
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.read_exact_at(offset, into),
            NamespaceFile::Remote(RemoteFile(remote)) => {
                block_on(remote.read_exact_at(offset, into))
            }
        }
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.write_all_at(offset, from),
            NamespaceFile::Remote(RemoteFile(remote)) => {
                block_on(remote.write_all_at(offset, from))
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.sync_data(),
            NamespaceFile::Remote(RemoteFile(remote)) => block_on(remote.sync()),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.allocate(offset, len),
            NamespaceFile::Remote(RemoteFile(remote)) => remote.check(offset, len),
        }
    }

    fn len(&self) -> io::Result<u64> {
        match self {
            NamespaceFile::Local(file) => file.len(),
            NamespaceFile::Remote(RemoteFile(remote)) => Ok(remote.namespace.bytes()),
        }
    }

    /// The namespace keeps its length, and what lies behind `len`.
    fn set_len(&self, len: u64) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.set_len(len),
            NamespaceFile::Remote(RemoteFile(remote)) => remote.check(0, len),
        }
    }
}

impl Remote {
    /// Whether there is space for this.
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.namespace.bytes() => Ok(()),
            Some(_) => Err(io::ErrorKind::StorageFull.into()),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn is_whole(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.block_bytes as u64) && len.is_multiple_of(self.block_bytes)
    }

    fn block(&self, offset: u64) -> u64 {
        offset / self.block_bytes as u64
    }

    /// What one command moves, at most.
    fn step(&self) -> usize {
        let most = self.namespace.transfer_bytes_max();
        usize::try_from(most).unwrap_or(usize::MAX).min(16 << 20)
    }

    /// How many of `len` bytes at `offset` there are.
    fn available(&self, offset: u64, len: usize) -> usize {
        let left = self.namespace.bytes().saturating_sub(offset);
        usize::try_from(left).unwrap_or(usize::MAX).min(len)
    }

    async fn read_at(&self, offset: u64, into: BufMut, len: usize) -> (io::Result<()>, BufMut) {
        let mut into = into;
        into.set_len(0);
        if len > into.capacity() || offset.checked_add(len as u64).is_none() {
            return (Err(io::ErrorKind::InvalidInput.into()), into);
        }
        let wanted = self.available(offset, len);
        // Blocks are whole as far as there is room for them.
        let rounded = wanted.next_multiple_of(self.block_bytes);
        if wanted == 0 {
            return (Ok(()), into);
        }
        let whole = self.is_whole(offset, rounded) && rounded <= into.capacity();
        if whole && rounded <= self.step() {
            let sink = Sink::Buf(into, rounded);
            let (done, sink) = self.namespace.read(self.block(offset), sink).await;
            let Sink::Buf(mut into, _) = sink else {
                unreachable!("the memory of a read comes back");
            };
            into.set_len(if done.is_ok() { wanted } else { 0 });
            return (done.map(drop).map_err(io::Error::from), into);
        }
        let done = self
            .read_exact_at(offset, &mut into.spare()[..wanted])
            .await;
        into.set_len(if done.is_ok() { wanted } else { 0 });
        (done, into)
    }

    async fn read_into(&self, offset: u64, into: RegionSlice, hold: Hold) -> io::Result<usize> {
        let wanted = self.available(offset, into.len());
        let whole = match offset.is_multiple_of(self.block_bytes as u64) {
            true => wanted - wanted % self.block_bytes,
            false => 0,
        };
        let mut done = 0;
        while done < whole {
            let len = (whole - done).min(self.step());
            let part = into
                .slice(done..done + len)
                .ok_or(io::ErrorKind::InvalidInput)?;
            let sink = Sink::Region(part, Some(hold.clone()));
            let block = self.block(offset + done as u64);
            self.namespace.read(block, sink).await.0?;
            done += len;
        }
        while done < wanted {
            let len = (wanted - done).min(BLOCK_MAX_BYTES / 2);
            let at = offset + done as u64;
            let (skip, bytes) = self.bounced(at, len).await?;
            if !into.write(done, &bytes[skip..skip + len]) {
                return Err(io::Error::other("memory that is read into is gone"));
            }
            count_copy(CopySite::ReadBounce, len);
            done += len;
        }
        Ok(wanted)
    }

    /// The blocks that hold this, and where in them it begins.
    async fn bounced(&self, offset: u64, len: usize) -> io::Result<(usize, Buf)> {
        let skip = (offset % self.block_bytes as u64) as usize;
        let covered = (skip + len).next_multiple_of(self.block_bytes);
        let first = self.block(offset);
        if covered <= self.step() {
            let buf = self.pool.take(covered).await;
            return Ok((skip, self.read_block(first, buf, covered).await?.freeze()));
        }
        let mut buf = self.pool.take(covered).await;
        let mut done = 0;
        while done < covered {
            let step = (covered - done).min(self.step());
            let part = self.pool.take(step).await;
            let part = self.read_block(first + self.block(done as u64), part, step);
            let part = part.await?;
            buf.set_len(done + step);
            buf[done..].copy_from_slice(&part);
            done += step;
        }
        Ok((skip, buf.freeze()))
    }

    async fn read_block(&self, block: u64, into: BufMut, len: usize) -> io::Result<BufMut> {
        let (done, sink) = self.namespace.read(block, Sink::Buf(into, len)).await;
        done?;
        match sink {
            Sink::Buf(buf, _) => Ok(buf),
            _ => Err(io::Error::other("the memory of a read is gone")),
        }
    }

    async fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if self.available(offset, into.len()) < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = offset;
        for part in into.chunks_mut(BLOCK_MAX_BYTES / 2) {
            let (skip, bytes) = self.bounced(at, part.len()).await?;
            part.copy_from_slice(&bytes[skip..skip + part.len()]);
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        self.check(offset, from.len() as u64)?;
        if self.is_whole(offset, from.len()) {
            return self.write_blocks(self.block(offset), from).await;
        }
        self.write_odd(offset, &from).await
    }

    async fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check(offset, from.len() as u64)?;
        if !self.is_whole(offset, from.len()) {
            return self.write_odd(offset, from).await;
        }
        let mut at = offset;
        for part in from.chunks(BLOCK_MAX_BYTES) {
            let mut buf = self.pool.take(part.len()).await;
            buf.set_len(part.len());
            buf.copy_from_slice(part);
            self.write_blocks(self.block(at), buf.freeze()).await?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Reads the blocks that hold this, changes them and writes them.
    async fn write_odd(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let _edges = self.edges.lock().await;
        let mut at = offset;
        for part in from.chunks(BLOCK_MAX_BYTES / 2) {
            let (skip, before) = self.bounced(at, part.len()).await?;
            let mut buf = self.pool.take(before.len()).await;
            buf.set_len(before.len());
            buf.copy_from_slice(&before);
            drop(before);
            buf[skip..skip + part.len()].copy_from_slice(part);
            self.write_blocks(self.block(at), buf.freeze()).await?;
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_blocks(&self, block: u64, from: Buf) -> io::Result<()> {
        {
            let _shared = self.gate.read().await;
            let mut done = 0;
            while done < from.len() {
                let len = (from.len() - done).min(self.step());
                let part = from.slice(done..done + len);
                let at = block + self.block(done as u64);
                let association = self.write_once(at, part.clone()).await?;
                if self.namespace.is_volatile() {
                    self.unsynced.lock().add(association, at, part);
                }
                done += len;
            }
        }
        if self.unsynced.lock().bytes > UNSYNCED_BYTES_MAX {
            let _relieving = self.relieving.lock().await;
            // Others may have done it meanwhile.
            if self.unsynced.lock().bytes > UNSYNCED_BYTES_MAX {
                return self.sync().await;
            }
        }
        Ok(())
    }

    async fn write_once(&self, block: u64, from: Buf) -> io::Result<u64> {
        let source = Source::Buf(from);
        let done = self
            .namespace
            .write_with_patience(block, source, false, None)
            .await?;
        Ok(done.association)
    }

    /// Makes durable what was written before.
    async fn sync(&self) -> io::Result<()> {
        let last = self.unsynced.lock().number;
        loop {
            let flushed = self.namespace.flush_with_patience(None).await?;
            if self.unsynced.lock().settle(last, flushed.association) {
                return Ok(());
            }
            self.write_again(last, flushed.association).await?;
        }
    }

    /// Writes again what was written by another association, and all that was written after it: the target may have forgotten it.
    async fn write_again(&self, last: u64, association: u64) -> io::Result<()> {
        let _alone = self.gate.write().await;
        let mut next = self.unsynced.lock().stale(last, association);
        while let Some((number, block, from)) = next {
            let written = self.write_once(block, from).await?;
            let mut unsynced = self.unsynced.lock();
            unsynced.rewritten(number, written);
            next = unsynced.after(number);
        }
        Ok(())
    }
}

impl Unsynced {
    fn add(&mut self, association: u64, block: u64, from: Buf) {
        self.number += 1;
        self.bytes += from.held_bytes();
        self.writes.push_back(Written {
            number: self.number,
            association,
            block,
            from,
        });
    }

    /// Forgets writes up to `last`, which a flush by `association` has made durable; false when some were by another association.
    fn settle(&mut self, last: u64, association: u64) -> bool {
        let covered = |write: &&Written| write.number <= last;
        let mut writes = self.writes.iter().take_while(covered);
        if writes.any(|write| write.association != association) {
            return false;
        }
        while self
            .writes
            .front()
            .is_some_and(|write| write.number <= last)
        {
            if let Some(write) = self.writes.pop_front() {
                self.bytes -= write.from.held_bytes();
            }
        }
        true
    }

    /// The first write up to `last` that was by another association.
    fn stale(&self, last: u64, association: u64) -> Option<(u64, u64, Buf)> {
        let covered = |write: &&Written| write.number <= last;
        let mut writes = self.writes.iter().take_while(covered);
        writes
            .find(|write| write.association != association)
            .map(Written::again)
    }

    fn after(&self, number: u64) -> Option<(u64, u64, Buf)> {
        let mut writes = self.writes.iter();
        writes
            .find(|write| write.number > number)
            .map(Written::again)
    }

    fn rewritten(&mut self, number: u64, association: u64) {
        let write = self.writes.iter_mut().find(|write| write.number == number);
        if let Some(write) = write {
            write.association = association;
        }
    }
}

impl Written {
    fn again(&self) -> (u64, u64, Buf) {
        (self.number, self.block, self.from.clone())
    }
}

/// Threads that connections run on; they end when this is dropped.
struct Threads {
    handles: Vec<Handle>,
    _stops: Vec<oneshot::Sender<()>>,
}

impl Threads {
    fn start(count: usize) -> io::Result<Threads> {
        let mut threads = Threads {
            handles: Vec::new(),
            _stops: Vec::new(),
        };
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel::<()>();
            threads._stops.push(stop);
            thread::Builder::new()
                .name(format!("forebay-nvme-{index}"))
                .spawn(move || {
                    // Its end is the sender's.
                    let _ = runtime.block_on(stopped);
                })?;
        }
        Ok(threads)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits, blocking, on a thread that may.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // On a runtime's thread a task that has used up its turn would be woken by the runtime, which waits for this.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

const _: () = assert!(UNSYNCED_BYTES_MAX < POOL_BYTES);
