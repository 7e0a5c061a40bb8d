//! Who asks: signatures checked against the access keys.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_proto::s3::chunked::ChunkChain;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::sigv4::{self, CredentialScope, Payload, SigningKey, UNSIGNED_PAYLOAD};
use http::header::AUTHORIZATION;
use http::request::Parts;
use parking_lot::RwLock;

use crate::claims::Proof;
use crate::headers;
use crate::status::{Outcome, Refusal};

/// The most signing keys that are kept; beyond it all are derived anew.
const KEPT_MAX: usize = 4096;

/// An access key and whom it stands for.
pub struct AccessKey {
    /// The access key id.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// The tenant that it acts for.
    pub tenant: String,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// Where access keys are looked up; asked for every signed request, so it answers from memory.
pub trait AccessKeys: Send + Sync + 'static {
    /// The key of this id, while it is valid.
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>>;
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    Anonymous,
    Key(Arc<AccessKey>),
}

impl Caller {
    /// The tenant asked for, unless anonymous.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match self {
            Caller::Anonymous => None,
            Caller::Key(key) => Some(&key.tenant),
        }
    }

    /// What policies call the key; empty of anonymous callers.
    pub(crate) fn arn(&self) -> String {
        match self {
            Caller::Anonymous => String::new(),
            Caller::Key(key) => format!("arn:aws:iam::{}:user/{}", key.tenant, key.id),
        }
    }

    pub(crate) fn owns(&self, tenant: &str) -> bool {
        self.tenant() == Some(tenant)
    }
}

struct Kept {
    key: Arc<AccessKey>,
    date: String,
    region: String,
    signing: SigningKey,
}

/// Checks signatures. The signing key of an access key's day and region is kept.
pub(crate) struct Authenticator {
    keys: Arc<dyn AccessKeys>,
    kept: RwLock<HashMap<String, Kept>>,
}

impl Authenticator {
    pub(crate) fn new(keys: Arc<dyn AccessKeys>) -> Authenticator {
        Authenticator {
            keys,
            kept: RwLock::default(),
        }
    }

    /// Says who asks and how the body is to be checked.
    ///
    /// # Errors
    /// Any refusal of the signature; `InvalidAccessKeyId`.
    pub(crate) fn authenticate(&self, head: &Parts, now_s: i64) -> Outcome<(Caller, Proof)> {
        let header = match head.headers.get(AUTHORIZATION) {
            None => None,
            Some(value) => Some(
                value
                    .to_str()
                    .map_err(|_| ErrorCode::AuthorizationHeaderMalformed)?,
            ),
        };
        let query = head.uri.query().unwrap_or_default();
        let Some(claim) = sigv4::authorization(header, query)? else {
            return anonymous(head);
        };
        let id = &*claim.scope.access_key;
        let key = self.keys.find(id).ok_or_else(|| no_key(id))?;
        let signing = self.signing_key(&key, &claim.scope);
        let request = sigv4::Request {
            method: head.method.as_str(),
            path: head.uri.path(),
            query,
            headers: &head.headers,
        };
        let verified = sigv4::verify(&request, &claim, &signing, now_s)?;
        let chain = matches!(verified.payload, Payload::SignedChunks { .. })
            .then(|| ChunkChain::new(signing, &verified.date, &claim.scope, claim.signature));
        let proof = Proof {
            presigned: claim.presigned.is_some(),
            payload: verified.payload,
            chain,
        };
        Ok((Caller::Key(key), proof))
    }

    /// Whether a key that signed a request is still what it was then.
    pub(crate) fn stands(&self, key: &AccessKey) -> bool {
        self.keys
            .find(&key.id)
            .is_some_and(|now| now.secret == key.secret && now.tenant == key.tenant)
    }

    /// The key that signed a request which was authenticated as `key`'s.
    ///
    /// # Errors
    /// `AccessDenied` for a request without a signature.
    pub(crate) fn signed_with(&self, head: &Parts, key: &Arc<AccessKey>) -> Outcome<SigningKey> {
        let header = headers::text(&head.headers, &AUTHORIZATION);
        let query = head.uri.query().unwrap_or_default();
        let claim = sigv4::authorization(header, query)?.ok_or(ErrorCode::AccessDenied)?;
        Ok(self.signing_key(key, &claim.scope))
    }

    fn signing_key(&self, key: &Arc<AccessKey>, scope: &CredentialScope<'_>) -> SigningKey {
        if let Some(kept) = self.kept.read().get(key.id.as_str())
            && kept.date == scope.date
            && kept.region == scope.region
            && scope.service == "s3"
            && (Arc::ptr_eq(&kept.key, key) || kept.key.secret == key.secret)
        {
            return kept.signing.clone();
        }
        let signing = SigningKey::for_scope(&key.secret, scope);
        if scope.service == "s3" {
            let mut kept = self.kept.write();
            if kept.len() >= KEPT_MAX {
                kept.clear();
            }
            kept.insert(
                key.id.clone(),
                Kept {
                    key: Arc::clone(key),
                    date: scope.date.to_string(),
                    region: scope.region.to_string(),
                    signing: signing.clone(),
                },
            );
        }
        signing
    }
}

/// The refusal of a request that is signed by what is no access key, or no longer one.
pub(crate) fn no_key(id: &str) -> Refusal {
    Refusal::from(ErrorCode::InvalidAccessKeyId).field("AWSAccessKeyId", id)
}

/// A request without a signature may still frame its body.
fn anonymous(head: &Parts) -> Outcome<(Caller, Proof)> {
    let text =
        headers::legible(&head.headers, &headers::CONTENT_SHA256)?.unwrap_or(UNSIGNED_PAYLOAD);
    let proof = Proof {
        presigned: false,
        payload: Payload::parse(text)?,
        chain: None,
    };
    Ok((Caller::Anonymous, proof))
}
