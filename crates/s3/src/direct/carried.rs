//! A request that carries a token, from its headers to its answer.

use std::sync::Arc;

use forebay_fabric::shm::REGIONS;
use forebay_fabric::{Connection, Fabric, Link, RemoteRange, Session, SessionId, Stag};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::sigv4::{EMPTY_SHA256, Payload};
use forebay_proto::token::hip::HipTransport;
use forebay_proto::token::ort1::{Covered, Direction, EXPIRY_S_MAX, OpenToken, Sealed, Transport};
use forebay_proto::token::{self, Token, TokenError, carrier};
use forebay_store::Store;
use http::HeaderMap;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue, RANGE, TRANSFER_ENCODING,
};
use tokio::time::Instant;

use super::decline::{self, Halt, marked};
use super::lender::Lender;
use super::moved::{ACK, AGENT, TOKEN};
use super::transfer::{Lease, Transfer};
use super::{get, put};
use crate::auth::Caller;
use crate::claims::Proof;
use crate::door::{Asked, Door};
use crate::ingest::Inbound;
use crate::reply::Reply;
use crate::router::Operation;
use crate::status::{Outcome, Refusal};
use crate::{headers, presigned};

/// How far clocks may be apart, in seconds.
const SKEW_S: u64 = 5;
const CUOBJ: &[u8] = b"cuobj";

/// A request that has a token, or another vendor's header that stands for one.
pub(crate) struct Carried(());

impl Carried {
    /// Looks for the headers that matter to the operations with a payload; the others ignore them.
    pub(crate) fn of(
        op: Operation,
        request: &HeaderMap,
        lender: Option<&Lender>,
    ) -> Option<Carried> {
        let payload = matches!(
            op,
            Operation::GetObject | Operation::PutObject | Operation::UploadPart
        );
        (payload && carries(request, lender)).then_some(Carried(()))
    }

    /// A refusal from before the operation was known; with its number, where the client may be waiting for one (section 6.3).
    pub(crate) fn refused(
        refusal: Refusal,
        request: &HeaderMap,
        lender: Option<&Lender>,
    ) -> Refusal {
        match carries(request, lender) {
            true => marked(refusal),
            false => refusal,
        }
    }

    /// Serves, declines or refuses it.
    pub(crate) async fn serve<S: Store>(
        self,
        door: &Door<S>,
        asked: &Asked<'_>,
        inbound: &mut Inbound,
    ) -> Outcome<Reply<S::Body>> {
        let arrived = Instant::now();
        let halt = match &door.direct {
            None => Halt::declined("Payloads are not moved by remote memory access here."),
            Some(lender) => match attempt(door, lender, asked, inbound, arrived).await {
                Ok(reply) => return Ok(reply),
                Err(halt) => halt,
            },
        };
        match halt {
            Halt::Refused(refusal) => Err(marked(refusal)),
            Halt::Declined { why, protocol } => {
                decline::answer(door, asked, inbound, why, protocol).await
            }
        }
    }
}

fn carries(request: &HeaderMap, lender: Option<&Lender>) -> bool {
    let vendors = lender.is_some_and(|lender| lender.direct.vendor_carriers);
    request.keys().any(|name| is_carrier(name, vendors))
}

/// Told by length first: this runs for every request with a payload.
fn is_carrier(name: &HeaderName, vendors: bool) -> bool {
    let name = name.as_str();
    match name.len() {
        11 => name == carrier::INFO || name == carrier::SCALITY,
        16 => name == token::names::TOKEN,
        18 => name == carrier::CUOBJ,
        21 => vendors && name == carrier::METADATA,
        _ => false,
    }
}

