//! What is kept with a value beside its bytes, as messages tell it and as every door keeps it.

use forebay_api::v1;
use forebay_proto::s3::error::S3Error;
use forebay_proto::s3::kept::{Keeper, TAGGING, TAGS, USER};
use forebay_proto::s3::tags::{MAX_OBJECT_TAGS, Tags};
use forebay_store::Attributes;

use super::status::{Outcome, Refusal};

/// What a message wants kept.
pub(crate) fn kept(wanted: Option<v1::Attributes>) -> Outcome<Attributes> {
    let Some(wanted) = wanted else {
        return Ok(Attributes::EMPTY);
    };
    let headers = [
        ("content-type", wanted.content_type),
        ("cache-control", wanted.cache_control),
        ("content-disposition", wanted.content_disposition),
        ("content-encoding", wanted.content_encoding),
        ("content-language", wanted.content_language),
        ("expires", wanted.expires),
    ];
    let tags = Tags::new(wanted.tags.into_iter().collect(), MAX_OBJECT_TAGS)?;
    let mut kept = Attributes::builder();
    let mut keeper = Keeper::default();
    let mut keep = |name: &str, value: &str| {
        keeper.keep(name, value.as_bytes(), |name, value| {
            kept.insert(name, value);
        })
    };
    for (name, value) in &headers {
        keep(name, value)?;
    }
    for (name, value) in &wanted.metadata {
        keep(&format!("{USER}{name}"), value)?;
    }
    keep(TAGGING, &tags.to_header())?;
    keeper.finish()?;
    kept.build()
        .ok_or_else(|| Refusal::invalid("the attributes are too long"))
}

/// About what a message's attributes take beside themselves: a node of a map has room for eleven entries, and may be half empty.
pub(crate) fn memory_of(wanted: &v1::Attributes) -> usize {
    type Entry = (String, String);
    const NODE: usize = 12 * size_of::<Entry>();
    let headers = [
        &wanted.content_type,
        &wanted.cache_control,
        &wanted.content_disposition,
        &wanted.content_encoding,
        &wanted.content_language,
        &wanted.expires,
    ];
    let maps = [&wanted.metadata, &wanted.tags];
    let nodes = maps.map(|map| map.len().div_ceil(5) * NODE);
    let entries = maps.into_iter().flatten();
    let texts = entries.flat_map(|(name, value)| [name, value]);
    let texts = texts.chain(headers).map(String::capacity);
    nodes.iter().sum::<usize>() + texts.sum::<usize>()
}

/// What is kept, as a message.
pub(crate) fn told(kept: &Attributes) -> v1::Attributes {
    let text = |name: &str| kept.get(name).map(lossy).unwrap_or_default();
    let metadata = kept.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(USER)?;
        Some((name.to_owned(), lossy(value)))
    });
    let tags = kept
        .get_str(TAGS)
        .and_then(|text| Tags::parse_header(text).ok());
    let tags = tags.unwrap_or_default();
    let tags = tags
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    v1::Attributes {
        content_type: text("content-type"),
        cache_control: text("cache-control"),
        content_disposition: text("content-disposition"),
        content_encoding: text("content-encoding"),
        content_language: text("content-language"),
        expires: text("expires"),
        metadata: metadata.collect(),
        tags: tags.collect(),
    }
}

/// Bytes that are not UTF-8 are shown as U+FFFD.
fn lossy(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

impl From<S3Error> for Refusal {
    fn from(error: S3Error) -> Refusal {
        Refusal::invalid(error.message())
    }
}
