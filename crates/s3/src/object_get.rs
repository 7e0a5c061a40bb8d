//! `GetObject` and `HeadObject`.

use bytes::Bytes;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::{self, parse_range};
use forebay_proto::s3::xml::MAX_PARTS;
use forebay_store::{Body, ByteRange, ErrorKind, Meta, Object, Store, StoreError, VersionId};
use futures_util::TryStreamExt;
use http::StatusCode;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE,
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap, HeaderName,
    LAST_MODIFIED, RANGE,
};

use crate::auth::Caller;
use crate::call::Call;
use crate::conditions::{self, Fails};
use crate::ingest::{Inbound, Sending};
use crate::kept::{self, PartSizes, Shown};
use crate::reply::{self, Reply, ReplyBody};
use crate::router::Operation;
use crate::slices::{Slices, is_replaced};
use crate::status::{Outcome, Refusal};
use crate::{encryption, headers};

/// How often an object that is being replaced is looked for again.
const ATTEMPTS: usize = 8;

const OVERRIDES: [(&str, HeaderName); 6] = [
    ("response-content-type", CONTENT_TYPE),
    ("response-content-language", CONTENT_LANGUAGE),
    ("response-expires", EXPIRES),
    ("response-cache-control", CACHE_CONTROL),
    ("response-content-disposition", CONTENT_DISPOSITION),
    ("response-content-encoding", CONTENT_ENCODING),
];

/// What of the object is asked for.
enum Wanted {
    Range(ByteRange),
    Part(u32),
}

/// What a request is to be answered with: the conditions hold, and no byte was read yet.
pub(crate) struct Found<B> {
    pub(crate) object: Object<B>,
    /// Whether the answer is `206 Partial Content`.
    pub(crate) partial: bool,
}

/// Finds what a request asks for.
///
/// # Errors
/// Whatever S3 refuses it with.
pub(crate) async fn find<S: Store>(call: &Call<'_, S>) -> Outcome<Found<S::Body>> {
    encryption::refuse(call.headers)?;
    let version = call.version()?;
    let wanted = wanted(call)?;
    // What is not answered with is not opened: its bytes may be far away. It is looked at again as it was opened.
    if conditions::are_there(call.headers, &conditions::TARGET) {
        check(call, &look(call, version).await?)?;
    }
    let (object, partial) = match wanted {
        Wanted::Range(ByteRange::Full) => (retrieve(call, version, ByteRange::Full).await?, false),
        Wanted::Range(range) => ranged(call, version, range).await?,
        Wanted::Part(number) => (part(call, version, number).await?, true),
    };
    call.permit_found(Operation::GetObject, &object.meta)
        .await?;
    check(call, &object.meta)?;
    Ok(Found { object, partial })
}

/// `GetObject`. As long as nothing was said, another object may take the place of the one that was found.
pub(crate) async fn get<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    for attempt in 0..ATTEMPTS {
        let Found { object, partial } = find(call).await?;
        if attempt > 0 {
            // By now this may be another bucket of the name.
            call.still_admitted()?;
        }
        let Object { meta, range, body } = object;
        let length = range.end - range.start;
        let around = call.store().caps().around(&range, meta.size);
        // The first bytes are read before anything is said, so that an unreadable object is an error and not a broken body.
        let content = match inbound.may_send(around) {
            None => {
                // Who waits holds nothing of the object.
                drop(body);
                inbound.wait_to_send(around).await?;
                continue;
            }
            Some(_) if length == 0 => ReplyBody::whole(Bytes::new()),
            Some(Sending::Whole) => {
                let mut body = body;
                let first = call.door.demand.wait(body.next()).await?;
                let first = first.ok_or_else(cut_short)?.into_bytes();
                match first.len() as u64 == length {
                    true => ReplyBody::whole(first),
                    false => ReplyBody::stream(first, body, length, call.door.demand.clone()),
                }
            }
            Some(Sending::Slices(slice_bytes)) => {
                drop(body);
                let slices = Slices::of(call, &meta, &range, slice_bytes)?;
                let mut slices = Box::pin(slices.bytes());
                let first = match slices.try_next().await {
                    Err(error) if is_replaced(&error) => continue,
                    first => first?.ok_or_else(cut_short)?,
                };
                ReplyBody::sliced(first, slices, length)
            }
        };
        let mut reply = http::Response::new(content);
        describe(call, &meta, !partial, reply.headers_mut())?;
        if partial {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            reply
                .headers_mut()
                .insert(CONTENT_RANGE, content_range(&range, meta.size));
        }
        return Ok(reply);
    }
    Err(ErrorCode::SlowDown.into())
}

