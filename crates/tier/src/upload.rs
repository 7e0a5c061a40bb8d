//! A value arriving: it goes to the store, and a reference to what went stays.

use std::sync::Arc;

use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_store::{
    Condition, Durability, Etag, Meta, Result, Seal, Space, Store, StoreOptions, Stored, Upload,
    VersionId, Versioning, copy_from,
};

use crate::cache::Cache;
use crate::change::{is_unknown, see_through};
use crate::index::Place;
use crate::landing::{Before, Landing};
use crate::metrics::count;
use crate::piece::{Cutter, Piece};
use crate::room::Held;
use crate::stripes::Changing;
use crate::write_back::Pending;

/// A value arriving at a [`Tier`](crate::Tier).
pub struct TierUpload<S: Store> {
    upload: S::Upload,
    kept: Option<Box<Kept<S>>>,
}

pub(crate) struct Kept<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) cache: Arc<Cache<S>>,
    pub(crate) place: Place,
    pub(crate) options: StoreOptions,
    cutter: Cutter,
    pub(crate) pieces: Vec<Piece>,
    len: u64,
    /// Room for every byte so far; `None`: they are not held here.
    room: Option<Held>,
}

impl<S: Store> TierUpload<S> {
    pub(crate) fn passed(upload: S::Upload) -> TierUpload<S> {
        TierUpload { upload, kept: None }
    }

    pub(crate) fn kept(
        upload: S::Upload,
        store: Arc<S>,
        cache: Arc<Cache<S>>,
        place: Place,
        options: StoreOptions,
    ) -> TierUpload<S> {
        let most = cache.config.span_bytes_max;
        // One of no bytes takes a place, too.
        let size = options.size.map_or(0, |size| size.max(1));
        let room = (size <= most).then(|| cache.room_for(&place, size));
        let kept = Kept {
            room: room.flatten(),
            store,
            cache,
            place,
            options,
            cutter: Cutter::default(),
            pieces: Vec::new(),
            len: 0,
        };
        TierUpload {
            upload,
            kept: Some(Box::new(kept)),
        }
    }
}

impl<S: Store> Upload for TierUpload<S> {
    async fn buffer(&mut self, len: usize) -> Result<BufMut> {
        self.upload.buffer(len).await
    }

    async fn write(&mut self, buf: Buf) -> Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.push(&buf);
        }
        self.upload.write(buf).await
    }

    async fn read_from(&mut self, source: RegionSlice) -> Result<()> {
        // The store may take the bytes straight from the client's memory; to be kept they are copied out of it.
        if !self.kept.as_ref().is_some_and(|kept| kept.is_whole()) {
            return self.upload.read_from(source).await;
        }
        copy_from(self, source).await
    }

    fn crc64nvme(&self) -> u64 {
        self.upload.crc64nvme()
    }

    async fn commit(self, seal: Seal) -> Result<Stored> {
        let TierUpload { upload, kept } = self;
        match kept {
            None => upload.commit(seal).await,
            // Boxed: without a cache it would be dead weight of every request.
            Some(kept) => Box::pin(kept.commit(upload, seal)).await,
        }
    }
}

impl<S: Store> Kept<S> {
    async fn commit(mut self: Box<Self>, upload: S::Upload, seal: Seal) -> Result<Stored> {
        self.finish();
        let cache = self.cache.clone();
        cache.write_back.settle(&self.place).await;
        match self.may_write_back() {
            true => self.write_back(upload, seal).await,
            false => self.write_through(upload, seal).await,
        }
    }

    /// Answers when the store has committed it.
    async fn write_through(self: Box<Self>, upload: S::Upload, seal: Seal) -> Result<Stored> {
        let cache = self.cache.clone();
        let direct = cache.write_back.pass(&self.place).await;
        let changing = cache.change(&self.place);
        let began = cache.now();
        see_through(async move {
            let committed = upload.commit(seal).await;
            if let Ok(stored) = &committed {
                self.hold(stored, began, &changing);
            }
            changing.end(is_unknown(&committed));
            drop(direct);
            committed
        })
        .await
    }

