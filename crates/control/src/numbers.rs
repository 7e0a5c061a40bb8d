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

    /// The numbers that something has: one, unless it was being moved when a gateway died, or two gave it numbers at once.
    fn numbers_of(&self, what: &What) -> Vec<u32> {
        let known = self.nvme.known.read();
        let published = known.published.values();
        let own = published.filter(|one| one.what == *what);
        own.map(|one| one.nsid).collect()
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
        let what = namespace.map(key_value);
        match wanted.flatten() {
            None => Ok(()),
            Some(nsid) => self.number_for(what.as_ref(), unless_any(nsid)).map(drop),
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
        let nsids = self.numbers_of(what);
        match nsids.is_empty() {
            true => Ok(()),
            false => self.forget_numbers(&nsids).await,
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
        let gone: Vec<u32> = {
            let known = self.nvme.known.read();
            let gone = known.published.values().filter(|one| gone(one));
            gone.map(|one| one.nsid).collect()
        };
        self.forget_numbers(&gone).await
    }

    /// The number that something gets which wants `wanted`, or any: then the lowest that it has, if it has one.
    /// One that nothing is shown under is free: what has it has another besides.
    fn number_for(&self, what: Option<&What>, wanted: Option<u32>) -> Result<u32> {
        let shown = self.nvme.published();
        let known = self.nvme.known.read();
        let is_free = |nsid: &u32| !known.published.contains_key(nsid);
        match wanted {
            Some(nsid) if !(1..=NSID_MAX).contains(&nsid) => Err(Error::new(
                Kind::Invalid,
                format!("{nsid} is not a namespace identifier: 1 to {NSID_MAX}"),
            )),
            Some(nsid) => match shown.iter().find(|one| one.nsid == nsid) {
                Some(holder) if what != Some(&holder.what) => Err(Error::new(
                    Kind::Exists,
                    format!("namespace identifier {nsid} belongs to {}", holder.what),
                )),
                _ => Ok(nsid),
            },
            None => {
                let mut published = known.published.values();
                let had = published.find(|one| what == Some(&one.what));
                let nsid = had.map(|had| had.nsid);
                let nsid = nsid.or_else(|| (1..=NSID_MAX).find(is_free));
                nsid.ok_or_else(|| {
                    Error::full(format!("all {NSID_MAX} namespace identifiers are taken"))
                })
            }
        }
    }

    /// Within a change, gives something the number that is wanted, or any unless it has one; what others it has go. A new one is there
    /// before the old one goes, so that who dies between leaves both, and whoever gives it a number next finds them.
    async fn number(
        &self,
        changing: &mut Seen,
        what: What,
        wanted: Option<u32>,
    ) -> Result<Arc<Published>> {
        loop {
            let nsid = self.number_for(Some(&what), wanted)?;
            let mut held = self.nvme.known.read().published.get(&nsid).cloned();
            if held.take_if(|held| held.what != what).is_some() {
                self.forget_numbers(&[nsid]).await?;
            }
            let mut others = self.numbers_of(&what);
            others.retain(|other| *other != nsid);
            let made = match held {
                Some(held) if others.is_empty() => return Ok(held),
                Some(_) => None,
                None => match self.create_number(changing, nsid, &what).await? {
                    Some(made) => Some(made),
                    None => continue,
                },
            };
            for other in &others {
                self.records.forget(NUMBERS, &record_of(*other)).await?;
            }
            self.nvme.change(|known| {
                known.published.retain(|nsid, _| !others.contains(nsid));
                known.published.extend(made.map(|made| (nsid, made)));
            });
            // Another gateway may have given it another one, or taken this one away, at the same moment.
            if self.is_shared {
                self.read_again(changing).await?;
            }
        }
    }

    /// Has a number that is free kept for something; `None` when another gateway has taken it at this moment, and perhaps for the same.
    async fn create_number(
        &self,
        changing: &mut Seen,
        nsid: u32,
        what: &What,
    ) -> Result<Option<Arc<Published>>> {
        // A number that another had is another namespace to hosts that remember it.
        let published = Published {
            nsid,
            uuid: fresh_uuid()?,
            what: what.clone(),
        };
        let name = record_of(nsid);
        match self.records.create(NUMBERS, &name, &published).await {
            Ok(_) => Ok(Some(Arc::new(published))),
            Err(error) if error.kind == Kind::Exists => {
                self.read_again(changing).await?;
                match self.nvme.known.read().published.contains_key(&nsid) {
                    true => Ok(None),
                    false => Err(error),
                }
            }
            Err(error) => Err(error),
        }
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
