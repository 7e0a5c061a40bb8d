//! cuObject's descriptor of a DC target: `ADDR16:SIZE8:RKEY8:LID4:DCTN6:G1:GID32`, 81 characters, and its 115-character
//! form with an address and a size behind it.

use std::fmt;

use super::TokenError;
use super::digits::{self, check_window};
use crate::hex;

/// The widths of the fields.
pub(super) const WIDTHS: [usize; 7] = [16, 8, 8, 4, 6, 1, 32];
/// The same with the suffix.
pub(super) const WIDTHS_WITH_SUFFIX: [usize; 9] = [16, 8, 8, 4, 6, 1, 32, 16, 16];

/// A window of a client's memory behind a DC target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The virtual address of its first byte.
    pub address: u64,
    /// Its length in bytes, at most `u32::MAX` on the wire; never 0.
    pub size: u64,
    /// The remote key.
    pub rkey: u32,
    /// The local identifier of the port; 0 on RoCE.
    pub lid: u16,
    /// The number of the DC target, 24 bits, never 0.
    pub dctn: u32,
    /// The global identifier of the port, when it has one.
    pub gid: Option<[u8; 16]>,
}

pub(super) fn is_shaped(text: &str, widths: &[usize]) -> bool {
    text.split(':').map(str::len).eq(widths.iter().copied())
}

impl Descriptor {
    /// Reads both forms; a suffix narrows the window that it must lie in.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<Descriptor, TokenError> {
        let malformed = TokenError::Malformed;
        let not_hex = malformed("a field of the descriptor is not hexadecimal");
        let mut fields = text.split(':');
        let mut next = |width| {
            let field = fields.next().ok_or(malformed("a field is missing"))?;
            match field.len() == width {
                true => Ok(field),
                false => Err(malformed("a field has another width")),
            }
        };
        let number = |field: &str| digits::number(field).ok_or(not_hex);
        let mut address = number(next(16)?)?;
        let mut size = number(next(8)?)?;
        let rkey = number(next(8)?)? as u32;
        let lid = number(next(4)?)? as u16;
        let dctn = number(next(6)?)? as u32;
        let present = next(1)?;
        let gid: [u8; 16] = digits::bytes(next(32)?).ok_or(not_hex)?;
        let gid = match present {
            "1" if gid == [0; 16] => {
                return Err(malformed("the GID is said to be there and is zero"));
            }
            "1" => Some(gid),
            // Without a GID a port is found by its LID, which on RoCE is 0.
            "0" if lid == 0 => return Err(malformed("there is neither a GID nor a LID")),
            "0" => None,
            _ => return Err(malformed("the mark of the GID is neither 0 nor 1")),
        };
        if dctn == 0 {
            return Err(malformed("the number of the DC target is 0"));
        }
        check_window(address, size)?;
        if let Some(suffix) = fields.next() {
            let inner = digits::fixed(suffix, 16).ok_or(not_hex)?;
            let length = fields.next().and_then(|field| digits::fixed(field, 16));
            let length = length.ok_or(not_hex)?;
            (address, size) = narrowed((address, size), (inner, length))?;
        }
        match fields.next() {
            None => Ok(Descriptor {
                address,
                size,
                rkey,
                lid,
                dctn,
                gid,
            }),
            Some(_) => Err(malformed("there are more fields than there may be")),
        }
    }
}

/// The inner window, which must lie inside the outer one.
pub(super) fn narrowed(outer: (u64, u64), inner: (u64, u64)) -> Result<(u64, u64), TokenError> {
    check_window(inner.0, inner.1)?;
    // Neither sum overflows: both windows were checked.
    match inner.0 >= outer.0 && inner.0 + inner.1 <= outer.0 + outer.1 {
        true => Ok(inner),
        false => Err(TokenError::Malformed(
            "the suffix lies outside the window that it narrows",
        )),
    }
}

/// The form without suffix, as clients write it.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Descriptor {
            address,
            size,
            rkey,
            lid,
            dctn,
            gid,
        } = self;
        let present = u8::from(gid.is_some());
        let gid = hex::encode(&gid.unwrap_or_default());
        write!(
            f,
            "{address:016x}:{size:08x}:{rkey:08x}:{lid:04x}:{dctn:06x}:{present}:{gid}"
        )
    }
}

/// The same seven fields in free widths, as some servers' tests send them; for laboratories alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lab {
    /// Address, size, remote key, LID, DC target, mark of the GID, and the low 64 bits of the GID.
    pub fields: [u64; 7],
}

pub(super) fn is_lab(text: &str) -> bool {
    text.split(':')
        .all(|field| !field.is_empty() && field.bytes().all(|byte| hex::digit(byte).is_some()))
}

impl Lab {
    /// Reads seven fields, of which all but the GID have at most 16 digits.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn parse(text: &str) -> Result<Lab, TokenError> {
        let malformed = TokenError::Malformed("a field of the descriptor is not a number");
        let mut lab = Lab { fields: [0; 7] };
        let mut fields = text.split(':');
        for (at, value) in lab.fields.iter_mut().enumerate() {
            let field = fields.next().ok_or(malformed)?;
            let low = match at {
                6 => field.get(field.len().saturating_sub(16)..).unwrap_or(""),
                _ => field,
            };
            *value = digits::number(low).ok_or(malformed)?;
        }
        match fields.next() {
            None => check_window(lab.fields[0], lab.fields[1]).map(|()| lab),
            Some(_) => Err(malformed),
        }
    }
}
