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
use tokio::sync::{Mutex as TurnMutex, oneshot};

use crate::allowed::Allowed;
use crate::brief::Prepared;
use crate::ending::Ending;
use crate::executor::Executor;
use crate::runtime::{Program, Runtime};

/// How long a module that could not be made is not tried again.
const FAILED_FOR: Duration = Duration::from_secs(60);

/// Where a program is once it is made, and who makes it.
#[derive(Clone, Default)]
struct Slot {
    made: Arc<OnceLock<Made>>,
    /// Held by a thread that is at it.
    making: Arc<TurnMutex<()>>,
    /// Of each tenant one call at a time has it made, which may have to wait for the tenant's other modules.
    asking: Arc<Mutex<HashMap<String, Arc<TurnMutex<()>>>>>,
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

    /// The turn of a tenant's calls to have it made.
    fn turn(&self, tenant: &str) -> Arc<TurnMutex<()>> {
        let mut asking = self.asking.lock();
        asking.entry(tenant.to_owned()).or_default().clone()
    }

    /// Whether anybody waits for it, or something came of it.
    fn is_of_use(&self) -> bool {
        self.made.get().is_some() || Arc::strong_count(&self.made) > 1
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
        let turn = slot.turn(&allowed.tenant);
        let _turn = turn.lock().await;
        loop {
            if let Some(known) = slot.known() {
                return known;
            }
            let making = Making {
                programs: self.clone(),
                digest: allowed.digest,
                room: executor.limits.ready_bytes,
                short: executor.limits.short,
                slot: slot.clone(),
            };
            if let Some(made) = making.make(executor, store, allowed).await? {
                return Ok(made);
            }
            // A thread has begun it for another tenant, and comes to its end.
            drop(slot.making.lock().await);
        }
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
        if !ready.slots.contains_key(digest) {
            ready.slots.retain(|_, kept| kept.slot.is_of_use());
        }
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

/// A program that one tenant's call wants made.
struct Making {
    programs: Arc<Programs>,
    digest: ModuleDigest,
    room: u64,
    short: Duration,
    slot: Slot,
}

/// What became of it on a thread.
enum Step {
    Known(Result<Arc<Prepared>>),
    /// Another thread is at it.
    Elsewhere,
    /// It is to be compiled.
    NotKept(Making),
}

impl Making {
    /// `None` when another thread is at it.
    async fn make<S: Store>(
        self,
        executor: &Executor,
        store: &S,
        allowed: &Allowed,
    ) -> Result<Option<Arc<Prepared>>> {
        let runtime = executor.runtime.clone();
        let restored = executor.run(&allowed.tenant, move || self.restore(&*runtime));
        let making = match restored.await? {
            Step::Known(known) => return known.map(Some),
            Step::Elsewhere => return Ok(None),
            Step::NotKept(making) => making,
        };
        let wasm = fetch(store, allowed, executor.limits.module_bytes).await?;
        let (runtime, clock) = (executor.runtime.clone(), executor.clock.clone());
        let compiled = executor.run(&allowed.tenant, move || {
            making.compile(&*runtime, &*clock, &wasm)
        });
        compiled.await?
    }

    /// On a thread: what was kept.
    fn restore(self, runtime: &dyn Runtime) -> Step {
        let Ok(_making) = self.slot.making.clone().try_lock_owned() else {
            return Step::Elsewhere;
        };
        if let Some(known) = self.slot.known() {
            return Step::Known(known);
        }
        match runtime.restore(&self.digest) {
            Some((program, bytes)) => {
                self.programs.restored.fetch_add(1, Relaxed);
                Step::Known(self.made(Ok(program), bytes))
            }
            None => Step::NotKept(self),
        }
    }

    /// On a thread: what comes of its bytes.
    fn compile(
        self,
        runtime: &dyn Runtime,
        clock: &dyn Clock,
        wasm: &[u8],
    ) -> Result<Option<Arc<Prepared>>> {
        let Ok(_making) = self.slot.making.clone().try_lock_owned() else {
            return Ok(None);
        };
        if let Some(known) = self.slot.known() {
            return known.map(Some);
        }
        let digest = self.digest;
        if Sha256::digest(wasm)[..] != digest.0 {
            return Err(StoreError::new(
                ErrorKind::Corrupt,
                format!("what is kept as module {digest} is another one"),
            ));
        }
        let compiled = runtime.compile(&digest, wasm);
        if compiled.is_ok() {
            self.programs.compiled.fetch_add(1, Relaxed);
        }
        let made = compiled.map_err(|ending| Failed {
            words: ending.to_string(),
            at: clock.monotonic(),
        });
        self.made(made, wasm.len() as u64).map(Some)
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
        // Nobody asks for it any more.
        self.slot.asking.lock().clear();
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use forebay_io::SystemClock;
    use forebay_mem::Pool;
    use forebay_store::{MemoryStore, NamespaceConfig, Seal, StoreOptions, Upload};
    use tokio::time::timeout;

    use super::*;
    use crate::host::Host;
    use crate::{Limits, Runs};

    const PATIENCE: Duration = Duration::from_secs(30);
    const SLOW: &[u8] = b"slow";

    struct Idle;

    impl Program for Idle {
        fn run(&self, _: &str, host: Host) -> (Host, std::result::Result<(), Ending>) {
            (host, Ok(()))
        }

        fn longest(&self) -> u64 {
            0
        }
    }

    /// Says that it has begun to compile the slow module, and ends when it may.
    struct Gated {
        begun: mpsc::Sender<()>,
        may_end: Mutex<mpsc::Receiver<()>>,
    }

    impl Runtime for Gated {
        fn name(&self) -> &'static str {
            "gated"
        }

        fn compile(
            &self,
            _: &ModuleDigest,
            wasm: &[u8],
        ) -> std::result::Result<Arc<dyn Program>, Ending> {
            if wasm == SLOW {
                self.begun.send(()).unwrap();
                self.may_end.lock().recv().unwrap();
            }
            Ok(Arc::new(Idle))
        }
    }

    async fn store(pool: Pool) -> MemoryStore {
        let store = MemoryStore::new(pool, || 1);
        let config = NamespaceConfig {
            tenant: "system".to_owned(),
            ..NamespaceConfig::default()
        };
        store.create_namespace("modules", config).await.unwrap();
        store
    }

    async fn stored(store: &MemoryStore, wasm: &[u8]) -> ModuleDigest {
        let digest = ModuleDigest(Sha256::digest(wasm).into());
        let address = Address::object("modules", wasm);
        let mut upload = store.store(address, StoreOptions::default()).await.unwrap();
        upload.write(wasm.to_vec().into()).await.unwrap();
        upload.commit(Seal::default()).await.unwrap();
        digest
    }

    fn allowed(tenant: &str, digest: ModuleDigest, key: &[u8]) -> Allowed {
        Allowed {
            digest,
            tenant: tenant.to_owned(),
            namespace: None,
            namespace_id: None,
            name: None,
            number: None,
            function: None,
            place: ("modules".to_owned(), key.to_vec()),
        }
    }

    #[tokio::test]
    async fn who_waits_for_its_own_modules_keeps_no_other_tenant_from_one() {
        let pool = Pool::new(4 << 20);
        let store = store(pool.clone()).await;
        let slow = stored(&store, SLOW).await;
        let both = stored(&store, b"both").await;
        let limits = Limits {
            threads: 2,
            ..Limits::default()
        };
        let clock = Arc::new(SystemClock::default());
        let executor = Executor::start(limits, Runs::Interpreted, None, pool, clock);
        let mut executor = executor.unwrap();
        let (tell_begun, begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel();
        Arc::get_mut(&mut executor).unwrap().runtime = Arc::new(Gated {
            begun: tell_begun,
            may_end: Mutex::new(may_end),
        });
        let programs = executor.programs.clone();
        let (a_slow, a_both, b_both) = (
            allowed("a", slow, SLOW),
            allowed("a", both, b"both"),
            allowed("b", both, b"both"),
        );
        let mut slow = Box::pin(programs.get(&executor, &store, &a_slow));
        let mut first = Box::pin(programs.get(&executor, &store, &a_both));
        let before = async {
            while begun.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            (&mut first).await
        };
        let beside = async {
            // One is made, the other waits.
            while executor.load() != (1, 1) {
                tokio::task::yield_now().await;
            }
            programs.get(&executor, &store, &b_both).await
        };
        let made = tokio::select! {
            biased;
            _ = &mut slow => panic!("it may not end yet"),
            _ = before => panic!("its tenant's turn is taken"),
            made = timeout(PATIENCE, beside) => made,
        };
        made.expect("its own turn is free").unwrap();
        end.send(()).unwrap();
        slow.await.unwrap();
        first.await.unwrap();
        assert_eq!(programs.compiled.load(Relaxed), 2, "each once");
    }

    #[tokio::test]
    async fn what_never_came_to_be_is_forgotten() {
        let pool = Pool::new(4 << 20);
        let store = store(pool.clone()).await;
        let clock = Arc::new(SystemClock::default());
        let limits = Limits::default();
        let executor = Executor::start(limits, Runs::Interpreted, None, pool, clock);
        let executor = executor.unwrap();
        let programs = executor.programs.clone();
        for number in 0..10 {
            let missing = allowed("a", ModuleDigest([number; 32]), &[b'0' + number]);
            assert!(programs.get(&executor, &store, &missing).await.is_err());
        }
        assert_eq!(programs.ready.lock().slots.len(), 1);
    }
}