async fn attempt<S: Store>(
    door: &Door<S>,
    lender: &Lender,
    asked: &Asked<'_>,
    inbound: &mut Inbound,
    arrived: Instant,
) -> Result<Reply<S::Body>, Halt> {
    let request = &asked.head.headers;
    let (caller, proof) = door.identify(asked.head, asked.now_ms)?;
    door.begin(&caller, inbound)?;
    let Caller::Key(key) = &caller else {
        return Err(Halt::declined("A token needs a signed request."));
    };
    let sealed = token_of(lender, request)?;
    check_request(asked.op, request, &proof)?;
    asked.connection.bind_request();
    check_token(lender, sealed.unverified())?;
    let asked_ms = sealed.unverified().lease_ms;
    let lease = Lease::new(arrived, lender.direct.lease, asked_ms);
    let joined = presigned::joined(asked.op, &proof, asked.query, request)?;
    let mut call = door.call(asked, joined.as_ref(), &caller);
    lease.before(call.admit(asked.op)).await??;

    let session =
        lender
            .direct
            .sessions
            .find_of(SessionId(*sealed.session()), &key.tenant, &key.id);
    let (session, token) = verified(session, &sealed, asked)?;
    check_direction(asked.op, token)?;
    let now_s = asked.now_ms / 1000;
    let expiry_s = u64::from(token.expiry_s);
    if expiry_s + SKEW_S < now_s || expiry_s > now_s + u64::from(EXPIRY_S_MAX) + SKEW_S {
        return Err(ErrorCode::RDMATokenExpired.into());
    }
    let stag = stag_of(token).ok_or_else(|| invalid("There is no such slot."))?;
    let link = link_of(&session, token).ok_or_else(not_yours)?;
    if !session.fresh(token.sequence) {
        return Err(ErrorCode::RDMATokenReplayed.into());
    }
    let fabric = link.fabric();
    let mut serving = lender
        .begin(&session, token.direction, fabric, token.total())
        .ok_or(ErrorCode::SlowDown)?;
    renew(lender, &session);
    let transfer = Transfer::new(link, windows(token, stag), lease, &door.demand);
    let outcome = match asked.op {
        Operation::GetObject => get::get(&call, transfer, &mut serving).await,
        op => put::put(op, &call, transfer, token.promise).await,
    };
    let ack = headers::value(format!("{:016x}", token.sequence).as_bytes());
    match outcome {
        Ok((mut reply, bytes)) => {
            count(door, &session, fabric, asked.op, bytes);
            let response = reply.headers_mut();
            response.insert(ACK, ack);
            if let Some(agent) = request.get(AGENT) {
                response.insert(AGENT, agent.clone());
            }
            Ok(reply)
        }
        Err(refusal) => Err(refusal.header(ACK, ack).into()),
    }
}

/// The one token of a request, when it is one that is served here (section 6.1).
fn token_of(lender: &Lender, request: &HeaderMap) -> Result<Sealed, Halt> {
    let mut tokens = request.get_all(TOKEN).iter();
    let read = |name: &str| name != carrier::METADATA || lender.direct.vendor_carriers;
    let vendor = carrier::CARRIERS
        .into_iter()
        .find(|name| request.contains_key(*name) && read(name));
    let first = match (tokens.next(), tokens.next(), vendor) {
        (Some(value), None, None) => value,
        (None, _, Some(vendor)) => return Err(foreign(lender, request, vendor)),
        _ => return Err(invalid("There is more than one token.").into()),
    };
    if request
        .get(AGENT)
        .is_some_and(|agent| agent.as_bytes() != CUOBJ)
    {
        return Err(Halt::declined("Tokens of this agent are not served."));
    }
    match token::read(first.as_bytes()).map_err(unread)? {
        Token::Ort1(sealed) => Ok(sealed),
        Token::OrtOther(_) => Err(Halt::declined(
            "Only version 1 of the open token is served.",
        )),
        Token::RcShim(_) => Err(Halt::declined("There is no such connection.")),
        Token::Hip(hip) => Err(Halt::Declined {
            why: "There is no adapter for hipObject's transports here.",
            protocol: hip.transport == HipTransport::Rc,
        }),
        Token::Dc(_) => Err(Halt::declined("There is no adapter for DC targets here.")),
        Token::Lab(_) => Err(invalid("The fields of the descriptor have other widths.").into()),
        Token::Unknown => Err(Halt::declined("Tokens of this kind are not known.")),
    }
}

/// A vendor's header is checked where it is read at all, and declined: what it names needs an adapter.
fn foreign(lender: &Lender, request: &HeaderMap, name: &'static str) -> Halt {
    let why = "There is no adapter for DC targets here.";
    let mut values = request.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return invalid("There is more than one token.").into();
    };
    if !lender.direct.vendor_carriers {
        return Halt::declined(why);
    }
    let beside = |name: &str| request.get(name).map(HeaderValue::as_bytes);
    match carrier::read(name, value.as_bytes(), beside) {
        Ok(_) => Halt::declined(why),
        Err(error) => unread(error),
    }
}

