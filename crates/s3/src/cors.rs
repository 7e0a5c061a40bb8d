//! Cross-origin requests: preflights, and the headers on every other response.

use std::sync::Arc;

use forebay_proto::s3::cors::Rule;
use forebay_proto::s3::error::ErrorCode;
use forebay_store::Store;
use http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, ORIGIN,
};
use http::{Method, StatusCode};

use crate::door::Door;
use crate::headers;
use crate::reply::{self, Reply};
use crate::rules::Rules;
use crate::status::{Outcome, Refusal};

/// Answers `OPTIONS`, which browsers send without a signature.
///
/// # Errors
/// `BadRequest` without the headers of a preflight; `AccessForbidden` when no rule allows it, in the same words whether the
/// bucket has no such rule or does not exist.
pub(crate) fn preflight<S: Store>(
    door: &Door<S>,
    request: &HeaderMap,
    bucket: &str,
) -> Outcome<Reply<S::Body>> {
    let insufficient = || {
        Refusal::new(
            ErrorCode::BadRequest,
            "Insufficient information. Origin request header needed.",
        )
    };
    let origin = headers::text(request, &ORIGIN).ok_or_else(insufficient)?;
    let method = headers::text(request, &ACCESS_CONTROL_REQUEST_METHOD).ok_or_else(insufficient)?;
    let asked = headers::text(request, &ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let rules = rules(door, bucket);
    let rule = rules
        .as_ref()
        .and_then(|rules| rules.cors.as_ref())
        .and_then(|cors| cors.matching(origin, method, asked))
        .ok_or(ErrorCode::AccessForbidden)?;
    let mut reply = reply::empty(StatusCode::OK);
    put(rule, origin, asked, reply.headers_mut());
    Ok(reply)
}

/// Adds the headers of the rule that a cross-origin request matches to its response, whatever that is: a page may read
/// refusals as well.
pub(crate) fn respond<S: Store>(
    door: &Door<S>,
    bucket: &str,
    method: &Method,
    request: &HeaderMap,
    response: &mut HeaderMap,
) {
    let Some(origin) = headers::text(request, &ORIGIN) else {
        return;
    };
    let rules = rules(door, bucket);
    if let Some(cors) = rules.as_ref().and_then(|rules| rules.cors.as_ref())
        && let Some(rule) = cors.matching(origin, method.as_str(), "")
    {
        put(rule, origin, "", response);
    }
}

fn rules<S: Store>(door: &Door<S>, bucket: &str) -> Option<Arc<Rules>> {
    let info = door.store.namespace(bucket).ok()?;
    door.rules.of(&info)
}

fn put(rule: &Rule, origin: &str, asked: &str, response: &mut HeaderMap) {
    for (name, value) in rule.response_headers(origin, asked) {
        response.insert(
            HeaderName::from_static(name),
            headers::value(value.as_bytes()),
        );
    }
}
