//! The interpreter: wasmi. It counts fuel, and looks at the time whenever a little of it is used up.

use std::sync::Arc;

use forebay_store::ModuleDigest;
use wasmi::errors::{ErrorKind, HostError};
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, Error, Extern, Linker, Memory, Module,
    ResourceLimiter, Store, TrapCode, TypedFunc, TypedResumableCall, WasmParams,
};
use wasmi_core::{LimiterError, TableError};

use crate::Limits;
use crate::dialect;
use crate::ending::{Bound, Ending};
use crate::host::{Host, MODULE, imports};
use crate::runtime::{
    INITIALIZE, MEMORY, NKV_OBJECT, PAGE_BYTES, Program, Runtime, TABLES_MAX, by_code, no_function,
};

/// What is used up between two looks at the time: about a millisecond.
const FUEL_AT_ONCE: u64 = 1 << 20;
/// What setting an instance up may use: its start function cannot be interrupted to look at the time.
const FUEL_TO_START: u64 = 1 << 26;
/// Calls within calls, whatever their frames take.
const RECURSION_MAX: usize = 10_000;

/// Runs modules by interpreting them.
pub(crate) struct Interpreter {
    engine: Engine,
    linker: Arc<Linker<State>>,
    limits: Limits,
}

/// What an instance carries.
struct State {
    host: Host,
    memory: Option<Memory>,
    limits: Limits,
}

struct Interpreted {
    module: Module,
    longest: u64,
    linker: Arc<Linker<State>>,
    limits: Limits,
}

/// The host has ended the call, and noted why.
#[derive(Debug, thiserror::Error)]
#[error("ended by the host")]
struct Ended;

impl HostError for Ended {}

impl Interpreter {
    /// An interpreter within `limits`.
    ///
    /// # Errors
    /// [`Ending::NoProgram`] when the imports cannot be linked, which no build does.
    pub fn new(limits: Limits) -> Result<Interpreter, Ending> {
        let mut config = Config::default();
        config
            .consume_fuel(true)
            // Translating a function when it is first called would use up fuel all at once, and could not be resumed.
            .compilation_mode(CompilationMode::Eager)
            .enforced_limits(EnforcedLimits::strict())
            .ignore_custom_sections(true)
            .wasm_multi_memory(false)
            .wasm_relaxed_simd(false)
            .wasm_wide_arithmetic(false)
            .wasm_custom_page_sizes(false)
            .set_max_recursion_depth(RECURSION_MAX)
            .set_min_stack_height((limits.stack_bytes / 8).min(1 << 10))
            .set_max_stack_height(limits.stack_bytes / 8)
            .set_max_cached_stacks(limits.instances());
        let engine = Engine::new(&config);
        let mut linker = Linker::new(&engine);
        link(&mut linker).map_err(|error| Ending::NoProgram(error.to_string()))?;
        Ok(Interpreter {
            engine,
            linker: Arc::new(linker),
            limits,
        })
    }
}

impl Runtime for Interpreter {
    fn name(&self) -> &'static str {
        "wasmi"
    }

    fn compile(&self, _: &ModuleDigest, wasm: &[u8]) -> Result<Arc<dyn Program>, Ending> {
        // All of it before any is translated: what is not valid may panic there before it is found.
        let longest = dialect::check(wasm)?;
        let module = Module::new(&self.engine, wasm).map_err(|error| Ending::no_module(&error))?;
        Ok(Arc::new(Interpreted {
            module,
            longest,
            linker: self.linker.clone(),
            limits: self.limits.clone(),
        }))
    }
}

impl Program for Interpreted {
    fn run(&self, function: &str, host: Host) -> (Host, Result<(), Ending>) {
        let state = State {
            host,
            memory: None,
            limits: self.limits.clone(),
        };
        let mut store = Store::new(self.module.engine(), state);
        store.limiter(|state| state);
        let ran = self.run_in(&mut store, function);
        let host = store.into_data().host;
        let ran = ran.map_err(|ending| host.blame(ending));
        (host, ran)
    }

    fn longest(&self) -> u64 {
        self.longest
    }
}

impl Interpreted {
    fn run_in(&self, store: &mut Store<State>, function: &str) -> Result<(), Ending> {
        let exchange = &store.data().host.exchange;
        exchange.patience.left()?;
        let here = exchange.is_here();
        fuel(store, if here { FUEL_AT_ONCE } else { FUEL_TO_START })?;
        let made = self.linker.instantiate_and_start(&mut *store, &self.module);
        let instance = made.map_err(|error| started(store, &error))?;
        let memory = instance.get_memory(&*store, MEMORY);
        store.data_mut().memory = memory;
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&*store, INITIALIZE) {
            call(store, &initialize, ())?;
        }
        if let Ok(own) = instance.get_typed_func::<(), i32>(&*store, function) {
            return by_code(call(store, &own, ())?);
        }
        match (
            instance.get_typed_func::<(i32, i32), i32>(&*store, function),
            memory,
        ) {
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
            fuel(store, FUEL_TO_START)?;
            let pages = missing.div_ceil(PAGE_BYTES) as u64;
            let grown = memory.grow(&mut *store, pages);
            grown.map_err(|_| store.data_mut().host.no_memory())?;
        }
        let (bytes, state) = memory.data_and_store_mut(&mut *store);
        state.host.nkv_load(&mut bytes[NKV_OBJECT..end])?;
        let len = call(store, function, (NKV_OBJECT as i32, len as i32))?;
        let (bytes, state) = memory.data_and_store_mut(&mut *store);
        state.host.nkv_result(bytes, len)
    }
}

