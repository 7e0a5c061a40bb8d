//! `PutObject`.

use forebay_proto::s3::checksum::Algorithm;
use forebay_proto::s3::error::ErrorCode;
use forebay_store::{
    Address, Condition, ErrorKind, Etag, Seal, Store, StoreError, StoreOptions, Upload,
};
use http::header::{ETAG, HeaderMap};

use crate::call::Call;
use crate::config::EtagKind;
use crate::ingest::Source;
use crate::kept::{self, Shown};
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};
use crate::{acl, conditions, encryption, headers};

/// The largest object, or part, that one request may carry: 5 GiB.
pub(crate) const PUT_BYTES_MAX: u64 = 5 << 30;

/// Of modes, dates and holds, those of today and those to come.
const LOCK_PREFIX: &str = "x-amz-object-lock-";

/// Refuses what a write may ask for and this door does not do.
///
/// # Errors
/// `NotImplemented`, `InvalidRequest`, `AccessControlListNotSupported`.
pub(crate) fn check_extras(request: &HeaderMap) -> Outcome<()> {
    encryption::refuse(request)?;
    acl::check_canned(request)?;
    if request.contains_key(headers::WRITE_OFFSET_BYTES) {
        return Err(Refusal::new(
            ErrorCode::NotImplemented,
            "Objects cannot be appended to here.",
        ));
    }
    if request
        .keys()
        .any(|name| name.as_str().starts_with(LOCK_PREFIX))
    {
        return Err(Refusal::new(
            ErrorCode::InvalidRequest,
            "Bucket is missing Object Lock Configuration",
        ));
    }
    Ok(())
}

/// `PutObject`.
pub(crate) async fn put<S: Store>(
    call: &Call<'_, S>,
    source: &mut impl Source,
) -> Outcome<Reply<S::Body>> {
    check_extras(call.headers)?;
    let claims = source.claims(call.headers)?;
    if claims.length > PUT_BYTES_MAX {
        return Err(too_large(claims.length));
    }
    let condition = conditions::of_call(call).await?;
    let mut kept = kept::from_request(call.headers)?;
    let tags = kept::brought_tags(call.headers)?;
    call.permit_new_tags(&tags).await?;
    kept::set_tags(&mut kept, &tags);
    let algorithm = claims.algorithm;
    let options = StoreOptions {
        size: Some(claims.length),
        condition,
    };
    let mut upload = begin(call, call.object(), options).await?;
    let md5 = call.door.config.etag == EtagKind::Md5;
    let received = source.store_into(claims, &mut upload, md5).await?;
    let shown = match (algorithm, received.checksum) {
        (Some(Algorithm::Crc64Nvme), _) => Shown::own(upload.crc64nvme()),
        (_, made) => made.map(|checksum| Shown::whole(&checksum)),
    };
    if let Some(shown) = &shown {
        kept.insert(kept::CHECKSUM, shown.encode());
    }
    let seal = Seal {
        etag: received
            .md5
            .filter(|_| md5)
            .map(|digest| Etag::from_digest(&digest)),
        attributes: kept::sealed(kept)?,
        expires: None,
    };
    call.still_admitted()?;
    let stored = match upload.commit(seal).await {
        Ok(stored) => stored,
        Err(error) => return Err(unmet(call, condition, error).await),
    };
    let mut response = HeaderMap::with_capacity(6);
    response.insert(ETAG, headers::etag_value(&stored.meta.etag));
    if let Some(shown) = shown.or_else(|| Shown::own(stored.meta.crc64nvme)) {
        shown.respond(&mut response);
    }
    call.show_version(&mut response, stored.meta.version);
    call.show_expiration(&mut response, &stored.meta);
    Ok(reply::ok(response))
}

/// Begins to store in the bucket that the caller was let into. An upload stays with the bucket that it was begun in.
///
/// # Errors
/// Those of [`Call::still_admitted`], also when the bucket went and there may be another one of its name; those of the store.
pub(crate) async fn begin<S: Store>(
    call: &Call<'_, S>,
    address: Address<'_>,
    options: StoreOptions,
) -> Outcome<S::Upload> {
    let begun = call.store().store(address, options).await;
    // The store was given a name. Numbers of buckets are never used again: what has this one still had it then.
    call.still_admitted()?;
    match begun {
        Ok(upload) => Ok(upload),
        Err(error) => Err(unmet(call, options.condition, error).await),
    }
}

/// A body larger than one request may carry.
pub(crate) fn too_large(length: u64) -> Refusal {
    Refusal::from(ErrorCode::EntityTooLarge)
        .field("ProposedSize", length.to_string())
        .field("MaxSizeAllowed", PUT_BYTES_MAX.to_string())
}

/// The refusal of a write: `If-Match` on a key that is not there is `NoSuchKey`, as S3 says it.
pub(crate) async fn unmet<S: Store>(
    call: &Call<'_, S>,
    condition: Condition,
    error: StoreError,
) -> Refusal {
    if error.kind() != ErrorKind::PreconditionFailed {
        return error.into();
    }
    let name = match condition {
        Condition::IfAbsent | Condition::None => "If-None-Match",
        Condition::IfPresent | Condition::IfMatch(_) => {
            if is_absent(call.store(), call.object()).await {
                return Refusal::from(ErrorCode::NoSuchKey).field("Key", call.key);
            }
            "If-Match"
        }
    };
    Refusal::from(ErrorCode::PreconditionFailed).field("Condition", name)
}

async fn is_absent<S: Store>(store: &S, address: Address<'_>) -> bool {
    match store.stat(address, None).await {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}