/// The store has fewer bytes of an object than it told.
pub(crate) fn cut_short() -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        "the object is shorter than its record says",
    )
}

/// `HeadObject`.
pub(crate) async fn head<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    encryption::refuse(call.headers)?;
    let meta = look(call, call.version()?).await?;
    check(call, &meta)?;
    let mut reply = reply::empty(StatusCode::OK);
    let response = reply.headers_mut();
    let whole = !asks_part(call) && !call.headers.contains_key(RANGE);
    describe(call, &meta, whole, response)?;
    let range = match wanted(call)? {
        Wanted::Part(number) => Some(locate(&meta, number)?),
        Wanted::Range(ByteRange::Full) => None,
        Wanted::Range(_) if !conditions::range_applies(call.headers, &meta) => None,
        Wanted::Range(range) => Some(
            range
                .resolve(meta.size)
                .ok_or_else(|| unsatisfiable(&meta))?,
        ),
    };
    let length = range
        .as_ref()
        .map_or(meta.size, |range| range.end - range.start);
    response.insert(CONTENT_LENGTH, length.into());
    if let Some(range) = range {
        response.insert(CONTENT_RANGE, content_range(&range, meta.size));
        *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(reply)
}

fn asks_part<S: Store>(call: &Call<'_, S>) -> bool {
    call.query.has("partNumber")
}

/// `partNumber` or `Range`, not both. A range that is none is ignored (RFC 9110 section 14.2).
fn wanted<S: Store>(call: &Call<'_, S>) -> Outcome<Wanted> {
    let range = headers::text(call.headers, &RANGE).and_then(parse_range);
    if let Some(number) = call.query.number::<u32>("partNumber")? {
        if range.is_some() {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter",
            ));
        }
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(part_number(number));
        }
        return Ok(Wanted::Part(number));
    }
    Ok(Wanted::Range(match range {
        None => ByteRange::Full,
        Some(uri::ByteRange::From(first)) => ByteRange::From(first),
        Some(uri::ByteRange::Span { first, last }) => ByteRange::Inclusive(first, last),
        Some(uri::ByteRange::Suffix(count)) => ByteRange::Suffix(count),
    }))
}

/// A part number that no part can have.
pub(crate) fn part_number(number: u32) -> Refusal {
    Refusal::argument(
        "partNumber",
        &number.to_string(),
        "Part number must be an integer between 1 and 10000, inclusive",
    )
}

/// What is known of an object that the caller may read.
async fn look<S: Store>(call: &Call<'_, S>, version: Option<VersionId>) -> Outcome<Meta> {
    let looked = call.store().stat(call.object(), version).await;
    let meta = looked.map_err(|error| hidden(call, error))?;
    call.permit_found(Operation::GetObject, &meta).await?;
    Ok(meta)
}

async fn retrieve<S: Store>(
    call: &Call<'_, S>,
    version: Option<VersionId>,
    range: ByteRange,
) -> Outcome<Object<S::Body>> {
    call.store()
        .retrieve(call.object(), version, range)
        .await
        .map_err(|error| hidden(call, error))
}

