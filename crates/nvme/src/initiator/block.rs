//! A namespace of blocks.

use std::time::Duration;

use bytes::Bytes;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::nvm::{Blocks, DsmRange, NvmCommand};

use super::controller::{Completion, Controller, Repeat, Terms};
use super::data::{Data, Sink, Source};
use super::identify::BlockInfo;
use super::{Error, Result};

/// Blocks of one command, at most (NLB is 16 bits, 0's based).
const BLOCKS_MAX: u64 = 1 << 16;
/// Ranges of one Dataset Management, at most.
const RANGES_MAX: usize = 256;

/// A namespace of blocks. Cloning shares it.
#[derive(Debug, Clone)]
pub struct BlockNamespace {
    controller: Controller,
    nsid: u32,
    info: BlockInfo,
    shift: u32,
    transfer_bytes_max: u64,
    volatile: bool,
}

impl BlockNamespace {
    pub(super) fn new(
        controller: Controller,
        nsid: u32,
        info: BlockInfo,
    ) -> Result<BlockNamespace> {
        let about = controller.info()?;
        let shift = info.block_bytes.trailing_zeros();
        let most = about.transfer_bytes_max.unwrap_or(u64::MAX);
        Ok(BlockNamespace {
            nsid,
            info,
            shift,
            transfer_bytes_max: most
                .min(BLOCKS_MAX << shift)
                .min(u64::from(u32::MAX >> shift << shift)),
            volatile: about.volatile_write_cache,
            controller,
        })
    }

    /// Its controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Its number.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// What it is.
    pub fn info(&self) -> &BlockInfo {
        &self.info
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.info.blocks << self.shift
    }

    /// The most bytes of one read, write or compare.
    pub fn transfer_bytes_max(&self) -> u64 {
        self.transfer_bytes_max
    }

    /// Whether what was written may be lost before it is flushed.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Reads blocks from `first` on until `into` is full; its length is that of whole blocks.
    ///
    /// # Errors
    /// See [`Error`]. The memory is in the outcome either way.
    pub async fn read(&self, first: u64, into: Sink) -> (Result<Completion>, Sink) {
        self.read_with_patience(first, into, self.controller.patience())
            .await
    }

    pub(super) async fn read_with_patience(
        &self,
        first: u64,
        into: Sink,
        patience: Option<Duration>,
    ) -> (Result<Completion>, Sink) {
        let bytes = into.len();
        let blocks = match self.blocks(bytes, first) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), into),
        };
        let command = NvmCommand::Read { blocks };
        let (done, data) = self.make(&command, Data::In(into), patience).await;
        let Data::In(into) = data else {
            return (done, Sink::Bytes(Vec::new()));
        };
        let done = done.and_then(|done| match done.received == bytes {
            true => Ok(done),
            false => Err(Error::protocol(
                "a read succeeded with less than all blocks",
            )),
        });
        (done, into)
    }

    /// Writes whole blocks from `first` on. `durable`: they are on stable storage when it succeeds (Force Unit Access).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn write(
        &self,
        first: u64,
        from: impl Into<Source>,
        durable: bool,
    ) -> Result<Completion> {
        self.write_with_patience(first, from.into(), durable, self.controller.patience())
            .await
    }

    pub(super) async fn write_with_patience(
        &self,
        first: u64,
        from: Source,
        durable: bool,
        patience: Option<Duration>,
    ) -> Result<Completion> {
        let blocks = self.blocks(from.len(), first)?;
        let command = NvmCommand::Write {
            blocks,
            fua: durable,
        };
        self.make(&command, Data::Out(from), patience).await.0
    }

    /// Compares whole blocks from `first` on with these bytes; whether they are the same.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn compare(&self, first: u64, with: impl Into<Source>) -> Result<bool> {
        let with = with.into();
        let blocks = self.blocks(with.len(), first)?;
        let command = NvmCommand::Compare { blocks };
        match self
            .make(&command, Data::Out(with), self.controller.patience())
            .await
            .0
        {
            Ok(_) => Ok(true),
            Err(Error::Status(status)) if status.code() == Status::COMPARE_FAILURE => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes all writes durable that succeeded before.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&self) -> Result<Completion> {
        self.flush_with_patience(self.controller.patience()).await
    }

    pub(super) async fn flush_with_patience(
        &self,
        patience: Option<Duration>,
    ) -> Result<Completion> {
        self.make(&NvmCommand::Flush, Data::None, patience).await.0
    }

    /// Writes zeroes to `count` blocks from `first` on. `deallocate`: they need keep no space.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn write_zeroes(&self, first: u64, count: u64, deallocate: bool) -> Result<()> {
        self.check(first, count)?;
        let mut done = 0;
        while done < count {
            let step = (count - done).min(BLOCKS_MAX);
            let command = NvmCommand::WriteZeroes {
                blocks: Blocks {
                    first: first + done,
                    count: step as u32,
                },
                deallocate,
                fua: false,
            };
            let patience = self.controller.patience();
            self.make(&command, Data::None, patience).await.0?;
            done += step;
        }
        Ok(())
    }

    /// Says that the contents of these ranges (first block, count) are not needed any more.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn deallocate(&self, ranges: &[(u64, u32)]) -> Result<()> {
        for some in ranges.chunks(RANGES_MAX) {
            let mut payload = Vec::with_capacity(some.len() * DsmRange::BYTES);
            for &(first, count) in some {
                self.check(first, count.into())?;
                payload.extend_from_slice(&DsmRange { first, count }.encode());
            }
            let command = NvmCommand::DatasetManagement {
                ranges: some.len() as u16,
                deallocate: true,
            };
            let payload = Source::Buf(Bytes::from(payload).into());
            let patience = self.controller.patience();
            self.make(&command, Data::Out(payload), patience).await.0?;
        }
        Ok(())
    }

    async fn make(
        &self,
        command: &NvmCommand,
        data: Data,
        patience: Option<Duration>,
    ) -> (Result<Completion>, Data) {
        let entry = command.entry(0, self.nsid);
        let terms = Terms {
            repeat: Repeat::Safe,
            patience,
            value_behind: None,
        };
        self.controller.io_on(entry, data, terms).await
    }

    fn check(&self, first: u64, count: u64) -> Result<()> {
        match first.checked_add(count) {
            Some(end) if end <= self.info.blocks && count > 0 => Ok(()),
            _ => Err(Error::invalid(format!(
                "{count} blocks from {first} of {}",
                self.info.blocks
            ))),
        }
    }

    fn blocks(&self, bytes: u64, first: u64) -> Result<Blocks> {
        if bytes > self.transfer_bytes_max || bytes & u64::from(self.info.block_bytes - 1) != 0 {
            return Err(Error::invalid(format!(
                "{bytes} bytes are not whole blocks of one command"
            )));
        }
        let count = bytes >> self.shift;
        self.check(first, count)?;
        Ok(Blocks {
            first,
            count: count as u32,
        })
    }
}
