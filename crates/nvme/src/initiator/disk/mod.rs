//! A disk whose data file is a namespace of blocks: an engine's data on a machine elsewhere.
//!
//! Only the file `data` lies there, from the first block on, and it is as long as the namespace. Other files (an index, the lock)
//! lie in a directory of this machine: they belong to the data, and to no other.
//!
//! # When the target is lost
//! Reads wait as long as [`Options::patience`](super::Options::patience) and fail then. Writes and syncs wait for ever, also for
//! one that answers that it cannot carry them out for now: whoever asked for them (a journal) could not go on after a failure. Data
//! that was written and not synced may have been in the target's memory only; it is kept here (up to 8 MiB, else it is synced early)
//! and written again before a sync that spans two associations succeeds.
//!
//! # Alignment
//! Whole blocks go as they are. Others are read, changed and written, one after the other.

mod remote;
mod threads;
mod unsynced;

use std::io;
use std::sync::Arc;

use forebay_io::files::{Directory, OpenFile};
use forebay_io::{Disk, File, OpenOptions};
use forebay_mem::{Buf, BufMut, PAGE_BYTES, RegionSlice};
use futures_util::future::join_all;

use super::block::BlockNamespace;
use super::data::Hold;
use super::host::{NamespaceUrl, Options};
use super::{Error, Result};
use remote::Remote;
use threads::Threads;

/// The file that lies on the namespace.
const DATA: &str = "data";

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
            remote: Arc::new(Remote::new(namespace, threads)),
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
            NamespaceFile::Remote(RemoteFile(remote)) => {
                Box::pin(remote.read_at(offset, into, len)).await
            }
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
                Box::pin(remote.read_into(offset, into, Hold(hold))).await
            }
        }
    }

    async fn write_at(&self, offset: u64, from: Buf) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.write_at(offset, from).await,
            NamespaceFile::Remote(RemoteFile(remote)) => {
                Box::pin(remote.write_at(offset, from)).await
            }
        }
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.read_exact_at(offset, into),
            NamespaceFile::Remote(RemoteFile(remote)) => {
                remote.threads.block_on(remote.read_exact_at(offset, into))
            }
        }
    }

    fn write_all_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.write_all_at(offset, from),
            NamespaceFile::Remote(RemoteFile(remote)) => {
                remote.threads.block_on(remote.write_all_at(offset, from))
            }
        }
    }

    fn write_together(&self, places: Vec<(u64, Vec<Buf>)>) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.write_together(places),
            NamespaceFile::Remote(RemoteFile(remote)) => {
                let writes = places.into_iter().flat_map(|(mut at, bufs)| {
                    bufs.into_iter().map(move |buf| {
                        let begin = at;
                        at += buf.len() as u64;
                        remote.write_at(begin, buf)
                    })
                });
                // All are waited for, also after a failure: nothing may land later.
                remote
                    .threads
                    .block_on(join_all(writes))
                    .into_iter()
                    .collect()
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.sync_data(),
            NamespaceFile::Remote(RemoteFile(remote)) => remote.threads.block_on(remote.sync()),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.allocate(offset, len),
            NamespaceFile::Remote(RemoteFile(remote)) => remote.check(offset, len),
        }
    }

    /// The namespace keeps all of its blocks: it is the engine's alone.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        match self {
            NamespaceFile::Local(file) => file.punch(offset, len),
            NamespaceFile::Remote(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn held_bytes(&self) -> io::Result<u64> {
        match self {
            NamespaceFile::Local(file) => file.held_bytes(),
            NamespaceFile::Remote(_) => self.len(),
        }
    }

    fn len(&self) -> io::Result<u64> {
        match self {
            NamespaceFile::Local(file) => file.len(),
            NamespaceFile::Remote(RemoteFile(remote)) => Ok(remote.namespace.bytes()),
        }
    }

    /// Nothing tells when what a process that ended sent to a namespace has arrived.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        match self {
            NamespaceFile::Local(file) => file.lock(),
            NamespaceFile::Remote(_) => Ok(Box::new(())),
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
