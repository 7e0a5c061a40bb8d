//! What NVMe doors serve and to whom: hosts, and numbers of namespaces. In the store for good, in memory for the doors.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use forebay_store::Store;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::identities::Known as Tenants;
use crate::records::{HOSTS, NUMBERS, Records, Seen};
use crate::{Identities, Result};

/// The greatest namespace identifier that is given out: hosts read lists and make devices of that many.
pub const NSID_MAX: u32 = 1024;

/// A host that may connect to the NVMe doors.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its NVMe Qualified Name, unique.
    pub nqn: String,
    /// Whose namespaces it sees.
    pub tenant: String,
    /// What it proves to hold before it sees any (DH-HMAC-CHAP), as nvme-cli writes it: `DHHC-1:...`.
    pub chap_secret: Option<String>,
    /// The key of its TLS, as nvme-cli writes it: `NVMeTLSkey-1:...`. With one it must come by TLS.
    #[serde(default)]
    pub tls_key: Option<String>,
    /// When it was made known, in milliseconds since 1970.
    pub created: u64,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({} of {})", self.nqn, self.tenant)
    }
}

/// A namespace identifier that is taken, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The namespace identifier, from 1 to [`NSID_MAX`].
    pub nsid: u32,
    /// Tells the namespace from every other that a host sees anywhere: 32 hexadecimal digits.
    pub uuid: String,
    /// What it is.
    pub what: What,
}

/// What a host sees under a namespace identifier.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A namespace of the store, as keys and values.
    KeyValue {
        /// Its name.
        namespace: String,
        /// Its number in the store: one that is removed and made again is another.
        id: u32,
    },
    /// A file or device, as blocks. Kept also while it is not exported, so that its number and its UUID stay.
    Block {
        /// The name that it is exported by.
        name: String,
    },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::KeyValue { namespace, .. } => write!(f, "the namespace {namespace:?}"),
            What::Block { name } => write!(f, "the export {name:?}"),
        }
    }
}

type Hook = Box<dyn Fn(&[Arc<Host>], &[Arc<Published>]) + Send + Sync>;

/// The records in memory.
#[derive(Default)]
pub(crate) struct Nvme {
    pub(crate) known: RwLock<Known>,
    hooks: RwLock<Vec<Hook>>,
}

#[derive(Default, PartialEq)]
pub(crate) struct Known {
    pub(crate) hosts: BTreeMap<String, Arc<Host>>,
    pub(crate) published: BTreeMap<u32, Arc<Published>>,
}

impl Known {
    pub(crate) async fn read<S: Store>(
        records: &Records<S>,
        seen: &mut Seen,
        tenants: &Tenants,
    ) -> Result<Known> {
        let mut hosts = records.load::<Host>(HOSTS, seen).await?;
        hosts.retain(|host| tenants.has_tenant(&host.tenant));
        let hosts = hosts.into_iter();
        let published = records.load::<Published>(NUMBERS, seen).await?.into_iter();
        Ok(Known {
            hosts: hosts
                .map(|host| (host.nqn.clone(), Arc::new(host)))
                .collect(),
            published: published.map(|one| (one.nsid, Arc::new(one))).collect(),
        })
    }
}

impl Nvme {
    /// What was read anew takes the place of what was known.
    pub(crate) fn replace(&self, read: Known) {
        if *self.known.read() != read {
            self.change(|known| *known = read);
        }
    }

    pub(crate) fn hosts(&self) -> Vec<Arc<Host>> {
        self.known.read().hosts.values().cloned().collect()
    }

    /// What is shown under which number: something that has several, because it was being moved when a gateway died, under the lowest.
    /// Under two it would be two to hosts.
    pub(crate) fn published(&self) -> Vec<Arc<Published>> {
        let known = self.known.read();
        let mut seen = HashSet::new();
        let mut published: Vec<_> = known.published.values().cloned().collect();
        published.retain(|one| seen.insert(one.what.clone()));
        published
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.write());
        let (hosts, published) = (self.hosts(), self.published());
        for hook in self.hooks.read().iter() {
            hook(&hosts, &published);
        }
    }
}

impl<S: Store> Identities<S> {
    /// Calls `hook` with all hosts and namespace identifiers now and after every change of either.
    pub fn on_nvme_changed(
        &self,
        hook: impl Fn(&[Arc<Host>], &[Arc<Published>]) + Send + Sync + 'static,
    ) {
        hook(&self.nvme.hosts(), &self.nvme.published());
        self.nvme.hooks.write().push(Box::new(hook));
    }
}
