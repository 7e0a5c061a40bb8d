//! The layer: a store that runs functions, over one that need not.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::RegionSlice;
use forebay_store::{
    Address, Attributes, Away, ByteRange, Caps, DeleteOptions, Deleted, Effort, ErrorKind, Execute,
    Executed, ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Object, Quota, Result,
    Scope, Seal, Space, Store, StoreError, StoreOptions, Stored, Upload, Usage, VersionId,
    VersionPage, Watch,
};
use forebay_store::{Output as Wanted, limits::check_key};

use crate::exchange::{Abandoned, Patience, exchange};
use crate::executor::Executor;
use crate::host::{Done, Host};
use crate::inputs::Inputs;
use crate::limits::{ARGUMENTS_BYTES_MAX, INPUTS_MAX};
use crate::output::{Output, Way};
use crate::service;

/// A store whose values functions may be sent to; in all else the store below it.
#[derive(Clone)]
pub struct Exec<S> {
    store: S,
    executor: Option<Arc<Executor>>,
}

impl<S: Store> Exec<S> {
    /// The layer over `store`; without an executor it runs nothing.
    pub fn new(store: S, executor: Option<Arc<Executor>>) -> Exec<S> {
        Exec { store, executor }
    }

    /// The store below.
    pub fn below(&self) -> &S {
        &self.store
    }

    /// What runs functions.
    pub fn executor(&self) -> Option<&Arc<Executor>> {
        self.executor.as_ref()
    }

    /// Refuses values that the caller could not reach otherwise.
    fn check(&self, call: &Execute<'_>) -> Result<()> {
        if call.inputs.len() > INPUTS_MAX || call.arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                format!(
                    "a call has at most {INPUTS_MAX} inputs, and {ARGUMENTS_BYTES_MAX} bytes of arguments"
                ),
            ));
        }
        for address in addresses(call) {
            let theirs = self.store.namespace(address.namespace)?;
            if theirs.config.tenant != call.tenant {
                return Err(StoreError::new(
                    ErrorKind::NoSuchNamespace,
                    format!("there is no namespace {:?}", address.namespace),
                ));
            }
            if address.space != Space::Objects {
                return Err(StoreError::new(
                    ErrorKind::Invalid,
                    "functions see objects alone",
                ));
            }
            check_key(address.space, address.key)?;
        }
        Ok(())
    }

    async fn run(&self, executor: &Executor, call: Execute<'_>) -> Result<Executed> {
        self.check(&call)?;
        let deadline = call.deadline.map_or(executor.limits.deadline, |asked| {
            asked.min(executor.limits.deadline)
        });
        let abandoned = Abandoned::default();
        let patience = Patience {
            clock: executor.clock.clone(),
            deadline: executor.clock.monotonic().saturating_add(deadline),
            abandoned,
        };
        let (exchange, service) = exchange(patience);
        let allowed = executor.allowed();
        let mut namespaces: Vec<&str> = addresses(&call).map(|address| address.namespace).collect();
        namespaces.dedup();
        let allowed = allowed.find(call.tenant, call.module, &namespaces)?;
        let program = executor
            .programs
            .get(executor, &self.store, allowed)
            .await?;

        let (opened, known) = service::open(&self.store, call.inputs).await?;
        let (way, upload) = match call.output {
            Wanted::Inline { capacity } => (Way::Inline { capacity }, None),
            Wanted::Into(target) => (Way::Into(target), None),
            Wanted::Store {
                address,
                options,
                seal,
            } => {
                let upload = self.store.store(address, options).await?;
                (Way::Store, Some((upload, seal)))
            }
        };
        let host = Host {
            exchange,
            inputs: Inputs::new(known),
            output: Output::new(way, executor.pool.clone(), executor.limits.output_bytes),
            arguments: Bytes::copy_from_slice(call.arguments),
            logs: Vec::new(),
            log_bytes: executor.limits.log_bytes,
            ended: None,
            refused: false,
            memory_peak: 0,
        };
        let named = call.function.or(allowed.function.as_deref());
        let function = named.unwrap_or(Execute::FUNCTION).to_owned();
        let clock = executor.clock.clone();
        let work = Box::new(move || {
            let begun = clock.monotonic();
            let (host, ending) = match host.exchange.patience.left() {
                Ok(_) => program.run(&function, host),
                Err(ending) => (host, Err(ending)),
            };
            let nanos = clock.monotonic().saturating_sub(begun).as_nanos();
            host.end(ending, u64::try_from(nanos).unwrap_or(u64::MAX));
        });
        executor.workers.submit(call.tenant, work)?;

        let (mut upload, seal) = upload.unzip();
        let done = service::serve(&self.store, opened, upload.as_mut(), service).await?;
        let effort = Effort {
            read: done.read,
            nanos: done.nanos,
            memory: done.memory as u64,
        };
        executor.metrics.took(&effort, done.len);
        let Done {
            ending,
            len,
            bytes,
            logs,
            ..
        } = done;
        if let Err(ending) = ending {
            return Err(ending.into_error(logs));
        }
        let stored = match (upload, seal) {
            (Some(upload), Some(seal)) => Some(upload.commit(seal).await?),
            _ => None,
        };
        Ok(Executed {
            len,
            bytes,
            stored,
            logs,
            effort,
        })
    }
}

