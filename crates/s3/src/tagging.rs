//! Tags of objects.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::tags::{MAX_OBJECT_TAGS, Tags};
use forebay_store::{ErrorKind, Meta, Store};
use http::StatusCode;

use crate::call::Call;
use crate::ingest::Inbound;
use crate::kept;
use crate::reply::{self, Reply};
use crate::router::Operation;
use crate::status::Outcome;

/// How often an object that changes under the request is looked at anew.
const TRIES: usize = 8;

/// `GetObjectTagging`.
pub(crate) async fn get<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let meta = call.store().stat(call.object(), call.version()?).await?;
    call.permit_found(Operation::GetObjectTagging, &meta)
        .await?;
    let mut reply = reply::xml(kept::tags(&meta.attributes).to_xml());
    call.show_version(reply.headers_mut(), meta.version);
    Ok(reply)
}

/// `PutObjectTagging`.
pub(crate) async fn put<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let read = match read(call, inbound).await {
        Err(refusal) if call.owns_bucket() => return Err(refusal),
        read => read,
    };
    // A stranger who may not set them is told so, and not what is wrong with the body.
    let wanted = read.as_ref().cloned().unwrap_or_default();
    call.permit_tags(&wanted, call.version()?).await?;
    call.expect_bucket_owner()?;
    let tags = read?;
    let meta = amend(call, Operation::PutObjectTagging, &tags).await?;
    let mut reply = reply::empty(StatusCode::OK);
    call.show_version(reply.headers_mut(), meta.version);
    Ok(reply)
}

async fn read<S: Store>(call: &Call<'_, S>, inbound: &mut Inbound) -> Outcome<Tags> {
    let body = call.document(inbound).await?;
    Ok(Tags::from_xml(&body, MAX_OBJECT_TAGS)?)
}

/// `DeleteObjectTagging`.
pub(crate) async fn delete<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let meta = amend(call, Operation::DeleteObjectTagging, &Tags::default()).await?;
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    call.show_version(reply.headers_mut(), meta.version);
    Ok(reply)
}

/// Sets the tags of the value that is there, and of no other: one that comes meanwhile is judged anew.
async fn amend<S: Store>(call: &Call<'_, S>, op: Operation, tags: &Tags) -> Outcome<Meta> {
    let version = call.version()?;
    for _ in 0..TRIES {
        let seen = call.store().stat(call.object(), version).await?;
        call.permit_retag(op, &seen, tags).await?;
        let mut attributes = seen.attributes.to_builder();
        kept::set_tags(&mut attributes, tags);
        let attributes = kept::sealed(attributes)?;
        call.still_admitted()?;
        let amending =
            call.store()
                .amend(call.object(), Some(seen.version), Some(&seen), attributes);
        match amending.await {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
            done => return Ok(done?),
        }
    }
    Err(ErrorCode::ConditionalRequestConflict.into())
}
