//! Who calls: proved by a bearer token, or by a certificate that names an access key.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forebay_api::v1::Reason;
use forebay_proto::bearer::{Bearer, BearerError};
use forebay_store::Store;
use forebay_store::live::Served;
use tonic::Request;
use tonic::codegen::http::{HeaderMap, header};

use super::admission::{InFlight, Ticket};
use super::status::{Outcome, Refusal};
use crate::{AccessKey, Identities, ROOT_TENANT};

/// What a client certificate's URI begins with; an access key's id follows.
pub(crate) const CERTIFICATE_URI: &str = "forebay:key/";

/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The access key that its certificate names.
    pub(crate) key: Option<Arc<str>>,
    /// Of the first tenant that proved to be there.
    seat: Arc<OnceLock<Arc<Ticket>>>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, key: Option<Arc<str>>) -> Peer {
        Peer {
            address,
            key,
            seat: Arc::default(),
        }
    }

    /// Whether somebody has proved to be there, and has a seat.
    pub(crate) fn is_known(&self) -> bool {
        self.seat.get().is_some()
    }

    /// Seats whoever proved to be there among all connections, once.
    pub(crate) fn seat(&self, tenant: &str, connections: &Arc<InFlight>) -> Outcome<()> {
        if self.is_known() {
            return Ok(());
        }
        let busy = || Refusal::new(Reason::Busy, "the tenant has too many connections");
        let seat = connections.enter(tenant).ok_or_else(busy)?;
        // Of two first calls at once one is enough.
        let _ = self.seat.set(seat);
        Ok(())
    }
}

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    key: Arc<AccessKey>,
    /// The call, if it is one of those that are told of while they are served.
    served: Option<Arc<Served>>,
}

impl Caller {
    /// Who makes an admitted request, and what is asked.
    pub(crate) fn of<T>(request: Request<T>) -> Outcome<(Caller, T)> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| unproved("nobody is known to call"))?;
        Ok((caller, request.into_inner()))
    }

    fn new(key: Arc<AccessKey>) -> Caller {
        Caller { key, served: None }
    }

    /// The same, making this call.
    pub(crate) fn making(self, served: Option<Arc<Served>>) -> Caller {
        Caller { served, ..self }
    }

    /// The call, if it is told of.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.as_deref()
    }

    /// The access key that was proved to be there.
    pub(crate) fn key(&self) -> &AccessKey {
        &self.key
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.key.tenant
    }

    /// The access key's id.
    pub(crate) fn principal(&self) -> &str {
        &self.key.id
    }

    pub(crate) fn is_root(&self) -> bool {
        self.key.tenant == ROOT_TENANT
    }

    /// Refuses all but the root tenant.
    pub(crate) fn must_be_root(&self) -> Outcome<()> {
        match self.is_root() {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::Denied,
                "only the root tenant may do this",
            )),
        }
    }

    /// Whether the caller sees what belongs to `tenant`.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        self.is_root() || self.tenant() == tenant
    }
}

fn unproved(message: &str) -> Refusal {
    Refusal::new(Reason::Unauthenticated, message)
}

/// Finds out who calls. A token that came must hold, whatever the certificate says.
pub(crate) fn identify<S: Store>(
    identities: &Identities<S>,
    headers: &HeaderMap,
    peer: Option<&Peer>,
) -> Outcome<Caller> {
    let mut tokens = headers.get_all(header::AUTHORIZATION).iter();
    if let Some(value) = tokens.next() {
        let token = value.to_str().ok().and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        let (Some(token), None) = (token, tokens.next()) else {
            return Err(unproved(
                "one authorization is expected, of the form `Bearer TOKEN`",
            ));
        };
        let bearer = Bearer::parse(token).map_err(|error| unproved(&error.to_string()))?;
        let key = identities.find(bearer.access_key);
        let secret = key.as_ref().map(|key| key.secret.as_str());
        return match (bearer.check(secret, identities.now_ms() / 1000), key) {
            (Ok(()), Some(key)) => Ok(Caller::new(key)),
            // Who asks may have made no token of his own, and has given a key.
            (Ok(()), None) | (Err(BearerError::Forged), _) => Err(unproved(
                "there is no such access key, or its secret is another",
            )),
            (Err(error), _) => Err(unproved(&error.to_string())),
        };
    }
    let named = peer.and_then(|peer| peer.key.as_deref());
    match named.map(|id| identities.find(id)) {
        Some(Some(key)) => Ok(Caller::new(key)),
        Some(None) => Err(unproved("the certificate names no access key that exists")),
        None => Err(unproved(
            "a bearer token, or a client certificate that names an access key, is needed",
        )),
    }
}
