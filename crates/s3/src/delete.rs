//! `DeleteObject` and `DeleteObjects`.

use forebay_proto::s3::error::{ErrorCode, S3Error};
use forebay_proto::s3::uri::check_key;
use forebay_proto::s3::xml::{
    DeleteObject, DeleteOutcome, DeleteRequest, delete_result, parse_delete,
};
use forebay_store::{Address, Condition, DeleteOptions, Deleted, ErrorKind, Store, VersionId};
use http::StatusCode;
use http::header::IF_MATCH;

use crate::call::Call;
use crate::conditions::if_match_condition;
use crate::headers;
use crate::ingest::Inbound;
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};

/// `DeleteObject`. Deleting what is not there succeeds.
pub(crate) async fn one<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let condition = match headers::legible(call.headers, &IF_MATCH)? {
        None => Condition::None,
        Some(tag) => if_match_condition(tag)?,
    };
    let version = call.version()?;
    let deleted = remove(call, call.key, version, condition).await?;
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let response = reply.headers_mut();
    if deleted.marker {
        response.insert(headers::DELETE_MARKER, headers::TRUE);
    }
    if let Some(version) = version.or(deleted.version) {
        call.show_version(response, version);
    }
    Ok(reply)
}

async fn remove<S: Store>(
    call: &Call<'_, S>,
    key: &str,
    version: Option<VersionId>,
    condition: Condition,
) -> Outcome<Deleted> {
    let options = DeleteOptions { version, condition };
    let address = Address::object(call.bucket, key.as_bytes());
    call.still_admitted()?;
    match call.store().delete(address, options).await {
        // A version that is not there is gone already.
        Err(error)
            if version.is_some()
                && matches!(error.kind(), ErrorKind::NoSuchVersion | ErrorKind::NotFound) =>
        {
            Ok(Deleted::default())
        }
        other => Ok(other?),
    }
}

/// `DeleteObjects`: up to 1000 keys, each with an outcome of its own.
pub(crate) async fn many<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let request = match read(call, inbound).await {
        Ok(request) => request,
        Err(refusal) => return Err(unread(call, refusal).await),
    };
    let mut permits = Vec::with_capacity(request.objects.len());
    for object in &request.objects {
        permits.push(permit(call, object).await);
    }
    // A list of refusals would tell somebody who may do nothing here that the bucket exists.
    if !call.owns_bucket()
        && permits.iter().all(Result::is_err)
        && let Some(Err(refusal)) = permits.pop()
    {
        return Err(refusal);
    }
    call.expect_bucket_owner()?;
    let mut markers = Vec::with_capacity(request.objects.len());
    for (object, permit) in request.objects.iter().zip(permits) {
        let outcome = match permit {
            Ok(()) => entry(call, object).await,
            Err(refusal) => Err(refusal),
        };
        markers.push(outcome.map_err(|refusal| refusal.error));
    }
    let outcomes: Vec<DeleteOutcome<'_>> = request
        .objects
        .iter()
        .zip(&markers)
        .map(|(object, marker)| DeleteOutcome {
            key: &object.key,
            version_id: object.version_id.as_deref(),
            result: match marker {
                Ok(marker) => Ok(marker.as_deref()),
                Err(error) => Err(S3Error::clone(error)),
            },
        })
        .collect();
    Ok(reply::xml(delete_result(&outcomes, request.quiet)))
}

async fn read<S: Store>(call: &Call<'_, S>, inbound: &mut Inbound) -> Outcome<DeleteRequest> {
    Ok(parse_delete(&call.document(inbound).await?)?)
}

/// What is wrong with a body is told to the owner and to who may delete any key: which keys it would have named is not known,
/// and a stranger would learn that the bucket exists.
async fn unread<S: Store>(call: &Call<'_, S>, refusal: Refusal) -> Refusal {
    match call.permit_key("s3:DeleteObject", "*", None).await {
        Err(stranger) if !call.owns_bucket() => stranger,
        _ => refusal,
    }
}

fn version_of(object: &DeleteObject) -> Outcome<Option<VersionId>> {
    object
        .version_id
        .as_deref()
        .map(headers::parse_version)
        .transpose()
        .map_err(|_| Refusal::from(ErrorCode::NoSuchVersion))
}

/// Whether one key of a batch may be deleted, asked before anything else about it.
async fn permit<S: Store>(call: &Call<'_, S>, object: &DeleteObject) -> Outcome<()> {
    let action = match object.version_id {
        None => "s3:DeleteObject",
        Some(_) => "s3:DeleteObjectVersion",
    };
    let version = version_of(object).unwrap_or_default();
    call.permit_key(action, &object.key, version).await
}

/// Deletes one key of a batch; the delete marker that was made or removed.
async fn entry<S: Store>(call: &Call<'_, S>, object: &DeleteObject) -> Outcome<Option<String>> {
    check_key(&object.key)?;
    let version = version_of(object)?;
    let condition = match object.etag.as_deref() {
        None => Condition::None,
        Some(tag) => if_match_condition(tag)?,
    };
    let deleted = remove(call, &object.key, version, condition).await?;
    Ok(deleted
        .version
        .filter(|_| deleted.marker)
        .map(headers::version_text))
}
