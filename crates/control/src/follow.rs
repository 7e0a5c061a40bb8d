//! Keeping up with others over the same store: what another gateway changes of tenants, keys, hosts, numbers and modules holds
//! here too.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use forebay_store::{Notice, Store};
use tokio::sync::MutexGuard;
use tokio::time::{MissedTickBehavior, interval};

use crate::identities::Known;
use crate::records::Seen;
use crate::{Identities, Result, SYSTEM_NAMESPACE, modules, nvme};

/// How often the records are compared when no notice comes: one may be lost.
const INTERVAL: Duration = Duration::from_secs(10);

impl<S: Store> Identities<S> {
    /// Takes in what others change: at once when the store tells of it, within 10 s when it does not. Within 10 s, too, what was allowed
    /// in a namespace goes that has gone by whichever door.
    pub async fn follow(&self) -> Infallible {
        let mut changes = self.store.changes();
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let notice = async {
                match &mut changes {
                    Some(changes) => changes.next().await,
                    // Nobody else can change anything.
                    None => pending().await,
                }
            };
            tokio::select! {
                notice = notice => match notice {
                    None => return pending().await,
                    Some(Notice::Changed { namespace, .. }) if namespace != SYSTEM_NAMESPACE => continue,
                    Some(_) => {}
                },
                _ = tick.tick() => {
                    if let Err(error) = self.forbid_removed().await {
                        tracing::warn!(%error, "what was allowed in a namespace that is gone stays for now");
                    }
                }
            }
            if self.is_shared
                && let Err(error) = self.catch_up().await
            {
                tracing::warn!(%error, "tenants, keys and modules may be behind what other gateways know");
            }
        }
    }

    /// Reads the records again if any of them is not as it was when it was read, and tells the doors what changed.
    ///
    /// # Errors
    /// Of the store; [`Kind::Failed`](crate::Kind::Failed) for a record that is not one. What was known stays so.
    pub async fn catch_up(&self) -> Result<()> {
        let mut seen = self.changing.lock().await;
        self.read_again(&mut seen).await
    }

    /// To be held while something is changed: one change at a time, over what others have changed by now, and over what is there of
    /// a change that failed or that nobody waited for.
    pub(crate) async fn begin_change(&self) -> Result<MutexGuard<'_, Seen>> {
        let mut seen = self.changing.lock().await;
        if self.is_shared || self.records.are_in_doubt() {
            self.read_again(&mut seen).await?;
        }
        Ok(seen)
    }

    /// Memory is as the records are when this returns well, whatever became of changes before.
    pub(crate) async fn read_again(&self, seen: &mut Seen) -> Result<()> {
        if self.records.are_in_doubt() {
            *seen = Seen::default();
        }
        // What is read may be newer than what was listed, or older out of a cache: what counts as seen is what was read.
        let mut read = self.records.seen_now().await?;
        if read == *seen {
            return Ok(());
        }
        let known = Known::read(&self.records, &mut read).await?;
        let nvme = nvme::Known::read(&self.records, &mut read, &known).await?;
        let modules = modules::read(&self.records, &mut read, &known).await?;
        self.replace(known);
        self.nvme.replace(nvme);
        self.modules.replace(modules);
        *seen = read;
        self.records.are_read();
        Ok(())
    }
}
