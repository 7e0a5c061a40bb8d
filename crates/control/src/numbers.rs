//! Namespace identifiers: given, moved, and taken away.

use std::sync::Arc;

use forebay_store::{NamespaceInfo, Store};
use serde::{Deserialize, Serialize};

use crate::nvme::{NSID_MAX, Published, What};
use crate::records::{NUMBERS, Seen};
use crate::{Error, Identities, Kind, Result, secrets};

const SUBSYSTEM: &str = "subsystem/";

/// What tells this store's NVM subsystem from every other.
#[derive(Serialize, Deserialize)]
struct Subsystem {
    uuid: String,
}

fn fresh_uuid() -> Result<String> {
    secrets::uuid().map_err(|error| Error::new(Kind::Failed, format!("no random bytes: {error}")))
}

fn key_value(namespace: &NamespaceInfo) -> What {
    What::KeyValue {
        namespace: namespace.name.clone(),
        id: namespace.id,
    }
}

fn block(name: &str) -> What {
    What::Block {
        name: name.to_owned(),
    }
}

/// The number that is asked for; none where any will do.
fn unless_any(nsid: u32) -> Option<u32> {
    Some(nsid).filter(|nsid| *nsid != 0)
}

fn record_of(nsid: u32) -> String {
    format!("{nsid:08x}")
}

impl<S: Store> Identities<S> {
    /// What tells this store's NVM subsystem from every other: 32 hexadecimal digits, the same at every start.
    ///
    /// # Errors
    /// Of the store.
    pub async fn subsystem_uuid(&self) -> Result<String> {
        let _changing = self.begin_change().await?;
        let made = Subsystem {
            uuid: fresh_uuid()?,
        };
        match self.records.create(SUBSYSTEM, "uuid", &made).await {
            Ok(()) => return Ok(made.uuid),
            Err(error) if error.kind == Kind::Exists => {}
            Err(error) => return Err(error),
        }
        let mut seen = Seen::default();
        let kept = self.records.load::<Subsystem>(SUBSYSTEM, &mut seen).await?;
        let kept = kept.into_iter().next();
        kept.map(|kept| kept.uuid)
            .ok_or_else(|| Error::new(Kind::Failed, "the subsystem's record is gone"))
    }

    /// All namespace identifiers that are taken, in order.
    pub fn published(&self) -> Vec<Arc<Published>> {
        self.nvme.published()
    }

    /// The namespace identifier of a namespace of the store.
    pub fn nsid_of(&self, namespace: &NamespaceInfo) -> Option<u32> {
        let known = self.nvme.known.read();
        let mut published = known.published.values();
        let found = published.find(|one| match &one.what {
            What::KeyValue { id, .. } => *id == namespace.id,
            What::Block { .. } => false,
        });
        found.map(|one| one.nsid)
    }

    fn numbered(&self, what: &What) -> Option<Arc<Published>> {
        let known = self.nvme.known.read();
        let mut published = known.published.values();
        published.find(|one| one.what == *what).cloned()
    }

    /// Publishes a namespace under `nsid`, or under the first that is free; one that was published moves.
    ///
    /// # Errors
    /// [`Kind::Exists`] when something else has that number, [`Kind::Invalid`] for a number that is none, [`Kind::Limit`]
    /// when none is free, or of the store.
    pub async fn publish(
        &self,
        namespace: &NamespaceInfo,
        nsid: Option<u32>,
    ) -> Result<Arc<Published>> {
        let mut changing = self.begin_change().await?;
        self.number(&mut changing, key_value(namespace), nsid).await
    }

    /// The number and UUID of a file or device that is exported by this name: those that it had, unless `nsid` is another.
    ///
    /// # Errors
    /// As [`Identities::publish`].
    pub async fn publish_block(&self, name: &str, nsid: Option<u32>) -> Result<Arc<Published>> {
        let mut changing = self.begin_change().await?;
        self.number(&mut changing, block(name), nsid).await
    }

    /// Takes a namespace's number away; nothing when it has none.
    ///
    /// # Errors
    /// Of the store.
    pub async fn unpublish(&self, namespace: &NamespaceInfo) -> Result<()> {
        let _changing = self.begin_change().await?;
        self.forget_number_of(&key_value(namespace)).await
    }

    /// Forgets the number and the UUID of an export; nothing when there is none of this name.
    ///
    /// # Errors
    /// Of the store.
    pub async fn unpublish_block(&self, name: &str) -> Result<()> {
        let _changing = self.begin_change().await?;
        self.forget_number_of(&block(name)).await
    }