/// A range, and that it is one; all of the object when `If-Range` says that it changed. The condition is compared with what
/// the bytes are of: a look before them could see an object that is replaced until they are taken (RFC 9110 section 13.1.5).
async fn ranged<S: Store>(
    call: &Call<'_, S>,
    version: Option<VersionId>,
    range: ByteRange,
) -> Outcome<(Object<S::Body>, bool)> {
    match call.store().retrieve(call.object(), version, range).await {
        Ok(found) if conditions::range_applies(call.headers, &found.meta) => {
            return Ok((found, true));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::RangeNotSatisfiable => {
            let meta = look(call, version).await?;
            if conditions::range_applies(call.headers, &meta) {
                check(call, &meta)?;
                return Err(unsatisfiable(&meta));
            }
        }
        Err(error) => return Err(hidden(call, error)),
    }
    Ok((retrieve(call, version, ByteRange::Full).await?, false))
}

/// One part of an object: its place is known only from the object's record, so the record is read first and the bytes
/// are taken only if it is still the same object.
async fn part<S: Store>(
    call: &Call<'_, S>,
    version: Option<VersionId>,
    number: u32,
) -> Outcome<Object<S::Body>> {
    for _ in 0..ATTEMPTS {
        let seen = look(call, version).await?;
        check(call, &seen)?;
        let range = locate(&seen, number)?;
        // No range of a store is empty: an empty part is the object of which nothing is read.
        let bytes = match range.is_empty() {
            true => ByteRange::Full,
            false => ByteRange::Inclusive(range.start, range.end - 1),
        };
        match call.store().retrieve(call.object(), version, bytes).await {
            Ok(mut found) if found.meta.etag == seen.etag && found.meta.version == seen.version => {
                found.range = range;
                return Ok(found);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::RangeNotSatisfiable => {}
            Err(error) => return Err(hidden(call, error)),
        }
    }
    Err(ErrorCode::SlowDown.into())
}

/// The bytes of a part. An object that was not made of parts is its own first part.
fn locate(meta: &Meta, number: u32) -> Outcome<std::ops::Range<u64>> {
    let place = match PartSizes::of(&meta.attributes) {
        Some(sizes) => sizes.locate(number),
        None => (number == 1).then_some((0, meta.size)),
    };
    let (start, length) = place.ok_or(ErrorCode::InvalidPartNumber)?;
    Ok(start..start + length)
}

fn check<S: Store>(call: &Call<'_, S>, meta: &Meta) -> Outcome<()> {
    match conditions::evaluate(call.headers, &conditions::TARGET, meta) {
        None => Ok(()),
        Some(Fails::NotModified) => {
            let mut refusal = Refusal::from(ErrorCode::NotModified)
                .header(ETAG, headers::etag_value(&meta.etag))
                .header(LAST_MODIFIED, headers::date_value(meta.modified));
            for name in [CACHE_CONTROL, EXPIRES] {
                if let Some(value) = meta.attributes.get(name.as_str()) {
                    refusal = refusal.header(name, headers::value(value));
                }
            }
            if call.is_versioned() {
                refusal = refusal.header(headers::VERSION_ID, headers::version_value(meta.version));
            }
            Err(refusal)
        }
        Some(fails) => Err(fails.into_refusal()),
    }
}

fn unsatisfiable(meta: &Meta) -> Refusal {
    let value = format!("bytes */{}", meta.size);
    Refusal::from(ErrorCode::InvalidRange)
        .field("ActualObjectSize", meta.size.to_string())
        .header(CONTENT_RANGE, headers::value(value.as_bytes()))
}

pub(crate) fn content_range(range: &std::ops::Range<u64>, size: u64) -> http::HeaderValue {
    let text = match range.is_empty() {
        true => format!("bytes */{size}"),
        false => format!("bytes {}-{}/{size}", range.start, range.end - 1),
    };
    headers::value(text.as_bytes())
}

/// What the client is told of a key that is not there.
fn hidden<S: Store>(call: &Call<'_, S>, error: StoreError) -> Refusal {
    let refusal = Refusal::from(error);
    match refusal.code() {
        ErrorCode::NoSuchKey | ErrorCode::NoSuchVersion => refusal.field("Key", call.key),
        _ => refusal,
    }
}

/// All headers that describe an object. `whole` says whether the body is all of it: its checksum is of the whole.
pub(crate) fn describe<S: Store>(
    call: &Call<'_, S>,
    meta: &Meta,
    whole: bool,
    response: &mut HeaderMap,
) -> Outcome<()> {
    response.reserve(12);
    kept::respond(&meta.attributes, response);
    response.insert(ETAG, headers::etag_value(&meta.etag));
    response.insert(LAST_MODIFIED, headers::date_value(meta.modified));
    response.insert(ACCEPT_RANGES, headers::BYTES);
    call.show_version(response, meta.version);
    if !call.query.has("versionId") {
        call.show_expiration(response, meta);
    }
    if meta.attributes.get(kept::TAGS).is_some() {
        let count = kept::tags(&meta.attributes).len();
        response.insert(headers::TAGGING_COUNT, count.into());
    }
    if asks_part(call)
        && let Some(sizes) = PartSizes::of(&meta.attributes)
    {
        response.insert(headers::MP_PARTS_COUNT, sizes.count().into());
    }
    let mode = headers::text(call.headers, &headers::CHECKSUM_MODE);
    if mode.is_some_and(|mode| mode.eq_ignore_ascii_case("ENABLED"))
        && whole
        && let Some(shown) = Shown::of(meta)
    {
        shown.respond(response);
    }
    overrides(call, response)
}

/// `response-*` parameters, which only signed requests may use.
fn overrides<S: Store>(call: &Call<'_, S>, response: &mut HeaderMap) -> Outcome<()> {
    for (parameter, name) in OVERRIDES {
        let Some(value) = call.query.get_nonempty(parameter) else {
            continue;
        };
        if matches!(call.caller, Caller::Anonymous) {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "Request specific response headers cannot be used for anonymous GET requests.",
            ));
        }
        let value = http::HeaderValue::from_str(value).map_err(|_| {
            Refusal::argument(parameter, value, "The value cannot stand in a header.")
        })?;
        response.insert(name, value);
    }
    Ok(())
}
