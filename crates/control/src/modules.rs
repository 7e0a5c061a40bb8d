//! Modules: which functions may be executed over whose values. In the store for good, in memory for whoever runs them.
//!
//! The bytes of a module are kept here under their digest, so that what became of the object or file that they came from
//! matters to nobody.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use forebay_store::{ModuleDigest, NamespaceInfo, Store};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::identities::Known as Tenants;
use crate::records::{MODULES, Records, Seen};
use crate::{Error, Identities, Kind, Result, names};

/// The longest module, in bytes.
pub const MODULE_BYTES_MAX: usize = 16 << 20;
/// Leaves of all tenants together: whoever executes holds them all in memory.
const MODULES_MAX: usize = 10_000;
const BYTES: &str = "module-bytes/";

/// Leave for a module to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedModule {
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// For whom.
    pub tenant: String,
    /// Where; in all of the tenant's namespaces when `None`.
    pub namespace: Option<String>,
    /// The number of that namespace: another one that gets its name has none of its leaves. Leaves that were given before this was noted have
    /// no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_id: Option<u32>,
    /// A name by which calls find it.
    pub name: Option<String>,
    /// A number by which calls find it: the operation of an NVMe command.
    pub number: Option<u32>,
    /// The function that is called when a call names none.
    pub function: Option<String>,
    /// Its length in bytes.
    pub size: u64,
    /// When it was allowed, in milliseconds since 1970.
    pub created: u64,
}

impl AllowedModule {
    /// Its SHA-256.
    pub fn digest(&self) -> Option<ModuleDigest> {
        ModuleDigest::parse(&self.sha256)
    }

    /// Where its bytes are: the key in [`SYSTEM_NAMESPACE`](crate::SYSTEM_NAMESPACE).
    pub fn key(&self) -> String {
        format!("{BYTES}{}", self.sha256)
    }

    /// Whether it is for this namespace, and not for an earlier one of its name.
    fn is_for(&self, namespace: &NamespaceInfo) -> bool {
        self.tenant == namespace.config.tenant
            && self.namespace.as_deref() == Some(namespace.name.as_str())
            && self.namespace_id.is_none_or(|id| id == namespace.id)
    }

    fn place(&self) -> Place {
        let namespace = self.namespace.clone().unwrap_or_default();
        (self.tenant.clone(), namespace, self.sha256.clone())
    }

    fn answers_to(&self, which: &str) -> bool {
        let digest = which.strip_prefix("sha256:").unwrap_or(which);
        self.name.as_deref() == Some(which) || self.sha256.eq_ignore_ascii_case(digest)
    }
}

/// A module to be allowed, besides its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leave {
    /// For whom.
    pub tenant: String,
    /// Where; everywhere of the tenant's when `None`.
    pub namespace: Option<String>,
    /// A name for it: 1 to 63 of `a-z 0-9 - _ .`, unique where it is allowed.
    pub name: Option<String>,
    /// A number for it, likewise.
    pub number: Option<u32>,
    /// The function that calls mean when they name none.
    pub function: Option<String>,
}

/// Tenant, namespace (or nothing), digest.
type Place = (String, String, String);
type Hook = Box<dyn Fn(&[Arc<AllowedModule>]) + Send + Sync>;

type Known = BTreeMap<Place, Arc<AllowedModule>>;

/// What the store holds for tenants that there are.
pub(crate) async fn read<S: Store>(
    records: &Records<S>,
    seen: &mut Seen,
    tenants: &Tenants,
) -> Result<Known> {
    let mut modules = records.load::<AllowedModule>(MODULES, seen).await?;
    modules.retain(|module| tenants.has_tenant(&module.tenant));
    let modules = modules.into_iter().map(Arc::new);
    Ok(modules.map(|module| (module.place(), module)).collect())
}

/// The records in memory.
#[derive(Default)]
pub(crate) struct Modules {
    known: RwLock<Known>,
    hooks: RwLock<Vec<Hook>>,
}

impl fmt::Debug for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Modules({})", self.known.read().len())
    }
}

impl Modules {
    /// What was read anew takes the place of what was known.
    pub(crate) fn replace(&self, read: Known) {
        if *self.known.read() != read {
            self.change(|known| *known = read);
        }
    }

