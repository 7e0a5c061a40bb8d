//! Room for values: what the allocator has, what was freed and is on its way back to it, and what there is room for at all.

use forebay_io::Disk;
use forebay_store::{ErrorKind, StoreError};

use crate::Result;
use crate::command::Command;
use crate::core::Core;
use crate::extent::Run;

impl<D: Disk> Core<D> {
    /// Takes a run of at most `most` granules. What was freed by changes that were answered early nobody gets before they are durable: where
    /// nothing else is left they are made so at once.
    pub async fn find_space(&self, most: u32) -> Result<Run> {
        let (run, _) = match self.take_space(1, most) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.submit(Command::Settle).await?;
                self.take_space(1, most)?
            }
            taken => taken?,
        };
        Ok(run)
    }

    /// Refuses a value that certainly has no room, also once what was answered early is durable.
    pub async fn find_room(&self, size: u64) -> Result<()> {
        match self.check_room(size) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.submit(Command::Settle).await?;
                self.check_room(size)
            }
            checked => checked,
        }
    }

    fn check_room(&self, size: u64) -> Result<()> {
        let mut usage = self.space.usage();
        if size > usage.free_bytes {
            self.collect();
            usage = self.space.usage();
        }
        if size <= usage.free_bytes {
            return Ok(());
        }
        let free = self.disk.free_bytes().map_err(|error| {
            StoreError::new(ErrorKind::Io, "the file system failed").with_source(error)
        })?;
        let room = free
            .saturating_sub(self.config.reserve_bytes)
            .min(self.config.capacity_bytes.saturating_sub(usage.total_bytes));
        if size - usage.free_bytes > room.saturating_add(usage.doubtful_bytes) {
            self.handoff.look_for_room();
            return Err(StoreError::new(
                ErrorKind::NoSpace,
                "no space left for the value",
            ));
        }
        Ok(())
    }

    /// Takes a run of at most `most` and at least `least` granules, and tells whether it is new space of the file. What was freed a moment
    /// ago may not have come back yet: that is looked for before there is none.
    pub fn take_space(&self, least: u32, most: u32) -> Result<(Run, bool)> {
        match self.space.take(&self.disk, least, most) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.collect();
                let taken = self.space.take(&self.disk, least, most);
                if taken.is_err() {
                    self.handoff.look_for_room();
                }
                taken
            }
            taken => taken,
        }
    }

    /// Gives runs back to which nothing came to refer; some of them could not be written.
    pub fn let_go(&self, runs: impl IntoIterator<Item = Run>, suspect: &[Run]) {
        for run in runs {
            match suspect.contains(&run) {
                true => self.space.put_suspect(run),
                false => self.space.put(run),
            }
        }
    }

    /// Makes freed runs that nobody reads any more available.
    pub fn collect(&self) {
        for run in self.reclaim.collect() {
            self.space.put(run);
        }
    }
}
