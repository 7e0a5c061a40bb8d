//! Namespaces and tenants' quotas: rows of the tables, held in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{
    Attributes, Durability, ErrorKind, NamespaceConfig, NamespaceInfo, Quota, StoreError, Usage,
    Versioning,
};

use crate::Result;
use crate::codec::{Malformed, Reader, put_string};
use crate::index::corrupt;
use crate::keys::{self, Table};
use crate::tables::Tables;

/// The key in table namespace of the greatest number given so far; no namespace has an empty name.
pub(crate) const GREATEST: &[u8] = b"";
const NONE: u64 = u64::MAX;

/// The namespaces there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_name: BTreeMap<String, Arc<NamespaceInfo>>,
    by_id: HashMap<u32, Arc<NamespaceInfo>>,
    /// The greatest number given so far.
    pub greatest: u32,
}

impl Registry {
    pub fn get(&self, name: &str) -> Result<Arc<NamespaceInfo>> {
        let found = self.by_name.get(name).cloned();
        found.ok_or_else(|| StoreError::no_namespace(name))
    }

    pub fn by_id(&self, id: u32) -> Option<&Arc<NamespaceInfo>> {
        self.by_id.get(&id)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn all(&self) -> Vec<Arc<NamespaceInfo>> {
        self.by_name.values().cloned().collect()
    }

    pub fn put(&mut self, info: Arc<NamespaceInfo>) {
        self.by_id.insert(info.id, info.clone());
        self.by_name.insert(info.name.clone(), info);
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(info) = self.by_name.remove(name) {
            self.by_id.remove(&info.id);
        }
    }
}

pub(crate) fn not_empty(name: &str) -> StoreError {
    StoreError::new(
        ErrorKind::NamespaceNotEmpty,
        format!("the namespace {name:?} is not empty"),
    )
}

fn put_u64(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn encode_quota(quota: Quota) -> Bytes {
    let mut encoded = Vec::with_capacity(16);
    put_u64(&mut encoded, quota.bytes.unwrap_or(NONE));
    put_u64(&mut encoded, quota.objects.unwrap_or(NONE));
    encoded.into()
}

fn decode_quota(from: &mut Reader<'_>) -> Result<Quota, Malformed> {
    let mut bound = || Ok(Some(from.u64()?).filter(|bound| *bound != NONE));
    Ok(Quota {
        bytes: bound()?,
        objects: bound()?,
    })
}

/// The quota that a tenant's row holds.
pub(crate) fn decode_quota_row(row: &[u8]) -> Result<Quota, Malformed> {
    decode_quota(&mut Reader::new(row))
}

/// The greatest number, as its row says.
pub(crate) fn decode_greatest(row: &[u8]) -> Result<u32, Malformed> {
    Reader::new(row).u32()
}

pub(crate) fn encode_usage(usage: Usage) -> Bytes {
    let mut encoded = Vec::with_capacity(16);
    put_u64(&mut encoded, usage.objects);
    put_u64(&mut encoded, usage.bytes);
    encoded.into()
}

pub(crate) fn decode_usage(encoded: &[u8]) -> Result<Usage, Malformed> {
    let mut from = Reader::new(encoded);
    Ok(Usage {
        objects: from.u64()?,
        bytes: from.u64()?,
    })
}

/// What a namespace uses, as its row says.
pub(crate) fn stored_usage(tables: &Tables, id: u32) -> Result<Usage> {
    match tables.get(Table::Usage, &keys::namespace(id))? {
        Some(row) => decode_usage(&row).map_err(|_| corrupt("usage")),
        None => Ok(Usage::default()),
    }
}

pub(crate) fn encode_info(info: &NamespaceInfo) -> Bytes {
    let config = &info.config;
    let mut encoded = Vec::new();
    encoded.extend_from_slice(&info.id.to_le_bytes());
    put_u64(&mut encoded, info.created);
    put_u64(&mut encoded, info.revision);
    put_string(&mut encoded, config.tenant.as_bytes());
    encoded.extend_from_slice(&encode_quota(config.quota));
    put_u64(&mut encoded, config.ttl_ms.unwrap_or(NONE));
    put_u64(
        &mut encoded,
        match config.durability {
            Durability::Sync => NONE,
            Durability::Relaxed { within_ms } => u64::from(within_ms),
        },
    );
    encoded.push(match config.versioning {
        Versioning::Off => 0,
        Versioning::Enabled => 1,
        Versioning::Suspended => 2,
    });
    put_string(&mut encoded, config.attributes.encoded());
    encoded.into()
}

pub(crate) fn decode_info(name: &[u8], encoded: &Bytes) -> Result<NamespaceInfo, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Malformed);
    let mut from = Reader::new(encoded);
    let id = from.u32()?;
    let created = from.u64()?;
    let revision = from.u64()?;
    let tenant = text(from.string()?)?;
    let quota = decode_quota(&mut from)?;
    let ttl_ms = Some(from.u64()?).filter(|ttl| *ttl != NONE);
    let durability = match from.u64()? {
        NONE => Durability::Sync,
        within => Durability::Relaxed {
            within_ms: u32::try_from(within).map_err(|_| Malformed)?,
        },
    };
    let versioning = match from.u8()? {
        0 => Versioning::Off,
        1 => Versioning::Enabled,
        2 => Versioning::Suspended,
        _ => return Err(Malformed),
    };
    let attributes = Bytes::copy_from_slice(from.string()?);
    Ok(NamespaceInfo {
        name: text(name)?,
        id,
        created,
        revision,
        config: NamespaceConfig {
            tenant,
            quota,
            ttl_ms,
            durability,
            versioning,
            attributes: Attributes::decode(attributes).ok_or(Malformed)?,
        },
    })
}
