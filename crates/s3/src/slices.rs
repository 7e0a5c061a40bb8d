//! An object that is sent in slices.
//!
//! A store's body reads ahead. Where a tenant's bodies have all the buffers that they may have, one more gets on with few: each slice is
//! asked for when the one before it is on its way. It is asked for as the object was: without a version where none was named, because a
//! cache has what is current. What they are slices of may be replaced meanwhile; then they go on with it as an older version, and where
//! none is kept the response is cut short.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Meta, Result, Store, StoreError, VersionId,
};
use futures_util::Stream;
use futures_util::stream::try_unfold;

use crate::call::Call;
use crate::demand::Demand;
use crate::status::Outcome;

/// What is left to be sent of an object.
pub(crate) struct Slices<S: Store> {
    store: Arc<S>,
    demand: Arc<Demand>,
    bucket: String,
    /// The number of the bucket that the caller was let into.
    id: Option<u32>,
    key: Vec<u8>,
    meta: Meta,
    /// Which version is asked for; none as long as the current one is the object, unless one was named.
    version: Option<VersionId>,
    slice_bytes: u64,
    /// What was not asked for yet.
    rest: Range<u64>,
    /// The slice that was asked for last.
    slice: Option<S::Body>,
}

impl<S: Store> Slices<S> {
    /// Of the object that a request asks for, as it is now.
    ///
    /// # Errors
    /// `InvalidArgument` for a version that is none.
    pub(crate) fn of(
        call: &Call<'_, S>,
        meta: &Meta,
        range: &Range<u64>,
        slice_bytes: u64,
    ) -> Outcome<Slices<S>> {
        Ok(Slices {
            store: Arc::clone(&call.door.store),
            demand: Arc::clone(&call.door.demand),
            bucket: call.bucket.to_owned(),
            id: call.namespace.as_ref().map(|admitted| admitted.id),
            key: call.key.as_bytes().to_vec(),
            meta: meta.clone(),
            version: call.version()?,
            slice_bytes,
            rest: range.clone(),
            slice: None,
        })
    }

    /// Their bytes.
    pub(crate) fn bytes(self) -> impl Stream<Item = Result<Bytes>> + Send {
        try_unfold(self, |mut slices| async move {
            let next = slices.next().await?;
            Ok(next.map(|bytes| (bytes, slices)))
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(slice) = &mut self.slice
                && let Some(buf) = self.demand.wait(slice.next()).await?
            {
                return Ok(Some(buf.into_bytes()));
            }
            self.slice = None;
            if self.rest.is_empty() {
                return Ok(None);
            }
            self.slice = Some(self.open().await?);
        }
    }

    async fn open(&mut self) -> Result<S::Body> {
        let Range { start, end } = self.rest;
        // Later ones begin where the store's own pieces do.
        let end = end.min((start / self.slice_bytes + 1) * self.slice_bytes);
        let range = ByteRange::Inclusive(start, end - 1);
        loop {
            if let Some(body) = self.find(range).await? {
                self.rest.start = end;
                return Ok(body);
            }
            // What is not current any more may be kept as an older version.
            if self.version.replace(self.meta.version).is_some() {
                return Err(StoreError::new(
                    ErrorKind::PreconditionFailed,
                    "the object was replaced while it was sent",
                ));
            }
        }
    }

    /// A part of the object; `None` when the store has another one, or none.
    async fn find(&mut self, range: ByteRange) -> Result<Option<S::Body>> {
        let address = Address::object(&self.bucket, &self.key);
        let opened = match self.store.retrieve(address, self.version, range).await {
            Err(error) if is_of_another(error.kind()) => return Ok(None),
            opened => opened?,
        };
        // It was found by the bucket's name, which anybody may have by now.
        let now = self.store.namespace(&self.bucket)?;
        let is_same = Some(now.id) == self.id
            && opened.meta.version == self.meta.version
            && opened.meta.etag == self.meta.etag
            && opened.meta.size == self.meta.size;
        Ok(is_same.then_some(opened.body))
    }
}

/// Whether a store says by this that it has another object than the one that was found, or none.
fn is_of_another(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::NoSuchVersion
            | ErrorKind::IsDeleteMarker
            | ErrorKind::RangeNotSatisfiable
    )
}

/// Whether slices ended because their object was replaced.
pub(crate) fn is_replaced(error: &StoreError) -> bool {
    error.kind() == ErrorKind::PreconditionFailed
}
