//! A value arriving in memory.

use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use forebay_mem::{Buf, BufMut, RegionSlice};

use super::Shared;
use super::state::check;
use super::value::Value;
use crate::limits::{VALUE_BYTES_MAX, check_back};
use crate::{
    Address, Away, Condition, ErrorKind, Etag, Meta, Result, Seal, Space, StoreError, StoreOptions,
    Stored, Taking, Upload, Usage, VersionId,
};

/// A value arriving in a [`MemoryStore`](crate::MemoryStore).
pub struct MemoryUpload {
    shared: Arc<Shared>,
    namespace: String,
    /// The namespace may be replaced by another of its name meanwhile.
    namespace_id: u32,
    space: Space,
    key: Bytes,
    options: StoreOptions,
    reserved: Usage,
    chunks: Vec<Buf>,
    size: u64,
    digest: Digest,
    failed: bool,
    /// The version whose bytes come back, and from where.
    back: Option<(Option<VersionId>, Away)>,
}

impl MemoryUpload {
    pub(super) fn begin(
        shared: &Arc<Shared>,
        address: Address<'_>,
        options: StoreOptions,
    ) -> Result<MemoryUpload> {
        let mut state = shared.state();
        let namespace = state.namespace(address.namespace)?;
        let mut upload = MemoryUpload {
            shared: shared.clone(),
            namespace: address.namespace.to_owned(),
            namespace_id: namespace.info.id,
            space: address.space,
            key: Bytes::copy_from_slice(address.key),
            options,
            reserved: Usage::default(),
            chunks: Vec::new(),
            size: 0,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            failed: false,
            back: None,
        };
        if options.size.is_some_and(|size| size > VALUE_BYTES_MAX) {
            return Err(too_large());
        }
        let size = options.size.unwrap_or(0);
        upload.reserve(&mut state, size, options.condition)?;
        drop(state);
        Ok(upload)
    }

    /// For bytes that come back. Usage counts them already.
    pub(super) fn begin_back(
        shared: &Arc<Shared>,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<MemoryUpload> {
        let state = shared.state();
        let namespace = state.namespace(address.namespace)?;
        let value = namespace.value(address, version)?;
        if value.away != Some(away) {
            return Err(StoreError::moved());
        }
        Ok(MemoryUpload {
            shared: shared.clone(),
            namespace: address.namespace.to_owned(),
            namespace_id: namespace.info.id,
            space: address.space,
            key: Bytes::copy_from_slice(address.key),
            options: StoreOptions {
                size: Some(value.meta.size),
                ..StoreOptions::default()
            },
            reserved: Usage::default(),
            chunks: Vec::new(),
            size: 0,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            failed: false,
            back: Some((version, away)),
        })
    }

    fn commit_back(
        &mut self,
        state: &mut super::State,
        version: Option<VersionId>,
        away: Away,
    ) -> Result<Stored> {
        let namespace = state.namespace_mut(&self.namespace)?;
        let address = Address {
            namespace: &self.namespace,
            space: self.space,
            key: &self.key,
        };
        let value = namespace.value(address, version)?;
        if value.away != Some(away) || namespace.info.id != self.namespace_id {
            return Err(StoreError::moved());
        }
        check_back(&value.meta, self.size, self.digest.finalize())?;
        let meta = value.meta.clone();
        let chunks = std::mem::take(&mut self.chunks).into();
        namespace.set_chunks(address, version, chunks, None);
        Ok(Stored {
            meta,
            replaced: true,
        })
    }

    /// Makes room for a value of `size` bytes, beyond what is reserved already, if this holds of the current one.
    fn reserve(&mut self, state: &mut super::State, size: u64, condition: Condition) -> Result<()> {
        let namespace = state.namespace(&self.namespace)?;
        if namespace.info.id != self.namespace_id {
            return Err(StoreError::new(
                ErrorKind::NoSuchNamespace,
                "the namespace was deleted meanwhile",
            ));
        }
        let slot = namespace.slot(self.space, &self.key);
        check(slot, condition)?;
        let needed = namespace.growth(self.space, slot, size);
        let more = Usage {
            objects: needed.objects.saturating_sub(self.reserved.objects),
            bytes: needed.bytes.saturating_sub(self.reserved.bytes),
        };
        state.admit(&self.namespace, more)?;
        let reserved = &mut state.namespace_mut(&self.namespace)?.reserved;
        *reserved = reserved.plus(more);
        self.reserved = self.reserved.plus(more);
        Ok(())
    }

    fn release(&mut self, state: &mut super::State) {
        if let Some(namespace) = state.namespaces.get_mut(&self.namespace)
            && namespace.info.id == self.namespace_id
        {
            namespace.reserved.objects -= self.reserved.objects;
            namespace.reserved.bytes -= self.reserved.bytes;
        }
        self.reserved = Usage::default();
    }

    /// Appends what is in `digest` already.
    fn append(&mut self, buf: Buf) -> Result<()> {
        let size = self.size + buf.len() as u64;
        match self.options.size {
            Some(declared) if size > declared => return Err(too_large()),
            Some(_) => {}
            None if size > VALUE_BYTES_MAX => return Err(too_large()),
            None => {
                let shared = self.shared.clone();
                // Whether its condition still holds is decided at the end.
                self.reserve(&mut shared.state(), size, Condition::default())?;
            }
        }
        if buf.is_empty() {
            return Ok(());
        }
        self.size = size;
        self.chunks.push(self.shared.keep(buf));
        Ok(())
    }
}

impl Upload for MemoryUpload {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        Ok(self.shared.buffer(len).await)
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        self.digest.update(&buf);
        let appended = self.append(buf);
        self.failed |= appended.is_err();
        appended
    }

