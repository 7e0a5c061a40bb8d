//! Other vendors' headers that carry a DC descriptor. They are read only where a listener says so; and whether it does or
//! not, a write that has one of them is never taken for an empty object.
//!
//! One of them has a name that is metadata of the user to S3: it is nothing else where a listener does not read these headers.

use super::TokenError;
use super::dc::{Descriptor, WIDTHS, is_shaped, narrowed};

/// Dell ObjectScale's.
pub const INFO: &str = "x-rdma-info";
/// Scality's.
pub const SCALITY: &str = "x-scal-rdma";
/// Dell's storage-performance-tool's.
pub const METADATA: &str = "x-amz-meta-rdma-token";
/// versitygw's first protocol: the descriptor.
pub const CUOBJ: &str = "x-cuobj-rdma-descr";
/// The length of the window there, in decimal.
pub const CUOBJ_LENGTH: &str = "x-cuobj-content-length";
/// The address of the window there, in decimal.
pub const CUOBJ_START: &str = "x-cuobj-remote-buf-start";

/// The headers that stand for a token.
pub const CARRIERS: [&str; 4] = [INFO, SCALITY, CUOBJ, METADATA];

/// Reads the descriptor of one carrier, the other headers of the request being found by `header`.
///
/// # Errors
/// [`TokenError::Unsupported`] for what is no descriptor of 81 characters; [`TokenError::Malformed`] for one that cannot be.
pub fn read<'a>(
    name: &str,
    value: &[u8],
    header: impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<Descriptor, TokenError> {
    let text = super::text(value)?;
    if !is_shaped(text, &WIDTHS) {
        return Err(TokenError::Unsupported(
            "the header does not carry a descriptor of 81 characters",
        ));
    }
    let mut descriptor = Descriptor::parse(text)?;
    if name == CUOBJ {
        let number = |name| decimal(header(name)?);
        let window = (
            number(CUOBJ_START).unwrap_or(Ok(descriptor.address))?,
            number(CUOBJ_LENGTH).unwrap_or(Ok(descriptor.size))?,
        );
        let outer = (descriptor.address, descriptor.size);
        (descriptor.address, descriptor.size) = narrowed(outer, window)?;
    }
    Ok(descriptor)
}

fn decimal(value: &[u8]) -> Option<Result<u64, TokenError>> {
    let number = value
        .iter()
        .try_fold(0u64, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        })
        .filter(|_| !value.is_empty());
    Some(number.ok_or(TokenError::Malformed(
        "a number beside the descriptor is not decimal",
    )))
}
