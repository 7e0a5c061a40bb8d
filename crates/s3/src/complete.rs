//! `CompleteMultipartUpload`: the parts become one object without being copied.

use std::time::Duration;

use forebay_proto::hex;
use forebay_proto::md5::Md5;
use forebay_proto::s3::checksum::{
    Algorithm, Checksum, ChecksumType, combine, composite, multipart_etag, parse_composite,
};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::xml::{
    CompletedPart, CompletedUpload, MAX_PARTS, check_part_order, complete_multipart_upload_result,
    parse_complete_multipart_upload,
};
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    After, Condition, ErrorKind, Etag, Item, ListOptions, Meta, Seal, Source, Space, Store,
    StoreOptions,
};
use http::header::{HeaderMap, HeaderValue};

use crate::call::Call;
use crate::claims::mismatch;
use crate::ingest::Inbound;
use crate::kept::{self, PartSizes, Shown};
use crate::multipart::{part_checksum, remove_parts, upload_id};
use crate::object_put::unmet;
use crate::reply::{self, Reply};
use crate::staging::{self, Part, UploadId};
use crate::status::{Outcome, Refusal};
use crate::{conditions, encryption, headers};

/// How often an upload is looked at that changes meanwhile, and the first pause between.
const TRIES: usize = 8;
const PAUSE: Duration = Duration::from_millis(5);
/// The smallest part but the last: 5 MiB.
const PART_BYTES_MIN: u64 = 5 << 20;

