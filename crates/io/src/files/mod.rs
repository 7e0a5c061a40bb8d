//! The real disk: a directory of files, or of links to block devices.
//!
//! A file opened `direct` has two descriptors, one that bypasses the page cache and one that does not. Aligned I/O takes the first
//! and everything else the second, so that callers with a few odd bytes (a header, a tail) are exact to the byte and need no
//! bounce buffer; the kernel keeps the two coherent. Where the file system refuses `O_DIRECT` there is only the second. A file that
//! lies in memory is read and written at once, by whoever asks.

mod at_once;
mod file;
mod memory;
mod open;
mod transfer;
mod workers;

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;

use crate::{Disk, OpenOptions};
pub use file::DiskFile;
pub(crate) use file::{Handle, HandleId, handles_closed};
pub use memory::MemoryFile;
pub use open::OpenFile;
pub(crate) use transfer::{Body, Progress, Transfer};
use workers::Workers;

/// Named so that no data file can be taken for it.
const LOCK_NAME: &str = "LOCK";

/// A directory that exists.
#[derive(Clone)]
pub struct Directory {
    path: PathBuf,
    workers: Arc<Workers>,
}

impl Directory {
    /// The directory at `path`; its worker threads start when they are first needed.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, or what the system says.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Directory> {
        let path = path.into();
        if !fs::metadata(&path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Directory {
            path,
            workers: Arc::new(Workers::default()),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self, name: &str) -> io::Result<PathBuf> {
        if matches!(name, "" | "." | ".." | LOCK_NAME) || name.contains(['/', '\0']) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} cannot name a data file"),
            ));
        }
        Ok(self.path.join(name))
    }
}

impl Disk for Directory {
    type File = OpenFile;

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<OpenFile> {
        let path = self.place(name)?;
        let open = |flags: i32| {
            fs::OpenOptions::new()
                .read(true)
                .write(!options.read_only)
                .create(options.create && !options.read_only)
                .mode(0o600)
                .custom_flags(flags)
                .open(&path)
        };
        let buffered = open(0)?;
        let direct = match options.direct.then(|| open(libc::O_DIRECT)) {
            None => None,
            Some(Ok(file)) => Some(file),
            Some(Err(error)) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                tracing::info!(path = %path.display(), "no O_DIRECT on this file system");
                None
            }
            Some(Err(error)) => return Err(error),
        };
        let file = DiskFile::new(direct, buffered, self.workers.clone());
        Ok(OpenFile::Disk(file))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.place(name)?.try_exists()
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = statvfs(&self.path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let opened = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join(LOCK_NAME));
        let (holder, writable) = match opened {
            Ok(file) => (file, true),
            // A read-only directory can be locked too: by itself.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                (fs::File::open(&self.path)?, false)
            }
            Err(error) => return Err(error),
        };
        match flock(holder.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(&self.path, holder)),
            Err(errno) => return Err(errno.into()),
        }
        if writable {
            holder.set_len(0)?;
            holder.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)?;
        }
        Ok(Box::new(holder))
    }
}

/// Says who holds the lock, when its holder could write that down.
fn in_use(path: &Path, holder: fs::File) -> io::Error {
    let mut pid = String::new();
    let said = holder.take(32).read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
    let by = if said {
        format!(" by process {}", pid.trim())
    } else {
        String::new()
    };
    io::Error::new(
        io::ErrorKind::WouldBlock,
        format!("{} is in use{by}", path.display()),
    )
}
