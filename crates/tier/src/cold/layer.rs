//! The layer: a store as it was, whose values may have their bytes elsewhere.

use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, RegionSlice};
use forebay_store::{
    Address, Away as Name, Body, ByteRange, ErrorKind, Meta, NamespaceInfo, Object, Result, Store,
    StoreError, VersionId,
};

use super::bucket::Bucket;
use super::counters::{Counters, add};
use super::fetch::Fetch;
use super::mover::{Config, Mover, Recalling, WAIT_BYTES_MAX, outcome};
use super::pins::Pin;
use super::reads::spot;
use super::rules::Rules;
use crate::namesake::still;

/// Bytes may move between the look at a value and the look at its bytes; then the look is repeated.
const LOOKS_MAX: usize = 16;

/// A store over a store: values keep their place there, their bytes may be in a bucket. Without one it costs a branch. Clones are
/// the same.
pub struct Cold<S> {
    hot: Arc<S>,
    mover: Option<Arc<Mover<S>>>,
}

impl<S> Clone for Cold<S> {
    fn clone(&self) -> Cold<S> {
        Cold {
            hot: self.hot.clone(),
            mover: self.mover.clone(),
        }
    }
}

/// A value leaving.
pub enum ColdBody<B> {
    /// From the store.
    Here(B),
    /// From the bucket.
    Away(Box<Away>),
}

/// Bytes from the bucket, whose copy stays while they are read.
pub struct Away {
    bytes: Fetch,
    counters: Arc<Counters>,
    _pin: Pin,
}

impl<B: Body> Body for ColdBody<B> {
    async fn next(&mut self) -> Result<Option<Buf>> {
        match self {
            ColdBody::Here(body) => body.next().await,
            ColdBody::Away(away) => {
                let next = away.bytes.next().await?;
                if let Some(buf) = &next {
                    add(&away.counters.read_bytes, buf.len() as u64);
                }
                Ok(next)
            }
        }
    }
}

impl<S: Store> Cold<S> {
    /// A store without a cold tier.
    pub fn off(hot: Arc<S>) -> Cold<S> {
        Cold { hot, mover: None }
    }

    /// A store over a bucket.
    pub fn new(hot: Arc<S>, bucket: Bucket, config: Config) -> Cold<S> {
        let mover = Mover::new(hot.clone(), bucket, config);
        Cold {
            hot,
            mover: Some(Arc::new(mover)),
        }
    }

    /// What moves bytes, when there is a bucket.
    pub fn mover(&self) -> Option<&Arc<Mover<S>>> {
        self.mover.as_ref()
    }
}

impl<S: Store> Mover<S> {
    /// Notes that a value was read, if there is one: the table is all tenants', and any name can be asked for.
    fn note_read<T>(&self, namespace: &NamespaceInfo, key: &[u8], answer: &Result<T>) {
        let is_there = answer
            .as_ref()
            .map_or_else(|error| error.away().is_some(), |_| true);
        if is_there && self.reads.is_on() {
            self.reads.note(spot(namespace.id, key), self.now());
        }
    }

