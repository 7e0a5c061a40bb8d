//! Telling other gateways what changed, and hearing from them.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use forebay_store::{Notice, Watch};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use crate::codec::Reader;
use crate::record::{begin, writer};

/// Keys in one notification; more are told as "anything".
const WORDS: usize = 256;
/// Notices that a watcher may be behind.
const BEHIND: usize = 4096;

/// Both directions.
pub(crate) struct Notices {
    outgoing: Mutex<Outgoing>,
    pub something: Notify,
    /// How often others came or went: even when there are none.
    company: AtomicU64,
    incoming: broadcast::Sender<Notice>,
}

#[derive(Default)]
struct Outgoing {
    changed: Vec<(String, Bytes)>,
    lost: bool,
}

impl Default for Notices {
    fn default() -> Notices {
        Notices {
            outgoing: Mutex::default(),
            something: Notify::new(),
            company: AtomicU64::new(0),
            incoming: broadcast::channel(BEHIND).0,
        }
    }
}

impl Notices {
    /// Says whether there is nobody to tell. One at a time does.
    pub fn set_alone(&self, alone: bool) {
        if alone != self.is_alone() {
            self.company.fetch_add(1, Relaxed);
        }
    }

    /// Whether there is nobody to tell.
    pub fn is_alone(&self) -> bool {
        self.company().is_multiple_of(2)
    }

    /// Another number whenever others come or go.
    pub fn company(&self) -> u64 {
        self.company.load(Relaxed)
    }

    /// A value of ours changed.
    pub fn changed(&self, namespace: &str, key: &[u8]) {
        if self.is_alone() {
            return;
        }
        let mut outgoing = self.outgoing.lock();
        match outgoing.changed.len() < WORDS {
            true => {
                let key = Bytes::copy_from_slice(key);
                outgoing.changed.push((namespace.to_owned(), key));
            }
            false => outgoing.lost = true,
        }
        drop(outgoing);
        self.something.notify_one();
    }

    /// What is to be told, from this gateway.
    pub fn words(&self, gateway: u64) -> Option<Vec<u8>> {
        let Outgoing { changed, lost } = std::mem::take(&mut *self.outgoing.lock());
        if changed.is_empty() && !lost {
            return None;
        }
        let mut words = writer();
        words.u64(gateway);
        words.bool(lost);
        words.list(&changed, |writer, (namespace, key)| {
            writer.string(namespace.as_bytes());
            writer.string(key);
        });
        Some(words.0)
    }

    /// Somebody said something; what this gateway said itself is known.
    pub fn heard(&self, words: &[u8], own: u64) {
        match read(words) {
            Some((gateway, _)) if gateway == own => {}
            Some((_, notices)) => {
                for notice in notices {
                    self.tell(notice);
                }
            }
            None => self.tell(Notice::Lost),
        }
    }

    /// Tells this gateway's watchers.
    pub fn tell(&self, notice: Notice) {
        // Nobody listens: nobody is to be told.
        let _ = self.incoming.send(notice);
    }

    /// A new watcher.
    pub fn watch(&self) -> Box<dyn Watch> {
        Box::new(Listening(self.incoming.subscribe()))
    }
}

/// Who spoke, and what changed.
pub(crate) fn read(words: &[u8]) -> Option<(u64, Vec<Notice>)> {
    let mut reader = begin(words).ok()?;
    let gateway = reader.u64().ok()?;
    let lost = reader.bool().ok()?;
    let mut notices: Vec<Notice> = reader
        .list(8, |reader: &mut Reader<'_>| {
            Ok(Notice::Changed {
                namespace: reader.text()?,
                key: Bytes::copy_from_slice(reader.string()?),
            })
        })
        .ok()?;
    reader.end().ok()?;
    if lost {
        notices.push(Notice::Lost);
    }
    Some((gateway, notices))
}

struct Listening(broadcast::Receiver<Notice>);

impl Watch for Listening {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Notice>> + Send + '_>> {
        Box::pin(async {
            match self.0.recv().await {
                Ok(notice) => Some(notice),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(Notice::Lost),
                Err(broadcast::error::RecvError::Closed) => None,
            }
        })
    }
}
