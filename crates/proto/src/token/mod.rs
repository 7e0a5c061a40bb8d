//! Tokens that name a client's memory in an S3 request: every published dialect, told apart by shape, and the open one.
//!
//! A request that carries a token has no body: the server moves the payload straight into the memory that the token names
//! (GET) or out of it (PUT, UploadPart). Two answers must never be mistaken for each other: *malformed* (400) and *not
//! served here* (501, so that the client falls back by itself), hence the two kinds of [`TokenError`].
//!
//! - [`read`]: the value of a token header, by shape;
//! - [`ort1`]: the open RDMA token, version 1, with its keys, its tag, and the connect exchange;
//! - [`dc`]: cuObject's descriptor of a DC target, with and without suffix, and the laboratory's free widths;
//! - [`hip`]: hipObject's binary token; [`hipobj`]: the headers of `hipobj-rc-v2`;
//! - [`rcshim`]: elbencho's token after its connect step;
//! - [`carrier`]: headers of other vendors that carry a DC descriptor;
//! - [`grant`]: a part of a session's memory, lent to whoever carries it; gRPC calls name memory by it.
//!
//! Nothing here allocates more than 512 bytes for a token, whatever it says. A token that was read is well formed and not
//! more: whether its memory may be touched is for the fabric to know.

pub mod carrier;
pub mod dc;
mod digits;
pub mod grant;
pub mod hip;
pub mod hipobj;
pub mod names;
pub mod ort1;
pub mod rcshim;

#[cfg(test)]
mod tests;

pub use digits::{hex16, parse_hex16};

use dc::{Descriptor, Lab};
use hip::HipToken;
use rcshim::RcShim;

/// The longest value of a token header, in bytes.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Why a token is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token breaks its own grammar, or says what cannot be: `400 InvalidRDMAToken`.
    #[error("{0}")]
    Malformed(&'static str),
    /// The token may be right, and means something that is not known here: decline, so that its client falls back.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// A dialect, known by the shape of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The open token, version 1.
    Ort1,
    /// The open token of another version.
    OrtOther,
    /// elbencho's RC shim.
    RcShim,
    /// cuObject's descriptor, 81 characters.
    Dc81,
    /// The same with an address and a size behind it.
    Dc115,
    /// hipObject's binary token, with or without a suffix.
    Hip88,
    /// Seven fields of free widths, as test rigs send them.
    Lab,
    /// Anything else.
    Unknown,
}

/// A token that follows the grammar of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a token is read once a request and never kept in numbers; a box would be an allocation"
)]
pub enum Token {
    /// The open token, version 1, its tag not yet verified.
    Ort1(ort1::Sealed),
    /// The open token of this other version.
    OrtOther(u32),
    /// elbencho's RC shim.
    RcShim(RcShim),
    /// cuObject's descriptor, its window already narrowed by a suffix.
    Dc(Descriptor),
    /// hipObject's token.
    Hip(HipToken),
    /// Seven fields of free widths.
    Lab(Lab),
    /// A scheme that is not known.
    Unknown,
}

/// Cuts what may stand around a token: white space, and one trailing `;` that some clients leave.
fn trimmed(value: &[u8]) -> &[u8] {
    let value = trim_ows(value);
    trim_ows(value.strip_suffix(b";").unwrap_or(value))
}

/// Optional white space of HTTP: spaces and tabs, nothing else.
fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The token as text, when its length and its bytes are those of a token at all.
fn text(value: &[u8]) -> Result<&str, TokenError> {
    if value.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::Malformed(
            "the token is longer than 512 characters",
        ));
    }
    let value = trimmed(value);
    if value.is_empty() {
        return Err(TokenError::Malformed("the token is empty"));
    }
    if !value.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Malformed(
            "the token holds what is no visible character",
        ));
    }
    std::str::from_utf8(value).map_err(|_| TokenError::Malformed("the token is not text"))
}

/// Tells the dialect of a token by its shape alone.
///
/// # Errors
/// [`TokenError::Malformed`] for what is too long, empty, or holds anything but visible ASCII.
pub fn detect(value: &[u8]) -> Result<Class, TokenError> {
    text(value).map(class)
}

fn class(text: &str) -> Class {
    if let Some(major) = ort1::major(text) {
        return match major {
            1 => Class::Ort1,
            _ => Class::OrtOther,
        };
    }
    let fields = text.split(':').count();
    if text.starts_with("rc:") && fields == 5 {
        return Class::RcShim;
    }
    if hip::is_shaped(text) {
        return Class::Hip88;
    }
    match fields {
        7 if dc::is_shaped(text, &dc::WIDTHS) => Class::Dc81,
        9 if dc::is_shaped(text, &dc::WIDTHS_WITH_SUFFIX) => Class::Dc115,
        7 if dc::is_lab(text) => Class::Lab,
        _ => Class::Unknown,
    }
}

/// Reads a token of any dialect.
///
/// # Errors
/// [`TokenError::Malformed`] for a recognised shape with contents that cannot be; [`TokenError::Unsupported`] for an open
/// token whose critical parts are not known.
pub fn read(value: &[u8]) -> Result<Token, TokenError> {
    let text = text(value)?;
    Ok(match class(text) {
        Class::Ort1 => Token::Ort1(ort1::Sealed::parse(text)?),
        Class::OrtOther => Token::OrtOther(ort1::major(text).unwrap_or(u32::MAX)),
        Class::RcShim => Token::RcShim(RcShim::parse(text)?),
        Class::Dc81 | Class::Dc115 => Token::Dc(Descriptor::parse(text)?),
        Class::Hip88 => Token::Hip(HipToken::parse(text)?),
        Class::Lab => Token::Lab(Lab::parse(text)?),
        Class::Unknown => Token::Unknown,
    })
}
