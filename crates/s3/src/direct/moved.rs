//! The proof behind a success, and the answer that only it allows.

use forebay_fabric::Placed;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use forebay_proto::token::names;

/// All bytes of a request are where they belong, and none is on its way.
#[derive(Debug)]
pub(super) struct Moved {
    bytes: u64,
}

impl Moved {
    /// Bytes that were written to the client.
    pub(super) fn placed(bytes: u64, _proof: Placed) -> Moved {
        Moved { bytes }
    }

    /// Bytes that were read from the client: every read brought back its buffer, that much longer.
    pub(super) fn taken(bytes: u64) -> Moved {
        Moved { bytes }
    }

    /// How many there are.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says so in the answer (section 6.3); returns how many bytes there were.
    pub(super) fn tell(self, status: http::StatusCode, response: &mut HeaderMap) -> u64 {
        response.insert(REPLY, HeaderValue::from(status.as_u16()));
        response.insert(BYTES_TRANSFERRED, HeaderValue::from(self.bytes));
        self.bytes
    }
}

pub(super) const TOKEN: HeaderName = HeaderName::from_static(names::TOKEN);
pub(super) const REPLY: HeaderName = HeaderName::from_static(names::REPLY);
pub(super) const BYTES_TRANSFERRED: HeaderName = HeaderName::from_static(names::BYTES_TRANSFERRED);
pub(super) const CHECKSUM: HeaderName = HeaderName::from_static(names::CHECKSUM);
pub(super) const ACK: HeaderName = HeaderName::from_static(names::ACK);
pub(super) const ACCEPT: HeaderName = HeaderName::from_static(names::ACCEPT);
pub(super) const AGENT: HeaderName = HeaderName::from_static(names::AGENT);
pub(super) const PROTOCOL: HeaderName = HeaderName::from_static(names::PROTOCOL);
pub(super) const PROTOCOL_STATUS: HeaderName = HeaderName::from_static(names::PROTOCOL_STATUS);
