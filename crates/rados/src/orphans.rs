//! Stripes of namespaces that were deleted, with values under way: who deletes one remembers them.

use std::collections::HashMap;

use bytes::Bytes;
use forebay_store::Result;

use crate::codec::Malformed;
use crate::core::{Core, Namespace};
use crate::error::unread;
use crate::names;
use crate::record::{Segment, begin, writer};
use crate::sys::{Guard, WriteOp};
use crate::under_way::{Garbage, Intent};

/// Their section of the registry.
pub(crate) const ORPHANS: &[u8] = b"o";

/// Stripes of a namespace that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub namespace: String,
    pub segment: Segment,
    /// The namespace's number; records from before it was kept have none.
    pub id: Option<u32>,
}

impl Orphan {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.string(self.namespace.as_bytes());
        Segment::write(&mut writer, &self.segment);
        if let Some(id) = self.id {
            writer.u32(id);
        }
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> std::result::Result<Orphan, Malformed> {
        let mut reader = begin(encoded)?;
        let (namespace, segment) = (reader.text()?, Segment::read(&mut reader)?);
        let id = match reader.end() {
            Ok(()) => None,
            Err(Malformed) => Some(reader.u32()?),
        };
        reader.end()?;
        Ok(Orphan {
            namespace,
            segment,
            id,
        })
    }
}

impl Core {
    /// Remembers what is under way in a namespace that is about to be deleted.
    pub async fn remember_orphans(
        &self,
        namespace: &Namespace,
        intents: &[(Bytes, Bytes)],
        garbage: &[Bytes],
    ) -> Result<()> {
        let name = namespace.info().name.clone();
        let intents = intents
            .iter()
            .filter_map(|(_, value)| Intent::decode(value).ok());
        let garbage = garbage
            .iter()
            .filter_map(|value| Garbage::decode(value).ok())
            .map(|garbage| garbage.segment);
        let segments = intents.map(|intent| intent.segment).chain(garbage);
        let orphans = segments.map(|segment| {
            let mut key = ORPHANS.to_vec();
            key.extend_from_slice(format!("{:032x}", segment.id).as_bytes());
            let orphan = Orphan {
                namespace: name.clone(),
                segment,
                id: Some(namespace.id),
            };
            (key, orphan.encode())
        });
        let orphans: Vec<_> = orphans.collect();
        if orphans.is_empty() {
            return Ok(());
        }
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_set(orphans.iter().map(|(key, value)| (&key[..], &value[..])));
        self.write_registry(op).await
    }

    /// Those that nobody reads and whose namespace is gone. The others' records stay: whoever deletes the namespace in the end will have
    /// remembered no other.
    pub async fn orphaned(&self, found: Vec<(Bytes, Orphan)>) -> Result<Vec<(Bytes, Orphan)>> {
        let mut gone = HashMap::new();
        let mut orphans = Vec::new();
        for (name, orphan) in found {
            let of = (orphan.namespace.clone(), orphan.id);
            let is_gone = match gone.get(&of) {
                Some(known) => *known,
                None => self.is_orphaned(&orphan).await?,
            };
            gone.insert(of, is_gone);
            if is_gone && !self.pins.is_pinned(orphan.segment.id) {
                orphans.push((name, orphan));
            }
        }
        Ok(orphans)
    }

    /// Removes such stripes, and forgets them.
    pub async fn remove_orphan(&self, name: &[u8], orphan: &Orphan) -> Result<()> {
        let spaces = names::Spaces::new(&self.config.base, &orphan.namespace);
        let place = self.access.place(&spaces.stripes);
        let place = place.map_err(|errno| unread(errno, "orphans"))?;
        self.remove_stripes(&place, orphan.segment).await?;
        self.forget_registered(name).await
    }

    /// Whether the namespace that stripes belonged to was deleted. Its deletion may also have failed after it had remembered them: then
    /// they may by now be a value's. Nothing of the namespace comes after its journal is gone.
    async fn is_orphaned(&self, orphan: &Orphan) -> Result<bool> {
        let Some(id) = orphan.id else {
            return Ok(!self.is_registered(&orphan.namespace).await?);
        };
        let spaces = names::Spaces::new(&self.config.base, &orphan.namespace);
        let index = self.access.place(&spaces.index);
        let index = index.map_err(|errno| unread(errno, "orphans"))?;
        Ok(!self.has_journal(&index, &names::journal(id)).await?)
    }
}
