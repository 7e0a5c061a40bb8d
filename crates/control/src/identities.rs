//! Tenants and access keys: in the store for good, in memory for the doors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forebay_store::{NamespaceInfo, Quota, Store};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::modules::{AllowedModule, Modules};
use crate::nvme::{Host, Nvme};
use crate::records::{HOSTS, KEYS, MODULES, Records, Seen, TENANTS};
use crate::{Error, Kind, Result, names, secrets};

/// Holds tenants and keys. Not a legal bucket name, so no door can reach it; owned by a tenant that cannot exist.
pub const SYSTEM_NAMESPACE: &str = ".forebay";
/// The tenant made at the first start.
pub const ROOT_TENANT: &str = "root";

/// An owner of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name, unique.
    pub name: String,
    /// A name for people.
    pub display_name: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
}

/// What a client proves to hold.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// Its public half, unique.
    pub id: String,
    /// Its secret half.
    pub secret: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AccessKey({} of {})", self.id, self.tenant)
    }
}

type Hook = Box<dyn Fn(&[Arc<AccessKey>]) + Send + Sync>;

/// All tenants and keys of a store, and what its NVMe doors serve and to whom.
pub struct Identities<S> {
    pub(crate) store: Arc<S>,
    pub(crate) records: Records<S>,
    pub(crate) nvme: Nvme,
    pub(crate) modules: Modules,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    known: RwLock<Known>,
    /// Whether somebody else may change the records.
    pub(crate) is_shared: bool,
    /// One change at a time, so that store and memory agree. Which records memory was made of.
    pub(crate) changing: tokio::sync::Mutex<Seen>,
    hooks: RwLock<Vec<Hook>>,
}

/// Tenants and keys in memory.
#[derive(Default)]
pub(crate) struct Known {
    tenants: BTreeMap<String, Arc<Tenant>>,
    keys: HashMap<String, Arc<AccessKey>>,
}

impl Known {
    pub(crate) async fn read<S: Store>(records: &Records<S>, seen: &mut Seen) -> Result<Known> {
        let tenants = records.load::<Tenant>(TENANTS, seen).await?.into_iter();
        let tenants: BTreeMap<_, _> = tenants
            .map(|tenant| (tenant.name.clone(), Arc::new(tenant)))
            .collect();
        let mut keys = records.load::<AccessKey>(KEYS, seen).await?;
        // Another gateway may have made a key while the tenant was removed here.
        keys.retain(|key| tenants.contains_key(&key.tenant));
        let keys = keys.into_iter();
        Ok(Known {
            tenants,
            keys: keys.map(|key| (key.id.clone(), Arc::new(key))).collect(),
        })
    }

    /// Whether there is this tenant: what another gateway made for it while it was removed here is nobody's.
    pub(crate) fn has_tenant(&self, name: &str) -> bool {
        self.tenants.contains_key(name)
    }
}

impl<S: Store> Identities<S> {
    /// Reads what the store holds. `clock` gives milliseconds since 1970.
    ///
    /// # Errors
    /// Of the store; [`Kind::Failed`] for a record that is not one.
    pub async fn open(
        store: Arc<S>,
        clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<Identities<S>> {
        let records = Records::open(store.clone()).await?;
        let is_shared = store.changes().is_some();
        let identities = Identities {
            store,
            records,
            nvme: Nvme::default(),
            modules: Modules::default(),
            clock,
            known: RwLock::default(),
            is_shared,
            changing: tokio::sync::Mutex::default(),
            hooks: RwLock::default(),
        };
        identities.catch_up().await?;
        if let Err(error) = identities.tidy_modules().await {
            tracing::warn!(%error, "what nobody is allowed any more stays until the next start");
        }
        Ok(identities)
    }

    /// Whether other processes may serve the same store, and change what is known here.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What was read anew takes the place of what was known.
    pub(crate) fn replace(&self, read: Known) {
        let mut known = self.known.write();
        known.tenants = read.tenants;
        let keys_changed = known.keys != read.keys;
        drop(known);
        if keys_changed {
            self.change_keys(|keys| *keys = read.keys);
        }
    }

    /// The time in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// The key of this id.
    pub fn find(&self, id: &str) -> Option<Arc<AccessKey>> {
        self.known.read().keys.get(id).cloned()
    }

    /// All tenants by name.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.known.read().tenants.values().cloned().collect()
    }