    /// Refuses a number that a namespace, or one that is not made yet, cannot have; 0 is for any. What is told within a change holds
    /// until that ends.
    ///
    /// # Errors
    /// As [`Identities::publish`].
    pub(crate) fn check_number(
        &self,
        namespace: Option<&NamespaceInfo>,
        wanted: Option<Option<u32>>,
    ) -> Result<()> {
        let had = namespace.and_then(|namespace| self.nsid_of(namespace));
        match wanted.flatten() {
            None => Ok(()),
            Some(nsid) => self.number_for(had, unless_any(nsid)).map(drop),
        }
    }

    /// Within a change, gives a namespace the number that is wanted, 0 for any, or takes it away.
    ///
    /// # Errors
    /// As [`Identities::publish`].
    pub(crate) async fn renumber(
        &self,
        changing: &mut Seen,
        namespace: &NamespaceInfo,
        wanted: Option<Option<u32>>,
    ) -> Result<()> {
        let what = key_value(namespace);
        match wanted {
            None => Ok(()),
            Some(None) => self.forget_number_of(&what).await,
            Some(Some(nsid)) => {
                let numbered = self.number(changing, what, unless_any(nsid));
                numbered.await.map(drop)
            }
        }
    }

    async fn forget_number_of(&self, what: &What) -> Result<()> {
        match self.numbered(what) {
            Some(one) => self.forget_numbers(&[one.nsid]).await,
            None => Ok(()),
        }
    }

    /// Takes the numbers away from namespaces that are gone, by whichever door they went.
    ///
    /// # Errors
    /// Of the store.
    pub async fn unpublish_removed(&self) -> Result<()> {
        let gone = |published: &Published| match &published.what {
            What::KeyValue { namespace, id } => self
                .store
                .namespace(namespace)
                .map_or(true, |there| there.id != *id),
            What::Block { .. } => false,
        };
        if !self.nvme.published().iter().any(|one| gone(one)) {
            return Ok(());
        }
        let _changing = self.begin_change().await?;
        // A namespace that is not heard of yet would be gone, and the number is everybody's.
        self.store.settle().await?;
        let published = self.nvme.published();
        let gone = published.iter().filter(|one| gone(one));
        let gone: Vec<u32> = gone.map(|one| one.nsid).collect();
        self.forget_numbers(&gone).await
    }

    /// The number that something gets which has `had` and wants `wanted`, or any.
    fn number_for(&self, had: Option<u32>, wanted: Option<u32>) -> Result<u32> {
        let known = self.nvme.known.read();
        let is_free = |nsid: &u32| !known.published.contains_key(nsid);
        match wanted {
            Some(nsid) if !(1..=NSID_MAX).contains(&nsid) => Err(Error::new(
                Kind::Invalid,
                format!("{nsid} is not a namespace identifier: 1 to {NSID_MAX}"),
            )),
            Some(nsid) => match known.published.get(&nsid) {
                Some(holder) if had != wanted => Err(Error::new(
                    Kind::Exists,
                    format!("namespace identifier {nsid} belongs to {}", holder.what),
                )),
                _ => Ok(nsid),
            },
            None => had.or_else(|| (1..=NSID_MAX).find(is_free)).ok_or_else(|| {
                Error::full(format!("all {NSID_MAX} namespace identifiers are taken"))
            }),
        }
    }

    /// Within a change, gives something the number that is wanted, or any unless it has one.
    async fn number(
        &self,
        changing: &mut Seen,
        what: What,
        wanted: Option<u32>,
    ) -> Result<Arc<Published>> {
        let (had, published) = loop {
            let had = self.numbered(&what);
            let nsid = self.number_for(had.as_ref().map(|had| had.nsid), wanted)?;
            if let Some(had) = &had
                && had.nsid == nsid
            {
                return Ok(had.clone());
            }
            // A number that another had is another namespace to hosts that remember it.
            let published = Published {
                nsid,
                uuid: fresh_uuid()?,
                what: what.clone(),
            };
            let name = record_of(nsid);
            match self.records.create(NUMBERS, &name, &published).await {
                // Another gateway has taken it at this moment, and perhaps for the same.
                Err(error) if error.kind == Kind::Exists => {
                    self.read_again(changing).await?;
                    if !self.nvme.known.read().published.contains_key(&nsid) {
                        return Err(error);
                    }
                }
                created => {
                    created?;
                    break (had, Arc::new(published));
                }
            }
        };
        if let Some(had) = &had {
            self.records.forget(NUMBERS, &record_of(had.nsid)).await?;
        }
        self.nvme.change(|known| {
            if let Some(had) = &had {
                known.published.remove(&had.nsid);
            }
            known.published.insert(published.nsid, published.clone());
        });
        Ok(published)
    }

    async fn forget_numbers(&self, nsids: &[u32]) -> Result<()> {
        for nsid in nsids {
            self.records.forget(NUMBERS, &record_of(*nsid)).await?;
        }
        self.nvme.change(|known| {
            known.published.retain(|nsid, _| !nsids.contains(nsid));
        });
        Ok(())
    }
}
