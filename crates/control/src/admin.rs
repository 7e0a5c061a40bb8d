//! The admin API's operations: method, path and body in, status and JSON out.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_store::{ErrorKind, NamespaceConfig, NamespaceInfo, Scope, Store, Usage};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    DurabilityText, Key, LifecycleReport, Limits, Namespace, NamespaceChange, NewKey, NewNamespace,
    NewTenant, ScrubReport, Server, Tenant,
};
use crate::{AccessKey, Error, Identities, Kind, Result, SYSTEM_NAMESPACE, names};

/// Work that the process around the API does.
pub trait Node: Send + Sync + 'static {
    /// What runs where.
    fn server(&self) -> Server;
    /// Reads every value and checks it.
    fn scrub(&self) -> Pin<Box<dyn Future<Output = Result<ScrubReport>> + Send + '_>>;
    /// Applies the lifecycle rules now.
    fn lifecycle_run(&self) -> Pin<Box<dyn Future<Output = Result<LifecycleReport>> + Send + '_>>;
}

/// An answer to carry back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// An HTTP status.
    pub status: u16,
    /// JSON; empty for 204.
    pub body: Vec<u8>,
}

/// The admin API of one store. Whoever calls has checked that the caller may.
pub struct Admin<S> {
    store: Arc<S>,
    identities: Arc<Identities<S>>,
    node: Arc<dyn Node>,
}

impl<S: Store> Admin<S> {
    /// The API over a store, its identities, and the process that serves them.
    pub fn new(store: Arc<S>, identities: Arc<Identities<S>>, node: Arc<dyn Node>) -> Admin<S> {
        Admin {
            store,
            identities,
            node,
        }
    }

    /// Answers one request; see [`crate::api`] for the list. Segments of `path` are plain: no name that is legal needs
    /// percent-encoding.
    pub async fn handle(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        match self.route(method, path, body).await {
            Ok(Some(body)) => Reply { status: 200, body },
            Ok(None) => Reply {
                status: 204,
                body: Vec::new(),
            },
            Err(error) => {
                tracing::info!(method, path, kind = ?error.kind, message = error.message, "admin call refused");
                Reply {
                    status: error.kind.status(),
                    body: serde_json::to_vec(&error).unwrap_or_default(),
                }
            }
        }
    }

