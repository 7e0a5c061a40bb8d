//! Requests that make and end sessions: the open token's own, and those of protocols that are not spoken here.

use std::net::SocketAddr;

use forebay_fabric::SessionId;
use forebay_fabric::sessions::{Principal, Refused};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::token::hipobj::{self, Prepare, Ready};
use forebay_proto::token::ort1::{Endpoint, Transport, session_key};
use forebay_proto::token::{TokenError, hex16, names, parse_hex16};
use forebay_store::Store;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, StatusCode};

use super::decline::spoken;
use super::lender::{Direct, Lender};
use super::moved::PROTOCOL;
use crate::auth::{Caller, no_key};
use crate::door::{Connection, Door};
use crate::headers;
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};

const TRANSPORT: HeaderName = HeaderName::from_static(names::TRANSPORT);
const NONCE: HeaderName = HeaderName::from_static(names::NONCE);
const ENDPOINT: HeaderName = HeaderName::from_static(names::ENDPOINT);
const SESSION: HeaderName = HeaderName::from_static(names::SESSION);
const LIMITS: HeaderName = HeaderName::from_static(names::LIMITS);
const CM: HeaderName = HeaderName::from_static(names::CM);
const CM_SECURITY: HeaderName = HeaderName::from_static(names::CM_SECURITY);
const UDS: HeaderName = HeaderName::from_static(names::UDS);

/// A control request. Names of buckets cannot begin with a dot, so their paths are nobody's objects.
pub(crate) enum Control {
    /// A session begins.
    Connect,
    /// A session ends.
    Disconnect,
    /// hipObject's second protocol.
    HipObject,
    /// Another protocol that needs an adapter.
    Unspoken,
}

impl Control {
    /// The control request that this is.
    pub(crate) fn of(head: &Parts) -> Option<Control> {
        let path = head.uri.path();
        if !path.starts_with("/.") || head.method != Method::POST || head.uri.query().is_some() {
            return None;
        }
        match path {
            names::CONNECT_PATH => Some(Control::Connect),
            names::DISCONNECT_PATH => Some(Control::Disconnect),
            "/.ort1/prove" => Some(Control::Unspoken),
            _ if path.starts_with("/.hipobj-rc/") => Some(Control::HipObject),
            _ if path.starts_with("/.s3rdma-rc/") => Some(Control::Unspoken),
            _ => None,
        }
    }

    /// Answers it.
    pub(crate) async fn serve<S: Store>(
        self,
        door: &Door<S>,
        head: &Parts,
        connection: &Connection,
    ) -> Outcome<Reply<S::Body>> {
        let Some(lender) = &door.direct else {
            return Err(unspoken(
                None,
                "Payloads are not moved by remote memory access here.",
            ));
        };
        match self {
            Control::Connect => connect(door, lender, head, connection.peer),
            Control::Disconnect => disconnect(door, lender, head),
            Control::HipObject => {
                check_hipobj(head)?;
                Err(unspoken(
                    Some(&lender.direct),
                    "There is no adapter for hipobj-rc-v2 here.",
                ))
            }
            Control::Unspoken => Err(unspoken(
                Some(&lender.direct),
                "There is no adapter for this protocol here.",
            )),
        }
    }
}

/// `501` with what would be taken instead.
fn unspoken(direct: Option<&Direct>, why: &'static str) -> Refusal {
    let refusal = Refusal::new(ErrorCode::NotImplemented, why);
    let refusal = spoken(refusal, direct.is_some(), true);
    match direct.map(offered).filter(|offered| !offered.is_empty()) {
        Some(offered) => refusal.header(TRANSPORT, headers::value(offered.as_bytes())),
        None => refusal,
    }
}

/// The transports of this door, best first.
fn offered(direct: &Direct) -> String {
    let served: Vec<&str> = [Transport::Shm, Transport::Iwarp]
        .into_iter()
        .filter(|transport| direct.serves(*transport, true))
        .map(Transport::name)
        .collect();
    served.join(", ")
}

/// A well-formed request of hipObject is declined, another one is told what is wrong with it.
fn check_hipobj(head: &Parts) -> Outcome<()> {
    let request = &head.headers;
    if headers::text(request, &PROTOCOL) != Some(names::HIPOBJ_RC_V2) {
        return Ok(());
    }
    let header = |name: &str| request.get(name).and_then(|value| value.to_str().ok());
    let read = match head.uri.path() {
        hipobj::PREPARE_PATH => Prepare::read(header).map(|_| ()),
        hipobj::READY_PATH => Ready::read(header).map(|_| ()),
        _ => Ok(()),
    };
    read.map_err(|error| invalid(error.to_string()))
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidRequest, why)
}

