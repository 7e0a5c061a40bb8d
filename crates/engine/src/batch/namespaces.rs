//! Deciding about namespaces and tenants.

use std::sync::Arc;

use bytes::Bytes;
use forebay_io::Disk;
use forebay_store::{
    Durability, ErrorKind, NamespaceConfig, NamespaceInfo, Quota, Result, StoreError,
};

use crate::draft::Draft;
use crate::keys;
use crate::keys::Table;
use crate::namespaces::{GREATEST, encode_info, encode_quota, not_empty};

use super::{Decider, Settled};

impl<D: Disk> Decider<D> {
    pub(super) fn create_namespace(
        &mut self,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let registry = self.core.registry.read();
        if registry.contains(name) {
            return Err(StoreError::new(
                ErrorKind::NamespaceExists,
                format!("there is a namespace {name:?} already"),
            ));
        }
        let id = registry.greatest.checked_add(1).ok_or_else(|| {
            StoreError::new(ErrorKind::Invalid, "all namespace numbers are used up")
        })?;
        drop(registry);
        let info = Arc::new(NamespaceInfo {
            name: name.to_owned(),
            id,
            created: self.now,
            revision: NamespaceInfo::first_revision(id),
            config,
        });
        let mut draft = Draft::default();
        let greatest = Bytes::copy_from_slice(&id.to_le_bytes());
        draft
            .record
            .put(Table::Namespace, Bytes::from_static(GREATEST), greatest);
        self.put_namespace(draft, &info);
        self.batch.settled.push(Settled::Opened(info.clone()));
        Ok(info)
    }

    fn put_namespace(&mut self, mut draft: Draft, info: &NamespaceInfo) {
        let key = Bytes::copy_from_slice(info.name.as_bytes());
        draft.record.put(Table::Namespace, key, encode_info(info));
        self.batch.take(draft, Durability::Sync);
    }

    pub(super) fn update_namespace(
        &mut self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        let old = self.core.registry.read().get(name)?;
        old.config.check_change(&config)?;
        if revision.is_some_and(|revision| revision != old.revision) {
            return Err(StoreError::new(
                ErrorKind::PreconditionFailed,
                "the namespace was changed meanwhile",
            ));
        }
        let info = Arc::new(NamespaceInfo {
            revision: old.revision + 1,
            config,
            ..(*old).clone()
        });
        let kept = |info: &NamespaceInfo| info.config.attributes.encoded().len();
        if kept(&info) > kept(&old) {
            self.core.check_index_room()?;
        }
        self.put_namespace(Draft::default(), &info);
        self.batch.settled.push(Settled::Changed(info.clone()));
        Ok(info)
    }

    /// Removes a namespace in which somebody found nothing, if nothing was put there since it had grown `growths` times.
    pub(super) fn delete_namespace(&mut self, seen: &NamespaceInfo, growths: u64) -> Result<()> {
        let name = &seen.name;
        let info = self.core.registry.read().get(name)?;
        if info.id != seen.id || self.core.ledger.growths(info.id) != growths {
            return Err(not_empty(name));
        }
        let prefix = keys::namespace(info.id);
        let mut draft = Draft::default();
        draft
            .record
            .remove(Table::Namespace, Bytes::copy_from_slice(name.as_bytes()));
        draft
            .record
            .remove(Table::Usage, Bytes::copy_from_slice(&prefix));
        self.batch.touched.remove(&info.id);
        self.batch.take(draft, Durability::Sync);
        self.batch.settled.push(Settled::Closed(info));
        Ok(())
    }

    pub(super) fn tenant_quota(&mut self, tenant: String, quota: Quota) {
        let mut draft = Draft::default();
        let key = Bytes::copy_from_slice(tenant.as_bytes());
        match quota == Quota::default() {
            // A row that says nothing is none.
            true => draft.record.remove(Table::Tenant, key),
            false => draft.record.put(Table::Tenant, key, encode_quota(quota)),
        }
        self.batch.take(draft, Durability::Sync);
        self.batch.settled.push(Settled::TenantQuota(tenant, quota));
    }
}
