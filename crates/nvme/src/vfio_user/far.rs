//! The data of one command when some of it, or a list of where it lies, is far: moved by asking, at any time the next few bytes.

use std::sync::Arc;

use forebay_mem::{Buf, BufMut, CopySite, PAGE_BYTES, count_copy};
use forebay_proto::nvme::kv::head;
use forebay_proto::nvme::{Status, SubmissionQueueEntry};

use super::asking::Asker;
use super::memory::Direction;
use super::payload::Held;
use super::transfer::{Walk, descriptors_max};

/// Bytes that are asked for before there is a buffer for more: few enough to be kept for every command.
const FIRST_BYTES: usize = PAGE_BYTES;

/// What a command has data for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) direction: Direction,
    /// How many bytes, but for a key.
    pub(super) bytes: u64,
    /// In front of them are a key and its length.
    pub(super) headed: bool,
    /// More is refused.
    pub(super) bytes_max: u64,
}

impl Wanted {
    /// Bytes of all, where the key is said to have so many.
    pub(super) fn with_key(&self, length: [u8; head::LENGTH_BYTES]) -> Result<u64, Status> {
        let key = head::key_len(length)? as u64;
        Ok(head::LENGTH_BYTES as u64 + key + self.bytes)
    }

    /// The most bytes of all.
    fn most(&self) -> u64 {
        let key = if self.headed {
            head::BYTES_MAX as u64
        } else {
            0
        };
        self.bytes.saturating_add(key).min(self.bytes_max)
    }

    /// That many bytes, unless they are too many.
    pub(super) fn bounded(&self, bytes: u64) -> Result<u64, Status> {
        match bytes > self.bytes_max {
            true => Err(Status::INVALID_FIELD),
            false => Ok(bytes),
        }
    }
}

/// Data of one command, by addresses.
pub(super) struct Far {
    asker: Asker,
    /// Where to find it; nothing once it was found.
    search: Option<(SubmissionQueueEntry, Wanted)>,
    /// Where it lies, in order, and how many bytes.
    runs: Arc<[(u64, u64)]>,
    len: u64,
    /// The run that the next byte lies in, and where.
    run: usize,
    offset: u64,
    /// Bytes before that, which were read and not taken.
    early: Vec<u8>,
    /// It was near, and where it lies counts as it did then.
    _held: Option<Held>,
}

impl Far {
    /// What is yet to be [located](Far::locate).
    pub(super) fn new(asker: Asker, entry: SubmissionQueueEntry, wanted: Wanted) -> Far {
        Far {
            search: Some((entry, wanted)),
            ..Far::at(asker, Arc::new([]), None)
        }
    }

    /// What lies there.
    pub(super) fn at(asker: Asker, runs: Arc<[(u64, u64)]>, held: Option<Held>) -> Far {
        Far {
            asker,
            search: None,
            len: runs.iter().map(|run| run.1).sum(),
            runs,
            run: 0,
            offset: 0,
            early: Vec::new(),
            _held: held,
        }
    }

    /// Bytes of all.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The most that it takes in memory, in bytes: of data, and of the list of where that lies.
    pub(super) fn most(&self) -> (u64, u64) {
        let (bytes, pieces) = match &self.search {
            Some((_, wanted)) => (wanted.most(), descriptors_max(wanted.most())),
            None => (self.len, self.runs.len()),
        };
        (bytes, (pieces * size_of::<(u64, u64)>()) as u64)
    }

    /// Finds out where it lies, and that all of it can be reached.
    pub(super) async fn locate(&mut self) -> Result<(), Status> {
        let Some((entry, wanted)) = self.search.take() else {
            return Ok(());
        };
        let bytes = match wanted.headed {
            false => wanted.bytes,
            true => {
                // How long the key is stands in front of it; whoever reads it once more finds no more bytes than there are.
                self.walk(&entry, head::LENGTH_BYTES as u64).await?;
                let mut length = [0; head::LENGTH_BYTES];
                self.read(&mut length).await?;
                wanted.with_key(length)?
            }
        };
        self.walk(&entry, wanted.bounded(bytes)?).await?;
        let checked = self.asker.check(self.runs.clone(), wanted.direction);
        Ok(checked.await?)
    }

    async fn walk(&mut self, entry: &SubmissionQueueEntry, len: u64) -> Result<(), Status> {
        let mut runs = Vec::new();
        if len > 0 {
            let mut find = |address, len| {
                runs.push((address, len));
                Ok::<(), Status>(())
            };
            let mut walk = Walk::new(entry, len, &mut find)?;
            let mut page = Vec::new();
            while let Some((address, len)) = walk.list() {
                page.resize(len, 0);
                self.asker.read(address, &mut page).await?;
                walk.take(&page, &mut find)?;
            }
            walk.finish(&mut find)?;
        }
        self.runs = runs.into();
        self.len = len;
        self.turn();
        Ok(())
    }

    /// Where the next bytes lie, at most `len` side by side. They are taken by this.
    fn next(&mut self, len: usize) -> Option<(u64, usize)> {
        let &(address, bytes) = self.runs.get(self.run)?;
        let rest = bytes - self.offset;
        let len = rest.min(len as u64);
        let address = address.wrapping_add(self.offset);
        if len == rest {
            self.run += 1;
            self.offset = 0;
        } else {
            self.offset += len;
        }
        Some((address, len as usize))
    }

    /// Asks for the first of the next bytes.
    pub(super) async fn ready(&mut self) -> Result<(), Status> {
        if self.early.is_empty()
            && let Some((address, len)) = self.next(FIRST_BYTES)
        {
            let mut early = vec![0; len];
            self.asker.read(address, &mut early).await?;
            self.early = early;
        }
        Ok(())
    }

    async fn read(&mut self, into: &mut [u8]) -> Result<(), Status> {
        let mut done = into.len().min(self.early.len());
        for (to, from) in into.iter_mut().zip(self.early.drain(..done)) {
            *to = from;
        }
        while done < into.len() {
            let next = self.next(into.len() - done);
            let (address, len) = next.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
            let room = &mut into[done..done + len];
            self.asker.read(address, room).await?;
            done += len;
        }
        Ok(())
    }

    /// Appends the next `len` bytes to `into`, which has room for them.
    pub(super) async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        self.read(&mut into.spare()[..len]).await?;
        into.set_len(into.len() + len);
        count_copy(CopySite::ReadFrom, len);
        Ok(())
    }

    /// All of it.
    pub(super) async fn take(&mut self) -> Result<Vec<u8>, Status> {
        self.locate().await?;
        // An admin command's, of a few pages at most.
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes).await?;
        Ok(bytes)
    }

    /// What is given from now on goes to the start.
    pub(super) fn turn(&mut self) {
        (self.run, self.offset) = (0, 0);
        self.early = Vec::new();
    }

    /// What was read early and not taken is where the next bytes go: all of it in one run.
    fn give_back_early(&mut self) {
        let early = std::mem::take(&mut self.early).len() as u64;
        if early == 0 {
            return;
        }
        if self.offset == 0 {
            self.run -= 1;
            self.offset = self.runs[self.run].1;
        }
        self.offset -= early;
    }

    /// Gives the next bytes.
    pub(super) async fn send(&mut self, buf: &Buf) -> Result<(), Status> {
        self.give_back_early();
        let mut done = 0;
        while done < buf.len() {
            let next = self.next(buf.len() - done);
            let (address, len) = next.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
            let piece = buf.slice(done..done + len);
            self.asker.write(address, &piece).await?;
            done += len;
        }
        count_copy(CopySite::RetrieveInto, buf.len());
        Ok(())
    }
}
