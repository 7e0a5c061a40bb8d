//! Operations on objects, bounded in number, in bytes and in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::sys::{Cluster, Errno, Place, Read, ReadOp, WriteOp};

/// Work that may be with the library at once: less than the library's own bounds, at which it would block the calling thread.
pub(crate) const UNITS: u32 = 4096;
/// What one operation weighs besides its data, and how many bytes weigh as much.
const UNIT_BYTES: usize = 64 << 10;
/// The library's own time-out comes first; this one holds even if the library is stuck.
const SLACK: Duration = Duration::from_secs(5);

/// The way to a cluster.
pub(crate) struct Access {
    cluster: Arc<Cluster>,
    pool: String,
    units: Arc<Semaphore>,
    patience: Duration,
    /// How often objects were looked at.
    #[cfg(test)]
    pub reads: std::sync::atomic::AtomicUsize,
}

impl Access {
    pub fn new(cluster: Arc<Cluster>, pool: &str, patience: Duration) -> Access {
        Access {
            cluster,
            pool: pool.to_owned(),
            units: Arc::new(Semaphore::new(UNITS as usize)),
            patience: patience + SLACK,
            #[cfg(test)]
            reads: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// A RADOS namespace of the pool.
    pub fn place(&self, namespace: &str) -> Result<Arc<Place>, Errno> {
        self.cluster.place(&self.pool, namespace)
    }

    /// Carries out a change with `bytes` of data and waits for the object's new version.
    pub async fn write(
        &self,
        place: &Arc<Place>,
        object: &[u8],
        op: WriteOp,
        at: Option<i64>,
        bytes: usize,
    ) -> Result<u64, Errno> {
        let permit = self.permit(bytes).await?;
        self.in_time(op.run(place, object, at, permit)).await
    }

    /// The same, if `may` says so when there is room for it: waiting for that may have taken long. `None`: nothing was sent.
    pub async fn write_if(
        &self,
        may: impl FnOnce() -> bool,
        place: &Arc<Place>,
        object: &[u8],
        op: WriteOp,
        at: Option<i64>,
        bytes: usize,
    ) -> Option<Result<u64, Errno>> {
        let permit = match self.permit(bytes).await {
            Ok(permit) => permit,
            Err(errno) => return Some(Err(errno)),
        };
        if !may() {
            return None;
        }
        Some(self.in_time(op.run(place, object, at, permit)).await)
    }

    /// How long an operation may take after it was sent.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Looks at an object, expecting at most `bytes` of data.
    pub async fn read(
        &self,
        place: &Arc<Place>,
        object: &[u8],
        op: ReadOp,
        bytes: usize,
    ) -> Result<Read, Errno> {
        #[cfg(test)]
        self.reads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let permit = self.permit(bytes).await?;
        self.in_time(op.run(place, object, permit)).await
    }

    /// Waits no longer than an operation may take.
    pub async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, Errno> {
        timeout(self.patience, work)
            .await
            .unwrap_or(Err(Errno(libc::ETIMEDOUT)))
    }

    /// Sends a change as soon as it may be; what comes back waits for its end.
    pub async fn begin_write(
        self: &Arc<Self>,
        place: &Arc<Place>,
        object: &[u8],
        op: WriteOp,
        bytes: usize,
    ) -> impl Future<Output = Result<u64, Errno>> + Send + use<> {
        let permit = self.permit(bytes).await;
        let sent = permit.map(|permit| op.run(place, object, None, permit));
        let access = self.clone();
        async move { access.in_time(sent?).await }
    }

    /// Room for an operation. The library has it with the operation, and gives it back when it is done: who waits for the operation may
    /// be long in coming to look, or wait for room himself. `EAGAIN`: there was none for as long as an operation may take, and nothing was
    /// sent.
    async fn permit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Errno> {
        let units = units(bytes);
        let permit = self.units.clone().acquire_many_owned(units);
        match timeout(self.patience, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(Errno(libc::EAGAIN)),
        }
    }

    /// Takes room, as operations do that the library has not carried out.
    #[cfg(test)]
    pub async fn crowd(&self, units: u32) -> OwnedSemaphorePermit {
        let taken = self.units.clone().acquire_many_owned(units);
        taken.await.unwrap()
    }
}

/// What an operation with so many bytes of data weighs.
pub(crate) fn units(bytes: usize) -> u32 {
    let units = 1 + (bytes / UNIT_BYTES) as u32;
    units.min(UNITS)
}
