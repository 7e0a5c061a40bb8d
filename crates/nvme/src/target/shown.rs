//! Who may come, and what there is to see.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_io::File;
use forebay_proto::nvme::{Namespace, NamespaceKind, Subsystem};
use forebay_store::{NamespaceInfo, Quota, Scope, Store};

use super::block::{Blocks, Order};
use super::entered::Entered;
use super::session::{Session, Viewer};
use super::{Target, TargetConfig};
use forebay_proto::nvme::auth::Secret;
use forebay_proto::nvme::psk::TlsKey;

/// A host that may come.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its NVMe Qualified Name.
    pub nqn: String,
    /// Whose namespaces it sees.
    pub tenant: String,
    /// What it proves to hold before it sees any.
    pub secret: Option<Secret>,
    /// The key of its TLS; with one it must come by TLS.
    pub tls_key: Option<TlsKey>,
    /// What the subsystem proves to hold when the host asks for that.
    pub subsystem_secret: Option<Secret>,
}

/// A namespace to show.
#[derive(Debug, Clone)]
pub struct Published<F> {
    /// 1 to FFFFFFFEh.
    pub nsid: u32,
    /// Names it for ever, wherever it is seen.
    pub uuid: [u8; 16],
    /// What is behind it.
    pub backing: Backing<F>,
}

/// What is behind a namespace.
#[derive(Debug, Clone)]
pub enum Backing<F> {
    /// A namespace of the store, as keys and values.
    KeyValue {
        /// Its name.
        namespace: String,
        /// Its number, when another of the same name is not meant.
        id: Option<u32>,
    },
    /// A file or device, as blocks.
    Block {
        /// Open for reading, and for writing unless `read_only`.
        file: F,
        /// The length of a block is 2 to this power: 9 or 12.
        lba_shift: u8,
        /// Whether writes are refused.
        read_only: bool,
        /// Whose it is; `None`: every host sees it.
        tenant: Option<String>,
    },
}

/// One namespace as it is executed on.
#[derive(Debug)]
pub(super) struct Place<F> {
    uuid: [u8; 16],
    pub(super) what: What<F>,
}

#[derive(Debug)]
pub(super) enum What<F> {
    Kv {
        namespace: String,
        id: Option<u32>,
    },
    Block {
        blocks: Blocks<F>,
        tenant: Option<String>,
    },
}

