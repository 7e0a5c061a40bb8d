//! What a client hears whose token is not served: never anything that it could take for success (docs/token.md section 6).

use forebay_proto::s3::error::ErrorCode;
use forebay_store::Store;
use http::header::{HeaderMap, HeaderValue, USER_AGENT};

use super::moved::{ACCEPT, BYTES_TRANSFERRED, PROTOCOL_STATUS, REPLY};
use crate::door::{Asked, Door};
use crate::headers;
use crate::ingest::Inbound;
use crate::reply::Reply;
use crate::router::Operation;
use crate::status::{Manner, Outcome, Refusal};

pub(super) const UNSUPPORTED: HeaderValue = HeaderValue::from_static("unsupported");
const NOT_SERVED: HeaderValue = HeaderValue::from_static("501");
/// What an open door takes.
const ACCEPTED: HeaderValue = HeaderValue::from_static("ort1");
/// The client that falls back at once only when a decline is told with a 2xx status.
const AS_OK_AGENT: &str = "CRTS3NativeClient";

/// Why a request with a token goes no further.
#[derive(Debug)]
pub(super) enum Halt {
    /// Its token is not served here.
    Declined {
        why: &'static str,
        /// Whether the answer names the protocol as unsupported, as clients of hipObject expect.
        protocol: bool,
    },
    /// It is refused.
    Refused(Refusal),
}

impl Halt {
    pub(super) fn declined(why: &'static str) -> Halt {
        Halt::Declined {
            why,
            protocol: false,
        }
    }
}

impl<R: Into<Refusal>> From<R> for Halt {
    fn from(refusal: R) -> Halt {
        Halt::Refused(refusal.into())
    }
}

/// A refusal with the number of its status for the client's library, and no byte moved unless it says otherwise; of a token that was
/// not read nothing is said of bytes.
pub(super) fn marked(refusal: Refusal) -> Refusal {
    let told = |name| {
        let headers = refusal.headers.as_ref();
        headers.is_some_and(|headers| headers.contains_key(name))
    };
    let (reply, bytes) = (told(REPLY), told(BYTES_TRANSFERRED));
    let status = refusal.error.status();
    let refusal = match reply {
        true => refusal,
        false => refusal.header(REPLY, HeaderValue::from(status)),
    };
    match bytes || refusal.code() == ErrorCode::InvalidRDMAToken {
        true => refusal,
        false => refusal.header(BYTES_TRANSFERRED, HeaderValue::from(0u64)),
    }
}

/// The answer to a declined request.
pub(super) async fn answer<S: Store>(
    door: &Door<S>,
    asked: &Asked<'_>,
    inbound: &mut Inbound,
    why: &'static str,
    protocol: bool,
) -> Outcome<Reply<S::Body>> {
    let request = &asked.head.headers;
    let as_ok = takes_ok(request);
    // For a GET any 2xx says that the body is the object: so it has to be it.
    if asked.op == Operation::GetObject && (as_ok || door.config.decline_with_body) {
        let mut reply = door.perform(asked, inbound).await.map_err(marked)?;
        reply.headers_mut().insert(REPLY, NOT_SERVED);
        return Ok(reply);
    }
    let refusal = match as_ok {
        true => Refusal::from(ErrorCode::RDMANotSupported).manner(Manner::AsOk),
        false => Refusal::new(ErrorCode::NotImplemented, why),
    };
    Err(spoken(refusal, door.direct.is_some(), protocol))
}

/// Adds what every decline says.
pub(super) fn spoken(refusal: Refusal, open: bool, protocol: bool) -> Refusal {
    let mut refusal = refusal.header(REPLY, NOT_SERVED);
    if open {
        refusal = refusal.header(ACCEPT, ACCEPTED);
    }
    match protocol {
        true => refusal.header(PROTOCOL_STATUS, UNSUPPORTED),
        false => refusal,
    }
}

/// Whether this is the one client that takes nothing but `200 OK` for a reason to send its body (aws-c-s3's); every other would take it
/// for success.
fn takes_ok(request: &HeaderMap) -> bool {
    headers::text(request, &USER_AGENT).is_some_and(|agent| agent.contains(AS_OK_AGENT))
}
