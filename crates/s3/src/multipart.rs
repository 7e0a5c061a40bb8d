//! Multipart uploads: begin, take parts, list, give up. Completing is in [`crate::complete`].

use bytes::Bytes;
use forebay_proto::s3::checksum::{Algorithm, Checksum, ChecksumType};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::xml::{
    MAX_PARTS, PartEntry, PartListing, initiate_multipart_upload_result, list_parts,
};
use forebay_store::{Address, Condition, Etag, Meta, Seal, Store, StoreOptions, Upload};
use http::StatusCode;
use http::header::{ETAG, HeaderMap};

use crate::call::Call;
use crate::claims::unsupported;
use crate::conditions::refuse_of_directory_buckets;
use crate::config::EtagKind;
use crate::ingest::Source;
use crate::kept::{self, Shown};
use crate::object_get::part_number;
use crate::object_put::{PUT_BYTES_MAX, begin, check_extras, too_large};
use crate::reply::{self, Reply};
use crate::staging::{self, UploadId};
use crate::status::{Outcome, Refusal};
use crate::{encryption, headers};

/// The most parts in one answer.
const LIST_MAX: u32 = 1000;

/// `CreateMultipartUpload`.
pub(crate) async fn create<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    check_extras(call.headers)?;
    let mut kept = kept::from_request(call.headers)?;
    let tags = kept::brought_tags(call.headers)?;
    call.permit_new_tags(&tags).await?;
    kept::set_tags(&mut kept, &tags);
    let choice = choice(call.headers)?;
    if let Some((algorithm, kind)) = choice {
        kept.insert(
            staging::CHOSEN,
            format!("{} {}", algorithm.as_str(), kind.as_str()),
        );
    }
    let id = UploadId::new(call.now_ms, call.door.unique().as_str());
    let manifest = id.manifest(call.key.as_bytes());
    let options = StoreOptions {
        size: Some(0),
        condition: Condition::IfAbsent,
    };
    let upload = begin(call, Address::staging(call.bucket, &manifest), options).await?;
    upload
        .commit(Seal {
            etag: None,
            attributes: kept::sealed(kept)?,
            expires: None,
        })
        .await?;
    let document = initiate_multipart_upload_result(call.bucket, call.key.as_bytes(), id.as_str());
    let mut reply = reply::xml(document);
    if let Some((algorithm, kind)) = choice {
        let response = reply.headers_mut();
        response.insert(
            headers::CHECKSUM_ALGORITHM,
            http::HeaderValue::from_static(algorithm.as_str()),
        );
        response.insert(
            headers::CHECKSUM_TYPE,
            http::HeaderValue::from_static(kind.as_str()),
        );
    }
    Ok(reply)
}

/// The algorithm and kind that a new upload asks for.
fn choice(request: &HeaderMap) -> Outcome<Option<(Algorithm, ChecksumType)>> {
    let kind = headers::legible(request, &headers::CHECKSUM_TYPE)?
        .map(|text| {
            ChecksumType::parse(text).ok_or_else(|| {
                Refusal::new(
                    ErrorCode::InvalidRequest,
                    "Value for x-amz-checksum-type header is invalid.",
                )
            })
        })
        .transpose()?;
    let Some(text) = headers::legible(request, &headers::CHECKSUM_ALGORITHM)? else {
        return match kind {
            None => Ok(None),
            Some(_) => Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )),
        };
    };
    let algorithm = algorithm(text)?;
    let kind = kind.unwrap_or(algorithm.default_type());
    if !algorithm.allows(kind) {
        return Err(Refusal::new(
            ErrorCode::InvalidRequest,
            format!(
                "The {} checksum type cannot be used with the {} checksum algorithm.",
                kind.as_str(),
                algorithm.as_str().to_ascii_lowercase()
            ),
        ));
    }
    Ok(Some((algorithm, kind)))
}

/// The value of `x-amz-checksum-algorithm`.
pub(crate) fn algorithm(text: &str) -> Outcome<Algorithm> {
    Algorithm::parse(text).ok_or_else(unsupported)
}

/// The upload that a request names.
pub(crate) fn upload_id<S: Store>(call: &Call<'_, S>) -> Outcome<UploadId> {
    UploadId::parse(call.query.get("uploadId").unwrap_or_default())
}

/// The part that a request names.
pub(crate) fn part_of<S: Store>(call: &Call<'_, S>) -> Outcome<u32> {
    let number = call
        .query
        .number::<u32>("partNumber")?
        .ok_or_else(|| part_number(0))?;
    match (1..=MAX_PARTS).contains(&number) {
        true => Ok(number),
        false => Err(part_number(number)),
    }
}

/// `UploadPart`.
pub(crate) async fn upload_part<S: Store>(
    call: &Call<'_, S>,
    source: &mut impl Source,
) -> Outcome<Reply<S::Body>> {
    encryption::refuse(call.headers)?;
    let number = part_of(call)?;
    let id = upload_id(call)?;
    let mut claims = source.claims(call.headers)?;
    if claims.length > PUT_BYTES_MAX {
        return Err(too_large(claims.length));
    }
    let manifest = staging::find(call.store(), call.bucket, call.key, &id).await?;
    if let Some((algorithm, _)) = staging::chosen(&manifest.attributes) {
        claims.require(algorithm)?;
    }
    let algorithm = claims.algorithm;
    let staged = id.part(number);
    let options = StoreOptions {
        size: Some(claims.length),
        condition: Condition::None,
    };
    let mut upload = begin(call, Address::staging(call.bucket, &staged), options).await?;
    let md5 = call.door.config.etag == EtagKind::Md5;
    let received = source.store_into(claims, &mut upload, md5).await?;
    let (meta, shown) = commit_part(
        call,
        &id,
        upload,
        received.md5.filter(|_| md5),
        algorithm.map(|algorithm| (algorithm, received.checksum)),
    )
    .await?;
    let mut response = HeaderMap::with_capacity(4);
    response.insert(ETAG, headers::etag_value(&meta.etag));
    if let Some(shown) = shown {
        response.insert(
            http::HeaderName::from_static(shown.algorithm.header()),
            headers::value(shown.text.as_bytes()),
        );
    }
    Ok(reply::ok(response))
}

