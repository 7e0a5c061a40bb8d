//! `CopyObject` and `UploadPartCopy`: buffers go from the store to the store, untouched unless something must be hashed.

use forebay_proto::md5::Md5;
use forebay_proto::s3::checksum::{Algorithm, Checksum, ChecksumType, Hasher};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::tags::Tags;
use forebay_proto::s3::uri::{parse_copy_range, parse_copy_source};
use forebay_proto::s3::xml::{CopyKind, copy_result};
use forebay_store::{
    Address, AttributesBuilder, Body, ByteRange, Condition, ErrorKind, Etag, Meta, Object, Seal,
    Store, StoreError, StoreOptions, Upload, VersionId,
};

use crate::call::Call;
use crate::conditions;
use crate::config::EtagKind;
use crate::headers;
use crate::kept::{self, Shown};
use crate::multipart::{algorithm, commit_part, part_of, upload_id};
use crate::object_put::{PUT_BYTES_MAX, begin, check_extras, unmet};
use crate::reply::{self, Reply};
use crate::staging;
use crate::status::{Outcome, Refusal};
use crate::turns::Turn;

/// How often a source that changes under a copy is looked at anew.
const TRIES: usize = 8;

/// What is copied.
struct Source {
    bucket: String,
    key: String,
    version: Option<VersionId>,
}

/// Whether something is taken from the source or from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    Copy,
    Replace,
}

async fn source<S: Store>(call: &Call<'_, S>) -> Outcome<Source> {
    let text = headers::legible(call.headers, &headers::COPY_SOURCE)?.unwrap_or_default();
    let named = parse_copy_source(text)?;
    let version = named
        .version_id
        .as_deref()
        .map(headers::parse_version)
        .transpose()?;
    let info = call
        .permit_source(&named.bucket, &named.key, version)
        .await?;
    call.expect_owner(&headers::SOURCE_EXPECTED_BUCKET_OWNER, &info)?;
    Ok(Source {
        bucket: named.bucket,
        key: named.key,
        version,
    })
}

/// Opens so much of a source when it is its turn: who waits for that holds nothing of the source, and goes with its client.
async fn open<'a, S: Store>(
    call: &Call<'a, S>,
    source: &Source,
    range: ByteRange,
) -> Outcome<(Object<S::Body>, Turn<'a>)> {
    call.connection.bind_request();
    let tenant = call.caller.tenant().unwrap_or_default();
    let address = Address::object(&source.bucket, source.key.as_bytes());
    for _ in 0..TRIES {
        let looked = call.store().stat(address, source.version).await;
        let seen = looked.map_err(unread)?;
        check(call, source, &seen).await?;
        let bytes = range.resolve(seen.size).unwrap_or_default();
        let length = bytes.end - bytes.start;
        if length > PUT_BYTES_MAX {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                format!(
                    "The specified copy source is larger than the maximum allowable size for a copy source: {PUT_BYTES_MAX}"
                ),
            ));
        }
        let turn = call.door.copies.next(tenant, length).await;
        let opened = call.store().retrieve(address, source.version, range).await;
        let found = opened.map_err(unread)?;
        // Another one, that came meanwhile, may need another turn.
        if found.range == bytes {
            check(call, source, &found.meta).await?;
            return Ok((found, turn));
        }
    }
    Err(ErrorCode::SlowDown.into())
}

fn unread(error: StoreError) -> Refusal {
    match error.kind() {
        ErrorKind::IsDeleteMarker => Refusal::new(
            ErrorCode::InvalidRequest,
            "The source of a copy request may not specifically refer to a delete marker by version id.",
        ),
        _ => Refusal::from(error),
    }
}

/// Whether what was found may be copied, and is what is to be.
async fn check<S: Store>(call: &Call<'_, S>, source: &Source, found: &Meta) -> Outcome<()> {
    call.permit_found_source(&source.bucket, &source.key, source.version, found)
        .await?;
    match conditions::evaluate(call.headers, &conditions::COPY_SOURCE, found) {
        None => Ok(()),
        Some(fails) => Err(fails.into_refusal()),
    }
}

