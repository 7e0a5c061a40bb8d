//! DIR/run/forebay.sock: where it is, how it is bound and reached, and which of its two languages a client speaks.
//!
//! A Unix socket's path is at most 107 bytes long (unix(7)) and a data directory's may be longer: the socket is bound and reached
//! through a descriptor of its directory.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::shm::MAGIC;
use forebay_io::passing;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::http::Listen;
use super::stopped;
use crate::exit::{Failure, Outcome};

/// Connections that have not yet said what they want; more wait.
const UNDECIDED_MAX: usize = 256;
/// How long a connection may take to say what it wants.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes a connection that wants shared memory, with nothing read from it.
pub type Shm = Arc<dyn Fn(UnixStream) + Send + Sync>;

/// Whether a socket of `owner` serves the user `uid`.
fn is_served(uid: u32, owner: u32) -> bool {
    uid == owner || uid == 0
}

/// Whether the server of `dir` serves this process, as far as can be told from here.
pub fn serves_us(dir: &Path) -> io::Result<bool> {
    let uid = rustix::process::geteuid().as_raw();
    Ok(is_served(uid, fs::metadata(dir)?.uid()))
}

/// A Unix socket that serves one user and the superuser: the kernel says who asks (`SO_PEERCRED`).
pub struct OwnSocket {
    listener: UnixListener,
    owner: u32,
}

/// The connections of an [`OwnSocket`] that speak HTTP.
pub struct Requests(mpsc::Receiver<UnixStream>);

impl Listen for Requests {
    type Stream = UnixStream;

    async fn next(&mut self) -> io::Result<UnixStream> {
        match self.0.recv().await {
            Some(stream) => Ok(stream),
            // The socket is closed because the process ends.
            None => std::future::pending().await,
        }
    }
}

impl OwnSocket {
    /// Takes connections until `shutdown`: those that want shared memory go to `shm`, the others are requests.
    pub fn open(self, shm: Option<Shm>, shutdown: watch::Receiver<bool>) -> Requests {
        let (requests, queue) = mpsc::channel(1);
        tokio::spawn(async move {
            let undecided = Arc::new(Semaphore::new(UNDECIDED_MAX));
            loop {
                let Ok(permit) = undecided.clone().acquire_owned().await else {
                    return;
                };
                let stream = tokio::select! {
                    stream = self.next() => stream,
                    () = stopped(shutdown.clone()) => return,
                };
                let (shm, requests) = (shm.clone(), requests.clone());
                tokio::spawn(async move {
                    let first = tokio::time::timeout(FIRST_BYTE_TIMEOUT, first_byte(&stream)).await;
                    match (first, shm) {
                        // No method of HTTP that is answered here begins as this does.
                        (Ok(Ok(Some(byte))), Some(shm)) if byte == MAGIC[0] => shm(stream),
                        // When nobody takes it any more, the process ends.
                        (Ok(Ok(Some(_))), _) => drop(requests.send(stream).await),
                        (Ok(Ok(None)) | Err(_), _) => {}
                        (Ok(Err(error)), _) => tracing::debug!(%error, "a connection is lost"),
                    }
                    drop(permit);
                });
            }
        });
        Requests(queue)
    }

    /// The next connection of somebody who may have one.
    async fn next(&self) -> UnixStream {
        loop {
            let accepted = self.listener.accept().await;
            match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
                Ok((uid, stream)) if is_served(uid, self.owner) => return stream,
                Ok((uid, _)) => tracing::warn!(uid, "a stranger at the socket was sent away"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

/// The first byte that a client sends, left in the socket; `None` when it went away.
async fn first_byte(stream: &UnixStream) -> io::Result<Option<u8>> {
    let mut first = [0; 1];
    let (_, received) = stream
        .async_io(Interest::READABLE, || {
            Ok(recv(stream, &mut first, RecvFlags::PEEK)?)
        })
        .await?;
    Ok((received > 0).then_some(first[0]))
}

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
        // Requests bring none; who wants shared memory may when he has shown what session that is for.
        passing::take_files(&listener, false);
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
