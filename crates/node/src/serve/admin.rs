//! The admin API on the Unix socket.

use std::sync::Arc;

use forebay_control::Admin;
use forebay_store::Store;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::http::{Answer, Asked, MODULES_BYTES_MAX, serve};
use super::live;
use super::socket::Requests;

/// Serves the admin API to this user, until `stopping`; the task ends when the requests in progress have.
pub fn open<S: Store>(
    requests: Requests,
    admin: Arc<Admin<S>>,
    doors: Arc<live::Doors<S>>,
    stopping: &watch::Receiver<bool>,
) -> JoinHandle<()> {
    let handle = move |asked: Asked| {
        let (admin, doors) = (admin.clone(), doors.clone());
        async move {
            if (asked.method.as_str(), asked.path.as_str()) == ("GET", live::PATH) {
                return live::answer(&doors);
            }
            let reply = admin
                .handle(asked.method.as_str(), &asked.path, &asked.body)
                .await;
            Answer {
                status: reply.status,
                content_type: "application/json",
                body: reply.body,
            }
        }
    };
    tokio::spawn(serve(requests, handle, MODULES_BYTES_MAX, stopping.clone()))
}
