//! What an administrator may ask for, whatever carries the call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_fabric::Sessions;
use forebay_store::{
    Address, ByteRange, ErrorKind, NamespaceConfig, NamespaceInfo, Scope, Store, StoreError, Usage,
    Versioning, check_namespaces,
};
use tokio::task::{spawn_blocking, yield_now};

use crate::api::{
    DurabilityText, Host, Key, LifecycleReport, Limits, Module, ModuleSource, Namespace,
    NamespaceChange, NewHost, NewKey, NewModule, NewNamespace, NewTenant, ScrubReport, Server,
    Tenant,
};
use crate::{
    AccessKey, ColdTier, Error, Identities, Kind, Leave, MODULE_BYTES_MAX, ROOT_TENANT, Result,
    SYSTEM_NAMESPACE, names,
};

/// Work that the process around the API does.
pub trait Node: Send + Sync + 'static {
    /// What runs where.
    fn server(&self) -> Server;
    /// Reads every value and checks it.
    fn scrub(&self) -> Pin<Box<dyn Future<Output = Result<ScrubReport>> + Send + '_>>;
    /// Applies the lifecycle rules now.
    fn lifecycle_run(&self) -> Pin<Box<dyn Future<Output = Result<LifecycleReport>> + Send + '_>>;
    /// The cold tier, when there is one.
    fn cold_tier(&self) -> Option<Arc<dyn ColdTier>> {
        None
    }
    /// Refuses, in words, bytes that are no module that could be executed.
    ///
    /// # Errors
    /// The words.
    fn check_module(&self, wasm: &[u8]) -> std::result::Result<(), String>;
}

/// The operations of an administrator over one store. Whoever calls has checked that the caller may.
pub struct Admin<S> {
    store: Arc<S>,
    identities: Arc<Identities<S>>,
    node: Arc<dyn Node>,
    sessions: Arc<Sessions>,
}

impl<S: Store> Admin<S> {
    /// Over a store, its identities, the process that serves them, and the table of sessions that all doors share.
    pub fn new(
        store: Arc<S>,
        identities: Arc<Identities<S>>,
        node: Arc<dyn Node>,
        sessions: Arc<Sessions>,
    ) -> Admin<S> {
        Admin {
            store,
            identities,
            node,
            sessions,
        }
    }

    /// What runs where.
    pub fn server(&self) -> Server {
        self.node.server()
    }

