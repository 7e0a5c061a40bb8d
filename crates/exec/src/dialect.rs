//! What of WebAssembly a module may use: the same under every runtime, whatever that could do besides.

use wasmparser::{Validator, WasmFeatures};

use crate::ending::Ending;

/// Version 2 and tail calls, but nothing that refers to the host's objects: a function is given none, and not every runtime has them.
const TAKEN: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST)
    .difference(WasmFeatures::GC_TYPES);

/// Looks at all of a module.
///
/// # Errors
/// [`Ending::NoProgram`].
pub(crate) fn check(wasm: &[u8]) -> Result<(), Ending> {
    let Err(error) = Validator::new_with_features(TAKEN).validate_all(wasm) else {
        return Ok(());
    };
    let with_them = TAKEN.union(WasmFeatures::GC_TYPES);
    let valid_with_them = Validator::new_with_features(with_them).validate_all(wasm);
    Err(match valid_with_them {
        Ok(_) => Ending::no_module(&"there is no externref here"),
        Err(_) => Ending::no_module(&error),
    })
}