/// What commands are executed on.
pub(super) enum Reached<'a, S, F> {
    Kv(Entered<'a, S>),
    Block(&'a Blocks<F>),
}

impl<F: File> What<F> {
    fn order(&self) -> Option<&Order> {
        match self {
            What::Block { blocks, .. } => Some(blocks.order()),
            What::Kv { .. } => None,
        }
    }
}

/// Everything.
#[derive(Debug)]
pub(super) struct Shown<F> {
    hosts: BTreeMap<String, Arc<Host>>,
    places: BTreeMap<u32, Arc<Place<F>>>,
}

impl<F> Default for Shown<F> {
    fn default() -> Shown<F> {
        Shown {
            hosts: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }
}

impl<F: File> Shown<F> {
    pub(super) fn set_hosts(&mut self, hosts: Vec<Host>) {
        let named = |host: Host| (host.nqn.clone(), Arc::new(host));
        self.hosts = hosts.into_iter().map(named).collect();
    }

    pub(super) fn set_published(&mut self, published: Vec<Published<F>>) {
        let shown = std::mem::take(&mut self.places);
        let place = |published: Published<F>| {
            let before = shown.get(&published.nsid);
            let before = before.filter(|before| before.uuid == published.uuid);
            let what = match published.backing {
                Backing::KeyValue { namespace, id } => What::Kv { namespace, id },
                Backing::Block {
                    file,
                    lba_shift,
                    read_only,
                    tenant,
                } => What::Block {
                    blocks: {
                        let order = before.and_then(|before| before.what.order().cloned());
                        Blocks::new(file, lba_shift, read_only, order.unwrap_or_default())
                    },
                    tenant,
                },
            };
            let uuid = published.uuid;
            (published.nsid, Arc::new(Place { uuid, what }))
        };
        self.places = published.into_iter().map(place).collect();
    }

    pub(super) fn host(&self, nqn: &str) -> Option<&Arc<Host>> {
        self.hosts.get(nqn)
    }

    pub(super) fn places(&self) -> Vec<Arc<Place<F>>> {
        self.places.values().cloned().collect()
    }

    pub(super) fn place(&self, nsid: u32) -> Option<Arc<Place<F>>> {
        self.places.get(&nsid).cloned()
    }
}

impl<S: Store, F: File> Target<S, F> {
    /// Waits until no change that a session's host has begun is with a device, or the store, any more. A host that has lost its connection
    /// repeats what it was not told of: nothing of before may land after that.
    pub(crate) async fn settled(&self, session: &Session<S>) {
        self.under_way.settled(Some(&session.host)).await;
        let places = self.shown.read().places();
        for place in places {
            if let What::Block { blocks, .. } = &place.what {
                blocks.settled(&session.host).await;
            }
        }
    }

    /// As [`settled`](Target::settled), for a command that was given up: waits for what its host has begun in its namespace. Those that
    /// change values are not given up once they have [begun to](super::Payload::land).
    pub(crate) async fn settled_in(&self, session: &Session<S>, nsid: u32) {
        let place = self.shown.read().place(nsid);
        if let Some(place) = place
            && let What::Block { blocks, .. } = &place.what
        {
            blocks.settled(&session.host).await;
        }
    }

    /// What a viewer sees now.
    pub(super) fn snapshot(&self, viewer: &Viewer) -> Subsystem {
        let generation = self.generation();
        let shown = self.shown.read();
        let places = shown.places.iter();
        Subsystem {
            nqn: self.config.nqn.clone(),
            serial: self.config.serial.clone(),
            model: self.config.model.clone(),
            firmware: self.config.firmware.clone(),
            generation,
            namespaces: places
                .filter_map(|(nsid, place)| {
                    let kind = self.look(place, viewer)?;
                    Some(Namespace {
                        nsid: *nsid,
                        uuid: place.uuid,
                        nguid: place.uuid,
                        kind,
                    })
                })
                .collect(),
        }
    }

    /// What a namespace keeps; `None` when the viewer may not see it, or when it is not there.
    fn look(&self, place: &Place<F>, viewer: &Viewer) -> Option<NamespaceKind> {
        match &place.what {
            What::Kv { namespace, id } => {
                let info = self.namespace(namespace, *id, viewer)?;
                // It may be removed at this moment; then it holds nothing.
                let usage = self.store.usage(Scope::Namespace(namespace));
                let used_bytes = usage.map_or(0, |usage| usage.bytes);
                Some(kv(&self.config, info.config.quota, used_bytes))
            }
            What::Block { blocks, tenant } => viewer.sees(tenant.as_deref()).then(|| blocks.kind()),
        }
    }

    /// What a viewer's commands reach there now, if they may.
    pub(super) fn reach<'a>(
        &'a self,
        place: &'a Place<F>,
        viewer: &Viewer,
    ) -> Option<Reached<'a, S, F>> {
        match &place.what {
            What::Kv { namespace, id } => {
                let info = self.namespace(namespace, *id, viewer)?;
                let entered = Entered::new(&*self.store, namespace, info.id);
                Some(Reached::Kv(entered))
            }
            What::Block { blocks, tenant } => viewer
                .sees(tenant.as_deref())
                .then_some(Reached::Block(blocks)),
        }
    }

    /// The store's namespace of this name, if it is the one that is meant and the viewer's.
    fn namespace(
        &self,
        name: &str,
        id: Option<u32>,
        viewer: &Viewer,
    ) -> Option<Arc<NamespaceInfo>> {
        let info = self.store.namespace(name).ok()?;
        let meant = id.is_none_or(|id| id == info.id) && viewer.sees(Some(&info.config.tenant));
        meant.then_some(info)
    }
}

fn kv(config: &TargetConfig, quota: Quota, used_bytes: u64) -> NamespaceKind {
    NamespaceKind::Kv {
        value_bytes_max: config.value_bytes_max,
        // MNKS says 0 where there is no bound; a bound of none at all cannot be said.
        keys_max: quota
            .objects
            .map_or(0, |keys| keys.clamp(1, u64::from(u32::MAX)) as u32),
        capacity_bytes: quota.bytes.unwrap_or(config.capacity_bytes).max(used_bytes),
        used_bytes,
    }
}
