//! Memory through which files go to and from a server by the direct path.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use forebay_mem::HUGE_PAGE_BYTES;
use forebay_proto::direct::Status;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::direct::loans::Use;
use crate::direct::{Client as Direct, Path, Region, Transfer, Window};
use crate::{Client, Crc64, Error, Result};

/// Moved between a file and registered memory at a time: it stays in the second-level cache in between.
const STEP_BYTES: usize = 256 << 10;

/// A direct client and registered memory of a fixed number of equal slots, one for each part in flight.
#[derive(Debug)]
pub struct Staging {
    client: Direct,
    region: Region,
    slot_bytes: usize,
    free: Mutex<Vec<usize>>,
    /// How much of each slot, from its start, has been taken from the system in huge pages.
    taken: Box<[AtomicUsize]>,
    room: Arc<Semaphore>,
    /// Why the last part that went by HTTP did so.
    declined: Mutex<Option<String>>,
}

/// One slot, given back when dropped.
pub(super) struct Staged {
    staging: Arc<Staging>,
    index: usize,
    len: usize,
    _permit: OwnedSemaphorePermit,
}

impl Staging {
    /// Memory for `parallel` parts of at most `part_bytes`. None is taken from the system before a part needs it, and then as much as
    /// that part is long, on huge pages where the system can make some.
    ///
    /// # Errors
    /// [`Error::Local`] when there is no memory.
    pub fn new(client: Direct, part_bytes: usize, parallel: usize) -> Result<Arc<Staging>> {
        let parallel = parallel.max(1);
        let slot_bytes = part_bytes.max(1).next_multiple_of(4096);
        let whole = slot_bytes
            .checked_mul(parallel)
            .ok_or(std::io::ErrorKind::OutOfMemory.into());
        let region = whole
            .and_then(forebay_mem::Region::memfd)
            .map(Region::of)
            .map_err(Error::local("getting memory to register"))?;
        Ok(Arc::new(Staging {
            client,
            region,
            slot_bytes,
            free: Mutex::new((0..parallel).collect()),
            taken: (0..parallel).map(|_| AtomicUsize::new(0)).collect(),
            room: Arc::new(Semaphore::new(parallel)),
            declined: Mutex::default(),
        }))
    }

    /// The client whose links are used.
    pub fn client(&self) -> &Direct {
        &self.client
    }

    /// Why the last part that went by HTTP did so, if one did.
    pub fn declined(&self) -> Option<String> {
        self.declined.lock().clone()
    }

    /// The longest part that fits a slot.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.slot_bytes as u64
    }

    /// Whether parts of `bytes` fit its slots. Longer ones go as bodies, or not at all where this way was to be taken.
    pub(super) fn takes(&self, bytes: u64) -> Result<bool> {
        if bytes <= self.slot_bytes() {
            return Ok(true);
        }
        let slot = self.slot_bytes();
        let why = format!("a part of {bytes} bytes, where memory was made for {slot} bytes each");
        match self.client.options().path.allows(Path::Http) {
            true => {
                self.note(&why);
                Ok(false)
            }
            false => Err(Error::local("the direct path")(io::Error::other(why))),
        }
    }

    /// A slot for `len` bytes, as soon as one is free and lent to nobody: a call that was given up may still have its bytes, into which
    /// something lands, or out of which something is taken.
    pub(super) async fn take(self: &Arc<Staging>, len: usize) -> Result<Staged> {
        let closed = |_| Error::Protocol("no memory is registered".to_owned());
        let permit = self.room.clone().acquire_owned().await.map_err(closed)?;
        let index = self.pick();
        let index = index.ok_or_else(|| Error::Protocol("no slot is free".to_owned()))?;
        let staged = Staged {
            staging: self.clone(),
            index,
            len: len.min(self.slot_bytes),
            _permit: permit,
        };
        let (region, slot) = (&self.region, self.slot(index));
        drop(region.lend_patiently(slot, Use::Target).await);
        staged.take_pages().await;
        Ok(staged)
    }

    /// A free slot, if there is one that is lent to nobody.
    fn pick(&self) -> Option<usize> {
        let mut free = self.free.lock();
        let is_idle = |index: &usize| {
            self.region
                .try_lend(self.slot(*index), Use::Target)
                .is_some()
        };
        match free.iter().rposition(is_idle) {
            Some(at) => Some(free.swap_remove(at)),
            None => free.pop(),
        }
    }

    /// Where a slot lies in the region.
    fn slot(&self, index: usize) -> Range<usize> {
        let start = index * self.slot_bytes;
        start..start + self.slot_bytes
    }

    /// Gets bytes `range` of the value whose tag is `etag`, all of them or none.
    pub(super) async fn get(
        self: &Arc<Staging>,
        namespace: &str,
        key: &str,
        etag: &str,
        range: Range<u64>,
    ) -> Result<(Staged, Transfer)> {
        let len = range.end - range.start;
        let staged = self
            .take(usize::try_from(len).unwrap_or(usize::MAX))
            .await?;
        let got = self.client.get_into(namespace, key, range, staged.window());
        let got = got.await?;
        match got.etag == etag && got.bytes == len {
            true => Ok((staged, got)),
            false => Err(Error::replaced(format_args!("{namespace}/{key}"))),
        }
    }

    /// Whether `client` may do what failed so: links reach the namespaces of one's own tenant, S3 also what bucket policies grant in
    /// another's.
    pub(super) fn leaves_to(&self, client: &Client, error: &Error) -> bool {
        let none = Status::NoSuchNamespace.name();
        let unknown = matches!(error, Error::Refused(refusal) if refusal.code == none);
        let leaves =
            unknown && !client.is_missing() && self.client.options().path.allows(Path::Http);
        if leaves {
            self.note(&"links reach namespaces of one's own tenant only");
        }
        leaves
    }

    pub(super) fn note(&self, why: &dyn std::fmt::Display) {
        *self.declined.lock() = Some(why.to_string());
    }
}