    /// Whether every byte so far is held here.
    fn is_whole(&self) -> bool {
        self.room.is_some()
    }

    fn push(&mut self, buf: &Buf) {
        self.len += buf.len() as u64;
        match self.grow(buf.len() as u64) {
            Some(()) => self.cutter.push(buf.clone(), &mut self.pieces),
            None => self.give_up(),
        }
    }

    /// Room for so many bytes more.
    fn grow(&mut self, bytes: u64) -> Option<()> {
        let room = self.room.as_mut()?;
        if self.len
            > self
                .options
                .size
                .unwrap_or(self.cache.config.span_bytes_max)
        {
            return None;
        }
        let more = self.options.size.is_none();
        (!more || room.grow(bytes)).then_some(())
    }

    /// What is held would keep others waiting for buffers, and this value for its own.
    fn give_up(&mut self) {
        self.room = None;
        self.cutter = Cutter::default();
        self.pieces.clear();
    }

    fn finish(&mut self) {
        self.pieces.extend(self.cutter.finish());
        if self.is_whole() && self.pieces.is_empty() {
            self.pieces.push(Piece::new(Vec::new()));
        }
    }

    /// Holds what was stored, if it is what there is now.
    pub(crate) fn hold(self, stored: &Stored, began: u64, changing: &Changing) {
        if self.is_whole() && stored.meta.size == self.len {
            let still = || changing.alone();
            let pieces = (0..).zip(self.pieces);
            let index = &self.cache.index;
            let fallout = index.put(&self.place, &stored.meta, began, pieces, still);
            self.cache.after(fallout);
        }
    }

    fn may_write_back(&mut self) -> bool {
        let asked = self.cache.write_back.is_on()
            && self.is_whole()
            && self.options.size == Some(self.len)
            && self.options.condition == Condition::None;
        if !asked || !self.look_at_namespace() {
            return false;
        }
        let config = &self.place.namespace.config;
        config.versioning == Versioning::Off && config.durability != Durability::Sync
    }

    /// Sees the namespace as it is now: an upload takes its time, and what it allowed when that began may be over. `false` when it
    /// is gone.
    fn look_at_namespace(&mut self) -> bool {
        let namespace = &mut self.place.namespace;
        match self.store.namespace(&namespace.name) {
            Ok(now) if now.id == namespace.id => {
                *namespace = now;
                true
            }
            _ => false,
        }
    }

    /// Answers now and commits meanwhile, if there is room for one more and nobody else is at its key.
    async fn write_back(self: Box<Self>, upload: S::Upload, seal: Seal) -> Result<Stored> {
        let crc64nvme = upload.crc64nvme();
        let cache = self.cache.clone();
        let place = self.place.clone();
        let now = cache.now();
        let config = &place.namespace.config;
        let expires = config.expires(Space::Objects, now, seal.expires);
        let etag = seal.etag;
        let meta = Meta {
            size: self.len,
            etag: etag.unwrap_or_else(|| Etag::of_value(crc64nvme, self.len)),
            modified: now,
            version: VersionId::NULL,
            crc64nvme,
            expires,
            attributes: seal.attributes.clone(),
        };
        let pending = Arc::new(Pending {
            meta: meta.clone(),
            pieces: self.pieces.clone(),
        });
        let held = cache.index.meta(&place, now);
        let replaced = held.is_some();
        let before = held.filter(|(_, known)| cache.is_trusted(*known, now));
        let before = Before::Held(before.map(|(meta, _)| meta));
        let changing = cache.change(&place);
        let Some(waiting) = cache.write_back.begin(&place, pending) else {
            drop(changing);
            return self.write_through(upload, seal).await;
        };
        count(&cache.counters.write_backs);
        let landing = Landing {
            kept: self,
            seal,
            meta: meta.clone(),
            before,
        };
        tokio::spawn(landing.land(upload, changing, waiting));
        Ok(Stored { meta, replaced })
    }
}
