//! DIR/cntrl: a socket whose every connection is an NVMe controller (vfio-user).

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_io::passing;
use forebay_nvme::target::Viewer;
use forebay_nvme::vfio_user;
use forebay_store::Store;
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::super::doors::absolute;
use super::super::shards::{OneLess, Shards};
use super::super::stopped;
use super::Nvme;
use crate::exit::{Exit, Failure, Outcome};

/// Where SPDK looks for it, too.
const NAME: &str = "cntrl";

/// Where the socket of this directory is.
pub fn path(dir: &Path) -> PathBuf {
    absolute(dir).join(NAME)
}

/// The socket; gone when this is dropped.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Binds it, for this user alone.
    pub fn bind(dir: &Path) -> Outcome<Socket> {
        let path = path(dir);
        let bound = || -> io::Result<UnixListener> {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            // Its path may be too long for an address; this one is not.
            let opened = File::open(dir)?;
            let through = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", opened.as_raw_fd()));
            match fs::symlink_metadata(&path) {
                Ok(there) if !there.file_type().is_socket() => {
                    return Err(io::Error::other("something else is there"));
                }
                Ok(_) if BlockingStream::connect(&through).is_ok() => {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                // Of a server that was killed.
                Ok(_) => fs::remove_file(&path)?,
                Err(_) => {}
            }
            let listener = UnixListener::bind(through)?;
            passing::take_files(&listener, false);
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        match bound() {
            Ok(listener) => Ok(Socket { listener, path }),
            Err(error) => Err(Failure::new(
                Exit::Failed,
                format_args!("--vfio-user {}: {error}", path.display()),
            )),
        }
    }

    /// Gives its clients to the shards, until `stopping`.
    pub async fn serve<S: Store>(
        self,
        nvme: Arc<Nvme<S>>,
        shards: Arc<Shards>,
        stopping: watch::Receiver<bool>,
    ) {
        loop {
            let stream = tokio::select! {
                stream = self.next() => stream,
                () = stopped(stopping.clone()) => return,
            };
            let (nvme, stopping) = (nvme.clone(), stopping.clone());
            let given = shards.give(Box::new(move || {
                Box::pin(async move {
                    let stream = match UnixStream::from_std(stream) {
                        Ok(stream) => stream,
                        Err(error) => return tracing::warn!(%error, "a connection is lost"),
                    };
                    // Who runs the server may see whatever it publishes.
                    let viewer = Viewer::Everything;
                    let end = stopped(stopping);
                    nvme.devices.fetch_add(1, Relaxed);
                    let _one = OneLess(&nvme.devices);
                    let ended = vfio_user::serve(stream, &nvme.target, viewer, end).await;
                    tracing::debug!(?ended, "a vfio-user client has ended");
                })
            }));
            if !given {
                tracing::debug!("a vfio-user client was sent away: too many connections");
            }
        }
    }

    /// The next connection of somebody who may have one, taken off this thread's reactor: it belongs to a shard's.
    async fn next(&self) -> std::os::unix::net::UnixStream {
        loop {
            let accepted = self.listener.accept().await;
            let stream = accepted.and_then(|(stream, _)| {
                let uid = stream.peer_cred()?.uid();
                Ok((uid, stream.into_std()?))
            });
            match stream {
                Ok((uid, stream)) if uid == geteuid().as_raw() || uid == 0 => {
                    passing::take_files(&stream, true);
                    return stream;
                }
                Ok((uid, _)) => tracing::warn!(uid, "a stranger at the socket was sent away"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket was gone already");
        }
    }
}
