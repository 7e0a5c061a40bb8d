//! A store, an executor, and modules written as text.

#[cfg(feature = "wasm-jit")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "wasm-jit")]
use forebay_exec::Keeping;
use forebay_exec::{ARGUMENTS_BYTES_MAX, Allowed, Exec, Executor, Limits, Runs};
use forebay_io::{Clock, SystemClock};
use forebay_mem::Pool;
use forebay_store::{
    Address, ErrorKind, Execute, Executed, Input, MemoryStore, Module, ModuleDigest,
    NamespaceConfig, Result, Seal, Store, StoreError, StoreOptions, Upload,
};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

/// Much longer than what calls have here, and much shorter than they would take.
pub const SOON: Duration = Duration::from_secs(30);
const POOL_BYTES: usize = 64 << 20;
/// Where modules lie in these tests.
pub const MODULES: &str = "modules";

pub fn executor(limits: Limits, pool: Pool) -> Arc<Executor> {
    executor_by(Arc::new(SystemClock::default()), limits, pool)
}

fn executor_by(clock: Arc<dyn Clock>, limits: Limits, pool: Pool) -> Arc<Executor> {
    Executor::start(limits, Runs::default(), None, pool, clock).unwrap()
}

#[cfg(feature = "wasm-jit")]
fn executor_keeping(folder: &Path, pool: Pool) -> Arc<Executor> {
    let keeping = Keeping {
        folder: folder.to_owned(),
        spare_bytes: 0,
    };
    let (limits, clock) = (Limits::default(), Arc::new(SystemClock::default()));
    Executor::start(limits, Runs::default(), Some(keeping), pool, clock).unwrap()
}

pub struct World<S = MemoryStore> {
    pub store: Exec<S>,
    allowed: parking_lot::Mutex<Vec<Allowed>>,
}

impl World {
    /// Two tenants with a namespace each: `alice` has `hers`, `bob` has `his`.
    pub async fn new() -> World {
        World::within(Limits::default()).await
    }

    pub async fn within(limits: Limits) -> World {
        World::by(Arc::new(SystemClock::default()), limits).await
    }

    /// By a clock of its own.
    pub async fn by(clock: Arc<dyn Clock>, limits: Limits) -> World {
        let pool = Pool::new(POOL_BYTES);
        let executor = executor_by(clock, limits, pool.clone());
        World::with(executor, pool).await
    }

    /// Keeps what it compiles in this directory.
    #[cfg(feature = "wasm-jit")]
    pub async fn keeping(folder: &Path) -> World {
        let pool = Pool::new(POOL_BYTES);
        World::with(executor_keeping(folder, pool.clone()), pool).await
    }

    /// The same values and leaves in the next process.
    #[cfg(feature = "wasm-jit")]
    pub fn restarted(self, folder: &Path) -> World {
        let executor = executor_keeping(folder, Pool::new(POOL_BYTES));
        executor.allow(self.allowed.lock().iter().cloned());
        World {
            store: Exec::new(self.store.below().clone(), Some(executor)),
            allowed: self.allowed,
        }
    }

    async fn with(executor: Arc<Executor>, pool: Pool) -> World {
        World::over(MemoryStore::new(pool, || 1), executor).await
    }
}

impl<S: Store> World<S> {
    /// The same over another store.
    pub async fn over(store: S, executor: Arc<Executor>) -> World<S> {
        let store = Exec::new(store, Some(executor));
        for (name, tenant) in [(MODULES, "system"), ("hers", "alice"), ("his", "bob")] {
            let config = NamespaceConfig {
                tenant: tenant.to_owned(),
                ..NamespaceConfig::default()
            };
            store.create_namespace(name, config).await.unwrap();
        }
        World {
            store,
            allowed: parking_lot::Mutex::default(),
        }
    }

    pub async fn put(&self, namespace: &str, key: &str, bytes: &[u8]) {
        let address = Address::object(namespace, key.as_bytes());
        let upload = self.store.store(address, StoreOptions::default());
        let mut upload = upload.await.unwrap();
        for chunk in bytes.chunks(256 << 10) {
            let mut buf = upload.buffer(chunk.len()).await.unwrap();
            buf.set_len(chunk.len());
            buf.copy_from_slice(chunk);
            upload.write(buf.freeze()).await.unwrap();
        }
        upload.commit(Seal::default()).await.unwrap();
    }