    /// One tenant.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn tenant(&self, name: &str) -> Result<Arc<Tenant>> {
        let known = self.known.read();
        known
            .tenants
            .get(name)
            .cloned()
            .ok_or_else(|| Error::no_tenant(name))
    }

    /// A tenant's keys, oldest first.
    pub fn keys_of(&self, tenant: &str) -> Vec<Arc<AccessKey>> {
        let mut keys = self.all_keys();
        keys.retain(|key| key.tenant == tenant);
        keys
    }

    /// Calls `hook` with all keys now and after every change of keys.
    pub fn on_keys_changed(&self, hook: impl Fn(&[Arc<AccessKey>]) + Send + Sync + 'static) {
        hook(&self.all_keys());
        self.hooks.write().push(Box::new(hook));
    }

    /// Makes a tenant, which has nothing: what is left of an earlier one of its name is forgotten.
    ///
    /// # Errors
    /// [`Kind::Invalid`], [`Kind::Exists`], [`Kind::NotEmpty`] while there are namespaces of an earlier one, or of the store.
    pub async fn create_tenant(&self, name: &str, display_name: &str) -> Result<Arc<Tenant>> {
        names::check_tenant(name)?;
        if display_name.len() > 256 {
            return Err(Error::new(
                Kind::Invalid,
                "a display name has at most 256 bytes",
            ));
        }
        let _changing = self.begin_change().await?;
        if self.known.read().tenants.contains_key(name) {
            return Err(Error::new(
                Kind::Exists,
                format!("tenant {name:?} exists already"),
            ));
        }
        // The root tenant is never removed: what has its name is its own.
        if name != ROOT_TENANT {
            self.leave_nothing_of(name).await?;
        }
        let tenant = Arc::new(Tenant {
            name: name.to_owned(),
            display_name: match display_name {
                "" => name.to_owned(),
                given => given.to_owned(),
            },
            created: (self.clock)(),
        });
        let quota_left = self.store.tenant_quota(name) != Quota::default();
        self.records.create(TENANTS, name, &*tenant).await?;
        self.known
            .write()
            .tenants
            .insert(name.to_owned(), tenant.clone());
        // Not before: it may have been set for one that another gateway made at this moment.
        if quota_left && let Err(error) = self.forget_quota_of(name).await {
            tracing::warn!(tenant = name, %error, "it has the quota of an earlier one of its name until it is given one");
        }
        Ok(tenant)
    }

    /// Removes a tenant that owns no namespace, its keys, its NVMe hosts, its modules and its quota.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::NotEmpty`], [`Kind::Denied`] for the root tenant, or of the store.
    pub async fn remove_tenant(&self, name: &str) -> Result<()> {
        let mut changing = self.begin_change().await?;
        self.tenant(name)?;
        if name == ROOT_TENANT {
            return Err(Error::new(
                Kind::Denied,
                "the root tenant cannot be removed",
            ));
        }
        // What is refused ends no session: they end with the keys. So is it where the store cannot tell which namespaces there are.
        self.settle_shared().await?;
        self.owns_nothing(name)?;
        // The keys go out of service first, so that no request begins between the check and the end that makes a namespace.
        let keys = self.keys_of(name);
        self.change_keys(|known| {
            for key in &keys {
                known.remove(&key.id);
            }
        });
        if let Err(owner) = self.owns_nothing(name) {
            self.change_keys(|known| {
                for key in &keys {
                    known.insert(key.id.clone(), key.clone());
                }
            });
            return Err(owner);
        }
        let forgotten = self.forget_tenant(name, &keys).await;
        // What is left of it goes on as before, also where nothing has changed.
        if forgotten.is_err() {
            *changing = Seen::default();
            if let Err(error) = self.read_again(&mut changing).await {
                tracing::warn!(tenant = name, %error, "its keys are out of service until the next change");
            }
        }
        forgotten
    }

    fn namespaces_of(&self, name: &str) -> Vec<Arc<NamespaceInfo>> {
        let mut namespaces = self.store.namespaces();
        namespaces.retain(|namespace| namespace.config.tenant == name);
        namespaces
    }

    fn owns_nothing(&self, name: &str) -> Result<()> {
        match self.namespaces_of(name).len() {
            0 => Ok(()),
            owned => Err(Error::new(
                Kind::NotEmpty,
                format!("tenant {name:?} owns {owned} namespaces; remove them first"),
            )),
        }
    }

    /// Before a tenant is made: forgets what other gateways made for an earlier one of its name while that was removed. Refuses while
    /// namespaces of that one are left, because they hold values.
    async fn leave_nothing_of(&self, name: &str) -> Result<()> {
        self.settle_shared().await?;
        if let Some(first) = self.namespaces_of(name).first() {
            return Err(Error::new(
                Kind::NotEmpty,
                format!(
                    "the namespace {:?} is left of an earlier tenant {name:?}, and what is in it is for nobody else; take another name, or remove it once it is empty",
                    first.name
                ),
            ));
        }
        self.forget_left_of(name).await
    }

    /// Forgets the records of a tenant that there is not.
    async fn forget_left_of(&self, name: &str) -> Result<()> {
        if self.knows_all().await? {
            return Ok(());
        }
        // The doors know nothing of them.
        let mut seen = Seen::default();
        let mut keys = self.records.load::<AccessKey>(KEYS, &mut seen).await?;
        keys.retain(|key| key.tenant == name);
        let mut hosts = self.records.load::<Host>(HOSTS, &mut seen).await?;
        hosts.retain(|host| host.tenant == name);
        let mut modules = self
            .records
            .load::<AllowedModule>(MODULES, &mut seen)
            .await?;
        modules.retain(|module| module.tenant == name);
        if keys.is_empty() && hosts.is_empty() && modules.is_empty() {
            return Ok(());
        }
        // Else they may be of one that another gateway has made at this moment.
        if self
            .records
            .names(TENANTS)
            .await?
            .iter()
            .any(|one| one == name)
        {
            return Ok(());
        }
        for key in keys {
            self.records.forget(KEYS, &key.id).await?;
        }
        for host in hosts {
            self.records.forget(HOSTS, &host.nqn).await?;
        }
        let modules: Vec<_> = modules.into_iter().map(Arc::new).collect();
        self.forget_modules(&modules).await
    }

    /// Hears of the namespaces that others have made.
    async fn settle_shared(&self) -> Result<()> {
        match self.is_shared {
            true => Ok(self.store.settle().await?),
            false => Ok(()),
        }
    }

    /// Whether there are no records but those that are known here: what is of no tenant is not.
    async fn knows_all(&self) -> Result<bool> {
        let keys = self.known.read().keys.len();
        Ok(self.records.names(KEYS).await?.len() == keys
            && self.records.names(HOSTS).await?.len() == self.hosts().len()
            && self.records.names(MODULES).await?.len() == self.modules().len())
    }

    async fn forget_quota_of(&self, name: &str) -> Result<()> {
        if self.store.tenant_quota(name) != Quota::default() {
            self.store.set_tenant_quota(name, Quota::default()).await?;
        }
        Ok(())
    }

    async fn forget_tenant(&self, name: &str, keys: &[Arc<AccessKey>]) -> Result<()> {
        for key in keys {
            self.records.forget(KEYS, &key.id).await?;
        }
        self.remove_hosts_of(name).await?;
        self.forbid_modules_of(name).await?;
        // A request that was under way when the keys went may have made one since. Its owner stays, or the next tenant of
        // this name would inherit it. Also at another gateway.
        self.settle_shared().await?;
        self.owns_nothing(name)?;
        self.forget_quota_of(name).await?;
        self.records.forget(TENANTS, name).await?;
        self.known.write().tenants.remove(name);
        if let Err(error) = self.forget_left_of(name).await {
            tracing::info!(tenant = name, %error, "what another gateway made for it is forgotten when one of its name is made");
        }
        Ok(())
    }

    /// Makes a key for a tenant: a fresh one, or the pair given.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the tenant, [`Kind::Exists`] for the id, [`Kind::Invalid`], or of the store.
    pub async fn create_key(
        &self,
        tenant: &str,
        given: Option<(&str, &str)>,
    ) -> Result<Arc<AccessKey>> {
        let (id, secret) = match given {
            Some((id, secret)) => (id.to_owned(), secret.to_owned()),
            None => secrets::generate()
                .map_err(|error| Error::new(Kind::Failed, format!("no random bytes: {error}")))?,
        };
        names::check_access_key(&id, &secret)?;
        let _changing = self.begin_change().await?;
        self.tenant(tenant)?;
        if self.known.read().keys.contains_key(&id) {
            return Err(Error::new(
                Kind::Exists,
                format!("access key {id:?} exists already"),
            ));
        }
        let key = self.new_key(id, secret, tenant);
        self.records.create(KEYS, &key.id, &*key).await?;
        self.serve_key(&key);
        Ok(key)
    }

    /// Removes a key; requests signed by it are refused from now on.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or of the store.
    pub async fn remove_key(&self, id: &str) -> Result<()> {
        let _changing = self.begin_change().await?;
        if self.find(id).is_none() {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no access key {:?}", names::shown(id)),
            ));
        }
        self.records.forget(KEYS, id).await?;
        self.change_keys(|keys| {
            keys.remove(id);
        });
        Ok(())
    }

    /// Makes sure that the root tenant exists and has a key, the pair `given` if there is one (whose secret then holds), and
    /// returns that key.
    ///
    /// # Errors
    /// [`Kind::Denied`] when the id given belongs to another tenant, or as for making a tenant and a key.
    pub async fn ensure_root(&self, given: Option<(&str, &str)>) -> Result<Arc<AccessKey>> {
        match self.create_tenant(ROOT_TENANT, "").await {
            Err(error) if error.kind != Kind::Exists => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let Some((id, secret)) = given else {
            return match self.keys_of(ROOT_TENANT).into_iter().next() {
                Some(key) => Ok(key),
                None => self.create_key(ROOT_TENANT, None).await,
            };
        };
        if self.find(id).is_none() {
            match self.create_key(ROOT_TENANT, given).await {
                // Another gateway has made it at this moment: it is known here from now on.
                Err(error) if error.kind == Kind::Exists => self.catch_up().await?,
                made => return made,
            }
        }
        match self.find(id) {
            None => Err(Error::new(
                Kind::Exists,
                format!("access key {id:?} is being made and removed elsewhere"),
            )),
            Some(key) if key.tenant != ROOT_TENANT => Err(Error::new(
                Kind::Denied,
                format!("access key {id:?} belongs to tenant {:?}", key.tenant),
            )),
            Some(key) if key.secret == secret => Ok(key),
            Some(_) => {
                names::check_access_key(id, secret)?;
                let _changing = self.begin_change().await?;
                let key = self.new_key(id.to_owned(), secret.to_owned(), ROOT_TENANT);
                self.records.save(KEYS, &key.id, &*key).await?;
                self.serve_key(&key);
                Ok(key)
            }
        }
    }

    fn all_keys(&self) -> Vec<Arc<AccessKey>> {
        let mut keys: Vec<_> = self.known.read().keys.values().cloned().collect();
        keys.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        keys
    }

    fn new_key(&self, id: String, secret: String, tenant: &str) -> Arc<AccessKey> {
        Arc::new(AccessKey {
            id,
            secret,
            tenant: tenant.to_owned(),
            created: (self.clock)(),
        })
    }

    /// Requests signed by it are served from now on.
    fn serve_key(&self, key: &Arc<AccessKey>) {
        self.change_keys(|keys| {
            keys.insert(key.id.clone(), key.clone());
        });
    }

    fn change_keys(&self, change: impl FnOnce(&mut HashMap<String, Arc<AccessKey>>)) {
        change(&mut self.known.write().keys);
        let keys = self.all_keys();
        for hook in self.hooks.read().iter() {
            hook(&keys);
        }
    }
}
