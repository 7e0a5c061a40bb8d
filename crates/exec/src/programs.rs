//! Modules that are ready to run: each compiled once, whoever asks, and kept as long as there is room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_store::{Address, ByteRange, ErrorKind, ModuleDigest, Result, Store, StoreError};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard, oneshot};

use crate::allowed::Allowed;
use crate::brief::Prepared;
use crate::executor::Executor;
use crate::runtime::Program;

/// Where a program is once it is made, and whose turn it is to make it.
#[derive(Clone, Default)]
struct Slot {
    made: Arc<OnceLock<Arc<Prepared>>>,
    turn: Arc<TurnMutex<()>>,
}

/// The modules that are ready.
#[derive(Default)]
pub(crate) struct Programs {
    ready: Mutex<Ready>,
    pub compiled: AtomicU64,
    pub restored: AtomicU64,
    pub found: AtomicU64,
}

#[derive(Default)]
struct Ready {
    slots: HashMap<ModuleDigest, Kept>,
    /// Counts uses, to tell which was the last.
    uses: u64,
}

struct Kept {
    slot: Slot,
    used: u64,
    /// Bytes of WebAssembly; 0 as long as it is being made.
    bytes: u64,
}

impl Programs {
    /// The program of a module that is allowed: at hand, or made of its bytes. What a thread has begun to make is kept though nobody
    /// waits for it any more: a module that takes longer than its calls may is ready for the next one.
    pub async fn get<S: Store>(
        self: &Arc<Self>,
        executor: &Executor,
        store: &S,
        allowed: &Allowed,
    ) -> Result<Arc<Prepared>> {
        let slot = self.slot(&allowed.digest);
        if let Some(program) = slot.made.get() {
            self.found.fetch_add(1, Relaxed);
            return Ok(program.clone());
        }
        let turn = slot.turn.clone().lock_owned().await;
        if let Some(program) = slot.made.get() {
            return Ok(program.clone());
        }
        let making = Making {
            programs: self.clone(),
            digest: allowed.digest,
            room: executor.limits.ready_bytes,
            short: executor.limits.short,
            slot,
            _turn: turn,
        };
        making.make(executor, store, allowed).await
    }

    /// Forgets all; calls that have begun go on.
    pub fn forget(&self) {
        self.ready.lock().slots.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ready.lock().slots.len()
    }

    fn slot(&self, digest: &ModuleDigest) -> Slot {
        let mut ready = self.ready.lock();
        ready.uses += 1;
        let used = ready.uses;
        let kept = ready.slots.entry(*digest).or_insert_with(|| Kept {
            slot: Slot::default(),
            used,
            bytes: 0,
        });
        kept.used = used;
        kept.slot.clone()
    }

    /// Notes how long a module is; forgets those that were used longest ago when all are too long together.
    fn weigh(&self, digest: &ModuleDigest, bytes: u64, room: u64) {
        let mut ready = self.ready.lock();
        if let Some(kept) = ready.slots.get_mut(digest) {
            kept.bytes = bytes.max(1);
        }
        loop {
            let sum: u64 = ready.slots.values().map(|kept| kept.bytes).sum();
            let made = ready.slots.iter().filter(|(_, kept)| kept.bytes > 0);
            let others = made.filter(|(other, _)| *other != digest);
            let oldest = others.min_by_key(|(_, kept)| kept.used);
            match oldest.map(|(oldest, _)| *oldest) {
                Some(oldest) if sum > room => ready.slots.remove(&oldest),
                _ => return,
            };
        }
    }
}

/// The turn to make a program.
struct Making {
    programs: Arc<Programs>,
    digest: ModuleDigest,
    room: u64,
    short: Duration,
    slot: Slot,
    _turn: OwnedMutexGuard<()>,
}

impl Making {
    async fn make<S: Store>(
        self,
        executor: &Executor,
        store: &S,
        allowed: &Allowed,
    ) -> Result<Arc<Prepared>> {
        let runtime = executor.runtime.clone();
        let restored = executor.run(&allowed.tenant, move || {
            match runtime.restore(&self.digest) {
                Some((program, bytes)) => {
                    self.programs.restored.fetch_add(1, Relaxed);
                    Ok(self.made(program, bytes))
                }
                None => Err(self),
            }
        });
        let making = match restored.await? {
            Ok(program) => return Ok(program),
            Err(making) => making,
        };
        let wasm = fetch(store, allowed, executor.limits.module_bytes).await?;
        let runtime = executor.runtime.clone();
        let compiled = executor.run(&allowed.tenant, move || {
            let digest = making.digest;
            if Sha256::digest(&wasm)[..] != digest.0 {
                return Err(StoreError::new(
                    ErrorKind::Corrupt,
                    format!("what is kept as module {digest} is another one"),
                ));
            }
            let compiled = runtime.compile(&digest, &wasm);
            let program = compiled.map_err(|ending| ending.into_error(bytes::Bytes::new()))?;
            making.programs.compiled.fetch_add(1, Relaxed);
            Ok(making.made(program, wasm.len() as u64))
        });
        compiled.await?
    }

    /// It is made, of so many bytes of WebAssembly.
    fn made(self, program: Arc<dyn Program>, bytes: u64) -> Arc<Prepared> {
        self.programs.weigh(&self.digest, bytes, self.room);
        let prepared = || Arc::new(Prepared::new(program, self.short));
        self.slot.made.get_or_init(prepared).clone()
    }
}

impl Executor {
    /// Has something done by a thread of a tenant's.
    async fn run<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let work = Box::new(move || {
            // Whoever asked may have gone.
            let _ = tell.send(work());
        });
        self.workers.submit(tenant, work)?;
        told.await
            .map_err(|_| StoreError::new(ErrorKind::Io, "a module could not be made ready"))
    }
}

/// The bytes of a module.
async fn fetch<S: Store>(store: &S, allowed: &Allowed, max: u64) -> Result<Vec<u8>> {
    let (namespace, key) = &allowed.place;
    let address = Address::object(namespace, key);
    let found = store.retrieve(address, None, ByteRange::Full).await;
    let object = found.map_err(|error| {
        let message = format!("module {} is not there: {error}", allowed.digest);
        StoreError::new(error.kind(), message)
    })?;
    if object.meta.size > max {
        return Err(StoreError::new(
            ErrorKind::TooLarge,
            format!("a module has at most {max} bytes"),
        ));
    }
    object.bytes().await
}
