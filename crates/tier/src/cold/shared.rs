//! What several processes on one store agree on: which of them applies policies and sweeps, and when values were read last or came back.
//!
//! Both are values of the store itself, in a namespace that no door shows. Whose turn it is, is a value that ends soon, made only where there
//! is none and replaced only by its owner. What each knows of reads is merged into one value by compare and swap, by every process before
//! each pass: so what is unknown to whoever has the turn happened since the pass before.

use std::hash::{BuildHasher, RandomState};

use forebay_mem::BLOCK_MAX_BYTES;
use forebay_store::{
    Address, ByteRange, Condition, DeleteOptions, ErrorKind, Etag, Result, Seal, Store, StoreError,
    StoreOptions, Upload,
};
use parking_lot::Mutex;

use super::mover::Mover;
use super::pass::PASS;
use super::reads::TIMES_BYTES;

const TURN: &[u8] = b"tier/turn";
const TIMES: &[u8] = b"tier/reads";
/// Whoever has the turn may miss two passes; then it is another's.
const TURN_MS: u64 = 5 * PASS.as_millis() as u64 / 2;
/// Reads that are not known to all are younger.
pub(super) const UNTOLD_MS: u64 = 2 * PASS.as_millis() as u64;
/// How often what is known is merged anew while others write theirs.
const TRIES: usize = 8;

/// A process among those on the same store.
pub(super) struct Shared {
    namespace: String,
    /// Names this process.
    owner: Vec<u8>,
    /// Its passes and sweeps ask for the turn one after the other: they would take it from each other.
    asking: tokio::sync::Mutex<()>,
    /// What was read or written last of what all know.
    merged: Mutex<Option<Etag>>,
}

impl Shared {
    pub fn new(namespace: String) -> Shared {
        let random = || RandomState::new().hash_one(std::process::id());
        Shared {
            namespace,
            owner: format!("{:016x}{:016x}", random(), random()).into_bytes(),
            asking: tokio::sync::Mutex::default(),
            merged: Mutex::default(),
        }
    }

    fn address<'s>(&'s self, key: &'s [u8]) -> Address<'s> {
        Address::object(&self.namespace, key)
    }
}

impl<S: Store> Mover<S> {
    /// Whether this process applies policies and sweeps, for all on the same store.
    pub(super) async fn has_turn(&self) -> bool {
        let Some(shared) = &self.shared else {
            return true;
        };
        let _asking = shared.asking.lock().await;
        let taken = self.take_turn(shared).await;
        taken.unwrap_or_else(|error| {
            tracing::warn!(%error, "it is not known who applies tier policies");
            false
        })
    }

    async fn take_turn(&self, shared: &Shared) -> Result<bool> {
        let address = shared.address(TURN);
        let condition = match self.read(address, shared.owner.len()).await? {
            None => Condition::IfAbsent,
            Some((owner, etag)) if owner == shared.owner => Condition::IfMatch(etag),
            Some(_) => return Ok(false),
        };
        let seal = Seal {
            expires: Some(self.now() + TURN_MS),
            ..Seal::default()
        };
        let written = self.write(address, shared.owner.clone(), condition, seal);
        Ok(written.await?.is_some())
    }

    /// Lets another process have the turn, if this one has it.
    pub(super) async fn give_turn_back(&self) {
        let Some(shared) = &self.shared else {
            return;
        };
        let address = shared.address(TURN);
        let given = async {
            match self.read(address, shared.owner.len()).await? {
                Some((owner, etag)) if owner == shared.owner => {
                    let options = DeleteOptions {
                        condition: Condition::IfMatch(etag),
                        ..DeleteOptions::default()
                    };
                    self.hot.delete(address, options).await.map(drop)
                }
                Some(_) | None => Ok(()),
            }
        };
        if let Err(error) = given.await {
            tracing::debug!(%error, "the turn ends by itself");
        }
    }

    /// Tells the others when values were read and came back, and hears of it from them.
    pub(super) async fn share_reads(&self) {
        if let Some(shared) = &self.shared
            && let Err(error) = self.merge_reads(shared).await
        {
            tracing::warn!(%error, "others are not told when values were read");
        }
    }

    async fn merge_reads(&self, shared: &Shared) -> Result<()> {
        if !self.reads.take_changed() {
            let there = match self.hot.stat(shared.address(TIMES), None).await {
                Ok(meta) => Some(meta.etag),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            if there.is_some() && there == *shared.merged.lock() {
                return Ok(());
            }
        }
        let merged = self.try_merge_reads(shared).await;
        merged.inspect_err(|_| self.reads.set_changed())
    }

    async fn try_merge_reads(&self, shared: &Shared) -> Result<()> {
        let address = shared.address(TIMES);
        for _ in 0..TRIES {
            let (news, condition) = match self.read(address, TIMES_BYTES).await? {
                None => (self.reads.is_on(), Condition::IfAbsent),
                Some((kept, etag)) => {
                    let news = self.reads.merge(&kept);
                    *shared.merged.lock() = Some(etag);
                    (news, Condition::IfMatch(etag))
                }
            };
            let Some(kept) = self.reads.kept().filter(|_| news) else {
                return Ok(());
            };
            let written = self.write(address, kept, condition, Seal::default());
            if let Some(etag) = written.await? {
                *shared.merged.lock() = Some(etag);
                return Ok(());
            }
        }
        Err(StoreError::new(
            ErrorKind::Busy,
            "other processes write theirs all the time",
        ))
    }

    /// A value of at most `most` bytes, and its tag; of a longer one nothing.
    async fn read(&self, address: Address<'_>, most: usize) -> Result<Option<(Vec<u8>, Etag)>> {
        let found = self.hot.retrieve(address, None, ByteRange::Full).await;
        let object = match found {
            Ok(object) => object,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let etag = object.meta.etag;
        let bytes = match object.meta.size <= most as u64 {
            true => object.bytes().await?,
            false => Vec::new(),
        };
        Ok(Some((bytes, etag)))
    }

    /// Stores a value; its tag, or `None` when somebody else was first.
    async fn write(
        &self,
        address: Address<'_>,
        bytes: Vec<u8>,
        condition: Condition,
        seal: Seal,
    ) -> Result<Option<Etag>> {
        let options = StoreOptions {
            size: Some(bytes.len() as u64),
            condition,
        };
        let bytes = bytes::Bytes::from(bytes);
        let stored = async {
            let mut upload = self.hot.store(address, options).await?;
            for at in (0..bytes.len()).step_by(BLOCK_MAX_BYTES) {
                let end = bytes.len().min(at + BLOCK_MAX_BYTES);
                upload.write(bytes.slice(at..end).into()).await?;
            }
            upload.commit(seal).await
        };
        match stored.await {
            Ok(stored) => Ok(Some(stored.meta.etag)),
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => Ok(None),
            Err(error) => Err(error),
        }
    }
}