    fn all(&self) -> Vec<Arc<AllowedModule>> {
        self.known.read().values().cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.write());
        let all = self.all();
        for hook in self.hooks.read().iter() {
            hook(&all);
        }
    }

    fn has_bytes_of(&self, sha256: &str) -> bool {
        let known = self.known.read();
        known.values().any(|module| module.sha256 == sha256)
    }
}

/// Where a leave's record is.
fn record_of((tenant, namespace, sha256): &Place) -> String {
    format!("{tenant}/{namespace}/{sha256}")
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, message)
}

impl<S: Store> Identities<S> {
    /// Calls `hook` with all leaves now and after every change of them.
    pub fn on_modules_changed(&self, hook: impl Fn(&[Arc<AllowedModule>]) + Send + Sync + 'static) {
        hook(&self.modules.all());
        self.modules.hooks.write().push(Box::new(hook));
    }

    /// All leaves, by tenant and namespace, but those for namespaces that are gone.
    pub fn modules(&self) -> Vec<Arc<AllowedModule>> {
        let mut all = self.modules.all();
        all.retain(|module| self.holds(module));
        all
    }

    /// Whether the namespace that a leave is for is still there.
    fn holds(&self, module: &AllowedModule) -> bool {
        let Some(name) = &module.namespace else {
            return true;
        };
        let there = self.store.namespace(name);
        there.is_ok_and(|there| module.is_for(&there))
    }

    /// Allows a module to run. What the same module had in the same place is replaced, but its number: whoever calls by that would
    /// not hear of it.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the tenant, or for the namespace among its own, [`Kind::Invalid`] for a name, [`Kind::Exists`] when
    /// another module has that name or number there or this one another number, [`Kind::Limit`], or of the store.
    pub async fn allow_module(&self, leave: Leave, wasm: Vec<u8>) -> Result<Arc<AllowedModule>> {
        for name in [&leave.name].into_iter().flatten() {
            names::check_module(name)?;
        }
        if let Some(function) = &leave.function
            && !(1..=255).contains(&function.len())
        {
            return Err(invalid("a function's name has 1 to 255 bytes"));
        }
        if wasm.len() > MODULE_BYTES_MAX {
            return Err(invalid(format!(
                "a module has at most {MODULE_BYTES_MAX} bytes"
            )));
        }
        let digest = ModuleDigest(Sha256::digest(&wasm).into());
        let _changing = self.begin_change().await?;
        self.tenant(&leave.tenant)?;
        let namespace_id = match &leave.namespace {
            None => None,
            Some(name) => Some(self.namespace_of(&leave.tenant, name)?.id),
        };
        let mut module = AllowedModule {
            sha256: digest.to_string(),
            tenant: leave.tenant,
            namespace: leave.namespace,
            namespace_id,
            name: leave.name,
            number: leave.number,
            function: leave.function,
            size: wasm.len() as u64,
            created: self.now_ms(),
        };
        let same = self.modules.known.read().get(&module.place()).cloned();
        let same = same.filter(|same| self.holds(same));
        module.number = module.number.or(same.as_ref().and_then(|same| same.number));
        self.check_unique(&module, same.as_deref())?;
        let module = Arc::new(module);
        // Also when another leave has them already, as far as is known here: another gateway may have just taken the last one away.
        self.records.save_bytes(BYTES, &module.sha256, wasm).await?;
        let place = module.place();
        self.records
            .save(MODULES, &record_of(&place), &*module)
            .await?;
        self.modules.change(|known| {
            known.insert(place, module.clone());
        });
        Ok(module)
    }

    /// The namespace of that name, if it is the tenant's.
    fn namespace_of(&self, tenant: &str, name: &str) -> Result<Arc<NamespaceInfo>> {
        let found = self.store.namespace(name).ok();
        let theirs = found.filter(|there| there.config.tenant == tenant);
        theirs.ok_or_else(|| {
            let name = names::shown(name);
            let text = format!("tenant {tenant:?} has no namespace {name:?}");
            Error::new(Kind::NotFound, text)
        })
    }

