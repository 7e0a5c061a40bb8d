//! A file that is memory of this process, and gone with it.

use std::future::ready;
use std::io;

use forebay_mem::{Buf, BufMut, Region, RegionSlice};

use crate::{File, Hold};

/// Zeroes are written so many at a time.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A file of a fixed length, until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct MemoryFile(RegionSlice);

impl MemoryFile {
    /// So many zeroes.
    pub(super) fn new(len: u64) -> io::Result<MemoryFile> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let region = Region::anonymous(len)?;
        region.prefer_huge_pages();
        let whole = region.slice(0..len);
        whole
            .map(MemoryFile)
            .ok_or(io::ErrorKind::OutOfMemory.into())
    }

    /// As much as there is of `len` bytes.
    fn part(&self, offset: u64, len: usize) -> Option<RegionSlice> {
        let all = self.0.len();
        let begin = usize::try_from(offset).map_or(all, |at| at.min(all));
        self.0.slice(begin..all.min(begin.checked_add(len)?))
    }

    /// All of `len` bytes.
    fn whole(&self, offset: u64, len: usize) -> Option<RegionSlice> {
        self.part(offset, len).filter(|part| part.len() == len)
    }

    fn put(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let into = self.whole(offset, from.len());
        let into = into.ok_or(io::ErrorKind::StorageFull)?;
        match into.write(0, from) {
            true => Ok(()),
            false => Err(io::ErrorKind::Other.into()),
        }
    }
}

impl File for MemoryFile {
    fn read_at(
        &self,
        offset: u64,
        mut into: BufMut,
        len: usize,
    ) -> impl Future<Output = (io::Result<()>, BufMut)> + Send {
        into.set_len(0);
        let from = self.part(offset, len).filter(|_| len <= into.capacity());
        let read = match from {
            Some(from) if from.read(0, &mut into.spare()[..from.len()]) => {
                into.set_len(from.len());
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        ready((read, into))
    }

    fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        _hold: Hold,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        ready(match self.part(offset, into.len()) {
            Some(from) if from.copy_to(&into) => Ok(from.len()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        })
    }

    fn write_at(&self, offset: u64, from: Buf) -> impl Future<Output = io::Result<()>> + Send {
        ready(self.put(offset, &from))
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self.whole(offset, into.len()) {
            Some(from) if from.read(0, into) => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.put(offset, from)
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        for (mut at, bufs) in places {
            for buf in bufs {
                self.put(at, &buf)?;
                at += buf.len() as u64;
            }
        }
        Ok(())
    }

    /// It is as durable as it gets.
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len() as u64 => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn held_bytes(&self) -> io::Result<u64> {
        self.len()
    }

    /// No other process has it.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.0.len() as u64);
        let mut at = offset;
        while at < end {
            let step = (end - at).min(ZEROES.len() as u64);
            self.put(at, &ZEROES[..step as usize])?;
            at += step;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match len == self.0.len() as u64 {
            true => Ok(()),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
