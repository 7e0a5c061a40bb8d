//! A value that was acknowledged on its way into the store, as long as the store may take it soon: every byte is held here.
//!
//! Others may change its key meanwhile, and are answered by the store itself. So it is given to the store a second time only beside a
//! look at what is there, and under the condition that this is still there: what came later than it stays.

use std::time::Duration;

use forebay_store::{
    Condition, ErrorKind, Meta, Result, Seal, Store, StoreError, StoreOptions, Stored, Upload,
};
use tokio::time::Instant;

use crate::change::is_unknown;
use crate::index::is_same;
use crate::metrics::count;
use crate::namesake::address;
use crate::stripes::Changing;
use crate::upload::Kept;
use crate::write_back::Waiting;

/// What the store did not take is given to it again, at first after this time and at last every so often.
const AGAIN_SOON: Duration = Duration::from_millis(50);
const AGAIN_LATE: Duration = Duration::from_secs(5);
/// After its first failure it is given to the store for so long: others wait for it meanwhile, and at its end a server waits no
/// longer either.
const AGAIN_FOR: Duration = Duration::from_secs(120);

/// One such value.
pub(crate) struct Landing<S: Store> {
    pub kept: Box<Kept<S>>,
    pub seal: Seal,
    /// As it was acknowledged.
    pub meta: Meta,
    pub before: Before,
}

/// What was under its key before it.
pub(crate) enum Before {
    /// What the cache believed of it; `None` says nothing.
    Held(Option<Meta>),
    /// What the store had when it had not taken the value.
    Seen(Option<Meta>),
}

/// How it ended.
enum Landed {
    /// The store has taken it now.
    Now(Stored),
    /// The store had it already.
    Already,
    /// The store has what came later.
    Overtaken,
}

impl<S: Store> Landing<S> {
    /// Brings it into the store.
    pub async fn land(mut self, upload: S::Upload, changing: Changing, mut waiting: Waiting) {
        let committed = upload.commit(self.seal.clone()).await;
        let mut unknown = is_unknown(&committed);
        let mut landed = committed.map(Landed::Now);
        let mut pause = AGAIN_SOON;
        let end = Instant::now() + AGAIN_FOR;
        while let Err(error) = &landed
            && may_pass(error.kind())
            && Instant::now() < end
        {
            landed = self.once_more(pause).await;
            unknown |= is_unknown(&landed);
            pause = AGAIN_LATE.min(pause * 2);
        }
        let place = &self.kept.place;
        match landed {
            Ok(Landed::Now(stored)) => {
                waiting.stored();
                // What was stored first may yet come after it.
                if !unknown {
                    self.kept.hold(&stored, self.meta.modified, &changing);
                }
            }
            Ok(Landed::Already) => waiting.stored(),
            // Nothing tells whether what the store has came before it: it was never there.
            Ok(Landed::Overtaken) if !unknown && matches!(self.before, Before::Held(_)) => {
                tracing::warn!(
                    namespace = place.namespace.name,
                    key = ?String::from_utf8_lossy(&place.key),
                    "an acknowledged value was lost: the store did not take it, and its key was changed elsewhere"
                );
            }
            Ok(Landed::Overtaken) => {
                waiting.stored();
                tracing::info!(
                    namespace = place.namespace.name,
                    key = ?String::from_utf8_lossy(&place.key),
                    "an acknowledged value was replaced elsewhere before the store took it"
                );
            }
            Err(error) => tracing::error!(
                namespace = place.namespace.name,
                key = ?String::from_utf8_lossy(&place.key),
                %error,
                "an acknowledged value was lost: the store did not take it"
            ),
        }
        changing.end(unknown);
    }

    /// Gives it to the store again after a while, unless that is done or comes too late.
    async fn once_more(&mut self, pause: Duration) -> Result<Landed> {
        // At once, too: what others put there from here on is seen to be later.
        if let Ok(Some(landed)) = self.look().await {
            return Ok(landed);
        }
        tokio::time::sleep(pause).await;
        match self.look().await? {
            Some(landed) => Ok(landed),
            None => self.store_again().await.map(Landed::Now),
        }
    }

    /// What has come of it, by what the store has; `None` when that is what was there before.
    async fn look(&mut self) -> Result<Option<Landed>> {
        let Kept { store, place, .. } = &*self.kept;
        let found = match store.stat(address(&**store, place)?, None).await {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found.as_ref().is_some_and(|found| self.is_it(found)) {
            return Ok(Some(Landed::Already));
        }
        if self.is_later(found.as_ref()) {
            return Ok(Some(Landed::Overtaken));
        }
        self.before = Before::Seen(found);
        Ok(None)
    }

    fn is_it(&self, found: &Meta) -> bool {
        let one = &self.meta;
        found.size == one.size
            && found.crc64nvme == one.crc64nvme
            && found.etag == one.etag
            && found.attributes == one.attributes
            && found.modified >= one.modified
    }

    /// Whether what the store has came later than this value.
    fn is_later(&self, found: Option<&Meta>) -> bool {
        let now = self.kept.cache.now();
        match &self.before {
            Before::Seen(before) => !is_still(before.as_ref(), found, now),
            Before::Held(held) => {
                let later =
                    found.map_or(held.is_some(), |found| found.modified > self.meta.modified);
                later && !is_still(held.as_ref(), found, now)
            }
        }
    }

    /// The same value once more, out of what is held of it, in the place of what was there before.
    async fn store_again(&self) -> Result<Stored> {
        let kept = &*self.kept;
        let options = StoreOptions {
            condition: match &self.before {
                Before::Seen(Some(before)) => Condition::IfMatch(before.etag),
                Before::Seen(None) | Before::Held(_) => Condition::IfAbsent,
            },
            ..kept.options
        };
        let address = address(&*kept.store, &kept.place)?;
        let mut upload = kept.store.store(address, options).await?;
        for piece in &kept.pieces {
            let mut bufs = Vec::new();
            if !piece.checked(0..piece.len(), &mut bufs) {
                count(&kept.cache.counters.corrupt);
                return Err(StoreError::new(
                    ErrorKind::Corrupt,
                    "the value changed while it was in memory",
                ));
            }
            for buf in bufs {
                upload.write(buf).await?;
            }
        }
        upload.commit(self.seal.clone()).await
    }
}

/// Whether a key is as it was `before`: that value may have ended by itself.
fn is_still(before: Option<&Meta>, found: Option<&Meta>, now: u64) -> bool {
    match (before, found) {
        (Some(before), Some(found)) => is_same(before, found),
        (Some(before), None) => before.expires.is_some_and(|at| at <= now),
        (None, found) => found.is_none(),
    }
}

/// Whether what failed so may succeed later, or has perhaps already.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Busy | ErrorKind::Io | ErrorKind::OutcomeUnknown | ErrorKind::PreconditionFailed
    )
}
