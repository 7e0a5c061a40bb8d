//! DIR/run/forebay.sock: where it is, and how it is bound and reached.
//!
//! A Unix socket's path is at most 107 bytes long (unix(7)) and a data directory's may be longer: the socket is bound and reached
//! through a descriptor of its directory.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::http::OwnSocket;
use crate::exit::{Failure, Outcome};

const NAME: &str = "forebay.sock";

fn run_dir(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// The socket of the data directory `dir`.
pub fn path(dir: &Path) -> PathBuf {
    run_dir(dir).join(NAME)
}

/// Binds the socket, mode 0600. The caller holds the directory's lock, so a socket that is there belongs to nobody.
pub fn bind(dir: &Path) -> Outcome<OwnSocket> {
    let bound = || -> io::Result<OwnSocket> {
        let run = run_dir(dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&run)?;
        let place = path(dir);
        match fs::symlink_metadata(&place) {
            Ok(there) if there.file_type().is_socket() => fs::remove_file(&place)?,
            Ok(_) => return Err(io::Error::other("something else is there")),
            Err(_) => {}
        }
        let opened = File::open(&run)?;
        let listener = UnixListener::bind(through(&opened))?;
        fs::set_permissions(&place, Permissions::from_mode(0o600))?;
        Ok(OwnSocket {
            listener,
            owner: fs::metadata(dir)?.uid(),
        })
    };
    bound().map_err(Failure::io(path(dir).display()))
}

/// Connects to the server of `dir`.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` when none runs there.
pub async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let opened = File::open(run_dir(dir))?;
    UnixStream::connect(through(&opened)).await
}

/// Removes the socket of a server that ends.
pub fn remove(dir: &Path) {
    if let Err(error) = fs::remove_file(path(dir)) {
        tracing::debug!(%error, "the socket was gone already");
    }
}

fn through(run: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", run.as_raw_fd()))
}
