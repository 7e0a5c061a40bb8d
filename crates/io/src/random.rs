//! Randomness is the system's.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with random ones, fit for keys.
///
/// # Errors
/// When the system gives none.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