/// `CompleteMultipartUpload`.
pub(crate) async fn complete<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    encryption::refuse(call.headers)?;
    let id = upload_id(call)?;
    // Before the list is taken: it may be long, and may be about nothing.
    if let Err(refusal) = staging::find(call.store(), call.bucket, call.key, &id).await {
        made(call, &id).await.ok_or(refusal)?;
    }
    let body = inbound.list_of_parts(call.headers).await?;
    let asked = parse_complete_multipart_upload(&body)?;
    check_part_order(&asked)?;
    let condition = conditions::of_call(call).await?;
    let _ending = call.door.uploads.exclusive(&id).await;
    call.still_admitted()?;
    let mut pause = PAUSE;
    for _ in 0..TRIES {
        if let Some(reply) = join(call, &id, &asked, condition).await? {
            return Ok(reply);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(ErrorCode::SlowDown.into())
}

/// `None` when another server of the same store changed the upload after it was looked at here.
async fn join<S: Store>(
    call: &Call<'_, S>,
    id: &UploadId,
    asked: &[CompletedPart],
    condition: Condition,
) -> Outcome<Option<Reply<S::Body>>> {
    let manifest = match staging::find(call.store(), call.bucket, call.key, id).await {
        Ok(manifest) => manifest,
        Err(refusal) => return again(call, id, asked).await.ok_or(refusal).map(Some),
    };
    let (present, _) = staging::parts(call.store(), call.bucket, id, 0, MAX_PARTS as usize).await?;
    let (chosen, unused) = choose(asked, &present, id)?;
    let sizes = check_sizes(&chosen, call.headers)?;
    let choice = staging::chosen(&manifest.attributes);
    let sums = checksum(&chosen, choice, call.headers)?;

    let mut kept = manifest.attributes.to_builder();
    kept.remove(staging::CHOSEN);
    kept.insert(kept::PARTS, sizes.encode());
    kept.insert(kept::UPLOAD, id.as_str());
    if let Some(sums) = sums {
        kept.insert(kept::CHECKSUM, sums.shown.encode());
        kept.insert(kept::PART_CHECKSUMS, sums.of_parts);
    }
    let etag = etag_of(chosen.iter().map(|part| part.meta.etag.as_str()));
    let seal = Seal {
        etag: Etag::new(&etag),
        attributes: kept::sealed(kept)?,
        expires: None,
    };
    let sources = chosen.iter().map(|part| Source {
        key: &part.key,
        seen: Some(&part.meta),
    });
    let sources: Vec<Source<'_>> = sources.collect();
    let own = id.manifest(call.key.as_bytes());
    let consumed: Vec<&[u8]> = unused
        .iter()
        .map(|part| &part.key[..])
        .chain([&own[..]])
        .collect();
    let options = StoreOptions {
        size: None,
        condition,
    };
    match call
        .store()
        .compose(call.object(), &sources, &consumed, options, seal)
        .await
    {
        Ok(stored) => {
            // Parts that came to another server since they were listed. The object is there, whatever becomes of them.
            if let Err(refusal) = remove_parts(call.store(), call.bucket, id).await {
                tracing::warn!(upload = id.as_str(), error = %refusal.error, "parts were left");
            }
            Ok(Some(answer(call, &stored.meta)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unmet(call, condition, error).await),
    }
}

/// A client that did not hear the answer asks again: when the object is the one that this upload made of these parts, it hears it now.
async fn again<S: Store>(
    call: &Call<'_, S>,
    id: &UploadId,
    asked: &[CompletedPart],
) -> Option<Reply<S::Body>> {
    let meta = made(call, id).await?;
    let same_parts = meta.etag.as_str() == etag_of(asked.iter().map(|part| &part.etag[..]));
    same_parts.then(|| answer(call, &meta))
}

/// The object, if it is the one that this upload made. It is listed, because what a cache knows of it may be from before that.
async fn made<S: Store>(call: &Call<'_, S>, id: &UploadId) -> Option<Meta> {
    let listing = call.store().list(ListOptions {
        namespace: call.bucket,
        space: Space::Objects,
        prefix: call.key.as_bytes(),
        delimiter: None,
        after: After::Start,
        limit: 1,
    });
    let Item::Value(key, meta) = listing.await.ok()?.items.pop()? else {
        return None;
    };
    let made =
        key == call.key.as_bytes() && meta.attributes.get_str(kept::UPLOAD) == Some(id.as_str());
    made.then_some(meta)
}

fn answer<S: Store>(call: &Call<'_, S>, meta: &Meta) -> Reply<S::Body> {
    let shown = Shown::of(meta);
    let scheme = match call.secure {
        true => "https",
        false => "http",
    };
    let (host, path) = (call.host.unwrap_or_default(), call.path);
    let document = complete_multipart_upload_result(&CompletedUpload {
        location: &format!("{scheme}://{host}{path}"),
        bucket: call.bucket,
        key: call.key.as_bytes(),
        etag: meta.etag.as_str(),
        checksum: shown.as_ref().map(Shown::as_xml),
    });
    let mut reply = reply::xml(document);
    call.show_version(reply.headers_mut(), meta.version);
    call.show_expiration(reply.headers_mut(), meta);
    reply
}

/// The parts that the client names, in its order, and those that it leaves out.
fn choose<'p>(
    asked: &[CompletedPart],
    present: &'p [Part],
    id: &UploadId,
) -> Outcome<(Vec<&'p Part>, Vec<&'p Part>)> {
    let (mut chosen, mut unused) = (Vec::with_capacity(asked.len()), Vec::new());
    let mut asked = asked.iter().peekable();
    for part in present {
        match asked.next_if(|wanted| wanted.number == part.number) {
            None => unused.push(part),
            Some(wanted) => {
                let same_sum = wanted.checksum.is_none_or(|sum| has(&part.meta, &sum));
                if wanted.etag != part.meta.etag.as_str() || !same_sum {
                    return Err(invalid_part(wanted, id));
                }
                chosen.push(part);
            }
        }
    }
    // Both lists ascend, so what is left over was never uploaded.
    match asked.next() {
        None => Ok((chosen, unused)),
        Some(missing) => Err(invalid_part(missing, id)),
    }
}

/// Whether a part has this checksum: the one that was kept with it, or the CRC-64/NVME that every part has.
fn has(meta: &Meta, wanted: &Checksum) -> bool {
    let own = Checksum::from_crc_value(Algorithm::Crc64Nvme, meta.crc64nvme);
    own == Some(*wanted) || part_checksum(meta) == Some(*wanted)
}

fn invalid_part(part: &CompletedPart, id: &UploadId) -> Refusal {
    Refusal::from(ErrorCode::InvalidPart)
        .field("UploadId", id.as_str())
        .field("PartNumber", part.number.to_string())
        .field("ETag", &part.etag)
}

fn check_sizes(chosen: &[&Part], request: &HeaderMap) -> Outcome<PartSizes> {
    let mut sizes = PartSizes::default();
    let mut total = 0u64;
    for (at, part) in chosen.iter().enumerate() {
        let size = part.meta.size;
        if size < PART_BYTES_MIN && at + 1 < chosen.len() {
            return Err(Refusal::from(ErrorCode::EntityTooSmall)
                .field("ProposedSize", size.to_string())
                .field("MinSizeAllowed", PART_BYTES_MIN.to_string())
                .field("PartNumber", part.number.to_string())
                .field("ETag", part.meta.etag.as_str()));
        }
        sizes.push(size);
        total = total.saturating_add(size);
    }
    if total > VALUE_BYTES_MAX {
        return Err(Refusal::from(ErrorCode::EntityTooLarge)
            .field("ProposedSize", total.to_string())
            .field("MaxSizeAllowed", VALUE_BYTES_MAX.to_string()));
    }
    if let Some(claimed) = headers::number::<u64>(request, &headers::MP_OBJECT_SIZE)?
        && claimed != total
    {
        return Err(Refusal::new(
            ErrorCode::InvalidRequest,
            format!(
                "The provided 'x-amz-mp-object-size' header value {claimed} does not match what was computed: {total}"
            ),
        ));
    }
    Ok(sizes)
}

/// The checksum of an object, and those of its parts in a row.
struct Sums {
    shown: Shown,
    of_parts: Vec<u8>,
}

/// The checksum of the object, from those of its parts, compared with the one that the request may claim. `None` when
/// none was asked for: the object's CRC-64/NVME then stands for it.
fn checksum(
    chosen: &[&Part],
    choice: Option<(Algorithm, ChecksumType)>,
    request: &HeaderMap,
) -> Outcome<Option<Sums>> {
    let (algorithm, kind) = choice.unwrap_or((Algorithm::Crc64Nvme, ChecksumType::FullObject));
    // Every part of an upload with a choice was given its checksum when it came.
    let sums = of_parts(chosen, algorithm).ok_or(ErrorCode::InvalidPart)?;
    let shown = match kind {
        ChecksumType::Composite => {
            composite(&sums).map(|(sum, parts)| Shown::composite(&sum, parts))
        }
        ChecksumType::FullObject => joined(&sums, chosen).map(|whole| Shown::whole(&whole)),
    }
    .ok_or(ErrorCode::InternalError)?;
    check_claims(chosen, &shown, request)?;
    Ok(choice.map(|_| Sums {
        shown,
        of_parts: sums.iter().flat_map(Checksum::as_bytes).copied().collect(),
    }))
}

/// The checksums of the parts, where all have one of this algorithm.
fn of_parts(chosen: &[&Part], algorithm: Algorithm) -> Option<Vec<Checksum>> {
    let of_part = |part: &&Part| match algorithm {
        Algorithm::Crc64Nvme => Checksum::from_crc_value(algorithm, part.meta.crc64nvme),
        _ => part_checksum(&part.meta).filter(|sum| sum.algorithm() == algorithm),
    };
    chosen.iter().map(of_part).collect()
}

/// The CRC of all parts in a row.
fn joined(sums: &[Checksum], chosen: &[&Part]) -> Option<Checksum> {
    let (first, rest) = sums.split_first()?;
    rest.iter()
        .zip(chosen.iter().skip(1))
        .try_fold(*first, |whole, (sum, part)| {
            combine(&whole, sum, part.meta.size)
        })
}

/// Compares with all that the request's headers say of the checksum of the whole object. Of other algorithms than the upload's
/// only what its parts tell can be compared; the rest is refused, so that nobody takes it for verified.
fn check_claims(chosen: &[&Part], shown: &Shown, request: &HeaderMap) -> Outcome<()> {
    if let Some(kind) = headers::legible(request, &headers::CHECKSUM_TYPE)?
        && ChecksumType::parse(kind) != Some(shown.kind)
    {
        return Err(Refusal::new(
            ErrorCode::InvalidRequest,
            format!(
                "The upload has a checksum of the type {}; the value of x-amz-checksum-type must be the same.",
                shown.kind.as_str()
            ),
        ));
    }
    for algorithm in Algorithm::ALL {
        let Some(text) = request.get(algorithm.header()) else {
            continue;
        };
        if algorithm == shown.algorithm {
            check_claim(shown, text)?;
            continue;
        }
        let whole = of_parts(chosen, algorithm).and_then(|sums| joined(&sums, chosen));
        let whole = whole.ok_or_else(|| mismatch(algorithm, shown.algorithm))?;
        check_claim(&Shown::whole(&whole), text)?;
    }
    Ok(())
}

fn check_claim(shown: &Shown, text: &HeaderValue) -> Outcome<()> {
    let claimed = text
        .to_str()
        .ok()
        .and_then(|text| parse_composite(shown.algorithm, text));
    let made = parse_composite(shown.algorithm, &shown.text);
    match (claimed, made) {
        // A composite checksum may be claimed without its number of parts.
        (Some((claimed, count)), Some((made, parts)))
            if claimed == made && (count.is_none() || count == parts) =>
        {
            Ok(())
        }
        (Some(_), _) => Err(Refusal::checksum_mismatch(shown.algorithm)),
        (None, _) => Err(Refusal::new(
            ErrorCode::InvalidRequest,
            format!("Value for {} header is invalid.", shown.algorithm.header()),
        )),
    }
}

/// The object's tag, from those of its parts.
fn etag_of<'p>(parts: impl Iterator<Item = &'p str>) -> String {
    let digests: Vec<[u8; 16]> = parts.map(digest_of).collect();
    multipart_etag(&digests)
}

/// What a part's tag contributes to the object's: its MD5, or where parts have no MD5, the MD5 of the tag.
fn digest_of(etag: &str) -> [u8; 16] {
    let text = etag.as_bytes();
    hex::decode(text).unwrap_or_else(|| Md5::digest(text))
}