fn unread(error: TokenError) -> Halt {
    match error {
        TokenError::Malformed(why) => invalid(why).into(),
        TokenError::Unsupported(why) => Halt::declined(why),
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(ErrorCode::InvalidRDMAToken, why)
}

/// The headers of a request whose payload is elsewhere (section 6.2, rule 2).
fn check_request(op: Operation, request: &HeaderMap, proof: &Proof) -> Outcome<()> {
    let wrong = |why: &str| Err(Refusal::new(ErrorCode::InvalidRequest, why));
    let empty = match proof.payload {
        Payload::Unsigned => true,
        Payload::Sha256(hash) => {
            forebay_proto::hex::decode::<32>(EMPTY_SHA256.as_bytes()) == Some(hash)
        }
        Payload::SignedChunks { .. } | Payload::UnsignedChunksTrailer => false,
    };
    if !empty {
        return wrong("The signature of a request with a token covers an empty body or none.");
    }
    let chunked = headers::text(request, &CONTENT_ENCODING)
        .is_some_and(|encoding| encoding.to_ascii_lowercase().contains("aws-chunked"));
    if chunked || request.contains_key(headers::DECODED_CONTENT_LENGTH) {
        return wrong("A request with a token has no body in chunks.");
    }
    if request.contains_key(headers::CONTENT_MD5) {
        return wrong("Content-MD5 is about a body, and a request with a token has none.");
    }
    if request.contains_key(TRANSFER_ENCODING)
        || headers::number::<u64>(request, &CONTENT_LENGTH)?.unwrap_or(0) != 0
    {
        return wrong("A request with a token has no body.");
    }
    if op != Operation::GetObject && !request.contains_key(CONTENT_LENGTH) {
        return Err(ErrorCode::MissingContentLength.into());
    }
    Ok(())
}

/// What can be said of a token before it is known whose it is.
fn check_token(lender: &Lender, token: &OpenToken) -> Result<(), Halt> {
    if token.total() > lender.direct.bytes_max {
        return Err(invalid("The token is longer than its session allows.").into());
    }
    match fabric_of(token.transport) {
        Some(_) => Ok(()),
        None => Err(Halt::declined(
            "There is no adapter for this transport here.",
        )),
    }
}

/// A token that was made for this request moves bytes as the request does. One that was made for another request hears nothing of that.
fn check_direction(op: Operation, token: &OpenToken) -> Outcome<()> {
    let direction = match op {
        Operation::GetObject => Direction::Write,
        _ => Direction::Read,
    };
    match token.direction == direction {
        true => Ok(()),
        false => Err(invalid("The token is for the other direction.")),
    }
}

fn fabric_of(transport: Transport) -> Option<Fabric> {
    match transport {
        Transport::Shm => Some(Fabric::Shm),
        Transport::Iwarp => Some(Fabric::Iwarp),
        Transport::Rc | Transport::Dc => None,
    }
}

/// Counts what was moved.
fn count<S: Store>(door: &Door<S>, session: &Session, fabric: Fabric, op: Operation, bytes: u64) {
    match op {
        Operation::GetObject => {
            session.traffic(fabric).sent(bytes);
            door.metrics().placed(fabric.name(), bytes);
        }
        _ => {
            session.traffic(fabric).received(bytes);
            door.metrics().taken(fabric.name(), bytes);
        }
    }
}

/// One answer for a session that is not there, that is somebody else's, that has no such link, and for a wrong tag.
fn not_yours() -> Refusal {
    Refusal::new(
        ErrorCode::AccessDenied,
        "The token is not one of an open session of this access key.",
    )
}

/// The session and what the token says, if the session's key made it for this request.
fn verified<'t>(
    session: Option<Arc<Session>>,
    sealed: &'t Sealed,
    asked: &Asked<'_>,
) -> Outcome<(Arc<Session>, &'t OpenToken)> {
    let covered = Covered {
        method: asked.head.method.as_str(),
        path: asked.head.uri.path(),
        query: asked.head.uri.query().unwrap_or_default(),
        range: headers::text(&asked.head.headers, &RANGE).unwrap_or_default(),
    };
    // Without a session the same work is done, so that the answer takes as long.
    let nobody = [0; 32];
    let key = session.as_ref().map_or(&nobody, |session| session.key());
    let token = sealed.verify(key, &covered);
    session.zip(token).ok_or_else(not_yours)
}

fn link_of(session: &Session, token: &OpenToken) -> Option<Connection> {
    let rail = usize::from(token.rail.unwrap_or(0));
    let (_, link) = session.rail(fabric_of(token.transport)?, rail)?;
    Some(link)
}

/// A session lives while its tokens come; one with a longer lease keeps it.
fn renew(lender: &Lender, session: &Session) {
    let idle = lender.direct.idle;
    if session.lease_left().is_some_and(|left| left < idle) {
        lender.direct.sessions.renew(session.id(), idle);
    }
}

/// The region's name on its link. On shared memory that is a slot with its generation: together in the remote key, or apart
/// in the key and the extension.
fn stag_of(token: &OpenToken) -> Option<Stag> {
    let Some(slot) = token.slot.filter(|_| token.transport == Transport::Shm) else {
        return Some(Stag(token.remote_key));
    };
    let slots = REGIONS as u32;
    let name = slot.generation.checked_mul(slots)?.checked_add(slot.slot)?;
    (slot.slot < slots && slot.slot == token.remote_key).then_some(Stag(name))
}

/// The segments as the link names them: an address is a tagged offset, and counts from the base of its region.
fn windows(token: &OpenToken, stag: Stag) -> Vec<RemoteRange> {
    let first = RemoteRange {
        stag,
        offset: token.address,
        len: token.length,
    };
    let more = token.segments.iter().map(|segment| RemoteRange {
        stag: Stag(segment.remote_key),
        offset: segment.address,
        len: u64::from(segment.length),
    });
    std::iter::once(first).chain(more).collect()
}
