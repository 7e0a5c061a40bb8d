//! A store that can be made to wait, where a test says.

use std::ops::Range;
use std::sync::Arc;

use forebay_mem::{Buf, RegionSlice};
use forebay_store::suite::{Around, Detour};
use forebay_store::*;
use tokio::sync::watch;

/// Where the store waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nowhere.
    Nowhere,
    /// Before it finds a value.
    Retrieve,
    /// Before it finds a part of a value.
    Part,
    /// Before the bytes of a body after so many buffers.
    Body(usize),
    /// Before it reads into the client's memory.
    Into,
    /// Before it begins an upload.
    Store,
    /// Before it takes a buffer of an upload.
    Write,
    /// Before it takes an upload's end.
    Commit,
    /// Before it gives a value other attributes.
    Amend,
    /// Before it deletes a value.
    Delete,
    /// Before it makes a namespace.
    Create,
    /// Before it gives out a list of versions that it has made.
    Listed,
    /// Nowhere: a body fails after so many buffers.
    BodyFails(usize),
    /// Nowhere: an upload fails when it is given a buffer.
    WriteFails,
}

/// What a test turns.
#[derive(Clone)]
pub struct Gate {
    closed: Arc<watch::Sender<At>>,
    /// How often somebody came to where it was closed last.
    arrivals: Arc<watch::Sender<usize>>,
}

impl Gate {
    pub fn close(&self, at: At) {
        self.arrivals.send_replace(0);
        self.closed.send_replace(at);
    }

    pub fn open(&self) {
        self.closed.send_replace(At::Nowhere);
    }

    /// Returns when somebody has come to where it was closed last.
    pub async fn arrival(&self) {
        let _ = self
            .arrivals
            .subscribe()
            .wait_for(|arrivals| *arrivals > 0)
            .await;
    }

    async fn pass(&self, at: At) {
        let mut seen = self.closed.subscribe();
        if *seen.borrow() == at {
            self.arrivals.send_modify(|arrivals| *arrivals += 1);
        }
        let _ = seen.wait_for(|closed| *closed != at).await;
    }

    fn try_at(&self, at: At) -> Result<()> {
        match *self.closed.borrow() == at {
            true => Err(StoreError::new(ErrorKind::Corrupt, "broken here")),
            false => Ok(()),
        }
    }
}

pub type Gated = Around<MemoryStore, Gate>;

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            closed: Arc::new(watch::Sender::new(At::Nowhere)),
            arrivals: Arc::default(),
        }
    }
}

impl Detour<MemoryStore> for Gate {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<MemoryBody>> {
        self.pass(At::Retrieve).await;
        if range != ByteRange::Full {
            self.pass(At::Part).await;
        }
        store.retrieve(address, version, range).await
    }

    async fn next(&self, body: &mut MemoryBody, given: usize) -> Result<Option<Buf>> {
        self.pass(At::Body(given)).await;
        self.try_at(At::BodyFails(given))?;
        body.next().await
    }

    async fn retrieve_into(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
        target: RegionSlice,
    ) -> Result<(Meta, Range<u64>)> {
        self.pass(At::Into).await;
        store.retrieve_into(address, version, range, target).await
    }

    async fn amend(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        seen: Option<&Meta>,
        attributes: Attributes,
    ) -> Result<Meta> {
        self.pass(At::Amend).await;
        store.amend(address, version, seen, attributes).await
    }

    async fn delete(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: DeleteOptions,
    ) -> Result<Deleted> {
        self.pass(At::Delete).await;
        store.delete(address, options).await
    }

    async fn create_namespace(
        &self,
        store: &MemoryStore,
        name: &str,
        config: NamespaceConfig,
    ) -> Result<Arc<NamespaceInfo>> {
        self.pass(At::Create).await;
        store.create_namespace(name, config).await
    }

    async fn list_versions(
        &self,
        store: &MemoryStore,
        options: ListOptions<'_>,
    ) -> Result<VersionPage> {
        let page = store.list_versions(options).await;
        self.pass(At::Listed).await;
        page
    }

    async fn store(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: StoreOptions,
    ) -> Result<MemoryUpload> {
        self.pass(At::Store).await;
        store.store(address, options).await
    }

    async fn write(&self, upload: &mut MemoryUpload, buf: Buf) -> Result<()> {
        self.pass(At::Write).await;
        self.try_at(At::WriteFails)?;
        upload.write(buf).await
    }

    async fn commit(&self, upload: MemoryUpload, seal: Seal) -> Result<Stored> {
        self.pass(At::Commit).await;
        upload.commit(seal).await
    }
}
