//! elbencho's token after its connect step: `rc:<32 digits>:<address>:<size>:<rkey>`, all hexadecimal.

use std::fmt;

use super::TokenError;
use super::digits::{self, check_window};
use crate::hex;

/// A window of memory behind a connection that was made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcShim {
    /// The connection.
    pub connection: [u8; 16],
    /// The virtual address of the window.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The remote key.
    pub rkey: u32,
}

impl RcShim {
    /// Reads a token.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<RcShim, TokenError> {
        let malformed = TokenError::Malformed("a field of the rc token is not what it must be");
        let mut fields = text.split(':');
        let mut next = || fields.next().ok_or(malformed);
        if next()? != "rc" {
            return Err(malformed);
        }
        let connection = digits::bytes(next()?).ok_or(malformed)?;
        let address = digits::number(next()?).ok_or(malformed)?;
        let size = digits::number(next()?).ok_or(malformed)?;
        let rkey = digits::number(next()?).and_then(|rkey| u32::try_from(rkey).ok());
        let rkey = rkey.ok_or(malformed)?;
        check_window(address, size)?;
        match fields.next() {
            None => Ok(RcShim {
                connection,
                address,
                size,
                rkey,
            }),
            Some(_) => Err(malformed),
        }
    }
}

impl fmt::Display for RcShim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rc:{}:{:x}:{:x}:{:x}",
            hex::encode(&self.connection),
            self.address,
            self.size,
            self.rkey
        )
    }
}
