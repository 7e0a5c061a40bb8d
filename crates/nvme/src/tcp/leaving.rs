//! Queues that have been told to end at once and have not yet: what they have begun may still change something.

use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::association::Member;

/// Those of a door, with their hosts' names.
#[derive(Default)]
pub(super) struct Leaving {
    members: Mutex<Vec<(String, Member)>>,
    /// Told when one has left.
    left: Notify,
}

impl Leaving {
    pub(super) fn enter(&self, host: &str, member: Member) {
        self.members.lock().push((host.to_owned(), member));
    }

    /// It has ended, and nothing of it is in progress.
    pub(super) fn leave(&self, member: &Member) {
        self.members.lock().retain(|(_, known)| known != member);
        self.left.notify_waiters();
    }

    /// Waits for those of a host that are leaving now.
    pub(super) async fn settled(&self, host: &str) {
        let of_host = {
            let members = self.members.lock();
            let of_host = members.iter().filter(|(of, _)| of == host);
            of_host
                .map(|(_, member)| member.clone())
                .collect::<Vec<_>>()
        };
        loop {
            let mut left = pin!(self.left.notified());
            left.as_mut().enable();
            let stays = |member| self.members.lock().iter().any(|(_, known)| known == member);
            if !of_host.iter().any(stays) {
                return;
            }
            left.await;
        }
    }
}