    /// A value of the namespace that was `meant`, which the store could not read, for its bytes are away: `error` says where.
    async fn retrieve(
        self: &Arc<Self>,
        meant: &NamespaceInfo,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        mut error: StoreError,
    ) -> Result<Object<ColdBody<S::Body>>> {
        add(&self.counters.reads, 1);
        for look in 0..LOOKS_MAX {
            let Some((meta, away)) = error.away().map(|(meta, away)| (meta.clone(), away)) else {
                return Err(error);
            };
            let Some(wanted) = range.resolve(meta.size) else {
                return Err(error);
            };
            let whole = wanted == (0..meta.size);
            if look == 0 && Rules::of(meant).bring_back(address.key, &meta) {
                let parts =
                    !whole && self.read_in_parts(away, meta.size, wanted.end - wanted.start);
                let recall = match parts || whole {
                    true => self.recall_for_reader(address, &meta, away),
                    false => None,
                };
                if let Some(recall) = recall
                    && whole
                    && meta.size <= WAIT_BYTES_MAX
                    // Behind others it would wait for what they read.
                    && !matches!(*recall.borrow(), Recalling::Queued)
                {
                    match outcome(recall).await {
                        // The far side did not give it now, and would not a moment later.
                        Err(failed) if failed.far => return Err(failed.error()),
                        // It is back, or another, or the store does not take it: it is looked for again.
                        _ => {}
                    }
                }
            }
            let pin = self.pins.pin(away);
            still(&*self.hot, meant)?;
            if let Ok(Some(still)) = self.hot.away(address, Some(meta.version)).await
                && still == away
            {
                // Whatever happens to the value from here on, its copy stays until it is read.
                let away = Away {
                    bytes: self.fetch(&meta, away, wanted.clone()),
                    counters: self.counters.clone(),
                    _pin: pin,
                };
                return Ok(Object {
                    meta,
                    range: wanted,
                    body: ColdBody::Away(Box::new(away)),
                });
            }
            still(&*self.hot, meant)?;
            error = match self.hot.retrieve(address, version, range).await {
                Ok(Object { meta, range, body }) => {
                    let body = ColdBody::Here(body);
                    return Ok(Object { meta, range, body });
                }
                Err(error) => error,
            };
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "the bytes of the value keep moving; try again",
        ))
    }
}

fn keeps_bytes() -> StoreError {
    StoreError::new(
        ErrorKind::Unsupported,
        "the cold tier keeps the bytes that this store lets go",
    )
}

#[warn(clippy::missing_trait_methods)]
impl<S: Store> Store for Cold<S> {
    type Upload = S::Upload;
    type Body = ColdBody<S::Body>;

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<Self::Body>> {
        let here = |Object { meta, range, body }| Object {
            meta,
            range,
            body: ColdBody::Here(body),
        };
        let Some(mover) = &self.mover else {
            let found = self.hot.retrieve(address, version, range).await;
            return found.map(here);
        };
        let meant = self.hot.namespace(address.namespace)?;
        let found = self.hot.retrieve(address, version, range).await;
        mover.note_read(&meant, address.key, &found);
        match found {
            Err(error) if error.away().is_some() => {
                Box::pin(mover.retrieve(&meant, address, version, range, error)).await
            }
            found => found.map(here),
        }
    }

    async fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        let Some(mover) = &self.mover else {
            return self
                .hot
                .retrieve_into(address, version, range, target)
                .await;
        };
        let meant = self.hot.namespace(address.namespace)?;
        let placed = self
            .hot
            .retrieve_into(address, version, range, target.clone())
            .await;
        mover.note_read(&meant, address.key, &placed);
        match placed {
            Err(error) if error.away().is_some() => {
                let found = Box::pin(mover.retrieve(&meant, address, version, range, error));
                found.await?.place_into(&target).await
            }
            placed => placed,
        }
    }

    // To those above, the bytes of every value are here: names of copies are between the store and the mover, which alone may give
    // new ones, and hears once which are forgotten.

    async fn away(&self, address: Address<'_>, version: Option<VersionId>) -> Result<Option<Name>> {
        match self.mover {
            Some(_) => self.hot.stat(address, version).await.map(|_| None),
            None => self.hot.away(address, version).await,
        }
    }

    async fn let_go(&self, address: Address<'_>, seen: &Meta, away: Name) -> Result<()> {
        match self.mover {
            Some(_) => Err(keeps_bytes()),
            None => self.hot.let_go(address, seen, away).await,
        }
    }

    async fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Name,
    ) -> Result<S::Upload> {
        match self.mover {
            Some(_) => Err(keeps_bytes()),
            None => self.hot.take_back(address, version, away).await,
        }
    }

    fn forgotten(&self) -> Vec<Name> {
        match self.mover {
            Some(_) => Vec::new(),
            None => self.hot.forgotten(),
        }
    }

    forebay_store::pass_on! {
        hot: caps, exist, stat, store, compose, amend, delete, settle, execute, list, list_versions, create_namespace,
        delete_namespace, update_namespace, namespace, namespaces, usage, set_tenant_quota, tenant_quota, changes
    }
}
