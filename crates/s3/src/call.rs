//! One request as its handler sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_proto::s3::date::http_date;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::lifecycle::{Candidate, Standing};
use forebay_proto::s3::percent::{self, Slash};
use forebay_proto::s3::uri::Query;
use forebay_proto::s3::xml::Owner;
use forebay_store::{Address, Meta, NamespaceInfo, Store, VersionId, Versioning};
use http::header::HeaderMap;

use crate::auth::{Caller, no_key};
use crate::door::{Connection, Door};
use crate::ingest::Inbound;
use crate::rules::Rules;
use crate::status::Outcome;
use crate::{headers, kept};

/// A request that was authenticated and authorised.
pub(crate) struct Call<'a, S: Store> {
    pub(crate) door: &'a Door<S>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: &'a Query<'a>,
    /// Empty for the service.
    pub(crate) bucket: &'a str,
    /// Empty for a bucket.
    pub(crate) key: &'a str,
    pub(crate) caller: &'a Caller,
    /// Absent for the service and for a bucket that is to be made.
    pub(crate) namespace: Option<Arc<NamespaceInfo>>,
    /// Its policy, CORS rules and lifecycle rules.
    pub(crate) rules: Option<Arc<Rules>>,
    pub(crate) connection: &'a Connection,
    /// Whether it came over TLS.
    pub(crate) secure: bool,
    pub(crate) peer: Option<SocketAddr>,
    /// What the client calls us.
    pub(crate) host: Option<&'a str>,
    /// What it calls the bucket or object there, percent-encoded.
    pub(crate) path: &'a str,
    /// Unix milliseconds.
    pub(crate) now_ms: u64,
}

impl<'a, S: Store> Call<'a, S> {
    pub(crate) fn store(&self) -> &'a S {
        &self.door.store
    }

    /// Where the object is.
    pub(crate) fn object(&self) -> Address<'a> {
        Address::object(self.bucket, self.key.as_bytes())
    }

    /// The body of a request that acts once all of it is here.
    ///
    /// # Errors
    /// Those of the body; those of [`Call::still_admitted`] for what went while it came.
    pub(crate) async fn document(&self, inbound: &mut Inbound) -> Outcome<Vec<u8>> {
        let body = inbound.document(self.headers).await?;
        self.still_admitted()?;
        Ok(body)
    }

    /// Refuses to go on when the key that signed the request is no longer what it was, or the bucket of this name no longer the
    /// one that the caller was let into: a slow body gives time to delete either, and anybody to make another one.
    ///
    /// # Errors
    /// `InvalidAccessKeyId`, `NoSuchBucket`.
    pub(crate) fn still_admitted(&self) -> Outcome<()> {
        if let Caller::Key(key) = self.caller
            && !self.door.authenticator.stands(key)
        {
            return Err(no_key(&key.id));
        }
        let Some(admitted) = &self.namespace else {
            return Ok(());
        };
        match self.store().namespace(self.bucket)?.id == admitted.id {
            true => Ok(()),
            false => Err(ErrorCode::NoSuchBucket.into()),
        }
    }

    /// Whom the bucket belongs to.
    pub(crate) fn owner(&self) -> Owner<'_> {
        let tenant = match &self.namespace {
            Some(info) => info.config.tenant.as_str(),
            None => self.caller.tenant().unwrap_or_default(),
        };
        Owner {
            id: tenant,
            display_name: tenant,
        }
    }

    /// The version asked for.
    pub(crate) fn version(&self) -> Outcome<Option<VersionId>> {
        self.query
            .get("versionId")
            .map(headers::parse_version)
            .transpose()
    }

    /// Whether answers name versions.
    pub(crate) fn is_versioned(&self) -> bool {
        is_versioned(self.namespace.as_deref())
    }

    /// Adds the version to an answer, where versions are shown.
    pub(crate) fn show_version(&self, response: &mut HeaderMap, version: VersionId) {
        show_version_in(self.namespace.as_deref(), response, version);
    }

    /// Says when a current object will expire by the bucket's lifecycle rules, and by which.
    pub(crate) fn show_expiration(&self, response: &mut HeaderMap, meta: &Meta) {
        let Some(rules) = self
            .rules
            .as_ref()
            .and_then(|rules| rules.lifecycle.as_ref())
        else {
            return;
        };
        let tags = kept::tags(&meta.attributes);
        let candidate = Candidate {
            key: self.key.as_bytes(),
            tags: &tags,
            size: meta.size,
            stored_s: i64::try_from(meta.modified / 1000).unwrap_or(i64::MAX),
            standing: Standing::Current,
        };
        if let Some((due_s, rule)) = rules.expiry(&candidate) {
            let date = http_date(due_s);
            let rule = percent::encode(rule, Slash::Encode);
            let text = format!("expiry-date=\"{date}\", rule-id=\"{rule}\"");
            response.insert(headers::EXPIRATION, headers::value(text.as_bytes()));
        }
    }
}

/// Whether answers about a bucket name versions: it has them, or had.
fn is_versioned(info: Option<&NamespaceInfo>) -> bool {
    info.is_some_and(|info| info.config.versioning != Versioning::Off)
}

/// Adds the version of something in a bucket to an answer, where versions are shown.
pub(crate) fn show_version_in(
    info: Option<&NamespaceInfo>,
    response: &mut HeaderMap,
    version: VersionId,
) {
    if is_versioned(info) {
        response.insert(headers::VERSION_ID, headers::version_value(version));
    }
}
