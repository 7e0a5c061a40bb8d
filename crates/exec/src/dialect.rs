//! What of WebAssembly a module may use: the same under every runtime, whatever that could do besides.

use wasmparser::{Parser, Payload, Validator, WasmFeatures};

use crate::ending::Ending;

/// Version 2 and tail calls, but nothing that refers to the host's objects: a function is given none, and not every runtime has them.
const TAKEN: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST)
    .difference(WasmFeatures::GC_TYPES);

/// Looks at all of a module; how many bytes of code the longest of its functions has.
///
/// # Errors
/// [`Ending::NoProgram`].
pub(crate) fn check(wasm: &[u8]) -> Result<u64, Ending> {
    let Err(error) = Validator::new_with_features(TAKEN).validate_all(wasm) else {
        return longest(wasm);
    };
    let with_them = TAKEN.union(WasmFeatures::GC_TYPES);
    let valid_with_them = Validator::new_with_features(with_them).validate_all(wasm);
    Err(match valid_with_them {
        Ok(_) => Ending::no_module(&"there is no externref here"),
        Err(_) => Ending::no_module(&error),
    })
}

fn longest(wasm: &[u8]) -> Result<u64, Ending> {
    let mut longest = 0;
    for part in Parser::new(0).parse_all(wasm) {
        if let Payload::CodeSectionEntry(body) = part.map_err(|error| Ending::no_module(&error))? {
            longest = longest.max(body.as_bytes().len() as u64);
        }
    }
    Ok(longest)
}
