//! hipObject's binary token: 44 bytes as 88 hexadecimal digits, whose integers are little endian as every host wrote them.
//! `transport u8 | qpn u32 | gid[16] | rkey u32 | addr u64 | len u64 | port u8 | lid u16`, and maybe `:addr:size` behind it.

use std::fmt;

use super::TokenError;
use super::dc::narrowed;
use super::digits::{self, check_window, take};
use crate::hex;

const BYTES: usize = 44;
const DIGITS: usize = 2 * BYTES;

/// By what the client's queue pair speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HipTransport {
    /// A DC target.
    Dc,
    /// A reliable connection.
    Rc,
}

/// An end of a queue pair, and in the first protocol a window of memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HipToken {
    /// By what it speaks.
    pub transport: HipTransport,
    /// The number of its queue pair or DC target.
    pub qpn: u32,
    /// The global identifier of its port; all zero means the server's own adapter.
    pub gid: [u8; 16],
    /// The remote key.
    pub rkey: u32,
    /// The virtual address of the window, narrowed by a suffix.
    pub address: u64,
    /// The length of the window in bytes; 0 when the token is an identity only.
    pub length: u64,
    /// The number of the port.
    pub port: u8,
    /// The local identifier of the port.
    pub lid: u16,
}

/// 88 digits alone, or before an address and a size.
pub(super) fn is_shaped(text: &str) -> bool {
    let (first, suffix) = text.split_once(':').unwrap_or((text, "1:1"));
    first.len() == DIGITS
        && first.bytes().all(|byte| hex::digit(byte).is_some())
        && suffix.split(':').count() == 2
}

impl HipToken {
    /// Reads a token with or without its suffix.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<HipToken, TokenError> {
        let malformed = TokenError::Malformed;
        let mut fields = text.split(':');
        let mut token = Self::identity(fields.next().unwrap_or_default())?;
        if token.transport == HipTransport::Dc {
            check_window(token.address, token.length)?;
        }
        let Some(address) = fields.next() else {
            return Ok(token);
        };
        let numbers = digits::number(address).zip(fields.next().and_then(digits::number));
        let suffix = numbers.ok_or(malformed("the suffix is not hexadecimal"))?;
        if fields.next().is_some() {
            return Err(malformed("there are more fields than there may be"));
        }
        (token.address, token.length) = narrowed((token.address, token.length), suffix)?;
        Ok(token)
    }

    /// Reads the 88 digits as control requests carry them, where only the queue pair counts and all else may be zero.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn identity(text: &str) -> Result<HipToken, TokenError> {
        let malformed = TokenError::Malformed;
        let bytes: [u8; BYTES] =
            digits::bytes(text).ok_or(malformed("the token is not 88 hexadecimal digits"))?;
        let mut rest = &bytes[..];
        let token = HipToken {
            transport: match take::<1>(&mut rest) {
                [0] => HipTransport::Dc,
                [1] => HipTransport::Rc,
                _ => return Err(malformed("the transport is neither 00 nor 01")),
            },
            qpn: u32::from_le_bytes(take(&mut rest)),
            gid: take(&mut rest),
            rkey: u32::from_le_bytes(take(&mut rest)),
            address: u64::from_le_bytes(take(&mut rest)),
            length: u64::from_le_bytes(take(&mut rest)),
            port: take::<1>(&mut rest)[0],
            lid: u16::from_le_bytes(take(&mut rest)),
        };
        match token.address.checked_add(token.length) {
            Some(_) => Ok(token),
            None => Err(malformed("the window leaves the address space")),
        }
    }
}

/// The 88 digits in lower case.
impl fmt::Display for HipToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport: u8 = match self.transport {
            HipTransport::Dc => 0,
            HipTransport::Rc => 1,
        };
        write!(f, "{transport:02x}")?;
        for field in [
            &self.qpn.to_le_bytes()[..],
            &self.gid,
            &self.rkey.to_le_bytes(),
            &self.address.to_le_bytes(),
            &self.length.to_le_bytes(),
            &[self.port],
            &self.lid.to_le_bytes(),
        ] {
            f.write_str(&hex::encode(field))?;
        }
        Ok(())
    }
}
