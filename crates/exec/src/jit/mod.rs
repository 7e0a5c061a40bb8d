//! The compiler: wasmtime. Machine code looks at a counter wherever it loops, and a thread counts milliseconds while anything runs.

mod kept;
mod ticker;

use std::sync::Arc;

use forebay_store::ModuleDigest;
use wasmtime::{
    Caller, Config, Engine, Error, Extern, InstanceAllocationStrategy, InstancePre, Linker, Memory,
    Module, OptLevel, PoolingAllocationConfig, ResourceLimiter, Store, Trap, TypedFunc,
    UpdateDeadline, WasmParams, WasmResults,
};

use self::kept::Kept;
use self::ticker::Ticker;
use crate::Limits;
use crate::dialect;
use crate::ending::Ending;
use crate::executor::Keeping;
use crate::host::{Host, MODULE, imports};
use crate::kept::About;
use crate::runtime::{
    INITIALIZE, MEMORY, NKV_OBJECT, PAGE_BYTES, Program, Runtime, TABLES_MAX, by_code, no_function,
};

/// What of an instance's memory is cleared by hand rather than given back: most functions touch little more.
const RESIDENT_BYTES: usize = 128 << 10;

/// Runs modules by compiling them.
pub(crate) struct Jit {
    engine: Engine,
    linker: Linker<State>,
    limits: Limits,
    ticker: Arc<Ticker>,
    kept: Option<Kept>,
}

/// What an instance carries.
struct State {
    host: Host,
    memory: Option<Memory>,
    limits: Limits,
}

struct Compiled {
    instance: InstancePre<State>,
    longest: u64,
    ticker: Arc<Ticker>,
    limits: Limits,
}

impl Jit {
    /// A compiler within `limits`; what it compiles is kept where `keeping` says, if it does.
    ///
    /// # Errors
    /// [`Ending::NoProgram`] when this machine cannot run its code, or the system gives no address space or thread.
    pub fn new(limits: Limits, keeping: Option<Keeping>) -> Result<Jit, Ending> {
        let engine = Engine::new(&config(&limits)).map_err(no_program)?;
        let mut linker = Linker::new(&engine);
        link(&mut linker).map_err(no_program)?;
        let ticker =
            Ticker::start(engine.clone()).map_err(|error| Ending::NoProgram(error.to_string()))?;
        Ok(Jit {
            kept: keeping.and_then(|keeping| Kept::open(keeping, &engine)),
            engine,
            linker,
            limits,
            ticker,
        })
    }

    fn program(&self, module: &Module, longest: u64) -> Result<Arc<dyn Program>, Ending> {
        let instance = self.linker.instantiate_pre(module).map_err(no_program)?;
        Ok(Arc::new(Compiled {
            instance,
            longest,
            ticker: self.ticker.clone(),
            limits: self.limits.clone(),
        }))
    }
}

fn config(limits: &Limits) -> Config {
    let instances = u32::try_from(limits.instances()).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(instances)
        .total_memories(instances)
        .total_tables(instances.saturating_mul(TABLES_MAX as u32))
        .max_memories_per_module(1)
        .max_tables_per_module(TABLES_MAX as u32)
        .linear_memory_keep_resident(RESIDENT_BYTES)
        .table_keep_resident(RESIDENT_BYTES);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
        // Whoever made a module has optimised it. To do so again takes two thirds longer, for code that is a sixth faster.
        .cranelift_opt_level(OptLevel::None)
        // Nobody reads where in a module a trap was, and no debugger follows its frames: what would tell takes time to make.
        .generate_address_map(false)
        .native_unwind_info(false)
        .wasm_backtrace_max_frames(None)
        .max_wasm_stack(limits.stack_bytes)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(true);
    config
}

fn no_program(error: Error) -> Ending {
    Ending::no_module(&format_args!("{error:#}"))
}

