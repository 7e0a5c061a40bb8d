//! Blocks of a file or device.

use std::sync::Arc;

use forebay_io::{File, Hold};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, BufMut, PAGE_BYTES, Pool};
use forebay_proto::nvme::nvm::{self, DsmRange, NvmCommand};
use forebay_proto::nvme::{NamespaceKind, Status};
use tokio::sync::{Mutex, RwLock};

use super::Payload;
use super::landing::{UnderWay, Whose};
use super::status::{of_change, of_read};
use super::syncs::Syncs;

/// A file seen as blocks. What does not fill a block at its end is left out.
#[derive(Debug)]
pub(super) struct Blocks<F> {
    file: F,
    lba_shift: u8,
    read_only: bool,
    blocks: u64,
    order: Order,
    syncs: Syncs,
    hold: Hold,
}

/// What keeps changes of the blocks apart; it outlives what is shown of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    /// Held alone by a fused operation, shared by every other that changes blocks.
    gate: Arc<RwLock<()>>,
    under_way: UnderWay,
    /// Held while space is let go of: hosts that ask for that often take one of the threads that block, and not all of them.
    punching: Arc<Mutex<()>>,
}

/// The longest fused operation, many times what a host locks with (ACWU is a block): a host that begins one and does not send its data
/// holds the buffer of all three: what is there, what that is compared with, and what is written.
const FUSED_BYTES_MAX: u64 = 64 << 10;
/// What is compared at once: what is there and what the host sends lie in one buffer. Whoever held one buffer while it waited for another
/// might wait for ever for others that do the same.
const COMPARED_BYTES_MAX: usize = BLOCK_MAX_BYTES / 2;

/// The half of a fused operation that failed, and how; the other one is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    First(Status),
    Second(Status),
}

/// A half-open range of bytes.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    at: u64,
    left: u64,
}

impl Bytes {
    /// The next piece that one buffer holds.
    fn next(&mut self) -> Option<(u64, usize)> {
        self.next_within(BLOCK_MAX_BYTES)
    }

    /// The next piece, of so many bytes at most.
    fn next_within(&mut self, most: usize) -> Option<(u64, usize)> {
        let len = self.left.min(most as u64) as usize;
        let at = self.at;
        self.at += len as u64;
        self.left -= len as u64;
        (len > 0).then_some((at, len))
    }
}

impl<F: File> Blocks<F> {
    pub(super) fn new(file: F, lba_shift: u8, read_only: bool, order: Order) -> Blocks<F> {
        // A file whose length cannot be had has no blocks.
        let blocks = file.len().map_or(0, |len| len >> lba_shift);
        Blocks {
            file,
            lba_shift,
            read_only,
            blocks,
            order,
            syncs: Syncs::default(),
            hold: Arc::new(()),
        }
    }

    pub(super) fn order(&self) -> &Order {
        &self.order
    }

    /// Waits for changes of a host that are with the device, those of commands that were given up among them.
    pub(super) async fn settled(&self, whose: &Whose) {
        self.order.under_way.settled(Some(whose)).await;
    }

    pub(super) fn kind(&self) -> NamespaceKind {
        NamespaceKind::Block {
            lba_shift: self.lba_shift,
            blocks: self.blocks,
            read_only: self.read_only,
        }
    }

    fn bytes(&self, blocks: nvm::Blocks) -> Bytes {
        Bytes {
            at: blocks.first << self.lba_shift,
            left: u64::from(blocks.count) << self.lba_shift,
        }
    }

    pub(super) async fn execute(
        &self,
        pool: &Pool,
        whose: &Whose,
        command: &NvmCommand,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        match *command {
            NvmCommand::Read { blocks } => self.read(pool, self.bytes(blocks), payload).await?,
            // A future is moved into its place whole, and a read's is short.
            NvmCommand::Write { blocks, fua } => {
                Box::pin(self.write(pool, whose, self.bytes(blocks), fua, payload)).await?
            }
            // The others are seldom: they need no place in the future of every command.
            command => Box::pin(self.execute_seldom(pool, whose, command, payload)).await?,
        }
        Ok(0)
    }