impl Staged {
    /// What it is a slot of.
    pub(super) fn of(&self) -> &Staging {
        &self.staging
    }

    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    fn range(&self) -> Range<usize> {
        let start = self.staging.slot(self.index).start;
        start..start + self.len
    }

    /// Takes the huge pages that it needs and no part in the same slot did: one long part is moved faster by them.
    async fn take_pages(&self) {
        let len = self.len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let taken = self.staging.taken.get(self.index);
        let Some(taken) = taken.filter(|taken| taken.load(Relaxed) < len) else {
            return;
        };
        let memory = self.staging.region.slice(self.range());
        // As long as touching all of it. Where it fails, the part touches small ones.
        let took =
            tokio::task::spawn_blocking(move || memory.is_some_and(|it| it.take_huge_pages()));
        if took.await.is_ok() {
            taken.fetch_max(len, Relaxed);
        }
    }

    pub(super) fn window(&self) -> Window<'_> {
        self.staging.region.window(self.range())
    }

    /// The checksum of its bytes.
    pub(super) fn crc(&self) -> Result<Crc64> {
        let crc = self.staging.region.crc64(self.range());
        crc.ok_or_else(gone)
    }

    /// Its bytes on the heap.
    pub(super) fn bytes(&self) -> Result<Bytes> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes.into())
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match self.staging.region.read(self.range().start + offset, into) {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// The beginning of it, which is all that has been filled.
    pub(super) fn cut(mut self, bytes: u64) -> Staged {
        self.len = self.len.min(usize::try_from(bytes).unwrap_or(usize::MAX));
        self
    }

    /// Fills it, from `offset` on, with bytes that are in memory already.
    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        match self
            .staging
            .region
            .write(self.range().start + offset, bytes)
        {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// Fills it from a file.
    pub(super) fn load(&self, file: &File, offset: u64) -> std::io::Result<()> {
        let mut step = vec![0; STEP_BYTES.min(self.len)];
        let mut at = 0;
        while at < self.len {
            let step = &mut step[..STEP_BYTES.min(self.len - at)];
            file.read_exact_at(step, offset + at as u64)?;
            self.fill(at, step).map_err(std::io::Error::other)?;
            at += step.len();
        }
        Ok(())
    }

    /// Feeds it, step by step with the offset of each, to `sink`.
    pub(super) fn each_step(&self, mut sink: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut step = vec![0; STEP_BYTES.min(self.len)];
        let mut at = 0;
        while at < self.len {
            let step = &mut step[..STEP_BYTES.min(self.len - at)];
            self.read(at, step)?;
            sink(at as u64, step)?;
            at += step.len();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.staging.free.lock().push(self.index);
    }
}

fn gone() -> Error {
    Error::Protocol("registered memory has gone".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forebay_fabric::{Access, Link, RemoteRange};
    use futures_util::future::poll_immediate;

    use super::*;
    use crate::direct::{Options, Request};

    #[tokio::test]
    async fn a_slot_is_given_out_when_nobody_has_its_bytes_any_more() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let get = Request {
            method: "GET",
            path: "/ns/key",
            query: "",
            range: "",
        };
        let token = staging.client().token(&get, staged.window()).await.unwrap();
        // The server's device begins to write.
        let connected = staging.client().connected();
        let lane = connected.lane().unwrap();
        let remote = staging.region.on(lane).await.unwrap();
        let range = RemoteRange {
            stag: remote.stag,
            offset: remote.base,
            len: 4096,
        };
        let device = server.mapped(range, Access::Write).unwrap();
        tokio::time::pause();
        drop((token, staged));
        tokio::select! {
            biased;
            _ = staging.take(4096) => panic!("the device is not done"),
            _ = server.closed() => {}
        }
        drop(device);
        staging.take(4096).await.unwrap();
    }

    /// What the system has given for the memory.
    fn taken(staging: &Staging) -> u64 {
        let memory = staging.region.slice(0..1).unwrap();
        let file = memory.region().backing().unwrap().file;
        let file = File::from(file.try_clone_to_owned().unwrap());
        file.metadata().unwrap().blocks() * 512
    }

    #[tokio::test]
    async fn no_more_memory_is_taken_than_parts_need() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, _server, _sessions) = linked.await;
        let staging = Staging::new(direct, 16 << 20, 16).unwrap();
        assert_eq!(taken(&staging), 0);
        staging.take(1).await.unwrap().fill(0, b"a").unwrap();
        let one = taken(&staging);
        assert!(one <= HUGE_PAGE_BYTES as u64, "{one}");
        let large = [16 << 20; 2].map(|len| staging.take(len));
        let large = futures_util::future::join_all(large).await;
        for part in &large {
            part.as_ref()
                .unwrap()
                .load(&File::open("/dev/zero").unwrap(), 0)
                .unwrap();
        }
        let few = taken(&staging);
        assert!((32 << 20..=(32 << 20) + one).contains(&few), "{few}");
    }

    #[tokio::test]
    async fn a_slot_that_is_lent_keeps_nobody_from_the_others() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, _server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 2).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let range = staged.range();
        let loan = staging.region.try_lend(range.clone(), Use::Target).unwrap();
        drop(staged);
        let other = poll_immediate(staging.take(4096)).await;
        assert_ne!(other.expect("at once").unwrap().range(), range);
        drop(loan);
    }
}
