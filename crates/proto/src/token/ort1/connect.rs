//! What the connect request and its answer say in headers: endpoints and limits. (The proof inside a new link is made by the
//! fabric, which keeps the sessions.)

use std::fmt;

use super::key;
use super::{Transport, take};
use crate::token::TokenError;

const ENDPOINT_BYTES: usize = 36;

/// One end of a connection between adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// By what it speaks.
    pub transport: Transport,
    /// The number of its port.
    pub port: u8,
    /// The largest packet, as verbs number them: 1 (256 bytes) to 5 (4096).
    pub path_mtu: u8,
    /// The queue pair, or the DC target.
    pub qpn: u32,
    /// The first packet sequence number: 24 bits, random, not 0.
    pub psn: u32,
    /// The local identifier of its port.
    pub lid: u16,
    /// The partition key.
    pub pkey: u16,
    /// Reads in flight that it answers.
    pub responder_depth: u8,
    /// Reads in flight that it begins.
    pub initiator_depth: u8,
    /// The global identifier of its port.
    pub gid: [u8; 16],
}

impl Endpoint {
    /// Reads a header's value.
    ///
    /// # Errors
    /// [`TokenError::Malformed`]; [`TokenError::Unsupported`] for another version of the block.
    pub fn parse(text: &str) -> Result<Endpoint, TokenError> {
        let malformed = TokenError::Malformed;
        let mut block = [0; ENDPOINT_BYTES];
        if key::unbase64(text, &mut block)?.len() != ENDPOINT_BYTES {
            return Err(malformed("the endpoint is not 36 bytes long"));
        }
        let mut rest = &block[..];
        let [version, transport, port, path_mtu] = take(&mut rest);
        if version != 1 {
            return Err(TokenError::Unsupported(
                "the endpoint is of another version",
            ));
        }
        let endpoint = Endpoint {
            transport: Transport::from_number(transport)?,
            port,
            path_mtu,
            qpn: u32::from_be_bytes(take(&mut rest)),
            psn: u32::from_be_bytes(take(&mut rest)),
            lid: u16::from_be_bytes(take(&mut rest)),
            pkey: u16::from_be_bytes(take(&mut rest)),
            responder_depth: take::<1>(&mut rest)[0],
            initiator_depth: take::<1>(&mut rest)[0],
            gid: {
                let [0, 0] = take(&mut rest) else {
                    return Err(malformed("reserved bytes of the endpoint are set"));
                };
                take(&mut rest)
            },
        };
        if !(1..=5).contains(&endpoint.path_mtu) {
            return Err(malformed("the path MTU is none that verbs have"));
        }
        if !(1..1 << 24).contains(&endpoint.psn) {
            return Err(malformed("the packet sequence number is out of bounds"));
        }
        Ok(endpoint)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut block = [0; ENDPOINT_BYTES];
        let mut at = 0;
        for field in [
            &[1, self.transport.number(), self.port, self.path_mtu][..],
            &self.qpn.to_be_bytes(),
            &self.psn.to_be_bytes(),
            &self.lid.to_be_bytes(),
            &self.pkey.to_be_bytes(),
            &[self.responder_depth, self.initiator_depth, 0, 0],
            &self.gid,
        ] {
            block[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        f.write_str(&base64_simd::URL_SAFE_NO_PAD.encode_to_string(block))
    }
}

/// What a session may do: `max=..;inflight=..;idle=..;lease=..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that one token moves.
    pub bytes_max: u64,
    /// The most tokens being served at once.
    pub in_flight: u32,
    /// After how many seconds without a token the session ends.
    pub idle_s: u32,
    /// The longest lease of a token, in milliseconds.
    pub lease_ms: u32,
}

impl Limits {
    /// Reads a header's value; keys that are not known are passed over.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] when one of the four is missing, doubled or no number.
    pub fn parse(text: &str) -> Result<Limits, TokenError> {
        let malformed = TokenError::Malformed("the limits are not four numbers");
        let mut found = [None; 4];
        for pair in text.split(';') {
            let (name, value) = pair.trim_ascii().split_once('=').ok_or(malformed)?;
            let Some(at) = ["max", "inflight", "idle", "lease"]
                .iter()
                .position(|known| *known == name)
            else {
                continue;
            };
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let value = value.parse::<u64>().ok().filter(|_| digits);
            if found[at].replace(value.ok_or(malformed)?).is_some() {
                return Err(malformed);
            }
        }
        let small = |value: Option<u64>| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .ok_or(malformed)
        };
        Ok(Limits {
            bytes_max: found[0].ok_or(malformed)?,
            in_flight: small(found[1])?,
            idle_s: small(found[2])?,
            lease_ms: small(found[3])?,
        })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits {
            bytes_max,
            in_flight,
            idle_s,
            lease_ms,
        } = self;
        write!(
            f,
            "max={bytes_max};inflight={in_flight};idle={idle_s};lease={lease_ms}"
        )
    }
}