/// Calls a function, and looks at the time whenever it has used up its fuel.
fn call<P: WasmParams, R: wasmi::WasmResults>(
    store: &mut Store<State>,
    function: &TypedFunc<P, R>,
    parameters: P,
) -> Result<R, Ending> {
    fuel(store, FUEL_AT_ONCE)?;
    let begun = function.call_resumable(&mut *store, parameters);
    let mut called = begun.map_err(|error| ended(store, &error))?;
    loop {
        called = match called {
            TypedResumableCall::Finished(results) => return Ok(results),
            TypedResumableCall::HostTrap(trap) => {
                return Err(ended(store, trap.host_error()));
            }
            TypedResumableCall::OutOfFuel(rest) => {
                store.data().host.exchange.go_on()?;
                fuel(store, FUEL_AT_ONCE.max(rest.required_fuel()))?;
                let rested = rest.resume(&mut *store);
                rested.map_err(|error| ended(store, &error))?
            }
        };
    }
}

/// Why a function ended.
fn ended(store: &mut Store<State>, error: &Error) -> Ending {
    let by_host = store.data_mut().host.ended.take();
    by_host.unwrap_or_else(|| Ending::Trapped(error.to_string()))
}

/// Why an instance was not made.
fn started(store: &mut Store<State>, error: &Error) -> Ending {
    match error.kind() {
        _ if store.data().host.ended.is_some() => ended(store, error),
        ErrorKind::Linker(_) | ErrorKind::Instantiation(_) => Ending::NoProgram(error.to_string()),
        ErrorKind::TrapCode(TrapCode::OutOfFuel) => {
            let may = store.data().host.exchange.go_on();
            may.err().unwrap_or(Ending::Stopped(Bound::Start))
        }
        _ => ended(store, error),
    }
}

/// Gives the function so much fuel.
fn fuel(store: &mut Store<State>, fuel: u64) -> Result<(), Ending> {
    let given = store.set_fuel(fuel);
    given.map_err(|error| ended(store, &error))
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> Result<bool, LimiterError> {
        let may = self.host.memory_may_grow(desired, &self.limits);
        may.ok_or(LimiterError::ResourceLimiterDeniedAllocation)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> Result<bool, LimiterError> {
        Ok(self.host.table_may_grow(desired, &self.limits))
    }

    fn table_grow_failed(&mut self, error: &TableError) -> Result<(), LimiterError> {
        if !matches!(error, TableError::OutOfFuel { .. }) {
            return Ok(());
        }
        // The interpreter would not resume at this instruction but at an earlier one: it does not note where it stopped.
        let ending = self.host.exchange.go_on().err();
        let trap = || Ending::trap("a table cannot grow just when the time is to be looked at");
        self.host.ended = Some(ending.unwrap_or_else(trap));
        Err(LimiterError::ResourceLimiterDeniedAllocation)
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
        fn link(linker: &mut Linker<State>) -> Result<(), Error> {
            $(
                linker.func_wrap(
                    MODULE,
                    stringify!($name),
                    |mut caller: Caller<'_, State>, $($argument: $type),*| -> Result<$result, Error> {
                        let (memory, host) = parts(&mut caller);
                        host.$name(memory, $($argument),*).map_err(|ending| {
                            host.ended = Some(ending);
                            Error::host(Ended)
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
    let memory = caller
        .data()
        .memory
        .or_else(|| caller.get_export(MEMORY).and_then(Extern::into_memory));
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

    #[test]
    fn what_is_not_valid_is_not_translated() {
        let interpreter = Interpreter::new(Limits::default()).expect("the imports link");
        let function = [1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0];
        for sections in [
            // Code of no function: the interpreter divides by their number.
            &[10, 0xe9, 0x07, 0][..],
            &[10, 0xe9, 0x87, 0x80, 0x00, 0x80, 0x00],
            &[10, 1, 0, 10, 0xe9, 0x07, 0],
            // A function that goes on behind its end.
            &[&function[..], &[10, 8, 1, 6, 0, 0x0b, 0x41, 0, 0x1a, 0x0b]].concat(),
        ] {
            let wasm = [b"\0asm\x01\0\0\0", sections].concat();
            let compiled = interpreter.compile(&ModuleDigest([0; 32]), &wasm);
            assert!(
                matches!(compiled, Err(Ending::NoProgram(_))),
                "{sections:?}"
            );
        }
        let valid = [&function[..], &[10, 4, 1, 2, 0, 0x0b]].concat();
        let wasm = [b"\0asm\x01\0\0\0", &valid[..]].concat();
        assert!(interpreter.compile(&ModuleDigest([0; 32]), &wasm).is_ok());
    }
}
