//! `GetObjectAttributes`.

use forebay_proto::s3::xml::{
    AttributeParts, MAX_PARTS, ObjectAttributes, PartEntry, object_attributes,
};
use forebay_store::{Meta, Store};
use http::header::LAST_MODIFIED;

use crate::call::Call;
use crate::kept::{PartSizes, Shown, part_checksum};
use crate::reply::{self, Reply};
use crate::router::Operation;
use crate::status::{Outcome, Refusal};
use crate::{encryption, headers};

/// The most parts in one answer.
const PARTS_MAX: u32 = 1000;

/// `GetObjectAttributes`.
pub(crate) async fn get<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    encryption::refuse(call.headers)?;
    let asked = asked(call)?;
    let meta = call.store().stat(call.object(), call.version()?).await?;
    call.permit_found(Operation::GetObjectAttributes, &meta)
        .await?;
    let shown = Shown::of(&meta);
    let wants = |name: &str| asked.iter().any(|known| known == name);
    let attributes = ObjectAttributes {
        etag: wants("ETag").then(|| meta.etag.as_str()),
        checksum: shown
            .as_ref()
            .filter(|_| wants("Checksum"))
            .map(Shown::as_xml),
        size: wants("ObjectSize").then_some(meta.size),
        storage_class: wants("StorageClass"),
        parts: match wants("ObjectParts") {
            true => parts(call, &meta)?,
            false => None,
        },
    };
    let mut reply = reply::xml(object_attributes(&attributes));
    let response = reply.headers_mut();
    response.insert(LAST_MODIFIED, headers::date_value(meta.modified));
    call.show_version(response, meta.version);
    Ok(reply)
}

/// The names in `x-amz-object-attributes`, which may come in several headers.
fn asked<S: Store>(call: &Call<'_, S>) -> Outcome<Vec<String>> {
    const KNOWN: [&str; 5] = [
        "ETag",
        "Checksum",
        "ObjectParts",
        "StorageClass",
        "ObjectSize",
    ];
    let mut names = Vec::new();
    for value in call.headers.get_all(headers::OBJECT_ATTRIBUTES) {
        for name in value.to_str().unwrap_or_default().split(',') {
            let name = name.trim();
            if !KNOWN.contains(&name) {
                return Err(Refusal::argument(
                    headers::OBJECT_ATTRIBUTES.as_str(),
                    name,
                    "Invalid attribute name specified.",
                ));
            }
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err(Refusal::argument(
            headers::OBJECT_ATTRIBUTES.as_str(),
            "",
            "The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty",
        ));
    }
    Ok(names)
}

fn parts<S: Store>(call: &Call<'_, S>, meta: &Meta) -> Outcome<Option<AttributeParts<'static>>> {
    let Some(sizes) = PartSizes::of(&meta.attributes) else {
        return Ok(None);
    };
    let marker = headers::number::<u32>(call.headers, &headers::PART_NUMBER_MARKER)?.unwrap_or(0);
    let limit = headers::number::<u32>(call.headers, &headers::MAX_PARTS)?
        .unwrap_or(PARTS_MAX)
        .clamp(1, PARTS_MAX);
    let page: Vec<PartEntry<'static>> = sizes
        .iter()
        .skip(marker.min(MAX_PARTS) as usize)
        .take(limit as usize)
        .map(|(number, size)| PartEntry {
            number,
            last_modified_ms: meta.modified,
            etag: "",
            size,
            checksum: part_checksum(&meta.attributes, number),
        })
        .collect();
    let total = sizes.count();
    Ok(Some(AttributeParts {
        total,
        part_number_marker: marker,
        next_part_number_marker: page
            .last()
            .map(|part| part.number)
            .filter(|last| *last < total),
        max_parts: limit,
        parts: page,
    }))
}
