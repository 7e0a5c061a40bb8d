//! Modules to measure.

/// `scan.wat`, made.
pub(super) const SCAN: &[u8] = include_bytes!("scan.wasm");

/// How long a large module is, about.
const LARGE_BYTES: usize = 1_000_000;
/// Additions and multiplications of one of its functions.
const STEPS: usize = 40;

/// A module of about 1 MB: many functions that are alike but for their constants, and `run`, which calls one of them. `seed` makes it another
/// one.
pub(super) fn large(seed: u32) -> Vec<u8> {
    let body = |number: u32| {
        // No locals; local.get 0; then again and again: i32.const c; i32.mul; i32.const d; i32.add.
        let mut code = vec![0, 0x20, 0];
        for step in 0..STEPS as u32 {
            code.push(0x41);
            signed(
                &mut code,
                (number ^ step.wrapping_mul(0x9e37_79b1) ^ seed << 1) as i32 | 1,
            );
            code.push(0x6c);
            code.push(0x41);
            signed(&mut code, number.wrapping_add(step) as i32);
            code.push(0x6a);
        }
        code.push(0x0b);
        code
    };
    let mut bodies = Vec::new();
    let mut count = 0;
    while bodies.len() < LARGE_BYTES {
        count += 1;
        let body = body(count);
        unsigned(&mut bodies, body.len() as u32);
        bodies.extend(body);
    }
    // `run`: i32.const 7; call the last of them; drop; i32.const 0.
    let mut run = vec![0, 0x41, 7, 0x10];
    unsigned(&mut run, count - 1);
    run.extend([0x1a, 0x41, 0, 0x0b]);
    unsigned(&mut bodies, run.len() as u32);
    bodies.extend(run);

    let mut wasm = b"\0asm\x01\0\0\0".to_vec();
    // Types: (i32) -> i32, () -> i32.
    section(&mut wasm, 1, &[2, 0x60, 1, 0x7f, 1, 0x7f, 0x60, 0, 1, 0x7f]);
    let mut functions = Vec::new();
    unsigned(&mut functions, count + 1);
    functions.extend(std::iter::repeat_n(0, count as usize));
    functions.push(1);
    section(&mut wasm, 3, &functions);
    let mut exports = vec![1, 3];
    exports.extend(b"run");
    exports.push(0);
    unsigned(&mut exports, count);
    section(&mut wasm, 7, &exports);
    let mut code = Vec::new();
    unsigned(&mut code, count + 1);
    code.extend(bodies);
    section(&mut wasm, 10, &code);
    wasm
}

fn section(wasm: &mut Vec<u8>, id: u8, bytes: &[u8]) {
    wasm.push(id);
    unsigned(wasm, bytes.len() as u32);
    wasm.extend(bytes);
}

/// LEB128.
fn unsigned(into: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// LEB128 of a number with a sign.
fn signed(into: &mut Vec<u8>, mut number: i32) {
    loop {
        let byte = number as u8 & 0x7f;
        number >>= 7;
        let last = (number == 0 && byte & 0x40 == 0) || (number == -1 && byte & 0x40 != 0);
        into.push(if last { byte } else { byte | 0x80 });
        if last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use forebay_exec::{Limits, check};

    use super::super::COLD_CALLS;
    use super::*;

    #[test]
    fn the_committed_module_is_what_its_text_makes() {
        let made = wat::parse_str(include_str!("scan.wat")).unwrap();
        assert_eq!(SCAN, made);
        check(&Limits::default(), SCAN).unwrap();
    }

    #[test]
    fn a_large_module_is_one() {
        // As many as are measured: one that is there already would cost nothing.
        let all: HashSet<_> = (0..COLD_CALLS).map(large).collect();
        assert_eq!(all.len(), COLD_CALLS as usize);
        for one in all {
            assert!((900_000..1_200_000).contains(&one.len()), "{}", one.len());
            check(&Limits::default(), &one).unwrap();
        }
    }
}