impl Runtime for Jit {
    fn name(&self) -> &'static str {
        "wasmtime"
    }

    fn restore(&self, digest: &ModuleDigest) -> Option<(Arc<dyn Program>, u64)> {
        let (module, about) = self.kept.as_ref()?.load(&self.engine, digest)?;
        Some((self.program(&module, about.longest).ok()?, about.bytes))
    }

    fn compile(&self, digest: &ModuleDigest, wasm: &[u8]) -> Result<Arc<dyn Program>, Ending> {
        let longest = dialect::check(wasm)?;
        let module = Module::new(&self.engine, wasm).map_err(no_program)?;
        if let Some(kept) = &self.kept {
            let bytes = wasm.len() as u64;
            kept.save(digest, &module, About { bytes, longest });
        }
        self.program(&module, longest)
    }
}

impl Program for Compiled {
    fn run(&self, function: &str, host: Host) -> (Host, Result<(), Ending>) {
        let state = State {
            host,
            memory: None,
            limits: self.limits.clone(),
        };
        let mut store = Store::new(self.instance.module().engine(), state);
        store.limiter(|state| state);
        // The next tick may come at once: short is what is not met by two.
        let ticks = 1 + u64::from(store.data().host.exchange.is_here());
        store.set_epoch_deadline(ticks);
        store.epoch_deadline_callback(|mut context| {
            let host = &mut context.data_mut().host;
            match host.exchange.go_on() {
                Ok(()) => Ok(UpdateDeadline::Continue(1)),
                Err(ending) => {
                    host.ended = Some(ending);
                    Ok(UpdateDeadline::Interrupt)
                }
            }
        });
        let ticking = self.ticker.tick();
        let ran = self.run_in(&mut store, function);
        drop(ticking);
        let host = store.into_data().host;
        let ran = ran.map_err(|ending| host.blame(ending));
        (host, ran)
    }

    fn longest(&self) -> u64 {
        self.longest
    }
}

impl Compiled {
    fn run_in(&self, store: &mut Store<State>, function: &str) -> Result<(), Ending> {
        let made = self.instance.instantiate(&mut *store);
        let instance = made.map_err(|error| started(store, &error))?;
        let memory = instance.get_memory(&mut *store, MEMORY);
        store.data_mut().memory = memory;
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut *store, INITIALIZE) {
            call(store, &initialize, ())?;
        }
        if let Ok(own) = instance.get_typed_func::<(), i32>(&mut *store, function) {
            return by_code(call(store, &own, ())?);
        }
        let nkv = instance.get_typed_func::<(i32, i32), i32>(&mut *store, function);
        match (nkv, memory) {
            (Ok(nkv), Some(memory)) => self.run_nkv(store, &nkv, memory),
            _ => Err(no_function(function)),
        }
    }

    fn run_nkv(
        &self,
        store: &mut Store<State>,
        function: &TypedFunc<(i32, i32), i32>,
        memory: Memory,
    ) -> Result<(), Ending> {
        let len = store.data().host.nkv_object(self.limits.memory_bytes)?;
        let end = NKV_OBJECT + len;
        let missing = end.saturating_sub(memory.data_size(&*store));
        if missing > 0 {
            let grown = memory.grow(&mut *store, missing.div_ceil(PAGE_BYTES) as u64);
            grown.map_err(|_| store.data_mut().host.no_memory())?;
        }
        let (bytes, state) = memory.data_and_store_mut(&mut *store);
        state.host.nkv_load(&mut bytes[NKV_OBJECT..end])?;
        let len = call(store, function, (NKV_OBJECT as i32, len as i32))?;
        let (bytes, state) = memory.data_and_store_mut(&mut *store);
        state.host.nkv_result(bytes, len)
    }
}

fn call<P: WasmParams, R: WasmResults>(
    store: &mut Store<State>,
    function: &TypedFunc<P, R>,
    parameters: P,
) -> Result<R, Ending> {
    let called = function.call(&mut *store, parameters);
    called.map_err(|error| ended(store, &error))
}

