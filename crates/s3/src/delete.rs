//! `DeleteObject` and `DeleteObjects`.

use forebay_proto::s3::error::{ErrorCode, S3Error};
use forebay_proto::s3::uri::check_key;
use forebay_proto::s3::xml::{
    DeleteObject, DeleteOutcome, DeleteRequest, delete_result, parse_delete,
};
use forebay_store::{
    Address, Condition, DeleteOptions, Deleted, ErrorKind, Meta, Store, StoreError, VersionId,
};
use futures_util::future::join_all;
use http::StatusCode;
use http::header::IF_MATCH;

use crate::call::Call;
use crate::conditions::{if_match_condition, refuse_of_directory_buckets};
use crate::headers;
use crate::ingest::Inbound;
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};

/// How often an object that changes under a delete is judged anew.
const TRIES: usize = 8;
/// Keys that are deleted side by side: each waits until it is durable.
pub(crate) const AT_ONCE: usize = 16;

/// `DeleteObject`. Deleting what is not there succeeds.
pub(crate) async fn one<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    refuse_of_directory_buckets(call.headers)?;
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

/// Deletes what may be deleted, judged right before. Where tags decide, the current value is the one that was judged, as far as its
/// tag tells: what comes in its place is judged anew.
async fn remove<S: Store>(
    call: &Call<'_, S>,
    key: &str,
    version: Option<VersionId>,
    condition: Condition,
) -> Outcome<Deleted> {
    let address = Address::object(call.bucket, key.as_bytes());
    let by_tag = matches!(condition, Condition::IfMatch(_));
    for _ in 0..TRIES {
        let judged = call.permit_delete(key, version, by_tag).await?;
        let bound = match judged.filter(|_| version.is_none()) {
            None => condition,
            Some(found) => bound(condition, found)?,
        };
        call.still_admitted()?;
        let options = DeleteOptions {
            version,
            condition: bound,
        };
        match call.store().delete(address, options).await {
            // A version that is not there is gone already.
            Err(error)
                if version.is_some()
                    && matches!(error.kind(), ErrorKind::NoSuchVersion | ErrorKind::NotFound) =>
            {
                return Ok(Deleted::default());
            }
            Err(error) if error.kind() == ErrorKind::PreconditionFailed && bound != condition => {}
            other => return Ok(other?),
        }
    }
    Err(ErrorCode::ConditionalRequestConflict.into())
}

/// The condition under which what was found is deleted, and nothing else.
fn bound(condition: Condition, found: Result<Meta, StoreError>) -> Outcome<Condition> {
    match (found, condition) {
        (Ok(meta), Condition::None | Condition::IfPresent) => Ok(Condition::IfMatch(meta.etag)),
        (Err(error), Condition::None) if error.kind() == ErrorKind::NotFound => {
            Ok(Condition::IfAbsent)
        }
        (Err(error), _) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(condition),
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
    if !call.owns_bucket() {
        welcome(call, &request).await?;
    }
    call.expect_bucket_owner()?;
    let mut markers = Vec::with_capacity(request.objects.len());
    for some in request.objects.chunks(AT_ONCE) {
        let entries = some.iter().map(|object| entry(call, object));
        markers.extend(join_all(entries).await);
    }
    // They are told of in a success, of which the door logs nothing.
    let mut causes = markers
        .iter()
        .filter_map(|marker| marker.as_ref().err()?.cause.as_ref());
    if let Some(cause) = causes.next() {
        let failed = 1 + causes.count();
        tracing::warn!(
            bucket = call.bucket,
            failed,
            ?cause,
            "objects could not be deleted"
        );
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
                Err(refusal) => Err(S3Error::clone(&refusal.error)),
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

/// Refuses who may delete nothing of a batch: a list of refusals would tell that the bucket exists.
async fn welcome<S: Store>(call: &Call<'_, S>, request: &DeleteRequest) -> Outcome<()> {
    let mut refused = Ok(());
    for object in &request.objects {
        refused = permit(call, object).await;
        if refused.is_ok() {
            break;
        }
    }
    refused
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

fn wanted(object: &DeleteObject) -> Outcome<(Option<VersionId>, Condition)> {
    check_key(&object.key)?;
    let condition = match object.etag.as_deref() {
        None => Condition::None,
        Some(tag) => if_match_condition(tag)?,
    };
    Ok((version_of(object)?, condition))
}

/// Deletes one key of a batch; the delete marker that was made or removed.
async fn entry<S: Store>(call: &Call<'_, S>, object: &DeleteObject) -> Outcome<Option<String>> {
    let (version, condition) = match wanted(object) {
        Ok(wanted) => wanted,
        Err(refusal) => {
            permit(call, object).await?;
            return Err(refusal);
        }
    };
    let deleted = remove(call, &object.key, version, condition).await?;
    Ok(deleted
        .version
        .filter(|_| deleted.marker)
        .map(headers::version_text))
}
