//! An open file of the simulated disk.

use std::future::Future;
use std::io;
use std::sync::Arc;

use forebay_mem::{Buf, BufMut, PAGE_BYTES, RegionSlice};
use parking_lot::Mutex;

use super::{Kind, World};
use crate::{File, Hold, OpenOptions};

/// Turns of the executor that asynchronous I/O takes at most.
const TURNS_MAX: u64 = 3;

/// An open file of a [`SimDisk`](super::SimDisk).
#[derive(Debug, Clone)]
pub struct SimFile {
    world: Arc<Mutex<World>>,
    index: usize,
    options: OpenOptions,
}

impl SimFile {
    pub(super) fn new(world: Arc<Mutex<World>>, index: usize, options: OpenOptions) -> SimFile {
        SimFile {
            world,
            index,
            options,
        }
    }

    /// How many turns come before and after the effect.
    fn turns(&self) -> (u64, u64) {
        let rng = &mut self.world.lock().rng;
        let all = 1 + rng.below(TURNS_MAX);
        let before = rng.below(all + 1);
        (before, all - before)
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let page = PAGE_BYTES as u64;
        let aligned = offset.is_multiple_of(page) && (len as u64).is_multiple_of(page);
        if (self.options.direct && !aligned) || offset.checked_add(len as u64).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.options.read_only {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            Ok(())
        }
    }
}

async fn pass(turns: u64) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

impl File for SimFile {
    fn read_at(
        &self,
        offset: u64,
        mut into: BufMut,
        len: usize,
    ) -> impl Future<Output = (io::Result<()>, BufMut)> + Send {
        let file = self.clone();
        async move {
            into.set_len(0);
            if len > into.capacity() {
                return (Err(io::ErrorKind::InvalidInput.into()), into);
            }
            if let Err(error) = file.check(offset, len) {
                return (Err(error), into);
            }
            let (before, after) = file.turns();
            pass(before).await;
            let room = &mut into.spare()[..len];
            let result = file.world.lock().read(file.index, offset, room);
            let result = result.map(|filled| into.set_len(filled));
            pass(after).await;
            (result, into)
        }
    }

    fn read_into(
        &self,
        offset: u64,
        into: RegionSlice,
        hold: Hold,
    ) -> impl Future<Output = io::Result<usize>> + Send {
        let file = self.clone();
        async move {
            file.check(offset, into.len())?;
            let (before, after) = file.turns();
            pass(before).await;
            let mut read = vec![0; into.len()];
            let result = file.world.lock().read(file.index, offset, &mut read);
            // What a device read before it failed may have landed.
            into.write(0, &read);
            pass(after).await;
            drop(hold);
            result
        }
    }

    fn write_at(&self, offset: u64, from: Buf) -> impl Future<Output = io::Result<()>> + Send {
        let file = self.clone();
        async move {
            file.check_writable()?;
            file.check(offset, from.len())?;
            let (before, after) = file.turns();
            pass(before).await;
            let result = file.world.lock().write(file.index, offset, &from);
            pass(after).await;
            result
        }
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let filled = self.world.lock().read(self.index, offset, into)?;
        if filled < into.len() {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(())
        }
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        offset
            .checked_add(from.len() as u64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        self.world.lock().write(self.index, offset, from)
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        let mut written = Ok(());
        for (mut at, bufs) in places {
            for buf in bufs {
                // Each is on its way already when another fails.
                written = written.and(self.write_all_at(at, &buf));
                at += buf.len() as u64;
            }
        }
        written
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        let was_powered = world.powered;
        let may = world.begin(Kind::Sync);
        let World {
            rng,
            inodes,
            powered,
            ..
        } = &mut *world;
        let inode = &mut inodes[self.index];
        match may {
            Ok(()) => inode.sync(),
            // Power loss is told by `crash`; an error is told here.
            Err(_) if was_powered && *powered => inode.fail_sync(rng),
            Err(_) => {}
        }
        may
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut world = self.world.lock();
        world.begin(Kind::Resize)?;
        world.take_space(self.index, offset, len)?;
        if end > world.inodes[self.index].current.len() {
            world.set_len(self.index, end);
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut world = self.world.lock();
        world.begin(Kind::Resize)?;
        world.punch(self.index, offset, len);
        Ok(())
    }

    fn held_bytes(&self) -> io::Result<u64> {
        Ok(self.world.lock().inodes[self.index].space.bytes())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.world.lock().inodes[self.index].current.len())
    }

    /// Nothing here outlives whoever has the disk.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut world = self.world.lock();
        world.begin(Kind::Resize)?;
        world.set_len(self.index, len);
        Ok(())
    }
}