/// Every value that a call names.
fn addresses<'c, 'a>(call: &'c Execute<'a>) -> impl Iterator<Item = Address<'a>> + use<'c, 'a> {
    let output = match &call.output {
        Wanted::Store { address, .. } => Some(*address),
        Wanted::Inline { .. } | Wanted::Into(_) => None,
    };
    let inputs = call.inputs.iter().map(|input| input.address);
    inputs.chain(output)
}

impl<S: Store> Store for Exec<S> {
    type Upload = S::Upload;
    type Body = S::Body;

    fn caps(&self) -> Caps {
        self.store.caps()
    }

    async fn execute(&self, call: Execute<'_>) -> Result<Executed> {
        let Some(executor) = &self.executor else {
            return self.store.execute(call).await;
        };
        let executed = self.run(executor, call).await;
        executor.metrics.ended(&executed);
        executed
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<S::Body>> {
        self.store.retrieve(address, version, range).await
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        self.store
            .retrieve_into(address, version, range, target)
            .await
    }

    async fn exist(&self, addresses: &[Address<'_>]) -> Result<Vec<Option<Meta>>> {
        self.store.exist(addresses).await
    }

    async fn stat(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Meta> {
        self.store.stat(address, version).await
    }

    async fn store(&self, address: Address<'_>, options: StoreOptions) -> Result<S::Upload> {
        self.store.store(address, options).await
    }

    async fn compose(
        &self,
        target: Address<'_>,
        sources: &[&[u8]],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        self.store
            .compose(target, sources, consumed, options, seal)
            .await
    }

    async fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.store.amend(address, version, seen, attributes).await
    }

    async fn delete(&self, address: Address<'_>, options: DeleteOptions) -> Result<Deleted> {
        self.store.delete(address, options).await
    }

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Away>> {
        self.store.away(address, version).await
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Away) -> Result<()> {
        self.store.let_go(address, seen, away).await
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<S::Upload> {
        self.store.take_back(address, version, away).await
    }

    fn forgotten(&self) -> Vec<Away> {
        self.store.forgotten()
    }

    fn changes(&self) -> Option<Box<dyn Watch>> {
        self.store.changes()
    }

    async fn list(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.store.list(options).await
    }

    async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
        self.store.list_versions(options).await
    }

    async fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.store.create_namespace(name, config).await
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        self.store.delete_namespace(name).await
    }

    async fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.store.update_namespace(name, revision, config).await
    }

    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        self.store.namespace(name)
    }

    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>> {
        self.store.namespaces()
    }

    fn usage(&self, scope: Scope<'_>) -> Result<Usage> {
        self.store.usage(scope)
    }

    async fn set_tenant_quota(&self, tenant: &str, quota: Quota) -> Result<()> {
        self.store.set_tenant_quota(tenant, quota).await
    }

    fn tenant_quota(&self, tenant: &str) -> Quota {
        self.store.tenant_quota(tenant)
    }
}