    /// A module in text, allowed to alice everywhere.
    pub async fn module(&self, text: &str) -> Module<'static> {
        let wasm = wat::parse_str(text).unwrap();
        self.wasm(&wasm).await
    }

    pub async fn module_for(&self, tenant: &str, text: &str) -> Module<'static> {
        let wasm = wat::parse_str(text).unwrap();
        self.wasm_for(tenant, &wasm).await
    }

    pub async fn wasm(&self, wasm: &[u8]) -> Module<'static> {
        self.wasm_for("alice", wasm).await
    }

    async fn wasm_for(&self, tenant: &str, wasm: &[u8]) -> Module<'static> {
        let digest = ModuleDigest(Sha256::digest(wasm).into());
        self.put(MODULES, &digest.to_string(), wasm).await;
        self.allow(Allowed {
            digest,
            tenant: tenant.to_owned(),
            namespace: None,
            namespace_id: None,
            name: None,
            number: None,
            function: None,
            place: (MODULES.to_owned(), digest.to_string().into_bytes()),
        });
        Module::Digest(digest)
    }

    pub fn allow(&self, allowed: Allowed) {
        let mut all = self.allowed.lock();
        all.push(allowed);
        self.store.executor().unwrap().allow(all.iter().cloned());
    }

    pub fn forget(&self) {
        self.allowed.lock().clear();
        self.store.executor().unwrap().allow([]);
    }

    /// Alice runs a function over objects of hers.
    pub async fn run(
        &self,
        module: Module<'_>,
        keys: &[&str],
        arguments: &[u8],
    ) -> Result<Executed> {
        let inputs: Vec<Input<'_>> = keys
            .iter()
            .map(|key| Input::whole("hers", key.as_bytes()))
            .collect();
        let call = Execute::inline("alice", module, &inputs, arguments, 1 << 20);
        self.store.execute(call).await
    }

    /// What a function in text writes.
    pub async fn output(&self, text: &str, keys: &[&str], arguments: &[u8]) -> Vec<u8> {
        let module = self.module(text).await;
        bytes(&self.run(module, keys, arguments).await.unwrap())
    }

    /// How a function in text fails.
    pub async fn failure(&self, text: &str) -> StoreError {
        let module = self.module(text).await;
        self.run(module, &[], b"").await.unwrap_err()
    }

    /// The same within a fifth of a second, with as many arguments as there may be.
    pub async fn failure_in_time(&self, text: &str) -> StoreError {
        let module = self.module(text).await;
        let arguments = vec![b'x'; ARGUMENTS_BYTES_MAX];
        let call = Execute {
            deadline: Some(Duration::from_millis(200)),
            ..Execute::inline("alice", module, &[], &arguments, 1 << 20)
        };
        let executed = timeout(SOON, self.store.execute(call)).await;
        executed.expect("an end in time").unwrap_err()
    }

    /// What the executor counted.
    pub fn metrics(&self) -> String {
        metrics(self.store.executor().unwrap())
    }

    /// A function that does what it should still does.
    pub async fn is_unharmed(&self) {
        let text = own(
            "(call $write (i32.const 0) (i32.const 5))",
            r#"(data (i32.const 0) "hello")"#,
        );
        assert_eq!(self.output(&text, &[], b"").await, b"hello");
    }
}

/// What an executor counted.
pub fn metrics(executor: &Arc<Executor>) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    executor.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

pub fn bytes(executed: &Executed) -> Vec<u8> {
    executed.bytes.iter().flat_map(|buf| buf.to_vec()).collect()
}

/// A module whose `run` does `body`, with every import there is, one page of memory, and `more`.
pub fn own(body: &str, more: &str) -> String {
    format!(
        r#"(module
            (import "forebay" "inputs" (func $inputs (result i32)))
            (import "forebay" "size" (func $size (param i32) (result i64)))
            (import "forebay" "key" (func $key (param i32 i32 i32) (result i32)))
            (import "forebay" "read" (func $read (param i32 i64 i32 i32) (result i32)))
            (import "forebay" "arguments" (func $arguments (param i32 i32) (result i32)))
            (import "forebay" "capacity" (func $capacity (result i64)))
            (import "forebay" "write" (func $write (param i32 i32)))
            (import "forebay" "pass" (func $pass (param i32 i64 i64) (result i64)))
            (import "forebay" "log" (func $log (param i32 i32)))
            (import "forebay" "fail" (func $fail (param i32 i32 i32)))
            (import "forebay" "crc32c" (func $crc32c (param i32 i32 i32) (result i32)))
            (import "forebay" "crc64nvme" (func $crc64nvme (param i64 i32 i32) (result i64)))
            (import "forebay" "count" (func $count (param i32 i32 i32) (result i32)))
            (import "forebay" "find" (func $find (param i32 i32 i32 i32) (result i32)))
            (import "forebay" "sum_int" (func $sum_int (param i32 i32 i32) (result i64)))
            (import "forebay" "sum_float" (func $sum_float (param i32 i32 i32) (result f64)))
            (import "forebay" "compare" (func $compare (param i32 i32 i32 i32 i32 i32) (result i32)))
            (import "forebay" "select" (func $select (param i32 i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            {more}
            (func (export "run") (result i32)
                (local $a i32) (local $b i64)
                {body}
                (i32.const 0)))"#
    )
}

#[track_caller]
pub fn assert_kind(error: &StoreError, kind: ErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
}
