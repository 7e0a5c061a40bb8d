//! The namespace, read and written by bytes.

use std::io;

use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, CopySite, Pool, RegionSlice, count_copy};
use parking_lot::Mutex;

use super::threads::Threads;
use super::unsynced::Unsynced;
use crate::initiator::block::BlockNamespace;
use crate::initiator::data::{Hold, Sink, Source};

/// Buffers for what is not whole blocks, and of blocking calls.
const POOL_BYTES: usize = 16 << 20;
/// Data that is written and not synced, at most.
const UNSYNCED_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(UNSYNCED_BYTES_MAX < POOL_BYTES);

pub(super) struct Remote {
    pub(super) namespace: BlockNamespace,
    block_bytes: usize,
    pool: Pool,
    /// Taken to write again what may be lost; shared by all other writes.
    gate: tokio::sync::RwLock<()>,
    /// Taken while blocks are changed in part.
    edges: tokio::sync::Mutex<()>,
    /// Taken while what is unsynced is synced because there is much of it.
    relieving: tokio::sync::Mutex<()>,
    unsynced: Mutex<Unsynced>,
    pub(super) threads: Threads,
}

impl Remote {
    pub(super) fn new(namespace: BlockNamespace, threads: Threads) -> Remote {
        Remote {
            block_bytes: namespace.info().block_bytes as usize,
            namespace,
            pool: Pool::new(POOL_BYTES),
            gate: tokio::sync::RwLock::default(),
            edges: tokio::sync::Mutex::default(),
            relieving: tokio::sync::Mutex::default(),
            unsynced: Mutex::default(),
            threads,
        }
    }

    /// Whether there is space for this.
    pub(super) fn check(&self, offset: u64, len: u64) -> io::Result<()> {
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

    pub(super) async fn read_at(
        &self,
        offset: u64,
        into: BufMut,
        len: usize,
    ) -> (io::Result<()>, BufMut) {
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

    pub(super) async fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
    ) -> io::Result<usize> {
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
            let at = offset + done as u64;
            let len = self.bounceable(at, wanted - done);
            let (skip, bytes) = self.bounced(at, len).await?;
            if !into.write(done, &bytes[skip..skip + len]) {
                return Err(io::Error::other("memory that is read into is gone"));
            }
            count_copy(CopySite::ReadBounce, len);
            done += len;
        }
        Ok(wanted)
    }

    /// How many of `len` bytes at `offset` lie in blocks that one command moves. More is moved by several, one after the other: a call that
    /// holds a buffer of the pool while it waits for the next one may wait for others that do the same.
    fn bounceable(&self, offset: u64, len: usize) -> usize {
        let skip = (offset % self.block_bytes as u64) as usize;
        let most = self.step().min(BLOCK_MAX_BYTES / 2);
        let whole = (most - most % self.block_bytes).max(self.block_bytes);
        len.min(whole - skip)
    }

    /// The blocks that hold what is [`bounceable`](Remote::bounceable), and where in them it begins.
    async fn bounced(&self, offset: u64, len: usize) -> io::Result<(usize, Buf)> {
        let skip = (offset % self.block_bytes as u64) as usize;
        let covered = (skip + len).next_multiple_of(self.block_bytes);
        let sink = Sink::Buf(self.pool.take(covered).await, covered);
        let (done, sink) = self.namespace.read(self.block(offset), sink).await;
        done?;
        match sink {
            Sink::Buf(buf, _) => Ok((skip, buf.freeze())),
            _ => Err(io::Error::other("the memory of a read is gone")),
        }
    }

    pub(super) async fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if self.available(offset, into.len()) < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let len = self.bounceable(at, into.len() - done);
            let (skip, bytes) = self.bounced(at, len).await?;
            into[done..done + len].copy_from_slice(&bytes[skip..skip + len]);
            done += len;
        }
        Ok(())
    }

    pub(super) async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        self.check(offset, from.len() as u64)?;
        if self.is_whole(offset, from.len()) {
            return self.write_blocks(self.block(offset), from).await;
        }
        self.write_odd(offset, &from).await
    }

    pub(super) async fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
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

    /// Writes what is not whole blocks, one command's after the other.
    async fn write_odd(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let _edges = self.edges.lock().await;
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let len = self.bounceable(at, from.len() - done);
            self.write_part(at, &from[done..done + len]).await?;
            self.relieve().await?;
            done += len;
        }
        Ok(())
    }

    /// Reads the blocks that hold this, changes them and writes them.
    async fn write_part(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let block = self.block(offset);
        let skip = (offset % self.block_bytes as u64) as usize;
        let covered = (skip + from.len()).next_multiple_of(self.block_bytes);
        loop {
            let sink = Sink::Buf(self.pool.take(covered).await, covered);
            let shared = self.gate.read().await;
            let (read, sink) = self.namespace.read_with_patience(block, sink, None).await;
            let association = read?.association;
            let Sink::Buf(mut buf, _) = sink else {
                return Err(io::Error::other("the memory of a read is gone"));
            };
            if self.unsynced.lock().are_of(association) {
                buf[skip..skip + from.len()].copy_from_slice(from);
                return self.write_shared(block, buf.freeze()).await;
            }
            // What was read may lack what the target has forgotten.
            drop((shared, buf));
            let last = self.unsynced.lock().number;
            self.write_again(last, association).await?;
        }
    }

    async fn write_blocks(&self, block: u64, from: Buf) -> io::Result<()> {
        {
            let _shared = self.gate.read().await;
            self.write_shared(block, from).await?;
        }
        self.relieve().await
    }

    /// Writes whole blocks, for whoever shares the gate.
    async fn write_shared(&self, block: u64, from: Buf) -> io::Result<()> {
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
        Ok(())
    }

    /// Syncs when there is much that is not.
    async fn relieve(&self) -> io::Result<()> {
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
    pub(super) async fn sync(&self) -> io::Result<()> {
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
