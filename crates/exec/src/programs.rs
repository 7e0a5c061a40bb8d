//! Modules that are ready to run: each compiled once, whoever asks, and kept as long as there is room. What turns out to be none is
//! not compiled again for a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use forebay_io::Clock;
use forebay_store::{Address, ByteRange, ErrorKind, ModuleDigest, Result, Store, StoreError};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard, oneshot};

use crate::allowed::Allowed;
use crate::brief::Prepared;
use crate::ending::Ending;
use crate::executor::Executor;
use crate::runtime::Program;

/// How long a module that could not be made is not tried again.
const FAILED_FOR: Duration = Duration::from_secs(60);

/// Where a program is once it is made, and whose turn it is to make it.
#[derive(Clone, Default)]
struct Slot {
    made: Arc<OnceLock<Made>>,
    turn: Arc<TurnMutex<()>>,
}

/// What came of making a program.
type Made = std::result::Result<Arc<Prepared>, Failed>;

/// Why none can be made of a module.
#[derive(Clone)]
struct Failed {
    words: String,
    /// By the monotonic clock.
    at: Duration,
}

impl Failed {
    fn refusal(self) -> StoreError {
        Ending::NoProgram(self.words).into_error(Bytes::new())
    }
}

impl Slot {
    /// The program or the refusal, once it is known which.
    fn known(&self) -> Option<Result<Arc<Prepared>>> {
        let made = self.made.get()?.clone();
        Some(made.map_err(Failed::refusal))
    }

    fn is_ready(&self) -> bool {
        matches!(self.made.get(), Some(Ok(_)))
    }
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
        let slot = self.slot(&allowed.digest, &*executor.clock);
        if let Some(known) = slot.known() {
            self.found.fetch_add(u64::from(known.is_ok()), Relaxed);
            return known;
        }
        let turn = slot.turn.clone().lock_owned().await;
        if let Some(known) = slot.known() {
            return known;
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

    /// How many there are.
    pub fn len(&self) -> usize {
        let ready = self.ready.lock();
        let slots = ready.slots.values();
        slots.filter(|kept| kept.slot.is_ready()).count()
    }

    fn slot(&self, digest: &ModuleDigest, clock: &dyn Clock) -> Slot {
        let mut ready = self.ready.lock();
        ready.uses += 1;
        let used = ready.uses;
        let kept = ready.slots.entry(*digest).or_insert_with(|| Kept {
            slot: Slot::default(),
            used,
            bytes: 0,
        });
        kept.used = used;
        if let Some(Err(failed)) = kept.slot.made.get()
            && clock.monotonic().saturating_sub(failed.at) > FAILED_FOR
        {
            kept.slot = Slot::default();
        }
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
                    Ok(self.made(Ok(program), bytes))
                }
                None => Err(self),
            }
        });
        let making = match restored.await? {
            Ok(made) => return made,
            Err(making) => making,
        };
        let wasm = fetch(store, allowed, executor.limits.module_bytes).await?;
        let (runtime, clock) = (executor.runtime.clone(), executor.clock.clone());
        let compiled = executor.run(&allowed.tenant, move || {
            let digest = making.digest;
            if Sha256::digest(&wasm)[..] != digest.0 {
                return Err(StoreError::new(
                    ErrorKind::Corrupt,
                    format!("what is kept as module {digest} is another one"),
                ));
            }
            let compiled = runtime.compile(&digest, &wasm);
            if compiled.is_ok() {
                making.programs.compiled.fetch_add(1, Relaxed);
            }
            let made = compiled.map_err(|ending| Failed {
                words: ending.to_string(),
                at: clock.monotonic(),
            });
            making.made(made, wasm.len() as u64)
        });
        compiled.await?
    }

    /// It is made, of so many bytes of WebAssembly, or cannot be.
    fn made(
        self,
        made: std::result::Result<Arc<dyn Program>, Failed>,
        bytes: u64,
    ) -> Result<Arc<Prepared>> {
        self.programs.weigh(&self.digest, bytes, self.room);
        let prepared = || made.map(|program| Arc::new(Prepared::new(program, self.short)));
        let made = self.slot.made.get_or_init(prepared).clone();
        made.map_err(Failed::refusal)
    }
}

impl Executor {
    /// Has a thread do something about a module that this tenant wants. It is not begun when nobody waits for it any more.
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
        let _turn = self.workers.make(tenant, work)?;
        told.await
            .map_err(|_| StoreError::new(ErrorKind::Io, "a module could not be made ready"))
    }
}

/// The bytes of a module.
async fn fetch<S: Store>(store: &S, allowed: &Allowed, max: u64) -> Result<Vec<u8>> {
    let (namespace, key) = &allowed.place;
    let address = Address::object(namespace, key);
    let found = store.retrieve(address, None, ByteRange::Full).await;
    let object = found.map_err(|error| match error.kind() {
        // They go with the last leave: it was taken away since it was looked for.
        ErrorKind::NotFound => StoreError::new(
            ErrorKind::Denied,
            format!("module {} is not allowed here", allowed.digest),
        ),
        kind => StoreError::new(
            kind,
            format!("module {} is not there: {error}", allowed.digest),
        ),
    })?;
    if object.meta.size > max {
        return Err(StoreError::new(
            ErrorKind::TooLarge,
            format!("a module has at most {max} bytes"),
        ));
    }
    object.bytes().await
}
