//! The contract.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{BLOCK_MIN_BYTES, Buf, BufMut, CopySite, RegionSlice, count_copy};

use crate::{
    Address, Attributes, Away, ByteRange, DeleteOptions, Deleted, ErrorKind, Execute, Executed,
    ListOptions, ListPage, Meta, NamespaceConfig, NamespaceInfo, Quota, Result, Scope, Seal,
    Source, StoreError, StoreOptions, Stored, Usage, VersionId, VersionPage, Watch,
};

/// What a store can do; doors refuse early by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Words for a person: `engine`, `memory`.
    pub name: &'static str,
    /// Whether an acknowledged store survives a crash.
    pub durable: bool,
    /// Whether it keeps versions.
    pub versions: bool,
    /// The largest value, in bytes.
    pub value_bytes_max: u64,
    /// The length of buffer that uploads take without packing again.
    pub chunk_bytes: usize,
    /// The most buffers of this length that a body has read before they are asked for.
    pub read_ahead: usize,
    /// The most that an upload has taken and still holds when it takes another.
    pub write_behind: usize,
}

impl Caps {
    /// How many bytes the buffers have, at most, in which bytes `range` of a value of `size` lie: whoever has a part of one keeps all of it.
    #[must_use]
    pub fn around(&self, range: &Range<u64>, size: u64) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let chunk = self.chunk_bytes.max(1) as u64;
        let chunks = range.end.div_ceil(chunk) - range.start / chunk;
        let whole = size.checked_next_power_of_two().unwrap_or(u64::MAX);
        let bytes = chunks.saturating_mul(chunk).min(whole);
        bytes.max(BLOCK_MIN_BYTES as u64)
    }
}