    async fn execute_seldom(
        &self,
        pool: &Pool,
        whose: &Whose,
        command: NvmCommand,
        payload: &mut impl Payload,
    ) -> Result<(), Status> {
        match command {
            NvmCommand::Flush => self.flush().await,
            NvmCommand::Compare { blocks } => self.compare(pool, self.bytes(blocks), payload).await,
            NvmCommand::WriteZeroes {
                blocks,
                deallocate,
                fua,
            } => {
                let bytes = self.bytes(blocks);
                if !(deallocate && self.punch(whose, bytes).await?) {
                    self.zero(pool, whose, bytes).await?;
                }
                match fua {
                    true => self.flush().await,
                    false => Ok(()),
                }
            }
            NvmCommand::DatasetManagement { ranges, deallocate } => {
                self.manage(pool, whose, ranges, deallocate, payload).await
            }
            NvmCommand::Verify { blocks } => self.verify(pool, self.bytes(blocks)).await,
            // Executed where they came from.
            NvmCommand::Read { .. } | NvmCommand::Write { .. } => Err(Status::INTERNAL_ERROR),
        }
    }

    /// Compare, and only when that holds Write; nothing else changes blocks meanwhile. Tells which half failed.
    pub(super) async fn compare_and_write(
        &self,
        pool: &Pool,
        whose: &Whose,
        blocks: nvm::Blocks,
        fua: bool,
        compare: &mut impl Payload,
        write: &mut impl Payload,
    ) -> Result<(), Half> {
        let (first, second) = (Half::First, Half::Second);
        let Bytes { at, left } = self.bytes(blocks);
        if left > FUSED_BYTES_MAX {
            return Err(first(Status::ATOMIC_WRITE_UNIT_EXCEEDED));
        }
        let len = left as usize;
        // All that the host has a part in comes first: one that keeps its data back must not keep others from their blocks.
        compare.ready().await.map_err(first)?;
        let front = front(len);
        let mut all = pool.take(front + 2 * len).await;
        all.set_len(front);
        append(compare, &mut all, len).await.map_err(first)?;
        write.ready().await.map_err(second)?;
        append(write, &mut all, len).await.map_err(second)?;
        let alone = self.order.gate.write().await;
        self.order.under_way.settled(None).await;
        let mut all = self.read_front(all, at, len).await.map_err(first)?;
        all.set_len(front + 2 * len);
        if all[..len] != all[front..front + len] {
            return Err(first(Status::COMPARE_FAILURE));
        }
        let ours = all.freeze().slice(front + len..front + 2 * len);
        self.put(whose, at, ours).await.map_err(second)?;
        drop(alone);
        match fua {
            true => self.flush().await.map_err(second),
            false => Ok(()),
        }
    }