    async fn read_from(&mut self, source: RegionSlice) -> Result<()> {
        // Until all of it is here.
        let failed = std::mem::replace(&mut self.failed, true);
        let mut taking = Taking::new(source);
        while taking.left() > 0 {
            let mut buf = self.shared.buffer(taking.left()).await;
            taking.fill(&mut buf, &mut self.digest)?;
            self.append(buf.freeze())?;
        }
        self.failed = failed;
        Ok(())
    }

    fn crc64nvme(&self) -> u64 {
        self.digest.finalize()
    }

    async fn commit(mut self, seal: Seal) -> Result<Stored> {
        if self.failed || self.options.size.is_some_and(|size| size != self.size) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "not all bytes of the value arrived",
            ));
        }
        let shared = self.shared.clone();
        let mut state = shared.state();
        if let Some((version, away)) = self.back {
            return self.commit_back(&mut state, version, away);
        }
        // Decided afresh: the room that was reserved counted on the value being replaced, which may have changed.
        self.release(&mut state);
        self.reserve(&mut state, self.size, self.options.condition)?;
        let fresh = state.fresh_version();
        let crc64nvme = self.digest.finalize();
        let now = (shared.clock)();
        let namespace = state.namespace_mut(&self.namespace)?;
        let meta = Meta {
            size: self.size,
            etag: seal
                .etag
                .unwrap_or_else(|| Etag::of_value(crc64nvme, self.size)),
            modified: now,
            version: fresh,
            crc64nvme,
            expires: namespace.info.config.expires(self.space, now, seal.expires),
            attributes: seal.attributes,
        };
        let chunks = std::mem::take(&mut self.chunks).into();
        let value = Value {
            meta,
            chunks,
            away: None,
        };
        let stored = namespace.store(self.space, self.key.clone(), fresh, value);
        self.release(&mut state);
        Ok(stored)
    }
}

impl Drop for MemoryUpload {
    fn drop(&mut self) {
        if self.reserved != Usage::default() {
            let shared = self.shared.clone();
            self.release(&mut shared.state.lock());
        }
    }
}

fn too_large() -> StoreError {
    StoreError::new(
        ErrorKind::TooLarge,
        "the value is larger than allowed or declared",
    )
}
