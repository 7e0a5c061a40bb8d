//! Which modules may run where. Whatever is not here may not.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_store::{ErrorKind, Module, ModuleDigest, NamespaceInfo, Result, StoreError};

/// Leave for one module to run over the values of a tenant, or of one of its namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Which: the one with this digest, wherever its bytes come from.
    pub digest: ModuleDigest,
    /// For whom.
    pub tenant: String,
    /// Where; in all of the tenant's namespaces when `None`.
    pub namespace: Option<String>,
    /// The number of that namespace: in another one that has got its name it may not run. In whichever has the name when `None`.
    pub namespace_id: Option<u32>,
    /// A name by which calls may find it.
    pub name: Option<String>,
    /// A number by which calls may find it.
    pub number: Option<u32>,
    /// The function that is called when a call names none.
    pub function: Option<String>,
    /// Where its bytes are: a namespace and a key there.
    pub place: (String, Vec<u8>),
}

impl Allowed {
    fn is(&self, module: Module<'_>) -> bool {
        match module {
            Module::Digest(digest) => self.digest == digest,
            Module::Name(name) => self.name.as_deref() == Some(name),
            Module::Number(number) => self.number == Some(number),
        }
    }

    /// Whether it is for this namespace alone.
    fn is_for(&self, namespace: &NamespaceInfo) -> bool {
        self.namespace.as_deref() == Some(namespace.name.as_str())
            && self.namespace_id.is_none_or(|id| id == namespace.id)
    }
}

/// All leaves, as they were at a moment.
#[derive(Debug, Default)]
pub(crate) struct AllowList {
    by_tenant: HashMap<String, Vec<Allowed>>,
}

impl AllowList {
    pub fn new(all: impl IntoIterator<Item = Allowed>) -> AllowList {
        let mut list = AllowList::default();
        for one in all {
            let of = list.by_tenant.entry(one.tenant.clone()).or_default();
            of.push(one);
        }
        list
    }

    /// The module that `module` means to `tenant` in these namespaces, if it may run in all of them. A name or number that one
    /// namespace has to itself goes before that of the whole tenant; names that mean different modules mean none.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`].
    pub fn find(
        &self,
        tenant: &str,
        module: Module<'_>,
        namespaces: &[Arc<NamespaceInfo>],
    ) -> Result<&Allowed> {
        self.means(tenant, module, namespaces).ok_or_else(|| {
            StoreError::new(
                ErrorKind::Denied,
                match module {
                    Module::Digest(digest) => format!("module {digest} is not allowed here"),
                    Module::Name(name) => format!("module {name:?} is not allowed here"),
                    Module::Number(number) => format!("module {number} is not allowed here"),
                },
            )
        })
    }

    fn means(
        &self,
        tenant: &str,
        module: Module<'_>,
        namespaces: &[Arc<NamespaceInfo>],
    ) -> Option<&Allowed> {
        let Some((first, others)) = namespaces.split_first() else {
            return self.in_one(tenant, module, None);
        };
        let found = self.in_one(tenant, module, Some(first))?;
        let same = |namespace: &Arc<NamespaceInfo>| {
            let there = self.in_one(tenant, module, Some(namespace));
            there.is_some_and(|there| there.digest == found.digest)
        };
        others.iter().all(same).then_some(found)
    }

    /// What `module` means in one namespace, or where there is none.
    fn in_one(
        &self,
        tenant: &str,
        module: Module<'_>,
        namespace: Option<&NamespaceInfo>,
    ) -> Option<&Allowed> {
        let mut all = self.by_tenant.get(tenant)?.iter();
        let own = namespace.and_then(|namespace| {
            let mut all = all.clone();
            all.find(|one| one.is_for(namespace) && one.is(module))
        });
        own.or_else(|| all.find(|one| one.namespace.is_none() && one.is(module)))
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::NamespaceConfig;

    use super::*;

    fn allowed(digest: u8, namespace: Option<&str>, name: &str) -> Allowed {
        Allowed {
            digest: ModuleDigest([digest; 32]),
            tenant: "alice".to_owned(),
            namespace: namespace.map(str::to_owned),
            namespace_id: None,
            name: Some(name.to_owned()),
            number: Some(u32::from(digest)),
            function: None,
            place: ("system".to_owned(), b"module".to_vec()),
        }
    }

    fn namespace(name: &str, id: u32) -> Arc<NamespaceInfo> {
        Arc::new(NamespaceInfo {
            name: name.to_owned(),
            id,
            created: 0,
            revision: 0,
            config: NamespaceConfig::default(),
        })
    }

    fn found(
        list: &AllowList,
        tenant: &str,
        module: Module<'_>,
        namespaces: &[&str],
    ) -> Option<u8> {
        let namespaces: Vec<_> = namespaces.iter().map(|name| namespace(name, 1)).collect();
        let found = list.find(tenant, module, &namespaces);
        if let Err(error) = &found {
            assert_eq!(error.kind(), ErrorKind::Denied);
        }
        found.ok().map(|one| one.digest.0[0])
    }

    #[test]
    fn nothing_is_allowed_unless_it_is_said() {
        let list = AllowList::new([allowed(1, Some("photos"), "count")]);
        let module = Module::Digest(ModuleDigest([1; 32]));
        assert_eq!(found(&list, "alice", module, &["photos"]), Some(1));
        assert_eq!(found(&list, "alice", module, &["music"]), None);
        assert_eq!(found(&list, "alice", module, &["photos", "music"]), None);
        assert_eq!(found(&list, "alice", module, &[]), None);
        assert_eq!(found(&list, "bob", module, &["photos"]), None);
        assert_eq!(
            found(&AllowList::default(), "alice", module, &["photos"]),
            None
        );
        assert_eq!(
            found(
                &list,
                "alice",
                Module::Digest(ModuleDigest([2; 32])),
                &["photos"]
            ),
            None
        );
    }

    #[test]
    fn another_namespace_of_the_name_has_none_of_its_leaves() {
        let own = Allowed {
            namespace_id: Some(1),
            ..allowed(1, Some("photos"), "count")
        };
        let list = AllowList::new([own, allowed(2, None, "count")]);
        let module = Module::Name("count");
        for (id, digest) in [(1, 1), (2, 2)] {
            let found = list.find("alice", module, &[namespace("photos", id)]);
            assert_eq!(found.unwrap().digest, ModuleDigest([digest; 32]));
        }
    }

    #[test]
    fn a_namespaces_own_name_goes_before_the_tenants() {
        let list = AllowList::new([
            allowed(1, None, "count"),
            allowed(2, Some("photos"), "count"),
        ]);
        let module = Module::Name("count");
        assert_eq!(found(&list, "alice", module, &["music"]), Some(1));
        assert_eq!(found(&list, "alice", module, &["photos"]), Some(2));
        assert_eq!(found(&list, "alice", module, &[]), Some(1));
        // Which of the two would it be?
        assert_eq!(found(&list, "alice", module, &["music", "photos"]), None);
        assert_eq!(
            found(&list, "alice", Module::Number(1), &["music", "photos"]),
            Some(1)
        );
    }
}