    async fn route(&self, method: &str, path: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match (method, segments.as_slice()) {
            ("GET", ["v1", "server"]) => json(&self.node.server()),
            ("POST", ["v1", "scrub"]) => json(&self.node.scrub().await?),
            ("POST", ["v1", "lifecycle-run"]) => json(&self.node.lifecycle_run().await?),

            ("GET", ["v1", "tenants"]) => {
                let tenants = self.identities.tenants();
                json(
                    &tenants
                        .iter()
                        .map(|tenant| self.tenant(tenant))
                        .collect::<Vec<_>>(),
                )
            }
            ("POST", ["v1", "tenants"]) => {
                let new: NewTenant = parse(body)?;
                let tenant = self
                    .identities
                    .create_tenant(&new.name, &new.display_name)
                    .await?;
                tracing::info!(tenant = tenant.name, "tenant created");
                json(&self.tenant(&tenant))
            }
            ("GET", ["v1", "tenants", name]) => json(&self.tenant(&*self.identities.tenant(name)?)),
            ("DELETE", ["v1", "tenants", name]) => {
                self.identities.remove_tenant(name).await?;
                tracing::info!(tenant = name, "tenant removed");
                Ok(None)
            }
            ("PUT", ["v1", "tenants", name, "quota"]) => {
                let tenant = self.identities.tenant(name)?;
                let limits: Limits = parse(body)?;
                let quota = limits.apply(self.store.tenant_quota(name));
                self.store.set_tenant_quota(name, quota).await?;
                json(&self.tenant(&tenant))
            }

            ("GET", ["v1", "keys"]) => {
                let tenants = self.identities.tenants();
                let keys = tenants
                    .iter()
                    .flat_map(|tenant| self.identities.keys_of(&tenant.name));
                json(&keys.map(|key| public(&key)).collect::<Vec<_>>())
            }
            ("GET", ["v1", "keys", tenant]) => {
                self.identities.tenant(tenant)?;
                let keys = self.identities.keys_of(tenant);
                json(&keys.iter().map(|key| public(key)).collect::<Vec<_>>())
            }
            ("POST", ["v1", "keys", tenant]) => {
                let new: NewKey = parse(body)?;
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
                json(&Key {
                    secret_key: Some(key.secret.clone()),
                    ..public(&key)
                })
            }
            ("DELETE", ["v1", "keys", id]) => {
                self.identities.remove_key(id).await?;
                tracing::info!(access_key = id, "access key removed");
                Ok(None)
            }

            ("GET", ["v1", "namespaces"]) => {
                let namespaces = self.store.namespaces();
                let shown = namespaces
                    .iter()
                    .filter(|namespace| namespace.name != SYSTEM_NAMESPACE);
                json(
                    &shown
                        .map(|namespace| self.shown(namespace))
                        .collect::<Vec<_>>(),
                )
            }
            ("POST", ["v1", "namespaces"]) => {
                let new: NewNamespace = parse(body)?;
                names::check_namespace(&new.name)?;
                self.identities.tenant(&new.tenant)?;
                let config = change(
                    NamespaceConfig {
                        tenant: new.tenant,
                        ..NamespaceConfig::default()
                    },
                    new.config,
                );
                let namespace = self.store.create_namespace(&new.name, config).await?;
                tracing::info!(namespace = namespace.name, "namespace created");
                json(&self.shown(&namespace))
            }
            ("GET", ["v1", "namespaces", name]) => json(&self.shown(&*self.namespace(name)?)),
            ("DELETE", ["v1", "namespaces", name]) => {
                self.namespace(name)?;
                self.store.delete_namespace(name).await?;
                tracing::info!(namespace = name, "namespace removed");
                Ok(None)
            }
            ("PATCH", ["v1", "namespaces", name]) => {
                let wanted: NamespaceChange = parse(body)?;
                json(&self.shown(&*self.change_namespace(name, wanted).await?))
            }
            _ => Err(Error::new(
                Kind::NotFound,
                format!("there is no {method} {path} in this API"),
            )),
        }
    }

    /// Changes what is asked and nothing else: when a door changed the namespace meanwhile, its change is kept and ours is made
    /// again on top.
    async fn change_namespace(
        &self,
        name: &str,
        wanted: NamespaceChange,
    ) -> Result<Arc<NamespaceInfo>> {
        loop {
            let namespace = self.namespace(name)?;
            let config = change(namespace.config.clone(), wanted);
            let updated = self
                .store
                .update_namespace(name, Some(namespace.revision), config);
            match updated.await {
                Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
                other => return Ok(other?),
            }
        }
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        if name == SYSTEM_NAMESPACE {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no namespace {name:?}"),
            ));
        }
        Ok(self.store.namespace(name)?)
    }

    fn shown(&self, namespace: &NamespaceInfo) -> Namespace {
        Namespace {
            name: namespace.name.clone(),
            tenant: namespace.config.tenant.clone(),
            created: namespace.created,
            durability: DurabilityText(namespace.config.durability),
            versioning: namespace.config.versioning,
            ttl_ms: namespace.config.ttl_ms,
            quota: namespace.config.quota,
            // A namespace that was removed a moment ago holds nothing.
            usage: self.usage(Scope::Namespace(&namespace.name)),
        }
    }

    fn tenant(&self, tenant: &crate::Tenant) -> Tenant {
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

fn public(key: &AccessKey) -> Key {
    Key {
        access_key: key.id.clone(),
        secret_key: None,
        tenant: key.tenant.clone(),
        created: key.created,
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Error::new(Kind::Invalid, format!("the request is not right: {error}")))
}

fn json(value: &impl Serialize) -> Result<Option<Vec<u8>>> {
    serde_json::to_vec(value)
        .map(Some)
        .map_err(|error| Error::new(Kind::Failed, error.to_string()))
}
