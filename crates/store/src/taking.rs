//! Bytes out of memory that a peer may also touch, summed on their way.

use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{BufMut, CopySite, RegionSlice, count_copy};

use crate::Result;
use crate::store::source_gone;

/// Takes what an upload reads out of a client's registered memory, one buffer after the other, and sums it in the same pass.
///
/// The sums are of what was taken: a client that changes its memory meanwhile changes both.
#[derive(Debug)]
pub struct Taking {
    source: RegionSlice,
    at: usize,
}

impl Taking {
    /// All of `source`.
    pub fn new(source: RegionSlice) -> Taking {
        Taking { source, at: 0 }
    }

    /// Bytes still to come.
    pub fn left(&self) -> usize {
        self.source.len() - self.at
    }

    /// Fills `buf` with what comes next, as far as there is, and goes on with its CRC-64/NVME `whole`; counts what it copied.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the owner of the memory took its pages away.
    pub fn fill(&mut self, buf: &mut BufMut, whole: &mut Digest) -> Result<()> {
        self.reserve(buf);
        self.take(buf, whole, None)
    }

    /// The same, telling `each` the CRC32C of every `block_bytes` of the buffer and of what is left then.
    ///
    /// # Errors
    /// As [`Taking::fill`].
    pub fn fill_blocks(
        &mut self,
        buf: &mut BufMut,
        whole: &mut Digest,
        block_bytes: usize,
        mut each: impl FnMut(u32),
    ) -> Result<()> {
        self.reserve(buf);
        for bytes in buf.chunks_mut(block_bytes) {
            let mut block = Digest::new(CrcAlgorithm::Crc32Iscsi);
            self.take(bytes, whole, Some(&mut block))?;
            each(block.finalize() as u32);
        }
        Ok(())
    }

    /// Makes room for what comes next.
    fn reserve(&self, buf: &mut BufMut) {
        buf.set_len(self.left().min(buf.capacity()));
    }

    fn take(
        &mut self,
        into: &mut [u8],
        whole: &mut Digest,
        block: Option<&mut Digest>,
    ) -> Result<()> {
        if !self.source.read_summed(self.at, into, whole, block) {
            return Err(source_gone());
        }
        count_copy(CopySite::ReadFrom, into.len());
        self.at += into.len();
        Ok(())
    }
}