    /// Refuses what another has, beside what the same module has there already.
    fn check_unique(&self, module: &AllowedModule, same: Option<&AllowedModule>) -> Result<()> {
        let known = self.modules.known.read();
        if same.is_none() && known.len() >= MODULES_MAX {
            return Err(Error::full(format!(
                "at most {MODULES_MAX} modules are allowed"
            )));
        }
        if let Some(same) = same
            && let (Some(had), Some(asked)) = (same.number, module.number)
            && had != asked
        {
            return Err(Error::new(
                Kind::Exists,
                format!(
                    "module {} has the number {had} there, and a module has one: take its leave away first",
                    same.sha256
                ),
            ));
        }
        let mut others = known.values().filter(|other| {
            other.tenant == module.tenant
                && other.namespace == module.namespace
                && other.sha256 != module.sha256
                && self.holds(other)
        });
        let taken = others.find(|other| {
            (module.name.is_some() && other.name == module.name)
                || (module.number.is_some() && other.number == module.number)
        });
        match taken {
            None => Ok(()),
            Some(other) => Err(Error::new(
                Kind::Exists,
                format!("that name or number is of module {} there", other.sha256),
            )),
        }
    }

    /// Takes the leave of a module, by its name or SHA-256, away from where it was given.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or of the store.
    pub async fn forbid_module(
        &self,
        tenant: &str,
        namespace: Option<&str>,
        which: &str,
    ) -> Result<()> {
        let _changing = self.begin_change().await?;
        let all = self.modules.all();
        let found = all.iter().find(|module| {
            module.tenant == tenant
                && module.namespace.as_deref() == namespace
                && module.answers_to(which)
        });
        let Some(module) = found else {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no module {:?} allowed there", names::shown(which)),
            ));
        };
        self.forget_modules(std::slice::from_ref(module)).await
    }

    /// Takes all leaves of a tenant that is being removed.
    pub(crate) async fn forbid_modules_of(&self, tenant: &str) -> Result<()> {
        self.forbid_all(|module| module.tenant == tenant).await
    }

    /// Takes all leaves for a namespace that was removed.
    pub(crate) async fn forbid_modules_in(&self, namespace: &NamespaceInfo) -> Result<()> {
        let _changing = self.begin_change().await?;
        self.forbid_all(|module| module.is_for(namespace)).await
    }

    /// Takes leaves away for namespaces that are gone, by whichever door they went. Looks at memory alone while there are none.
    pub(crate) async fn forbid_removed(&self) -> Result<()> {
        // In doubt is what could not be taken away before, too.
        let all_hold = self.modules.all().iter().all(|module| self.holds(module));
        if all_hold && !self.records.are_in_doubt() {
            return Ok(());
        }
        let _changing = self.begin_change().await?;
        // A namespace that is not heard of yet would be gone.
        self.store.settle().await?;
        self.forbid_all(|module| !self.holds(module)).await
    }

    /// The same, and removes bytes that no leave names: an end in the midst of a change left them.
    pub(crate) async fn tidy_modules(&self) -> Result<()> {
        self.forbid_removed().await?;
        let _changing = self.begin_change().await?;
        if self.is_shared {
            // They may be of a leave that another gateway is about to give.
            return Ok(());
        }
        let named = self.modules.all();
        let named: HashSet<&str> = named.iter().map(|module| &*module.sha256).collect();
        for sha256 in self.records.names(BYTES).await? {
            if !named.contains(&*sha256) {
                self.records.forget(BYTES, &sha256).await?;
            }
        }
        Ok(())
    }

    async fn forbid_all(&self, which: impl Fn(&AllowedModule) -> bool) -> Result<()> {
        let mut found = self.modules.all();
        found.retain(|module| which(module));
        match found.is_empty() {
            true => Ok(()),
            false => self.forget_modules(&found).await,
        }
    }

    pub(crate) async fn forget_modules(&self, modules: &[Arc<AllowedModule>]) -> Result<()> {
        // Nobody runs them any more once this is told, whatever the store says next.
        self.modules.change(|known| {
            for module in modules {
                known.remove(&module.place());
            }
        });
        for module in modules {
            let record = record_of(&module.place());
            self.records.forget(MODULES, &record).await?;
            if !self.modules.has_bytes_of(&module.sha256) {
                self.records.forget(BYTES, &module.sha256).await?;
            }
        }
        Ok(())
    }
}