/// Commits a part while its upload is known to exist. `checksum` is the algorithm asked for and its value, which for
/// CRC-64/NVME is the upload's own.
pub(crate) async fn commit_part<S: Store>(
    call: &Call<'_, S>,
    id: &UploadId,
    upload: S::Upload,
    md5: Option<[u8; 16]>,
    checksum: Option<(Algorithm, Option<Checksum>)>,
) -> Outcome<(Meta, Option<Shown>)> {
    let shown = match checksum {
        Some((Algorithm::Crc64Nvme, _)) => Shown::own(upload.crc64nvme()),
        Some((_, made)) => made.map(|checksum| Shown::whole(&checksum)),
        None => None,
    };
    let mut kept = forebay_store::Attributes::builder();
    if let Some(shown) = &shown {
        kept.insert(kept::CHECKSUM, shown.encode());
    }
    let seal = Seal {
        etag: md5.map(|digest| Etag::from_digest(&digest)),
        attributes: kept::sealed(kept)?,
        expires: None,
    };
    let _uploading = call.door.uploads.shared(id).await;
    staging::find(call.store(), call.bucket, call.key, id).await?;
    call.still_admitted()?;
    let stored = upload.commit(seal).await?;
    match staging::find(call.store(), call.bucket, call.key, id).await {
        // Another server of the same store has ended it meanwhile, and may know nothing of this part.
        Err(refusal) if refusal.error.code == ErrorCode::NoSuchUpload => {
            remove_parts(call.store(), call.bucket, id).await?;
            Err(refusal)
        }
        found => found.map(|_| (stored.meta, shown)),
    }
}

/// `AbortMultipartUpload`.
pub(crate) async fn abort<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    refuse_of_directory_buckets(call.headers)?;
    let id = upload_id(call)?;
    let _ending = call.door.uploads.exclusive(&id).await;
    staging::find(call.store(), call.bucket, call.key, &id).await?;
    discard(call.store(), call.bucket, call.key.as_bytes(), &id).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// Removes an upload and its parts; its exclusive lock is held. The parts go first, so that what an interruption leaves
/// can still be aborted, and once more in the end: some may have come to another server of the same store.
pub(crate) async fn discard<S: Store>(
    store: &S,
    bucket: &str,
    key: &[u8],
    id: &UploadId,
) -> Outcome<()> {
    remove_parts(store, bucket, id).await?;
    staging::remove(store, bucket, &[id.manifest(key)]).await?;
    remove_parts(store, bucket, id).await
}

/// Removes all parts of an upload.
pub(crate) async fn remove_parts<S: Store>(store: &S, bucket: &str, id: &UploadId) -> Outcome<()> {
    let (parts, _) = staging::parts(store, bucket, id, 0, MAX_PARTS as usize).await?;
    let keys: Vec<Bytes> = parts.into_iter().map(|part| part.key).collect();
    staging::remove(store, bucket, &keys).await
}

/// `ListParts`.
pub(crate) async fn list<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let id = upload_id(call)?;
    let marker = call.query.number::<u32>("part-number-marker")?.unwrap_or(0);
    let limit = call
        .query
        .number::<u32>("max-parts")?
        .unwrap_or(LIST_MAX)
        .min(LIST_MAX);
    let manifest = staging::find(call.store(), call.bucket, call.key, &id).await?;
    let marker_in_range = marker.min(MAX_PARTS);
    let (parts, more) = match limit {
        0 => (Vec::new(), false),
        _ => {
            staging::parts(
                call.store(),
                call.bucket,
                &id,
                marker_in_range,
                limit as usize,
            )
            .await?
        }
    };
    let listing = PartListing {
        bucket: call.bucket,
        key: call.key.as_bytes(),
        upload_id: id.as_str(),
        owner: call.owner(),
        part_number_marker: marker,
        next_part_number_marker: parts.last().filter(|_| more).map(|part| part.number),
        max_parts: limit,
        encode_url: call.query.get("encoding-type") == Some("url"),
        checksum: staging::chosen(&manifest.attributes),
        parts: parts
            .iter()
            .map(|part| PartEntry {
                number: part.number,
                last_modified_ms: part.meta.modified,
                etag: part.meta.etag.as_str(),
                size: part.meta.size,
                checksum: part_checksum(&part.meta),
            })
            .collect(),
    };
    Ok(reply::xml(list_parts(&listing)))
}

/// The checksum that was kept with a part.
pub(crate) fn part_checksum(meta: &Meta) -> Option<Checksum> {
    let shown = Shown::decode(meta.attributes.get_str(kept::CHECKSUM)?)?;
    Checksum::parse(shown.algorithm, &shown.text)
}