fn check_empty(request: &HeaderMap) -> Outcome<()> {
    let length = headers::number::<u64>(request, &CONTENT_LENGTH)?.unwrap_or(0);
    match length == 0 && !request.contains_key(TRANSFER_ENCODING) {
        true => Ok(()),
        false => Err(invalid("A control request has no body.")),
    }
}

/// Begins a session (section 7.3).
fn connect<S: Store>(
    door: &Door<S>,
    lender: &Lender,
    head: &Parts,
    peer: Option<SocketAddr>,
) -> Outcome<Reply<S::Body>> {
    let (direct, request) = (&lender.direct, &head.headers);
    let (caller, _) = door.identify(head, (door.clock)())?;
    let Caller::Key(key) = caller else {
        return Err(ErrorCode::AccessDenied.into());
    };
    check_empty(request)?;
    if headers::text(request, &PROTOCOL) != Some(names::ORT1) {
        return Err(unspoken(
            Some(direct),
            "Only the protocol ort1 is spoken here.",
        ));
    }
    let same_host = peer.is_none_or(|peer| peer.ip().to_canonical().is_loopback());
    let wanted = headers::text(request, &TRANSPORT).unwrap_or_default();
    let chosen = wanted
        .split(',')
        .filter_map(|name| Transport::from_name(name.trim_ascii()))
        .find(|transport| direct.serves(*transport, same_host))
        .ok_or_else(|| {
            unspoken(
                Some(direct),
                "There is no adapter for these transports here.",
            )
        })?;
    let nonce = headers::text(request, &NONCE)
        .and_then(parse_hex16)
        .ok_or_else(|| invalid("x-amz-rdma-nonce is not 32 hexadecimal digits."))?;
    if let Some(endpoint) = headers::legible(request, &ENDPOINT)? {
        match Endpoint::parse(endpoint) {
            Ok(_) => {}
            Err(TokenError::Malformed(why)) => return Err(invalid(why)),
            Err(TokenError::Unsupported(why)) => return Err(unspoken(Some(direct), why)),
        }
    }
    let signing = door.authenticator.signed_with(head, &key)?;
    // Sixteen random bytes, which is what the name of a session is made of.
    let own_nonce = SessionId::random().map_err(|_| ErrorCode::InternalError)?.0;
    let principal = Principal {
        tenant: &key.tenant,
        id: &key.id,
        secret: &key.secret,
    };
    let session = direct
        .sessions
        .open(principal, direct.idle, |id| {
            session_key(&signing, &id.0, &nonce, &own_nonce)
        })
        .map_err(|refused| match refused {
            Refused::Entropy => ErrorCode::InternalError,
            _ => ErrorCode::SlowDown,
        })?;
    // A key that was removed meanwhile has taken its sessions with it already.
    if !door.authenticator.stands(&key) {
        direct.sessions.close(session.id());
        return Err(no_key(&key.id));
    }
    let mut reply = reply::empty(StatusCode::OK);
    let response = reply.headers_mut();
    let mut say = |name: HeaderName, text: &str| {
        response.insert(name, headers::value(text.as_bytes()));
    };
    say(PROTOCOL, names::ORT1);
    say(SESSION, &hex16(&session.id().0));
    say(TRANSPORT, chosen.name());
    say(NONCE, &hex16(&own_nonce));
    say(LIMITS, &direct.limits().to_string());
    match chosen {
        Transport::Shm => {
            if let Some(path) = direct.uds.as_ref().and_then(|path| path.to_str()) {
                say(UDS, path);
            }
        }
        Transport::Iwarp => {
            if let Some(address) = direct.cm {
                say(CM, &reachable(address, request));
                if direct.cm_tls {
                    say(CM_SECURITY, names::TLS);
                }
            }
        }
        Transport::Rc | Transport::Dc => {}
    }
    Ok(reply)
}

/// Where the client finds a listener: one on all addresses is where the client found this door.
fn reachable(listener: SocketAddr, request: &HeaderMap) -> String {
    let authority = headers::text(request, &HOST).and_then(|host| host.parse::<Authority>().ok());
    match authority.filter(|_| listener.ip().is_unspecified()) {
        Some(authority) => format!("{}:{}", authority.host(), listener.port()),
        None => listener.to_string(),
    }
}

/// Ends a session. What is not there, or somebody else's, ends as quietly.
fn disconnect<S: Store>(door: &Door<S>, lender: &Lender, head: &Parts) -> Outcome<Reply<S::Body>> {
    let (caller, _) = door.identify(head, (door.clock)())?;
    let sessions = &lender.direct.sessions;
    if let Caller::Key(key) = caller
        && let Some(id) = headers::text(&head.headers, &SESSION).and_then(parse_hex16)
        && let Some(session) = sessions.find_of(SessionId(id), &key.tenant, &key.id)
    {
        sessions.close(session.id());
    }
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
