//! Unix sockets by paths of any length.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

/// The longest path that an address has room for, in bytes (unix(7)).
const ADDRESS_BYTES_MAX: usize = 107;

/// A directory in which sockets are bound and reached, however long its own path is.
#[derive(Debug)]
pub struct SocketDir(OwnedFd);

impl SocketDir {
    /// Opens a directory.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<SocketDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(SocketDir(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// An address of `name` in it, for as long as this is there.
    pub fn address(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.0.as_raw_fd().to_string())
            .join(name)
    }
}

/// Connects to the socket at `path`.
///
/// # Errors
/// The system's: [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`] when nobody listens there.
pub async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) if path.as_os_str().len() > ADDRESS_BYTES_MAX => {
            let dir = SocketDir::open(dir)?;
            UnixStream::connect(dir.address(name)).await
        }
        _ => UnixStream::connect(path).await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_reached_by_a_path_of_any_length() {
        let place = tempfile::tempdir().unwrap();
        for name in ["short", &"long".repeat(50)] {
            let path = place.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let socket = path.join("socket");
            let there = connect_unix(&socket).await;
            assert_eq!(there.unwrap_err().kind(), io::ErrorKind::NotFound);
            let dir = SocketDir::open(&path).unwrap();
            let listener = UnixListener::bind(dir.address("socket")).unwrap();
            let (near, far) = tokio::join!(connect_unix(&socket), listener.accept());
            assert!(near.is_ok() && far.is_ok());
        }
        let nowhere = place.path().join("none".repeat(50)).join("socket");
        let there = connect_unix(&nowhere).await;
        assert_eq!(there.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
