//! What the fuzzer calls: any bytes are taken for a module, made ready and run within small bounds. Without a fuzzer the test below
//! replays `fuzz/corpus/exec_module` through the same function.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use forebay_io::SystemClock;
use forebay_mem::{Buf, Pool};
use forebay_store::ModuleDigest;

use crate::Limits;
use crate::ending::Ending;
use crate::exchange::{Patience, exchange};
use crate::host::Host;
use crate::inputs::{Input, Inputs};
use crate::interpreter::Interpreter;
use crate::output::{Output, Way};
use crate::room::Rooms;
use crate::runtime::{Program, Runtime};

const CAPACITY: usize = 1000;

/// Made once: what a fuzzer is to see is the module.
static WORLD: LazyLock<(Interpreter, Pool, Arc<SystemClock>)> = LazyLock::new(|| {
    let interpreter = Interpreter::new(limits()).expect("the imports link");
    (interpreter, Pool::new(8 << 20), Arc::default())
});

fn limits() -> Limits {
    Limits {
        threads: 1,
        memory_bytes: 1 << 20,
        stack_bytes: 64 << 10,
        table_elements: 1000,
        output_bytes: 10_000,
        log_bytes: 1000,
        ..Limits::default()
    }
}

/// A module, run over two inputs that are at hand; its functions are those that are called when none is named, and two others.
pub fn module(wasm: &[u8]) {
    let (interpreter, ..) = &*WORLD;
    if let Ok(program) = interpreter.compile(&ModuleDigest([0; 32]), wasm) {
        for function in ["run", "bytecount", ""] {
            let _ = run(&*program, function);
        }
    }
}

/// Runs a function over two inputs that are at hand; how it ended, which promises were kept.
pub(crate) fn run(program: &dyn Program, function: &str) -> Result<(), Ending> {
    let (_, pool, clock) = &*WORLD;
    let patience = Patience::new(clock.clone(), Duration::from_millis(100));
    // Held on to: nobody asks, for the inputs are at hand.
    let (exchange, _service) = exchange(patience);
    let input = |key: &[u8], bytes: &'static [u8]| Input {
        key: key.into(),
        size: bytes.len() as u64,
        whole: vec![(0, Buf::from(Bytes::from_static(bytes)))],
    };
    let inputs = vec![
        input(b"first", b"the bytes of the first input\n"),
        input(b"second", &[7; 300]),
    ];
    let limits = limits();
    let host = Host {
        exchange,
        inputs: Inputs::new(inputs, 1 << 20),
        output: Output::new(
            Way::Inline { capacity: CAPACITY },
            pool.clone(),
            Rooms::new(limits.waiting_output_bytes).of(""),
            limits.output_bytes,
        ),
        arguments: Bytes::from_static(b"some\0words\0"),
        logs: Vec::new(),
        log_bytes: limits.log_bytes,
        ended: None,
        refused: false,
        memory_peak: 0,
    };
    let (host, ran) = program.run(function, host);
    assert!(
        !matches!(ran, Err(Ending::Abandoned | Ending::Store(_))),
        "{ran:?}"
    );
    assert!(host.logs.len() <= limits.log_bytes);
    assert!(host.memory_peak <= limits.memory_bytes);
    let (len, ..) = host.output.into_parts();
    assert!(len <= limits.output_bytes);
    ran
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn every_seed_keeps_the_promises() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/exec_module");
        let mut seeds = 0;
        for seed in std::fs::read_dir(corpus).unwrap() {
            super::module(&std::fs::read(seed.unwrap().path()).unwrap());
            seeds += 1;
        }
        assert!(seeds >= 10);
    }
}
