//! The names of all objects of a RADOS namespace, which the cluster lists in no order.

use std::sync::Arc;

use forebay_store::Result;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::error::unread;
use crate::sys::{Errno, Place};

/// Names that are had at once.
pub(crate) const BATCH: usize = 1024;

/// Names, and whether they are the last.
type Batch = (Vec<Vec<u8>>, bool);

/// All names, some at a time: whoever lists them waits for whoever takes them.
pub(crate) struct Names {
    batches: mpsc::Receiver<std::result::Result<Batch, Errno>>,
    over: bool,
}

impl Names {
    pub fn of(place: &Arc<Place>) -> Names {
        let place = place.clone();
        let (sender, batches) = mpsc::channel(1);
        spawn_blocking(move || {
            let mut batch = Vec::new();
            let listed = place.for_each_name(|_, name| {
                batch.push(name.to_vec());
                if batch.len() < BATCH {
                    return true;
                }
                let names = std::mem::take(&mut batch);
                sender.blocking_send(Ok((names, false))).is_ok()
            });
            let _ = sender.blocking_send(listed.map(|()| (batch, true)));
        });
        Names {
            batches,
            over: false,
        }
    }

    /// The next ones; `None` after the last. A list that was cut short does not end like this.
    pub async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        if self.over {
            return Ok(None);
        }
        let batch = self.batches.recv().await;
        let batch = batch.unwrap_or(Err(Errno(libc::ESHUTDOWN)));
        let (names, is_last) = batch.map_err(|errno| unread(errno, "the pool"))?;
        self.over = is_last;
        Ok(Some(names))
    }
}

/// All names at once.
pub(crate) async fn names_in(place: &Arc<Place>) -> Result<Vec<Vec<u8>>> {
    let mut names = Names::of(place);
    let mut all = Vec::new();
    while let Some(batch) = names.next().await? {
        all.extend(batch);
    }
    Ok(all)
}
