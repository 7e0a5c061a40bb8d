//! A Unix socket that serves one user and the superuser: the kernel says who asks (`SO_PEERCRED`).

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use forebay_io::passing;
use forebay_io::socket::SocketDir;
use tokio::net::{UnixListener, UnixStream};

use super::REST;
use super::owner::Owner;

/// How it is known whether somebody listens on a socket that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The caller holds the lock of whoever would: it belongs to nobody.
    Locked,
    /// It is asked.
    Asked,
}

/// The socket; gone when this is dropped.
pub struct OwnSocket {
    listener: UnixListener,
    path: PathBuf,
    owner: Owner,
}

impl OwnSocket {
    /// Binds `name` in `dir`, mode 0600; makes the directory where it is missing.
    ///
    /// # Errors
    /// `AddrInUse` when somebody listens there; when what is there is no socket.
    pub fn bind(dir: &Path, name: &str, taken: Taken, owner: Owner) -> io::Result<OwnSocket> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let opened = SocketDir::open(dir)?;
        let through = opened.address(name);
        let path = dir.join(name);
        match fs::symlink_metadata(&path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(io::Error::other("something else is there"));
            }
            Ok(_) if taken == Taken::Asked && BlockingStream::connect(&through).is_ok() => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            // Of a server that was killed.
            Ok(_) => fs::remove_file(&path)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(through)?;
        // Who may send some is known when he has said what for.
        passing::take_files(&listener, false);
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(OwnSocket {
            listener,
            path,
            owner,
        })
    }

    /// The next connection of somebody who may have one.
    pub async fn next(&self) -> UnixStream {
        loop {
            let accepted = self.listener.accept().await;
            match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
                Ok((uid, stream)) if self.owner.admits(uid) => return stream,
                Ok((uid, _)) => tracing::warn!(uid, "a stranger at the socket was sent away"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket was gone already");
        }
    }
}