    /// Reads every value and checks it.
    ///
    /// # Errors
    /// Of the store.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        self.node.scrub().await
    }

    /// Applies the lifecycle rules now.
    ///
    /// # Errors
    /// Of the store.
    pub async fn lifecycle_run(&self) -> Result<LifecycleReport> {
        self.node.lifecycle_run().await
    }

    /// All tenants by name. Gives way to others on its thread.
    pub async fn tenants(&self) -> Vec<Tenant> {
        let tenants = self.identities.tenants();
        described(&tenants, |tenant| self.shown(tenant)).await
    }

    /// One tenant.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn tenant(&self, name: &str) -> Result<Tenant> {
        Ok(self.shown(&*self.identities.tenant(name)?))
    }

    /// Makes a tenant.
    ///
    /// # Errors
    /// As [`Identities::create_tenant`].
    pub async fn create_tenant(&self, new: NewTenant) -> Result<Tenant> {
        let made = self.identities.create_tenant(&new.name, &new.display_name);
        let tenant = made.await?;
        tracing::info!(tenant = tenant.name, "tenant created");
        Ok(self.shown(&tenant))
    }

    /// Removes a tenant that owns nothing.
    ///
    /// # Errors
    /// As [`Identities::remove_tenant`].
    pub async fn remove_tenant(&self, name: &str) -> Result<()> {
        self.identities.remove_tenant(name).await?;
        tracing::info!(tenant = name, "tenant removed");
        Ok(())
    }

    /// Bounds what a tenant's namespaces hold together.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or of the store.
    pub async fn set_tenant_quota(&self, name: &str, limits: Limits) -> Result<Tenant> {
        // What is read here must not be changed before it is written back.
        let _changing = self.identities.begin_change().await?;
        let tenant = self.identities.tenant(name)?;
        let quota = limits.apply(self.store.tenant_quota(name));
        self.store.set_tenant_quota(name, quota).await?;
        Ok(self.shown(&tenant))
    }

    /// The keys of all tenants, or of one, oldest first, without their secrets.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the tenant.
    pub fn keys(&self, tenant: Option<&str>) -> Result<Vec<Key>> {
        let tenants = match tenant {
            Some(name) => vec![self.identities.tenant(name)?],
            None => self.identities.tenants(),
        };
        let keys = tenants
            .iter()
            .flat_map(|tenant| self.identities.keys_of(&tenant.name));
        let mut keys: Vec<Key> = keys.map(|key| public(&key)).collect();
        keys.sort_by(|a, b| (a.created, &a.access_key).cmp(&(b.created, &b.access_key)));
        Ok(keys)
    }

    /// Makes a key; the answer alone holds its secret.
    ///
    /// # Errors
    /// As [`Identities::create_key`]; [`Kind::Invalid`] for half a pair.
    pub async fn create_key(&self, tenant: &str, new: NewKey) -> Result<Key> {
        let given = match (&new.access_key, &new.secret_key) {
            (Some(id), Some(secret)) => Some((id.as_str(), secret.as_str())),
            (None, None) => None,
            _ => {
                return Err(Error::new(
                    Kind::Invalid,
                    "an imported key needs both its access key and its secret key",
                ));
            }
        };
        let key = self.identities.create_key(tenant, given).await?;
        tracing::info!(tenant, access_key = key.id, "access key created");
        Ok(Key {
            secret_key: Some(key.secret.clone()),
            ..public(&key)
        })
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Identities::remove_key`].
    pub async fn remove_key(&self, id: &str) -> Result<()> {
        self.identities.remove_key(id).await?;
        tracing::info!(access_key = id, "access key removed");
        Ok(())
    }

    /// The hosts that may connect to the NVMe doors, by name, without their secrets.
    pub fn hosts(&self) -> Vec<Host> {
        let hosts = self.identities.hosts();
        hosts.iter().map(|host| known(host)).collect()
    }

    /// Makes a host known to the NVMe doors.
    ///
    /// # Errors
    /// As [`Identities::create_host`].
    pub async fn create_host(&self, new: NewHost) -> Result<Host> {
        let host = self.identities.create_host(&new).await?;
        tracing::info!(nqn = host.nqn, tenant = host.tenant, "host added");
        Ok(known(&host))
    }

    /// Forgets a host.
    ///
    /// # Errors
    /// As [`Identities::remove_host`].
    pub async fn remove_host(&self, nqn: &str) -> Result<()> {
        self.identities.remove_host(nqn).await?;
        tracing::info!(nqn, "host removed");
        Ok(())
    }

    /// The modules that may be executed, by tenant and namespace.
    pub fn modules(&self) -> Vec<Module> {
        let modules = self.identities.modules();
        modules.iter().map(|module| Module::clone(module)).collect()
    }

    /// Allows a module to be executed.
    ///
    /// # Errors
    /// As [`Identities::allow_module`]; [`Kind::Invalid`] for what is no module, [`Kind::NotFound`] for its object.
    pub async fn add_module(&self, new: NewModule) -> Result<Module> {
        let wasm = match &new.source {
            ModuleSource::Object { namespace, key } => {
                let read = self.read_module(namespace, key.as_bytes()).await;
                read.map_err(|error| {
                    Error::new(error.kind, format!("fb://{namespace}/{key}: {error}"))
                })?
            }
            here @ ModuleSource::Base64(_) => here
                .bytes()
                .ok_or_else(|| Error::new(Kind::Invalid, "the module is not base64"))?,
        };
        self.add_module_bytes(
            Leave {
                tenant: new.tenant,
                namespace: new.namespace,
                name: new.name,
                number: new.number,
                function: new.function,
            },
            wasm,
        )
        .await
    }

    /// Allows the module with these bytes to be executed.
    ///
    /// # Errors
    /// As [`Identities::allow_module`]; [`Kind::Invalid`] for what is no module.
    pub async fn add_module_bytes(&self, leave: Leave, wasm: Vec<u8>) -> Result<Module> {
        if wasm.len() > MODULE_BYTES_MAX {
            let text = format!("a module has at most {MODULE_BYTES_MAX} bytes");
            return Err(Error::new(Kind::Invalid, text));
        }
        // It is compiled, which takes its time: no thread that serves others waits for that.
        let node = self.node.clone();
        let checking = spawn_blocking(move || (node.check_module(&wasm), wasm));
        let (checked, wasm) = checking
            .await
            .map_err(|_| Error::new(Kind::Failed, "the module could not be checked"))?;
        checked.map_err(|message| Error::new(Kind::Invalid, message))?;
        let module = self.identities.allow_module(leave, wasm).await?;
        tracing::info!(
            sha256 = module.sha256,
            tenant = module.tenant,
            namespace = module.namespace,
            "module allowed"
        );
        Ok(Module::clone(&module))
    }

    /// Forbids a module, named by its name or SHA-256, where it was allowed.
    ///
    /// # Errors
    /// As [`Identities::forbid_module`].
    pub async fn remove_module(
        &self,
        tenant: &str,
        namespace: Option<&str>,
        which: &str,
    ) -> Result<()> {
        let forbidden = self.identities.forbid_module(tenant, namespace, which);
        forbidden.await?;
        tracing::info!(module = which, tenant, namespace, "module forbidden");
        Ok(())
    }

    /// The bytes of an object that is to be a module.
    pub(crate) async fn read_module(&self, namespace: &str, key: &[u8]) -> Result<Vec<u8>> {
        self.found(namespace)?;
        let address = Address::object(namespace, key);
        let found = self.store.retrieve(address, None, ByteRange::Full).await;
        let object = found?;
        if object.meta.size > MODULE_BYTES_MAX as u64 {
            let text = format!("a module has at most {MODULE_BYTES_MAX} bytes");
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(object.bytes().await?)
    }

    /// The namespaces of all tenants, or of one, by name, but the system's own. What it costs is what these are; it gives way to others
    /// on its thread.
    pub async fn namespaces(&self, tenant: Option<&str>) -> Vec<Namespace> {
        let mut namespaces = self.store.namespaces();
        namespaces.retain(|namespace| {
            namespace.name != SYSTEM_NAMESPACE
                && tenant.is_none_or(|tenant| namespace.config.tenant == tenant)
        });
        described(&namespaces, |namespace| self.described(namespace)).await
    }

    /// One namespace.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        Ok(self.described(&*self.found(name)?))
    }

    /// Makes a namespace.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for its name, [`Kind::NotFound`] for its tenant, [`Kind::Exists`], or of the store. When its namespace
    /// identifier cannot be had it is not made.
    pub async fn create_namespace(&self, new: NewNamespace) -> Result<Namespace> {
        names::check_namespace(&new.name)?;
        let tenant = match new.tenant.is_empty() {
            true => ROOT_TENANT.to_owned(),
            false => new.tenant,
        };
        // Until it is made its tenant stays, and the number that it is to have is free.
        let mut changing = self.identities.begin_change().await?;
        self.identities.tenant(&tenant)?;
        check_namespaces(&self.store.namespaces(), &tenant)?;
        let nsid = new.config.nsid;
        self.identities.check_number(None, nsid)?;
        let config = change(
            NamespaceConfig {
                tenant,
                ..NamespaceConfig::default()
            },
            new.config,
        );
        let namespace = self.store.create_namespace(&new.name, config).await?;
        let numbered = self.identities.renumber(&mut changing, &namespace, nsid);
        if let Err(error) = numbered.await {
            self.store.delete_namespace(&new.name).await?;
            return Err(error);
        }
        tracing::info!(namespace = namespace.name, "namespace created");
        Ok(self.described(&namespace))
    }

    /// Publishes a namespace to NVMe hosts under `nsid`, or any number. It is made for the root tenant when it is missing, and found
    /// when another gateway makes it at this moment.
    ///
    /// # Errors
    /// As [`Admin::create_namespace`] and [`Admin::change_namespace`].
    pub async fn publish_namespace(&self, name: &str, nsid: Option<u32>) -> Result<Namespace> {
        let config = NamespaceChange {
            nsid: Some(Some(nsid.unwrap_or(0))),
            ..NamespaceChange::default()
        };
        if self.found(name).is_err() {
            let new = NewNamespace {
                name: name.to_owned(),
                tenant: ROOT_TENANT.to_owned(),
                config,
            };
            match self.create_namespace(new).await {
                Err(error) if error.kind == Kind::Exists => {
                    let settled = self.store.settle().await;
                    let found = settled.and_then(|()| self.store.namespace(name));
                    // Else it is the number that another has.
                    found.map_err(|_| error)?;
                }
                made => return made,
            }
        }
        self.change_namespace(name, config).await
    }

    /// Removes an empty namespace.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::NotEmpty`], or of the store.
    pub async fn remove_namespace(&self, name: &str) -> Result<()> {
        let namespace = self.found(name)?;
        let deleted = self.store.delete_namespace(name).await;
        deleted.map_err(|error| not_empty(error, &namespace))?;
        // It is gone: what one leaves undone the other need not.
        let unpublished = self.identities.unpublish(&namespace).await;
        let forbidden = self.identities.forbid_modules_in(&namespace).await;
        unpublished.and(forbidden)?;
        tracing::info!(namespace = name, "namespace removed");
        Ok(())
    }

    /// Changes what is asked and nothing else: when a door changed the namespace meanwhile, its change is kept and ours is made
    /// again on top. Another namespace that got its name meanwhile is left alone.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Invalid`], or of the store.
    pub async fn change_namespace(&self, name: &str, wanted: NamespaceChange) -> Result<Namespace> {
        let seen = self.found(name)?;
        let mut numbering = match wanted.nsid {
            None => None,
            Some(_) => Some(self.identities.begin_change().await?),
        };
        // What is refused changes nothing, and a number that is not refused stays free until it is given.
        self.identities.check_number(Some(&seen), wanted.nsid)?;
        let mut namespace = seen.clone();
        loop {
            let config = change(namespace.config.clone(), wanted);
            let updated = self
                .store
                .update_namespace(name, Some(namespace.revision), config);
            match updated.await {
                Err(error) => {
                    namespace = self.found(name)?;
                    if namespace.id != seen.id {
                        return Err(StoreError::no_namespace(name).into());
                    }
                    if error.kind() != ErrorKind::PreconditionFailed {
                        return Err(error.into());
                    }
                }
                Ok(namespace) => {
                    if let Some(changing) = &mut numbering {
                        let numbered = self.identities.renumber(changing, &namespace, wanted.nsid);
                        numbered.await?;
                    }
                    return Ok(self.described(&namespace));
                }
            }
        }
    }

    pub(crate) fn cold_tier(&self) -> Option<Arc<dyn ColdTier>> {
        self.node.cold_tier()
    }

    pub(crate) fn found(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        if name == SYSTEM_NAMESPACE {
            return Err(StoreError::no_namespace(name).into());
        }
        Ok(self.store.namespace(name)?)
    }

    /// Refuses the name of a tenant that there is not.
    pub(crate) fn must_be_tenant(&self, name: &str) -> Result<()> {
        self.identities.tenant(name).map(drop)
    }

    /// The sessions of this server.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// A namespace as it is shown. One that is gone holds nothing, whoever has its name now.
    pub(crate) fn described(&self, namespace: &NamespaceInfo) -> Namespace {
        let usage = self.usage(Scope::Namespace(&namespace.name));
        // Usage is found by name: it was this one's if the name is still its own.
        let still = self.store.namespace(&namespace.name);
        let still = still.is_ok_and(|now| now.id == namespace.id);
        Namespace {
            name: namespace.name.clone(),
            tenant: namespace.config.tenant.clone(),
            created: namespace.created,
            durability: DurabilityText(namespace.config.durability),
            versioning: namespace.config.versioning,
            ttl_ms: namespace.config.ttl_ms,
            quota: namespace.config.quota,
            usage: if still { usage } else { Usage::default() },
            nsid: self.identities.nsid_of(namespace),
        }
    }

    fn shown(&self, tenant: &crate::Tenant) -> Tenant {
        let namespaces = self.store.namespaces();
        Tenant {
            name: tenant.name.clone(),
            display_name: tenant.display_name.clone(),
            created: tenant.created,
            keys: self.identities.keys_of(&tenant.name).len(),
            namespaces: namespaces
                .iter()
                .filter(|namespace| namespace.config.tenant == tenant.name)
                .count(),
            usage: self.usage(Scope::Tenant(&tenant.name)),
            quota: self.store.tenant_quota(&tenant.name),
        }
    }

    fn usage(&self, scope: Scope<'_>) -> Usage {
        self.store.usage(scope).unwrap_or_default()
    }
}

