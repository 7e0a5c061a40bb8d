//! Digests of values.
//!
//! `sha256`, which is also `run`, writes a line for each input: the SHA-256 of its bytes in 64 hexadecimal digits.

use std::fmt::Write;

use forebay_module::{export, inputs, write};
use sha2::{Digest, Sha256};

export!(run, sha256);

const PIECE_BYTES: usize = 256 << 10;

fn run() -> Result<(), &'static str> {
    sha256()
}

fn sha256() -> Result<(), &'static str> {
    let mut piece = vec![0; PIECE_BYTES];
    for input in inputs() {
        let mut digest = Sha256::new();
        let mut offset = 0;
        loop {
            let len = input.read(offset, &mut piece);
            if len == 0 {
                break;
            }
            digest.update(&piece[..len]);
            offset += len as u64;
        }
        let mut line = String::with_capacity(65);
        for byte in digest.finalize() {
            write!(line, "{byte:02x}").map_err(|_| "no room for a line")?;
        }
        line.push('\n');
        write(line.as_bytes());
    }
    Ok(())
}