/// A store of named values.
///
/// # Contract
/// - **Atomic.** A value changes whole, at one moment; readers see the old or the new one, and a body being read stays what it
///   was when `retrieve` returned, whatever happens to its key meanwhile.
/// - **Durable.** When a call that changes something returns, the change survives a crash, unless the namespace says
///   [`Durability::Relaxed`](crate::Durability::Relaxed).
/// - **All or nothing.** An error means that nothing changed, except [`ErrorKind::OutcomeUnknown`]. Dropping an [`Upload`] or
///   a future before it is done leaves the old value; a change that was already being made durable may still happen.
/// - **Namespaces** are found by name when a call begins. One that gets the name while the call waits is another one: what it holds is
///   neither given out nor changed.
/// - **Checked.** Bytes that do not match their checksum are an error, never data. No input panics.
/// - **Expired is absent.** A value from its `expires` on is not found, not listed and does not fail a condition. In a versioned
///   namespace only that version goes: older ones stay, and none becomes current by it.
/// - **Quotas** bound growth: a change that leaves a namespace or tenant with no more than before is not refused.
/// - **Times** are those of the store's clock.
///
/// Limits are checked by the store (see [`limits`](crate::limits)); a breach is [`ErrorKind::Invalid`].
///
/// A method that is given here is how a leaf answers that has nothing of the kind. A layer leaves none out: see
/// [`pass_on!`](crate::pass_on).
pub trait Store: Send + Sync + 'static {
    /// A value arriving.
    type Upload: Upload;
    /// A value leaving.
    type Body: Body;

    /// What it can do.
    fn caps(&self) -> Caps;

    /// The current value, or the `version` asked for, with a body that yields the bytes of `range`. Bytes are read as the
    /// body is asked for them: looking at the metadata alone costs no data I/O.
    fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> impl Future<Output = Result<Object<Self::Body>>> + Send;

    /// As `retrieve`, with the bytes placed at the start of `target`, which must be long enough (else
    /// [`ErrorKind::Invalid`]). A leaf that can reads its device straight into the target; this default copies and counts.
    fn retrieve_into(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> impl Future<Output = Result<(Meta, Range<u64>)>> + Send {
        async move {
            let found = self.retrieve(address, version, range).await?;
            found.place_into(&target).await
        }
    }

    /// The metadata of each address' current value, in order; `None` where there is none. Never touches data.
    fn exist(
        &self,
        addresses: &[Address<'_>],
    ) -> impl Future<Output = Result<Vec<Option<Meta>>>> + Send;

    /// The metadata of the current value or of one version. Never touches data.
    fn stat(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> impl Future<Output = Result<Meta>> + Send;

    /// Begins to store a value.
    fn store(
        &self,
        address: Address<'_>,
        options: StoreOptions,
    ) -> impl Future<Output = Result<Self::Upload>> + Send;

    /// Joins staged values, in order, into a new value of `target`, without copying bytes. In the same step the sources and
    /// the staged keys `consumed` are removed. All are in `target`'s namespace, in the staging space, and the sources distinct; when
    /// one is missing, or a source is no longer what was seen, that is [`ErrorKind::NotFound`] and nothing changes.
    fn compose(
        &self,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> impl Future<Output = Result<Stored>> + Send;

    /// Replaces the attributes of the current value or of one version; the bytes, tag, version and time stay. With `seen`
    /// given, only if that is still what is there ([`ErrorKind::PreconditionFailed`] otherwise): attributes derived from one
    /// value never end up on another.
    fn amend(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> impl Future<Output = Result<Meta>> + Send;

    /// Deletes.
    fn delete(
        &self,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> impl Future<Output = Result<Deleted>> + Send;

    /// Where the bytes of the current value or of one version are, when they were let go; `None` when they are here. Never touches
    /// data.
    fn away(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
    ) -> impl Future<Output = Result<Option<Away>>> + Send {
        let here = self.stat(address, version);
        async move { here.await.map(|_| None) }
    }

    /// Lets the bytes of a value go, which the caller keeps from now on under the name `away`. The value is an object, not empty, of
    /// the version in `seen`, and still what was `seen` ([`ErrorKind::PreconditionFailed`] otherwise, also when its bytes are gone already).
    /// Nothing else of it changes, and usage counts it as before; a body that is being read stays whole. To read it is from now
    /// on the error that carries [`StoreError::away`]. Leaves that cannot say [`ErrorKind::Unsupported`] (this default).
    fn let_go(
        &self,
        address: Address<'_>,
        seen: &Meta,
        away: Away,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (address, seen, away);
        let refusal = StoreError::new(ErrorKind::Unsupported, "this store keeps all bytes itself");
        async move { Err(refusal) }
    }

    /// Begins to take back the bytes that were let go as `away` from the current value or one version. Exactly those bytes must
    /// come: `commit`, which ignores its seal, is [`ErrorKind::Corrupt`] when they do not match the value's checksum, and
    /// [`ErrorKind::PreconditionFailed`] when the value is no longer away as `away`.
    fn take_back(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        away: Away,
    ) -> impl Future<Output = Result<Self::Upload>> + Send {
        let _ = (address, version, away);
        let refusal = StoreError::new(ErrorKind::Unsupported, "this store keeps all bytes itself");
        async move { Err(refusal) }
    }

    /// Names to which nothing here refers any more, durably, since this was asked last: their values were replaced, deleted, expired
    /// or taken back. A help, not a promise: a crash forgets some, so whoever keeps the bytes also compares now and then.
    fn forgotten(&self) -> Vec<Away> {
        Vec::new()
    }

    /// Returns when all that this store shows is durable, and it shows all namespaces that there are: an error where one cannot be
    /// known. Only where changes are answered before they are durable, or where other processes make namespaces, is there anything to
    /// wait for (elsewhere nothing, this default).
    fn settle(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Runs a function of a module over values, where they are. The caller's tenant is checked here, for every input as if it
    /// were retrieved and for the output as if it were stored; the function reaches nothing else. It is bounded in time, memory
    /// and output, and a future that is dropped stops it. Most stores cannot ([`ErrorKind::Unsupported`], this default): the layer
    /// that can is above them.
    ///
    /// Refusals are [`ErrorKind::Denied`], [`ErrorKind::ProgramStopped`] and [`ErrorKind::ProgramFailed`], beside those of
    /// retrieving and storing.
    fn execute(&self, call: Execute<'_>) -> impl Future<Output = Result<Executed>> + Send {
        let _ = call;
        let refusal = StoreError::new(ErrorKind::Unsupported, "this store runs no functions");
        async move { Err(refusal) }
    }

    /// Part of the list of current values. Pages are not a snapshot: a change between two pages may be seen or not.
    fn list(&self, options: ListOptions<'_>) -> impl Future<Output = Result<ListPage>> + Send;

    /// Part of the list of all versions and delete markers.
    fn list_versions(
        &self,
        options: ListOptions<'_>,
    ) -> impl Future<Output = Result<VersionPage>> + Send;

    /// Makes a namespace.
    fn create_namespace(
        &self,
        name: &str,
        config: NamespaceConfig,
    ) -> impl Future<Output = Result<Arc<NamespaceInfo>>> + Send;

    /// Removes a namespace that holds nothing but what is past its time.
    fn delete_namespace(&self, name: &str) -> impl Future<Output = Result<()>> + Send;

    /// Changes a namespace's configuration; with `revision` given, only if that is still its revision
    /// ([`ErrorKind::PreconditionFailed`] otherwise). The tenant cannot be changed.
    fn update_namespace(
        &self,
        name: &str,
        revision: Option<u64>,
        config: NamespaceConfig,
    ) -> impl Future<Output = Result<Arc<NamespaceInfo>>> + Send;

    /// One namespace, from memory.
    fn namespace(&self, name: &str) -> Result<Arc<NamespaceInfo>>;

    /// All namespaces in order of name, from memory.
    fn namespaces(&self) -> Vec<Arc<NamespaceInfo>>;

    /// What a namespace or tenant holds, exactly. A tenant without namespaces holds nothing.
    fn usage(&self, scope: Scope<'_>) -> Result<Usage>;

    /// Bounds what a tenant's namespaces hold together. (A namespace's own bound is in its configuration.)
    fn set_tenant_quota(
        &self,
        tenant: &str,
        quota: Quota,
    ) -> impl Future<Output = Result<()>> + Send;

    /// A tenant's bound.
    fn tenant_quota(&self, tenant: &str) -> Quota;

    /// Changes as they happen, for a layer that keeps what it read; `None` where nobody else can change anything, or where
    /// nobody tells.
    fn changes(&self) -> Option<Box<dyn Watch>> {
        None
    }
}

/// A retrieved value.
#[derive(Debug)]
pub struct Object<B> {
    /// Its metadata.
    pub meta: Meta,
    /// The bytes that `body` yields.
    pub range: Range<u64>,
    /// The bytes.
    pub body: B,
}

impl<B> Object<B> {
    /// Whether `target` has room for the bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it has not.
    pub fn check_room(&self, target: &RegionSlice) -> Result<()> {
        match self.range.end - self.range.start > target.len() as u64 {
            true => Err(too_short()),
            false => Ok(()),
        }
    }
}

impl<B: Body> Object<B> {
    /// All of the bytes, copied together: for values that are known to be small.
    ///
    /// # Errors
    /// Of the body.
    pub async fn bytes(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity((self.range.end - self.range.start) as usize);
        while let Some(buf) = self.body.next().await? {
            bytes.extend_from_slice(&buf);
        }
        Ok(bytes)
    }

    /// Copies the bytes to the start of `target`, and counts them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it is too short; else of the body.
    pub async fn place_into(mut self, target: &RegionSlice) -> Result<(Meta, Range<u64>)> {
        self.check_room(target)?;
        let mut offset = 0;
        while let Some(buf) = self.body.next().await? {
            if !target.write(offset, &buf) {
                return Err(too_short());
            }
            count_copy(CopySite::RetrieveInto, buf.len());
            offset += buf.len();
        }
        Ok((self.meta, self.range))
    }
}

/// The owner of a source took its pages away.
pub(crate) fn source_gone() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "the source left its region")
}

/// The target has not the room that was promised: too short, or its owner took its pages away.
pub(crate) fn too_short() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "the target does not hold the range")
}

/// The bytes of a value, as a sequence of buffers.
pub trait Body: Send + 'static {
    /// The next bytes, already checked; `None` after the last.
    fn next(&mut self) -> impl Future<Output = Result<Option<Buf>>> + Send;
}

/// A value arriving. Dropping it leaves nothing behind.
pub trait Upload: Send + 'static {
    /// A registered buffer to fill, of at most [`Caps::chunk_bytes`]: fill it whole unless the value ends. Waits while the
    /// memory bound is reached.
    fn buffer(&mut self, len: usize) -> impl Future<Output = Result<BufMut>> + Send;

    /// Appends bytes. Returns when it may be called again; the device may still be writing.
    fn write(&mut self, buf: Buf) -> impl Future<Output = Result<()>> + Send;

    /// Appends bytes from memory that a client registered. This default copies and counts.
    fn read_from(&mut self, source: RegionSlice) -> impl Future<Output = Result<()>> + Send {
        copy_from(self, source)
    }

    /// The CRC-64/NVME of all bytes written so far.
    fn crc64nvme(&self) -> u64;

    /// Makes the value current, atomically, and returns when it is durable.
    fn commit(self, seal: Seal) -> impl Future<Output = Result<Stored>> + Send;
}

/// Appends bytes from memory that a client registered through buffers of the upload, and counts them.
///
/// # Errors
/// [`ErrorKind::Invalid`] when the memory is gone; else of the upload.
pub async fn copy_from<U: Upload + ?Sized>(upload: &mut U, source: RegionSlice) -> Result<()> {
    let mut offset = 0;
    while offset < source.len() {
        let mut buf = upload.buffer(source.len() - offset).await?;
        let len = buf.capacity().min(source.len() - offset);
        buf.set_len(len);
        if !source.read(offset, &mut buf) {
            return Err(source_gone());
        }
        count_copy(CopySite::ReadFrom, len);
        upload.write(buf.freeze()).await?;
        offset += len;
    }
    Ok(())
}
