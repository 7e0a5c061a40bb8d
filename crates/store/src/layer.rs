//! Layers: stores over a store, which answer some calls themselves and pass the others on.

/// Passes calls of a [`Store`](crate::Store) on to the store below as they are: `pass_on! { FIELD: METHOD, METHOD, ... }` within an
/// `impl Store`, where `self.FIELD` is the store below (or a pointer to it). `retrieve` can be passed on where the layer's bodies are
/// those of the store below, `store` and `take_back` where its uploads are.
///
/// A layer names every method: those that it answers itself are written out, the others are in this list. A method of which the
/// trait has a default may not be left out either, for the default is a leaf's answer: it would hide what the store below can do.
/// So an `impl Store` of a layer carries `#[warn(clippy::missing_trait_methods)]`, and its tests call
/// `suite::check_layer`, which sees each call arrive.
///
/// With `pass_on! { FIELD after HOOK: METHOD, ... }` each call calls `self.HOOK("METHOD")` first.
///
/// ```
/// use forebay_store::{Quota, Result, Store};
///
/// /// A store whose tenants cannot be bound.
/// struct Unbound<S> {
///     store: S,
/// }
///
/// #[warn(clippy::missing_trait_methods)]
/// impl<S: Store> Store for Unbound<S> {
///     type Upload = S::Upload;
///     type Body = S::Body;
///
///     async fn set_tenant_quota(&self, _: &str, _: Quota) -> Result<()> {
///         Ok(())
///     }
///
///     forebay_store::pass_on! {
///         store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back,
///         forgotten, settle, execute, list, list_versions, create_namespace, delete_namespace, update_namespace,
///         namespace, namespaces, usage, tenant_quota, changes
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    ($below:ident $(after $hook:ident)?: $($method:ident),+ $(,)?) => {
        $crate::pass_on!(@each [$below $($hook)?] $($method)+);
    };
    (@each $to:tt $($method:ident)+) => {
        $($crate::pass_on!(@$method $to);)+
    };
    (@caps [$below:ident $($hook:ident)?]) => {
        fn caps(&self) -> $crate::Caps {
            $(self.$hook("caps");)?
            self.$below.caps()
        }
    };
    (@retrieve [$below:ident $($hook:ident)?]) => {
        async fn retrieve(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
            range: $crate::ByteRange,
        ) -> $crate::Result<$crate::Object<Self::Body>> {
            $(self.$hook("retrieve");)?
            self.$below.retrieve(address, version, range).await
        }
    };
    (@retrieve_into [$below:ident $($hook:ident)?]) => {
        async fn retrieve_into(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
            range: $crate::ByteRange,
            target: $crate::RegionSlice,
        ) -> $crate::Result<($crate::Meta, ::std::ops::Range<u64>)> {
            $(self.$hook("retrieve_into");)?
            self.$below.retrieve_into(address, version, range, target).await
        }
    };
    (@exist [$below:ident $($hook:ident)?]) => {
        async fn exist(
            &self,
            addresses: &[$crate::Address<'_>],
        ) -> $crate::Result<Vec<Option<$crate::Meta>>> {
            $(self.$hook("exist");)?
            self.$below.exist(addresses).await
        }
    };
    (@stat [$below:ident $($hook:ident)?]) => {
        async fn stat(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
        ) -> $crate::Result<$crate::Meta> {
            $(self.$hook("stat");)?
            self.$below.stat(address, version).await
        }
    };
    (@store [$below:ident $($hook:ident)?]) => {
        async fn store(
            &self,
            address: $crate::Address<'_>,
            options: $crate::StoreOptions,
        ) -> $crate::Result<Self::Upload> {
            $(self.$hook("store");)?
            self.$below.store(address, options).await
        }
    };
    (@compose [$below:ident $($hook:ident)?]) => {
        async fn compose(
            &self,
            target: $crate::Address<'_>,
            sources: &[$crate::Source<'_>],
            consumed: &[&[u8]],
            options: $crate::StoreOptions,
            seal: $crate::Seal,
        ) -> $crate::Result<$crate::Stored> {
            $(self.$hook("compose");)?
            self.$below.compose(target, sources, consumed, options, seal).await
        }
    };
    (@amend [$below:ident $($hook:ident)?]) => {
        async fn amend(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
            seen: Option<&$crate::Meta>,
            attributes: $crate::Attributes,
        ) -> $crate::Result<$crate::Meta> {
            $(self.$hook("amend");)?
            self.$below.amend(address, version, seen, attributes).await
        }
    };
    (@delete [$below:ident $($hook:ident)?]) => {
        async fn delete(
            &self,
            address: $crate::Address<'_>,
            options: $crate::DeleteOptions,
        ) -> $crate::Result<$crate::Deleted> {
            $(self.$hook("delete");)?
            self.$below.delete(address, options).await
        }
    };
    (@away [$below:ident $($hook:ident)?]) => {
        async fn away(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
        ) -> $crate::Result<Option<$crate::Away>> {
            $(self.$hook("away");)?
            self.$below.away(address, version).await
        }
    };
    (@let_go [$below:ident $($hook:ident)?]) => {
        async fn let_go(
            &self,
            address: $crate::Address<'_>,
            seen: &$crate::Meta,
            away: $crate::Away,
        ) -> $crate::Result<()> {
            $(self.$hook("let_go");)?
            self.$below.let_go(address, seen, away).await
        }
    };
    (@take_back [$below:ident $($hook:ident)?]) => {
        async fn take_back(
            &self,
            address: $crate::Address<'_>,
            version: Option<$crate::VersionId>,
            away: $crate::Away,
        ) -> $crate::Result<Self::Upload> {
            $(self.$hook("take_back");)?
            self.$below.take_back(address, version, away).await
        }
    };
    (@forgotten [$below:ident $($hook:ident)?]) => {
        fn forgotten(&self) -> Vec<$crate::Away> {
            $(self.$hook("forgotten");)?
            self.$below.forgotten()
        }
    };
    (@settle [$below:ident $($hook:ident)?]) => {
        async fn settle(&self) -> $crate::Result<()> {
            $(self.$hook("settle");)?
            self.$below.settle().await
        }
    };
    (@execute [$below:ident $($hook:ident)?]) => {
        async fn execute(&self, call: $crate::Execute<'_>) -> $crate::Result<$crate::Executed> {
            $(self.$hook("execute");)?
            self.$below.execute(call).await
        }
    };
    (@list [$below:ident $($hook:ident)?]) => {
        async fn list(
            &self,
            options: $crate::ListOptions<'_>,
        ) -> $crate::Result<$crate::ListPage> {
            $(self.$hook("list");)?
            self.$below.list(options).await
        }
    };
    (@list_versions [$below:ident $($hook:ident)?]) => {
        async fn list_versions(
            &self,
            options: $crate::ListOptions<'_>,
        ) -> $crate::Result<$crate::VersionPage> {
            $(self.$hook("list_versions");)?
            self.$below.list_versions(options).await
        }
    };
    (@create_namespace [$below:ident $($hook:ident)?]) => {
        async fn create_namespace(
            &self,
            name: &str,
            config: $crate::NamespaceConfig,
        ) -> $crate::Result<::std::sync::Arc<$crate::NamespaceInfo>> {
            $(self.$hook("create_namespace");)?
            self.$below.create_namespace(name, config).await
        }
    };
    (@delete_namespace [$below:ident $($hook:ident)?]) => {
        async fn delete_namespace(&self, name: &str) -> $crate::Result<()> {
            $(self.$hook("delete_namespace");)?
            self.$below.delete_namespace(name).await
        }
    };
    (@update_namespace [$below:ident $($hook:ident)?]) => {
        async fn update_namespace(
            &self,
            name: &str,
            revision: Option<u64>,
            config: $crate::NamespaceConfig,
        ) -> $crate::Result<::std::sync::Arc<$crate::NamespaceInfo>> {
            $(self.$hook("update_namespace");)?
            self.$below.update_namespace(name, revision, config).await
        }
    };
    (@namespace [$below:ident $($hook:ident)?]) => {
        fn namespace(
            &self,
            name: &str,
        ) -> $crate::Result<::std::sync::Arc<$crate::NamespaceInfo>> {
            $(self.$hook("namespace");)?
            self.$below.namespace(name)
        }
    };
    (@namespaces [$below:ident $($hook:ident)?]) => {
        fn namespaces(&self) -> Vec<::std::sync::Arc<$crate::NamespaceInfo>> {
            $(self.$hook("namespaces");)?
            self.$below.namespaces()
        }
    };
    (@usage [$below:ident $($hook:ident)?]) => {
        fn usage(&self, scope: $crate::Scope<'_>) -> $crate::Result<$crate::Usage> {
            $(self.$hook("usage");)?
            self.$below.usage(scope)
        }
    };
    (@set_tenant_quota [$below:ident $($hook:ident)?]) => {
        async fn set_tenant_quota(
            &self,
            tenant: &str,
            quota: $crate::Quota,
        ) -> $crate::Result<()> {
            $(self.$hook("set_tenant_quota");)?
            self.$below.set_tenant_quota(tenant, quota).await
        }
    };
    (@tenant_quota [$below:ident $($hook:ident)?]) => {
        fn tenant_quota(&self, tenant: &str) -> $crate::Quota {
            $(self.$hook("tenant_quota");)?
            self.$below.tenant_quota(tenant)
        }
    };
    (@changes [$below:ident $($hook:ident)?]) => {
        fn changes(&self) -> Option<Box<dyn $crate::Watch>> {
            $(self.$hook("changes");)?
            self.$below.changes()
        }
    };
}
