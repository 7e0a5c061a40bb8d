//! A session in use: replaced when it breaks, and when a better path can be had.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::connected::Connected;
use super::options::{Options, Path};
use super::rpc::Rpc;
use crate::{Credentials, Endpoint, Result};

/// The longest wait before better paths are tried again.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What a session's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Files that other processes can map, too.
    Mappable,
    /// Of this process alone.
    Private,
}

/// A server, and who asks for what.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) rpc: Rpc,
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Credentials,
    pub(crate) options: Options,
}

impl Server {
    /// Opens a session there and makes links by the best path that works for such memory.
    async fn establish(&self, memory: Memory) -> Result<Arc<Connected>> {
        let connected = Connected::establish(self, memory).await?;
        let connected = Arc::new(connected);
        tokio::spawn(Connected::keep_alive(
            Arc::downgrade(&connected),
            connected.lease,
        ));
        Ok(connected)
    }
}

/// A session, or the one that took its place.
#[derive(Debug)]
pub(crate) struct Seat {
    server: Arc<Server>,
    memory: Memory,
    connected: RwLock<Arc<Connected>>,
    connecting: tokio::sync::Mutex<()>,
    better: Mutex<Better>,
}

/// When better paths are tried again, and how long it was until then.
#[derive(Debug)]
struct Better {
    at: Instant,
    pause: Duration,
}

impl Better {
    fn after(pause: Duration, now: Instant) -> Better {
        Better {
            at: now + pause,
            pause,
        }
    }

    /// Whether it is time; the next time is after twice as long.
    fn is_time(&mut self, now: Instant) -> bool {
        let due = self.at <= now;
        if due {
            *self = Better::after((self.pause * 2).min(PAUSE_MAX), now);
        }
        due
    }
}

impl Seat {
    pub(crate) async fn take(server: Arc<Server>, memory: Memory) -> Result<Arc<Seat>> {
        let connected = server.establish(memory).await?;
        Ok(Seat::of(server, memory, connected))
    }

    /// With a session that is open.
    pub(super) fn of(server: Arc<Server>, memory: Memory, connected: Arc<Connected>) -> Arc<Seat> {
        Arc::new(Seat {
            better: Mutex::new(Better::after(server.options.better_after, Instant::now())),
            server,
            memory,
            connected: RwLock::new(connected),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    /// The session as it is.
    pub(crate) fn connected(&self) -> Arc<Connected> {
        self.connected.read().clone()
    }

    /// The session for a call, which goes by HTTP at most until a better path works again.
    pub(crate) fn for_call(self: &Arc<Seat>) -> Arc<Connected> {
        let connected = self.connected();
        if connected.fell_back() && self.better.lock().is_time(Instant::now()) {
            let looking = Seat::look_for_better(Arc::downgrade(self));
            connected.runtime.spawn(looking);
        }
        connected
    }

    async fn look_for_better(this: Weak<Seat>) {
        let Some(this) = this.upgrade() else {
            return;
        };
        // Whoever connects at this moment looks for the best path, too.
        let Ok(_one) = this.connecting.try_lock() else {
            return;
        };
        // Somebody who looked before may have found one by now.
        if !this.connected().fell_back() {
            return;
        }
        let deadline = this.server.options.deadline;
        let found = tokio::time::timeout(deadline, this.server.establish(this.memory)).await;
        if let Ok(Ok(found)) = found
            && found.path != Path::Http
        {
            this.replace(found);
        }
    }

    /// Whether this is the session, still.
    pub(crate) fn is(&self, connected: &Connected) -> bool {
        self.connected.read().generation == connected.generation
    }

    /// Opens another session in place of a broken one, unless somebody else has done so meanwhile.
    pub(crate) async fn mend(&self, broken: &Connected) -> Result<()> {
        let _one = self.connecting.lock().await;
        // HTTP has nothing to mend: its client makes connections as it needs them.
        if self.is(broken) && broken.lane().is_some() {
            // The server may take a link for alive that has ended here: what was given up on it must not land after what comes next.
            // Where none has ended, calls are under way that another door's failure is no matter to.
            if broken.has_lost_a_link() {
                broken.close().await?;
            }
            self.replace(self.server.establish(self.memory).await?);
        }
        Ok(())
    }

    pub(super) fn replace(&self, connected: Arc<Connected>) {
        *self.better.lock() = Better::after(self.server.options.better_after, Instant::now());
        *self.connected.write() = connected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_paths_are_tried_less_and_less_but_for_ever() {
        let mut now = Instant::now();
        let mut better = Better::after(Duration::from_secs(1), now);
        assert!(!better.is_time(now));
        let mut tried = Vec::new();
        for second in 1..=250 {
            now += Duration::from_secs(1);
            if better.is_time(now) {
                tried.push(second);
            }
        }
        assert_eq!(tried, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }
}
