//! DIR/cntrl: a socket whose every connection is an NVMe controller (vfio-user).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_io::passing;
use forebay_nvme::target::Viewer;
use forebay_nvme::vfio_user;
use forebay_store::Store;
use tokio::sync::watch;

use super::super::own_socket::{OwnSocket, Taken};
use super::super::owner::Owner;
use super::super::shards::{OneLess, Shards};
use super::super::{absolute, stopped};
use super::Nvme;
use crate::exit::{Failure, Outcome};

/// Where SPDK looks for it, too.
const NAME: &str = "cntrl";

/// Where the socket of this directory is.
pub fn path(dir: &Path) -> PathBuf {
    absolute(dir).join(NAME)
}

/// Binds the socket, for `owner`.
pub fn bind(dir: &Path, owner: Owner) -> Outcome<OwnSocket> {
    OwnSocket::bind(&absolute(dir), NAME, Taken::Asked, owner).map_err(Failure::io(format_args!(
        "--vfio-user {}",
        path(dir).display()
    )))
}

/// Gives its clients to the shards, until `stopping`.
pub async fn serve<S: Store>(
    socket: OwnSocket,
    nvme: Arc<Nvme<S>>,
    shards: Arc<Shards>,
    stopping: watch::Receiver<bool>,
) {
    loop {
        let stream = tokio::select! {
            stream = socket.next() => stream,
            () = stopped(stopping.clone()) => return,
        };
        passing::take_files(&stream, true);
        let (nvme, stopping) = (nvme.clone(), stopping.clone());
        shards.give_unix("a vfio-user client", stream, move |stream| async move {
            // Who owns the server's data may see whatever it publishes.
            let viewer = Viewer::Everything;
            let end = stopped(stopping);
            nvme.devices.fetch_add(1, Relaxed);
            let _one = OneLess(&nvme.devices);
            let ended = vfio_user::serve(stream, &nvme.target, viewer, end).await;
            tracing::debug!(?ended, "a vfio-user client has ended");
        });
    }
}