    async fn read(
        &self,
        pool: &Pool,
        mut bytes: Bytes,
        payload: &mut impl Payload,
    ) -> Result<(), Status> {
        if payload.len() < bytes.left {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        while bytes.left > 0 {
            if let Some(target) = payload.target(bytes.left) {
                let len = target.len();
                let read = self.file.read_into(bytes.at, target, self.hold.clone());
                if read.await.map_err(|error| of_read(&error))? < len {
                    return Err(Status::UNRECOVERED_READ_ERROR);
                }
                bytes.at += len as u64;
                bytes.left = bytes.left.saturating_sub(len as u64);
                continue;
            }
            let Some((at, len)) = bytes.next() else { break };
            let buf = pool.take_cold(len).await;
            payload.send(self.fetch(buf, at, len).await?).await?;
        }
        Ok(())
    }

    async fn fetch(&self, buf: BufMut, at: u64, len: usize) -> Result<Buf, Status> {
        self.read_front(buf, at, len).await.map(BufMut::freeze)
    }

    /// Reads into the front of a buffer.
    async fn read_front(&self, buf: BufMut, at: u64, len: usize) -> Result<BufMut, Status> {
        let (read, buf) = self.file.read_at(at, buf, len).await;
        read.map_err(|error| of_read(&error))?;
        match buf.len() == len {
            true => Ok(buf),
            // The file is shorter than it was.
            false => Err(Status::UNRECOVERED_READ_ERROR),
        }
    }

    async fn write(
        &self,
        pool: &Pool,
        whose: &Whose,
        mut bytes: Bytes,
        fua: bool,
        payload: &mut impl Payload,
    ) -> Result<(), Status> {
        if payload.len() < bytes.left {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        while let Some((at, len)) = bytes.next() {
            payload.ready().await?;
            let mut buf = pool.take(len).await;
            payload.receive(&mut buf, len).await?;
            self.put_shared(whose, at, buf.freeze()).await?;
        }
        match fua {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Changes a piece of blocks. What it holds and waits for it has by now: whoever waited for a buffer, or for its host, behind the gate
    /// would keep fused operations of others waiting, and all behind them. What is atomic is a block (AWUN): fused operations may come
    /// between the pieces of one command.
    async fn put_shared(&self, whose: &Whose, at: u64, buf: Buf) -> Result<(), Status> {
        let _shared = self.order.gate.read().await;
        self.put(whose, at, buf).await
    }

    async fn put(&self, whose: &Whose, at: u64, buf: Buf) -> Result<(), Status> {
        let file = self.file.clone();
        let write = async move { file.write_at(at, buf).await };
        let written = self.order.under_way.make(whose, write).await;
        written.map_err(|error| of_change(&error))
    }

    async fn compare(
        &self,
        pool: &Pool,
        mut bytes: Bytes,
        payload: &mut impl Payload,
    ) -> Result<(), Status> {
        if payload.len() < bytes.left {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        while let Some((at, len)) = bytes.next_within(COMPARED_BYTES_MAX) {
            payload.ready().await?;
            let front = front(len);
            let mut both = pool.take(front + len).await;
            both.set_len(front);
            payload.receive(&mut both, len).await?;
            let mut both = self.read_front(both, at, len).await?;
            both.set_len(front + len);
            if both[..len] != both[front..] {
                return Err(Status::COMPARE_FAILURE);
            }
        }
        Ok(())
    }

    async fn verify(&self, pool: &Pool, mut bytes: Bytes) -> Result<(), Status> {
        while let Some((at, len)) = bytes.next() {
            let buf = pool.take(len).await;
            self.fetch(buf, at, len).await?;
        }
        Ok(())
    }

    async fn zero(&self, pool: &Pool, whose: &Whose, mut bytes: Bytes) -> Result<(), Status> {
        let len = bytes.left.min(BLOCK_MAX_BYTES as u64) as usize;
        let mut buf = pool.take(len).await;
        buf.set_len(len);
        buf.fill(0);
        let zeroes = buf.freeze();
        while let Some((at, len)) = bytes.next() {
            self.put_shared(whose, at, zeroes.slice(0..len)).await?;
        }
        Ok(())
    }

    async fn manage(
        &self,
        pool: &Pool,
        whose: &Whose,
        ranges: u16,
        deallocate: bool,
        payload: &mut impl Payload,
    ) -> Result<(), Status> {
        let len = usize::from(ranges) * DsmRange::BYTES;
        if payload.len() < len as u64 {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        payload.ready().await?;
        let mut buf = pool.take(len).await;
        payload.receive(&mut buf, len).await?;
        let (ranges, _) = buf.as_chunks::<{ DsmRange::BYTES }>();
        let ranges = || ranges.iter().map(DsmRange::decode);
        let inside = |range: &DsmRange| {
            let end = range.first.checked_add(u64::from(range.count));
            end.is_some_and(|end| end <= self.blocks)
        };
        if !ranges().all(|range| inside(&range)) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if !deallocate {
            return Ok(());
        }
        for range in ranges() {
            // A host that says what it does not need any more is not owed that it goes.
            let bytes = Bytes {
                at: range.first << self.lba_shift,
                left: u64::from(range.count) << self.lba_shift,
            };
            self.punch(whose, bytes).await?;
        }
        Ok(())
    }

    /// Lets go of space; false when the file cannot.
    async fn punch(&self, whose: &Whose, bytes: Bytes) -> Result<bool, Status> {
        if bytes.left == 0 {
            return Ok(true);
        }
        let turn = self.order.punching.clone().lock_owned().await;
        let _shared = self.order.gate.read().await;
        let file = self.file.clone();
        let under_way = self.order.under_way.begin(whose);
        let punched = tokio::task::spawn_blocking(move || {
            let punched = file.punch(bytes.at, bytes.left);
            drop((under_way, turn));
            punched
        })
        .await;
        match punched {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(false),
            Ok(Err(error)) => Err(of_change(&error)),
            Err(_) => Err(Status::INTERNAL_ERROR),
        }
    }

    async fn flush(&self) -> Result<(), Status> {
        self.syncs.sync(&self.file).await
    }
}

/// Room at the front of a buffer for `len` bytes of a file. What comes behind it begins on a page: devices take whole ones.
fn front(len: usize) -> usize {
    len.next_multiple_of(PAGE_BYTES)
}

/// Appends the next `len` bytes of the host to `into`.
async fn append(payload: &mut impl Payload, into: &mut BufMut, len: usize) -> Result<(), Status> {
    match payload.len() < len as u64 {
        true => Err(Status::DATA_SGL_LENGTH_INVALID),
        false => payload.receive(into, len).await,
    }
}
