//! DIR/run/forebay.sock: where it is, and which of its two languages a client speaks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_fabric::shm::MAGIC;
use forebay_io::socket::connect_unix;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{AcquireError, Semaphore, mpsc, watch};

use super::http::Listen;
use super::own_socket::{OwnSocket, Taken};
use super::owner::Owner;
use super::stopped;
use crate::exit::{Failure, Outcome};

/// Connections that have not yet said what they want; more wait.
const UNDECIDED_MAX: usize = 256;
/// How long a connection may take to say what it wants.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
const NAME: &str = "forebay.sock";

fn run_dir(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// The socket of the data directory `dir`.
pub fn path(dir: &Path) -> PathBuf {
    run_dir(dir).join(NAME)
}

/// Binds the socket. The caller holds the directory's lock.
pub fn bind(dir: &Path) -> Outcome<OwnSocket> {
    Owner::of(dir)
        .and_then(|owner| OwnSocket::bind(&run_dir(dir), NAME, Taken::Locked, owner))
        .map_err(Failure::io(path(dir).display()))
}

/// Connects to the server of `dir`.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` when none runs there.
pub async fn connect(dir: &Path) -> io::Result<UnixStream> {
    connect_unix(&path(dir)).await
}

/// Whether the server of `dir` serves this process, as far as can be told from here.
pub fn serves_us(dir: &Path) -> io::Result<bool> {
    let uid = rustix::process::geteuid().as_raw();
    Ok(Owner::of(dir)?.admits(uid))
}

/// Takes a connection that wants shared memory, with nothing read from it.
pub type Shm = Arc<dyn Fn(UnixStream) + Send + Sync>;

/// The connections that speak HTTP.
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

/// Takes connections until `shutdown`: those that want shared memory go to `shm`, the others are requests.
pub fn open(socket: OwnSocket, shm: Option<Shm>, shutdown: watch::Receiver<bool>) -> Requests {
    let (requests, queue) = mpsc::channel(1);
    tokio::spawn(async move {
        let undecided = Arc::new(Semaphore::new(UNDECIDED_MAX));
        loop {
            let arriving = async {
                let permit = undecided.clone().acquire_owned().await?;
                Ok::<_, AcquireError>((socket.next().await, permit))
            };
            let (stream, permit) = tokio::select! {
                Ok(arrived) = arriving => arrived,
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
