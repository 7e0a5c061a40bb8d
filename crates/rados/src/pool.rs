//! The names of all objects of a RADOS namespace, or of a pool, which the cluster lists in no order.

use std::sync::Arc;

use forebay_store::Result;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::error::unread;
use crate::sys::{Errno, Place};

/// Names that are had at once.
pub(crate) const BATCH: usize = 1024;

/// What is listed, in batches, each with whether it is the last: whoever lists waits for whoever takes them.
pub(crate) struct Listing<B> {
    batches: mpsc::Receiver<std::result::Result<(B, bool), Errno>>,
    over: bool,
}

/// All names of one RADOS namespace.
pub(crate) type Names = Listing<Vec<Vec<u8>>>;

impl Names {
    pub fn of(place: &Arc<Place>) -> Names {
        Listing::by(place.clone(), |batch: &mut Vec<Vec<u8>>, _, name| {
            batch.push(name.to_vec());
            true
        })
    }
}

impl<B: Default + Send + 'static> Listing<B> {
    /// `put` is told of each object's RADOS namespace and name, and says whether it has put it into the batch.
    pub fn by(
        place: Arc<Place>,
        put: impl Fn(&mut B, &[u8], &[u8]) -> bool + Send + 'static,
    ) -> Listing<B> {
        let (sender, batches) = mpsc::channel(1);
        spawn_blocking(move || {
            let (mut batch, mut held) = (B::default(), 0);
            let listed = place.for_each_name(|space, name| {
                held += usize::from(put(&mut batch, space, name));
                if held < BATCH {
                    return !sender.is_closed();
                }
                held = 0;
                let full = std::mem::take(&mut batch);
                sender.blocking_send(Ok((full, false))).is_ok()
            });
            let _ = sender.blocking_send(listed.map(|()| (batch, true)));
        });
        Listing {
            batches,
            over: false,
        }
    }

    /// The next batch; `None` after the last. A list that was cut short does not end like this.
    pub async fn next(&mut self) -> Result<Option<B>> {
        if self.over {
            return Ok(None);
        }
        let batch = self.batches.recv().await;
        let batch = batch.unwrap_or(Err(Errno(libc::ESHUTDOWN)));
        let (batch, is_last) = batch.map_err(|errno| unread(errno, "the pool"))?;
        self.over = is_last;
        Ok(Some(batch))
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