fn directive<S: Store>(call: &Call<'_, S>, name: &http::HeaderName) -> Outcome<Directive> {
    match headers::legible(call.headers, name)? {
        None | Some("COPY") => Ok(Directive::Copy),
        Some("REPLACE") => Ok(Directive::Replace),
        Some(other) => Err(Refusal::argument(
            name.as_str(),
            other,
            "Unknown metadata directive.",
        )),
    }
}

/// `CopyObject`.
pub(crate) async fn object<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    check_extras(call.headers)?;
    let source = source(call).await?;
    let metadata = directive(call, &headers::METADATA_DIRECTIVE)?;
    let tagging = directive(call, &headers::TAGGING_DIRECTIVE)?;
    let same = source.bucket == call.bucket && source.key == call.key && source.version.is_none();
    let changes = metadata == Directive::Replace
        || tagging == Directive::Replace
        || call.headers.contains_key(headers::STORAGE_CLASS);
    if same && !changes {
        return Err(Refusal::new(
            ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let asked = headers::legible(call.headers, &headers::CHECKSUM_ALGORITHM)?
        .map(algorithm)
        .transpose()?;
    let condition = conditions::of_call(call).await?;
    let (found, mut turn) = open(call, &source, ByteRange::Full).await?;
    let origin = found.meta.clone();
    let tags = tags_of(call, &source, &origin, tagging).await?;
    let mut kept = kept_of(call, &origin, metadata)?;
    kept::set_tags(&mut kept, &tags);

    let known = Shown::of(&origin)
        .filter(|shown| shown.kind == ChecksumType::FullObject)
        .filter(|shown| asked.is_none_or(|asked| asked == shown.algorithm));
    let remade = match &known {
        Some(_) => None,
        None => asked.or_else(|| Shown::of(&origin).map(|shown| shown.algorithm)),
    };
    let md5 = call.door.config.etag == EtagKind::Md5;
    let same_tag = md5 && is_md5(&origin.etag);
    let options = StoreOptions {
        size: Some(origin.size),
        condition,
    };
    let mut upload = begin(call, call.object(), options).await?;
    let hashed = transfer(found, &mut upload, md5 && !same_tag, remade).await?;
    turn.moved();
    let shown = match (known, remade) {
        (Some(known), _) => Some(known),
        (None, Some(Algorithm::Crc64Nvme)) => Shown::own(upload.crc64nvme()),
        (None, _) => hashed.checksum.map(|checksum| Shown::whole(&checksum)),
    };
    if let Some(shown) = &shown {
        kept.insert(kept::CHECKSUM, shown.encode());
    }
    let seal = Seal {
        etag: match same_tag {
            true => Some(origin.etag),
            false => hashed.md5.map(|digest| Etag::from_digest(&digest)),
        },
        attributes: kept::sealed(kept)?,
        expires: None,
    };
    call.still_admitted()?;
    let stored = match upload.commit(seal).await {
        Ok(stored) => stored,
        Err(error) => return Err(unmet(call, condition, error).await),
    };
    let document = copy_result(
        CopyKind::Object,
        stored.meta.etag.as_str(),
        stored.meta.modified,
        shown.as_ref().map(Shown::as_xml),
    );
    let mut reply = reply::xml(document);
    let response = reply.headers_mut();
    show_source(call, &source, &origin, response);
    call.show_version(response, stored.meta.version);
    call.show_expiration(response, &stored.meta);
    Ok(reply)
}

/// The tags of the copy. To read the source's, and to set any, takes permissions beside those to read and to write.
async fn tags_of<S: Store>(
    call: &Call<'_, S>,
    source: &Source,
    origin: &Meta,
    tagging: Directive,
) -> Outcome<Tags> {
    let tags = match tagging {
        Directive::Copy => kept::tags(&origin.attributes),
        Directive::Replace => kept::brought_tags(call.headers)?,
    };
    if tagging == Directive::Copy && !tags.is_empty() {
        call.permit_source_tags(&source.bucket, &source.key, source.version, origin)
            .await?;
    }
    call.permit_new_tags(&tags).await?;
    Ok(tags)
}

/// What the copy keeps beside its tags.
fn kept_of<S: Store>(
    call: &Call<'_, S>,
    origin: &Meta,
    metadata: Directive,
) -> Outcome<AttributesBuilder> {
    match metadata {
        Directive::Copy => Ok(kept::from_source(&origin.attributes)),
        Directive::Replace => kept::from_request(call.headers),
    }
}

/// `UploadPartCopy`.
pub(crate) async fn part<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    check_extras(call.headers)?;
    let number = part_of(call)?;
    let id = upload_id(call)?;
    let source = source(call).await?;
    let range = headers::legible(call.headers, &headers::COPY_SOURCE_RANGE)?
        .map(parse_copy_range)
        .transpose()?;
    let manifest = staging::find(call.store(), call.bucket, call.key, &id).await?;
    let bytes = range.as_ref().map_or(ByteRange::Full, |range| {
        ByteRange::Inclusive(range.start, range.end - 1)
    });
    let (found, mut turn) = open(call, &source, bytes).await?;
    let length = found.range.end - found.range.start;
    // A range is cut at the end of the source; here that is a mistake of the client.
    if range.is_some_and(|range| range.end - range.start != length) {
        return Err(Refusal::from(ErrorCode::InvalidRange)
            .field("ActualObjectSize", found.meta.size.to_string()));
    }
    let origin = found.meta.clone();
    let algorithm = staging::chosen(&manifest.attributes).map(|(algorithm, _)| algorithm);
    let staged = id.part(number);
    let options = StoreOptions {
        size: Some(length),
        condition: Condition::None,
    };
    let mut upload = begin(call, Address::staging(call.bucket, &staged), options).await?;
    let md5 = call.door.config.etag == EtagKind::Md5;
    let hashed = transfer(found, &mut upload, md5, algorithm).await?;
    turn.moved();
    let checksum = algorithm.map(|algorithm| (algorithm, hashed.checksum));
    let (meta, shown) = commit_part(call, &id, upload, hashed.md5, checksum).await?;
    let document = copy_result(
        CopyKind::Part,
        meta.etag.as_str(),
        meta.modified,
        shown.as_ref().map(Shown::as_xml),
    );
    let mut reply = reply::xml(document);
    show_source(call, &source, &origin, reply.headers_mut());
    Ok(reply)
}

struct Hashed {
    md5: Option<[u8; 16]>,
    checksum: Option<Checksum>,
}

/// Hands every buffer of the source to the upload. CRC-64/NVME is the upload's own and not made here.
async fn transfer<B: Body, U: Upload>(
    source: Object<B>,
    upload: &mut U,
    md5: bool,
    algorithm: Option<Algorithm>,
) -> Outcome<Hashed> {
    let mut body = source.body;
    let mut md5 = md5.then(Md5::default);
    let mut hasher = algorithm
        .filter(|algorithm| *algorithm != Algorithm::Crc64Nvme)
        .map(Hasher::new);
    while let Some(buf) = body.next().await? {
        if let Some(md5) = &mut md5 {
            md5.update(&buf);
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(&buf);
        }
        upload.write(buf).await?;
    }
    Ok(Hashed {
        md5: md5.map(Md5::finalize),
        checksum: hasher.map(Hasher::finalize),
    })
}

/// Whether a tag is the MD5 of the object's bytes, which a copy therefore shares.
fn is_md5(etag: &Etag) -> bool {
    let text = etag.as_str();
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn show_source<S: Store>(
    call: &Call<'_, S>,
    source: &Source,
    origin: &Meta,
    response: &mut http::HeaderMap,
) {
    let versioned = call
        .store()
        .namespace(&source.bucket)
        .is_ok_and(|info| info.config.versioning != forebay_store::Versioning::Off);
    if versioned {
        response.insert(
            headers::COPY_SOURCE_VERSION_ID,
            headers::version_value(origin.version),
        );
    }
}
