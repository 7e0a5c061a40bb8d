//! The control requests of `hipobj-rc-v2`: PREPARE names the client's queue pair and what it wants, READY its memory,
//! CANCEL gives up. Digits are read in both cases, as servers emit both.

use super::TokenError;
use super::digits;
use super::hip::HipToken;

/// The most bytes that one transfer moves.
pub const SIZE_MAX: u64 = (1 << 31) - 1;
/// PREPARE.
pub const PREPARE_PATH: &str = "/.hipobj-rc/prepare";
/// READY.
pub const READY_PATH: &str = "/.hipobj-rc/ready";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The server writes to the client.
    Get,
    /// The client writes to the server.
    Put,
}

/// A PREPARE request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// The client's queue pair.
    pub token: HipToken,
    /// Its first packet sequence number, 24 bits, never 0.
    pub psn: u32,
    /// Comes back as the immediate.
    pub cookie: u32,
    /// What is to be done.
    pub op: Op,
    /// `/bucket/key[?query]`, percent-encoded.
    pub target: &'a str,
    /// How many bytes, 1 to [`SIZE_MAX`].
    pub size: u64,
    /// Where in the object.
    pub offset: u64,
}

/// A READY request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// What PREPARE answered.
    pub session: [u8; 16],
    /// What PREPARE said.
    pub cookie: u32,
    /// The client's queue pair, again.
    pub qpn: u32,
    /// The client's memory: address and remote key. Not needed to put.
    pub memory: Option<(u64, u32)>,
}

fn missing() -> TokenError {
    TokenError::Malformed("a header of the control request is missing")
}

fn fixed(text: &str, width: usize) -> Result<u32, TokenError> {
    digits::fixed(text, width)
        .and_then(|number| u32::try_from(number).ok())
        .ok_or(TokenError::Malformed(
            "a number of the control request has not its digits",
        ))
}

fn bare(text: &str, digits_max: usize) -> Result<u64, TokenError> {
    (text.len() <= digits_max)
        .then(|| digits::number(text))
        .flatten()
        .ok_or(TokenError::Malformed(
            "a number of the control request is not hexadecimal",
        ))
}

fn decimal(text: &str) -> Result<u64, TokenError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or(TokenError::Malformed(
            "a number of the control request is not decimal",
        ))
}

impl<'a> Prepare<'a> {
    /// Reads the headers, found by their names in lower case.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn read(header: impl Fn(&str) -> Option<&'a str>) -> Result<Prepare<'a>, TokenError> {
        let need = |name| header(name).ok_or(missing());
        let prepare = Prepare {
            token: HipToken::identity(need("x-amz-rdma-token")?)?,
            psn: fixed(need("x-amz-rdma-psn")?, 6)?,
            cookie: fixed(need("x-amz-rdma-cookie")?, 8)?,
            op: match need("x-amz-rdma-op")? {
                "GET" => Op::Get,
                "PUT" => Op::Put,
                _ => {
                    return Err(TokenError::Malformed(
                        "the operation is neither GET nor PUT",
                    ));
                }
            },
            target: need("x-amz-rdma-target")?,
            size: decimal(need("x-amz-rdma-size")?)?,
            offset: header("x-amz-rdma-offset").map_or(Ok(0), decimal)?,
        };
        if prepare.psn == 0 {
            return Err(TokenError::Malformed("the packet sequence number is 0"));
        }
        if !(1..=SIZE_MAX).contains(&prepare.size)
            || prepare.offset.checked_add(prepare.size).is_none()
        {
            return Err(TokenError::Malformed("the size is out of bounds"));
        }
        match prepare.target.starts_with('/') {
            true => Ok(prepare),
            false => Err(TokenError::Malformed("the target is no path")),
        }
    }
}

impl Ready {
    /// Reads the headers, found by their names in lower case.
    ///
    /// # Errors
    /// [`TokenError::Malformed`].
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Result<Ready, TokenError> {
        let need = |name| header(name).ok_or(missing());
        let session = digits::parse_hex16(need("x-amz-rdma-session")?).ok_or(
            TokenError::Malformed("the session is not 32 hexadecimal digits"),
        )?;
        let memory = match (header("x-amz-rdma-mr-addr"), header("x-amz-rdma-mr-rkey")) {
            (None, None) => None,
            (Some(address), Some(rkey)) => Some((bare(address, 16)?, bare(rkey, 8)? as u32)),
            _ => return Err(missing()),
        };
        Ok(Ready {
            session,
            cookie: fixed(need("x-amz-rdma-cookie")?, 8)?,
            qpn: bare(need("x-amz-rdma-qpn")?, 8)? as u32,
            memory,
        })
    }
}