/// Why a function ended.
fn ended(store: &mut Store<State>, error: &Error) -> Ending {
    let by_host = store.data_mut().host.ended.take();
    by_host.unwrap_or_else(|| {
        Ending::Trapped(match error.downcast_ref::<Trap>() {
            Some(trap) => trap.to_string(),
            None => format!("{error:#}"),
        })
    })
}

/// Why an instance was not made.
fn started(store: &mut Store<State>, error: &Error) -> Ending {
    match error.is::<Trap>() || store.data().host.ended.is_some() {
        true => ended(store, error),
        false => Ending::NoProgram(format!("{error:#}")),
    }
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let may = self.host.memory_may_grow(desired, &self.limits);
        may.ok_or_else(|| Error::msg("ended by the host"))
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.host.table_may_grow(desired, &self.limits))
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        1
    }
}

macro_rules! link_imports {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
            $(
                linker.func_wrap(
                    MODULE,
                    stringify!($name),
                    |mut caller: Caller<'_, State>, $($argument: $type),*| -> wasmtime::Result<$result> {
                        let (memory, host) = parts(&mut caller);
                        host.$name(memory, $($argument),*).map_err(|ending| {
                            host.ended = Some(ending);
                            Error::msg("ended by the host")
                        })
                    },
                )?;
            )*
            Ok(())
        }
    };
}
imports!(link_imports);

/// The memory and the world of whoever calls an import.
fn parts<'a>(caller: &'a mut Caller<'_, State>) -> (&'a mut [u8], &'a mut Host) {
    // A start function runs before the memory is known.
    let memory = match caller.data().memory {
        Some(memory) => Some(memory),
        None => caller.get_export(MEMORY).and_then(Extern::into_memory),
    };
    match memory {
        Some(memory) => {
            let (bytes, state) = memory.data_and_store_mut(caller);
            (bytes, &mut state.host)
        }
        None => (&mut [], &mut caller.data_mut().host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    /// Leaves something in its memory, table and global, and fails where something was left.
    const LEAVES: &str = r#"(module
        (memory (export "memory") 4)
        (table $table 1 funcref)
        (global $global (mut i32) (i32.const 0))
        (func $any)
        (elem declare func $any)
        (func $leave
            (if (i32.load (i32.const 0)) (then unreachable))
            (if (i32.load (i32.const 262140)) (then unreachable))
            (if (i32.eqz (ref.is_null (table.get $table (i32.const 0)))) (then unreachable))
            (if (global.get $global) (then unreachable))
            (i32.store (i32.const 0) (i32.const 1))
            (i32.store (i32.const 262140) (i32.const 1))
            (table.set $table (i32.const 0) (ref.func $any))
            (global.set $global (i32.const 1)))
        (func (export "run") (result i32) (call $leave) (i32.const 0))
        (func (export "traps") (result i32) (call $leave) (unreachable)))"#;

    #[test]
    fn instances_come_out_of_a_pool_and_take_nothing_from_one_another() {
        let jit = Jit::new(Limits::default(), None).unwrap();
        let wasm = wat::parse_str(LEAVES).unwrap();
        let program = jit.compile(&ModuleDigest([0; 32]), &wasm).unwrap();
        let pool = jit.engine.pooling_allocator_metrics().expect("a pool");
        for _ in 0..20 {
            assert!(matches!(fuzz::run(&*program, "run"), Ok(())));
            let trapped = fuzz::run(&*program, "traps");
            assert!(matches!(trapped, Err(Ending::Trapped(_))));
        }
        // One place was enough for all of them.
        assert_eq!(
            (pool.core_instances(), pool.memories(), pool.tables()),
            (0, 0, 0)
        );
        assert_eq!(
            (pool.unused_warm_memories(), pool.unused_warm_tables()),
            (1, 1)
        );
    }
}
