//! Access control lists, as far as they say what holds anyway: the owner may do everything.
//!
//! Access for others is given by bucket policies alone. A canned ACL or a list that gives nothing to anybody else is
//! accepted and changes nothing; one that would is refused with `AccessControlListNotSupported`, as S3 does for buckets
//! whose owner enforces ownership.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::xml::{Scanner, access_control_policy};
use forebay_store::Store;
use http::StatusCode;
use http::header::HeaderMap;

use crate::call::Call;
use crate::headers;
use crate::ingest::Inbound;
use crate::reply::{self, Reply};
use crate::status::Outcome;

const HARMLESS: [&str; 3] = ["private", "bucket-owner-full-control", "bucket-owner-read"];

/// Refuses a canned ACL, or grants in headers, that would give something to others.
///
/// # Errors
/// `AccessControlListNotSupported`.
pub(crate) fn check_canned(request: &HeaderMap) -> Outcome<()> {
    let canned = headers::legible(request, &headers::ACL)?;
    let granted = request
        .keys()
        .any(|name| name.as_str().starts_with("x-amz-grant-"));
    if granted || canned.is_some_and(|acl| !HARMLESS.contains(&acl)) {
        return Err(ErrorCode::AccessControlListNotSupported.into());
    }
    Ok(())
}

/// `GetBucketAcl` and, once the object was seen, `GetObjectAcl`.
pub(crate) fn get<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    Ok(reply::xml(access_control_policy(&call.owner())))
}

/// `GetObjectAcl`.
pub(crate) async fn get_object<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    call.store().stat(call.object(), call.version()?).await?;
    get(call)
}

/// `PutBucketAcl`.
pub(crate) async fn put<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    check_canned(call.headers)?;
    let document = call.document(inbound).await?;
    if !document.trim_ascii().is_empty() {
        check_document(&document, call.owner().id)?;
    }
    Ok(reply::empty(StatusCode::OK))
}

/// `PutObjectAcl`.
pub(crate) async fn put_object<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    call.store().stat(call.object(), call.version()?).await?;
    put(call, inbound).await
}

/// Refuses a list that grants to anybody but the owner.
fn check_document(document: &[u8], owner: &str) -> Outcome<()> {
    let mut scanner = Scanner::root(document, "AccessControlPolicy").map_err(malformed)?;
    while let Some(name) = scanner.child().map_err(malformed)? {
        if name != "AccessControlList" {
            scanner.skip().map_err(malformed)?;
            continue;
        }
        while let Some(grant) = scanner.child().map_err(malformed)? {
            if grant != "Grant" {
                return Err(ErrorCode::MalformedACLError.into());
            }
            check_grant(&mut scanner, owner)?;
        }
    }
    Ok(scanner.finish().map_err(malformed)?)
}

fn check_grant(scanner: &mut Scanner<'_>, owner: &str) -> Outcome<()> {
    while let Some(name) = scanner.child().map_err(malformed)? {
        if name != "Grantee" {
            scanner.skip().map_err(malformed)?;
            continue;
        }
        let mut own = false;
        while let Some(name) = scanner.child().map_err(malformed)? {
            match name {
                "ID" => own = scanner.text().map_err(malformed)? == owner,
                _ => scanner.skip().map_err(malformed)?,
            }
        }
        if !own {
            return Err(ErrorCode::AccessControlListNotSupported.into());
        }
    }
    Ok(())
}

fn malformed(_: forebay_proto::s3::xml::XmlError) -> ErrorCode {
    ErrorCode::MalformedACLError
}