/// All of these as they are shown. The store is asked for each: whoever shares the thread has turns between.
async fn described<T, D>(all: &[Arc<T>], describe: impl Fn(&T) -> D) -> Vec<D> {
    const TURN: usize = 64;
    let mut described = Vec::with_capacity(all.len());
    for some in all.chunks(TURN) {
        described.extend(some.iter().map(|one| describe(one)));
        yield_now().await;
    }
    described
}

/// A refusal to remove a namespace, with what may be in one that looks empty.
fn not_empty(error: StoreError, namespace: &NamespaceInfo) -> Error {
    let error = Error::from(error);
    match (error.kind, namespace.config.versioning) {
        (Kind::NotEmpty, Versioning::Enabled | Versioning::Suspended) => Error::new(
            Kind::NotEmpty,
            format!(
                "{error}: it keeps old versions and delete markers, which go by a lifecycle rule (NoncurrentVersionExpiration, \
                 ExpiredObjectDeleteMarker) or by S3's DeleteObject with a version"
            ),
        ),
        _ => error,
    }
}

fn change(mut config: NamespaceConfig, wanted: NamespaceChange) -> NamespaceConfig {
    if let Some(DurabilityText(durability)) = wanted.durability {
        config.durability = durability;
    }
    if let Some(versioning) = wanted.versioning {
        config.versioning = versioning;
    }
    if let Some(ttl_ms) = wanted.ttl_ms {
        config.ttl_ms = ttl_ms;
    }
    config.quota = wanted.quota.apply(config.quota);
    config
}

fn known(host: &crate::Host) -> Host {
    Host {
        nqn: host.nqn.clone(),
        tenant: host.tenant.clone(),
        chap: host.chap_secret.is_some(),
        tls: host.tls_key.is_some(),
        created: host.created,
    }
}

fn public(key: &AccessKey) -> Key {
    Key {
        access_key: key.id.clone(),
        secret_key: None,
        tenant: key.tenant.clone(),
        created: key.created,
    }
}
